"""Means that OpenVINO computes wrongly on integers: an operator in front that keeps them in float.

    before                                 after
    %y = DequantizeLinear(%a, s, z)        %y = DequantizeLinear(%a, s, z)
    %m = ReduceMean(%y, axes)              %k = Max(%y, low)
                                           %m = ReduceMean(%k, axes)

with the lowest number of float32: no value changes.

OpenVINO 2026.4 moves a dequantize behind a mean, and its kernel then averages codes. Of three axes
without the first, the second among them, it averages the first sample alone where the result stays
in float: the means of all other samples are 0. It moves the dequantize behind transposes and
reshapes too, so other ways of writing a mean do not help. It does not move it behind Max.
"""

from __future__ import annotations

import importlib
from typing import Any

from .graph import made_by

MEANS = ("ReduceMean", "GlobalAveragePool")
MOVES = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Expand", "Slice")


def keep_means(model: Any) -> None:
    """Write a Max in front of means of dequantized values, in place.

    Means of images, which have four axes and more, are right, and so is a mean whose result is
    quantized: both are left as they are.

    Args:
        model: of `onnx_ir`, whose values have their names.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type in MEANS and _is_dequantized(node.inputs[0]) and not _is_quantized(node):
            _limit(node)


def _is_dequantized(value: Any) -> bool:
    """Say whether a mean's operand is a dequantized value, which had three axes or fewer."""
    few = _is_small(value)
    while (node := value.producer()) is not None and node.op_type in MOVES:
        value = node.inputs[0]
        few |= _is_small(value)
    return few and made_by(value, "DequantizeLinear") is not None


def _is_small(value: Any) -> bool:
    return value.shape is None or len(value.shape) <= 3


def _is_quantized(node: Any) -> bool:
    """Say whether nothing reads a result before it is quantized."""
    while not (result := node.outputs[0]).is_graph_output() and len(result.uses()) == 1:
        node = result.uses()[0].node
        if node.op_type not in MOVES:
            return bool(node.op_type == "QuantizeLinear")
    return False


def _limit(mean: Any) -> None:
    ir, numpy = (importlib.import_module(name) for name in ("onnx_ir", "numpy"))
    value, name = mean.inputs[0], f"{mean.outputs[0].name}:operand"
    low = ir.tensor(numpy.finfo(value.dtype.numpy()).min)
    constant = ir.node("Constant", [], {"value": low}, name=f"{name}:low")
    constant.outputs[0].name = constant.name
    kept = ir.node("Max", [value, constant.outputs[0]], name=name)
    kept.outputs[0].name, kept.outputs[0].type = name, value.type
    kept.outputs[0].shape = value.shape
    mean.graph.insert_before(mean, [constant, kept])
    mean.replace_input_with(0, kept.outputs[0])
