"""`jit-passes export`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click

from ..export import FORMATS, encodings_of, export_calibration
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
    if version is not None and "version" not in inspect.signature(FORMATS[form]).parameters:
        raise click.UsageError(f"--version: the form {form} has one only")
    encodings = encodings_of(loaded)
    export_calibration(encodings, output, form, **chosen)
    kinds = [encoding.kind for encoding in encodings.encodings]
    counts = {kind: kinds.count(kind) for kind in ("activation", "parameter")}
    text = f"{output}: {counts['activation']} activations and {counts['parameter']} parameters"
    show(text, {"output": str(output), "format": form, **counts}, as_json)
