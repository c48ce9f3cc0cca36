"""The meaning of a reference model's nodes: codes, parameters, constants, operators."""

from __future__ import annotations

import math
from functools import partial

import torch

from ..graph.traits import packet_of
from ..graph.view import Deferred, GraphView, NodeView, ValueView
from ..quantizers.rearranged import origin_of
from ..quantizers.support import Spec
from ..specification.grid import DTYPES
from ..specification.parameters import QParams
from ..specification.specification import FixedQParamsQuantizationSpec, QuantizationSpec
from .units import DEQUANTIZE, QUANTIZE, ROUND

PER_CHANNEL = f"{DEQUANTIZE}_per_channel"
_PARAMETERS = ("scale", "zero_point", "quant_min", "quant_max", "dtype")


def quantizer_of(value: ValueView) -> NodeView | None:
    """Return the quantize whose codes a value stands for, as they are or rearranged.

    None if a write gives the value other numbers than these codes.
    """
    origin = origin_of(value, ())
    maker = None if origin.written else origin.producer
    source = maker.main_operand.producer if maker and maker.kind == DEQUANTIZE else None
    if source is None or source.kind != QUANTIZE:
        return None
    return source if all(source.operand(name).is_constant for name in _PARAMETERS) else None


def parameters_of(quantize: NodeView) -> QParams:
    """Return the parameters of an activation."""
    scale, zero_point, low, high, dtype = (quantize.operand(p).constant for p in _PARAMETERS)
    rounding = rounding_of(quantize)
    how = "half_even" if rounding is None else rounding.operand("rounding").constant
    return QParams(scale, zero_point, None, low, high, dtype_of(dtype), how)


def rounding_of(quantize: NodeView) -> NodeView | None:
    """Return the operator in front of quantize that rounds otherwise than halves to even."""
    maker = quantize.main_operand.producer
    return maker if maker is not None and maker.kind == ROUND else None


def unrounded(quantize: NodeView) -> ValueView:
    """Return the value that quantize is about, as it is before it is rounded."""
    rounding = rounding_of(quantize)
    return (rounding or quantize).main_operand


def dtype_of(number: int) -> str:
    """Return the name of a dtype of codes by the number that graphs have for it."""
    return ("uint8", "int8", "int16", "int32")[number]


def show_constants(graph: GraphView) -> None:
    """Let dequantized constants of a reference model count as constants in a snapshot.

    Only the last one that was looked at is kept: all of them are the float model again.
    """
    last: dict[int, torch.Tensor] = {}

    def dequantized(node: NodeView) -> torch.Tensor:
        if node.index not in last:
            last.clear()
            last[node.index] = packet_of(node.kind)(*(value.constant for value in node.inputs))
        return last[node.index]

    for node in graph.nodes:
        if node.kind in (DEQUANTIZE, PER_CHANNEL) and node.main_operand.is_constant:
            node.output.is_constant = True
            node.output.constant = Deferred(partial(dequantized, node))


# Behind a constant these nodes are copied into each region that reads their result, as the constant
# is.
_OF_CONSTANTS = frozenset(f"aten::{kind}" for kind in ("expand", "slice", "narrow", "unsqueeze"))


def _is_moved_constant(value: ValueView) -> bool:
    maker = value.producer
    while maker is not None and maker.kind in _OF_CONSTANTS:
        value, *numbers = maker.inputs
        if not all(number.is_constant or number.from_sizes for number in numbers):
            return False
        maker = value.producer
    return value.is_constant


def computes(node: NodeView) -> bool:
    """Say whether a node computes a tensor from others that the model computes.

    A tensor that holds a number, which follows from sizes, does not count.
    """
    return (
        not node.kind.startswith("prim::")
        and (node.moves_data or any(value.is_tensor for value in node.outputs))
        and any(value.is_tensor and not _is_moved_constant(value) for _, _, value in node.operands)
        and not node.traits.asks_for_shape
        and not any(value.from_sizes for value in node.outputs)
    )


def specs_of(quantize: NodeView) -> list[Spec]:
    """Return the specifications that an activation's parameters may have come from."""
    p = parameters_of(quantize)
    assert isinstance(p.scale, float) and isinstance(p.zero_point, int)
    schemes = ["per_tensor_affine"]
    if p.zero_point == (p.quant_min + p.quant_max + 1) // 2:
        schemes.append("per_tensor_symmetric")
    if math.frexp(p.scale)[0] == 0.5:
        schemes.append("per_tensor_power_of_two")
    grid = (p.scale, p.zero_point, p.dtype, p.quant_min, p.quant_max)
    return [FixedQParamsQuantizationSpec(*grid, scheme, rounding=p.rounding) for scheme in schemes]


def specs_of_weight(dequantize: NodeView) -> list[Spec]:
    """Return a weight's specifications; their range is its range of codes, widened to 0 and 1."""
    codes, scale, zero_point, *axis = (value.constant for value in dequantize.inputs)
    per = "channel" if axis else "tensor"
    schemes = [f"per_{per}_affine"]
    if not torch.as_tensor(zero_point).any():
        schemes.append(f"per_{per}_symmetric")
        if bool((torch.frexp(torch.as_tensor(scale)).mantissa == 0.5).all()):
            schemes.append(f"per_{per}_power_of_two")
    dtype = next(name for name, known in DTYPES.items() if known == codes.dtype)
    low, high = (int(codes.min()), int(codes.max())) if codes.numel() else (0, 1)
    grid = (dtype, min(low, 0), max(high, 1))
    grouped = axis and scale.dim() > 1
    group_size = codes.shape[1 - axis[0]] // scale.shape[1] if grouped else None
    return [
        QuantizationSpec(*grid, scheme, axis[0] if axis else None, group_size=group_size)
        for scheme in schemes
    ]
