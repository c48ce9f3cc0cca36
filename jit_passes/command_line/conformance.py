"""`jit-passes conformance`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import without_folders
from ..report import conformance as run_conformance
from ..report.conformance.engines import ENGINES
from ..report.conformance.run import DEFAULT
from . import options
from .files import load_model
from .outcome import Exit, failure, show
from .pools import pool_of

EPILOG = """\b
Examples:
  jit-passes quantize model.pt --data calib.npz --target reference -o reference.pt
  jit-passes conformance reference.pt --data test.npz
  jit-passes conformance reference.pt --data test.npz --engines c,onnxruntime --json
"""


@click.command(short_help="Compare the codes of engines.", epilog=EPILOG)
@options.MODEL
@options.DATA
@options.METHOD
@click.option("--engines", default=",".join(DEFAULT), show_default=True, metavar="NAMES",
              help=f"Separated by commas: {', '.join(ENGINES)}.")  # fmt: skip
@options.WORKERS
@options.JSON
@options.common
def conformance(
    model: Path, method: str, engines: str, workers: int, dask: str | None, as_json: bool,
    progress: bool | None, **data: Any,
) -> int:  # fmt: skip
    """Compare codes of a reference MODEL with the codes of engines, value by value.

    The first code at which an engine parts is named with operator, line of source, both codes, the
    sum before rounding, and whether it is a tie. The exit code is 5 where a code differs.
    """
    reference = load_model(model)
    batches, method = options.data_to_compare(reference, reference, method, **data)
    names = [name.strip() for name in engines.split(",") if name.strip()]
    with pool_of(workers, dask) as executor:
        found = run_conformance(
            reference, batches, names, progress=progress, method=method, executor=executor
        )
    show(without_folders(str(found)), found.as_data(), as_json)
    if not found.equal:
        failure("codes differ")
        return Exit.BELOW
    return Exit.DONE
