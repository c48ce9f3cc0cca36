"""The range of all values seen, but for what lies beyond given ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from .observer import Observer, ObserverState


@dataclass(frozen=True)
class MinMaxWithin(Observer):
    """Quantize [max(min, low), min(max, high)] of all values seen, per tensor.

    For operands of functions that are flat beyond some point, as tanh is: see `FIXED_RANGES`.

    Attributes:
        low: nothing below is told apart; at most 0.
        high: nothing above is told apart; at least 0.
    """

    name: ClassVar[str] = "min_max_within"
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= 0 <= self.high < math.inf:
            raise ValueError(f"[{self.low}, {self.high}] is not a finite range around 0")

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high = float(state.range[0]), float(state.range[1])
        return min(max(low, self.low), self.high), max(min(high, self.high), self.low)
