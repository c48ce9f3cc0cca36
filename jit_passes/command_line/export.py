"""`jit-passes export`."""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch.utils._pytree import tree_map

from ..errors import JitPassesError, count_of, shortened, without_folders
from ..export import (
    FORMATS,
    Encoding,
    encodings_of,
    export_aoti,
    export_c,
    export_calibration,
    export_onnx,
    export_vectors,
    to_exported_program,
)
from ..export.c import KERNELS
from ..export.encoding import KINDS
from ..files import write_whole
from ..quantize import quantize_script
from ..report import Coverage, coverage
from ..stages.module import Report, part_of, quantized_part
from ..targets import Engine, Target
from . import options
from .files import check_output, load_model
from .outcome import show

MODELS = {  # and who reads them
    "pt2": "torch.export.load",
    "aoti": "AOTInductor",
    "onnx": "ONNX Runtime",
    "c": "C99",
    "vectors": "testbenches",
}
FOLDERS = ("c", "vectors")
VECTORS = 8  # samples that a program in C is tested with, at most
EPILOG = """\b
Examples:
  jit-passes quantize model.pt --data calib.npz --target reference -o reference.pt
  jit-passes export reference.pt --to tensorrt -o calibration.cache
  jit-passes export reference.pt --to aimet -o model.encodings
  jit-passes export model.pt --to pt2 --random 2x3x224x224 -o model.pt2
  jit-passes export model.pt --to aoti --engine inductor --data calib.npz -o model.pt2
  jit-passes export reference.pt --to onnx --data calib.npz -o model.onnx
  jit-passes export model.pt --to onnx --engine onnxruntime --data calib.npz -o int8.onnx
  jit-passes export fixed_point.pt --to c --data calib.npz -o folder
  jit-passes export fixed_point.pt --to vectors --data calib.npz -o folder
"""


@click.command(short_help="Write a model, or its scales, for another engine.", epilog=EPILOG)
@options.MODEL
@click.option("--to", "--format", "form", type=click.Choice([*FORMATS, *MODELS]), required=True,
              help="The engine that will read it; pt2 is a program of torch.export, aoti a package "
              "of AOTInductor.")  # fmt: skip
@click.option("--engine", type=options.TargetType(),
              help="Quantize MODEL first, as this engine computes: onnxruntime, openvino, "
              "inductor, tensorrt, xnnpack, qonnx or reference.")  # fmt: skip
@options.CONFIG
@options.MODE
@click.option("--version", help="Version of the form, where it has several.")
@click.option("--kernels", type=click.Choice(list(KERNELS)),
              help="With --to c: loops of its own, or calls of CMSIS-NN.")  # fmt: skip
@click.option("-o", "--output", type=options.FILE, required=True, help="The file.")
@options.METHOD
@options.DATA
@options.JSON
@options.common
def export(
    model: Path, form: str, engine: str | None, config: Path | None, mode: str | None,
    version: str | None, kernels: str | None, output: Path, method: str, as_json: bool,
    progress: bool | None, **data: Any,
) -> None:  # fmt: skip
    """Write MODEL, or its scales, to a file that another engine reads.

    Scales are for an engine that quantizes the float model: MODEL is calibrated, trained, or
    quantized for the target `reference`. --to pt2, --to aoti and --to onnx write the model itself,
    float or quantized for an engine or for the target `reference`. A file needs a batch; the number
    of samples is open if the batch has two or more. --to aoti compiles the model, with the C++
    compiler of this machine, for C++ programs without Python. --to c writes a model for the target
    `fixed_point` as a folder of C99, for one sample, with the first samples as test vectors. --to
    vectors writes operands and results of each operator for these samples, for testbenches of
    hardware.

    With --engine a float MODEL is quantized and written in one go.
    """
    if engine is None and (config is not None or mode is not None):
        raise click.UsageError("--config and --mode say how to quantize: give --engine too")
    if kernels is not None and form != "c":
        raise click.UsageError("--kernels is of programs in C: give --to c")
    if form in FOLDERS and engine is not None:
        raise click.UsageError(
            f"--engine: no engine reads --to {form}: quantize with --target fixed_point first, and "
            "export its file without --engine"
        )
    if form in FORMATS and engine is None and (data["data"] is not None or data["random"]):
        raise click.UsageError(
            f"--to {form} writes the scales that MODEL has: leave out --data and --random"
        )
    target = None if engine is None else _engine_of(engine)
    _check_version(form, version)
    if target is not None:
        kinds = target.reads if isinstance(target, Engine) else ()
        if kinds and form not in kinds:
            known = " or ".join(kinds)
            raise click.UsageError(f"--engine {target.name} reads files of --to {known}")
    loaded = load_model(model)
    if form not in FOLDERS:
        check_output(output, (model, config, data["data"]))
    batches = options.given_data(loaded, method, **data) if target or form in MODELS else None
    if form in MODELS and batches is None:
        raise click.UsageError(f"--to {form} records a call of the model: give --data or --random")
    told = ""
    result: dict[str, Any] = {"output": str(output), "format": form}
    if target is not None:
        options.warn_of_random(data["random"])
        given: dict[str, Any] = {"config": config, "mode": mode, "method": method}
        loaded, rows = _quantized(loaded, batches, target, progress, **given)
        told = without_folders(str(rows)).partition("\nto load its file")[0] + "\n"
        result["operators"] = [asdict(row) for row in rows]
    if batches is not None and form in MODELS:
        _export_model(loaded, output, form, version, method, batches, kernels)
        show(f"{told}{output}: the model, for {_reader_of(loaded, method, form)}", result, as_json)
        return
    text, counts = _export_scales(loaded, output, form, version)
    show(told + text, result | counts, as_json)


