"""The float reference: PyTorch's own inference optimisation of the scripted model."""

# PyTorch declares torch.jit.load without types.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.runtimes.base import Built, Predict, Workload
from benchmarks.runtimes.torch_script import predictor


class TorchFloatRuntime:
    """``torch.jit.optimize_for_inference``: frozen, BatchNorm folded, oneDNN layouts."""

    name = "torch_float"
    requires: tuple[str, ...] = ()

    def build(self, workload: Workload, directory: Path) -> Built:
        path = directory / "float.pt"
        torch.jit.save(torch.jit.freeze(workload.scripted), str(path))
        start = perf_counter()
        _optimized(path)
        seconds = perf_counter() - start
        return Built(partial(_predictor, path), seconds, path.stat().st_size)


def _optimized(path: Path) -> torch.jit.ScriptModule:
    """The frozen model of a file: one with oneDNN weights cannot be saved."""
    return torch.jit.optimize_for_inference(torch.jit.load(str(path)).eval())


def _predictor(path: Path, _: Tensor) -> Predict:
    return predictor(_optimized(path), None)
