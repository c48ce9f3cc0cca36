"""`jit-passes inspect`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch

from ..errors import without_folders
from ..report import coverage, provenance
from ..report import inspect as predict
from . import options
from .files import check_readable, load_model
from .outcome import show

EPILOG = """\b
Examples:
  jit-passes inspect model.pt                          what will be int8, and why not the rest
  jit-passes inspect model.pt --target stock --config layers.yaml
  jit-passes inspect model.pt --without-data           what needs no data
  jit-passes inspect int8.pt                           what made the file, and what is int8
  jit-passes inspect int8.pt --json | jq .made.target
"""


@click.command(short_help="Say what will be int8, or what made a file.", epilog=EPILOG)
@options.MODEL
@options.TARGET
@options.CONFIG
@options.MODE
@options.METHOD
@click.option("--without-data", is_flag=True, help="What `quantize` does without --data.")
@click.option("--paths", is_flag=True, help="Show lines of source with their folders.")
@options.JSON
@options.common
def inspect(
    model: Path, target: str, config: Path | None, mode: str | None, method: str,
    without_data: bool, paths: bool, as_json: bool,
) -> None:  # fmt: skip
    """Say what will be int8 in a float MODEL; of a quantized one, what made it.

    No data are needed.
    """
    backend = options.target_of(target)
    if config is not None:
        check_readable(config)
    loaded = load_model(model)
    made = provenance(loaded, method)
    if made is None:
        found = predict(
            loaded, target=backend, config=config, mode=mode, method=method,
            without_data=without_data,
        )  # fmt: skip
        text = str(found)
        result: dict[str, Any] = {
            "stage": "float",
            "target": backend.record(),
            "quantizes": found.quantizes,
            "dequantizes": found.dequantizes,
            "regions": [list(region) for region in found.regions],
            "operators": [asdict(row) for row in found],
        }
    else:
        text, result = _describe(loaded, method, made)
    if not paths:
        text = without_folders(text)
        for row in result["operators"]:
            row["source"], row["reason"] = (without_folders(row[k]) for k in ("source", "reason"))
    show(text, result, as_json)


def _describe(
    loaded: torch.jit.ScriptModule, method: str, made: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    covered = coverage(loaded, method=method)
    result = {
        "stage": made["stage"],
        "made": made,
        "needs_package": covered.needs_package,
        "operators": [asdict(row) for row in covered],
    }
    return f"{describe(made)}\n\n{covered}", result


def describe(made: dict[str, Any]) -> str:
    """Return what made a model, a line for each thing."""
    rows = []
    for name, value in made.items():
        if isinstance(value, dict):
            options_ = ", ".join(f"{k}={v}" for k, v in value["options"].items())
            value = f"{value['name']} ({options_})" if options_ else value["name"]
        text = str(value).rstrip()
        rows.append(
            f"{name}:" + ("\n  " + text.replace("\n", "\n  ") if "\n" in text else f" {text}")
        )
    return "\n".join(rows)
