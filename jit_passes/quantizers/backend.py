"""The quantizer that follows a backend's support table, and users' options for single layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..configuration.configuration import Configuration, ResolvedConfiguration, Rule
from ..configuration.file import read_configuration
from ..configuration.options import AUTO, LayerOptions, TensorOptions
from ..configuration.selector import Selector
from ..errors import ArgumentError, JitPassesError
from ..graph.view import GraphView, NodeView
from ..specification.annotation import Annotations
from ..specification.specification import QuantizationSpec
from .automatic import Choice, choose_modes
from .base import Quantizer
from .capability import ACTIVATION, DYNAMIC, WEIGHT, Capability
from .front_end import find_front_end
from .idle import idle_rules
from .joined import clipped_output
from .policy import Policy
from .refusals import ALL_FLOAT, Refusals
from .residuals import STREAM, find_stream, find_summed, has_float_sums
from .selection import Selection
from .standalone import weight_spec
from .support import Role
from .writer import AnnotationWriter, result_options

WEIGHT_ONLY = "weight_only"


class BackendQuantizer(Quantizer):
    """Quantize all that a backend can do: weighted operators, and operators between them.

    The methods `set_*` and `skip` apply in the order in which they are called, and later ones win.
    Each returns the quantizer.

    Args:
        target: the backend, a `Target`, for callers of `prepare` with "auto"; or the `Capability`
            of a backend without a target here.
        capability: the part of the backend that is used; by default all.
        activation: specification of activations; None for uint8, affine, or the nearest one that
            the backend has.
        weight: specification of weights, see `Policy`; None for int8, symmetric, per channel, or
            the nearest one that the backend has.
        equal_operands: operators whose operands must have the same parameters.
        unsigned: whether activations that cannot be below 0 have codes from 0 on, where the
            specification has signed ones. The number of codes stays, so steps have half the size.

    Attributes:
        policy: all that, as it was settled.
        configuration: options of single layers.
        has_data: whether static operators will get ranges from data, which the mode "auto" asks.

    Raises:
        JitPassesError: the target is neither.
    """

    def __init__(
        self,
        target: Any,
        *,
        capability: Capability | None = None,
        activation: QuantizationSpec | None = None,
        weight: QuantizationSpec | None = None,
        equal_operands: tuple[str, ...] = (),
        unsigned: bool = False,
    ) -> None:
        own = target if isinstance(target, Capability) else getattr(target, "capability", None)
        if not isinstance(own, Capability):
            raise JitPassesError(
                f"a backend's quantizer is made for a Target or a Capability, not for {target!r}: "
                "pass jit_passes.targets.Stock(), say"
            )
        can = capability or own
        self.target = None if target is own else target
        self.policy = Policy(
            can,
            activation or can.activations.nearest(ACTIVATION),
            weight or can.weights.nearest(WEIGHT),
            equal_operands,
            unsigned,
            can.dynamic.nearest_dynamic(DYNAMIC) if can.dynamic else None,
        )
        self.configuration = Configuration()
        self.has_data = True

    def set_global(self, options: LayerOptions) -> BackendQuantizer:
        """Say how operators are quantized that nothing more special is said about."""
        if not isinstance(options, LayerOptions):
            raise ArgumentError(
                f"options are LayerOptions, not {options!r}; a dict is for configure({{...}})"
            )
        everywhere = self.configuration.everywhere.updated(options)
        self.configuration = replace(self.configuration, everywhere=everywhere)
        return self

    def set_module_name(self, name: str, options: LayerOptions | None) -> BackendQuantizer:
        """Say it for modules by their paths, a glob; None leaves them in float."""
        return self._add(Selector(module=name), options)

    def set_module_type(self, name: str, options: LayerOptions | None) -> BackendQuantizer:
        """Say it for modules by their class's name, a glob; None leaves them in float."""
        return self._add(Selector(module_type=name), options)

    def set_op(self, op: str, options: LayerOptions | None) -> BackendQuantizer:
        """Say it for operators, `conv2d`, a glob; None leaves them in float."""
        return self._add(Selector(op=op), options)

    def set_value(self, name: str, options: TensorOptions) -> BackendQuantizer:
        """Say how a value is quantized, by its stable name, a glob."""
        return self._add(Selector(value=name), options)

    def skip(self, **selector: Any) -> BackendQuantizer:
        """Leave operators in float; the arguments are as for `Selector`."""
        return self._add(Selector(**selector), None)

    def configure(self, configuration: Any) -> BackendQuantizer:
        """Add the rules of a configuration: a path, a dict, or a `Configuration`."""
        if not isinstance(configuration, Configuration):
            configuration = read_configuration(configuration)
        self.configuration = replace(
            configuration,
            everywhere=self.configuration.everywhere.updated(configuration.everywhere),
            rules=(*self.configuration.rules, *configuration.rules),
            stages=self.configuration.stages.updated(configuration.stages),
        )
        return self

    def configured(self, configuration: Any) -> BackendQuantizer:
        """Return a copy with the rules of a configuration."""
        return copy.copy(self).configure(configuration)

    def without_data(self) -> BackendQuantizer:
        """Return a copy whose mode "auto" chooses modes without data."""
        made = copy.copy(self)
        made.has_data = False
        return made

    def _add(self, selector: Selector, options: Any) -> BackendQuantizer:
        rule = Rule(selector, LayerOptions(keep_float=True) if options is None else options)
        rules = (*self.configuration.rules, rule)
        self.configuration = replace(self.configuration, rules=rules)
        return self

    def annotate(self, graph: GraphView) -> Annotations:
        resolved = self.configuration.resolve(graph)
        front_end = find_front_end(graph)
        choices = self._choose(graph, resolved, front_end)
        operators = self.policy.capability.operators
        refused = {
            node.index: f"kept in float by {resolved.last_rule(node) or 'the configuration'}"
            for node in graph.nodes
            if resolved.of(node).keep_float
        }
        kept = frozenset(refused)
        dynamic = frozenset(n.index for n in graph.nodes if resolved.mode(n) == "dynamic")
        unasked = {index: choice.why for index, choice in choices.items() if choice.mode is None}
        unasked |= self._without_mode(graph, resolved)
        unasked |= self._stream(graph, resolved)
        refused = unasked | refused | self._refused_modes(graph, resolved)
        float_results = frozenset(
            node.index
            for node in graph.nodes
            if node.kind in operators
            and len(node.outputs) == 1
            and result_options(resolved, node, clipped_output(node, operators[node.kind])).dtype
            == "float"
        )
        own_results = frozenset(
            index for index, options in resolved.layers.items() if options.output
        ) | frozenset(
            node.index
            for node in graph.nodes
            for said in map(resolved.of_value, node.outputs)
            if said and said.dtype != "float"
        )
        float_inputs = frozenset(
            node.index
            for node in graph.nodes
            if node.kind in operators and resolved.of(node).input.dtype == "float"
        )
        blamed: set[str] = set()
        while True:  # a refused operator changes the set between the others
            selection = Selection(
                self.policy.capability,
                graph,
                refused,
                float_results,
                own_results,
                dynamic,
                float_inputs,
                resolved.products_on_integers(),
            )
            selection.run()
            if unfulfilled := selection.float_inputs_on_integers():
                float_inputs -= unfulfilled
                continue
            if added := selection.wanted_in_float():
                float_results |= added
                continue
            writer = AnnotationWriter(self.policy, selection, resolved)
            refusals = Refusals(writer)
            if not (found := refusals.find()):
                break
            refused |= found
            blamed |= refusals.blamed
        annotations = writer.write()
        annotations.idle = idle_rules(resolved, selection, blamed)
        kept |= {index for index, reason in refused.items() if reason == ALL_FLOAT}
        kept |= {index for index, choice in choices.items() if choice.better}
        annotations.kept = {selection.nodes[index].name for index in kept}
        annotations.refused = {
            selection.nodes[index].name: reason
            for index, reason in refused.items()
            if index not in kept and unasked.get(index) != reason
        }
        annotations.chosen |= {
            selection.nodes[index].name: choice.why for index, choice in choices.items()
        }
        annotations.lossy = self._lossy(front_end, annotations, resolved, selection)
        return annotations

    def _lossy(
        self,
        front_end: Mapping[int, str],
        annotations: Annotations,
        resolved: ResolvedConfiguration,
        selection: Selection,
    ) -> dict[str, str]:
        """Return why operators would be better in float, by name, if no rule is about them."""
        quantized = annotations.quantized
        nodes = [selection.nodes[i] for i in sorted(front_end) if i in selection.nodes]
        return {
            node.name: front_end[node.index]
            for node in nodes
            if node.name in quantized
            and node.traits.counts
            and resolved.mode(node) != WEIGHT_ONLY
            and not resolved.has_mode_of_its_own(node)
        }

    def is_static(self, graph: GraphView) -> bool:
        """Say whether any operator with weights is to have ranges from data."""
        return bool(self._static(graph, self.configuration))

    def find_rounded(self, graph: GraphView) -> set[int]:
        """Return the indices of linears whose results are rounded for residual sums in float.

        Rules for single layers do not count: a layer that a rule makes dynamic is included.
        """
        can = self.policy.capability
        if not has_float_sums(can) or not (found := find_summed(graph)):
            return set()
        found -= {node.index for node in graph.nodes if can.adds_in_float(node)}
        return found & self._static(graph, replace(self.configuration, rules=()))

    def find_weights(self, graph: GraphView) -> dict[int, QuantizationSpec]:
        """Return how weights of operators are to be quantized, by index."""
        resolved = replace(self.configuration, allow_unmatched=True).resolve(graph)
        chosen = self._choose(graph, resolved, find_front_end(graph))
        floats = {index for index, choice in chosen.items() if choice.mode is None}
        specs = {
            node.index: weight_spec(self.policy, resolved, node)
            for node in graph.nodes
            if self.policy.capability.is_weighted(node)
            and node.index not in floats
            and not resolved.of(node).keep_float
        }
        return {i: spec for i, spec in specs.items() if isinstance(spec, QuantizationSpec)}

    def _static(self, graph: GraphView, configuration: Configuration) -> set[int]:
        """Return the indices of operators with weights that are to have ranges from data."""
        resolved = replace(configuration, allow_unmatched=True).resolve(graph)
        chosen = self._choose(graph, resolved, find_front_end(graph))
        floats = {index for index, choice in chosen.items() if choice.mode is None}
        weighted = (node for node in graph.nodes if self.policy.capability.is_weighted(node))
        return {n.index for n in weighted if resolved.mode(n) == "static"} - floats

    def _choose(
        self, graph: GraphView, resolved: ResolvedConfiguration, front_end: Mapping[int, str]
    ) -> dict[int, Choice]:
        """Choose the modes that are left to the graph; return them by index."""
        said = (resolved.everywhere, *resolved.layers.values())
        if all(options.mode != AUTO for options in said):
            return {}
        can = self.policy.capability
        found = choose_modes(graph, can, resolved, self.has_data, front_end)
        modes = {index: choice.mode for index, choice in found.items() if choice.mode is not None}
        resolved.chosen = {index: mode for index, mode in modes.items() if mode != "static"}
        return found

    def _without_mode(self, graph: GraphView, resolved: ResolvedConfiguration) -> dict[int, str]:
        """Return why operators stay in float where all have weights alone, by index."""
        if resolved.everywhere.mode != WEIGHT_ONLY:
            return {}
        can = self.policy.capability
        return {
            node.index: f"the target has no {WEIGHT_ONLY} form of it"
            for node in graph.nodes
            if can.is_weighted(node)
            and node.index not in resolved.layers
            and not can.has_mode(node, WEIGHT_ONLY)
        }

    def _stream(self, graph: GraphView, resolved: ResolvedConfiguration) -> dict[int, str]:
        """Return why residual sums stay in float that no rule says something of, by index."""
        stream = find_stream(graph, self.policy.capability)

        def is_told(node: NodeView) -> bool:
            own = resolved.layers.get(node.index, resolved.everywhere)
            said = own.output != resolved.everywhere.output or resolved.of_value(node.output)
            return bool(said) or own.keep_float is not None

        return {n.index: STREAM for n in graph.nodes if n.index in stream and not is_told(n)}

    def _refused_modes(self, graph: GraphView, resolved: ResolvedConfiguration) -> dict[int, str]:
        """Return why operators cannot have the mode that a rule gives them, by index.

        The mode of the global section holds for the operators that can have it.
        """
        can, found = self.policy.capability, {}

        def weighs(node: NodeView) -> bool:
            row = can.operators.get(node.kind)
            return row is not None and row.role in (Role.WEIGHTED, Role.RECURRENT)

        for node in graph.nodes:
            said = resolved.layers.get(node.index)
            own = said is not None and said.mode != resolved.everywhere.mode
            if not own or said is None or said.mode in (None, AUTO) or not weighs(node):
                continue
            if said.mode not in can.operators[node.kind].modes:
                found[node.index] = f"the target has no {said.mode} form of it"
        return found
