"""`jit-passes check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import without_folders
from ..report import check_onnx
from ..report.conformance.check import ENGINES
from . import options
from .files import load_model
from .outcome import Exit, failure, show

EPILOG = """\b
Examples:
  jit-passes quantize model.pt --data calib.npz --target onnxruntime -o reference.pt
  jit-passes export reference.pt --to onnx --data calib.npz -o model.onnx
  jit-passes check model.onnx --against reference.pt --data test.npz
"""


@click.command(short_help="Compare an ONNX file with its reference model.", epilog=EPILOG)
@click.argument("file", type=options.FILE)
@click.option("--against", type=options.FILE, required=True,
              help="The reference model that the file was made from.")  # fmt: skip
@click.option("--engine", type=click.Choice(list(ENGINES)),
              help="Run FILE in this engine; the default follows the model's target.")  # fmt: skip
@options.DATA
@options.METHOD
@options.JSON
@options.common
def check(
    file: Path, against: Path, engine: str | None, method: str, as_json: bool,
    progress: bool | None, **data: Any,
) -> int:  # fmt: skip
    """Compare FILE in the engine that it is for with a reference model.

    ONNX Runtime shows codes, which are compared value by value. OpenVINO shows results, which are
    compared as floats: one on a grid may be a step apart, another one a hundredth of its largest
    number. Other engines are not run: ONNX Runtime computes their files as they are written.

    The command also counts the convolutions, linears and products on integers in the graph that
    runs. The exit code is 5 where a code differs, a result is too far off, or fewer operators are
    on integers than the model's report promises.
    """
    reference = load_model(against)
    batches, method = options.data_to_compare(reference, reference, method, **data)
    found = check_onnx(file, reference, batches, progress=progress, method=method, engine=engine)
    show(without_folders(str(found)), found.as_data(), as_json)
    if not found.kept:
        failure("fewer operators are on integers than promised")
        return Exit.BELOW
    if not found.equal:
        failure("results differ" if found.results else "codes differ")
        return Exit.BELOW
    return Exit.DONE
