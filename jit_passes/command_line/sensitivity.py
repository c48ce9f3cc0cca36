"""`jit-passes sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import without_folders
from ..tuning import sensitivity as run_sensitivity
from . import options
from .files import check_readable, load_model
from .outcome import show
from .pools import pool_of

EPILOG = """\b
Examples:
  jit-passes sensitivity model.pt --data test.npz
  jit-passes sensitivity model.pt --data test.npz --layers 'layer4.*' --layers 'fc*'
  jit-passes sensitivity model.pt --data calib.npz --metric metrics.py:accuracy
  jit-passes sensitivity model.pt --data test.npz --resume scores.jsonl --json

A metric is a function of one model, def accuracy(model), which has its own labelled data.
"""


@click.command(short_help="Measure the cost of quantizing each layer.", epilog=EPILOG)
@options.MODEL
@options.DATA
@options.TARGET
@options.CONFIG
@options.MODE
@options.METHOD
@options.METRIC
@click.option("--layers", multiple=True, metavar="GLOB", help="Measure these only, by name.")
@options.RESUME
@options.WORKERS
@options.JSON
@options.common
def sensitivity(
    model: Path, target: str, config: Path | None, mode: str | None, method: str,
    metric: str | None, layers: tuple[str, ...], resume: Path | None, as_json: bool,
    progress: bool | None, workers: int, dask: str | None, **data: Any,
) -> None:  # fmt: skip
    """Quantize each layer of MODEL alone, and all layers but that one; measure both.

    Costly layers have a low number under "alone". Where all are quantized, leaving a layer in float
    is worth its "gain".
    """
    backend, measured = options.target_of(target), options.metric_of(metric)
    check_readable(config)
    loaded = load_model(model)
    batches = options.given_data(loaded, method, **data)
    if batches is None and metric is None:
        raise click.UsageError("give --data or --random, or a --metric")
    options.warn_of_random(data["random"])
    with options.resumable(resume), pool_of(workers, dask) as executor:
        found = run_sensitivity(
            loaded, batches, measured, layers=layers or None, target=backend, config=config,
            mode=mode, method=method, resume=resume, progress=progress,
            executor=executor,
        )  # fmt: skip
    show(without_folders(str(found)), found.to_dict(), as_json)
