"""From a quantized model to its encodings."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError
from ..graph.view import GraphView, NodeView, ValueView
from ..specification.slots import CORRELATION, Correlation, quantized_behind, slot_of
from ..stages.convert import convert
from ..stages.module import ModelStage, Report, by_position
from ..stages.values import DEQUANTIZE, QUANTIZE, grid_operands
from .encoding import Encoding, Encodings, Layer, bits_of, middle

_BETWEEN = ("jit_passes::fake_quantize", *QUANTIZE, *DEQUANTIZE)
_TABLE = "jit_passes::lookup_table"
_CONVERTED = (ModelStage.PREPARED, ModelStage.QAT)  # on the way to a reference model


def encodings_of(model: torch.jit.ScriptModule) -> Encodings:
    """Return how a quantized model quantizes its values.

    Bits and codes are as asked for, whichever codes occur. A model that was calibrated, or has
    trained, has the encodings of its converted model.

    Values have their names in the graph of the reference model. Its constants have lost
    their names, so a weight is called after its module, `conv1.weight`, and a second, different one
    there is numbered: `conv1.weight#1`. A value that is quantized in several ways has an encoding
    for each, all but the first called after the operator that reads it: `relu -> conv2:conv2d`.
    A model from a file, or lowered for the target "reference", has equal names.

    Args:
        model: a calibrated, trained or reference model, or one lowered for the target "reference";
            it does not change.

    Raises:
        JitPassesError: the model says nothing of scales and zero points: a backend's kernels do. Or
            it has seen no data, or was changed after it was converted.
    """
    report = Report.read(model)
    if report is not None and report.stage in _CONVERTED:
        model = convert(model)
        report = Report.read(model)
    if report is None or not report.is_reference:
        found = "one that was not quantized" if report is None else f"a {report.stage} one"
        stages = ", ".join((*_CONVERTED, ModelStage.REFERENCE))
        needed = (
            f"a module of one of the stages {stages} is needed to read encodings of, got {found}"
        )
        raise JitPassesError(
            f"{needed}: pass the result of jit_passes.convert, before lower",
            command=f"{needed}: quantize the float model with --target reference",
        )
    module = _C.clone(model._c, report.method)  # regions that were outlined are in it again
    return _GraphReader(GraphView.of(module, report.method), report).read()


class _GraphReader:
    """Encodings by the node that shows them: quantize of an activation, dequantize of codes."""

    def __init__(self, graph: GraphView, report: Report) -> None:
        self.graph = graph
        self.weighted = [n for n in graph.nodes if n.traits.weighted or n.kind == CORRELATION]
        self.names: dict[int, str] = by_position(graph, report.names)
        self.places: dict[int, int | None] = by_position(graph, report.places)
        self.codes = {id: (low, high) for low, high, ids in report.codes for id in ids}
        self.values = {value.place: value for value in report.values}
        self.found: dict[str, Encoding] = {}
        self.by_node: dict[int, Encoding] = {}

    def read(self) -> Encodings:
        for node in self.graph.nodes:
            if node.kind in QUANTIZE and isinstance(_source(node).constant, torch.Tensor):
                low, high = (_number(node.operand(f"quant_{end}"), node) for end in ("min", "max"))
                self.add_parameter(node, (low, high), *node.output.uses[0][0].output.uses[0])
            elif node.kind in QUANTIZE or node.kind == _TABLE:
                self.read_activation(node)
            elif node.kind in DEQUANTIZE and isinstance(node.main_operand.constant, torch.Tensor):
                ends = self.codes[self.known(node, self.codes)]
                self.add_parameter(node, ends, *node.output.uses[0])
        layers = [layer for node in self.weighted if (layer := self.layer(node)) is not None]
        return Encodings(tuple(self.found.values()), tuple(layers))

    def read_activation(self, node: NodeView) -> None:
        value = self.values[self.known(node, self.values)]
        grid = tuple(value.scale), tuple(value.zero_point), value.axis
        self.add(node, "activation", (value.low, value.high), grid, value.label)

    def known(self, node: NodeView, ids: Container[int]) -> int:
        """Return the id of the place that a node stands for, which is one of these."""
        place = self.places.get(node.index)
        if place is None or place not in ids:
            raise JitPassesError(
                f"{node!r} has codes that the model's report does not know: convert the "
                "prepared model again"
            )
        return place

    def add(
        self, node: NodeView, kind: str, ends: tuple[int, int], grid: tuple[Any, ...], name: str
    ) -> None:
        """Add a node's encoding, under the name or the first `#k` behind it that is free."""
        scale, zero_point, *axis = grid
        symmetric = all(zero == middle(*ends) for zero in zero_point)
        values = (kind, bits_of(*ends), *ends, symmetric, scale, zero_point, *axis)
        for candidate in chain((name,), (f"{name}#{k}" for k in count(1))):
            encoding = Encoding(candidate, *values)
            if self.found.setdefault(candidate, encoding) == encoding:
                self.by_node[node.index] = self.found[candidate]
                return

    def add_parameter(
        self, node: NodeView, ends: tuple[int, int], user: NodeView, operand: int
    ) -> None:
        name = f"{self.name(user)}[{operand}]"
        if (slot := slot_of(user, operand)) in ("weight", "bias"):
            name = f"{self.module(user)}.{slot}".removeprefix(".")
        self.add(node, "parameter", ends, _parameters(node), name)

    def name(self, node: NodeView) -> str:
        return self.names.get(node.index, node.name)

    def module(self, node: NodeView) -> str:
        module, colon, _ = self.name(node).rpartition(":")
        return module if colon else ""

    def layer(self, node: NodeView) -> Layer | None:
        result = node.output
        if node.kind == CORRELATION:
            split = Correlation.of(node)
            node, result = split.merged, (split.add_bias or node).output
        used = [self.behind(value) for value in node.inputs[:3]]
        used.append(self.ahead(result))
        if not any(used):
            return None
        return Layer(self.module(node), node.kind.removeprefix("aten::"), *used)

    def behind(self, value: ValueView) -> Encoding | None:
        """Return the encoding of an operand, looking through operators that only move data."""
        node = value.producer
        while node is not None and node.moves_data:
            node = node.main_operand.producer
        if node is None or node.kind not in DEQUANTIZE:
            return None
        codes = node.main_operand.producer
        if codes is not None and codes.index in self.by_node:
            return self.by_node[codes.index]
        return self.by_node.get(node.index)

    def ahead(self, value: ValueView) -> Encoding | None:
        """Return the encoding of a result, looking through a clip that is its only user."""
        while True:
            for user, _ in value.uses:
                quantized = [n for n in (user, *quantized_behind(value)) if n.index in self.by_node]
                if user.kind in _BETWEEN and quantized:
                    return self.by_node[quantized[-1].index]
            users = {user.index: user for user, _ in value.uses}
            only = next(iter(users.values())) if len(users) == 1 else None
            if only is None or only.traits.clip is None or value.is_result:
                return None
            value = only.output


