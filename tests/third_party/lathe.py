"""A backend of somebody else's whose operators pass integers on to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from jit_passes import Pipeline, RewriteRule, RuleSet
from jit_passes.quantizer import Capability, OperatorSupport, Role, SpecSupport
from jit_passes.targets import Target

LIBRARY = torch.library.Library("lathe", "DEF")
SIGMOID = "(Tensor codes, float scale, float out_scale, int low, int high) -> Tensor"
for name in ("sigmoid", "sigmoid_plus_two", "sigmoid_rows"):
    LIBRARY.define(name + SIGMOID)
LIBRARY.define(
    "conv2d(Tensor codes, float scale, Tensor weight, Tensor weight_scale, Tensor bias, "
    "int[] stride, int[] padding, int[] dilation, int groups, float out_scale, int low, int high) "
    "-> Tensor"
)


def rounded(values: Tensor, scale: float, low: int, high: int) -> Tensor:
    return (values / scale).round().clamp(low, high).to(torch.int8)


def sigmoid(codes: Tensor, scale: float, out_scale: float, low: int, high: int) -> Tensor:
    return rounded(torch.sigmoid(codes * scale), out_scale, low, high)


def sigmoid_plus_two(codes: Tensor, scale: float, out_scale: float, low: int, high: int) -> Tensor:
    """Compute a wrong result: two steps too much."""
    return rounded(torch.sigmoid(codes * scale) + 2 * out_scale, out_scale, low, high)


def sigmoid_rows(codes: Tensor, scale: float, out_scale: float, low: int, high: int) -> Tensor:
    """Give channels last: an order of its own."""
    return sigmoid(codes, scale, out_scale, low, high).permute(0, 2, 3, 1).contiguous()


def conv2d(
    codes: Tensor, scale: float, weight: Tensor, weight_scale: Tensor, bias: Tensor,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
    out_scale: float, low: int, high: int,
) -> Tensor:  # fmt: skip
    """Sum exactly, in double; where channels are last, move them."""
    if codes.shape[1] != weight.shape[1]:
        codes = codes.permute(0, 3, 1, 2)
    operands = codes.double(), weight.double(), bias.double()
    sums = torch.nn.functional.conv2d(*operands, stride, padding, dilation, groups)
    return rounded(sums * (scale * weight_scale.reshape(-1, 1, 1)), out_scale, low, high)


for kernel in (sigmoid, sigmoid_plus_two, sigmoid_rows, conv2d):
    LIBRARY.impl(kernel.__name__, kernel, "CPU")

OPERATORS = {
    row.kind: row
    for row in (
        OperatorSupport("aten::conv2d", Role.WEIGHTED, clips=("aten::relu",), ranks=(4, 4)),
        OperatorSupport("aten::sigmoid", Role.OWN),
    )
}
CODES = SpecSupport({"int8": (-127, 127)}, ("per_tensor_symmetric",), whole=True)
WEIGHTS = SpecSupport({"int8": (-127, 127)}, ("per_channel_symmetric", "per_tensor_symmetric"))
CAPABILITY = Capability(OPERATORS, activations=CODES, weights=WEIGHTS)


def sigmoid_rule(operator: str) -> RewriteRule:
    """Return that of CONTRIBUTING.md."""
    return RewriteRule(
        "lathe_sigmoid",
        """graph(%q, %scale, %zero : int, %out_scale, %out_zero : int, %low, %high, %dtype):
          %x = jit_passes::dequantize(%q, %scale, %zero)
          %y = aten::sigmoid(%x)
          %r = jit_passes::quantize(%y, %out_scale, %out_zero, %low, %high, %dtype)
          return (%r)""",
        f"""graph(%q, %scale, %zero : int, %out_scale, %out_zero : int, %low, %high, %dtype):
          %r = lathe::{operator}(%q, %scale, %out_scale, %low, %high)
          return (%r)""",
    )


CONV_INPUTS = (
    "%q, %scale, %zero : int, %w, %ws, %wz, %wa, %b, %bs, %bz, %ba, %stride, %pad, %dilation, "
    "%groups, %out_scale, %out_zero : int, %low, %high, %dtype"
)
CONV = RewriteRule(
    "lathe_conv",
    f"""graph({CONV_INPUTS}):
      %x = jit_passes::dequantize(%q, %scale, %zero)
      %v = jit_passes::dequantize_per_channel(%w, %ws, %wz, %wa)
      %c = jit_passes::dequantize_per_channel(%b, %bs, %bz, %ba)
      %y = aten::conv2d(%x, %v, %c, %stride, %pad, %dilation, %groups)
      %r = jit_passes::quantize(%y, %out_scale, %out_zero, %low, %high, %dtype)
      return (%r)""",
    f"""graph({CONV_INPUTS}):
      %r = lathe::conv2d(%q, %scale, %w, %ws, %b, %stride, %pad, %dilation, %groups, %out_scale,
                         %low, %high)
      return (%r)""",
)


@dataclass(frozen=True)
class Lathe(Target):
    """The lathe.

    Attributes:
        operator: which of its operators computes sigmoids.
        convolves: whether it has its operator for convolutions.
    """

    name: ClassVar[str] = "lathe"
    operator: str = "sigmoid"
    convolves: bool = True

    @property
    def capability(self) -> Capability:
        """Return its operators and specifications."""
        return CAPABILITY

    def lowering(self) -> Pipeline:
        """Fuse sigmoids and convolutions."""
        rules = (sigmoid_rule(self.operator), *((CONV,) if self.convolves else ()))
        steps = (RuleSet("fuse_lathe", rules), "remove_dead_code", "pool_constants")
        return Pipeline("lower_lathe", steps)
