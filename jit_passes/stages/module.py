"""What the stages ask of modules: checks of what came in, and the record of what was done."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError
from ..passes.subject import check_script, wrap

__all__ = [
    "OperatorRecord",
    "Report",
    "attribute_of",
    "check_module",
    "check_script",
    "stage_of",
    "wrap",
]

REPORT = "jit_passes_report"


@dataclass(frozen=True)
class OperatorRecord:
    """One operator of the float model with weights, or a product of matrices.

    Attributes:
        name: stable name, `layer1.0.conv1:conv2d`.
        kind: `conv2d`, `linear`, `lstm`, ...
        dtype: "int8" where it is quantized, with whatever bits, or "float".
        reason: why it is float; "" for int8.
        source: `file:line` of the model's code.
        bits: of its weight and its activations, as it was prepared: `w4a8`; `a8` for a product;
            `w8 only` where activations stay in float. "" in float, and in files of versions that
            did not note it.
    """

    name: str
    kind: str
    dtype: str
    reason: str
    source: str
    bits: str = ""

    @property
    def precision(self) -> str:
        """Bits where it is quantized and they are known, else the dtype."""
        return self.bits if self.dtype != "float" and self.bits else self.dtype


@dataclass(frozen=True)
class Report:
    """What the stages have done to a module; kept in the module itself, and in its file.

    Attributes:
        stage: prepared, qat, reference or lowered.
        method: the quantized method.
        target: the backend's record, see `Target.from_record`.
        operators: all operators with weights and all matrix products.
        calibrated: whether `calibrate` has run batches through it.
    """

    stage: str
    method: str
    target: dict[str, Any]
    operators: tuple[OperatorRecord, ...] = field(default=())
    calibrated: bool = False

    def write(self, module: Any) -> None:
        fields = {**vars(self), "operators": [vars(row) for row in self.operators]}
        _C.set_string_attribute(module, REPORT, json.dumps(fields))

    @classmethod
    def read(cls, module: torch.jit.ScriptModule) -> Report | None:
        """Return the record of a module, or None for one that no stage has seen."""
        text = getattr(module, REPORT, None)
        if not isinstance(text, str):
            return None
        fields = json.loads(text)
        fields["operators"] = tuple(OperatorRecord(**row) for row in fields["operators"])
        return cls(**fields)


def check_module(model: Any, method: str) -> None:
    """Check that the model is a ScriptModule in eval mode that has the method.

    Raises:
        JitPassesError: it is not; the message says what to do.
    """
    check_script(model, method)
    if getattr(model, "training", False):
        raise JitPassesError(
            "the module is in training mode, where batch norm and dropout do something else than "
            "in use: call model.eval() first"
        )


def stage_of(model: Any, wanted: str | tuple[str, ...], instead: str) -> Report:
    """Return the record of a module that must have reached a stage, or one of several.

    Raises:
        JitPassesError: it has not; `instead` says which function makes such a module.
    """
    report = Report.read(model) if isinstance(model, torch.jit.ScriptModule) else None
    stages = (wanted,) if isinstance(wanted, str) else wanted
    if report is None or report.stage not in stages:
        found = "a module that was not prepared" if report is None else f"a {report.stage} one"
        raise JitPassesError(f"a {' or '.join(stages)} module is needed, got {found}: {instead}")
    return report


def attribute_of(model: torch.jit.ScriptModule, path: str) -> torch.Tensor:
    """Return a tensor of the model by its path."""
    owner: Any = model
    for part in path.split("."):
        owner = getattr(owner, part)
    tensor: torch.Tensor = owner
    return tensor
