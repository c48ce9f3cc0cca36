"""The target `fixed_point` on models of all kinds: with powers of two it is the reference model."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

import jit_passes
from jit_passes.targets import FixedPoint
from tests.compare import assert_same, call, clone
from tests.models import CASES, Case

# A sample of the table, each twelfth; all of it takes a minute.
SAMPLE = [case for case in CASES if case.script][::12]


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_equals_the_reference(case: Case) -> None:
    """All scales are powers of two and sums are small, so float32 is exact."""
    scripted = case.build("script")
    batches = [case.arguments(8, seed) for seed in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jit_passes.JitPassesWarning)  # what stays in float
        prepared = jit_passes.prepare(scripted, target=FixedPoint("shift"), method=case.method)
        jit_passes.calibrate(prepared, batches)
        reference = jit_passes.convert(prepared)
        lowered = jit_passes.lower(reference)
    x = case.arguments(3, seed=100)
    with torch.no_grad():
        expected = call(copy.deepcopy(reference), clone(x), case.method)
        assert_same(expected, call(lowered, clone(x), case.method), case.name)


def test_sample_is_quantized() -> None:
    assert sum(case.int8 > 0 for case in SAMPLE) > 25
