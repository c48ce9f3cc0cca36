"""Observers: what watches a value during calibration and says what range to quantize."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any

from ..errors import nearest
from .entropy import Entropy
from .fixed import Fixed
from .histogram import Histogram
from .klj import KLJ
from .mean_squared_error import MeanSquaredError
from .min_max import MinMax
from .min_max_within import MinMaxWithin
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
    "MinMaxWithin",
    "MovingAverageMinMax",
    "Observer",
    "ObserverState",
    "PairSums",
    "Percentile",
    "ThreeSigma",
    "observer_from_dict",
    "observer_of",
    "parameters_of",
]

_KINDS: dict[str, type[Observer]] = {
    kind.__name__: kind
    for kind in (
        MinMax,
        MinMaxWithin,
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


_METHODS: dict[str, type[Observer]] = {
    "min_max": MinMax,
    "min_max_within": MinMaxWithin,
    "moving_average": MovingAverageMinMax,
    "histogram": Histogram,
    "pair_sums": PairSums,
    "percentile": Percentile,
    "mean_squared_error": MeanSquaredError,
    "entropy": Entropy,
    "klj": KLJ,
    "three_sigma": ThreeSigma,
    "fixed": Fixed,
}
_ALIASES = {"kl_j": "klj"}
_PARAMETER_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "str": ("text", (str,)),
}


def observer_of(method: str, /, **parameters: Any) -> Observer:
    """Return the observer of a calibration method, as configurations name it.

    Args:
        method: "min_max", "moving_average", "histogram", "pair_sums", "percentile",
            "mean_squared_error", "entropy", "klj" (also "kl_j"), "three_sigma" or "fixed".
        parameters: the attributes of its class; those left out have their defaults.

    Raises:
        ValueError: there is no such method or parameter, or the parameter is not one it can have.
    """
    kind = _METHODS.get(_ALIASES.get(method, method))
    if kind is None:
        raise ValueError(f"no calibration method '{method}': {nearest(method, _METHODS, 10)}")
    types = {field.name: str(field.type) for field in fields_of(kind)}
    for name, value in parameters.items():
        if name not in types:
            known = nearest(name, types) if types else "it has none"
            raise ValueError(f"{method} has no parameter '{name}': {known}")
        what, allowed = _PARAMETER_TYPES[types[name]]
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ValueError(f"{name} of {method} is {what}, not {value!r}")
    return kind(**parameters)


def parameters_of(observer: Observer) -> tuple[str, dict[str, Any]]:
    """Return what `observer_of` makes the observer from: method, and what differs from the default.

    Raises:
        ValueError: it is of a class of the caller's own, which has no name here.
    """
    for method, kind in _METHODS.items():
        if type(observer) is kind:
            values = {field.name: getattr(observer, field.name) for field in fields_of(kind)}
            defaults = {field.name: field.default for field in fields_of(kind)}
            return method, {name: v for name, v in values.items() if v != defaults[name]}
    raise ValueError(f"the observer {type(observer).__name__} has no name as a calibration method")
