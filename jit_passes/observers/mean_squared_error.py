"""The range with the least squared error, by trying all of a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .histogram_observer import HistogramObserver
from .observer import ObserverState


@dataclass(frozen=True)
class MeanSquaredError(HistogramObserver):
    """Quantize the range of a grid with the least mean squared error over a histogram.

    [a / factors * low, b / factors * high]     a, b in 1 .. factors

    with a = b where the range is symmetric or one-sided. The error is the one that `Histogram`
    minimizes, from coarse to fine, one end after the other: that is finer and faster, this is
    certain to find the best of its grid.

    Attributes:
        factors: steps of the grid.
    """

    name: ClassVar[str] = "mean_squared_error"
    factors: int = 100

    def __post_init__(self) -> None:
        if self.factors < 1:
            raise ValueError(f"the search needs at least one factor, not {self.factors}")
        super().__post_init__()

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high, _, _, exponent, offset = state.range.tolist()
        bins = (state.histogram, int(exponent), int(offset), low, high)
        found: tuple[float, float] = torch.ops.jit_passes.search_range_exhaustive(
            *bins, quant_min, quant_max, symmetric, self.factors
        )
        return found
