"""Values of a graph as flat tensors, for control flow of programs, which takes and gives these.

Truths and numbers become tensors on the way in, and are read back on the way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...errors import JitPassesError


class Operands:
    """The values from outside that blocks read: tensors and open sizes among them are operands.

    Args:
        outside: the values, structures among them.
        kind: "branch" or "loop", for messages.

    Attributes:
        tensors: operands, each of them once.
    """

    def __init__(self, outside: list[Any], kind: str) -> None:
        self._leaves, self._layout = tree_flatten(outside)
        self._kind = kind
        moving = [
            k
            for k, leaf in enumerate(self._leaves)
            if isinstance(leaf, torch.Tensor | torch.SymInt)
        ]
        self.tensors = tuple({id(self._leaves[k]): self._leaves[k] for k in moving}.values())
        at = {id(operand): place for place, operand in enumerate(self.tensors)}
        self._places = {k: at[id(self._leaves[k])] for k in moving}

    def inside(self, given: Sequence[Any]) -> list[Any]:
        """Return the values as they are inside, where other tensors stand for the operands."""
        inner = [
            given[self._places[k]] if k in self._places else leaf
            for k, leaf in enumerate(self._leaves)
        ]
        found: list[Any] = tree_unflatten(inner, self._layout)
        return found

    def check_unchanged(self, inside: list[Any], before: list[Any]) -> None:
        """Check that no list or dict among the values was changed.

        Args:
            inside: the values behind a call.
            before: flat, the values that it began with.

        Raises:
            JitPassesError: one was.
        """
        after, layout = tree_flatten(inside)
        if layout != self._layout or any(a is not b for a, b in zip(before, after, strict=True)):
            raise JitPassesError(
                f"a {self._kind} changes a list or dict that is made outside of it"
            )


def kind_of(leaf: Any) -> type | None:
    """Return the kind of a leaf: a tensor, as truths are, or a number; None for another kind."""
    if isinstance(leaf, torch.Tensor | bool | torch.SymBool):
        return torch.Tensor
    for kind, symbol in ((int, torch.SymInt), (float, torch.SymFloat)):
        if isinstance(leaf, kind | symbol):
            return kind
    return None


def tensor_of(leaf: Any) -> torch.Tensor:
    """Return a tensor, or a truth or number as one without axes."""
    if isinstance(leaf, torch.Tensor):
        return leaf
    # `kind_of` says how truths return.
    dtype = {int: torch.int64, float: torch.float64}.get(kind_of(leaf) or bool, torch.bool)
    full: Any = torch.full  # which takes symbols, though its type does not say so
    made: torch.Tensor = full((), leaf, dtype=dtype)
    return made


def read_back(
    tensors: Iterable[torch.Tensor], kinds: Sequence[type | None], rest: Sequence[Any], form: Any
) -> list[Any]:
    """Return values of a form: tensors for its leaves that have a kind, and the rest as given.

    Numbers are numbers again. A truth stays a tensor, so that a further branch can read it.
    """
    given = iter(tensors)
    leaves = [
        same if kind is None else next(given) if kind is torch.Tensor else next(given).item()
        for kind, same in zip(kinds, rest, strict=True)
    ]
    found: list[Any] = tree_unflatten(leaves, form)
    return found


def apart(results: Iterable[torch.Tensor], operands: Iterable[Any]) -> tuple[torch.Tensor, ...]:
    """Return the results, with copies of tensors that are operands, or are there twice."""
    seen = {id(operand) for operand in operands}
    found = []
    for result in results:
        found.append(result.clone() if id(result) in seen else result)
        seen.add(id(found[-1]))
    return tuple(found)
