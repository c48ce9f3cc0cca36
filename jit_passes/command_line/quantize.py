"""`jit-passes quantize`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch

from ..configuration.stages import AUTO, BIAS_CORRECTIONS, NONE, WEIGHT_ROUNDINGS
from ..errors import JitPassesError, without_folders
from ..in_order import OPTIONS
from ..quantize import quantize_script
from ..report import coverage, provenance
from ..report.compare import decibels
from ..report.provenance import note
from ..stages.batches import batches as arguments_of
from ..tuning.metric import sqnr_metric
from . import options
from .files import check_output, check_readable, load_model, save_model
from .outcome import show, warning

EPILOG = """\b
Examples:
  jit-passes quantize model.pt --data calib.npz -o int8.pt
  jit-passes quantize model.pt --data photos/ --image-size 224 \\
      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 -o int8.pt
  jit-passes quantize model.pt --profile model.yaml --config layers.yaml --strict -o int8.pt
  jit-passes quantize bert.pt --mode dynamic -o int8.pt
  jit-passes quantize bert.pt --data ids.npz --smooth 0.5 -o int8.pt
  jit-passes quantize mobilenet.pt --data calib.npz --equalize weights -o int8.pt
  jit-passes quantize bert.pt --random ids=1x128:int64 --target stock -o int8.pt

A hundred samples or so are enough. In an .npz, arrays have the names of the model's arguments, and
the first axis counts samples.
"""


@click.command(short_help="Quantize a model to int8.", epilog=EPILOG)
@options.MODEL
@options.DATA
@click.option("--profile", type=options.FILE, help="Ranges of `jit-passes profile`, for data.")
@options.TARGET
@options.CONFIG
@options.MODE
@click.option(
    "--smooth",
    type=options.Strength(),
    default="auto",
    show_default=True,
    help="For transformers: first move large channels into weights, where there are some (auto), "
    "nowhere (none), or everywhere, which needs data: by 0.5 say, or by the error of weights "
    "(search).",
)
@click.option(
    "--equalize",
    type=click.Choice(["auto", "activations", "weights"]),
    help="Scale the channels between layers to similar sizes, by ranges of activations, which "
    "needs data, or of weights; auto is the first with data, the second without.",
)
@click.option(
    "--weight-rounding",
    type=click.Choice([AUTO, NONE, *WEIGHT_ROUNDINGS]),
    default=AUTO,
    show_default=True,
    help="Choose the codes of weights by the error of each layer's result, which needs data; auto "
    "is gptq for layers of 1536 inputs or fewer, with four of the batches, if there are as many.",
)
@click.option(
    "--correct-bias",
    "bias_correction",
    type=click.Choice([AUTO, NONE, *BIAS_CORRECTIONS]),
    default=AUTO,
    show_default=True,
    help="Keep the means of layers' results by their biases: layer by layer (sequential), at once "
    "(fast), which need data, or by batch norms (statistics); auto is fast with four of the "
    "batches, if there are as many.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail where an operator with weights or a matrix product would stay in float without "
    "being asked to. A softmax or a norm may stay in float.",
)
@options.METHOD
@click.option("-o", "--output", type=options.FILE, required=True, help="The int8 model.")
@options.JSON
@options.common
def quantize(
    model: Path, profile: Path | None, target: str, config: Path | None, mode: str | None,
    smooth: str | float, equalize: str | None, weight_rounding: str,
    bias_correction: str, strict: bool, method: str, output: Path, as_json: bool,
    progress: bool | None, **data: Any,
) -> None:  # fmt: skip
    """Quantize MODEL to int8, and list the int8 operators, and why the others are float.

    The file is written as a whole or not at all, and never over an input.
    """
    if profile is not None and (data["data"] is not None or data["random"]):
        raise click.UsageError("--data, --random or --profile: one of them")
    backend = options.target_of(target)
    loaded = load_model(model)
    check_output(output, (model, profile, config, data["data"]))
    check_readable(profile, config)
    batches = options.given_data(loaded, method, **data)
    options.warn_of_random(data["random"])
    if smooth not in ("auto", "none") and batches is None:
        raise click.UsageError("--smooth needs --data or --random")
    if equalize == "activations" and batches is None:
        raise click.UsageError("--equalize activations needs --data or --random")
    try:
        quantized = quantize_script(
            loaded,
            batches,
            profile=profile,
            target=backend,
            config=config,
            mode=mode,
            smooth=None if smooth == "none" else smooth,
            equalize=equalize,
            weight_rounding=None if weight_rounding == NONE else weight_rounding,
            bias_correction=None if bias_correction == NONE else bias_correction,
            strict=strict,
            method=method,
            progress=progress,
        )
    except JitPassesError as error:
        if error.command == OPTIONS:
            raise click.UsageError(OPTIONS) from error
        raise
    if data["random"]:
        note(quantized, data="random " + " ".join(data["random"]))
    covered = coverage(quantized, method)
    cost = None if batches is None else cost_of(quantized, loaded, method, batches)
    save_model(quantized, output)
    before, after = model.stat().st_size, output.stat().st_size
    lines = [
        without_folders(str(covered)),
        f"{output}: {after / 1024:.0f} KiB, {after / before:.0%} of {model}",
    ]
    compare = ["jit-passes", "compare", str(model), str(output), *options.words_of(data)]
    known = "what it costs,"
    if cost is not None:
        known = f"SQNR of the output on the first batch: {decibels(cost)};"
    lines.append(f"{known} value by value: {shlex.join(compare)}")
    result = {
        "output": str(output),
        "bytes": after,
        "input_bytes": before,
        "made": provenance(quantized),
        "needs_package": covered.needs_package,
        "operators": [asdict(row) for row in covered],
    }
    if cost is not None:  # null stands for no error, as of `compare`
        result["sqnr"] = cost if math.isfinite(cost) else None
    show("\n".join(lines), result, as_json)


def cost_of(
    quantized: torch.jit.ScriptModule, model: torch.jit.ScriptModule, method: str,
    data: Iterable[Any],
) -> float | None:  # fmt: skip
    """Return the SQNR of the output on the first batch, in dB; None where it cannot be measured."""
    try:
        return sqnr_metric(model, method, {0: next(arguments_of(data, None))}).measure(quantized)
    except JitPassesError as error:
        warning(f"the cost of quantizing is not known: {error}")
        return None
