"""The float reference: PyTorch's own inference optimisation of the scripted model."""

# PyTorch declares torch.jit.load without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import torch

from benchmarks.runtimes.base import Built, Workload
from benchmarks.runtimes.torch_script import predictor


class TorchFloatRuntime:
    """``torch.jit.optimize_for_inference``: frozen, BatchNorm folded, oneDNN layouts."""

    name = "torch_float"
    requires: tuple[str, ...] = ()

    def build(self, workload: Workload, directory: Path) -> Built:
        path = directory / "float.pt"
        torch.jit.save(torch.jit.freeze(workload.scripted), str(path))
        start = perf_counter()
        # A module with oneDNN weights cannot be saved, so the file holds the frozen one.
        optimized = torch.jit.optimize_for_inference(torch.jit.load(str(path)).eval())
        seconds = perf_counter() - start
        return Built(
            specialize=lambda example: predictor(optimized, None),
            seconds=seconds,
            file_bytes=path.stat().st_size,
        )
