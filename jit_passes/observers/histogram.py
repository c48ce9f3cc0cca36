"""The range whose quantization has the least squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .bins import check_bins
from .observer import Observer, ObserverState


@dataclass(frozen=True)
class Histogram(Observer):
    """Quantize the range with the least mean squared error over a histogram of all values.

    The bins' width is a power of two, so that the histogram depends neither on the order of the
    batches nor on how the data was split.

    Attributes:
        bins: number of bins.
    """

    op: ClassVar[str] = "observe_histogram"
    bins: int = 2048

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high, _, _, exponent, offset = state.range.tolist()
        search = torch.ops.jit_passes.search_range_l2.default
        found: tuple[float, float] = search(
            state.histogram, int(exponent), int(offset), low, high, quant_min, quant_max, symmetric
        )
        return found
