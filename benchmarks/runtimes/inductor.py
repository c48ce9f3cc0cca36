"""Inductor of PyTorch: a package that jit_passes compiles ahead of time, and `torch.compile`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.runtimes.base import Built, Predict, Workload, narrow_weights
from benchmarks.runtimes.exported import SEVEN_BITS, open_batch
from benchmarks.runtimes.jit_passes import import_jit_passes, quantize_with_jit_passes


class InductorRuntime:
    """The target `inductor` and `export_aoti` with a free batch size, run without jit_passes."""

    name = "jit_passes_inductor"
    requires: tuple[str, ...] = ("jit_passes",)

    def build(self, workload: Workload, directory: Path) -> Built:
        path = directory / f"{self.name}.pt2"
        start = perf_counter()
        model = quantize_with_jit_passes(
            workload.scripted,
            workload.calibration,
            engine=None,
            target="inductor",
            config=SEVEN_BITS if narrow_weights() else None,
        )
        seconds = perf_counter() - start
        import_jit_passes().export_aoti(model, path, workload.calibration[0], open_batch())
        return Built(partial(_package, path), seconds, path.stat().st_size)


class CompiledFloatRuntime:
    """The float model under `torch.compile`, with frozen weights that oneDNN has packed."""

    name = "torch_compile"
    requires: tuple[str, ...] = ("jit_passes",)

    def build(self, workload: Workload, directory: Path) -> Built:
        path = directory / f"{self.name}.pt2"
        sizes = open_batch()
        program = import_jit_passes().to_exported_program(
            workload.scripted, workload.calibration[0], sizes
        )
        torch.export.save(program, path)
        return Built(partial(_compiled, path), 0.0, path.stat().st_size)


def _package(path: Path, _: Tensor) -> Predict:
    package: Predict = torch._inductor.aoti_load_package(str(path))
    return package


def _compiled(path: Path, _: Tensor) -> Predict:
    module = torch.compile(torch.export.load(path).module(), options={"freezing": True})

    def predict(x: Tensor) -> Tensor:
        with torch.no_grad():
            result: Tensor = module(x)
        return result

    return predict
