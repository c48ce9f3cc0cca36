"""The base of all observers of histograms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .observer import Observer


@dataclass(frozen=True)
class HistogramObserver(Observer):
    """Base of observers that find a range in a histogram of all values, per tensor.

    The bins' width is a power of two, so that the histogram depends neither on the order of the
    batches nor on how the data was split.

    Attributes:
        bins: number of bins, at least two.
    """

    op: ClassVar[str] = "observe_histogram"
    bins: int = field(default=2048, kw_only=True)  # so that those of subclasses come first

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"a histogram needs at least two bins, not {self.bins}")
