"""The range without the outermost values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .histogram_observer import HistogramObserver
from .observer import ObserverState


@dataclass(frozen=True)
class Percentile(HistogramObserver):
    """Quantize the range that leaves (100 - percentile) % of the values out, half at each end.

    Resolved to the bins of a histogram, within the range that was seen.

    Attributes:
        percentile: in (50, 100].
    """

    name: ClassVar[str] = "percentile"
    percentile: float = 99.99

    def __post_init__(self) -> None:
        if not 50 < self.percentile <= 100:
            raise ValueError(f"percentile is in (50, 100], not {self.percentile}")

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        assert state.histogram is not None
        low, high, _, _, exponent, offset = state.range.tolist()
        cumulative = state.histogram.cumsum(0).double()
        tail = cumulative[-1] * (100 - self.percentile) / 200
        first = int(torch.searchsorted(cumulative, tail, right=True))
        last = int(torch.searchsorted(cumulative, cumulative[-1] - tail))
        width = 2.0**exponent
        return max(low, (offset + first) * width), min(high, (offset + last + 1) * width)
