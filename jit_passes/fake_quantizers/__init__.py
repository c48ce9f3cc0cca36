"""Ways to train with quantization: what stands in the graph, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import JitPassesError, nearest
from ..specification.qparams import QParams, fixed_qparams
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    ResolvedSpec,
)
from .fake_quantizer import FakeQuantizer
from .lsq import LSQ
from .lsq_plus import LSQPlus
from .moving_average import MovingAverage, measured_qparams
from .place import Operator, Place, State
from .tqt import TQT

__all__ = [
    "LSQ",
    "TQT",
    "FakeQuantizer",
    "LSQPlus",
    "MovingAverage",
    "Operator",
    "Place",
    "State",
    "fake_quantizer_of",
    "trained_qparams",
]

_METHODS: dict[str, type[FakeQuantizer]] = {
    "moving_average": MovingAverage,
    "lsq": LSQ,
    "lsq_plus": LSQPlus,
    "tqt": TQT,
}
_ALIASES = {"ste": "moving_average", "lsq+": "lsq_plus"}
_BY_KIND = {kind: method for method in _METHODS.values() for kind in method.kinds}


def fake_quantizer_of(method: str | FakeQuantizer) -> FakeQuantizer:
    """Return a method by its name.

    Args:
        method: "moving_average" (also "ste"), "lsq", "lsq_plus" (also "lsq+") or "tqt"; or a
            method, which is returned as it is.

    Raises:
        JitPassesError: there is none of that name.
    """
    if isinstance(method, FakeQuantizer):
        return method
    kind = _METHODS.get(_ALIASES.get(method, method)) if isinstance(method, str) else None
    if kind is None:
        raise JitPassesError(
            f"no training method {method!r}: {nearest(str(method), (*_METHODS, *_ALIASES))}"
        )
    return kind()


def trained_qparams(kind: str, operands: Mapping[str, Any], spec: ResolvedSpec) -> QParams | None:
    """Return the parameters of a place that has trained; None where no batch came by, or derived.

    Args:
        kind: the operator there, in the namespace jit_passes.
        operands: by their names in its schema.
        spec: the specification of the value.
    """
    if isinstance(spec, GroupDerivation):
        return None
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return fixed_qparams(spec)
    if kind == "derive_quantization":  # a bias, which a batch norm has become part of
        return measured_qparams(operands["x"], spec)
    return _BY_KIND[kind].qparams(kind, operands, spec)
