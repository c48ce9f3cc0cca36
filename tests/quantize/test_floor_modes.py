"""The models of the floor in all modes, on `stock` and `x86`: near to float and to the reference.

Each model has auto, static, and two of three other modes, in turns; `make fuzz` has all three. In
the mode dynamic inputs have 8 bits too, and results none; weights alone lose least. So the floor is
that of the table in all modes.
"""

from __future__ import annotations

import functools
import io
import warnings
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch

import jit_passes
from tests.advice import even_kernels, projections
from tests.compare import assert_arguments, assert_close, assert_same
from tests.models import CASES, Case
from tests.processor import decibels_here
from tests.quantize.test_floor import (
    CALIBRATION_BATCH,
    CALIBRATION_BATCHES,
    RUN_BATCH,
    RUN_SEED,
    check_without_the_package,
    float_run,
    one_thread,  # noqa: F401  a fixture
    run,
)
from tests.seeds import in_turns

pytestmark = [
    pytest.mark.xdist_group("floor"),  # the models are those that test_floor.py has scripted
    even_kernels,
    projections,
]

LOWERED = 28.0
"""Lowered and reference, in dB: kernels round a result once, and near a tie it goes either way."""

SCRIPTED = [case for case in CASES if case.script and case.floor is not None]
# test_floor.py has auto on stock, which is not static for transformers and recurrent layers.
OF_ALL = [("x86", "auto"), ("stock", "static")]
OF_SOME = [("x86", "dynamic"), ("stock", "dynamic"), ("stock", "weight_only")]
MODES = {
    case.name: [*OF_ALL, *(mode for _, mode in pairs)]
    for case, pairs in groupby(in_turns(SCRIPTED, OF_SOME, few=2), key=itemgetter(0))
}
NEEDS_DATA = ("auto", "static")


@dataclass(frozen=True)
class Quantized:
    """A model in one mode, before and after lowering."""

    target: str
    mode: str
    reference: torch.jit.ScriptModule
    lowered: torch.jit.ScriptModule


@functools.cache
def quantize(case: Case) -> list[Quantized]:
    """Return what the float model is in each mode that quantizes something."""
    model, found = case.shared("script"), []
    modes_of_auto: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jit_passes.JitPassesWarning)  # test_floor.py looks at them
        for target, mode in MODES[case.name]:
            if mode == "static" and modes_of_auto <= {"static"}:
                continue
            prepared = jit_passes.prepare(model, target=target, mode=mode, method=case.method)
            if mode in NEEDS_DATA:
                batches = (case.arguments(CALIBRATION_BATCH, i) for i in range(CALIBRATION_BATCHES))
                prepared = jit_passes.calibrate(prepared, batches, progress=False)
            reference = jit_passes.convert(prepared)
            lowered = jit_passes.lower(reference)
            rows = jit_passes.coverage(lowered).int8
            if mode == "auto":
                modes_of_auto = {str(row.mode) for row in rows}
            if rows:
                found.append(Quantized(target, mode, reference, lowered))
    return found


@functools.cache
def lowered_runs(case: Case, others: bool = False) -> list[Any]:
    """Return the results of the lowered models, mode by mode."""
    args = case.arguments(RUN_BATCH, RUN_SEED, others=others)
    return [run(one.lowered, args, case.method) for one in quantize(case)]


@pytest.mark.parametrize("case", SCRIPTED, ids=lambda case: case.name)
def test_near_float_and_reference(case: Case) -> None:
    """At a batch size that calibration has not seen, on both paths, thrice, from a file."""
    assert case.floor is not None
    found = quantize(case)
    for others in (False, True) if case.others is not None else (False,):
        args = case.arguments(RUN_BATCH, RUN_SEED, others=others)
        expected = float_run(case, "script", others)
        for one, actual in zip(found, lowered_runs(case, others), strict=True):
            what = f"{case.name}, {one.mode} on {one.target}"
            floor = decibels_here(case.floor) if one.target == "stock" else case.floor
            middle = run(one.reference, args, case.method)
            for wanted, near, got in zip(expected, middle, actual, strict=True):
                assert_close(wanted["output"], got["output"], floor, what)
                assert_close(near["output"], got["output"], LOWERED, f"{what}, lowered")
                arguments = (wanted["arguments"], got["arguments"])
                assert_arguments(args, *arguments, floor, what)
            assert_same(actual, run(reload(one.lowered), args, case.method), f"{what}, from a file")


@pytest.mark.parametrize("case", SCRIPTED, ids=lambda case: case.name)
def test_operators_have_the_mode_that_was_asked_for(case: Case) -> None:
    """Where nothing else than the mode could be in the way.

    A table that is the weight of a quantized linear too has its integers alone.
    """
    for one in quantize(case):
        rows = jit_passes.coverage(one.lowered)
        if one.mode != "auto":
            own = (row for row in rows.int8 if not row.why.startswith("its table is the weight"))
            assert {row.mode for row in own} <= {one.mode, ""}, one.mode


def reload(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def test_files_load_without_the_package(tmp_path: Path) -> None:
    """All for `stock`, in one process that imports torch only: equal to the bit."""
    models = {
        f"{case.name}-{one.mode}": (case, one.lowered, outcomes)
        for case in SCRIPTED
        for one, outcomes in zip(quantize(case), lowered_runs(case), strict=True)
        if one.target == "stock"
    }
    assert len(models) > 100
    check_without_the_package(models, tmp_path)
