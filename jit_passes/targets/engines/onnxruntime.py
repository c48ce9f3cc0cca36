"""ONNX Runtime's kernels on CPUs, by files of ONNX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...graph.view import NodeView
from ...observers import Fixed
from ...passes.rule import RewriteRule
from ...quantizers.capability import Capability, options_reason, tensors_reason
from ...quantizers.support import CLIPS, OperatorSupport, Role, Spec, SpecSupport
from ...specification.specification import FixedQParamsQuantizationSpec, QuantizationSpec
from . import table
from .engine import Engine

# QLinearSoftmax multiplies by floor(1 / scale) in uint32: a smaller scale overflows (seen in
# ONNX Runtime 1.31), so probabilities have the scale that ONNX Runtime's own quantizer gives them.
PROBABILITIES = FixedQParamsQuantizationSpec(1 / 256, 0)
# ONNX Runtime has both kernels on integers, and none of silu.
SPELL_OUT_SILU = RewriteRule("spell_out_silu", "aten::silu(%x)", "aten::mul(%x, aten::sigmoid(%x))")
BARRIERS = ("constant_pad_nd", "expand", "expand_as", "pad", "pixel_shuffle", "repeat", "select")


def _clip_refusal(clip: NodeView, spec: Spec | None) -> str | None:
    """Say why a clip stays between a convolution and its quantize, and the convolution in float.

    ONNX Runtime drops a clip if all codes lie within it, and only then fuses.
    """
    low, high = clip.clip or (None, None)
    if low != 0:  # a zero point is a whole number, so codes reach a bit beyond another end
        return "its codes reach below the lower end of its clip"
    if spec is None:
        return None
    kind = clip.kind.removeprefix("aten::")
    power, codes = spec.qscheme == "per_tensor_power_of_two", ""
    if spec.qscheme == "per_tensor_symmetric" or (power and spec.quant_min < 0):
        codes = "below the 0"
    elif power and high is not None:
        codes = f"beyond the {high:g}"
    if codes:
        return f"{spec.qscheme}, with codes {codes} at which its {kind} clips: make it affine"
    if _reaches_beyond(spec, high):
        return f"on a grid that reaches beyond its {kind}: give it codes of {low} to {high}"
    return None


def _reaches_beyond(spec: Spec, high: float | None) -> bool:
    """Say whether a grid that is known ahead of any data has codes below 0, or beyond an end."""
    if isinstance(spec, FixedQParamsQuantizationSpec):
        below = spec.zero_point != spec.quant_min
        last = spec.scale * (spec.quant_max - spec.quant_min)
    elif isinstance(spec, QuantizationSpec) and isinstance(spec.observer, Fixed):
        below, last = spec.observer.low < 0, spec.observer.high
    else:
        return False
    return below or (high is not None and last > high)


_INTEGERS: dict[str, Any] = {"gives_float": False}
_CLIPPED: dict[str, Any] = {"clip_refusal": _clip_refusal}
CAPABILITY = Capability(
    table.table_of(
        (
            *table.convolutions(1, 2, 3, modes=("static", "dynamic"), **_CLIPPED, **_INTEGERS),
            table.linear(modes=("static", "dynamic", "weight_only"),
                         mode_weights={"weight_only": table.WEIGHTS_ALONE}, **_CLIPPED),
            *table.products(),
            table.addition(**_CLIPPED, **_INTEGERS),
            OperatorSupport("aten::mul", Role.OWN, (0, 1), CLIPS,
                            check=tensors_reason, **_CLIPPED, **_INTEGERS),
            OperatorSupport("aten::cat", Role.OWN, clips=("aten::relu",), **_CLIPPED, **_INTEGERS),
            *table.pools("max", Role.SHARED, 1, 2, 3, check=options_reason),
            *table.pools("avg", Role.OWN, 2, 3, check=table.average_reason, **_INTEGERS),
            *table.pools("adaptive_avg", Role.OWN, 2, check=table.global_average_reason,
                         **_INTEGERS),
            OperatorSupport("aten::mean", Role.OWN, ranks=(2, 4), check=table.image_mean_reason,
                            **_INTEGERS),
            OperatorSupport("aten::sigmoid", Role.OWN, **_INTEGERS),
            OperatorSupport("aten::leaky_relu", Role.OWN, check=options_reason, **_INTEGERS),
            OperatorSupport("aten::softmax", Role.FIXED, fixed=PROBABILITIES,
                            check=options_reason, **_INTEGERS),
        )
    ),
    # With int8 activations ONNX Runtime 1.31 leaves half of the operators in float, and fails to
    # load others.
    replace(table.UINT8, why="int8 stays in float there"),
    table.INT8_WEIGHTS,
    SpecSupport({"int32": (-(2**31) + 1, 2**31 - 1)}, table.OF_CHANNELS_OR_ONE),
    # Expand, Tile, Pad, DepthToSpace and Gather with one index do not hand a dequantize on.
    barriers=frozenset(f"aten::{kind}" for kind in BARRIERS),
    dynamic=table.UINT8_AS_IT_RUNS,
    forms=(SPELL_OUT_SILU,),
)  # fmt: skip


@dataclass(frozen=True)
class OnnxRuntime(Engine):
    """ONNX Runtime on CPUs: quantize and dequantize behind the convolution and behind the sum.

    An operator is on integers if each operand comes from a dequantize, and each result goes to a
    quantize alone. Activations are uint8, affine; weights int8, symmetric; biases int32, in steps
    of the accumulator. In the mode dynamic it chooses scales of inputs by itself; weights alone are
    decoded as they are multiplied, where they have groups.

    Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions.
    """

    name: ClassVar[str] = "onnxruntime"
    own_capability: ClassVar[Capability] = CAPABILITY
