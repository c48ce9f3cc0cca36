"""Ranges that follow from the least and the largest values seen, or are known beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..errors import ArgumentError
from .observer import HistogramObserver, Observer, ObserverState


@dataclass(frozen=True)
class MinMax(Observer):
    """Quantize [min, max] of all values seen, per tensor or per channel: nothing is clipped."""

    name: ClassVar[str] = "min_max"


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
            raise ArgumentError(f"[{self.low}, {self.high}] is not a finite range around 0")

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high = float(state.range[0]), float(state.range[1])
        return min(max(low, self.low), self.high), max(min(high, self.high), self.low)


@dataclass(frozen=True)
class MovingAverageMinMax(Observer):
    """Quantize a moving average of the batches' ranges.

    range = range + averaging_constant * (range of the batch - range), starting at the first
    batch's. Depends on the order of the batches.

    Attributes:
        averaging_constant: weight of the newest batch, in (0, 1].
    """

    name: ClassVar[str] = "moving_average"
    op: ClassVar[str] = "observe_moving_average"
    averaging_constant: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.averaging_constant <= 1:
            raise ArgumentError(f"averaging_constant is in (0, 1], not {self.averaging_constant}")


@dataclass(frozen=True)
class PairSums(Observer):
    """Quantize weights so that sums of neighbouring products stay within int16.

    A kernel that multiplies uint8 activations by int8 weights with `vpmaddubsw` adds products
    2k and 2k + 1 of a channel in int16. With activations up to 255, |w[2k] + w[2k + 1]| <= 128 in
    steps keeps the sum within 32767. The range of a channel is therefore the larger of its values
    and of its pairs' sums. So a channel loses no more of its 8 bits than its weights need, and one
    bit at most.
    """

    name: ClassVar[str] = "pair_sums"
    per_channel_op: ClassVar[str] = "observe_pair_sums"


@dataclass(frozen=True)
class Fixed(HistogramObserver):
    """Quantize [low, high], independent of the values.

    Values are counted nevertheless: so a value that is never computed is reported, and another
    method can take over without a second look at the data.

    Attributes:
        low: lower end.
        high: upper end.
    """

    name: ClassVar[str] = "fixed"
    low: float = -1.0
    high: float = 1.0
    headroom: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf:
            raise ArgumentError(f"[{self.low}, {self.high}] is not a finite range")
        super().__post_init__()

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        return self.low, self.high

    def find_channel_ranges(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> torch.Tensor:
        ends = torch.tensor([[self.low], [self.high]], dtype=torch.float64)
        return ends.expand_as(state.range)
