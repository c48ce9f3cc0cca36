"""The origin of a file, as text in its metadata: versions, and how its model was quantized."""

from __future__ import annotations

import json

import torch

from .._version import __version__
from ..stages.module import Report, part_of


def origin_of(model: torch.jit.ScriptModule, method: str) -> str:
    """Return the versions, and the provenance of a quantized model, as JSON."""
    report = Report.read(part_of(model, method))
    made = {"jit_passes": __version__, "torch": torch.__version__}
    return json.dumps(made | ({} if report is None else dict(report.made)))
