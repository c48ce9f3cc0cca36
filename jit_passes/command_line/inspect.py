"""`jit-passes inspect`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..errors import without_folders
from ..report import Description
from ..report import inspect as run_inspect
from . import options
from .files import check_readable, load_model
from .outcome import show

EPILOG = """\b
Examples:
  jit-passes inspect model.pt                          which operators will be int8, and why
  jit-passes inspect model.pt --target stock --config layers.yaml
  jit-passes inspect model.pt --without-data           which will be int8 without data
  jit-passes inspect int8.pt                           the provenance, and which are int8
  jit-passes inspect int8.pt --json | jq .made.target
"""


@click.command(
    short_help="Say which operators will be int8, or how a file was made.", epilog=EPILOG
)
@options.MODEL
@options.TARGET
@options.CONFIG
@options.MODE
@options.METHOD
@click.option("--without-data", is_flag=True, help="As `quantize` does without --data.")
@click.option("--paths", is_flag=True, help="Show lines of source with their folders.")
@options.JSON
@options.common
def inspect(
    model: Path, target: str, config: Path | None, mode: str | None, method: str,
    without_data: bool, paths: bool, as_json: bool,
) -> None:  # fmt: skip
    """Say which operators of a float MODEL will be int8; of a quantized one, how it was made.

    No data are needed.
    """
    backend = options.target_of(target)
    check_readable(config)
    loaded = load_model(model)
    found = run_inspect(
        loaded, target="auto" if target == "auto" else backend, config=config, mode=mode,
        method=method, without_data=without_data,
    )  # fmt: skip
    result: dict[str, Any] = {"stage": "float"}
    if isinstance(found, Description):
        stage, needs_package = found.made["stage"], found.needs_package
        result = {"stage": stage, "made": found.made, "needs_package": needs_package}
    else:
        result |= {
            "target": backend.record(),
            "quantizes": found.quantizes,
            "dequantizes": found.dequantizes,
            "regions": [list(region) for region in found.regions],
        }
    result["operators"] = [asdict(row) for row in found]
    text = str(found)
    if not paths:
        text = without_folders(text)
        for row in result["operators"]:
            row["source"], row["reason"] = (without_folders(row[k]) for k in ("source", "reason"))
    show(text, result, as_json)
