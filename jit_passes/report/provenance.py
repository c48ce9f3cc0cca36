"""Where a quantized model comes from: versions, target, mode, configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..stages.module import Report, quantized_part
from ..tables import html_table
from .coverage import Coverage, coverage


class Description(Coverage):
    """The origin of a model that a stage has seen, and its int8 operators; printing gives both.

    Attributes:
        made: see `provenance`.
    """

    made: dict[str, Any]

    @classmethod
    def of(cls, model: torch.jit.ScriptModule, method: str, made: dict[str, Any]) -> Description:
        """Describe a model by its provenance."""
        covered = coverage(model, method)
        found = cls(covered, covered.needs_package)
        found.made = made
        return found

    def __str__(self) -> str:
        return f"{described(self.made)}\n\n{super().__str__()}"

    def _repr_html_(self) -> str:
        rows = [(name, _shown(value)) for name, value in self.made.items()]
        return html_table(("made", ""), rows) + super()._repr_html_()


def described(made: dict[str, Any]) -> str:
    """Return a model's provenance as text, a line for each fact."""
    rows = []
    for name, value in made.items():
        text = _shown(value)
        rows.append(
            f"{name}:" + ("\n  " + text.replace("\n", "\n  ") if "\n" in text else f" {text}")
        )
    return "\n".join(rows)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        options = ", ".join(f"{name}={option}" for name, option in value["options"].items())
        value = f"{value['name']} ({options})" if options else value["name"]
    return str(value).rstrip()


def provenance(model: torch.jit.ScriptModule, method: str = "forward") -> dict[str, Any] | None:
    """Return the provenance of a model that a stage has made, also from a file; else None.

    There are no paths, names of machines or times in it, so the same input gives the same file.

    Args:
        model: at any stage.
        method: of a model with several quantized methods, which.

    Returns:
        The facts that apply: `stage` that the model has reached; `method`; `target`, its name,
        class and options; `quantizer`, its class; `mode` of all operators; `forms`, False where the
        target's own forms of operators were left out; `configuration`, as YAML; `batches`, the
        number of calibration batches, or `profile`, the digest of a profile; `calibration`, the
        methods that found ranges in them; `data`, where they were made up; `smooth`, the strength,
        and `smoothed`, the layer norms and the linears in front of residual sums; `equalize`, the
        kind of ranges, `equalized`, the number of layers, and `scaled`, the values that differ from
        the float model; `weight_rounding` and `bias_correction`, how; `improved`, the steps that
        `improve` tried, and the loss before and after each; `jit_passes` and `torch`, the versions
        that did the last stage.
    """
    report = Report.read(quantized_part(model, method))
    if report is None:
        return None
    reached = {"stage": str(report.stage), "method": report.method, "target": report.target}
    return {**reached, **report.made}


def note(model: torch.jit.ScriptModule, **facts: str | float) -> None:
    """Add to the model's provenance: its `data`, say."""
    report = Report.read(model)
    assert report is not None
    replace(report, made={**report.made, **facts}).write(model._c)
