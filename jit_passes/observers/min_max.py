"""The range of all values seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .observer import Observer


@dataclass(frozen=True)
class MinMax(Observer):
    """Quantize [min, max] of all values seen, per tensor or per channel: nothing is clipped."""

    name: ClassVar[str] = "min_max"
