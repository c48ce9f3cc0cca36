"""Predict which operators of a model will be quantized, before any data is seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import JitPassesError, aligned, count_of
from ..graph.view import GraphView, NodeView, ValueView
from ..quantizers.backend import BackendQuantizer
from ..quantizers.base import Quantizer
from ..quantizers.rearranged import origin_of, passes_on, readers_of
from ..stages.annotate import FROZEN, Annotated, annotate, choose_quantizer
from ..stages.foretell import foretold
from ..stages.module import OperatorRecord
from ..stages.parts import is_quantized, parts_of, record_of, records_of
from ..stages.records import QuantizedUses, float_reason
from ..tables import html_table
from ..targets import Target
from ..targets.integer_operators import UnitFinder, both_reasons
from .provenance import Description, provenance


@dataclass(frozen=True)
class OperatorInspection:
    """The prediction for one operator.

    Attributes:
        name: stable name, `layer1.0.conv1:conv2d`.
        kind: `aten::conv2d`.
        dtype: "int8" where it computes on integers of any bits, or "float". An operator whose
            weight alone is quantized, an embedding say, computes in float; `coverage` counts it as
            quantized, and it has `bits`.
        region: number of the region that it is in: see `partition`; None in float.
        reason: why it is float; "" for int8.
        source: `file:line` of the model's code.
        bits: of its weight and its activations: see `OperatorRecord`.
        mode: see `OperatorRecord`.
        why: see `OperatorRecord`.
        part_of: the operator that it is computed together with, as a relu with a convolution; ""
            where it stands for itself.
        outside: why no region computes it in float, where the target has the operator in float; ""
            where one does.
    """

    name: str
    kind: str
    dtype: str
    region: int | None
    reason: str
    source: str
    bits: str = ""
    mode: str = ""
    why: str = ""
    part_of: str = ""
    outside: str = ""


class Inspection(tuple[OperatorInspection, ...]):
    """The prediction for each operator; printing it gives a table.

    Attributes:
        quantizes: how many values are converted from float to integers while the model runs.
        dequantizes: how many are converted back.
    """

    quantizes: int
    dequantizes: int

    def __new__(
        cls, operators: Iterable[OperatorInspection], quantizes: int = 0, dequantizes: int = 0
    ) -> Inspection:
        made = super().__new__(cls, operators)
        made.quantizes, made.dequantizes = quantizes, dequantizes
        return made

    @property
    def regions(self) -> list[tuple[str, ...]]:
        """Names of the operators of each region: see `partition`."""
        groups: dict[int, list[str]] = {}
        for row in self:
            if row.region is not None:
                groups.setdefault(row.region, []).append(row.name)
        return [tuple(names) for _, names in sorted(groups.items())]

    @property
    def summary(self) -> str:
        """How much is on integers, in a line."""
        int8 = sum(row.dtype == "int8" for row in self)
        weights = sum(row.dtype == "float" and bool(row.bits) for row in self)
        alone = f"; {weights} more with a quantized weight alone" if weights else ""
        return (
            f"{int8} of {count_of(len(self), 'operator')} on integers, in "
            f"{count_of(len(self.regions), 'region')}; {count_of(self.quantizes, 'value')} "
            f"quantized, {self.dequantizes} dequantized{alone}"
        )

    def __str__(self) -> str:
        return "\n".join((self.summary, *((aligned(list(map(_cells, self))),) if self else ())))

    def _repr_html_(self) -> str:
        return html_table(("operator", "kind", "bits", ""), map(_cells, self), self.summary)


def _cells(row: OperatorInspection) -> tuple[str, ...]:
    region = "" if row.region is None else f"region {row.region}"
    reason = both_reasons(row.reason, row.outside) or ""
    why = f"{reason} ({row.source})" if reason and row.source else reason
    mode = row.mode.replace("static", "")
    last = ", ".join(filter(None, (region, mode))) if region else why or mode
    return row.name, row.kind, row.bits or row.dtype, last


def inspect(
    model: torch.jit.ScriptModule,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    *,
    config: Any = None,
    mode: str | None = None,
    method: str = "forward",
    without_data: bool = False,
) -> Inspection | Description:
    """Say for each operator whether it would be int8 or float, and why; no data are needed.

    Calibration can still rule operators out: operators that data never reaches, and operators whose
    results have more or fewer dimensions than the target can do.

    For a model that was prepared or quantized already, return its provenance and its `coverage`.

    Args:
        model: scripted, traced or loaded, in eval mode. The model does not change.
        quantizer: as in `prepare`.
        target: as in `prepare`.
        config: as in `prepare`.
        mode: as in `prepare`.
        method: the method to look at.
        without_data: foretell the result of `quantize_script` without data, where "auto" takes
            modes that need none.

    Returns:
        A row for each operator; of a model that was prepared or quantized, its `coverage` with its
        provenance.

    Raises:
        JitPassesError: the errors of `prepare`; or options are given for a model that was prepared
            or quantized already.
    """
    made = provenance(model, method) if isinstance(model, torch.jit.ScriptModule) else None
    if made is not None:
        if (
            target != "auto"
            or without_data
            or any(x is not None for x in (quantizer, config, mode))
        ):
            raise JitPassesError(
                f"the model is {made['stage']} already, and options change nothing in it: inspect "
                "the float model with them, or leave them out"
            )
        return Description.of(model, method, made)
    backend, chosen = choose_quantizer(quantizer, target, config, mode)
    if without_data and isinstance(chosen, BackendQuantizer):
        chosen = chosen.without_data()
    return inspection_of(annotate(model, method, FROZEN, chosen, backend), backend)


def inspection_of(annotated: Annotated, target: Target) -> Inspection:
    """Say it of a model that is annotated for a target."""
    return _Inspector(annotated, target).inspect()


class _Inspector:
    def __init__(self, annotated: Annotated, target: Target) -> None:
        self.annotated = annotated
        self.graph = annotated.graph
        self.target = target
        self.annotations = annotated.annotations
        places = annotated.quantizations
        self.all = QuantizedUses(places)
        self.places = [place for place in places if not place.value.is_constant]
        self.uses = QuantizedUses(self.places)
        self.owners = {self.owner(node) for node in self.annotations if self.seen(node)}

    def inspect(self) -> Inspection:
        found, regions = self.regions()
        rows = [
            before(record_of(node), node.kind)
            if is_quantized(node)
            else self.row(node, regions, found.refused_in_float.get(node.name, ""))
            for node in self.graph.nodes
            if computes(node)
        ]
        parts = parts_of(self.annotated.module, self.annotated.method)
        rows += [before(row, f"aten::{row.kind}") for row in records_of(parts)]
        given = sum(not self.on_integers(p.node) for p in self.places if not p.uses)
        quantizes = given + sum(bool(place.uses) for place in self.places)
        results = {p.value.id: p.value for p in self.places if not p.uses}
        dequantizes = sum(self.is_read_in_float(value) for value in results.values())
        return Inspection(rows, quantizes, dequantizes)

    def row(self, node: NodeView, regions: dict[str, int], outside: str) -> OperatorInspection:
        int8 = self.on_integers(node)
        bits, mode = self.all.precision(node) if node in self.annotations else ("", "")
        reason = "only its weight is quantized" if bits else ""
        if not int8 and not bits:
            reason = float_reason(node, self.annotations, self.target)
        return OperatorInspection(
            node.name, node.kind, "int8" if int8 else "float", regions.get(node.name),
            "" if int8 else reason, node.source, bits,
            mode if int8 or bits else "",
            self.annotations.chosen.get(node.name, "") if int8 or bits else "",
            self.owner(node).name if int8 and self.owner(node) is not node else "",
            "" if int8 else outside,
        )  # fmt: skip

    def on_integers(self, node: NodeView) -> bool:
        """Whether it sees a quantized operand, or an operator computed together with it does."""
        return node in self.annotations and self.owner(node) in self.owners

    def owner(self, node: NodeView) -> NodeView:
        return self.annotations[node].part_of or node

    def seen(self, node: NodeView) -> list[ValueView]:
        """Return the operands that it sees as codes, or the values that they rearrange."""
        return [
            origin_of(value, self.uses.results)
            for position, element, value in node.operands
            if self.uses.at(node, position, element) is not None
        ]

    def is_read_in_float(self, value: ValueView) -> bool:
        found = readers_of(value, lambda user, _: user in self.annotations)
        return any(use is None or not self.on_integers(use[0]) for use in found)

    def regions(self) -> tuple[UnitFinder, dict[str, int]]:
        """Return what a region may hold, and by name the number of each operator's, from 1."""
        module, method = foretold(self.annotated), self.annotated.method
        finder = UnitFinder(GraphView.of(module, method), self.target).read()
        regions = finder.found.regions(module, method)
        return finder, {n.name: k for k, r in enumerate(regions, 1) for unit in r for n in unit}


def before(row: OperatorRecord, kind: str) -> OperatorInspection:
    """Return the row of an operator that was quantized before the model."""
    texts = (row.source, row.bits, row.mode, row.why)
    return OperatorInspection(row.name, kind, row.dtype, None, row.reason, *texts)


def computes(node: NodeView) -> bool:
    """Whether it is an operator that computes on tensors, and does not only move them."""
    if node.traits.counts or node.kind in ("aten::cat", "aten::stack") or is_quantized(node):
        return True
    return (
        not node.kind.startswith("prim::")
        and not passes_on(node)
        and any(value.is_tensor for value in node.outputs)
        and any(value.is_tensor and not value.is_constant for value in node.inputs)
    )
