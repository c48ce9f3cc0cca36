"""How many cases a test draws: few by default, all of them with JIT_PASSES_SEEDS=all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")

FEW = 20
ALL = os.environ.get("JIT_PASSES_SEEDS") == "all"


def seeds(count: int, few: int = FEW) -> range:
    """Return the seeds of a test.

    Args:
        count: how many cases the test draws in `make fuzz`.
        few: how many it draws by default: fewer than usual where a case takes long.
    """
    return range(count if ALL else min(count, few))


def in_turns(rows: Sequence[T], columns: Sequence[S], few: int) -> list[tuple[T, S]]:
    """Return pairs: each row with a few columns, which take turns; with all in `make fuzz`.

    Row i has the columns from i on, so all columns have equally many rows.
    """
    count = len(columns) if ALL else few
    return [
        (row, columns[(i + k) % len(columns)]) for i, row in enumerate(rows) for k in range(count)
    ]
