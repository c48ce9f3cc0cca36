"""Stage 5: the reference model becomes a backend's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .. import _C
from ..collector import paused
from ..errors import JitPassesError
from ..logs import timed
from ..passes.subject import wrap
from ..targets import Target, resolve_target
from .batches import MOMENT, progress_bar
from .module import ModelStage, Report, stage_of


@timed
def lower(
    reference: torch.jit.ScriptModule,
    target: str | Target = "auto",
    *,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Return the model with dequantize, operator, quantize fused into the backend's operators.

    Args:
        reference: the result of `convert`; it is not touched.
        target: the backend; "auto" for the target that the model was prepared for, which has chosen
            the quantized operators. A `Target` of a class of your own is taken too.
        progress: a progress bar, pass by pass, once it has taken a moment; None for one on
            terminals only.

    Raises:
        JitPassesError: the model is not a reference model; the target is unknown, or another one
            than the model was prepared for.
    """
    report = stage_of(reference, ModelStage.REFERENCE, "call jit_passes.convert(prepared) first")
    made_for = Target.from_record(report.target)
    backend = made_for if target == "auto" else resolve_target(target)
    if backend != made_for:
        raise JitPassesError(
            f"the model was prepared for {made_for!r}, not for {backend!r}: pass the same target "
            "to prepare and lower"
        )
    return lowered(_C.clone(reference._c, report.method), report, backend, progress)


@paused()
def lowered(
    module: Any, report: Report, backend: Target, progress: bool | None
) -> torch.jit.ScriptModule:
    """Lower a C++ module like `lower`; only the caller holds it: its integers are freed."""
    _C.restore_places(module, report.method, dict(report.places))  # which files do not have
    through = progress_bar("lower", progress, "pass", delay=MOMENT)
    result = backend.lowering().run(module, report.method, through=through)
    reasons: dict[str, str] = {}
    for remark in result.remarks:
        reasons.setdefault(remark.name, remark.reason)
    operators = tuple(
        row.in_float(f"not fused: {reasons[row.name]}")
        if row.dtype == "int8"
        and row.name in reasons
        and row.mode != "weight_only"
        and not row.already
        else row
        for row in report.operators
    )
    report = replace(report, stage=ModelStage.LOWERED, operators=operators)
    report.located(result.module).write(result.module)
    return wrap(result.module)
