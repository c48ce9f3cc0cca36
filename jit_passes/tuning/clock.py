"""The time that a search may take."""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """The time of a search is over."""


class Clock:
    """The time since a run began, and how much is left.

    Args:
        limit: seconds; None for no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self._begin, self._limit = time.perf_counter(), limit

    @property
    def seconds(self) -> float:
        """The time since the beginning."""
        return time.perf_counter() - self._begin

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._limit is not None and self.seconds >= self._limit
