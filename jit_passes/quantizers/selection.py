"""Which operators of a graph a backend quantizes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from ..graph.view import GraphView, NodeView, Use, ValueView
from .boundaries import FLOAT, INTEGERS, Flow, on_integers
from .capability import Capability
from .joined import clipped_output, is_summed, is_within_tables, reader_of_parts
from .rearranged import origin_of, readers_of
from .support import OperatorSupport, Role


@dataclass
class Selection:
    """Which nodes are quantized.

    A value has an origin: the value that it is a rearrangement of. An origin counts as quantized
    when a selected node computes it, or a selected node reads it that has weights or may begin.

    Attributes:
        capability: of the backend.
        graph: the graph.
        refused: why operators must not be selected, by index.
        float_results: indices of operators whose results stay in float.
        own_results: indices of operators whose results are to be quantized by themselves.
        float_inputs: indices of weighted operators that are to see their input in float.
        wanted: indices of products of matrices that are to be on integers, with any neighbours.
        dynamic: indices of operators that quantize their inputs as the model runs: they read and
            give floats.
        inner: for an operator inside a table, the operator of the table's result, by index.
        selected: rows of the table of the operators that are selected, by index.
        by_output: the selected operators whose results are quantized, by id of the result.
        summed: the weighted operator that an addition is computed within, by index of the addition.
        reasons: why weighted operators are not selected, by name.
    """

    capability: Capability
    graph: GraphView
    refused: Mapping[int, str] = field(default_factory=dict)
    float_results: frozenset[int] = frozenset()
    own_results: frozenset[int] = frozenset()
    dynamic: frozenset[int] = frozenset()
    float_inputs: frozenset[int] = frozenset()
    wanted: frozenset[int] = frozenset()
    inner: dict[int, NodeView] = field(default_factory=dict)
    inner_values: set[int] = field(default_factory=set)
    summed: dict[int, NodeView] = field(default_factory=dict)  # weighted node by index of its add
    selected: dict[int, OperatorSupport] = field(default_factory=dict)  # by node index
    reasons: dict[str, str] = field(default_factory=dict)
    origins: dict[int, ValueView] = field(default_factory=dict)
    clipped: dict[int, ValueView] = field(default_factory=dict)  # results by node index
    activations: dict[int, list[tuple[NodeView, int, ValueView]]] = field(default_factory=dict)
    quantized: set[int] = field(default_factory=set)  # ids of origins
    by_output: dict[int, NodeView] = field(default_factory=dict)  # selected node by its value
    results: set[int] = field(default_factory=set)  # ids of values that a node may be selected for

    def __post_init__(self) -> None:
        self.nodes = {node.index: node for node in self.graph.nodes}
        self.support = self.capability.operators

    def run(self) -> None:
        for node in self.graph.nodes:
            row = self.support.get(node.kind)
            if row is not None and len(node.outputs) == 1:
                self.results.add(self.result(node).id)
        self.select_weighted()
        self.quantize_beginnings()
        self.quantize_wanted()
        self.select_between()
        if not self.capability.integers_only:
            self.drop_for_fewest_conversions()
        if self.capability.float_results:
            self.leave_results()
        self.join_tables()
        self.read_parts()
        self.fuse_sums()

    def result(self, node: NodeView) -> ValueView:
        """Return the value that is quantized of an operator that the backend has."""
        known = self.clipped.get(node.index)
        if known is None:
            known = self.clipped[node.index] = clipped_output(node, self.support[node.kind])
        return known

    def origin(self, value: ValueView) -> ValueView:
        known = self.origins.get(value.id)
        if known is None:
            known = origin_of(value, self.results, self.capability.barriers)
            self.origins[value.id] = known
        return known

    def operands(self, node: NodeView) -> list[tuple[NodeView, int, ValueView]]:
        """Return (user, operand, value) of the activations, the elements of lists one by one."""
        known = self.activations.get(node.index)
        if known is None:
            row = self.support[node.kind]
            known = self.activations[node.index] = [
                (*node.use(position, element), value)
                for position, element, value in node.operands
                if row.is_activation(position, value)
            ]
        return known

    def add(self, node: NodeView, row: OperatorSupport) -> None:
        self.selected[node.index] = row
        if node.index in self.float_results or node.index in self.dynamic:
            return
        value = self.result(node)
        self.by_output[value.id] = node
        self.quantized.add(value.id)

    def select_weighted(self) -> None:
        for node in self.graph.nodes:
            row = self.support.get(node.kind)
            if row is None or row.role is not Role.WEIGHTED:
                continue
            mode = "dynamic" if node.index in self.dynamic else "static"
            reason = self.refused.get(node.index) or self.capability.refusal(node, mode=mode)
            if reason:
                self.reasons[node.name] = reason
            else:
                self.add(node, row)
        for index in self.selected.keys() - self.dynamic - self.float_inputs:
            self.quantized.add(self.origin(self.nodes[index].main_operand).id)

    def quantize_beginnings(self) -> None:
        """Quantize operands of operators that only take floats, in a model with integers."""
        if not self.selected.keys() - self.dynamic - self.float_inputs:
            return
        if self.capability.integers_only:
            self.quantized |= {v.id for v in self.graph.inputs if v.is_tensor and not v.written}
        for node in self.graph.nodes:
            row = self.support.get(node.kind)
            left = node.index in self.refused or node.index in self.dynamic
            if row is None or not row.begins or left:
                continue
            if not self.capability.refusal(node):
                self.quantized.add(self.origin(node.main_operand).id)

    def quantize_wanted(self) -> None:
        """Let all operands be quantized of products that are to be on integers."""
        for index in self.wanted - self.refused.keys():
            if not self.capability.refusal(self.nodes[index]):
                values = (value for _, _, value in self.operands(self.nodes[index]))
                self.quantized |= {self.origin(v).id for v in values if not v.is_constant}

    def select_between(self) -> None:
        for node in self.graph.nodes:
            row = self.support.get(node.kind)
            if row is None or len(node.outputs) != 1:
                continue
            if row.role in (Role.WEIGHTED, Role.LOOKUP, Role.RECURRENT):
                continue
            if node.index in self.refused:
                self.reasons[node.name] = self.refused[node.index]
                continue
            reason = self.reason_between(node) or self.capability.refusal(node)
            if reason:
                self.reasons[node.name] = reason
            else:
                self.add(node, row)

    def reason_between(self, node: NodeView) -> str | None:
        """Say why an operator without weights cannot be quantized.

        Its operands must be quantized already: of others it is not known that they are float.
        """
        if not node.output.is_tensor:
            return "it gives no tensor"  # a sum of lists
        values = [value for _, _, value in self.operands(node)]
        if not values:
            return "it has no operand"
        if self.support[node.kind].constants:
            values = [value for value in values if not value.is_constant]
        for value in values:
            if not value.is_tensor or value.is_constant:
                return "one of its operands is a constant"
            if value.written:
                return f"its operand '{value.name}' is written in place"
            if self.origin(value).id not in self.quantized:
                return f"its operand '{value.name}' is in float"
        return None

    def drop_for_fewest_conversions(self) -> None:
        """Keep the operators between weighted ones with which the fewest values are converted.

        Among several choices, take the one with the fewest integers: float is more exact, and as
        fast.
        """
        flows = self.flows()
        chosen = on_integers(flows)
        for index in list(self.selected):
            if not self.is_given(index) and index not in chosen:
                value = self.result(self.nodes[index])
                del self.selected[index]
                self.by_output.pop(value.id, None)
                name = self.nodes[index].name
                self.reasons[name] = "on integers, no fewer values would be converted"

    def leave_results(self) -> None:
        """Leave results of operators with weights in float where nothing reads their integers."""
        for index, row in self.selected.items():
            value = self.result(self.nodes[index])
            free = row.role is Role.WEIGHTED and index not in self.own_results
            if free and value.id in self.by_output and {*self.readers(value)} <= {FLOAT}:
                del self.by_output[value.id]
                self.float_results |= {index}

    def integers_of(self, node: NodeView) -> str | None:
        """Return the operator whose integers a selected one reads; None where it reads floats."""
        floats = self.dynamic | self.float_inputs | self.float_results
        for _, _, value in self.operands(node) if node.index in self.selected else ():
            origin = self.origin(value)
            maker = origin.producer if origin.id in self.by_output else None
            if maker is not None and maker.index not in floats:
                return maker.name
        return None

    def float_inputs_on_integers(self) -> set[int]:
        """Return the operators that are to see their input in float, and it is on integers."""
        found = self.float_inputs - self.dynamic
        return {index for index in found if self.integers_of(self.nodes[index])}

    def wanted_in_float(self) -> set[int]:
        """Return operators with weights whose results stay in float for their reader's sake."""
        summed = {weighted.index for weighted in self.summed.values()}
        return {
            node.index
            for node in self.by_output.values()
            if node.index not in summed
            and node.index not in self.own_results
            and (self.capability.adds_in_float(node) or self.capability.returns_float(node))
            and not any(self.reads(*use) for use in node.output.uses)
        }

    def flows(self) -> list[Flow]:
        """Return maker and readers of each value that selected operators make or read.

        A product of matrices that may begin is worth a conversion: so much is left to compute.
        """
        origins: dict[int, ValueView] = {}
        for index in self.selected:
            node = self.nodes[index]
            for value in (
                self.result(node),
                *(self.origin(v) for _, _, v in self.operands(node) if not v.is_constant),
            ):
                origins[value.id] = value
        products = [
            Flow(INTEGERS, (index,))
            for index, row in self.selected.items()
            if row.begins and self.nodes[index].traits.product
        ]
        flows = [Flow(self.side_of(v), tuple(self.readers(v))) for v in origins.values()]
        return flows + products

    def side_of(self, value: ValueView) -> Hashable:
        node = self.by_output.get(value.id)
        if node is None:
            return FLOAT
        return INTEGERS if self.is_given(node.index) else node.index

    def readers(self, value: ValueView) -> list[Hashable]:
        """Return which sides read a value, through operators that only move data."""
        return [
            self.side_of_use(use) for use in readers_of(value, self.reads, self.capability.barriers)
        ]

    def reads(self, user: NodeView, operand: int) -> bool:
        """Whether an operator is selected and the operand is one that it reads the integers of."""
        row = self.row_on_integers(user)
        return row is not None and operand in row.operands

    def side_of_use(self, use: Use | None) -> Hashable:
        if use is None or not self.reads(*use):
            return FLOAT
        index = use[0].index
        return INTEGERS if self.is_given(index) else index

    def is_given(self, index: int) -> bool:
        """Say whether a selected operator is on integers however many values are converted."""
        return self.selected[index].role is Role.WEIGHTED or index in self.wanted

    def join_tables(self) -> None:
        """Find results that only functions of the same tensor read: one table computes them all."""
        nodes = [self.nodes[i] for i in sorted(self.selected) if self.selected[i].elementwise]
        results = {node.index: self.result(node) for node in nodes}
        makers = {value.id: index for index, value in results.items()}
        inner = {node.index for node in nodes if self.is_read_by_tables(node)}
        while True:
            sources: dict[int, set[int]] = {}  # ids of the tensors that each depends on
            for node in nodes:
                sources[node.index] = set()
                for _, _, value in self.operands(node):
                    maker = makers.get(value.id, -1)
                    # Parts of a tensor are alike where something else than a table computes them.
                    tensor = value if self.capability.integers_only else self.origin(value)
                    sources[node.index] |= sources[maker] if maker in inner else {tensor.id}
            several = {
                i for i in inner if any(len(sources[u.index]) > 1 for u, _ in results[i].uses)
            }
            if not several:
                break
            inner -= several
        for index in sorted(inner, reverse=True):
            self.compute_within(index, results[index].uses[0][0])

    def compute_within(self, index: int, reader: NodeView) -> None:
        """Note that an operator's result is no value of its own, but on the way to a reader's."""
        value = self.result(self.nodes[index])
        self.inner[index] = self.inner.get(reader.index, reader)
        self.inner_values.add(value.id)
        self.by_output.pop(value.id, None)

    def read_parts(self) -> None:
        """Find results that are never rounded, since all readers take their operands instead."""
        for index in sorted(self.selected, reverse=True):
            node = self.nodes[index]
            free = index not in self.inner and index not in self.own_results
            reader = reader_of_parts(node, self.row_on_integers) if free else None
            if reader is not None:
                self.compute_within(index, reader)
            elif self.selected[index].only_part:
                del self.selected[index]
                self.by_output.pop(self.result(node).id, None)
                self.reasons[node.name] = "its reader is in float"

    def row_on_integers(self, node: NodeView) -> OperatorSupport | None:
        """Return the row of an operator that reads integers; None for others."""
        floats = node.index in self.dynamic or node.index in self.float_inputs
        return None if floats else self.selected.get(node.index)

    def is_read_by_tables(self, node: NodeView) -> bool:
        value = self.result(node)
        return (
            node.index not in self.own_results
            and not (value.is_result or value.written)
            and is_within_tables(node, [user for user, _ in value.uses], self.row_on_integers)
        )

    def is_inner(self, value: ValueView) -> bool:
        """Whether a table computes it on the way: it never is quantized."""
        return value.id in self.inner_values

    def fuse_sums(self) -> None:
        """Let the backend add before it rounds: the weighted node's own result is not quantized.

        Where both operands come from weighted nodes, the later node adds: the other result is there
        by then. A constant tensor is broadcast most of the time, and no backend broadcasts before
        it rounds. A function of one operand takes the result of a weighted node in the same way.
        """
        for index, row in self.selected.items():
            node = self.nodes[index]
            operands = [value for *_, value in self.operands(node)]
            numbers = len(operands) < len(row.operands)
            if index in self.inner or numbers or any(v.is_constant for v in operands):
                continue
            makers = [self.by_output.get(value.id) for value in node.inputs[:2]]
            found = [
                maker.index
                for maker in makers
                if maker is not None
                and maker.index not in self.own_results
                and is_summed(maker.output, node, row)
            ]
            if found:
                self.summed[index] = self.nodes[max(found)]
