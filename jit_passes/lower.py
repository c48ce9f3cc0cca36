"""Stage 5: the reference model becomes a backend's own."""

from __future__ import annotations

from dataclasses import replace

import torch

from . import _C
from .graph import GraphView
from .module import stage_of, wrap
from .targets import Target, resolve_target


def lower(
    reference: torch.jit.ScriptModule, target: str | Target = "auto"
) -> torch.jit.ScriptModule:
    """Return the model with dequantize, operator, quantize fused into the backend's operators.

    Args:
        reference: the result of `convert`; it is not touched.
        target: the backend: "auto", a name, or a `Target`.

    Raises:
        JitPassesError: the model is not a reference model; the target is unknown.
    """
    report = stage_of(reference, "reference", "call jit_passes.convert(prepared) first")
    backend = resolve_target(target)
    module, left, _ = backend.lower(_C.clone(reference._c), report.method)
    still_float = {
        node.name
        for node in GraphView.of(module, report.method).nodes
        if node.kind.startswith("aten::") and node.name
    }
    operators = tuple(
        replace(row, dtype="float", reason=left.get(row.name, "not fused by the target"))
        if row.dtype == "int8" and row.name in still_float
        else row
        for row in report.operators
    )
    lowered = replace(report, stage="lowered", target=backend.name, operators=operators)
    lowered.write(module)
    return wrap(module)
