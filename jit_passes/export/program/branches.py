"""Branches that the data decide, as `torch.cond`.

    y = f(x) if x.sum() > 0 else g(x)   ->   cond(x.sum() > 0, f, g, (x,))

All that a branch reads from outside is an operand, and its results are one flat list, since `cond`
takes and gives tensors and whole numbers alone. Other truths and numbers become tensors; the rest
of a result, a structure or None, has to be equal in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...errors import JitPassesError

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
    leaves, layout = tree_flatten(outside)
    moving = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor | torch.SymInt)]
    operands = tuple({id(leaves[k]): leaves[k] for k in moving}.values())  # each of them once
    at = {id(operand): place for place, operand in enumerate(operands)}
    places = {k: at[id(leaves[k])] for k in moving}
    forms: list[Any] = []  # of the results of each call: layout, and what is the same in both

    def way(run: Way) -> Callable[..., tuple[Any, ...]]:
        def function(*given: Any) -> tuple[Any, ...]:
            inner = [given[places[k]] if k in places else leaf for k, leaf in enumerate(leaves)]
            inside = tree_unflatten(inner, layout)
            found, form = tree_flatten(run(inside))
            after, layout_after = tree_flatten(inside)
            if layout_after != layout or any(a is not b for a, b in zip(inner, after, strict=True)):
                raise JitPassesError("a branch changes a list or dict that is made outside of it")
            results = [_result(leaf) for leaf in found]
            rest = [None if _moves(result) else result for result in results]
            forms.append((form, rest, list(map(_moves, results))))
            if forms[0] != forms[-1]:
                raise JitPassesError(
                    "its two ways return different structures, or other values than tensors and "
                    "numbers"
                )
            return _apart(filter(_moves, results), given)

        return function

    ways = way(taken), way(otherwise)
    predicate = truth.reshape(()) if isinstance(truth, torch.Tensor) else truth
    chosen = iter(torch.ops.higher_order.cond(predicate, *ways, operands))
    form, rest, moves = forms[0]
    results = [next(chosen) if moved else same for moved, same in zip(moves, rest, strict=True)]
    found: list[Any] = tree_unflatten(results, form)
    return found


def _moves(result: Any) -> bool:
    """Say whether a result is one that `cond` gives."""
    return isinstance(result, torch.Tensor | torch.SymInt | int)


def _result(leaf: Any) -> Any:
    if isinstance(leaf, bool | float):
        return torch.full((), leaf, dtype=torch.bool if isinstance(leaf, bool) else torch.float64)
    return leaf


def _apart(results: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results, with copies of tensors that are operands, or are there twice."""
    seen = {id(operand) for operand in operands}
    apart = []
    for result in results:
        again = isinstance(result, torch.Tensor) and id(result) in seen
        apart.append(result.clone() if again else result)
        seen.add(id(apart[-1]))
    return tuple(apart)
