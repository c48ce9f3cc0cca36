"""The origin of a file, as text in its metadata: versions, and how its model was quantized."""

from __future__ import annotations

import json

import torch

from .._version import __version__
from ..stages.module import Report, part_of


def origin_of(model: torch.jit.ScriptModule, method: str) -> str:
    """Return the versions, and the target and provenance of a quantized model, as JSON."""
    report = Report.read(part_of(model, method))
    made = {"jit_passes": __version__, "torch": torch.__version__}
    known = {} if report is None else {"target": report.target["name"], **report.made}
    return json.dumps(made | known)


def target_in(origin: str) -> str | None:
    """Return the name of the target in the text of `origin_of`; None where it names none."""
    try:
        made = json.loads(origin)
    except ValueError:
        return None
    name = made.get("target") if isinstance(made, dict) else None
    return name if isinstance(name, str) else None
