"""Turn the selection and the user's options into annotations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from ..configuration.configuration import ResolvedConfiguration
from ..configuration.options import NOTHING, TensorOptions
from ..graph.functions import function_behind
from ..graph.view import NodeView, ValueView
from ..observers import FunctionError, Histogram, MinMax, MinMaxWithin
from ..specification.annotation import Annotations, QuantizationAnnotation
from ..specification.bias import bias_qparams
from ..specification.specification import (
    AnySpec,
    DerivedQuantizationSpec,
    EdgeOrNode,
    QuantizationSpec,
    SharedQuantizationSpec,
    ValueOrNode,
)
from .capability import Capability
from .policy import Policy
from .selection import Selection
from .signs import can_be_negative
from .standalone import Standalone, weight_spec
from .support import WEIGHT_OPERAND, Role, Spec, SpecSupport

BIAS = QuantizationSpec.of_bits(16, qscheme="per_tensor_symmetric", observer=MinMax())
INT32 = SpecSupport({"int32": (-(2**31) + 1, 2**31 - 1)}, ("per_tensor_symmetric",))


@dataclass
class AnnotationWriter:
    """Turns a selection into annotations."""

    policy: Policy
    selection: Selection
    resolved: ResolvedConfiguration
    annotations: Annotations = field(default_factory=Annotations)
    results: dict[int, AnySpec | None] = field(default_factory=dict)  # by index of the node
    negative: dict[int, bool] = field(default_factory=dict)  # whether it can be below 0, by id

    def __post_init__(self) -> None:
        self.nodes = self.selection.nodes
        self.standalone = Standalone(self.policy, self.resolved, self.tied_tables())
        self.readers: dict[int, list[NodeView]] = {}  # selected, by id of their origin
        for index in sorted(self.selection.selected.keys() - self.selection.dynamic):
            for _, _, value in self.selection.operands(self.nodes[index]):
                origin = self.selection.origin(value)
                self.readers.setdefault(origin.id, []).append(self.nodes[index])

    def tied_tables(self) -> dict[int, NodeView]:
        """Return, by index of an embedding, the quantized operator that has its table too."""
        support = self.selection.support
        found = {}
        for table in self.nodes.values():
            if table.kind not in support or support[table.kind].role is not Role.LOOKUP:
                continue
            for user, operand in table.operand("weight").uses:
                row = self.selection.selected.get(user.index)
                weighs = row is not None and row.role is Role.WEIGHTED and operand == WEIGHT_OPERAND
                if weighs and self.weight(user) is not None:
                    found[table.index] = user
        return found

    def write(self) -> Annotations:
        self.annotations.reasons = self.selection.reasons
        summed = {weighted.index for weighted in self.selection.summed.values()}
        for index in sorted(self.selection.selected):
            has_result = index not in summed and index not in self.selection.inner
            self.annotate(self.nodes[index], has_result)
        self.share()
        for node in self.nodes.values():
            if self.standalone.role(node) is None:
                continue
            refused = self.selection.refused.get(node.index)
            if reason := refused or self.standalone.reason(node):
                self.annotations.reasons[node.name] = reason
            else:
                self.annotations[node] = self.standalone.annotation(node)
                if why := self.standalone.why(node):
                    self.annotations.chosen[node.name] = why
        return self.annotations

    def share(self) -> None:
        """Say which results have the same parameters by the backend's wish."""
        shared = self.policy.capability.shared
        for group in shared(self.selection.graph) if shared else ():
            places = [value for value in group if value.id in self.selection.by_output]
            if len(places) > 1:
                self.annotations.share(*places)

    def annotate(self, node: NodeView, has_result: bool) -> None:
        row = self.selection.selected[node.index]
        operands = self.operands(node)
        # An operand that is quantized anew is not to share with others of an equal specification.
        # In the mode dynamic it does: parameters are chosen once for all that read it.
        anew = any(self.is_produced(v) for v in operands if isinstance(v, ValueView))
        anew &= not self.is_dynamic(node)
        owner = self.selection.summed.get(node.index, node)
        owner = self.selection.inner.get(node.index, owner)
        if row.role is Role.WEIGHTED:
            operands.update(self.constants(node))
        part_of = None if owner is node else owner
        ranks = self.selection.selected[owner.index].ranks
        result = self.result(node) if has_result else None
        value = self.selection.result(node)
        maker = value.producer
        own_result = value is node.output or maker is None
        self.annotations[node] = QuantizationAnnotation(
            operands, result if own_result else None, not anew, part_of, ranks
        )
        if not own_result:
            assert maker is not None
            own = self.annotations.get(maker, QuantizationAnnotation(part_of=owner))
            self.annotations[maker] = replace(own, output_qspec=result, ranks=ranks)
        if self.has_equal_operands(node):
            places = [
                (value, node) if value in operands else self.source(node, value)
                for value in self.quantized_values(node)
            ]
            self.annotations.share(*places)

    def values(self, node: NodeView) -> list[ValueView]:
        return [value for _, _, value in self.selection.operands(node)]

    def quantized_values(self, node: NodeView) -> list[ValueView]:
        """Return the operands that are not left in float, each once."""
        values = dict.fromkeys(self.values(node))
        return [v for v in values if self.is_produced(v) or self.operand(node, v) is not None]

    def is_dynamic(self, node: NodeView) -> bool:
        """Whether its input is quantized as the model runs."""
        return node.index in self.selection.dynamic

    def is_produced(self, value: ValueView) -> bool:
        """Whether a selected operator's result is quantized and the value goes back to it."""
        return not value.written and self.selection.origin(value).id in self.selection.by_output

    def operands(self, node: NodeView) -> dict[ValueOrNode, AnySpec]:
        specs = {value: self.operand(node, value) for value in dict.fromkeys(self.values(node))}
        if self.has_equal_operands(node):
            self.make_equal(node, specs)
        return {value: spec for value, spec in specs.items() if spec is not None}

    def has_equal_operands(self, node: NodeView) -> bool:
        """Whether its operands must share: not within a table, which adds real numbers."""
        within = any(self.selection.is_inner(value) for value in self.values(node))
        return node.kind in self.policy.equal_operands and not within

    def make_equal(self, node: NodeView, specs: dict[ValueView, AnySpec | None]) -> None:
        """Quantize operands anew whose specification differs from the first; float stays float.

        With unsigned and signed operands, a signed one counts as the first: without negative codes,
        negative numbers would be lost.
        """
        present = {v: specs[v] or self.produced(v) for v in self.quantized_values(node)}
        found = list(present.values())
        if self.policy.unsigned:
            found.sort(key=lambda spec: isinstance(spec, Spec) and spec.quant_min >= 0)
        first = next(iter(found), None)
        for value, spec in present.items():
            if isinstance(first, Spec) and spec != first and not _same_grid(spec, first):
                specs[value] = first

    def operand(self, node: NodeView, value: ValueView) -> AnySpec | None:
        """Return how an operand is quantized; None as its maker's result is, or not at all."""
        if self.selection.is_inner(value):
            return None
        options = self.resolved.of(node).input
        if self.is_dynamic(node):
            return self.apply(options.updated(self.resolved.of_value(value)), node, value)
        if not self.is_produced(value):
            if not options:
                options = self.wanted_by_readers(self.selection.origin(value), node)
            return self.apply(options.updated(self.resolved.of_value(value)), node, value)
        if not options or options.dtype == "float":
            return None
        said = self.resolved.of_value(self.selection.origin(value))
        spec = self.apply(options.updated(said).updated(self.resolved.of_value(value)), node, value)
        return None if spec == self.produced(value) else spec

    def produced(self, value: ValueView) -> AnySpec | None:
        """Return the specification of the result that the value goes back to."""
        maker = self.selection.by_output.get(self.selection.origin(value).id)
        if maker is None:
            return None
        spec = self.result(maker)
        if not isinstance(spec, SharedQuantizationSpec):
            return spec
        first = self.quantized_values(maker)[0]
        return self.operand(maker, first) or self.produced(first)

    def apply(self, options: TensorOptions, node: NodeView, value: ValueView) -> Spec | None:
        default = self.policy.activation
        if self.is_dynamic(node):
            default = self.policy.dynamic_of(node)
        spec = options.apply(default, where=f"'{node.name}'")
        unsigned = self.policy.unsigned and isinstance(spec, QuantizationSpec)
        if not unsigned or can_be_negative(value, self.negative):
            return spec
        assert isinstance(spec, QuantizationSpec)
        return spec.without_sign()

    def result(self, node: NodeView) -> AnySpec | None:
        if node.index not in self.results:
            self.results[node.index] = self.find_result(node)
        return self.results[node.index]

    def find_result(self, node: NodeView) -> AnySpec | None:
        row = self.selection.selected[node.index]
        value = self.selection.result(node)
        layers, values = self.resolved.layers, self.resolved.values
        options = result_options(self.resolved, node, value)
        in_float = options.dtype == "float" or node.index in self.selection.float_results
        if in_float or self.is_dynamic(node):
            return None
        is_special = (
            speaker(self.resolved, node, value).index in layers
            and options != self.resolved.everywhere.output
        ) or value.id in values
        if not (is_special and options):
            if row.role is Role.FIXED:
                return row.fixed
            quantized = self.quantized_values(node)
            if row.role is Role.SHARED and quantized:
                # Within the range of its operands, if these are all in the group.
                within = len(quantized) == len(set(self.values(node)))
                return SharedQuantizationSpec(self.source(node, quantized[0]), observed=not within)
        if not options:
            options = self.wanted_by_readers(value, node)
        return self.apply(options, node, value)

    def wanted_by_readers(self, value: ValueView, node: NodeView) -> TensorOptions:
        """Return the options that all readers want of a result, where it has none of its own.

        A wish that the backend cannot fulfil leaves the reader in float, not the value.
        """
        wanted = [self.wanted_by(reader) for reader in self.readers.get(value.id, ())]
        if not any(wanted):
            return self.wanted_by_function(value)
        if any(options != wanted[0] for options in wanted):
            return NOTHING
        spec = self.apply(wanted[0], node, value)
        maker = value.producer or node
        refused = spec is None or self.policy.capability.refusal(maker, None, spec) is not None
        return NOTHING if refused else wanted[0]

    def wanted_by_function(self, value: ValueView) -> TensorOptions:
        """Return the search by the error of a function, where one alone reads a value.

        The default search gives way to it, and no method that was asked for.
        """
        default = self.policy.activation.observer
        if type(default) is not Histogram or function_behind(value) is None:
            return NOTHING
        return TensorOptions(calibration=FunctionError(**default.options))

    def wanted_by(self, reader: NodeView) -> TensorOptions:
        options = self.resolved.of(reader).input
        if options.dtype == "float":
            options = NOTHING  # it reads the integers all the same
        flat = self.selection.selected[reader.index].input_range
        if options or flat is None or reader.index in self.selection.inner:
            return options
        return TensorOptions(calibration=MinMaxWithin(*flat))

    def weight(self, node: NodeView) -> Spec | None:
        return weight_spec(self.policy, self.resolved, node)

    def constants(self, node: NodeView) -> dict[ValueOrNode, AnySpec]:
        """Return the weight's specification, and the bias's: in steps of the accumulator."""
        weight, bias = node.operand("weight"), node.operand("bias")
        spec = self.weight(node)
        specs: dict[ValueOrNode, AnySpec] = {} if spec is None else {weight: spec}
        if (of_bias := self.bias(node, bias, spec)) is not None:
            specs[bias] = of_bias
        return specs

    def bias(self, node: NodeView, bias: ValueView, weight: Spec | None) -> AnySpec | None:
        """Return how a bias is quantized; None where there is none, or for not at all."""
        inputs = node.main_operand
        options = self.resolved.of(node).bias
        if not isinstance(bias.constant, torch.Tensor) or options.dtype == "float":
            return None
        if options and options.given() != {"dtype": "int32"}:  # the accumulator's, as by default
            return options.apply(BIAS, 0, f"bias of '{node.name}'")
        if self.policy.capability.float_biases:
            return None
        if isinstance(weight, QuantizationSpec) and weight.group_size is not None:
            return None  # no accumulator has the scales of groups
        if (
            weight is not None
            and not self.is_dynamic(node)
            and (self.is_produced(inputs) or self.operand(node, inputs))
        ):
            edges = self.source(node, inputs), (node.operand("weight"), node)
            return bias_of(edges, weight, self.policy.capability)
        return None

    def source(self, node: NodeView, value: ValueView) -> EdgeOrNode:
        """Return the quantized value that the node's operand is, or rearranges."""
        if self.is_produced(value) and self.operand(node, value) is None:
            return self.selection.origin(value)
        return value, node


