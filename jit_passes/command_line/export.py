"""`jit-passes export`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import count_of
from ..export import FORMATS, Encoding, encodings_of, export_calibration
from ..export.encoding import KINDS
from . import options
from .files import check_output, load_model
from .outcome import show

EPILOG = """\b
Examples:
  jit-passes quantize model.pt --data calib.npz --target reference -o reference.pt
  jit-passes export reference.pt --format tensorrt -o calibration.cache
  jit-passes export reference.pt --format aimet -o model.encodings
"""


@click.command(short_help="Write scales for another engine.", epilog=EPILOG)
@options.MODEL
@click.option("--format", "form", type=click.Choice(list(FORMATS)), required=True,
              help="The engine that will read it.")  # fmt: skip
@click.option("--version", help="Version of the form, for those that have several.")
@click.option("-o", "--output", type=options.FILE, required=True, help="The file.")
@options.JSON
@options.common
def export(model: Path, form: str, version: str | None, output: Path, as_json: bool) -> None:
    """Write the scales of MODEL to a file with which another engine quantizes the float model.

    MODEL is calibrated, trained, or quantized for the target `reference`.
    """
    loaded = load_model(model)
    check_output(output, [model])
    chosen: dict[str, Any] = {} if version is None else {"version": version}
    if version is not None and "version" not in inspect.signature(FORMATS[form].write).parameters:
        raise click.UsageError(f"--version: the form {form} has one only")
    encodings = encodings_of(loaded)
    export_calibration(encodings, output, form, **chosen)
    counts = _counts(FORMATS[form].held(encodings, **chosen))
    text = f"{output}: {_told(counts)}"
    left = {kind: count - counts[kind] for kind, count in _counts(encodings.encodings).items()}
    if any(left.values()):
        text += f"; not in it: {_told(left)}, since {FORMATS[form].others}"
    show(text, {"output": str(output), "format": form, **counts}, as_json)


def _counts(encodings: Sequence[Encoding]) -> dict[str, int]:
    kinds = [encoding.kind for encoding in encodings]
    return {kind: kinds.count(kind) for kind in KINDS}


def _told(counts: dict[str, int]) -> str:
    return " and ".join(count_of(count, kind) for kind, count in counts.items() if count)
