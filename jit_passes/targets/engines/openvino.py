"""OpenVINO's kernels on CPUs, by files of ONNX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...graph.kinds import CONVOLUTIONS, LAYERS
from ...graph.view import NodeView
from ...quantizers.capability import Capability, options_reason
from ...quantizers.signs import can_be_negative
from ...quantizers.support import OperatorSupport, Role
from . import table
from .engine import Engine

FUNCTIONS = ("hardswish", "silu", "gelu", "sigmoid", "tanh", "leaky_relu", "elu")


def depthwise_reason(node: NodeView) -> str | None:
    """Say why the engine computes a 3-d depthwise convolution in float.

    Its kernel on integers takes no zero point. Convolutions of groups are wrong if OpenVINO
    computes another convolution in float, with a quantize and a dequantize in between.
    """
    groups, weight = node.groups, node.operand("weight").constant
    if not isinstance(weight, Tensor) or groups == 1 or [*weight.shape[:2]] != [groups, 1]:
        return None
    below = can_be_negative(node.main_operand, {})
    return "the engine has no 3-d depthwise convolution of numbers below 0" if below else None


CAPABILITY = Capability(
    table.table_of(
        (
            *table.convolutions(1, 2),
            *table.convolutions(3, check=depthwise_reason),
            table.linear(
                modes=("static", "weight_only"),
                mode_weights={"weight_only": table.WEIGHTS_ALONE},
            ),
            table.addition(sums=CONVOLUTIONS),
            *(
                OperatorSupport(f"aten::{kind}", Role.OWN, sums=LAYERS,
                                check=options_reason)
                for kind in FUNCTIONS
            ),
            OperatorSupport("aten::cat", Role.OWN, clips=("aten::relu",)),
            *table.pools("max", Role.SHARED, 1, 2, 3, check=options_reason),
            *table.pools("avg", Role.OWN, 2, 3, check=table.average_reason),
            *table.pools("adaptive_avg", Role.OWN, 2, check=table.global_average_reason),
            OperatorSupport("aten::mean", Role.OWN, ranks=(2, 4), check=table.image_mean_reason),
        )
    ),
    table.UINT8_OR_INT8,
    table.INT8_WEIGHTS,
    float_biases=True,
    float_results=True,
    barriers=frozenset({"aten::repeat"}),
)  # fmt: skip


@dataclass(frozen=True)
class OpenVINO(Engine):
    """OpenVINO on CPUs: a convolution adds and clips before it rounds, so none between them.

    A function behind a convolution or linear is computed before rounding too. Activations are
    uint8, affine, or int8; weights int8, symmetric; biases float32. Products of two activations and
    softmax are in float, and a result that only float operators read is not rounded.

    Source: https://docs.openvino.ai, "Low precision transformations".
    """

    name: ClassVar[str] = "openvino"
    own_capability: ClassVar[Capability] = CAPABILITY
