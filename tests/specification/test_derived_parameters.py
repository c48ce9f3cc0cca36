"""Parameters that follow from those of other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jit_passes import JitPassesError
from jit_passes.graph.view import GraphView
from jit_passes.quantizer import (
    Annotations,
    DerivedQuantizationSpec,
    QParams,
    SharedQuantizationSpec,
    bias_qparams,
)
from tests.annotating import (
    FIXED,
    UINT8,
    WEIGHT,
    Chain,
    Net,
    Nodes,
    annotation,
    converted,
    derived,
    parameters,
    qparams,
)


def test_derived_in_order_of_dependence() -> None:
    """Parameters derive from derived, shared and fixed ones, in whatever order they come."""

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        sigmoid, tanh, relu, exp = (nodes[n] for n in ("sigmoid", "tanh", "relu", "exp"))
        annotations[sigmoid] = annotation({nodes.x: derived(relu)}, derived((nodes.x, sigmoid)))
        annotations[tanh] = annotation(result=FIXED)
        annotations[relu] = annotation(result=SharedQuantizationSpec(tanh))
        annotations[exp] = annotation(result=derived(sigmoid))

    assert [row[1] for row in parameters(converted(Chain(), annotate, [torch.randn(20)]))] == [
        FIXED.scale / 2, FIXED.scale / 4, FIXED.scale, FIXED.scale, FIXED.scale / 8
    ]  # fmt: skip


def test_a_long_chain_of_derivations() -> None:
    """Deriving does not recurse too deep."""

    def same(sources: Sequence[QParams]) -> tuple[float, int]:
        return float(sources[0].scale), 0

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        later: Any = None
        for node in reversed(nodes.graph.nodes):
            if node.kind == "aten::sigmoid":
                spec = FIXED if later is None else derived(later, function=same)
                annotations[node] = annotation(result=spec)
                later = node

    long = nn.Sequential(*(nn.Sigmoid() for _ in range(600)))
    assert {row[1] for row in parameters(converted(long, annotate, [torch.ones(4)]))} == {1 / 256}


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def bias_annotation(nodes: Nodes, annotations: Annotations, **options: Any) -> None:
    conv = nodes["conv:conv2d"]
    x, weight, bias = conv.inputs[:3]
    spec = DerivedQuantizationSpec(
        ((x, conv), (weight, conv)),
        options.pop("function", bias_qparams),
        **{"dtype": "int32", "qscheme": torch.per_channel_symmetric, "ch_axis": 0, **options},
    )
    annotations[conv] = annotation({x: UINT8, weight: WEIGHT, bias: spec})


def test_a_bias_in_steps_of_the_accumulator() -> None:
    """Per channel, its scale is input scale times weight scale, its codes the rounded quotients."""
    model, data = Bias().eval(), [torch.randn(2, 2, 3, 3) for _ in range(3)]
    found = converted(model, bias_annotation, data)
    (scale,) = {qparams(*data)[0]}
    weights = model.conv.weight.detach().reshape(3, -1).abs().amax(1) / 127
    rows = [n for n in GraphView.of(found).nodes if n.kind == "jit_passes::dequantize_per_channel"]
    by_dtype = {row.inputs[0].constant.dtype: row for row in rows}
    assert torch.equal(by_dtype[torch.int8].inputs[1].constant, weights.double())
    bias = by_dtype[torch.int32]
    assert torch.equal(bias.inputs[1].constant, scale * weights.double())
    codes = (model.conv.bias.detach().double() / (scale * weights.double())).round()
    assert (bias.inputs[0].constant.double() - codes).abs().max() <= 1


def test_channels_of_what_is_not_observed() -> None:
    """A weight that is not looked at has the scales of the one that it shares with."""

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        first, second = nodes["c1:conv2d"], nodes["c2:conv2d"]
        shared = SharedQuantizationSpec((second.inputs[1], second), observed=False)
        annotations[first] = annotation({first.inputs[1]: shared})
        annotations[second] = annotation({second.inputs[1]: WEIGHT})

    model = Net()
    found = converted(model, annotate, [torch.randn(1, 3, 5, 5)])
    scales = model.c2.weight.detach().reshape(4, -1).abs().amax(1) / 127
    rows = [n for n in GraphView.of(found).nodes if n.kind == "jit_passes::dequantize_per_channel"]
    assert len(rows) == 2
    for row in rows:
        assert torch.equal(row.inputs[1].constant, scales.double())


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda s: 1 / 0, {}, "'conv.bias -> conv:conv2d' with .*failed: division by zero"),
        (lambda s: 1.0, {}, "failed: cannot unpack"),
        (lambda s: (1.0, 0), {}, "gave one scale, and the specification's ch_axis is 0"),
        (lambda s: (s[1].scale[:2], 0), {}, "has 3 channels, and .*lambda.* parameters for 2"),
        (lambda s: (s[1].scale[None], 0), {}, r"gave scales of shape \[1, 3\]"),
        (lambda s: (-s[1].scale, 0), {}, "not finite and above 0"),
        (lambda s: (s[1].scale * float("nan"), 0), {}, "not finite and above 0"),
        (lambda s: (s[1].scale, torch.zeros(2)), {}, "failed: The expanded size"),
        (lambda s: (s[1].scale, 2**31), {}, r"zero point outside of \[-2147483648, 2147483647\]"),
        (
            bias_qparams,
            {"qscheme": "per_tensor_symmetric", "ch_axis": None},
            "gave scales of shape",
        ),
    ],
)
def test_functions_that_do_not_derive(function: Any, options: Any, message: str) -> None:
    """The result of a function is checked, and the message names the value and the function."""
    with pytest.raises(JitPassesError, match=message) as error:
        converted(
            Bias(),
            lambda n, a: bias_annotation(n, a, function=function, **options),
            [torch.randn(1, 2, 3, 3)],
        )
    assert "conv" in str(error.value)
