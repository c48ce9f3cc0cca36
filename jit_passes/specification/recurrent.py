"""The operands of recurrent layers and cells: the input, and the matrices that multiply it."""

from __future__ import annotations

import torch

from ..graph.traits import kinds
from ..graph.view import NodeView, ValueView

GATED = kinds(lambda traits: traits.recurrent == "gated")
PLAIN = kinds(lambda traits: traits.recurrent == "plain")
CELLS = kinds(lambda traits: traits.recurrent == "cell")
RECURRENT = (*GATED, *PLAIN, *CELLS)
_INPUT = 0


def is_matrix(node: NodeView, operand: int) -> bool:
    """Say whether an operand is a weight of a cell, or the list of a layer's weights and biases."""
    return operand in _positions(node)


def input_of(node: NodeView) -> ValueView:
    """Return the input of the first layer, `[..., input]`."""
    return node.inputs[_INPUT]


def matrices_of(node: NodeView) -> list[tuple[int, ValueView]] | None:
    """Return the weights, each with the operand that it is or is listed in; None without constants.

    For each layer, and in each for both directions: weights of the input `[gates * hidden, input]`,
    of the state `[gates * hidden, hidden]`, and of a projection `[projection, hidden]`.
    """
    positions = _positions(node)
    values = [(place, value) for place, _, value in node.operands if place in positions]
    if not values or not all(torch.is_tensor(value.constant) for _, value in values):
        return None
    return [(place, value) for place, value in values if value.constant.dim() == 2]


def _positions(node: NodeView) -> tuple[int, ...]:
    names = ("w_ih", "w_hh") if node.kind in CELLS else ("params",)
    return tuple(map(node.position, names))
