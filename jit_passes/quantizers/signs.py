"""Which values can be below 0, as far as a graph tells."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.view import LIST, ValueView
from .rearranged import passes_on


def can_be_negative(value: ValueView, known: dict[int, bool]) -> bool:
    """Say whether a value can hold numbers below 0, as far as the graph tells."""
    pending = [value]  # not recursive: chains of additions may be long
    while pending:
        last = pending[-1]
        if last.id in known:
            pending.pop()
            continue
        decided, operands = _sign(last)
        if decided is not None:
            known[last.id] = decided
        else:
            unknown = [operand for operand in operands if operand.id not in known]
            if unknown:
                pending += unknown
            else:
                known[last.id] = any(known[operand.id] for operand in operands)
    return known[value.id]


def _sign(value: ValueView) -> tuple[bool | None, Sequence[ValueView]]:
    """Return whether it can be below 0, or None and the values that this depends on."""
    node = value.producer
    constant = value.constant
    if isinstance(constant, int | float):
        return constant < 0, ()
    if node is None or value.written or value.is_constant:
        return True, ()
    if node.kind == LIST:
        return None, node.inputs
    if not value.is_tensor or node.overload is None:
        return True, ()
    traits = node.traits
    if traits.nonnegative_if is not None:
        return None, [node.operand(name) for name in traits.nonnegative_if]
    if traits.clip is not None:
        low, high = node.clip or (None, -1)
        if high is not None and high < 0:
            return True, ()
        return (False, ()) if low is not None and low >= 0 else (None, node.inputs[:1])
    return (None, node.inputs[:1]) if passes_on(node) or traits.within else (True, ())
