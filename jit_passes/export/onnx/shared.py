"""Weights that several convolutions read, which OpenVINO changes for one: each gets its own.

    before                                   after
    %w = DequantizeLinear(%codes, s, z)      %w = DequantizeLinear(%codes, s, z)
    %a = Conv(%x, %w, %bias)                 %a = Conv(%x, %w, %bias)
                                             %v = DequantizeLinear(%codes#1, s#1, z#1)
    %b = Conv(%y, %w, %bias)                 %b = Conv(%y, %v, %bias#1)

If one of the convolutions is multiplied by a constant, OpenVINO 2026.4 multiplies the weight by it.
Then all convolutions with this weight read the product. Nor does it add within convolutions that
share a weight, and rounds in front of the sum. A further dequantize of the same codes changes
nothing of this. Linears with a weight in common are computed rightly.
"""

from __future__ import annotations

import importlib
from typing import Any

from .graph import made_by, operand
from .names import free_name


def part_weights(model: Any) -> None:
    """Give each convolution on integers a weight and a bias of its own, in place.

    Args:
        model: of `onnx_ir`, whose values have their names.
    """
    taken = {value.name for node in model.graph.all_nodes() for value in node.outputs}
    taken |= {value.name for value in (*model.graph.inputs, *model.graph.initializers.values())}
    read: set[Any] = set()
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Conv" or made_by(operand(node, "W"), "DequantizeLinear") is None:
            continue
        codes = operand(operand(node, "W").producer(), "x")
        if codes in read:
            for place, value in enumerate(node.inputs[1:], 1):
                node.replace_input_with(place, _copied(model, node, value, taken))
        read.add(codes)


def _copied(model: Any, reader: Any, value: Any, taken: set[str]) -> Any:
    """Return a copy of a value of constants, whose nodes are inserted in front of its reader.

    A value that depends on others is returned itself.
    """
    ir = importlib.import_module("onnx_ir")
    if value is None or (value.producer() is None and value.const_value is None):
        return value
    name = free_name(value.name, taken)
    if (maker := value.producer()) is None:
        tensor = ir.tensor(value.const_value.numpy(), dtype=value.dtype, name=name)
        made = ir.Value(name=name, const_value=tensor, type=value.type, shape=value.shape)
        model.graph.register_initializer(made)
    else:
        operands = [_copied(model, reader, operand, taken) for operand in maker.inputs]
        if maker.inputs and operands == list(maker.inputs):
            return value
        node = ir.node(maker.op_type, operands, maker.attributes, name=name)
        made = node.outputs[0]
        made.name, made.type, made.shape = name, value.type, value.shape
        reader.graph.insert_before(reader, node)
    taken.add(name)
    return made
