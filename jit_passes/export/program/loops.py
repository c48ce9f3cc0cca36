"""Loops whose rounds the data or an open size decide, as `torch.while_loop`.

    while y.sum() < 9: y = f(y)   ->   while_loop(go_on, f, (0, y.sum() < 9, y), ...)

The loop carries the number of the round, whether it goes on, and the tensors and numbers that a
round takes from the previous one. Shapes, dtypes and structures stay as they are from round to
round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from ...errors import JitPassesError
from .flat import Operands, apart, kind_of, read_back, tensor_of

_torch: Any = torch  # functions of symbols have no types

Round = Callable[[Any, list[Any], list[Any]], tuple[Any, list[Any]]]
"""From the round's number, carried values and values outside to whether it goes on, and carried."""


def repeat(
    most: Any, goes_on: Any, carried: list[Any], body: Round, outside: list[Any], first: int
) -> list[Any]:
    """Return the values that are carried out of a loop.

    Args:
        most: the number of rounds at most.
        goes_on: whether there is a further round.
        carried: by the loop, ahead of that round.
        body: a round.
        outside: all values that a round reads besides.
        first: the number of that round.

    Raises:
        JitPassesError: `while_loop` cannot compute it: a round changes the shape or dtype of a
            carried tensor, the structure of carried values, or a list that is made outside.
    """
    operands = Operands([*outside, most], "loop")
    leaves, layout = tree_flatten(carried)
    kinds = [kind_of(leaf) for leaf in leaves]
    moving = [tensor_of(leaf) for leaf in leaves if kind_of(leaf) is not None]
    start = tensor_of(first)
    state = tuple(part.contiguous() for part in (start, _decided(goes_on, start, most), *moving))

    def go_on(*given: Any) -> torch.Tensor:
        truth: torch.Tensor = given[1]
        return truth.clone()  # a condition must not give its own argument

    def turn(*given: Any) -> tuple[torch.Tensor, ...]:
        count, _, *moving = given[: len(state)]
        inside = operands.inside(given[len(state) :])
        limit = inside[-1]
        before = tree_leaves(inside)
        number = count.item()
        _torch._check(number >= 0)
        # Copies: a round may write to carried tensors.
        own = read_back([part.clone() for part in moving], kinds, leaves, layout)
        further, found = body(number, own, inside[:-1])
        operands.check_unchanged(inside, before)
        after, form = tree_flatten(found)
        if form != layout or [kind_of(leaf) for leaf in after] != kinds:
            raise JitPassesError(
                "a round returns another structure than it takes: of a loop whose rounds are not "
                "known, lists keep their length, and numbers their type"
            )
        if any(
            a is not b and a != b
            for a, b, kind in zip(after, leaves, kinds, strict=True)
            if kind is None
        ):
            raise JitPassesError("a round changes a carried value that is no tensor and no number")
        results = [
            count + 1,
            _decided(further, count + 1, limit),
            *(tensor_of(a) for a in after if kind_of(a)),
        ]
        for old, new in zip(given, results, strict=False):
            if old.shape != new.shape or old.dtype != new.dtype:
                raise JitPassesError(
                    f"a round makes {_shown(new)} of {_shown(old)}: of a loop whose rounds are not "
                    "known, shapes and dtypes stay as they are"
                )
        return apart([result.contiguous() for result in results], given)

    loop: Any = torch.ops.higher_order.while_loop
    _, _, *last = loop(go_on, turn, state, operands.tensors)
    return read_back(last, kinds, leaves, layout)


def _decided(goes_on: Any, number: torch.Tensor, most: Any) -> torch.Tensor:
    """Return whether there is a round of that number."""
    return torch.logical_and(tensor_of(goes_on).reshape(()), number < most)


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
