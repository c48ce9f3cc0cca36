"""Which values can be below 0, as far as a graph tells."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.view import ValueView
from .selection import passes_on

POSITIVE = frozenset(
    f"aten::{name}"
    for name in (
        "abs", "exp", "exp2", "hardsigmoid", "relu", "relu6", "sigmoid", "softmax", "softplus",
        "sqrt", "square",
    )
)  # fmt: skip
CLIPS = ("aten::clamp", "aten::clamp_min", "aten::hardtanh")
AVERAGES = ("aten::avg_pool", "aten::adaptive_", "aten::max_pool", "aten::mean", "aten::upsample")
MONOTONE = ("aten::add", "aten::cat", "aten::maximum", "aten::minimum", "aten::mul", "aten::stack")


def can_be_negative(value: ValueView, known: dict[int, bool]) -> bool:
    """Say whether a value can hold numbers below 0, as far as the graph tells.

    Args:
        value: the value.
        known: answers for other values, by id; filled in.
    """
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
    if node.kind in POSITIVE:
        return False, ()
    if node.kind in CLIPS:
        low = node.inputs[1].constant
        if isinstance(low, int | float) and low >= 0:
            return False, ()
        return (None, node.inputs[:1]) if node.kind != "aten::hardtanh" else (True, ())
    if passes_on(node) or node.kind.startswith(AVERAGES):
        return None, node.inputs[:1]
    if node.kind == "prim::ListConstruct":
        return None, node.inputs
    if node.kind in MONOTONE:
        return None, node.inputs[:1] if node.kind in ("aten::cat", "aten::stack") else node.inputs
    return True, ()
