"""The operands of recurrent layers: what they multiply, and by which matrices."""

from __future__ import annotations

import torch

from ..graph.view import NodeView, ValueView

LAYERS = ("aten::lstm", "aten::gru")
RECURRENT = LAYERS
_INPUT = 0


def is_matrix(node: NodeView, operand: int) -> bool:
    """Say whether an operand of a recurrent layer is the list of its weights and biases."""
    return operand == node.position("params")


def input_of(node: NodeView) -> ValueView:
    """Return what the first layer reads, `[..., input]`."""
    return node.inputs[_INPUT]


def matrices_of(node: NodeView) -> list[ValueView] | None:
    """Return the weights of a recurrent layer; None where the model computes one of them.

    For each layer, and in each for both directions: those of the input `[gates * hidden, input]`,
    of the state `[gates * hidden, hidden]`, and of a projection `[projection, hidden]`.
    """
    position = node.position("params")
    values = [value for place, _, value in node.operands if place == position]
    if not values or not all(torch.is_tensor(value.constant) for value in values):
        return None
    return [value for value in values if value.constant.dim() == 2]
