"""Observers: what watches a value during calibration and says what range to quantize."""

from __future__ import annotations

from typing import Any

from .histogram import Histogram
from .min_max import MinMax
from .moving_average import MovingAverageMinMax
from .observer import Observer, ObserverState
from .pair_sums import PairSums
from .percentile import Percentile

__all__ = [
    "Histogram",
    "MinMax",
    "MovingAverageMinMax",
    "Observer",
    "ObserverState",
    "PairSums",
    "Percentile",
    "observer_from_dict",
]

_KINDS: dict[str, type[Observer]] = {
    kind.__name__: kind for kind in (MinMax, MovingAverageMinMax, Histogram, PairSums, Percentile)
}


def observer_from_dict(fields: dict[str, Any]) -> Observer:
    """Rebuild an observer from its class name under "kind" and its fields."""
    fields = dict(fields)
    return _KINDS[fields.pop("kind")](**fields)
