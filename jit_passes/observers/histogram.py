"""The range whose quantization has the least squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .histogram_observer import HistogramObserver
from .observer import ObserverState


@dataclass(frozen=True)
class Histogram(HistogramObserver):
    """Quantize the range with the least mean squared error over a histogram of all values."""

    name: ClassVar[str] = "histogram"

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high, _, _, exponent, offset = state.range.tolist()
        search = torch.ops.jit_passes.search_range_l2.default
        found: tuple[float, float] = search(
            state.histogram, int(exponent), int(offset), low, high, quant_min, quant_max, symmetric
        )
        return found
