"""The operators of a reference model that a backend computes on integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..graph.view import GraphView, NodeView, ValueView
from ..quantizers.capability import Capability, written_reason
from ..quantizers.disjoint import DisjointSets
from ..quantizers.joined import (
    clipped_output,
    is_summed,
    is_table,
    is_within_tables,
    reader_of_parts,
    takes_parts,
)
from ..quantizers.support import WEIGHT_OPERAND, OperatorSupport, Role, Spec
from ..specification.grid import DTYPES
from ..specification.specification import QuantizationSpec
from .reference_nodes import (
    PER_CHANNEL,
    computes,
    dtype_of,
    parameters_of,
    quantizer_of,
    show_constants,
    specs_of,
    specs_of_weight,
)
from .units import DEQUANTIZE, QUANTIZE, ROUND, IntegerOperators, choice_of, laid_out

LAYOUT = "the model asks how its result lies in memory"


class UnitFinder:
    """Finds the operators of a reference model that a backend computes on integers.

    Attributes:
        found: the operators, in units.
        refused: why operators are not computed on integers, by name.
        refused_in_float: why operators that the target has in float are not computed so, by name.
    """

    def __init__(self, graph: GraphView, target: Any) -> None:
        self.graph = graph
        self.laid_out = laid_out(graph)
        self.target = target
        self.capability: Capability = target.capability
        self.found = IntegerOperators(begins=self.capability.begins, truths=self.capability.truths)
        self.refused: dict[str, str] = {}
        self.refused_in_float: dict[str, str] = {}
        self._candidates: dict[int, OperatorSupport | None] = {}  # None: it only rearranges
        self._float_layers: list[NodeView] = []  # dynamic, or with the weight alone on integers
        self._floats: list[NodeView] = []
        self._results: dict[int, ValueView] = {}
        self._clips: dict[int, NodeView] = {}  # an operator, by its clip's index
        show_constants(graph)

    def read(self) -> UnitFinder:
        """Fill `found` and `refused`."""
        for node in self.graph.nodes:
            if self.is_operator(node):
                reason = self._refusal(node)
                if reason:
                    self.refused[node.name] = reason
        self._drop_unquantized()
        self._find_floats()
        self._make_units()
        return self

    def is_operator(self, node: NodeView) -> bool:
        """Say whether a node computes on tensors, by itself."""
        return (
            computes(node)
            and not node.kind.startswith("jit_passes::")
            and node.index not in self._clips
        )

    def _find_floats(self) -> None:
        """Find operators that the target computes in float, or note why it does not."""
        known = {*self._candidates, *(node.index for node in self._float_layers)}
        for node in self.graph.nodes:
            if node.index in known or node.name in self.laid_out or not self.is_operator(node):
                continue
            if node.kind not in self.capability.floats:
                continue
            reason = self.capability.float_refusal(node)
            if reason is None:
                self._floats.append(node)
            else:
                self.refused_in_float[node.name] = reason

    def reason(self, node: NodeView) -> str | None:
        """Say why an operator is neither on integers nor in float in a region, as far as known."""
        return both_reasons(self.refused.get(node.name), self.refused_in_float.get(node.name))

    def _refusal(self, node: NodeView) -> str | None:
        """Say why an operator is no candidate; note it where it is one."""
        row = self.capability.operators.get(node.kind)
        if node.name in self.laid_out:
            return LAYOUT
        given = [*node.outputs, *(v for u in _unpacked(node) for v in u.outputs)]
        choice = choice_of(node.main_operand) if node.inputs else None
        chosen = [choice.main_operand] if choice else []
        mode = "dynamic" if choice else "weight_only" if self._is_alone(node, row) else "static"
        if written := written_reason((*node.inputs, *given, *chosen)):
            return written
        if row is None and node.moves_data:
            reason = self.capability.move_refusal(node)
            if reason is None and quantizer_of(node.main_operand) is None:
                reason = _float(node.main_operand)
        else:
            reason = self.target.refusal(node, mode=mode)
            if reason is None:
                assert row is not None
                reason = self._refusal_of_operands(node, row, mode)
            if reason is None and node.kind in self.capability.outside:
                reason = "the target computes it outside of regions"
            if reason is None and self.capability.in_regions is not None:
                reason = self.capability.in_regions(node)
        if reason is not None:
            return str(reason).replace("the target", f"the target '{self.target.name}'", 1)
        if mode != "static":
            self._float_layers.append(node)
            return None
        self._candidates[node.index] = row
        if row is not None:
            value = clipped_output(node, row)
            self._results[node.index] = value
            if value is not node.output and value.producer is not None:
                self._clips[value.producer.index] = node
        return None

    def _is_alone(self, node: NodeView, row: OperatorSupport | None) -> bool:
        """Say whether a layer's weight is quantized while its input is in float."""
        if row is None or not self.capability.dynamic_regions or "weight_only" not in row.modes:
            return False
        picks = row.role is Role.LOOKUP
        weight = node.operand("weight").producer
        coded = weight is not None and weight.kind in (DEQUANTIZE, PER_CHANNEL)
        return coded and (picks or quantizer_of(node.main_operand) is None)

    def _refusal_of_operands(self, node: NodeView, row: OperatorSupport, mode: str) -> str | None:
        if row.role is Role.WEIGHTED and (why := self._refusal_of_weight(node, mode)):
            return why
        if mode == "weight_only":
            return None
        if self.capability.dynamic_regions and (choice := choice_of(node.main_operand)):
            return self._refusal_of_choice(node, choice)
        floats = 0
        operands = [
            (position, value)
            for position, _, value in node.operands
            if row.is_activation(position, value)
        ]
        for position, value in operands:
            source = quantizer_of(value)
            if row.constants and value.is_constant:
                if why := self._refusal_of_constant(value):
                    return why
            elif source is not None:
                if why := self._misfit(node, position, source):
                    return f"its operand '{source.main_operand.name}' is {why}"
            elif self._within(node, row, value) is None:
                floats += 1
                if not self.capability.mixed or floats == len(operands):
                    return _float(value)
        return None if operands else "it has no operand"

    def _refusal_of_choice(self, node: NodeView, choice: NodeView) -> str | None:
        x, low, high, scheme, form = choice.inputs
        codes = choice.outputs[0].uses[0][0]
        spec = QuantizationSpec(
            dtype_of(codes.operand("dtype").constant), low.constant, high.constant, scheme.constant,
            range_form=form.constant, is_dynamic=True,
        )  # fmt: skip
        why = self.target.refusal(node, 0, spec, "dynamic")
        return f"its operand '{x.name}' is {why}" if why else None

    def _refusal_of_constant(self, value: ValueView) -> str | None:
        maker = value.producer
        if maker is None or maker.kind != DEQUANTIZE:
            return _float(value)
        dtype = next(n for n, known in DTYPES.items() if known == maker.main_operand.constant.dtype)
        return None if dtype in self.capability.activations.grids else f"its constant is {dtype}"

    def _refusal_of_weight(self, node: NodeView, mode: str) -> str | None:
        maker = node.operand("weight").producer
        if maker is None or maker.kind not in (DEQUANTIZE, PER_CHANNEL):
            return "its weight is in float"
        support = self.capability.specs(node, WEIGHT_OPERAND, mode)
        why = None if support is None else _first(support.refusal, specs_of_weight(maker))
        return f"its weight is {why}" if why else None

    def _misfit(self, node: NodeView, operand: int | None, quantize: NodeView) -> str | None:
        """Say which codes of an activation the backend does not have."""
        support = self.capability.specs(node, operand)
        return None if support is None else _first(support.refusal, specs_of(quantize))

    def _within(
        self, reader: NodeView, row: OperatorSupport | None, value: ValueView
    ) -> NodeView | None:
        """Return the candidate that makes a value on the way to the result of a reader."""
        made = value.producer
        maker = None if made is None else self._clips.get(made.index, made)
        own = None if maker is None else self._row_of(maker)
        if maker is None or own is None:
            return None
        within = (
            is_table(row, own)
            or is_summed(value, reader, row)
            or (maker is made and takes_parts(reader, row, maker))
        )
        return maker if within else None

    def _row_of(self, node: NodeView) -> OperatorSupport | None:
        return self._candidates.get(node.index)

    def _quantizers(self, node: NodeView) -> list[NodeView]:
        """Return the operators that quantize a candidate's result."""
        users = [user for user, _ in self._results[node.index].uses]
        behind = [u for user in users if user.kind == ROUND for u, _ in user.output.uses]
        return [user for user in (*users, *behind) if user.kind == QUANTIZE]

    def _drop_unquantized(self) -> None:
        """Drop candidates whose results are neither quantized nor computed within their readers.

        Readers come behind, so one walk from the end finds all of them.
        """
        nodes = {node.index: node for node in self.graph.nodes}
        for index in sorted(self._candidates, reverse=True):
            row, node = self._candidates[index], nodes[index]
            if row is None:
                continue
            if reason := self._refusal_of_result(node, row):
                self.refused[node.name] = reason
                del self._candidates[index]
        kept = self._candidates
        for index in sorted(kept):  # an operator that reads dropped ones alone is in float
            row, node = kept[index], nodes[index]
            inner = row is not None and (row.elementwise or row.reads_parts or row.sums)
            values = [v for _, _, v in node.operands if v.is_tensor and not v.is_constant]
            if inner and not all(quantizer_of(v) or self._within(node, row, v) for v in values):
                self.refused[node.name] = "its operands are computed in float"
                del kept[index]

    def _refusal_of_result(self, node: NodeView, row: OperatorSupport) -> str | None:
        value = self._results[node.index]
        quantizers = self._quantizers(node)
        others = [
            user
            for user, _ in value.uses
            if user.kind not in (QUANTIZE, ROUND) and not user.traits.asks_for_shape
        ]
        if self.capability.mixed and not quantizers:
            return None
        if not value.is_result and is_within_tables(node, others, self._row_of):
            return None
        if any(is_summed(value, user, self._row_of(user)) for user, _ in value.uses[:1]):
            return None
        if reader_of_parts(node, self._row_of) is not None:
            return None
        if (value.is_result or others or not quantizers) and not row.float_in_regions:
            return "its result is not quantized"
        if any(quantize.block != node.block for quantize in quantizers):
            return "its result is quantized in another branch or loop"
        for quantize in quantizers:
            if why := self._misfit(node, None, quantize):
                return f"its result is {why}"
            if why := self._other_grid(node, row, quantize):
                return why
        return None

    def _other_grid(self, node: NodeView, row: OperatorSupport, result: NodeView) -> str | None:
        """Say that a result does not have the parameters that the table asks for."""
        own = parameters_of(result)
        if row.role is Role.FIXED and row.fixed is not None:
            fixed = (row.fixed.scale, row.fixed.zero_point)
            if (own.scale, own.zero_point) != fixed:
                return f"its result has other parameters than scale {fixed[0]:g}, zero {fixed[1]}"
        source = quantizer_of(node.main_operand)
        if row.role is Role.SHARED and source is not None and parameters_of(source) != own:
            return None if self.capability.mixed else "its parameters differ from its operand's"
        return None

    def _make_units(self) -> None:
        """Group the candidates with the operators that are computed together with them."""
        nodes = {node.index: node for node in self.graph.nodes}
        sets: DisjointSets[int] = DisjointSets()
        for index, row in self._candidates.items():
            sets.root(index)
            if row is None:
                continue
            result = self._results[index]
            assert result.producer is not None
            sets.unite(result.producer.index, index)
            for user in (user for user, _ in result.uses if user.kind == ROUND):
                sets.unite(user.index, index)
            for _, _, value in nodes[index].operands:
                if maker := self._within(nodes[index], row, value):
                    sets.unite(maker.index, index)
        units: dict[int, list[NodeView]] = {}
        for index in sorted(sets):
            units.setdefault(sets.root(index), []).append(nodes[index])
        self.found.units = [*units.values(), *([node] for node in self._float_layers)]
        integers = len(self.found.units)
        self.found.units += [[node] for node in self._floats]
        self.found.floats = set(range(integers, len(self.found.units)))
        self._link({n.index: k for k, unit in enumerate(self.found.units) for n in unit})

    def _link(self, number: dict[int, int]) -> None:
        """Link the units; first the pairs where one hands integers to the other."""
        shared: list[tuple[int, int]] = []
        readers: dict[int, int] = {}  # the first unit that reads a quantized value
        choosers: dict[int, int] = {}  # the first that reads one quantized as the model runs
        for own, unit in enumerate(self.found.units):
            for value in (value for node in unit for _, _, value in node.operands):
                if choice := choice_of(value):
                    value = choice.main_operand
                    shared.append((choosers.setdefault(value.id, own), own))
                maker = value.producer
                if maker is not None and maker.kind == "prim::ListUnpack":
                    maker = maker.main_operand.producer
                source = quantizer_of(value)
                if maker is not None and maker.kind == DEQUANTIZE and source is not None:
                    maker = source.main_operand.producer
                    shared.append((readers.setdefault(source.index, own), own))
                if maker is not None and maker.index in number:
                    self.found.links.append((number[maker.index], own))
        links = dict.fromkeys((*self.found.links, *shared))
        self.found.links = [(one, other) for one, other in links if one != other]


def both_reasons(*reasons: str | None) -> str | None:
    """Return the reasons why an operator is not on integers, and not in float in a region."""
    on_integers, in_float = reasons
    if not on_integers or not in_float or in_float in on_integers:
        return on_integers or in_float
    return f"{on_integers}, and no region has it in float: {in_float}"


def _unpacked(node: NodeView) -> list[NodeView]:
    """Return the nodes that unpack a list which a node makes."""
    users = [user for value in node.outputs for user, _ in value.uses]
    return [user for user in users if user.kind == "prim::ListUnpack"]


def _float(value: ValueView) -> str:
    if choice := choice_of(value):
        return f"its operand '{choice.main_operand.name}' is quantized as the model runs"
    return f"its operand '{value.name}' is in float"


def _first(refusal: Any, specs: Iterable[Spec]) -> str | None:
    """Return None if one of the specifications passes, else why the first does not."""
    reasons = [refusal(spec) for spec in specs]
    return None if None in reasons else str(reasons[0])
