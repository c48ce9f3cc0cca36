"""Branches that the data decide, as `torch.cond`.

    y = f(x) if x.sum() > 0 else g(x)   ->   cond(x.sum() > 0, f, g, (x,))

All that a branch reads from outside is an operand, and its results are one flat list of tensors,
which is what `cond` gives. Truths and numbers become tensors on the way; the rest of a result, a
structure or None, has to be equal in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    forms: list[Any] = []  # of the results of each call: all that has to be equal in both

    def function(run: Way) -> Callable[..., tuple[torch.Tensor, ...]]:
        def way(*given: Any) -> tuple[torch.Tensor, ...]:
            inner = [given[places[k]] if k in places else leaf for k, leaf in enumerate(leaves)]
            inside = tree_unflatten(inner, layout)
            found, form = tree_flatten(run(inside))
            after, layout_after = tree_flatten(inside)
            if layout_after != layout or any(a is not b for a, b in zip(inner, after, strict=True)):
                raise JitPassesError("a branch changes a list or dict that is made outside of it")
            kinds = [_kind(leaf) for leaf in found]
            rest = [leaf if kind is None else None for leaf, kind in zip(found, kinds, strict=True)]
            forms.append((form, kinds, rest))
            if forms[0] != forms[-1]:
                raise JitPassesError(
                    "its two ways return different structures, or other values than tensors and "
                    "numbers"
                )
            return _apart([_tensor(leaf) for leaf in found if _kind(leaf) is not None], given)

        return way

    predicate = truth.reshape(()) if isinstance(truth, torch.Tensor) else truth
    ways = function(taken), function(otherwise)
    chosen = iter(torch.ops.higher_order.cond(predicate, *ways, operands))
    form, kinds, rest = forms[0]
    results = [
        same if kind is None else _of_kind(next(chosen), kind)
        for kind, same in zip(kinds, rest, strict=True)
    ]
    found: list[Any] = tree_unflatten(results, form)
    return found


def _kind(leaf: Any) -> type | None:
    """Return what a result is: a tensor, a truth or a number; None for what `cond` cannot give."""
    if isinstance(leaf, torch.Tensor):
        return torch.Tensor
    for kind, symbol in ((bool, torch.SymBool), (int, torch.SymInt), (float, torch.SymFloat)):
        if isinstance(leaf, kind | symbol):
            return kind
    return None


def _tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf
    dtypes = {bool: torch.bool, int: torch.int64, float: torch.float64}
    kind = _kind(leaf)
    assert kind is not None
    full: Any = torch.full  # which takes symbols, though its type does not say so
    made: torch.Tensor = full((), leaf, dtype=dtypes[kind])
    return made


def _of_kind(chosen: torch.Tensor, kind: type) -> Any:
    """Return a result as it was. A truth stays a tensor, by which a further branch can go."""
    return chosen.item() if kind in (int, float) else chosen


def _apart(results: Iterable[torch.Tensor], operands: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Return the results, with copies of tensors that are operands, or are there twice."""
    seen = {id(operand) for operand in operands}
    apart = []
    for result in results:
        apart.append(result.clone() if id(result) in seen else result)
        seen.add(id(apart[-1]))
    return tuple(apart)
