"""`jit-passes improve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import aligned
from ..tuning import ALTERNATIVES
from ..tuning import improve as run_improve
from . import options
from .files import check_output, check_readable, load_model, save_model
from .outcome import show
from .pools import pool_of

EPILOG = """\b
Examples:
  jit-passes improve model.pt --data calib.npz -o int8.pt --recipe recipe.yaml
  jit-passes improve model.pt --data calib.npz --budget 20 --time 600 -o int8.pt
  jit-passes quantize model.pt --data calib.npz --config recipe.yaml -o int8.pt

Use the same --target for both. With --resume scores.jsonl an interrupted run goes on.
"""


@click.command(short_help="Quantize with the tools that lower the loss.", epilog=EPILOG)
@options.MODEL
@options.DATA
@options.METRIC
@click.option("--budget", type=click.FloatRange(0), metavar="NUMBER",
              help="Stop where --metric is at most so far below the float model's; without it, at "
              "this SQNR of the output in dB. Single layers may change too.")  # fmt: skip
@click.option("--time", type=click.FloatRange(0), metavar="SECONDS",
              help="Begin no step after that time.")  # fmt: skip
@click.option("--float-only", is_flag=True,
              help="For single layers, try float alone, no bits, calibrations, modes.")  # fmt: skip
@options.TARGET
@options.CONFIG
@options.MODE
@options.METHOD
@options.RESUME
@options.WORKERS
@click.option("--recipe", type=options.FILE, help="Write the recipe: YAML for --config.")
@click.option("-o", "--output", type=options.FILE, required=True, help="The int8 model.")
@options.JSON
@options.common
def improve(
    model: Path, metric: str | None, budget: float | None, time: float | None, float_only: bool,
    target: str, config: Path | None, mode: str | None, method: str, resume: Path | None,
    recipe: Path | None, output: Path, as_json: bool, progress: bool | None, workers: int,
    dask: str | None, **data: Any,
) -> None:  # fmt: skip
    """Quantize MODEL to int8 with less loss: by the tools that help it.

    Each tool is kept only where the loss falls on batches that are held back, every fourth one. The
    recipe makes this model in one go.
    """
    backend, measured = options.target_of(target), options.metric_of(metric)
    loaded = load_model(model)
    inputs = (model, config, data["data"], resume)
    check_output(output, inputs)
    if recipe is not None:
        check_output(recipe, (*inputs, output))
    check_readable(config)
    why = "give --data or --random, on which steps are tried"
    batches = options.needed_data(loaded, method, why, **data)
    options.warn_of_random(data["random"])
    with options.resumable(resume), pool_of(workers, dask) as executor:
        found = run_improve(
            loaded, batches, measured, budget=budget, time=time,
            alternatives=() if float_only else ALTERNATIVES,
            target=backend, config=config, mode=mode, method=method, resume=resume,
            progress=progress, executor=executor,
        )  # fmt: skip
    if recipe is not None:
        found.save(recipe)
    save_model(found.model, output)
    files = "\n".join(str(path) for path in (recipe, output) if path is not None)
    text = f"{aligned(found.table())}\n{found.summary}\n{files}"
    show(text, {"output": str(output), **found.to_dict()}, as_json)
