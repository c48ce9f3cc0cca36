"""Functions of one tensor next to moves, as `fold_lookup_tables` takes them."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.editor import GraphEditor
from ...graph.functions import is_function
from ...graph.view import NodeView, ValueView, are_constant
from ..reference_nodes import parameters_of
from ..units import DEQUANTIZE, QUANTIZE, ROUND
from .codes import SUPPORTED_MOVES, quantize_as
from .operators import FORMS


def quantize_moved(graph: GraphEditor) -> None:
    """Quantize the operand of a function again behind a move, with the grid that it has already.

        %m = aten::select(jit_passes::dequantize(%q, scale, zero), ...)
        %y = aten::sigmoid(%m)
    ->  %c = jit_passes::quantize(%m, scale, zero, ...)
        %y = aten::sigmoid(jit_passes::dequantize(%c, scale, zero))

    The numbers stay equal: they are on that grid. A table then begins at `%c`, and the move is one
    of codes.
    """
    for node in graph.nodes:
        for value in node.outputs if node.kind != QUANTIZE else ():
            if value.is_tensor and not value.written and any(is_function(u) for u, _ in value.uses):
                _quantize(graph, value)


def quantize_ahead_of_moves(graph: GraphEditor) -> None:
    """Quantize the result of an operator ahead of moves, with the grid that it gets behind them.

        %m = aten::flatten(aten::mean(%x, ...), ...)
        %q = jit_passes::quantize(%m, scale, zero, ...)
    ->  %c = jit_passes::quantize(aten::mean(%x, ...), scale, zero, ...)
        %m = aten::flatten(jit_passes::dequantize(%c, scale, zero), ...)
        %q = jit_passes::quantize(%m, scale, zero, ...)

    The operator is a function of one tensor, or is computed on integers. The codes stay equal,
    behind max pooling too: quantize never decreases, so the largest number has the largest code,
    and the numbers behind the move are on its grid.
    """
    for node in graph.nodes:
        if not (is_function(node) or node.kind in FORMS) or node.output.written:
            continue
        moves = [use for use in node.output.uses if use[0].kind in SUPPORTED_MOVES and not use[1]]
        readers = [reader for move, _ in moves for reader in _behind(move)]
        if not readers or any(reader.kind != QUANTIZE for reader in readers):
            continue
        constant = all(are_constant(reader.other_operands) for reader in readers)
        if constant and len({parameters_of(reader) for reader in readers}) == 1:
            _requantize(graph, node.output, readers[0], moves)


def _behind(move: NodeView) -> Iterator[NodeView]:
    """Yield the operators that read the numbers of a move's result."""
    for value in move.outputs:
        for user, place in value.uses:
            passed = user.kind in ("prim::ListUnpack", ROUND)
            if passed or (user.kind in SUPPORTED_MOVES and not place):
                yield from _behind(user)
            elif value.written or not user.traits.asks_for_shape:
                yield user


def _quantize(graph: GraphEditor, value: ValueView) -> None:
    dequantize = _moved(value)
    made = dequantize.main_operand.producer if dequantize is not None else None
    if dequantize is None or made is None or made.kind != QUANTIZE:
        return
    users = [(user, place) for user, place in value.uses if user.traits.elementwise]
    _requantize(graph, value, made, users)


def _requantize(
    graph: GraphEditor, value: ValueView, quantize: NodeView, users: list[tuple[NodeView, int]]
) -> None:
    """Let users read a value from codes that are made as a quantize makes them."""
    node = value.producer
    if node is None or any(user.block != node.block for user, _ in users):
        return
    first = min((user for user, _ in users), key=lambda user: user.index)
    codes = quantize_as(graph, value, quantize, before=first, like=node)
    operands = [codes, quantize.operand("scale"), quantize.operand("zero_point")]
    floats = graph.insert(DEQUANTIZE, operands, before=first, like=node).output
    for user, place in users:
        graph.set_input(user, place, floats)


def _moved(value: ValueView) -> NodeView | None:
    """Return the dequantize whose result a value is, in another order; None if there is none."""
    moved = False
    while (maker := value.producer) is not None and not value.written:
        if maker.kind == DEQUANTIZE:
            return maker if moved and are_constant(maker.other_operands) else None
        if maker.kind == "prim::ListUnpack":
            value = maker.main_operand
        elif maker.kind in SUPPORTED_MOVES and maker.inputs:
            value, moved = maker.main_operand, True
        else:
            return None
    return None
