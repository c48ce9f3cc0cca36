"""Observers: what watches a value during calibration and says what range to quantize."""

from __future__ import annotations

from typing import Any

from .entropy import Entropy
from .fixed import Fixed
from .histogram import Histogram
from .klj import KLJ
from .mean_squared_error import MeanSquaredError
from .min_max import MinMax
from .moving_average import MovingAverageMinMax
from .observer import Observer, ObserverState
from .pair_sums import PairSums
from .percentile import Percentile
from .three_sigma import ThreeSigma

__all__ = [
    "KLJ",
    "Entropy",
    "Fixed",
    "Histogram",
    "MeanSquaredError",
    "MinMax",
    "MovingAverageMinMax",
    "Observer",
    "ObserverState",
    "PairSums",
    "Percentile",
    "ThreeSigma",
    "observer_from_dict",
]

_KINDS: dict[str, type[Observer]] = {
    kind.__name__: kind
    for kind in (
        MinMax,
        MovingAverageMinMax,
        Histogram,
        PairSums,
        Percentile,
        MeanSquaredError,
        Entropy,
        KLJ,
        ThreeSigma,
        Fixed,
    )
}


def observer_from_dict(fields: dict[str, Any]) -> Observer:
    """Rebuild an observer from its class name under "kind" and its fields."""
    fields = dict(fields)
    return _KINDS[fields.pop("kind")](**fields)
