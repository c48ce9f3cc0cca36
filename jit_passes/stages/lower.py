"""Stage 5: the reference model becomes a backend's own."""

from __future__ import annotations

from dataclasses import replace

import torch

from .. import _C
from ..errors import JitPassesError
from ..passes.pipeline import wrap
from ..targets import Target, resolve_target
from .module import stage_of


def lower(
    reference: torch.jit.ScriptModule, target: str | Target = "auto"
) -> torch.jit.ScriptModule:
    """Return the model with dequantize, operator, quantize fused into the backend's operators.

    Args:
        reference: the result of `convert`; it is not touched.
        target: the backend; "auto" for the one that the model was prepared for, which decided
            what is quantized and how.

    Raises:
        JitPassesError: the model is not a reference model; the target is unknown, or another one
            than the model was prepared for.
    """
    report = stage_of(reference, "reference", "call jit_passes.convert(prepared) first")
    made_for = Target.from_record(report.target)
    backend = made_for if target == "auto" else resolve_target(target)
    if backend != made_for:
        raise JitPassesError(
            f"the model was prepared for {made_for!r}, not for {backend!r}: pass the same target "
            "to prepare and lower"
        )
    module, left, _ = backend.lower(_C.clone(reference._c, report.method), report.method)
    operators = tuple(
        replace(row, dtype="float", reason=left[row.name])
        if row.dtype == "int8" and row.name in left
        else row
        for row in report.operators
    )
    lowered = replace(report, stage="lowered", operators=operators)
    lowered.write(module)
    return wrap(module)
