"""The cost of a quantized model in use: the bytes of its file, or the time of a call."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ..stages.batches import cloned

CALLS = 10  # the median counts, after as many calls to warm up
Cost = Callable[[torch.jit.ScriptModule], float]


def file_size(model: torch.jit.ScriptModule) -> float:
    """Return the bytes of a model's file."""
    buffer = io.BytesIO()
    torch.jit.save(model, buffer)
    return float(buffer.getbuffer().nbytes)


def latency_on(batch: Any, method: str) -> Cost:
    """Return a function that measures the median time of a call on a batch, in seconds."""

    def measure(model: torch.jit.ScriptModule) -> float:
        times = []
        for _ in range(2 * CALLS):
            copy = cloned(batch)
            args, kwargs = ((), copy) if isinstance(copy, dict) else (copy, {})
            begin = time.perf_counter()
            with torch.no_grad():
                getattr(model, method)(*args, **kwargs)
            times.append(time.perf_counter() - begin)
        return statistics.median(times[CALLS:])

    return measure
