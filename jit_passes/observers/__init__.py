"""Observers: each watches a value during calibration and finds the range to quantize."""

from __future__ import annotations

from typing import Any

from .entropy import KLJ, Entropy
from .functions import FunctionError
from .histogram import Histogram, MeanSquaredError, OutputError, Percentile, ThreeSigma
from .observer import HistogramObserver, Observer, ObserverState
from .ranges import Fixed, MinMax, MinMaxWithin, MovingAverageMinMax, PairSums

__all__ = [
    "KLJ",
    "Entropy",
    "Fixed",
    "FunctionError",
    "Histogram",
    "HistogramObserver",
    "MeanSquaredError",
    "MinMax",
    "MinMaxWithin",
    "MovingAverageMinMax",
    "Observer",
    "ObserverState",
    "OutputError",
    "PairSums",
    "Percentile",
    "ThreeSigma",
    "methods",
    "observer_of",
    "parameters_of",
]


def methods() -> dict[str, type[Observer]]:
    """Return the calibration methods by name: the package's own, and methods of other packages."""
    return Observer.named()


def observer_of(method: str, /, **parameters: Any) -> Observer:
    """Return the observer of a calibration method, as configurations name it.

    Args:
        method: one of `methods`, "entropy" say, or an alias.
        parameters: the attributes of its class; missing ones have their defaults.

    Raises:
        JitPassesError: the method or a parameter is unknown, or a value does not fit.
    """
    return Observer.make(method, **parameters)


def parameters_of(observer: Observer) -> tuple[str, dict[str, Any]]:
    """Return the arguments of `observer_of` for it: the method, and all but default parameters."""
    defaults = observer.defaults()
    return observer.name, {name: v for name, v in observer.options.items() if v != defaults[name]}
