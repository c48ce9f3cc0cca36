"""Operands of nodes of ONNX by the names in the operators' schemas."""

from __future__ import annotations

from typing import Any

import pytest

from jit_passes import JitPassesError
from jit_passes.export.onnx.graph import constant, grid_of, made_by, operand
from jit_passes.export.onnx.reductions import keep_reductions

numpy = pytest.importorskip("numpy")
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
    """Operands that are left out are None, at the end and in the middle."""
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
        ("ReduceMax", "com.microsoft", "axes", r"\(ReduceMax\) .* its operands have no names$"),
    ],
)
def test_names_that_no_single_operand_has(kind: str, domain: str, name: str, words: str) -> None:
    node = ir.node(kind, values("abc"), domain=domain, name="n")
    with pytest.raises(JitPassesError, match=words):
        operand(node, name)


def test_an_operator_that_is_newer_than_the_opset() -> None:
    """Gelu exists from opset 20 on."""
    [x] = values("x")
    assert operand(ir.node("Gelu", [x], version=20), "X") is x
    with pytest.raises(JitPassesError, match=r"'n' \(Gelu\) .* its operands have no names$"):
        operand(ir.node("Gelu", [x], version=18, name="n"), "X")


@pytest.mark.parametrize(("domain", "same"), [("", True), ("ai.onnx", True), ("mine", False)])
def test_an_operator_of_another_domain_is_another_one(domain: str, same: bool) -> None:
    """Neither is its maker of that kind, nor is a Max written next to it."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3, 4]))
    axes = constant("axes", numpy.array([2]))
    scale = constant("scale", numpy.ones((3, 1), numpy.float32))
    product = ir.node("Mul", [x, scale.outputs[0]], name="product")
    product.outputs[0].name = "product"
    product.outputs[0].type, product.outputs[0].shape = x.type, x.shape
    operands = [product.outputs[0], axes.outputs[0]]
    reduced = ir.node("ReduceSum", operands, domain=domain, name="reduced")
    reduced.outputs[0].name = "reduced"
    nodes = [axes, scale, product, reduced]
    graph = ir.Graph([x], reduced.outputs, nodes=nodes, opset_imports={"": 21}, name="graph")
    assert made_by(reduced.outputs[0], "ReduceSum") is (reduced if same else None)
    keep_reductions(ir.Model(graph, ir_version=10))
    assert any(node.op_type == "Max" for node in graph) is same


def test_the_grid_of_a_quantize() -> None:
    """Without a zero point there is none, as without constants."""
    [x] = values("x")
    scale = constant("scale", numpy.array(0.5, numpy.float32)).outputs[0]
    zero = constant("zero", numpy.array(3, numpy.uint8)).outputs[0]
    assert grid_of(ir.node("QuantizeLinear", [x, scale, zero])) == (0.5, 3)
    assert grid_of(ir.node("QuantizeLinear", [x, scale])) is None
    assert grid_of(ir.node("QuantizeLinear", [x, scale, x])) is None