def _source(node: NodeView) -> ValueView:
    """Return the quantized value as it is before rounding, and before an earlier quantization."""
    value = node.main_operand
    while (maker := value.producer) is not None and maker.kind in _BETWEEN:
        value = maker.main_operand
    return value


def _parameters(node: NodeView) -> tuple[Any, ...]:
    """Return scales, zero points, the channel axis and the group size."""
    scale, zero_point = (value.constant for value in grid_operands(node)[:2])
    if isinstance(scale, torch.Tensor) and isinstance(zero_point, torch.Tensor):
        axis = _number(node.operand("axis"), node) if "per_channel" in node.kind else None
        groups, codes = None, node.main_operand.constant
        if scale.dim() > 1 and axis is not None and isinstance(codes, torch.Tensor):
            groups = codes.shape[1 - axis] // scale.shape[1]
        numbers = (tuple(values.reshape(-1).tolist()) for values in (scale, zero_point))
        return (*numbers, axis, groups)
    if not isinstance(scale, float) or not isinstance(zero_point, int):
        raise JitPassesError(f"{node!r} has no constant scale and zero point to export")
    return (scale,), (zero_point,), None, None


def _number(value: ValueView, node: NodeView) -> int:
    if not isinstance(value.constant, int):
        raise JitPassesError(f"{node!r} has no constant codes and axis to export")
    return value.constant
