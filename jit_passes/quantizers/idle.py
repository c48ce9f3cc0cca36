"""Rules of a configuration that match and change nothing, as one for the weight of an addition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from ..configuration.configuration import ResolvedConfiguration
from ..configuration.options import FLOAT, TENSORS, LayerOptions, TensorOptions
from ..graph.view import NodeView, ValueView
from .joined import clipped_output
from .selection import Selection
from .support import Role


def idle_rules(
    resolved: ResolvedConfiguration, selection: Selection, blamed: Container[str]
) -> list[str]:
    """Return the places of rules that change nothing, each with the reason.

    A rule does something if one of its options holds for one operator or value that it matches,
    even if a later rule has the last word. A wish for float is granted wherever there is float. A
    rule that asks for more than the backend can do has an effect too: operators stay in float.

    Args:
        resolved: the rules, and their matches.
        selection: the operators that are quantized.
        blamed: the places of rules that ask for more than the backend can do.
    """
    own = _OwnTensors(selection, resolved)
    found = []
    for place, rule, matched in resolved.matches:
        if place in blamed:
            continue
        options = rule.options
        if isinstance(options, LayerOptions):
            nodes = [node for node in matched if isinstance(node, NodeView)]
            reasons = [own.layer_reason(node, options) for node in nodes]
        else:
            values = [value for value in matched if isinstance(value, ValueView)]
            reasons = [own.value_reason(value, options) for value in values]
        if reasons and all(reasons):
            why, count = Counter(reasons).most_common(1)[0]
            others = len(reasons) - count
            more = f", and {others} more that it matches" if others else ""
            found.append(f"{place}: {why}{more}")
    return found


class _OwnTensors:
    """The tensors and operators that a selection quantizes."""

    def __init__(self, selection: Selection, resolved: ResolvedConfiguration) -> None:
        self.selection, self.resolved = selection, resolved
        selected = [(selection.nodes[i], row) for i, row in selection.selected.items()]
        results = [clipped_output(node, row) for node, row in selected]
        makers = [value.producer for value in results]
        self.clips = {maker.index for maker in makers if maker is not None}
        self.values = {value.id for value in results}
        for node, _ in selected:
            self.values.update(value.id for _, _, value in selection.operands(node))

    def layer_reason(self, node: NodeView, options: LayerOptions) -> str:
        """Say why options change nothing about an operator; "" if they do."""
        known = node.kind in self.selection.support
        if options.keep_float is not None or (known and node.index in self.selection.refused):
            return ""
        if options.mode == "weight_only" and (maker := self.selection.integers_of(node)):
            return (
                f"'{node.name}' ({node.kind}) reads integers of '{maker}', so it cannot have its "
                f"input in float: give '{maker}' the mode weight_only or dynamic too, or keep_float"
            )
        given = [name for name in TENSORS if getattr(options, name)]
        given += ["mode"] if options.mode is not None else []
        floats = [name for name in TENSORS if getattr(options, name).dtype == FLOAT]
        if given == floats == ["input"] and (maker := self.selection.integers_of(node)):
            return (
                f"'{node.name}' ({node.kind}) reads integers of '{maker}', so its input is not in "
                f"float: say dtype float for the output of '{maker}', or keep_float"
            )
        if floats or (node.traits.product and options.mode in ("dynamic", "weight_only")):
            return ""  # a product that is not static is in float
        if any(name in given for name in self.tensors(node)):
            return ""
        if given == ["mode"] and not node.traits.product:
            return f"'{node.name}' ({node.kind}) has no weights, so it follows its neighbours"
        if self.is_quantized(node):
            return f"'{node.name}' ({node.kind}) has no {' and no '.join(given)} to quantize"
        return f"'{node.name}' ({node.kind}) stays in float: {self.float_reason(node)}"

    def value_reason(self, value: ValueView, options: TensorOptions) -> str:
        """Say why options change nothing about a value; "" if they do."""
        if options.dtype == FLOAT or value.id in self.values:
            return ""
        maker = value.producer
        if maker is not None and maker.index in self.selection.refused:
            return ""
        nearest = self.nearest(value)
        if nearest is None:
            return f"no operator quantizes '{value.name}'"
        name = nearest.name
        return (
            f"no operator quantizes '{value.name}'; '{name}' is quantized in its place: write "
            f"value: {name}"
        )

    def nearest(self, value: ValueView) -> ValueView | None:
        """Return the value that is quantized in place of one: a clip's, or that it rearranges."""
        maker, chosen = value.producer, self.selection
        if maker is not None and maker.index in chosen.selected:
            return chosen.result(maker)
        origin = chosen.origin(value)
        return origin if origin.id in self.values and origin is not value else None

    def is_quantized(self, node: NodeView) -> bool:
        return (
            node.index in self.selection.selected
            or node.index in self.clips
            or bool(self.standalone(node))
        )

    def standalone(self, node: NodeView) -> tuple[str, ...]:
        """Return the tensors that an operator has which no selection is about."""
        row = self.selection.support.get(node.kind)
        if row is not None and row.role is Role.LOOKUP:
            return ("weight",)
        runs = row is not None and row.role is Role.RECURRENT
        return ("input", "weight") if runs and self.resolved.mode(node) == "dynamic" else ()

    def tensors(self, node: NodeView) -> Iterator[str]:
        """Yield the names among input, weight, bias, output and mode that it has, or can have."""
        row = self.selection.selected.get(node.index)
        if row is not None:
            yield "input"
            if self.selection.is_given(node.index):
                yield "mode"
            if row.role is Role.WEIGHTED:
                yield "weight"
                if node.operand("bias").constant is not None:
                    yield "bias"
        if standalone := self.standalone(node):
            yield from standalone
            yield "mode"
        elif self.is_quantized(node) and node.index not in self.selection.dynamic:
            yield "output"

    def float_reason(self, node: NodeView) -> str:
        if node.name in self.selection.reasons:
            return self.selection.reasons[node.name]
        if node.moves_data:
            return "it only moves data, as its operand has it"
        if node.kind not in self.selection.support:
            return "the target has no quantized form of it"
        return "its neighbours are in float"
