"""Methods of training with quantization: the operator in the graph, and its final parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import JitPassesError
from ..specification.parameters import QParams
from ..specification.qparams import fixed_qparams
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    ResolvedSpec,
)
from .fake_quantizer import FakeQuantizer
from .lsq import LSQ
from .lsq_plus import LSQPlus
from .moving_average import MovingAverage, measured_qparams
from .place import Operator, State, TrainingPlace
from .tqt import TQT

__all__ = [
    "LSQ",
    "TQT",
    "FakeQuantizer",
    "LSQPlus",
    "MovingAverage",
    "Operator",
    "State",
    "TrainingPlace",
    "fake_quantizer_of",
    "methods",
    "trained_qparams",
]


def methods() -> dict[str, type[FakeQuantizer]]:
    """Return the training methods by name: the package's own, and methods of other packages."""
    return FakeQuantizer.named()


def fake_quantizer_of(method: str | FakeQuantizer) -> FakeQuantizer:
    """Return a method by its name.

    Args:
        method: one of `methods`, "lsq" say, or an alias; or a method, which is returned as it is.

    Raises:
        JitPassesError: there is none of that name.
    """
    return method if isinstance(method, FakeQuantizer) else FakeQuantizer.make(method)


def trained_qparams(
    kind: str,
    operands: Mapping[str, Any],
    spec: ResolvedSpec,
    method: Mapping[str, Any] | None = None,
) -> QParams | None:
    """Return the parameters of a place that has trained.

    None where no batch came by, or they are derived, or chosen as the model runs.

    Args:
        kind: the operator there, in the namespace jit_passes.
        operands: by their names in its schema.
        spec: the specification of the value.
        method: the record of the method that put the operator there.

    Raises:
        JitPassesError: this process does not have the method's class, or no method is recorded.
    """
    if isinstance(spec, GroupDerivation) or getattr(spec, "is_dynamic", False):
        return None
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return fixed_qparams(spec)
    if kind == "derive_quantization":  # a bias, which a batch norm has become part of
        return measured_qparams(operands["x"], spec)
    if method is None:
        raise JitPassesError(
            f"the operator {kind} at '{operands['name']}' does not say which method trained it: a "
            "FakeQuantizer gives it `place.text` as its operand `spec`; a model that was saved by "
            "an earlier version has to be prepared anew"
        )
    return FakeQuantizer.from_record(method).qparams(kind, operands, spec)
