"""Arguments and results of a benchmarked runtime."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

THREADS = 2
"""Threads each runtime may use; the machines this was written on have two cores."""


def narrow_weights() -> bool:
    """Whether files for ONNX Runtime and OpenVINO get weights of 7 bits.

    Without VNNI these engines add pairs of products in int16, where weights of 8 bits overflow.
    """
    return not torch.cpu._is_vnni_supported()


Predict = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Workload:
    """One float model and the data every quantizer calibrates on."""

    model: nn.Module
    scripted: torch.jit.ScriptModule
    calibration: list[Tensor]


@dataclass(frozen=True)
class Built:
    """A quantized model, saved and loaded again."""

    specialize: Callable[[Tensor], Predict]
    """``specialize(example)``: the callable for inputs of the shape of ``example``.

    Runtimes that can compile for a fixed batch size do so here, outside the measurement.
    """
    seconds: float
    """Time to quantize: from the runtime's own float model to its quantized model.

    Scripting, exporting, saving, loading and compiling are not part of it.
    """
    file_bytes: int
    """Size of the file or files the callable was loaded from."""


class Runtime(Protocol):
    """A way to quantize a model and to run the result."""

    name: str
    requires: tuple[str, ...]
    """Modules that must be importable."""

    def build(self, workload: Workload, directory: Path) -> Built:
        """Quantize ``workload.model`` and save it under ``directory``."""
        ...


def missing_requirement(runtime: Runtime) -> str | None:
    """Why ``runtime`` cannot run here, or None if it can."""
    for module in runtime.requires:
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken extension module may raise anything on import
            return f"cannot import {module}: {first_line(error)}"
    return None


def first_line(error: BaseException) -> str:
    """The class and the first informative line of the message of ``error``."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TorchScript puts its interpreter's preamble first and the reason last.
    if len(lines) > 1 and lines[0].startswith("The following operation failed"):
        lines = lines[-1:]
    name = type(error).__name__
    return f"{name}: {lines[0].removeprefix(f'{name}: ')[:200]}" if lines else name
