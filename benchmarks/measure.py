"""Alternating time measurement and its statistics."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

MINIMUM_SAMPLE_SECONDS = 0.02
"""Shorter calls are repeated within a sample, so that timer and scheduler noise stay small."""

_WARM_UP_CALLS = 5  # TorchScript's profiling executor optimizes within its first calls
_LONG_CALL_SECONDS = 0.05  # such calls outlast the cold start that a preparing call removes
_SETTLE_SECONDS = 0.06  # ONNX Runtime's threads spin for some 25 ms, those of OpenMP for 13


@dataclass(frozen=True)
class Spread:
    """Quantiles of a list of measurements."""

    low: float
    median: float
    high: float


def spread(values: list[float], tail: float) -> Spread:
    """The median of ``values`` and their ``tail`` and ``1 - tail`` quantiles."""
    quantiles = torch.tensor([tail, 0.5, 1.0 - tail], dtype=torch.float64)
    data = torch.tensor(values, dtype=torch.float64)
    low, median, high = data.quantile(quantiles).tolist()
    return Spread(low, median, high)


def ratios(numerators: list[float], denominators: list[float]) -> list[float]:
    """Element-wise quotients: both elements of a pair come from the same round."""
    return [n / d for n, d in zip(numerators, denominators, strict=True)]


def alternate(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    minimum_sample: float = MINIMUM_SAMPLE_SECONDS,
) -> dict[str, list[float]]:
    """Seconds per call of every one of ``calls``, one sample each in every round.

    A drift of the machine's speed (frequency, neighbours on the same host) then reaches all
    calls alike and cancels in the ratio of two samples of a round.  The order rotates from
    round to round so that no call always follows the same other one.
    """
    names = list(calls)
    estimates = {name: warm_up(calls[name]) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    with _collector_off():
        for index in range(rounds):
            shift = index % max(len(names), 1)
            for name in names[shift:] + names[:shift]:
                seconds = sample(calls[name], estimates[name], minimum_sample)
                samples[name].append(seconds)
    return samples


def alternate_once(
    calls: Mapping[str, Callable[[], object]], repeats: Mapping[str, int]
) -> dict[str, list[float]]:
    """Seconds of single calls without warm-up, ``repeats[name]`` of each, alternating.

    For work that takes seconds, and of which the first call is what a user waits for.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(max(repeats.values(), default=0)):
        for name, call in calls.items():
            if index < repeats[name]:
                gc.collect()
                samples[name].append(seconds_of(call))
    return samples


def seconds_of(call: Callable[[], object]) -> float:
    """The wall-clock seconds of one call."""
    start = perf_counter()
    call()
    return perf_counter() - start


def sqnr_db(expected: Tensor, actual: Tensor) -> float:
    """Signal-to-quantization-noise ratio of ``actual`` in decibels."""
    signal = expected.double().square().sum().item()
    noise = (expected.double() - actual.double()).square().sum().item()
    return math.inf if noise == 0 else 10.0 * math.log10(signal / noise)


def warm_up(call: Callable[[], object]) -> float:
    """Call until everything is compiled and allocated; the seconds of the fastest call."""
    return min(seconds_of(call) for _ in range(_WARM_UP_CALLS))


def sample(
    call: Callable[[], object], estimate: float, minimum_sample: float = MINIMUM_SAMPLE_SECONDS
) -> float:
    """Seconds per call over at least ``minimum_sample`` seconds."""
    repeats = max(1, math.ceil(minimum_sample / estimate))
    # The thread pool of the call before this one may still be spinning on the cores.
    time.sleep(_SETTLE_SECONDS)
    if estimate < _LONG_CALL_SECONDS:
        call()  # wakes this runtime's own threads and brings its weights into the caches
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats


@contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage collection inside a sample."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
