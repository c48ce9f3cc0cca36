"""`jit-passes profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..profile import profile as run_profile
from . import options
from .files import check_output, load_model
from .outcome import show

EPILOG = """\b
Examples:
  jit-passes profile model.pt --data calib.npz -o ranges.yaml
  jit-passes quantize model.pt --profile ranges.yaml -o int8.pt

The data may stay where they are: the file has ranges and histograms only, and can be edited.
"""


@click.command(short_help="Write ranges of all values to a file.", epilog=EPILOG)
@options.MODEL
@options.DATA
@click.option("--bins", type=click.IntRange(2, 1 << 20), default=2048, show_default=True,
              help="Bins of each histogram.")  # fmt: skip
@click.option("--weights", is_flag=True, help="Write down the constants too.")
@options.FORMS_OF
@options.METHOD
@click.option("-o", "--output", type=options.FILE, required=True, help="YAML.")
@options.JSON
@options.common
def profile(
    model: Path, bins: int, weights: bool, target: str | None, method: str, output: Path,
    as_json: bool, no_progress: bool, **data: Any,
) -> None:  # fmt: skip
    """Run data through MODEL, and write ranges and histograms of all its values to a file."""
    loaded = load_model(model)
    check_output(output, [model, *([data["data"]] if data["data"] is not None else [])])
    batches = options.given_data(loaded, method, **data)
    if batches is None:
        raise click.UsageError("ranges come from --data or --random")
    options.warn_of_random(data["random"])
    made = run_profile(
        loaded,
        batches,
        bins=bins,
        weights=weights,
        progress=False if no_progress else None,
        method=method,
        target=None if target is None else options.target_of(target),
    )
    made.save(output)
    result = {
        "output": str(output),
        "graph": made.graph,
        "weights": made.weights,
        "digest": made.digest,
        "values": {v.name: [v.low, v.high] if v.reached else None for v in made.values.values()},
    }
    show(str(made), result, as_json)
