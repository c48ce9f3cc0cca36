"""Sums of a convolution that OpenVINO adds within it: a pair of quantize and dequantize marks them.

    before                                 after
    %c = Conv(...)                         %c = Conv(...)
                                           %p = QuantizeLinear(%c, s, z)
                                           %q = DequantizeLinear(%p, s, z)
    %y = DequantizeLinear(%a, ...)         %y = DequantizeLinear(%a, ...)
    %t = Add(%c, %y)                       %t = Add(%q, %y)
    %b = QuantizeLinear(%t, ...)           %b = QuantizeLinear(%t, ...)

with a relu or a clip in front of the last line, or none.

OpenVINO 2026.4 adds within a convolution if both operands are quantized. OpenVINO then clips the
convolution's result to the grid and does not round it, for any scale. Without the pair, the
convolution writes its result in float, in bfloat16 by default on processors with AMX, and another
kernel adds.

The sum takes the place of the other operand in memory. This operand must have the shape of the sum,
and all its other readers must lead to the convolution. Other sums get no pair, as OpenVINO would
round there. Sums of two convolutions get none either, as one of them is quantized anyway: OpenVINO
adds within the other.
Sums whose two operands come from one value by functions alone, as in %y + conv(relu(%y)), get none
either. With fixed sizes one kernel computes the functions, and OpenVINO then rounds and adds with
another one.

The grid changes no code of the sum. The second operand has values from a to b, and the sum's codes
stand for values from low to high. Where the convolution gives low - b or less, the sum saturates
below. Above high - a the sum saturates likewise. The grid reaches both ends.
"""

from __future__ import annotations

import importlib
from typing import Any

from .graph import constant, grid_of, is_read_once, made_by, main_operand, operand

CLIPS = ("Relu", "Clip")
# Operators with kernels of their own, which compute no functions in front of them.
_KERNELS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "AveragePool", "Concat")


def add_within_convolutions(model: Any) -> None:
    """Mark sums that OpenVINO is to compute within a convolution, in place.

    Args:
        model: of `onnx_ir`, whose values have their names.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type == "Add":
            _mark(node)


def _mark(add: Any) -> None:
    for place in (0, 1):
        convolution = made_by(add.inputs[place], "Conv")
        other = made_by(add.inputs[1 - place], "DequantizeLinear")
        if convolution is None or other is None or not is_read_once(add.inputs[place]):
            continue
        if not all(made_by(operand(convolution, name), other.op_type) for name in "XW"):
            continue  # OpenVINO rounds behind a convolution in float
        ends, of_sum = _ends(other), _ends(_quantize_behind(add))
        if ends is None or of_sum is None or not _adds_in_place(add, convolution, other):
            continue
        _quantize(
            add, place, of_sum[0] - ends[1], of_sum[1] - ends[0], operand(other, "x_zero_point")
        )


def _adds_in_place(add: Any, convolution: Any, other: Any) -> bool:
    """Say whether an operand has the sum's shape, and nothing reads it when the sum is computed."""
    shape = other.outputs[0].shape
    if shape is None or shape != convolution.outputs[0].shape:
        return False
    codes = operand(other, "x")
    decoded = [use.node for use in codes.uses()]
    values = [value for node in decoded for value in node.outputs]
    if any(node.op_type != other.op_type for node in decoded):
        return False
    if any(value.is_graph_output() for value in (codes, *values)):
        return False
    readers = {use.node for value in values for use in value.uses()}
    if readers == {add} and _is_of_convolution(codes):
        return False
    if _functions_of(codes) & _functions_of(operand(convolution, "X")):
        return False
    return readers - {add} <= _leading_to(convolution)


def _is_of_convolution(codes: Any) -> bool:
    """Say whether codes come from a convolution, or from functions behind it."""
    node = codes.producer()
    while node is not None and node.op_type not in ("Conv", "DequantizeLinear"):
        node = main_operand(node).producer() if node.inputs else None
    return node is not None and bool(node.op_type == "Conv")


def _functions_of(value: Any) -> set[Any]:
    """Return the nodes that make a value, back to nodes with kernels of their own."""
    node = value.producer()
    if node is None or node.op_type in _KERNELS:
        return set()
    return {node} | _leading_to(node, (*_KERNELS, "Constant"))


def _leading_to(node: Any, but: tuple[str, ...] = ()) -> set[Any]:
    """Return the nodes that a node's operands depend on, not behind operators of some kinds."""
    found: set[Any] = set()
    pending = [node]
    while pending:
        for maker in pending.pop().predecessors():
            if maker not in found and maker.op_type not in but:
                found.add(maker)
                pending.append(maker)
    return found


def _quantize_behind(add: Any) -> Any:
    """Return the quantize that alone reads a sum, or its clip; None for none."""
    value = add.outputs[0]
    while is_read_once(value):
        node = value.uses()[0].node
        if node.op_type == "QuantizeLinear":
            return node
        if node.op_type not in CLIPS:
            return None
        value = node.outputs[0]
    return None


def _ends(node: Any) -> tuple[float, float] | None:
    """Return the values of the first and the last code; None if the grid is no constant."""
    numpy = importlib.import_module("numpy")
    grid = None if node is None else grid_of(node)
    if grid is None:
        return None
    scale, zero = grid
    codes = numpy.iinfo(zero.dtype)
    return float(scale) * (codes.min - int(zero)), float(scale) * (codes.max - int(zero))


def _quantize(add: Any, place: int, low: float, high: float, like: Any) -> None:
    """Write a pair in front of a sum, whose grid reaches from low to high."""
    ir, numpy = (importlib.import_module(name) for name in ("onnx_ir", "numpy"))
    value = add.inputs[place]
    codes = numpy.iinfo(like.dtype.numpy())
    # A code less: the zero point is a whole number, and the grid must still reach both ends.
    step = numpy.float32((high - low) / (codes.max - codes.min - 1))
    zero = codes.min + int(numpy.ceil(-low / step))
    numbers = {"scale": step, "zero_point": numpy.array(zero, codes.dtype)}
    constants = []
    for name, number in numbers.items():
        made = constant(f"{value.name}:{name}", numpy.asarray(number))
        tensor = made.attributes["value"].as_tensor()
        made.outputs[0].dtype, made.outputs[0].shape = tensor.dtype, tensor.shape
        constants.append(made)
    grid = [made.outputs[0] for made in constants]
    quantize = ir.node("QuantizeLinear", [value, *grid], name=f"{value.name}:quantized")
    dequantize = ir.node(
        "DequantizeLinear", [quantize.outputs[0], *grid], name=f"{value.name}:dequantized"
    )
    for node, dtype in ((quantize, like.dtype), (dequantize, value.dtype)):
        node.outputs[0].name = node.name
        node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
    add.graph.insert_before(add, [*constants, quantize, dequantize])
    add.replace_input_with(place, dequantize.outputs[0])
