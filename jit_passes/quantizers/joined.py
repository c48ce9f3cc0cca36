"""Operators that a backend computes as one: the only place that says which.

A clip becomes part of the operator in front of it. Functions become one table. A sum is added to
the products of a layer before these are rounded. A concatenation is read in parts, each with its
own grid. In each case the result in between is never rounded.

Selection asks these functions about a model in float: a result in between gets no quantize. So the
reference model tells which operators are one. The reader of a reference model asks the same
functions (`targets/integer_operators.py`), since the model may come from a file, or be made for
another target. A compiler of regions follows the graph: whatever stands between two quantizes is
computed before it is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..graph.view import NodeView, ValueView
from .rearranged import LISTS, readers_of
from .support import OperatorSupport

RowOf = Callable[[NodeView], OperatorSupport | None]  # None for operators that read no integers


def clipped_output(node: NodeView, row: OperatorSupport) -> ValueView:
    """Return the value that is quantized: the node's result, or that of the clip behind it."""
    value = node.output
    # A further reader of the value in between, even of its shape alone, prevents fusing.
    if value.written or value.is_result or len(value.uses) != 1 or value.uses[0][1] != 0:
        return value
    user = value.uses[0][0]
    if user.kind not in row.clips or user.block != node.block or not _is_absorbed(user):
        return value
    if row.clip_refusal is not None and row.clip_refusal(user, None):
        return value
    return user.output


def _is_absorbed(clip: NodeView) -> bool:
    """Saturation implements a clip whose range contains 0, since ranges are widened to 0."""
    low, high = clip.clip or (1, 0)
    return (low is None or low <= 0) and (high is None or high >= 0)


def is_table(reader: OperatorSupport | None, maker: OperatorSupport | None) -> bool:
    """Say whether two operators, one of which reads the other's result, may make one table."""
    return bool(reader and maker and reader.elementwise and maker.elementwise)


def is_within_tables(node: NodeView, readers: Sequence[NodeView], row_of: RowOf) -> bool:
    """Say whether an operator's result is only on the way to the results of tables.

    Args:
        node: the operator.
        readers: all operators that read its result, or that of its clip.
        row_of: the rows of operators on integers.
    """
    row = row_of(node)
    return bool(readers) and all(
        reader.block == node.block and is_table(row_of(reader), row) for reader in readers
    )


def is_summed(value: ValueView, reader: NodeView, row: OperatorSupport | None) -> bool:
    """Say whether a layer's result is added to others before it is rounded.

    Args:
        value: the layer's result.
        reader: a reader of it, an addition say.
        row: the reader's row, if it is on integers.
    """
    maker = value.producer
    return (
        row is not None
        and maker is not None
        and maker.kind in row.sums
        and maker.block == reader.block
        and [user for user, _ in value.uses] == [reader]
        and not (value.is_result or value.written)
    )


def takes_parts(reader: NodeView, row: OperatorSupport | None, maker: NodeView) -> bool:
    """Say whether an operator takes the operands of a concatenation in place of its result."""
    check = None if row is None else row.reads_parts
    return check is not None and reader.block == maker.block and check(reader, maker)


def reader_of_parts(node: NodeView, row_of: RowOf) -> NodeView | None:
    """Return the first reader of a concatenation, if all readers take its operands instead."""
    first: NodeView | None = None
    for use in readers_of(node.output, lambda user, _: user.kind not in LISTS):
        row = row_of(use[0]) if use is not None else None
        if use is None or row is None or use[1] not in row.operands:
            return None
        if not takes_parts(use[0], row, node):
            return None
        first = first or use[0]
    return first
