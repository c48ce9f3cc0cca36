"""The codes of a converted model, by the names of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...graph.view import GraphView, NodeView, ValueView
from ...stages.module import Report
from ...stages.recording import Recorder, copy_of, tensors_of
from ...stages.values import DEQUANTIZE, QuantizedValue, grid_operands
from ..places import Site, sites_of
from ..steps import has_codes, value_of

Codes = dict[str, torch.Tensor]
OUTPUT = "output"


@dataclass(frozen=True)
class Grid:
    """The numbers that codes of a value stand for: `(code - zero_point) * scale`."""

    scale: Any
    zero_point: Any
    axis: int | None = None

    @classmethod
    def of(cls, value: QuantizedValue) -> Grid:
        """Return the grid of a value of the report."""
        if value.axis is None:
            return cls(value.scale[0], value.zero_point[0])
        return cls(value.scale, value.zero_point, value.axis)

    def codes(self, values: torch.Tensor) -> torch.Tensor:
        """Return the codes of values on the grid, int64; double holds each code exactly."""
        scale, zero = (self.along(x, values.dim()) for x in (self.scale, self.zero_point))
        # NaN has no code: it becomes the smallest int64, which no grid holds.
        return (values.detach().double() / scale + zero).round().to(torch.int64)

    def along(self, numbers: Any, dims: int) -> torch.Tensor:
        found = torch.as_tensor(numbers, dtype=torch.float64)
        if self.axis is None:
            return found
        return found.reshape([-1 if i == self.axis % dims else 1 for i in range(dims)])


@dataclass
class Watched:
    """A converted model that gives the codes of its values.

    Args:
        model: a reference model, or a lowered one; it is not touched.
        report: of it.
        grids: of the values, and of the results that have one.

    Attributes:
        sites: the values that it shows, by name.
    """

    model: torch.jit.ScriptModule
    report: Report
    grids: Mapping[str, Grid]
    sites: dict[str, list[Site]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        method = self.report.method
        for site in sites_of(copy_of(self.model, method), self.report):
            if site.value is not None and site.value.label in self.grids and not site.foreign:
                self.sites.setdefault(site.value.label, []).append(site)
        nodes = [site.node for sites in self.sites.values() for site in sites]
        self._recorder = Recorder(copy_of(self.model, method), method, nodes)

    def __call__(self, arguments: tuple[Any, ...]) -> Codes:
        result, kept = self._recorder.run(arguments)
        found: Codes = {}
        for name, sites in self.sites.items():
            tensors = [(t, site) for site in sites for t in kept.get(site.node, ())]
            # In a loop a value is computed several times: no engine numbers these alike.
            if len(tensors) == 1 and has_codes(*tensors[0]):
                found[name] = self.grids[name].codes(value_of(*tensors[0]))
        return found | codes_of_results(result, self.grids)


def codes_of_results(result: Any, grids: Mapping[str, Grid]) -> Codes:
    """Return the codes of a model's results that have a grid."""
    return {n: grids[n].codes(t) for n, t in tensors_of(result, OUTPUT) if n in grids}


def grids_of(model: torch.jit.ScriptModule, report: Report) -> dict[str, Grid]:
    """Return the grids of a reference model's values and results, by name.

    A result of a branch has a grid if both branches give it one grid, and a result of a loop if
    each round gives it that grid.
    """
    found = {value.label: Grid.of(value) for value in report.values}
    graph = GraphView.of(model, report.method)
    for name, value in results_of(graph):
        makers = dequantizes_of(graph, value)
        grids = [None if maker is None else _grid_of(maker) for maker in makers]
        first = next(iter(grids), None)
        if first is not None and all(grid == first for grid in grids):
            found[name] = first
    return found


def _grid_of(dequantize: NodeView) -> Grid | None:
    operands = grid_operands(dequantize)
    constant = all(operand.is_constant for operand in operands)
    return Grid(*(operand.constant for operand in operands)) if constant else None


def results_of(graph: GraphView) -> list[tuple[str, ValueView]]:
    """Return the results of a graph, named as `tensors_of` names them."""
    found = []

    def add(name: str, value: ValueView) -> None:
        maker = value.producer
        if maker is not None and maker.kind in ("prim::TupleConstruct", "prim::ListConstruct"):
            for i, part in enumerate(maker.inputs):
                add(f"{name}.{i}", part)
        else:
            found.append((name, value))

    for value in graph.outputs:
        add(OUTPUT, value)
    return found


def dequantizes_of(
    graph: GraphView, value: ValueView, *, initial: bool = False
) -> list[NodeView | None]:
    """Return the dequantizes with one scale that a result may come from; None for another origin.

    Operators that move data are looked through, and branches and loops.

    Args:
        graph: of the result.
        value: the result.
        initial: whether a loop may run no round, and give the values that it begins with.
    """
    before: dict[int, list[ValueView]] = {}
    for node in graph.nodes:
        begins = node.inputs[2:] if node.kind == "prim::Loop" else []
        pairs = [pair for pair in node.carried if pair[0] not in begins]
        if initial:
            pairs += zip(begins, node.outputs, strict=False)  # of other nodes, none
        for source, carried in pairs:
            before.setdefault(carried.id, []).append(source)
    pending, seen, found = [value], set(), []
    while pending:
        source = pending.pop()
        if source.id in seen:
            continue
        seen.add(source.id)
        maker = source.producer
        if source.id in before:
            pending += before[source.id]
        elif maker is not None and maker.moves_data:
            pending.append(maker.main_operand)
        else:
            quantized = maker is not None and maker.kind == DEQUANTIZE[0]
            found.append(maker if quantized else None)
    return found
