"""Where a quantized model comes from: versions, target, mode, configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..stages.module import Report, quantized_part


def provenance(model: torch.jit.ScriptModule, method: str = "forward") -> dict[str, Any] | None:
    """Return what made a model that a stage has seen, from its file too; None for others.

    There are no paths, names of machines or times in it, so the same input gives the same file.

    Args:
        model: at any stage.
        method: of a model with several quantized methods, which.

    Returns:
        Of these, what applies: `stage` that the model has reached; `method`; `target`, its name,
        class and options; `quantizer`, its class; `mode` of all operators; `forms`, False where the
        target's own forms of operators were left out; `configuration`, as YAML; `batches` that it
        was calibrated with, or `profile`, the digest of the one in their place; `calibration`, the
        methods that found ranges in them; `data`, where they were made up; `smooth`, the strength,
        and `smoothed`, the layer norms; `jit_passes` and `torch`, the versions that did the last
        stage.
    """
    report = Report.read(quantized_part(model, method))
    if report is None:
        return None
    reached = {"stage": str(report.stage), "method": report.method, "target": report.target}
    return {**reached, **report.made}


def note(model: torch.jit.ScriptModule, **facts: str | float) -> None:
    """Write into the model what else made it: its `data`, or by how much it was smoothed."""
    report = Report.read(model)
    assert report is not None
    replace(report, made={**report.made, **facts}).write(model._c)
