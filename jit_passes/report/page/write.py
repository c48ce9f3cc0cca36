"""An HTML file about a quantized model."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...configuration.stages import AUTO, NONE
from ...errors import JitPassesError, without_folders
from ...files import check_writable, write_whole
from ...graph.view import GraphView, ValueView
from ...logs import timed
from ...passes.pipeline import CLEAN_UP, Pipeline
from ...profile import Profile
from ...profile.run import profile_of
from ...quantizers.rearranged import origin_of
from ...stages.annotate import FROZEN, formed
from ...stages.batches import batches, cloned
from ...stages.correct_bias import BATCHES
from ...stages.module import Report, converted_report, quantized_part
from ...targets import Target
from ..compare import ValueComparison, check_order, compare
from ..cost import file_size, latency_on
from ..coverage import Coverage, coverage
from ..inspection import computes
from ..macs import macs_of, share_of
from ..provenance import provenance
from .lanes import HEIGHT, WIDTH, drawn, regions_of

BINS = 64
LOST = -999.0  # decibels where nothing is left of the signal
FOLDER = Path(__file__).parent
TEMPLATE = "page.html"
CHARACTER = 7.3  # width in the font of the graphs, in pixels
# By the mode of an operator, "" for float: where it computes, as the style sheet has it. An
# operator whose weight alone is quantized computes in float.
SIDES = {"static": "int8", "dynamic": "dynamic", "weight_only": "float", "": "float"}
AS_WRITTEN = Pipeline("as_written", ("freeze", *CLEAN_UP))


@timed
def report(
    model: torch.jit.ScriptModule,
    quantized: torch.jit.ScriptModule,
    data: Iterable[Any],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    latency: bool = False,
    input_fn: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    method: str = "forward",
) -> None:
    """Write one HTML file about the effects of quantization, and where accuracy was lost.

    The page has the provenance of the model, sizes, operators in int8 or float with reasons and
    shares of multiply-accumulates, and the configuration. For each value, in the order of the
    graph, it has the error with its histogram and the range of its grid, also in a table to sort
    and filter. The float graph and the quantized graph, with regions on integers, stand side by
    side. The file needs no network and no other file. There are no paths, names of machines or
    times in it, so equal inputs give equal files, but for `latency`.

    Args:
        model: the float model that the other was made from; see `compare`. The call does not
            change it.
        quantized: a reference model, in which all values are seen, or a lowered one.
        data: batches, as for `calibrate`; they are kept until the file is written.
        path: of the file.
        title: of the page; "" for the name of the model's class.
        latency: whether to time calls of both models on the first batch, as the process is now; the
            page has their medians.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.
        method: of a quantized model with several quantized methods, which.

    Raises:
        JitPassesError: the errors of `compare`; or the package jinja2 is missing.
        JitPassesError: the file cannot be written; this is an OSError too.
    """
    check_writable(path)
    text = page(
        model, quantized, data, title=title, latency=latency, input_fn=input_fn, progress=progress,
        method=method,
    )  # fmt: skip
    write_whole(path, text)


def page(
    model: torch.jit.ScriptModule,
    quantized: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    title: str = "",
    latency: bool = False,
    input_fn: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    method: str = "forward",
) -> str:
    """Return the text of the file; see `report`."""
    try:
        import jinja2
    except ImportError as error:
        raise JitPassesError(
            "a page needs the package jinja2, of the extra `report`: pip install jinja2"
        ) from error
    check_order(model, quantized, method)
    whole, quantized = quantized, quantized_part(quantized, method)
    record = converted_report(quantized, "the second model")
    given = list(batches(data, input_fn))
    items = [kwargs or args for args, kwargs in given]
    compared = compare(model, quantized, map(cloned, items), progress=progress)
    target = Target.from_record(record.target)
    entered = FROZEN.enter(model, record.method)
    module, _ = formed(entered, record.method, target, record.made)
    graph = GraphView.of(module, record.method)
    before = GraphView.of(AS_WRITTEN.run(model._c, record.method).module, record.method)
    macs = macs_of(module, record.method, cloned(given[0]), model)
    profile = profile_of(
        module, record.method, map(cloned, items), BINS, progress=progress, origin=model,
        backend=target,
    )  # fmt: skip
    covered = coverage(quantized)
    made = provenance(quantized)
    assert made is not None
    facts = {
        "title": title or model.original_name,
        "made": made,
        "command": _command(made),
        "sizes": [file_size(model), file_size(whole)],
        "latency": None,
        "compared": compared,
        "covered": covered,
        "operators": _operators(covered, macs),
        "share": share_of(covered, macs),
        "graphs": [_drawing(before, {}), _drawing(graph, _modes(graph, record))],
        "line": (WIDTH, HEIGHT),
    }
    if latency:
        measure = latency_on(items[0], record.method)
        facts["latency"] = [1000 * measure(model), 1000 * measure(quantized)]
        facts["threads"] = torch.get_num_threads()
    facts["values"] = [_value(row, profile, record) for row in compared.rows]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "decibels": _decibels, "json": _json, "sizes": _sizes, "digits": _digits,
        "folders": without_folders,
    }  # fmt: skip
    return environment.get_template(TEMPLATE).render(facts)


def _command(made: dict[str, Any]) -> str:
    """Return the command that makes the same model of the same data."""
    words = ["jit-passes quantize model.pt --data DATA", f"--target {made['target']['name']}"]
    words += ["--config layers.yaml"] if "configuration" in made else []  # a mode is in it
    words += [f"--method {made['method']}"] if made["method"] != "forward" else []
    smoothed = made.get("smooth")
    words += [f"--smooth {smoothed}"] if smoothed is not None else []
    words += [f"--equalize {made['equalize']}"] if "equalize" in made else []
    by_default = NONE if made.get("batches", 0) >= BATCHES else AUTO  # fewer are not enough for it
    rounding = made.get("weight_rounding", by_default)
    words += [f"--weight-rounding {rounding}"] if rounding != AUTO else []
    correction = made.get("bias_correction", by_default)
    words += [f"--correct-bias {correction}"] if correction != AUTO else []
    return " ".join(words)


def _operators(covered: Coverage, macs: dict[str, int]) -> list[dict[str, Any]]:
    total = sum(macs.get(row.name, 0) for row in covered)
    return [
        {
            "name": row.name,
            "kind": row.kind,
            "precision": row.precision,
            "mode": row.mode,
            "reason": without_folders(row.explanation),
            "source": without_folders(row.source),
            "macs": macs.get(row.name, 0) / total if total else 0.0,
            "side": SIDES[row.mode if row.dtype == "int8" else ""],
        }
        for row in covered
    ]


def _value(row: ValueComparison, profile: Profile, record: Report) -> dict[str, Any]:
    """Return the page's data on a value: errors, grid, histogram."""
    found: dict[str, Any] = {
        "name": row.name, "kind": row.kind, "operator": row.operator,
        "source": without_folders(row.source), "sqnr": _number(row.sqnr),
        "own": _number(row.own_sqnr), "steps": row.steps, "clipped": row.clipped,
        "inherited": row.inherited, "height": _height(row.own_sqnr),
    }  # fmt: skip
    grid = next((value for value in record.values if value.label == row.name), None)
    if grid is not None:
        step, low, high = grid.ends(1 + (grid.axis or 0))
        found["grid"] = [float(low.min()), float(high.max()), float(step.max())]
        found["codes"] = [grid.low, grid.high]
    seen = profile.values.get(row.name if grid is None else grid.name)
    if seen is not None and seen.counts:
        width = 2.0**seen.exponent
        found["histogram"] = [seen.offset * width, width, list(seen.counts)]
        found["range"] = [seen.low, seen.high]
    return found


