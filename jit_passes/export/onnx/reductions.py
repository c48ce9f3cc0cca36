"""Reductions that OpenVINO computes wrongly with a neighbour: a Max between them keeps both apart.

    before                            after
    %y = Mul(%x, %c)                  %y = Mul(%x, %c)
                                      %o = Max(%y, low)
    %m = ReduceMax(%y, axes=[2])      %m = ReduceMax(%o, axes=[2])
                                      %k = Max(%m, low)
    %q = QuantizeLinear(%m, s, z)     %q = QuantizeLinear(%k, s, z)

with the lowest number of the dtype, whole numbers too: no value changes.

OpenVINO 2026.4 quantizes the largest and the smallest values as it reduces, at all ranks and axes,
and gives wrong codes. Functions, products with constants and concatenations may be between the two.
Where the operand is dequantized, it reduces codes, which is right.

The kernel multiplies by a constant, or adds one, as it reduces. For a tensor of three axes and a
reduction over the last one, it takes wrong elements of a constant with one number for each row,
unless there is one sample. The two may have functions, and numbers, between them. Constants in
front have this fault too, and scales of a convolution's channels if there is no bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .graph import constant_of, limited, made_by, main_operand, operand
from .means import MOVES

_EXTREMES = ("ReduceMax", "ReduceMin", "GlobalMaxPool")
_POOLS = ("GlobalAveragePool", "GlobalMaxPool")
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_WITH_CONSTANTS = ("Add", "Sub", "Mul", "Div", "PRelu", "BatchNormalization")
_FUNCTIONS = (
    *("Abs", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
    *("LeakyRelu", "Log", "Max", "Min", "Mish", "Neg", "Pow", "Reciprocal", "Relu", "Round"),
    *("Selu", "Sigmoid", "Softplus", "Sqrt", "Tanh"),
)
_PASSED = (*_WITH_CONSTANTS, *_FUNCTIONS, *MOVES, "Concat")


def keep_reductions(model: Any) -> None:
    """Write a Max in front of reductions, or behind them, that constants or a quantize are next to.

    Args:
        model: of `onnx_ir`, whose values have their names; it is changed in place.
    """
    for node in list(model.graph.all_nodes()):
        rows, result = _is_of_rows(node), node.outputs[0]
        if rows and _is_scaled(main_operand(node)):
            kept = limited(main_operand(node), f"{result.name}:operand", ahead=node)
            node.replace_input_with(0, kept)
        if (rows and _meets_constant(result)) or (_is_extreme(node) and _is_quantized(result)):
            uses = list(result.uses())
            kept = limited(result, f"{result.name}:kept", behind=node)
            for use in uses:
                use.node.replace_input_with(use.idx, kept)


def _is_of_rows(node: Any) -> bool:
    """Say whether a node reduces the last of three axes, of more than one sample."""
    if node.domain or (node.op_type not in _POOLS and not node.op_type.startswith("Reduce")):
        return False
    shape = main_operand(node).shape
    if shape is None or len(shape) != 3 or shape[0] == 1:
        return False
    if node.op_type in _POOLS:
        return True
    axes = constant_of(operand(node, "axes"))
    return axes is not None and {int(axis) % 3 for axis in axes.ravel()} == {2}


def _is_extreme(node: Any) -> bool:
    """Say whether a node takes the largest or smallest of values that are not dequantized."""
    if node.op_type not in _EXTREMES:
        return False
    value = main_operand(node)
    while (maker := value.producer()) is not None and maker.op_type in MOVES:
        value = main_operand(maker)
    return made_by(value, "DequantizeLinear") is None


def _is_scaled(value: Any) -> bool:
    """Say whether a value is a function of a product or a sum with a constant of several numbers.

    A convolution without a bias counts as a product, with the scales of its weight.
    """
    while (node := value.producer()) is not None and node.op_type in {*_PASSED} - {"Max", "Concat"}:
        if node.op_type in _WITH_CONSTANTS and _has_constant(node):
            return True
        variable = [operand for operand in node.inputs if constant_of(operand) is None]
        if not variable:
            return False
        value = variable[0]
    if node is None or node.op_type not in _CONVOLUTIONS:
        return False
    return operand(node, "B") is None


def _meets_constant(result: Any) -> bool:
    """Say whether a constant of several numbers is computed with a value, or a function of it."""
    return any(node.op_type in _WITH_CONSTANTS and _has_constant(node) for node in _behind(result))


def _is_quantized(result: Any) -> bool:
    """Say whether a value, or a function of it, is quantized."""
    return any(node.op_type == "QuantizeLinear" for node in _behind(result))


def _has_constant(node: Any) -> bool:
    constants = (constant_of(value) for value in node.inputs)
    return any(constant is not None and constant.size > 1 for constant in constants)


def _behind(result: Any) -> Iterator[Any]:
    """Yield the nodes that read a value, or a function of it."""
    pending, seen = [result], {result}
    while pending:
        for node in {use.node for use in pending.pop().uses()}:
            yield node
            if node.op_type in _PASSED:
                pending += {*node.outputs} - seen
                seen |= {*node.outputs}
