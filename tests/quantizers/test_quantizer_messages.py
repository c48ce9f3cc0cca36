"""Errors for quantizers of the user's own: what cannot be, and where."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphView, JitPassesError, JitPassesWarning, NodeView
from jit_passes.quantizer import (
    WEIGHT,
    Annotations,
    DerivedQuantizationSpec,
    QParams,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)
from jit_passes.targets import FixedPoint, PowerOfTwoQuantizer, Stock

ACTIVATION = QuantizationSpec()
INT8 = QuantizationSpec("int8")


class Residual(nn.Module):
    """A convolution with a folded batch normalization, and its input added."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.conv(x))


class Annotates(Quantizer):
    """Annotates with a function of the convolution and the addition."""

    def __init__(self, function: Callable[[Annotations, NodeView, NodeView], None]) -> None:
        self.function = function

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        by_kind = {node.kind: node for node in graph.nodes}
        self.function(annotations, by_kind["aten::conv2d"], by_kind["aten::add"])
        return annotations


def prepared(
    function: Callable[[Annotations, NodeView, NodeView], None], target: str | Stock = "reference"
) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    model = torch.jit.script(Residual().eval())
    return jit_passes.prepare(model, quantizer=Annotates(function), target=target)


def fails(_: list[QParams]) -> tuple[float, int]:
    raise ValueError("no scale today")


def annotate_bias(
    spec: Callable[[NodeView], QuantizationSpec | DerivedQuantizationSpec],
) -> Callable[[Annotations, NodeView, NodeView], None]:
    def annotate(annotations: Annotations, conv: NodeView, add: NodeView) -> None:
        x, weight, bias = conv.inputs[:3]
        operands = {x: ACTIVATION, weight: WEIGHT, bias: spec(conv)}
        annotations[conv] = QuantizationAnnotation(operands)

    return annotate


def test_an_edge_that_is_not_there() -> None:
    """The value is quantized, and its use is not: name the value."""

    def annotate(annotations: Annotations, conv: NodeView, add: NodeView) -> None:
        annotations[conv] = QuantizationAnnotation({}, ACTIVATION)
        shared = SharedQuantizationSpec((conv.output, add))
        annotations[add] = QuantizationAnnotation({add.inputs[0]: shared})

    with pytest.raises(JitPassesError, match=r"name the value, 'conv:conv2d', which is$"):
        prepared(annotate)


def test_rounding() -> None:
    spec = QuantizationSpec(rounding="floor")
    assert (
        Stock(reduce_range=False).capability.activations.refusal(spec)
        == "rounded floor, and the target has half_even"
    )
    prepared(annotate_bias(lambda conv: spec))  # the reference model can
    twice = FixedPoint(rounding="double_round").capability.activations
    assert twice.refusal(spec) == (
        "rounded floor, and the target has half_even (the reference model of 'double_round' rounds "
        "halves to even)"
    )


def test_a_derivation_that_fails() -> None:
    def derived(conv: NodeView) -> DerivedQuantizationSpec:
        return DerivedQuantizationSpec(((conv.inputs[0], conv),), fails)

    model = prepared(annotate_bias(derived))
    jit_passes.calibrate(model, [torch.randn(2, 4, 5, 5)])
    with pytest.raises(
        JitPassesError,
        match=r"deriving the parameters of 'conv.bias -> conv:conv2d' with .*no scale today",
    ):
        jit_passes.convert(model)


def test_the_table_names_constants() -> None:
    """Constants have no names of their own once batch normalization is folded."""
    tables = []

    def annotate(annotations: Annotations, conv: NodeView, add: NodeView) -> None:
        annotate_bias(lambda conv: QuantizationSpec("int8"))(annotations, conv, add)
        tables.append(str(annotations))

    prepared(annotate)
    assert "conv.weight  int8 [-127, 127]" in tables[0] and "conv.bias    int8" in tables[0]


@pytest.mark.parametrize("where", ["operand", "result"])
def test_what_the_target_does_not_have(where: str) -> None:
    def annotate(annotations: Annotations, conv: NodeView, add: NodeView) -> None:
        operands = {conv.inputs[0]: INT8 if where == "operand" else ACTIVATION}
        operands[conv.inputs[1]] = WEIGHT
        annotations[conv] = QuantizationAnnotation(
            operands, INT8 if where == "result" else ACTIVATION
        )

    name = "x -> conv:conv2d" if where == "operand" else "conv:conv2d"
    wanted = rf"'{name}' is to be int8 \[-128, 127\], and the target has uint8"
    with pytest.raises(JitPassesError, match=wanted):
        prepared(annotate, target=Stock(reduce_range=False))
    assert prepared(annotate) is not None


def test_a_weight_that_the_target_does_not_have() -> None:
    def annotate(annotations: Annotations, conv: NodeView, add: NodeView) -> None:
        operands = {conv.inputs[0]: ACTIVATION, conv.inputs[1]: INT8}
        annotations[conv] = QuantizationAnnotation(operands, ACTIVATION)

    with pytest.raises(
        JitPassesError, match=r"'conv.weight -> conv:conv2d' is to be int8 \[-128, 127\]"
    ):
        prepared(annotate, target=Stock(reduce_range=False))


def test_a_quantizer_for_another_target() -> None:
    model = torch.jit.script(Residual().eval())
    with pytest.raises(JitPassesError, match="annotate what 'stock' has"):
        jit_passes.prepare(model, quantizer=PowerOfTwoQuantizer(), target="stock")


def test_what_was_not_annotated() -> None:
    """A quantizer that leaves convolutions alone says so, and quantizes all the same."""

    def annotate(annotations: Annotations, conv: NodeView, add: NodeView) -> None:
        annotations[add] = QuantizationAnnotation({add.inputs[0]: ACTIVATION}, ACTIVATION)

    model = prepared(annotate)
    jit_passes.calibrate(model, [torch.randn(2, 4, 5, 5)])
    reference = jit_passes.convert(model)  # no warning that nothing was quantized
    (row,) = jit_passes.coverage(reference)
    assert (row.dtype, row.reason) == ("float", "the quantizer did not annotate it")


def test_nothing_at_all() -> None:
    model = prepared(lambda annotations, conv, add: None)
    with pytest.warns(JitPassesWarning, match="nothing was quantized: 1 operator: the quantizer"):
        jit_passes.convert(model)