def _modes(graph: GraphView, record: Report) -> dict[str, str]:
    """Return the modes of the operators that are quantized, by name.

    Operators without weights are static if they read codes alone and give codes, behind a clip if
    there is one. A sum may read an operator's result before rounding: it is computed within that.
    """
    names = {value.name for value in record.values}
    values = [*graph.inputs, *(value for node in graph.nodes for value in node.outputs)]
    codes = {value.id: value for value in values if value.name in names}
    ends = {origin_of(value, ()).id for value in codes.values()}
    modes = {row.name: row.mode or "static" for row in record.operators if row.dtype == "int8"}

    def sees_codes(value: ValueView) -> bool:
        maker = value.producer
        alone = len(value.uses) == 1 and not value.is_result
        within = alone and maker is not None and modes.get(maker.name) == "static"
        return within or origin_of(value, codes).id in codes

    for node in graph.nodes:
        if node.name in modes or not computes(node):
            continue
        seen = [value for value in node.inputs if value.is_tensor and not value.is_constant]
        if all(map(sees_codes, seen)) and any(value.id in ends for value in node.outputs):
            modes[node.name] = "static"
    return modes


def _drawing(graph: GraphView, modes: Mapping[str, str]) -> dict[str, Any]:
    """Return the lines of the drawing: operators in program order, with their regions.

    Between operators of the mode dynamic numbers go in float, so they are in no region.
    """
    shown = [node for node in graph.nodes if computes(node)]
    drawing = drawn(graph.nodes, shown)
    inside = [modes.get(node.name) == "static" for node in shown]
    regions = regions_of(drawing.edges, inside)
    lines: list[dict[str, Any]] = [
        {"name": node.name, "kind": node.kind.rpartition("::")[2],
         "side": SIDES[modes.get(node.name, "")], "note": _note(modes.get(node.name, ""), region),
         "x": lane * WIDTH + WIDTH // 2, "y": k * HEIGHT + HEIGHT // 2}
        for k, (node, lane, region) in enumerate(zip(shown, drawing.lanes, regions, strict=True))
    ]  # fmt: skip
    kinds = {(True, True): "int8", (False, False): "float"}
    curves = [
        (path, kinds.get((inside[source], inside[reader]), "converted"))
        for path, (source, reader) in zip(drawing.curves, drawing.edges, strict=True)
    ]
    longest = max((len(line["name"] + line["note"]) for line in lines), default=0)
    return {
        "lines": lines, "curves": curves, "text": drawing.width + 6,
        "width": drawing.width + 12 + round(CHARACTER * longest),
        "height": len(shown) * HEIGHT, "regions": max(regions, default=0),
        "dynamic": any(line["side"] == "dynamic" for line in lines),
        "converted": any(kind == "converted" for _, kind in curves),
    }  # fmt: skip


def _note(mode: str, region: int) -> str:
    """Return the text behind an operator's name."""
    return f" · region {region}" if region else f" · {mode}" if mode else ""


def _height(sqnr: float) -> int:
    """Return the height of a bar in per cent: 0 from 60 dB on, 100 at 0 dB and below."""
    return round(100 - 100 * min(max(sqnr, 0.0), 60.0) / 60)


def _number(value: float) -> float | None:
    """Return decibels for JSON, which has no infinity: None for no error, -999 for no signal."""
    return None if value == math.inf else max(value, LOST)


def _decibels(value: float | None) -> str:
    if value is None or value == math.inf:
        return "no error"
    return f"{value:.1f} dB" if value > LOST else "-inf dB"


def _sizes(sizes: list[float]) -> str:
    unit, name = (2**20, "MiB") if max(sizes) >= 2**20 else (2**10, "KiB")
    before, after = (_digits(size / unit) for size in sizes)
    return f"{before} to {after} {name}"


def _digits(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def _json(value: Any) -> Any:
    """Return JSON that may stand in a script element."""
    import markupsafe

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(sign, code)
    return markupsafe.Markup(text)
