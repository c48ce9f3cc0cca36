"""Functions of one tensor behind moves, as `fold_lookup_tables` takes them."""

from __future__ import annotations

import torch

from ...graph.editor import GraphEditor
from ...graph.view import NodeView, ValueView
from ..units import DEQUANTIZE, QUANTIZE
from .codes import SUPPORTED_MOVES


def quantize_moved(graph: GraphEditor) -> None:
    """Quantize again what a function reads behind a move, with the grid that it has already.

        %m = aten::select(jit_passes::dequantize(%q, scale, zero), ...)
        %y = aten::sigmoid(%m)
    ->  %c = jit_passes::quantize(%m, scale, zero, ...)
        %y = aten::sigmoid(jit_passes::dequantize(%c, scale, zero))

    The numbers stay equal: they are on that grid. A table then begins at `%c`, and the move is one
    of codes.
    """
    for node in graph.nodes:
        for value in node.outputs if node.kind != QUANTIZE else ():
            if (
                value.is_tensor
                and not value.written
                and any(_is_function(u) for u, _ in value.uses)
            ):
                _quantize(graph, node, value)


def _is_function(node: NodeView) -> bool:
    """Say whether an operator computes each number from one of a tensor, as `x * 2` does."""
    if node.traits.elementwise < 2:
        return node.traits.elementwise == 1
    tensors = [value for value in node.inputs if value.is_tensor and not _is_number(value)]
    rest = (value for value in node.inputs if value not in tensors)
    return len(tensors) == 1 and all(value.is_constant for value in rest)


def _is_number(value: ValueView) -> bool:
    return isinstance(value.constant, torch.Tensor) and value.constant.dim() == 0


def _quantize(graph: GraphEditor, node: NodeView, value: ValueView) -> None:
    dequantize = _moved(value)
    made = dequantize.main_operand.producer if dequantize is not None else None
    if dequantize is None or made is None or made.kind != QUANTIZE:
        return
    users = [(user, place) for user, place in value.uses if user.traits.elementwise]
    first = min((user for user, _ in users), key=lambda user: user.index)
    if any(user.block != node.block for user, _ in users):
        return
    codes = graph.insert(QUANTIZE, [value, *made.inputs[1:]], before=first, like=node).output
    operands = [codes, *dequantize.inputs[1:]]
    floats = graph.insert(DEQUANTIZE, operands, before=first, like=node).output
    for user, place in users:
        graph.set_input(user, place, floats)


def _moved(value: ValueView) -> NodeView | None:
    """Return the dequantize whose result a value is, in another order; None if there is none."""
    moved = False
    while (maker := value.producer) is not None and not value.written:
        if maker.kind == DEQUANTIZE:
            return maker if moved and all(v.is_constant for v in maker.inputs[1:]) else None
        if maker.kind == "prim::ListUnpack":
            value = maker.main_operand
        elif maker.kind in SUPPORTED_MOVES and maker.inputs:
            value, moved = maker.main_operand, True
        else:
            return None
    return None
