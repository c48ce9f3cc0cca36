"""Branches that the data decide, as `torch.cond`.

    y = f(x) if x.sum() > 0 else g(x)   ->   cond(x.sum() > 0, f, g, (x,))

Every value that a branch reads from outside is an operand. Its results are one flat list of
tensors, as `cond` gives them. Truths and numbers become tensors on the way; the rest of a result, a
structure or None, has to be equal in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from ...errors import JitPassesError
from .flat import Operands, apart, kind_of, read_back, tensor_of

Way = Callable[[list[Any]], list[Any]]


def choose(truth: Any, taken: Way, otherwise: Way, outside: list[Any]) -> list[Any]:
    """Return the results of one of two ways.

    Args:
        truth: a tensor or a symbol that decides.
        taken: from the values outside to results, if it is true.
        otherwise: the same if it is false.
        outside: all values that the two read.

    Raises:
        JitPassesError: `cond` cannot choose: the results differ in more than numbers, or a way
            changes a list that is made outside.
    """
    operands = Operands(outside, "branch")
    forms: list[Any] = []  # of the results of each call: all that has to be equal in both

    def function(run: Way) -> Callable[..., tuple[torch.Tensor, ...]]:
        def way(*given: Any) -> tuple[torch.Tensor, ...]:
            inside = operands.inside(given)
            before = tree_leaves(inside)
            found, form = tree_flatten(run(inside))
            operands.check_unchanged(inside, before)
            kinds = [kind_of(leaf) for leaf in found]
            rest = [leaf if kind is None else None for leaf, kind in zip(found, kinds, strict=True)]
            forms.append((form, kinds, rest))
            if forms[0] != forms[-1]:
                raise JitPassesError(
                    "its two ways return different structures, or other values than tensors and "
                    "numbers: give a tensor in both, and return once, at the end"
                )
            return apart([tensor_of(leaf) for leaf in found if kind_of(leaf) is not None], given)

        return way

    predicate = truth.reshape(()) if isinstance(truth, torch.Tensor) else truth
    ways = function(taken), function(otherwise)
    chosen = torch.ops.higher_order.cond(predicate, *ways, operands.tensors)
    form, kinds, rest = forms[0]
    return read_back(chosen, kinds, rest, form)
