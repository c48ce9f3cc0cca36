"""`jit-passes report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..files import write_whole
from ..report.page import page
from . import options
from .files import check_output, load_model
from .outcome import show

EPILOG = """\b
Examples:
  jit-passes report model.pt int8.pt --data test.npz -o report.html
  jit-passes quantize model.pt --data calib.npz --target reference -o reference.pt
  jit-passes report model.pt reference.pt --data test.npz -o report.html

The second way shows all values: of a model for x86, only results of compiled regions can be seen.
"""


@click.command(short_help="Write an HTML page about a quantized model.", epilog=EPILOG)
@options.MODEL
@click.argument("quantized", type=options.FILE)
@options.DATA
@options.METHOD
@click.option("--title", default="", help="Title; default: the name of the model's class.")
@click.option(
    "--latency",
    is_flag=True,
    help="Time calls of both models on the first batch; each page is different then.",
)
@click.option("-o", "--output", type=options.FILE, required=True, help="The page, .html.")
@options.JSON
@options.common
def report(
    model: Path, quantized: Path, method: str, title: str, latency: bool, output: Path,
    as_json: bool, progress: bool | None, **data: Any,
) -> None:  # fmt: skip
    """Show in one HTML file the effects of quantizing MODEL to QUANTIZED, and lost accuracy.

    The file needs no network. The page has the provenance, sizes, operators with reasons and shares
    of the work, errors with histograms, the graph before and after, and the configuration.
    """
    check_output(output, (model, quantized, data["data"]))
    float_model, other = load_model(model), load_model(quantized)
    batches, method = options.data_to_compare(float_model, other, method, **data)
    text = page(
        float_model, other, batches, title=title, latency=latency, progress=progress, method=method
    )
    write_whole(output, text)
    size = output.stat().st_size
    show(f"{output}: {size / 1024:.0f} KiB", {"output": str(output), "bytes": size}, as_json)
