"""This project: ``jit_passes.quantize_script`` onto PyTorch's operators, or onto its own plans."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.runtimes.base import Built, Predict, Workload
from benchmarks.runtimes.torch_script import quantized_engine, save_and_load


class JitPassesRuntime:
    """jit_passes with a target; for ``stock``, ``engine=None`` lets the target choose.

    In the mode ``dynamic`` nothing is calibrated. `improve` is the number of seconds for
    ``improve=True``.
    """

    requires: tuple[str, ...] = ("jit_passes",)

    def __init__(
        self, engine: str | None = None, target: str = "stock", mode: str | None = None,
        improve: float | None = None,
    ) -> None:  # fmt: skip
        parts = ["jit_passes", *([f"target_{target}"] if target != "stock" else [])]
        improved = "improve" if improve else None
        self.name = "_".join([*parts, *(part for part in (engine, mode, improved) if part)])
        self._engine, self._target, self._mode = engine, target, mode
        self._options = {"improve": True, "time": improve} if improve else {}

    def build(self, workload: Workload, directory: Path) -> Built:
        start = perf_counter()
        module = quantize_with_jit_passes(
            workload.scripted,
            None if self._mode == "dynamic" else workload.calibration,
            self._engine,
            self._target,
            self._mode,
            **self._options,
        )
        seconds = perf_counter() - start
        built = save_and_load(module, directory / f"{self.name}.pt", self._engine, seconds)
        return built if self._target == "stock" else replace(built, specialize=_Load(built))


@dataclass(frozen=True)
class _Load:
    """Loads a file that needs this package."""

    built: Built

    def __call__(self, example: Tensor) -> Predict:
        import_jit_passes()
        return self.built.specialize(example)


def quantize_with_jit_passes(
    scripted: torch.jit.ScriptModule,
    calibration: Iterable[Tensor] | None,
    engine: str | None,
    target: Any = "stock",
    mode: str | None = None,
    config: Any = None,
    **options: Any,
) -> torch.jit.ScriptModule:
    """``scripted`` quantized for the target or that of this name, ``Stock`` with ``engine``.

    Static without a mode, as the peers are.
    """
    jit_passes = import_jit_passes()
    if target == "stock":
        target = jit_passes.targets.Stock(engine=engine)
    with quantized_engine(engine):
        module: torch.jit.ScriptModule = jit_passes.quantize_script(
            scripted,
            calibration,
            target=target,
            mode=mode or "static",
            config=config,
            progress=False,
            **options,
        )
    return module


def import_jit_passes() -> Any:
    """The package, imported late so that the peers can be measured without it."""
    return importlib.import_module("jit_passes")