def bias_of(
    edges: tuple[EdgeOrNode, EdgeOrNode], weight: Spec, capability: Capability
) -> DerivedQuantizationSpec:
    """Return how a bias is quantized in steps of the sum of products.

    Args:
        edges: the quantized input and the quantized weight.
        weight: how the weight is quantized.
        capability: of the backend, whose accumulators the sums are in.
    """
    per_channel = isinstance(weight, QuantizationSpec) and weight.ch_axis is not None
    accumulators = capability.accumulators or INT32
    dtype, (low, high) = next(iter(accumulators.grids.items()))
    return DerivedQuantizationSpec(
        edges,
        bias_qparams,
        dtype,
        low,
        high,
        "per_channel_symmetric" if per_channel else "per_tensor_symmetric",
        0 if per_channel else None,
    )


def speaker(resolved: ResolvedConfiguration, node: NodeView, result: ValueView) -> NodeView:
    """Return whose output options hold: the operator's, or its clip's if only that has a rule."""
    clip = result.producer
    own = node.index in resolved.layers or clip is None or clip.index not in resolved.layers
    return node if own or clip is None else clip


def result_options(
    resolved: ResolvedConfiguration, node: NodeView, result: ValueView
) -> TensorOptions:
    """Return the options of an operator's result, or of the clip's behind it."""
    said = resolved.of(speaker(resolved, node, result)).output
    return said.updated(resolved.of_value(result))


def _same_grid(spec: AnySpec | None, other: AnySpec) -> bool:
    """Say whether two specifications differ in the observer at most."""
    if isinstance(spec, QuantizationSpec) and isinstance(other, QuantizationSpec):
        return replace(spec, observer=other.observer) == other
    return spec == other
