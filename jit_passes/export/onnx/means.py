"""Means and sums that OpenVINO computes wrongly on integers: a Max in front keeps them in float.

    before                                 after
    %y = DequantizeLinear(%a, s, z)        %y = DequantizeLinear(%a, s, z)
    %m = ReduceMean(%y, axes)              %k = Max(%y, low)
                                           %m = ReduceMean(%k, axes)

with the lowest number of float32: no value changes.

OpenVINO 2026.4 moves a dequantize behind a mean, and its kernel then averages codes. A mean of a
tensor of three axes over axis 1, without axis 0, goes wrong if its result stays in float. The
kernel averages the first sample only: the means of all other samples are 0. Sums are like means.
Behind a product with a constant, and of pools, any sample may be wrong.

OpenVINO moves the dequantize behind transposes, reshapes, splits, clips and maxima of pools too, so
other ways of writing a mean do not help. OpenVINO does not move it behind Max.
"""

from __future__ import annotations

from typing import Any

from .graph import constant_of, limited, made_by, main_operand

MEANS = ("ReduceMean", "ReduceSum", "GlobalAveragePool", "AveragePool")
MOVES = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Expand", "Slice")
# Operators behind which OpenVINO moves a dequantize besides; products with constants only.
PASSED = ("Split", "Gather", "Pad", "Cast", "Clip", "Neg", "MaxPool", "ReduceMax", "ReduceMin")
PRODUCTS = ("Mul", "Div")


def keep_means(model: Any) -> None:
    """Write a Max in front of means and sums of dequantized values, in place.

    Means of images, which have four axes and more, are right, and so is a mean whose result is
    quantized: both are left as they are.

    Args:
        model: of `onnx_ir`, whose values have their names.
    """
    for node in list(model.graph.all_nodes()):
        if _is_mean(node) and _is_dequantized(main_operand(node)) and not _is_quantized(node):
            operand = limited(main_operand(node), f"{node.outputs[0].name}:operand", ahead=node)
            node.replace_input_with(0, operand)


def _is_mean(node: Any) -> bool:
    return node.op_type in MEANS or (node.op_type == "Einsum" and len(node.inputs) == 1)


def _is_dequantized(value: Any) -> bool:
    """Say whether a mean's operand is a dequantized value, which had three axes or fewer."""
    few = _is_small(value)
    while (ahead := moved(value.producer())) is not None:
        value = ahead
        few |= _is_small(value)
    return few and made_by(value, "DequantizeLinear") is not None


def moved(node: Any) -> Any:
    """Return the operand whose dequantize OpenVINO moves behind a node; None for none."""
    if node is None or node.op_type not in (*MOVES, *PASSED, *PRODUCTS):
        return None
    if node.op_type not in PRODUCTS:
        return main_operand(node)
    values = [value for value in node.inputs if constant_of(value) is None]
    return values[0] if len(values) == 1 else None


def _is_small(value: Any) -> bool:
    return value.shape is None or len(value.shape) <= 3


def _is_quantized(node: Any) -> bool:
    """Say whether nothing reads a result before it is quantized."""
    while len(node.outputs) == 1 and not (result := node.outputs[0]).is_graph_output():
        if len(result.uses()) != 1:
            return False
        node = result.uses()[0].node
        if node.op_type not in MOVES:
            return bool(node.op_type == "QuantizeLinear")
    return False
