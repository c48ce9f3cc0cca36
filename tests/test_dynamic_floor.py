"""The models of the floor that have linears, in the mode dynamic: without data, close to float.

The floor is that of static quantization: inputs have 8 bits here too, and results none.
"""

from __future__ import annotations

import warnings

import pytest
from compare import assert_arguments, assert_close
from models import CASES, Case
from test_floor import RUN_BATCH, RUN_SEED, run

import jit_passes
from jit_passes.graph.view import GraphView

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
LOWERED = 50.0  # dB: lowered and reference differ where a number lies between two codes


def has_linear(case: Case) -> bool:
    model = case.build("script")
    graph = GraphView.of(model._c, case.method)
    inlined = model.inlined_graph if case.method == "forward" else ""
    return "aten::linear" in str(inlined) or any(n.kind == "aten::linear" for n in graph.nodes)


LINEAR = [case for case in CASES if case.script and case.floor is not None and has_linear(case)]


def test_there_are_some() -> None:
    assert len(LINEAR) >= 20


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)
def test_stays_close_to_float(case: Case) -> None:
    """Reference and stock, on both paths of a branch, thrice, since states move."""
    model = case.build("script")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing quantized, where no linear has constant weights
        prepared = jit_passes.prepare(model, target="stock", mode="dynamic", method=case.method)
        reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    assert {row.mode for row in jit_passes.coverage(lowered).int8} <= {"dynamic"}
    kinds = [node.kind for node in GraphView.of(lowered._c, case.method).nodes]
    assert not any(kind.startswith("jit_passes::") for kind in kinds)
    assert case.floor is not None
    for others in (False, True) if case.others is not None else (False,):
        args = case.arguments(RUN_BATCH, RUN_SEED, others=others)
        runs = [run(module, args, case.method) for module in (model, reference, lowered)]
        for wanted, middle, found in zip(*runs, strict=True):
            assert_close(wanted["output"], found["output"], case.floor, case.name)
            assert_close(middle["output"], found["output"], LOWERED, f"{case.name}, lowered")
            arguments = (wanted["arguments"], found["arguments"])
            assert_arguments(args, *arguments, case.floor, case.name)