def _check_version(form: str, version: str | None) -> None:
    if version is None:
        return
    if form == "onnx" and not version.isdigit():
        raise click.UsageError(
            f"--version: the version of onnx is an opset, 21 for example, not {version!r}"
        )
    if form in MODELS and form != "onnx":
        raise click.UsageError(f"--version: {form} has one only; onnx has opsets, 21 for example")
    if form in FORMATS and "version" not in inspect.signature(FORMATS[form].write).parameters:
        raise click.UsageError(f"--version: the form {form} has one only")


def _export_scales(
    model: torch.jit.ScriptModule, output: Path, form: str, version: str | None
) -> tuple[str, dict[str, int]]:
    """Write scales; return a text about them, and how many the file has."""
    chosen: dict[str, Any] = {} if version is None else {"version": version}
    encodings = encodings_of(model)
    export_calibration(encodings, output, form, **chosen)
    counts = _counts(FORMATS[form].held(encodings, **chosen))
    text = f"{output}: {_told(counts)}"
    left = {kind: count - counts[kind] for kind, count in _counts(encodings.encodings).items()}
    if any(left.values()):
        text += f"; not in it: {_told(left)}, since {FORMATS[form].others}"
    return text, counts


def _engine_of(name: str) -> Target:
    """Return the target of an engine that reads files.

    Raises:
        UsageError: the named target computes in this package, or in PyTorch.
    """
    known = [name for name, kind in Target.named().items() if kind.is_reference]
    target = options.target_of(name, "--engine", known)
    if not target.is_reference:
        names = ", ".join(known)
        raise click.UsageError(f"--engine: '{target.name}' reads no files: one of {names}")
    return target


def _quantized(
    model: torch.jit.ScriptModule, batches: Any, target: Target, progress: bool | None,
    **given: Any,
) -> tuple[torch.jit.ScriptModule, Coverage]:  # fmt: skip
    """Return a model as an engine computes it, and its operators.

    Raises:
        JitPassesError: it is quantized for an engine already; or all operators are in float: the
            reasons are said once, not in warnings too.
    """
    report = Report.read(part_of(model, given["method"]))
    if report is not None and report.is_reference:
        raise JitPassesError(
            f"the model is quantized for {report.target['name']!r} already: start from the float "
            "model, or leave out --engine to write this one"
        )
    held: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as held:
            model = quantize_script(model, batches, target=target, progress=progress, **given)
        rows = coverage(model, given["method"])
        if all(row.dtype == "float" for row in rows):
            held.clear()
            reasons = shortened(list(dict.fromkeys(row.reason for row in rows)), 2)
            raise JitPassesError(f"nothing would be on integers in {target.name}: {reasons}")
    finally:
        for told in held:
            warnings.warn_explicit(told.message, told.category, told.filename, told.lineno)
    return model, rows


def _reader_of(model: torch.jit.ScriptModule, method: str, form: str) -> str:
    """Return who reads a file of ONNX: the engine that its model was quantized for."""
    report = Report.read(quantized_part(model, method))
    target = None if report is None else Target.named().get(report.target.get("name", ""))
    if form == "onnx" and target is not None and issubclass(target, Engine):
        return target.name
    return MODELS[form]


def _export_model(
    model: torch.jit.ScriptModule, output: Path, form: str, version: str | None, method: str,
    batches: Iterable[Any], kernels: str | None,
) -> None:  # fmt: skip
    batch = next(iter(batches))
    names = [argument.name for argument in getattr(model, method).schema.arguments[1:]]
    if isinstance(batch, dict) and list(batch) == names[: len(batch)]:
        batch = tuple(batch.values())  # a program is called as its example was
    given = batch if isinstance(batch, tuple | dict) else (batch,)
    if form in FOLDERS:
        samples = _samples(given)
        if form == "vectors":
            export_vectors(model, samples, output, method=method)
        else:
            own = {} if kernels is None else {"kernels": kernels}
            export_c(model, output, samples[0], samples[1:], method=method, **own)
        return
    shapes = tree_map(_open_samples, given)
    if form == "onnx":
        chosen: dict[str, Any] = {} if version is None else {"opset": int(version)}
        export_onnx(model, output, given, shapes, method=method, **chosen)
        return
    if form == "aoti":
        export_aoti(model, output, given, shapes, method=method)
        return
    buffer = io.BytesIO()
    torch.export.save(to_exported_program(model, given, shapes, method=method), buffer)
    write_whole(output, buffer.getbuffer())


def _samples(given: tuple[Any, ...] | dict[str, Any]) -> list[Any]:
    """Return the first samples of a batch, one a call; arguments without axes go with each."""
    values = given.values() if isinstance(given, dict) else given
    count = min([len(value) for value in values if _has_samples(value)], default=1)

    def sample(value: Any, i: int) -> Any:
        return value[i : i + 1] if _has_samples(value) else value

    return [tree_map(partial(sample, i=i), given) for i in range(min(count, VECTORS))]


def _has_samples(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _open_samples(value: Any) -> Any:
    """Return the open sizes of an argument: the first axis, if the model allows."""
    return {0: torch.export.Dim.AUTO} if _has_samples(value) else None


def _counts(encodings: Sequence[Encoding]) -> dict[str, int]:
    kinds = [encoding.kind for encoding in encodings]
    return {kind: kinds.count(kind) for kind in KINDS}


def _told(counts: dict[str, int]) -> str:
    return " and ".join(count_of(count, kind) for kind, count in counts.items() if count)
