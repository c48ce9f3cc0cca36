"""`jit-passes compare`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..errors import without_folders
from ..report import Comparison
from ..report import compare as run_compare
from ..tables import for_json
from . import options
from .files import load_model
from .outcome import Exit, failure, show

EPILOG = """\b
Examples:
  jit-passes compare model.pt int8.pt --data test.npz
  jit-passes compare model.pt int8.pt --data test.npz --min-sqnr 20 && deploy int8.pt
  jit-passes compare model.pt int8.pt --data test.npz --json | jq '.first.name'

Of a model for x86, whose regions are compiled, only results of regions can be seen. Quantize for
the target `reference` to look inside.
"""


@click.command(short_help="Compare a quantized model with the float one.", epilog=EPILOG)
@options.MODEL
@click.argument("quantized", type=options.FILE)
@options.DATA
@options.METHOD
@click.option("--jump", type=float, default=10.0, show_default=True, metavar="DB",
              help="By how much an operator's own error must stand out to be named.")  # fmt: skip
@click.option("--min-sqnr", type=float, metavar="DB",
              help="Exit with code 5 where the SQNR of an output is below this value.")  # fmt: skip
@options.JSON
@options.common
def compare(
    model: Path, quantized: Path, method: str, jump: float, min_sqnr: float | None,
    as_json: bool, progress: bool | None, **data: Any,
) -> int:  # fmt: skip
    """Compare QUANTIZED with the float MODEL that it was made from, value by value.

    For each value that both have, in the order of the graph: SQNR, its own without the errors that
    it inherits, cosine, the largest error in steps of the grid, and the share of clipped values.
    The first operator whose own error stands out is named with its line of source.
    """
    float_model, other = load_model(model), load_model(quantized)
    batches, method = options.data_to_compare(float_model, other, method, **data)
    found = run_compare(float_model, other, batches, jump=jump, progress=progress, method=method)
    show(without_folders(str(found)), _result(found), as_json)
    if min_sqnr is not None and found.sqnr < min_sqnr:
        failure(f"the SQNR of the output is {found.sqnr:.1f} dB, below {min_sqnr:g}")
        return Exit.BELOW
    return Exit.DONE


def _result(found: Comparison) -> dict[str, Any]:
    """Return it for JSON, which knows no infinity: null stands for no error."""
    rows = [{name: for_json(value) for name, value in asdict(row).items()} for row in found.rows]
    first = None if found.first is None else rows[found.rows.index(found.first)]
    return {
        "sqnr": for_json(found.sqnr),
        "first": first,
        "values": rows,
        "unmatched": list(found.unmatched),
    }
