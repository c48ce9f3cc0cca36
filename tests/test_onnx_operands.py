"""Operands of nodes of ONNX by the names in the operators' schemas."""

from __future__ import annotations

from typing import Any

import pytest

from jit_passes import JitPassesError
from jit_passes.export.onnx.graph import operand

onnx = pytest.importorskip("onnx")
ir = pytest.importorskip("onnx_ir")

FIRST, LAST = 18, 23  # opsets of files
# The operators that the export asks for operands by names, and these names.
ASKED = {
    "QuantizeLinear": ["x", "y_scale", "y_zero_point"],
    "DequantizeLinear": ["x", "x_scale", "x_zero_point"],
    "Cast": ["input"],
    "Clip": ["input", "min", "max"],
    "Conv": ["X", "W", "B"],
    "ConvTranspose": ["X", "W", "B"],
    "Gather": ["data", "indices"],
    **{f"Reduce{how}": ["data", "axes"] for how in ("Max", "Mean", "Min", "Sum")},
}


def values(names: str) -> list[Any]:
    return [ir.Value(name=name) for name in names]


@pytest.mark.parametrize("opset", range(FIRST, LAST + 1))
@pytest.mark.parametrize("kind", ASKED)
def test_places_of_the_schema(kind: str, opset: int) -> None:
    names = ASKED[kind]
    node = ir.node(kind, values("abc"[: len(names)]), version=opset)
    assert [operand(node, name) for name in names] == list(node.inputs)


def test_operands_that_are_left_out() -> None:
    """They are None, at the end and in the middle."""
    x, high = values("xh")
    clip = ir.node("Clip", [x, None, high])
    assert operand(clip, "min") is None and operand(clip, "max") is high
    assert operand(ir.node("QuantizeLinear", [x, high]), "y_zero_point") is None


@pytest.mark.parametrize(
    ("of_node", "of_graph", "known"),
    [(17, 18, False), (18, 17, True), (None, 17, False), (None, 18, True), (None, None, True)],
)
def test_the_opset_of_a_node_and_of_its_graph(
    of_node: int | None, of_graph: int | None, known: bool
) -> None:
    """Axes are an operand of ReduceMean from opset 18 on, and an attribute before."""
    x, axes = values("xa")
    node = ir.node("ReduceMean", [x, axes], version=of_node)
    imports = {} if of_graph is None else {"": of_graph}
    graph = ir.Graph([x, axes], node.outputs, nodes=[node], opset_imports=imports)
    assert node.graph is graph
    if known:
        assert operand(node, "axes") is axes
    else:
        with pytest.raises(JitPassesError, match=r"no operand 'axes': it has data$"):
            operand(node, "axes")


@pytest.mark.parametrize(
    ("kind", "domain", "name", "words"),
    [
        ("Conv", "", "weight", r"'n' \(Conv\) has no operand 'weight': it has X, W, B$"),
        ("Loop", "", "v_initial", r"'n' \(Loop\) has no operand 'v_initial': it has M, cond$"),
        ("Concat", "", "inputs", r"'n' \(Concat\) .* its operands have no names$"),
        ("Conv", "com.microsoft", "X", r"'n' \(Conv\) .* its operands have no names$"),
    ],
)
def test_names_that_no_single_operand_has(kind: str, domain: str, name: str, words: str) -> None:
    node = ir.node(kind, values("abc"), domain=domain, name="n")
    with pytest.raises(JitPassesError, match=words):
        operand(node, name)
