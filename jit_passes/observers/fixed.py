"""A range that is known beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from .histogram_observer import HistogramObserver
from .observer import ObserverState


@dataclass(frozen=True)
class Fixed(HistogramObserver):
    """Quantize [low, high], whatever the values are.

    They are counted all the same: a value that is never computed is still reported, and another
    method can take over without a second look at the data.

    Attributes:
        low: lower end.
        high: upper end.
    """

    name: ClassVar[str] = "fixed"
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"[{self.low}, {self.high}] is not a finite range")
        super().__post_init__()

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        return self.low, self.high

    def find_channel_ranges(self, state: ObserverState) -> torch.Tensor:
        ends = torch.tensor([[self.low], [self.high]], dtype=torch.float64)
        return ends.expand_as(state.range)
