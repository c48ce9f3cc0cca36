"""A quantized model beside the float model that it was made from, value by value."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import JitPassesError, UnknownNameError, aligned, count_of, nearest, shortened
from ..graph.editor import GraphEditor
from ..graph.view import GraphView, NodeView
from ..logs import timed
from ..passes.pipeline import Pipeline
from ..stages.annotate import FROZEN, formed
from ..stages.batches import batches, progress_bar
from ..stages.module import (
    CONVERTED,
    Report,
    by_position,
    converted_report,
    part_of,
    quantized_part,
)
from ..stages.recording import copy_of
from ..stages.values import EDGE, QuantizedValue
from ..tables import html_table
from ..targets import Target
from .lockstep import Lockstep, Pair, Seen, check_shapes
from .places import Site, sites_of
from .tally import Tally, pieces

HEAD = ("value", "kind", "SQNR dB", "own dB", "cosine", "steps", "clipped", "")


@dataclass(frozen=True)
class ValueComparison:
    """The difference between a value of the quantized model and of the float model.

    With x of the float model and y of the quantized one, sums over all elements of all batches:

        SQNR = 10 log10(sum x^2 / sum (x - y)^2) dB
        cosine = sum x y / sqrt(sum x^2 sum y^2)

    Elements that are infinite or NaN in the float model are left out.

    Attributes:
        name: of the value in the float model's canonical graph, `layer1.0.conv1:conv2d`, as
            `Encoding` has it; `output`, `output.1`.
        kind: "quantized"; "float" for the result of an operator that is not quantized; "output".
        operator: the kind of its operator, `aten::conv2d`; "" for inputs and outputs of the model.
        source: `file:line` of the model's code.
        elements: how many were compared.
        sqnr: in dB; inf where nothing differs.
        cosine: 1 where the directions are equal.
        steps: the largest difference in steps of the value's grid; None without a grid.
        difference: the largest difference.
        clipped: the share of the float model's elements beyond the ends of the grid; None without.
        own_sqnr, own_steps: `sqnr` and `steps` of a run in which all compared values before it come
            from the float model, on their grids. Only these errors are left: of the operators since
            then, of rounding their operands, and of rounding this value.
    """

    name: str
    kind: str
    operator: str
    source: str
    elements: int
    sqnr: float
    cosine: float
    steps: float | None
    difference: float
    clipped: float | None
    own_sqnr: float
    own_steps: float | None

    @property
    def inherited(self) -> bool:
        """Whether most of its error, by power, came with values before it."""
        return self.sqnr < self.own_sqnr - 10 * math.log10(2)


@dataclass(frozen=True)
class Comparison:
    """How a quantized model differs from the float model; printing it gives a table.

    Attributes:
        rows: the values that both have, in program order of the float model, then the outputs.
        unmatched: names of values that could not be compared, or were never computed: quantized
            values, and results of operators with dynamic inputs or with quantized weights alone.
        jump: by how many dB the own error of an operator must stand out to be `first`.
    """

    rows: tuple[ValueComparison, ...]
    unmatched: tuple[str, ...] = ()
    jump: float = 10.0

    @property
    def typical(self) -> float:
        """The median of the values' own SQNR, in dB; inf where hardly any differs."""
        own = [row.own_sqnr for row in self.rows if row.kind != "output"]
        return statistics.median_high(own) if own else math.inf

    @property
    def first(self) -> ValueComparison | None:
        """The first value whose own SQNR is `jump` or more below the typical one; None without."""
        bound = self.typical - self.jump
        if math.isinf(bound):
            return None
        return next((r for r in self.rows if r.kind != "output" and r.own_sqnr <= bound), None)

    @property
    def worst(self) -> tuple[ValueComparison, ...]:
        """The values by their own SQNR, the lowest first; outputs are left out."""
        rows = (row for row in self.rows if row.kind != "output")
        return tuple(sorted(rows, key=lambda row: row.own_sqnr))

    @property
    def sqnr(self) -> float:
        """The lowest SQNR of an output, in dB."""
        return min((r.sqnr for r in self.rows if r.kind == "output"), default=math.inf)

    def __getitem__(self, name: str) -> ValueComparison:
        """Return the first row of that name.

        Raises:
            JitPassesError: there is none; this is a KeyError too.
        """
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        raise UnknownNameError(f"no value {name!r} was compared: {nearest(str(name), names)}")

    @property
    def summary(self) -> str:
        """The result, in two lines."""
        typical = decibels(self.typical)
        output = f"SQNR of the output: {decibels(self.sqnr)}"
        first = self.first
        if first is None and self.typical == math.inf:
            return output
        if first is None:
            return f"{output}\nno operator stands out: typical own errors are {typical}"
        where = " of ".join(filter(None, (first.operator, first.source)))
        cut = f", {first.clipped:.2%} clipped" if first.clipped else ""
        return (
            f"{output}\nfirst to stand out: {first.name}{f' ({where})' if where else ''} with "
            f"{decibels(first.own_sqnr)}, where {typical} are typical{cut}"
        )

    @property
    def missing(self) -> str:
        """How many values were not compared, in a line; "" for none."""
        if not self.unmatched:
            return ""
        count = count_of(len(self.unmatched), "value")
        return (
            "not compared, because the target computes them together with others or in a form of "
            "its own, or no data reach them: "
            f"{count} ({shortened(self.unmatched)}); the target reference computes each by itself"
        )

    def __str__(self) -> str:
        table = aligned([HEAD, *map(_cells, self.rows)])
        return "\n".join(filter(None, (table, self.missing, self.summary)))

    def _repr_html_(self) -> str:
        return html_table(HEAD, map(_cells, self.rows), self.summary, self.missing)


