"""Facts about tensors that the graph tells, whatever the model's inputs are.

C++ finds them, `cpp/facts`: one table has a row for each operator. See docs/internals/passes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Found = Mapping[int, tuple[int, int, list[int | None], torch.dtype | None]]
MOST_AXES = 64  # PyTorch's limit


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one tensor.

    Operands of convolutions and pools are taken to have a batch axis, and weights of linear layers
    to be matrices, where the graph does not say so. A tensor that may be written in place has no
    shape.

    Attributes:
        ranks: the numbers of axes that it can have.
        sizes: of the last axes, `sizes[-1]` of the last one; None for an unknown size. There are as
            many as the tensor has for certain, `ranks.start`.
        dtype: its dtype; None where the graph does not say it.
    """

    ranks: range
    sizes: tuple[int | None, ...]
    dtype: torch.dtype | None

    @property
    def rank(self) -> int | None:
        """The number of axes; None where the graph does not say it."""
        return self.ranks.start if len(self.ranks) == 1 else None

    def size(self, axis: int) -> int | None:
        """Return the size of an axis; None where it follows from the model's inputs.

        Args:
            axis: counted from the last one, which is -1: the number of axes may be unknown.
        """
        return self.sizes[axis] if -len(self.sizes) <= axis < 0 else None


NOTHING = Facts(range(MOST_AXES + 1), (), None)


class FactsTable:
    """The facts about all tensors of a graph, found when a first one is asked for.

    Args:
        find: returns them by the numbers of values.
    """

    def __init__(self, find: Callable[[], Found]) -> None:
        self._find = find
        self._found: Found | None = None

    def of(self, value: Any) -> Facts:
        """Return the facts about a `ValueView`; one that an edit has added has none.

        Raises:
            JitPassesError: the graph is gone, and no fact has been asked for before.
        """
        if self._found is None:
            self._found = self._find()
        known = self._found.get(value.id)
        if known is None:
            return NOTHING
        least, most, sizes, dtype = known
        return Facts(range(least, most + 1), tuple(sizes), dtype)
