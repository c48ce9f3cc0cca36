"""PyTorch's TorchScript quantization, ``torch.ao.quantization.quantize_jit``."""

# PyTorch declares its quantization functions without types.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from torch.ao.quantization import get_default_qconfig
from torch.ao.quantization.quantize_jit import convert_jit, prepare_jit

from benchmarks.runtimes.base import Built, Workload
from benchmarks.runtimes.torch_script import quantized_engine, save_and_load


class QuantizeJitRuntime:
    """``prepare_jit`` and ``convert_jit`` with the default configuration of one engine."""

    requires: tuple[str, ...] = ()

    def __init__(self, engine: str) -> None:
        self.name = f"quantize_jit_{engine}"
        self._engine = engine

    def build(self, workload: Workload, directory: Path) -> Built:
        start = perf_counter()
        module = quantize_with_quantize_jit(workload.scripted, workload.calibration, self._engine)
        seconds = perf_counter() - start
        return save_and_load(module, directory / f"{self.name}.pt", self._engine, seconds)


def prepare_with_quantize_jit(
    scripted: torch.jit.ScriptModule, engine: str
) -> torch.jit.ScriptModule:
    """``scripted`` with the default observers of ``engine``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation notices, and reduce_range of the observers
        return prepare_jit(scripted, {"": get_default_qconfig(engine)})


def quantize_with_quantize_jit(
    scripted: torch.jit.ScriptModule, calibration: Iterable[Tensor], engine: str
) -> torch.jit.ScriptModule:
    """Prepare, calibrate and convert ``scripted`` for ``engine``."""
    with quantized_engine(engine), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        prepared = prepare_with_quantize_jit(scripted, engine)
        for batch in calibration:
            prepared(batch)
        return convert_jit(prepared)