@timed
def compare(
    float_model: torch.jit.ScriptModule,
    quantized: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    input_fn: Callable[[Any], Any] | None = None,
    jump: float = 10.0,
    progress: bool | None = None,
    method: str = "forward",
) -> Comparison:
    """Compare a quantized model with the float model, value by value, in one pass over the data.

    The quantized model runs twice. In the second run the value of the float model, on the grid,
    replaces each compared value as soon as it is computed. A difference in the second run is a
    value's own error; the rest is inherited. Sums are kept, values are forgotten after each batch.

    Compared are all values that `convert` has quantized, results of operators that stay in float,
    and the outputs. A region that a target compiles as a whole shows its results alone: to look
    inside, quantize for the target "reference".

    Args:
        float_model: the model that the other was made from, in eval mode; for one that has trained,
            `strip(qat)[0]`, which has its weights. The model does not change.
        quantized: a reference model or a lowered one, also from a file; it is not touched.
        data: batches, as for `calibrate`.
        input_fn: makes a batch of inputs out of an item of `data`.
        jump: by how many dB the own error of an operator must stand out from the typical one to be
            `Comparison.first`.
        progress: a progress bar; None for one on terminals only.
        method: of a quantized model with several quantized methods, which.

    Raises:
        JitPassesError: the first is no float model, the second is not converted, or no value in
            one is in the other; there is no batch.
    """
    check_order(float_model, quantized, method)
    quantized = quantized_part(quantized, method)
    report = converted_report(quantized, "the second model")
    comparison = _Comparison(float_model, quantized, report)
    for arguments in batches(data, input_fn, progress_bar("compare", progress)):
        comparison.add(arguments)
    return comparison.result(jump)


def check_order(float_model: Any, quantized: Any, method: str) -> None:
    """Check that the first of two models is the float one.

    Raises:
        JitPassesError: it is converted.
    """
    first, second = (Report.read(part_of(model, method)) for model in (float_model, quantized))
    if first is not None and first.stage in CONVERTED:
        found = "and the second one in float" if second is None else "as the second one is"
        raise JitPassesError(
            f"the first model is {first.stage} already, {found}: pass the float model first, then "
            "the quantized one"
        )


@dataclass
class _Row:
    name: str
    kind: str
    operator: str = ""
    source: str = ""
    grid: QuantizedValue | None = None
    elements: int = 0
    clipped: int = 0
    seen: Tally = field(default_factory=Tally)
    own: Tally = field(default_factory=Tally)

    def add(self, seen: Seen) -> None:
        for ours, theirs, own in zip(seen.ours, seen.theirs, seen.own, strict=True):
            check_shapes(ours, theirs, self.name)
            grid = () if self.grid is None else self.grid.ends(ours.dim())
            for x, y, z, *on_grid in pieces(ours, theirs, own, *grid):
                self.elements += x.numel()
                step = None
                if on_grid:
                    step, low, high = on_grid
                    # Half a step further still rounds to the end.
                    self.clipped += int(((x < low - step / 2) | (x > high + step / 2)).sum())
                self.seen.add(x, y, step)
                self.own.add(x, z, step)

    def result(self) -> ValueComparison:
        on_grid = self.grid is not None
        return ValueComparison(
            self.name, self.kind, self.operator, self.source, self.elements,
            self.seen.sqnr, self.seen.cosine, self.seen.steps if on_grid else None,
            self.seen.largest, self.clipped / max(self.elements, 1) if on_grid else None,
            self.own.sqnr, self.own.steps if on_grid else None,
        )  # fmt: skip


