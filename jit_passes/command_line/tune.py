"""`jit-passes tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import without_folders
from ..tuning import ALTERNATIVES, OBJECTIVES
from ..tuning import tune as run_tune
from . import options
from .files import check_output, check_readable, load_model
from .outcome import show
from .pools import pool_of

EPILOG = """\b
Examples:
  jit-passes tune model.pt --data test.npz --budget 30 -o layers.yaml
  jit-passes tune model.pt --data calib.npz --metric metrics.py:accuracy --budget 0.005 \\
      -o layers.yaml
  jit-passes quantize model.pt --data calib.npz --config layers.yaml -o int8.pt

Use the same --target for both. With --resume scores.jsonl an interrupted run goes on.
"""


@click.command(short_help="Find the layers that need float, or other options.", epilog=EPILOG)
@options.MODEL
@options.DATA
@click.option("--budget", type=click.FloatRange(0), required=True, metavar="NUMBER",
              help="By how much --metric may be below the float model's; without it, the least "
              "SQNR of the output in dB.")  # fmt: skip
@options.METRIC
@click.option("--objective", type=click.Choice(OBJECTIVES), default="layers", show_default=True,
              help="Minimize changed layers, file size, or time of calls.")  # fmt: skip
@click.option("--float-only", is_flag=True, help="Try float alone, no bits, calibrations, modes.")
@options.TARGET
@options.CONFIG
@options.MODE
@options.METHOD
@options.RESUME
@options.WORKERS
@click.option("-o", "--output", type=options.FILE, help="The configuration; default: stdout.")
@options.JSON
@options.common
def tune(
    model: Path, budget: float, metric: str | None, objective: str, float_only: bool, target: str,
    config: Path | None, mode: str | None, method: str, resume: Path | None, output: Path | None,
    as_json: bool, progress: bool | None, workers: int, dask: str | None, **data: Any,
) -> None:  # fmt: skip
    """Find a configuration of MODEL with which the loss stays within the budget.

    The configuration is YAML for `jit-passes quantize --config`: the few layers that need other
    bits, another calibration or mode, or float. A layer has the measured loss without this change.
    """
    backend, measured = options.target_of(target), options.metric_of(metric)
    loaded = load_model(model)
    if output is not None:
        check_output(output, (model, config, data["data"], resume))
    check_readable(config)
    batches = options.given_data(loaded, method, **data)
    if batches is None and metric is None:
        raise click.UsageError("give --data or --random, or a --metric")
    options.warn_of_random(data["random"])
    with options.resumable(resume), pool_of(workers, dask) as executor:
        found = run_tune(
            loaded, batches, measured, budget=budget, objective=objective,
            alternatives=() if float_only else ALTERNATIVES,
            target=backend, config=config, mode=mode, method=method, resume=resume,
            progress=progress, executor=executor,
        )  # fmt: skip
    text = without_folders(str(found))
    if output is not None:
        found.save(output)
        text = f"{found.summary}\n{output}"
    show(text, found.to_dict(), as_json)
