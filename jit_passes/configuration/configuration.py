"""Layer by layer, how a model is quantized: options for everything, then rules that change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import ArgumentError, JitPassesError
from ..graph.view import GraphView, NodeView, ValueView
from .options import AUTO, NOTHING, LayerOptions, TensorOptions
from .selector import Selector, explain_nothing, is_operator, is_value, known_names
from .stages import StageOptions


@dataclass(frozen=True)
class Rule:
    """Options for the operators or values that a selector matches.

    Attributes:
        selector: which operators or values.
        options: `LayerOptions` for operators; or `TensorOptions` for values, wherever these are
            quantized: the selector then names values.
        allow_unmatched: whether it may match nothing.
        where: where it was written, `layers.yaml:12:5`, for messages; "" for rules of Python.

    Raises:
        JitPassesError: the options change nothing, contradict their mode, or are for values and the
            selector has none.
    """

    selector: Selector
    options: LayerOptions | TensorOptions
    allow_unmatched: bool = False
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.selector, Selector):
            raise ArgumentError(f"selector is a Selector, not {self.selector!r}")
        if not isinstance(self.options, LayerOptions | TensorOptions):
            raise ArgumentError(
                f"options are LayerOptions, or TensorOptions for values, not {self.options!r}"
            )
        if self.options in (LayerOptions(), NOTHING):
            raise ArgumentError("the rule changes nothing: give it an option")
        if isinstance(self.options, LayerOptions):
            self.options.check_mode()
        if isinstance(self.options, TensorOptions) and self.selector.value is None:
            raise ArgumentError(
                "options of one tensor need a selector with value; options of a layer go under "
                "input, weight, output or bias"
            )


Match = tuple[str, Rule, Sequence[NodeView] | Sequence[ValueView]]


@dataclass(frozen=True)
class Configuration:
    """Options for all operators, and rules that change them for some; later rules win.

    Attributes:
        everywhere: the options of operators that no rule is about.
        rules: in order.
        allow_unmatched: whether any rule may match nothing.
        where: where `everywhere` was written, for messages.
        stages: the stages of `quantize_script` around calibration.

    Raises:
        JitPassesError: everywhere, stages or a rule is of another class.
    """

    everywhere: LayerOptions = field(default_factory=LayerOptions)
    rules: tuple[Rule, ...] = ()
    allow_unmatched: bool = False
    where: str = field(default="", compare=False)
    stages: StageOptions = field(default_factory=StageOptions)

    def __post_init__(self) -> None:
        if not isinstance(self.everywhere, LayerOptions):
            raise ArgumentError(f"everywhere is LayerOptions, not {self.everywhere!r}")
        if not isinstance(self.stages, StageOptions):
            raise ArgumentError(f"stages are StageOptions, not {self.stages!r}")
        object.__setattr__(self, "rules", tuple(self.rules))
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise ArgumentError(f"rules are Rules, not {rule!r}")

    @property
    def is_dynamic(self) -> bool:
        """Whether no operator can have another mode than dynamic."""
        said = [rule.options for rule in self.rules if isinstance(rule.options, LayerOptions)]
        modes = {self.everywhere.mode, *(options.mode for options in said if options.mode)}
        return modes == {"dynamic"}

    def resolve(self, graph: GraphView) -> ResolvedConfiguration:
        """Return the options of each operator and value of a normalized graph.

        Raises:
            JitPassesError: rules match nothing; it names them, and names that are like theirs.
        """
        resolved = ResolvedConfiguration(self.everywhere)
        nodes = [node for node in graph.nodes if is_operator(node)]
        made = [value for node in graph.nodes for value in node.outputs]
        values = [value for value in (*graph.inputs, *made) if is_value(value)]
        if self.everywhere.keep_float is not None:
            place = self.where or "the global section"
            resolved.decided_by.update((node.index, place) for node in nodes)
        names = known_names(nodes, values)
        problems = []
        for number, rule in enumerate(self.rules, 1):
            place = rule.where or f"rule {number} ({rule.selector})"
            matched = _apply(rule, place, resolved, nodes, values)
            resolved.matches.append((place, rule, matched))
            if not (rule.allow_unmatched or self.allow_unmatched):
                why = explain_nothing(rule.selector, names)
                if why is None and not matched:
                    why = f"{rule.selector}: each matches something, but nothing matches them all"
                if why is not None:
                    problems.append(f"{place}: {why}")
        if problems:
            raise JitPassesError(
                "\n".join(problems) + "\n(correct the pattern, or set allow_unmatched if the rule "
                "is meant for other models too)"
            )
        return resolved


@dataclass(eq=False)
class ResolvedConfiguration:
    """The options of each operator and value of one graph.

    Attributes:
        everywhere: the options of operators that no rule is about.
        layers: the options of operators that a rule is about, by index of the node.
        values: the options of values that a rule is about, by id.
        decided_by: where the last word on keep_float was written, by index of the node.
        chosen: the modes of operators that may have any, where these are not static, by index.
        matches: each rule, where it was written, and the operators or values that it matches.
    """

    everywhere: LayerOptions
    layers: dict[int, LayerOptions] = field(default_factory=dict)
    values: dict[int, TensorOptions] = field(default_factory=dict)
    decided_by: dict[int, str] = field(default_factory=dict)
    chosen: dict[int, str] = field(default_factory=dict)
    matches: list[Match] = field(default_factory=list)

    def of(self, node: NodeView) -> LayerOptions:
        """Return the options of an operator: the global ones updated by the matching rules.

        In the mode weight_only its tensors but the weight are said to be float.
        """
        options = self.layers.get(node.index, self.everywhere)
        weighs = node.traits.weighted is not None or node.traits.holds_weights
        return options.alone if weighs and self.mode(node) == "weight_only" else options

    def mode(self, node: NodeView) -> str:
        """Return the mode of an operator: from a rule, or chosen for it.

        Rules are for operators with weights and matrix products; operators between them follow.
        """
        options = self.everywhere
        if node.traits.counts:
            options = self.layers.get(node.index, options)
        said = options.mode
        return self.chosen.get(node.index, "static") if said == AUTO else said or "static"

    def products_on_integers(self) -> frozenset[int]:
        """Return the products of matrices that a rule says are static, by index.

        All other products are on integers where that saves conversions.
        """
        return frozenset(
            found.index
            for _, rule, matched in self.matches
            if isinstance(rule.options, LayerOptions) and rule.options.mode == "static"
            for found in matched
            if isinstance(found, NodeView) and found.traits.product and self.mode(found) == "static"
        )

    def has_mode_of_its_own(self, node: NodeView) -> bool:
        """Say whether a rule gives an operator a mode, or says that it is not to stay in float."""
        said = self.layers.get(node.index)
        if said is None:
            return False
        return said.keep_float is False or any(
            isinstance(rule.options, LayerOptions)
            and rule.options.mode not in (None, AUTO)
            and node in matched
            for _, rule, matched in self.matches
        )

    def of_value(self, value: ValueView) -> TensorOptions:
        """Return the options that rules set for a value itself, for all operators around it."""
        return self.values.get(value.id, NOTHING)

    def last_rule_of(self, tensor: str, node: NodeView, value: ValueView | None) -> str:
        """Return where a rule last said how a tensor is quantized; "" for nowhere.

        Args:
            tensor: "input", "weight", "output" or "bias".
            node: the operator that it belongs to.
            value: the tensor, where rules for values may speak of it.
        """
        for place, rule, matched in reversed(self.matches):
            options = rule.options
            if isinstance(options, TensorOptions):
                says = any(found is value for found in matched)
            else:
                says = bool(getattr(options, tensor)) and any(found is node for found in matched)
            if says:
                return place
        return ""

    def last_rule(self, node: NodeView) -> str:
        """Return where it was last said whether the operator stays in float; "" for nowhere."""
        return self.decided_by.get(node.index, "")


def _apply(
    rule: Rule,
    place: str,
    resolved: ResolvedConfiguration,
    nodes: list[NodeView],
    values: list[ValueView],
) -> list[NodeView] | list[ValueView]:
    """Apply a rule to all it matches, and return these."""
    if isinstance(rule.options, TensorOptions):
        found = list(filter(rule.selector.matches_value, values))
        for value in found:
            resolved.values[value.id] = resolved.of_value(value).updated(rule.options)
        return found
    # By id of the previous options, which most nodes share. The options are kept beside, so that no
    # id is used twice.
    updated: dict[int, tuple[LayerOptions, LayerOptions]] = {}
    matched = list(filter(rule.selector.matches, nodes))
    for node in matched:
        former = resolved.layers.get(node.index, resolved.everywhere)
        if id(former) not in updated:
            updated[id(former)] = (former, former.updated(rule.options))
        resolved.layers[node.index] = updated[id(former)][1]
        if rule.options.keep_float is not None:
            resolved.decided_by[node.index] = place
    return matched
