"""Regions of a reference model that a backend takes as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError, count_of
from ..graph.view import CALL, GraphView, NodeView, ValueView
from ..passes.pipeline import Pipeline
from ..passes.steps import PassCall
from ..passes.subject import Remark, wrap
from ..specification.parameters import QParams
from .integer_operators import UnitFinder
from .reference_nodes import parameters_of, quantizer_of
from .target import Target
from .units import DEQUANTIZE, QUANTIZE, takes_written_size


@dataclass(frozen=True)
class RegionValue:
    """A value that a region takes or gives.

    Attributes:
        name: of the value in the model.
        parameters: of the codes that the region has for it; None for a value without codes.
    """

    name: str
    parameters: QParams | None

    def __str__(self) -> str:
        p = self.parameters
        if p is None:
            return self.name
        return f"{self.name} ({p.dtype}, scale {p.scale:g}, zero point {p.zero_point})"


@dataclass(frozen=True)
class Region:
    """Operators of a reference model that a compiler can take as a whole.

    The module takes and gives floats. Its graph begins with `jit_passes::quantize` of its inputs
    and ends with `jit_passes::dequantize` of its outputs. In between stand float operators, each
    with a dequantize in front and a quantize behind: the three are one operator on integers.
    Weights and biases are integer constants that go through `dequantize` or
    `dequantize_per_channel`. Operators of `Capability.floats` have neither, nor have values that
    these operators take from outside of the region or give to each other.

    Attributes:
        name: of the attribute of the model that holds it.
        module: the region, which runs, and can be saved. Its forward gives a tensor, or a tuple.
        operators: the names that its operators have in the model.
        inputs: the values that it takes, in order.
        outputs: the values that it gives, in order.
    """

    name: str
    module: torch.jit.ScriptModule
    operators: tuple[str, ...]
    inputs: tuple[RegionValue, ...]
    outputs: tuple[RegionValue, ...]

    def __str__(self) -> str:
        ends = " to ".join(dict.fromkeys((self.operators[0], self.operators[-1])))
        lines = [f"{self.name}: {count_of(len(self.operators), 'operator')}, {ends}"]
        lines += [f"  takes {value}" for value in self.inputs]
        lines += [f"  gives {value}" for value in self.outputs]
        return "\n".join(lines)


@dataclass(frozen=True)
class RefusedOperator:
    """An operator that stays outside of the regions.

    Attributes:
        name: its name.
        kind: `aten::cos`.
        reason: why.
        source: `file:line` of the model's code.
    """

    name: str
    kind: str
    reason: str
    source: str


@dataclass(frozen=True)
class Partition:
    """A reference model whose regions are submodules; printing it gives a table.

    Attributes:
        target: whose regions they are.
        model: the model, with the results that it had.
        regions: in program order; `model.region_0` is the module of the first.
        refused: the other operators that compute on tensors.
    """

    target: Target
    model: torch.jit.ScriptModule
    regions: tuple[Region, ...]
    refused: tuple[RefusedOperator, ...]

    def __str__(self) -> str:
        inside = sum(len(region.operators) for region in self.regions)
        lines = [
            f"{inside} of {count_of(inside + len(self.refused), 'operator')} in "
            f"{count_of(len(self.regions), 'region')} of the target '{self.target.name}'",
            *map(str, self.regions),
        ]
        columns = [(refusal.name, refusal.kind) for refusal in self.refused]
        widths = [max(map(len, column)) for column in zip(*columns, strict=True)] or [0, 0]
        for refusal, texts in zip(self.refused, columns, strict=True):
            cells = [f"{text:<{width}}" for text, width in zip(texts, widths, strict=True)]
            where = f" ({refusal.source})" if refusal.source else ""
            lines.append("  ".join((*cells, refusal.reason + where)))
        return "\n".join(lines)


@dataclass(frozen=True)
class Cut:
    """A C++ module with its regions outlined."""

    module: Any
    regions: tuple[Region, ...]
    refused: tuple[RefusedOperator, ...]


def cut(
    module: Any, method: str, target: Target, names: dict[int, str] | None = None,
    keep: frozenset[int] | None = None,
) -> Cut:  # fmt: skip
    """Outline the regions of a reference model.

    Args:
        module: a C++ module that no one else holds: its graph is edited.
        method: whose graph.
        target: whose regions.
        names: names of nodes by index, where the graph does not know them.
        keep: numbers of the regions that are outlined; None for all.
    """
    graph = GraphView.of(module, method)
    reader = UnitFinder(graph, target).read()
    regions = reader.found.regions(module, method)
    regions = [r for i, r in enumerate(regions) if keep is None or i in keep]
    known = names or {}
    operators = [
        tuple(
            known.get(node.index, node.name)
            for node in sorted((n for unit in r for n in unit), key=lambda node: node.index)
            if node.name
        )
        for r in regions
    ]
    inside = {node.index for region in regions for unit in region for node in unit}
    refused = tuple(
        RefusedOperator(
            known.get(node.index, node.name),
            node.kind,
            reader.reason(node) or _alone(node),
            node.source,
        )
        for node in graph.nodes
        if node.index not in inside and reader.is_operator(node)
    )
    indices = [[node.index for unit in region for node in unit] for region in regions]
    if indices:
        shapes = target.capability.shapes
        call = PassCall("outline_regions", regions=indices, shapes=shapes)
        outline = Pipeline("partition", ("remove_unused_attributes", call))
        module = outline.run(module, method).module
    earlier = {node.main_operand.name for node in graph.nodes if node.kind == CALL}
    found = _regions(module, method, operators, earlier)
    return Cut(module, tuple(sorted(found, key=lambda region: _number(region.name))), refused)


def _alone(node: NodeView) -> str:
    """Say why an operator that the target can compute is in no region."""
    if takes_written_size(node):
        return "it takes a size of a value that is written in place"
    return "it stands alone"


def _number(region: str) -> int:
    return int(region.rpartition("_")[2])


def _regions(
    module: Any, method: str, operators: list[tuple[str, ...]], earlier: Set[str]
) -> Iterator[Region]:
    outer = GraphView.of(module, method)
    calls = {
        node.main_operand.name: node
        for node in outer.nodes
        if node.kind == CALL and node.main_operand.name not in earlier
    }
    given: dict[int, str] = {}  # names of results, by id
    # A region is called at its last operator, so regions that begin later may be called earlier.
    by_number = dict(zip(sorted(map(_number, calls)), operators, strict=True))
    for name, call in calls.items():
        names = by_number[_number(name)]
        region = wrap(getattr(module, name))
        graph = GraphView.of(region)
        inputs = tuple(
            RegionValue(given.get(value.id, value.name), _quantized(inner))
            for value, inner in zip(call.other_operands, graph.inputs, strict=True)
        )
        (result,) = graph.outputs
        maker = result.producer
        several = maker is not None and maker.kind == "prim::TupleConstruct"
        results = maker.inputs if several and maker is not None else [result]
        outputs = tuple(_result(value) for value in results)
        if several:
            for user, _ in call.output.uses:
                _, number = user.inputs
                given[user.output.id] = outputs[number.constant].name
        else:
            given[call.output.id] = outputs[0].name
        yield Region(name, region, names, inputs, outputs)


def _quantized(value: ValueView) -> QParams | None:
    found = (user for user, _ in value.uses if user.kind == QUANTIZE)
    return next(map(parameters_of, found), None)


def _result(value: ValueView) -> RegionValue:
    source, maker = quantizer_of(value), value.producer
    if source is None:
        return RegionValue(value.name, None)
    moved = maker is not None and maker.kind != DEQUANTIZE
    return RegionValue(value.name if moved else source.main_operand.name, parameters_of(source))


class CompileRegions:
    """A step of `Target.lowering`: the result of `Target.compile` takes the place of each region.

    Operators with weights outside of regions, or in a region that was not compiled, get a remark.

    Args:
        target: whose regions.
        elsewhere: kinds of operators outside of regions that a later step computes, or remarks on.
    """

    name = "compile_regions"

    def __init__(self, target: Target, elsewhere: Collection[str] = ()) -> None:
        self.target, self.elsewhere = target, elsewhere

    def run_on(self, module: Any, method: str) -> tuple[Any, bool, list[Remark]]:
        """Return the module with its regions compiled, whether there are some, and remarks."""
        found = cut(_C.clone(module, method), method, self.target)
        compiled = self._compile(found.regions)
        remarks = [
            Remark(refusal.name, refusal.reason)
            for refusal in found.refused
            if refusal.kind not in self.elsewhere
        ]
        for number, region in enumerate(found.regions):
            if number not in compiled:
                reason = f"the target '{self.target.name}' has not compiled its region"
                remarks += [Remark(name, reason) for name in region.operators]
        if not compiled:
            return module, False, remarks
        if len(compiled) < len(found.regions):
            kept = frozenset(compiled)
            found = cut(module, method, self.target, keep=kept)
        for region, result in zip(found.regions, compiled.values(), strict=True):
            held = result._c if isinstance(result, torch.jit.ScriptModule) else result
            _C.replace_region(found.module, method, region.name, held)
        return found.module, True, remarks

    def _compile(self, regions: tuple[Region, ...]) -> dict[int, Any]:
        """Return the results of the compiler, by the numbers of the regions that have one."""
        results = {i: self.target.compile(region.module) for i, region in enumerate(regions)}
        compiled = {i: result for i, result in results.items() if result is not None}
        for result in compiled.values():
            self._check(result)
        return compiled

    def _check(self, result: Any) -> None:
        if not isinstance(result, torch.jit.ScriptModule | torch.ScriptObject):
            raise JitPassesError(
                f"the target '{self.target.name}' compiled a region to {type(result).__name__}: "
                "return a ScriptModule, an object of a TorchScript custom class, or None"
            )
