"""Files that jit_passes writes for another engine, run by that engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.runtimes.base import Built, Predict, Workload, narrow_weights
from benchmarks.runtimes.jit_passes import import_jit_passes, quantize_with_jit_passes

SEVEN_BITS = {"version": 1, "global": {"weight": {"bits": 7}}}


def open_batch() -> tuple[dict[int, Any]]:
    """Sizes of a program whose first axis is open."""
    return ({0: torch.export.Dim("batch", min=1, max=1024)},)


class ExportedRuntime:
    """A target of jit_passes, `export_onnx` with a free batch size, and what runs the file.

    In the mode ``dynamic`` nothing is calibrated.
    """

    def __init__(
        self,
        engine: str,
        compiled: Callable[[Path, Tensor], Predict],
        mode: str | None = None,
    ) -> None:
        self.name = "_".join(["jit_passes", engine, *([mode] if mode else [])])
        self.requires: tuple[str, ...] = ("jit_passes", "onnx", "onnxscript", engine)
        self._engine, self._mode, self._compiled = engine, mode, compiled

    def build(self, workload: Workload, directory: Path) -> Built:
        path = directory / f"{self.name}.onnx"
        start = perf_counter()
        model = quantize_with_jit_passes(
            workload.scripted,
            workload.calibration if self._mode is None else None,
            engine=None,
            target=self._engine,
            mode=self._mode,
            config=SEVEN_BITS if narrow_weights() else None,
        )
        seconds = perf_counter() - start
        import_jit_passes().export_onnx(model, path, workload.calibration[0], open_batch())
        return Built(partial(self._compiled, path), seconds, path.stat().st_size)