class _Comparison:
    def __init__(
        self, float_model: torch.jit.ScriptModule, quantized: torch.jit.ScriptModule, report: Report
    ) -> None:
        target = Target.from_record(report.target)
        entered = FROZEN.enter(float_model, report.method)
        module, _ = formed(entered, report.method, target, report.made)
        module = Pipeline("name_inputs", (name_inputs,)).run(module, report.method).module
        nodes = _nodes_by_value(GraphView.of(module, report.method))
        rows: dict[Pair, _Row] = {}
        # Smoothed values have other numbers in the float model.
        changed = {*report.made.get("smoothed", ()), *report.made.get("scaled", ())}
        for name, site in _sites(quantized, report):
            node = nodes.get(name)
            if node is None or node.output.written or name in changed:
                continue
            kind = "quantized" if site.value is not None else "float"
            made = node.kind != EDGE
            operator, source = (node.kind, node.source) if made else ("", "")
            label = name if site.value is None else site.value.label
            rows[Pair(label, node.index, site)] = _Row(label, kind, operator, source, site.value)
        grids = {value.label: value.name for value in report.values}
        modes = ("dynamic", "weight_only")
        wanted = grids | {row.name: row.name for row in report.operators if row.mode in modes}
        if wanted and not any(name in nodes for name in wanted.values()):
            why = (
                "the two models have no value in common: was the quantized model made from this "
                "float model?"
            )
            raise JitPassesError(
                f"{why} For a model that has trained, the float model is jit_passes.strip(qat)[0]",
                command=why,
            )
        self.models = Lockstep(
            module, quantized, report.method, list(rows), rounded=True, origin=float_model
        )
        self.rows = [rows[pair] for pair in self.models.pairs]
        order = {pair.name: pair.node for pair in self.models.pairs}
        self.order = [order[row.name] for row in self.rows]
        self.unmatched = tuple(
            label
            for label, name in wanted.items()
            if label not in order and (label in grids or name in nodes)
        )
        self.outputs: dict[str, _Row] = {}

    def add(self, arguments: tuple[Any, ...]) -> None:
        pairs, outputs, _ = self.models.run(arguments)
        for row, (_, seen) in zip(self.rows, pairs, strict=True):
            row.add(seen)
        for name, seen in outputs:
            self.outputs.setdefault(name, _Row(name, "output")).add(seen)

    def result(self, jump: float) -> Comparison:
        inner = sorted(zip(self.order, self.rows, strict=True), key=lambda entry: entry[0])
        rows = [*(row for _, row in inner if row.elements), *self.outputs.values()]
        never = [row.name for _, row in inner if not row.elements]
        unmatched = tuple(dict.fromkeys((*self.unmatched, *never)))
        return Comparison(tuple(row.result() for row in rows), unmatched, jump)


def name_inputs(graph: GraphEditor) -> None:
    """Give each tensor argument of the model a node, so that it is identified like all values."""
    first = next(iter(graph.nodes), None)
    for value in graph.inputs:
        if value.is_tensor and first is not None:
            graph.replace(value, graph.insert(EDGE, [value], before=first).output)


def _nodes_by_value(graph: GraphView) -> dict[str, NodeView]:
    """Return the node that makes each value, by the value's name."""
    found: dict[str, NodeView] = {}
    for node in graph.nodes:
        if node.kind == EDGE:
            found[node.operand("x").name] = node
        elif node.name and len(node.outputs) == 1 and node.output.is_tensor:
            found[node.name] = node
    return found


def _sites(quantized: torch.jit.ScriptModule, report: Report) -> list[tuple[str, Site]]:
    """Return the values that can be seen in the quantized model, by their names in the float one.

    Quantized values are seen as codes; an operator of the report that was not lowered gives floats.
    """
    module = copy_of(quantized, report.method)
    sites = sites_of(module, report)
    found = [(site.value.name, site) for site in sites if site.value is not None]
    known = {name for name, _ in found}
    graph = GraphView.of(module, report.method)
    for index, name in by_position(graph, report.names).items():
        node = graph.nodes[index]
        if name not in known and len(node.outputs) == 1 and not node.kind.startswith("prim::"):
            found.append((name, Site(-1, index)))
    return found


def decibels(value: float) -> str:
    """Return an SQNR for people."""
    return "no error" if value == math.inf else f"{value:.1f} dB"


def _cells(row: ValueComparison) -> tuple[str, ...]:
    return (
        row.name,
        row.kind,
        f"{row.sqnr:.1f}",
        f"{row.own_sqnr:.1f}",
        f"{row.cosine:.5f}",
        "" if row.steps is None else f"{row.steps:.3g}",
        "" if row.clipped is None else f"{row.clipped:.3%}",
        "inherited" if row.inherited else "",
    )
