"""Scores that softmax does not see, in one form.

    %s = aten::add(%x, %mask, 1)                  mask of 0 and of numbers that hide
    %s = aten::sub(%x, %mask, 1)                  of 0 and of large numbers
    %s = aten::where(%seen, %x, -inf)
    %s = aten::masked_fill(%x, %hidden, -inf)
    %y = aten::softmax(%s, ...)
  ->
    %s = aten::masked_fill(%x, %hidden, fill)
    %y = aten::softmax(%s, ...)

A number hides if it is not above `HIDDEN`. The fill is minus infinity if the mask has it, else the
lowest float32. With the latter, a fully hidden row has equal shares, as with sums.

A mask is made without data: of constants, and of sizes. The one of causal attention is
`triu(full([queries, keys], -inf), 1)`. Which numbers it may have follows from its operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

import torch

from ...graph.editor import GraphEditor
from ...graph.kinds import SOFTMAX
from ...graph.view import NodeView, ValueView, is_number
from ..x86 import HIDDEN
from .codes import MOVES

FILL = "aten::masked_fill"
LOWEST = torch.finfo(torch.float32).min
BOOL = 11  # as graphs have dtypes
MOST = 8  # numbers of a mask that are followed
Numbers = frozenset[float]


def hide_scores(graph: GraphEditor) -> None:
    """Write sums with masks, and choices, in front of softmax as `aten::masked_fill`."""
    for node in graph.nodes:
        made = node.main_operand.producer if node.kind in SOFTMAX else None
        form = None if made is None or made.output.written else _FORMS.get(made.kind)
        if made is None or form is None:
            continue
        found = form(graph, made)
        if found is not None:
            filled = graph.insert(FILL, list(found), before=made, like=made)
            graph.set_input(node, 0, filled.output)


Found = tuple[ValueView, ValueView, float] | None  # operands of a fill


def _added(graph: GraphEditor, node: NodeView) -> Found:
    if node.operand("alpha").constant != 1:
        return None
    places = ((0, 1), (1, 0)) if node.kind == "aten::add" else ((0, 1),)
    for scores, place in places:
        x, mask = node.inputs[scores], node.inputs[place]
        if x.is_tensor and mask.is_tensor and not without_data(x) and without_data(mask):
            return _summed(graph, node, x, mask)
    return None


def _summed(graph: GraphEditor, node: NodeView, x: ValueView, mask: ValueView) -> Found:
    sign = 1 if node.kind == "aten::add" else -1
    numbers = {sign * number for number in numbers_of(mask) or () if number}
    hiding = {math.isinf(number) for number in numbers}
    if len(hiding) != 1 or max(numbers) > HIDDEN:
        return None  # with both, a row that is hidden altogether has shares of some
    hidden = _hidden_by(graph, mask, sign, before=node)
    return x, hidden, -math.inf if hiding == {True} else LOWEST


def _chosen(graph: GraphEditor, node: NodeView) -> Found:
    condition, *others = node.inputs
    for x, fill, negated in ((others[0], others[1], True), (others[1], others[0], False)):
        numbers = numbers_of(fill)
        if x.is_tensor and numbers is not None and len(numbers) == 1 and max(numbers) <= HIDDEN:
            if negated:
                not_ = graph.insert("aten::logical_not", [condition], before=node, like=node)
                condition = not_.output
            return x, condition, max(numbers)
    return None


def _filled(graph: GraphEditor, node: NodeView) -> Found:
    """Give a fill that is a tensor as a number."""
    x, hidden, fill = node.inputs
    if isinstance(fill.constant, torch.Tensor) and is_number(fill):
        return x, hidden, float(fill.constant)
    return None


_FORMS: Mapping[str, Callable[[GraphEditor, NodeView], Found]] = {
    "aten::add": _added,
    "aten::sub": _added,
    "aten::where": _chosen,
    FILL: _filled,
}


def _hidden_by(graph: GraphEditor, mask: ValueView, sign: int, *, before: NodeView) -> ValueView:
    """Return where a mask hides, as bools, made without floats where its form allows that."""
    insert = partial(graph.insert, before=before, like=before)
    if isinstance(mask.constant, torch.Tensor):
        return graph.constant(sign * mask.constant.detach() <= HIDDEN, before=before)
    maker = mask.producer
    assert maker is not None
    if maker.kind in ("aten::triu", "aten::tril") or maker.kind in MOVES:
        inner = _hidden_by(graph, maker.main_operand, sign, before=before)
        return insert(maker.kind, [inner, *maker.other_operands]).output
    if maker.kind == "aten::full":
        hides = int(sign * float(maker.operand("fill_value").constant) <= HIDDEN)
        options = maker.operands_behind("dtype")
        return insert(maker.kind, [maker.main_operand, hides, BOOL, *options]).output
    kind, bound = ("aten::le", HIDDEN) if sign > 0 else ("aten::ge", -HIDDEN)
    return insert(kind, [mask, bound]).output


def is_mask(node: NodeView) -> bool:
    """Whether an operator hides scores from softmax."""
    return node.kind == FILL


def reads_mask(softmax: NodeView, maker: NodeView) -> bool:
    """Whether softmax takes in the operator that makes its scores."""
    return softmax.kind in SOFTMAX and is_mask(maker)


def refusal_of_mask(node: NodeView) -> str | None:
    """Say why an operator that fills does not hide scores from softmax on integers."""
    fill = node.operand("value").constant
    if not isinstance(fill, int | float) or not fill <= HIDDEN:
        return f"it fills in a number that softmax may see: fill in -inf, or {HIDDEN} or less"
    if any(user.kind not in SOFTMAX for user, _ in node.output.uses) or node.output.is_result:
        return "its result has another reader than softmax"
    return None if without_data(node.operand("mask")) else "its mask depends on the data"


def without_data(value: ValueView) -> bool:
    """Say whether a value follows from constants and sizes alone."""
    pending, seen = [value], {value.id}
    for found in pending:  # which grows
        if found.is_constant or found.from_sizes:
            continue
        maker = found.producer
        loops = maker is None or (maker.carried and maker.kind != "prim::If")
        if maker is None or loops or found.written or "rand" in maker.kind:
            return False
        if maker.traits.asks_for_shape or maker.kind in _ASKING:
            continue
        read = [*maker.inputs, *(value for value, _ in maker.carried)]  # and results of branches
        new = [operand for operand in read if operand.id not in seen]
        seen.update(operand.id for operand in new)
        pending += new
    return True


def numbers_of(value: ValueView) -> Numbers | None:
    """Return the numbers that a tensor without data may have; None where they are not known."""
    constant = value.constant if value.is_constant else None
    if isinstance(constant, torch.Tensor):
        found = torch.unique(constant.detach()).tolist()
        return frozenset(map(float, found)) if len(found) <= MOST else None
    if isinstance(constant, bool | int | float):
        return frozenset({float(constant)})
    maker = value.producer
    if maker is None or maker.carried or value.written:
        return None
    if maker.kind in _TRUTHS:
        return frozenset({0.0, 1.0}) if without_data(value) else None
    if maker.kind in MOVES or maker.kind == "aten::to":
        return numbers_of(maker.main_operand)
    form = _NUMBERS.get(maker.kind)
    numbers = form(maker) if form else None
    known = numbers is not None and len(numbers) <= MOST and not any(map(math.isnan, numbers))
    return numbers if known else None


def _joined(*values: ValueView) -> Numbers | None:
    found = [numbers_of(value) for value in values]
    known = [numbers for numbers in found if numbers is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


def _with_zero(node: NodeView) -> Numbers | None:
    found = numbers_of(node.main_operand)
    return None if found is None else found | {0.0}


def _of_choice(node: NodeView) -> Numbers | None:
    chosen = node.operand("self"), node.operand("other")
    return _joined(*chosen) if without_data(node.operand("condition")) else None


def _of_fill(node: NodeView) -> Numbers | None:
    seen = node.main_operand, node.operand("value")
    return _joined(*seen) if without_data(node.operand("mask")) else None


def _computed(node: NodeView, function: Callable[[float, float], float]) -> Numbers | None:
    parts = [numbers_of(value) for value in node.inputs[:2]]
    factor = 1 if node.kind == "aten::mul" else node.operand("alpha").constant
    if factor != 1 or parts[0] is None or parts[1] is None:
        return None
    return frozenset(function(a, b) for a, b in product(parts[0], parts[1]))


# Operators that look at a tensor, and not at its numbers.
_ASKING = frozenset(
    (*(f"aten::{kind}_like" for kind in ("full", "ones", "zeros")), "prim::is_nested")
)
_TRUTHS = frozenset(
    f"aten::{kind}" for kind in ("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "bitwise_not")
)
_NUMBERS: Mapping[str, Callable[[NodeView], Numbers | None]] = {
    **dict.fromkeys(
        ("aten::full", "aten::full_like", "aten::new_full"),
        lambda node: numbers_of(node.operand("fill_value")),
    ),
    **dict.fromkeys(("aten::ones", "aten::ones_like"), lambda _: frozenset({1.0})),
    **dict.fromkeys(("aten::zeros", "aten::zeros_like"), lambda _: frozenset({0.0})),
    **dict.fromkeys(("aten::triu", "aten::tril"), _with_zero),
    "aten::where": _of_choice,
    FILL: _of_fill,
    "aten::mul": partial(_computed, function=lambda a, b: a * b),
    "aten::add": partial(_computed, function=lambda a, b: a + b),
    "aten::sub": partial(_computed, function=lambda a, b: a - b),
    "aten::rsub": partial(_computed, function=lambda a, b: b - a),
}
