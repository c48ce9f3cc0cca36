"""A moving average of each batch's range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .observer import Observer


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
            raise ValueError(f"averaging_constant is in (0, 1], not {self.averaging_constant}")
