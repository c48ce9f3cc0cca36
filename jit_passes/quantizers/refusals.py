"""Wishes of a configuration that the backend cannot fulfil: their operators stay in float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..graph.view import NodeView, ValueView
from .standalone import no_groups_of
from .support import OperatorSupport, Role, Spec
from .writer import AnnotationWriter, speaker

ALL_FLOAT = "its input and its weight are to stay in float"


class Wish(NamedTuple):
    """A wish for a tensor that the backend cannot fulfil.

    Attributes:
        tensor: "input", "weight", "output" or "bias".
        node: the operator that it belongs to.
        value: the tensor.
        why: why the backend cannot do it.
    """

    tensor: str
    node: NodeView
    value: ValueView | None
    why: str


@dataclass
class Refusals:
    """Finds them.

    Attributes:
        writer: how each tensor is to be quantized.
        blamed: the places of rules that ask for more than the backend can do.
    """

    writer: AnnotationWriter
    blamed: set[str] = field(default_factory=set)

    def find(self, asks: Callable[[NodeView], bool] = lambda _: True) -> dict[int, str]:
        """Return, by index of the operator, the wishes that the backend cannot fulfil.

        Args:
            asks: which of the selected operators are asked about.
        """
        found = {}
        for index in self.writer.selection.selected:
            node = self.writer.nodes[index]
            if asks(node) and (wish := self.refused_wish(node)):
                found[index] = self.reason(wish)
        for index, node in self.writer.nodes.items():
            if index in self.writer.selection.refused:
                continue
            if unsupported := self.writer.standalone.unsupported(node):
                found[index] = self.reason(Wish(unsupported[0], node, None, unsupported[1]))
        return found

    def reason(self, wish: Wish) -> str:
        """Return why the wish is refused, and the rule that it comes from."""
        of = self.writer.resolved.last_rule_of
        origin = None if wish.value is None else self.writer.selection.origin(wish.value)
        place = of(wish.tensor, wish.node, wish.value) or of(wish.tensor, wish.node, origin)
        if not place or wish.why == ALL_FLOAT:
            return wish.why
        self.blamed.add(place)
        return f"{wish.why} ({place})"

    def refused_wish(self, node: NodeView) -> Wish | None:
        can, row = self.writer.policy.capability, self.writer.selection.selected[node.index]
        for user, operand, value in self.writer.selection.operands(node):
            spec = self.writer.operand(node, value)
            quantized = self.writer.is_produced(value) or self.writer.selection.is_inner(value)
            quantized &= not self.writer.is_dynamic(node)
            alone = row.role is Role.WEIGHTED and can.takes_weight_alone(node)
            if spec is None and not can.mixed and not quantized and not alone:
                return Wish("input", node, value, "its input is to stay in float")
            if isinstance(spec, Spec) and (why := can.refusal(user, operand, spec)):
                return Wish("input", node, value, f"its input is to be {why}")
        if why := self.result_refusal(node, row):
            value = self.writer.selection.result(node)
            return Wish("output", speaker(self.writer.resolved, node, value), value, why)
        if row.role is Role.WEIGHTED:
            return self.weight_refusal(node)
        why = self.product_refusal(node) if node.traits.product else None
        return Wish("input", node, node.main_operand, why) if why else None

    def result_refusal(self, node: NodeView, row: OperatorSupport) -> str | None:
        can, result = self.writer.policy.capability, self.writer.result(node)
        if result is None and not row.gives_float and not self.writer.is_dynamic(node):
            return "its result is to stay in float, and the target gives integers alone"
        if not isinstance(result, Spec):
            return None
        if row.role is Role.SHARED and not can.mixed:
            return "its result has the parameters of its operand in the target"
        if row.fixed is result:
            return None
        maker = self.writer.selection.result(node).producer  # a clip that is part of it, or itself
        if why := can.refusal(maker or node, None, result):
            return f"its result is to be {why}"
        fixed = row.role is Role.FIXED and not can.mixed
        return "its result has fixed parameters in the target" if fixed else None

    def weight_refusal(self, node: NodeView) -> Wish | None:
        def refused(tensor: str, why: str | None) -> Wish | None:
            return Wish(tensor, node, None, why) if why else None

        can, weight = self.writer.policy.capability, self.writer.weight(node)
        if weight is None:
            said = self.writer.resolved.of(node).output
            floats = not self.writer.quantized_values(node) and not (said and said.dtype != "float")
            if floats:  # a result that no rule asks for is no reason to call it quantized
                return refused("weight", ALL_FLOAT)
            return None if can.mixed else refused("weight", "its weight is to stay in float")
        quantized = self.writer.quantized_values(node)
        dynamic = self.writer.is_dynamic(node)
        mode = "dynamic" if dynamic else "static" if quantized else "weight_only"
        if why := can.refusal(node, 1, weight, mode):
            return refused("weight", f"its weight is to be {why}")
        if why := no_groups_of(weight, node.operand("weight"), can.specs(node, 1, mode)):
            return refused("weight", why)
        if why := self.sums_refusal(node, weight):
            return refused("weight", why)
        bias = self.writer.bias(node, node.operand("bias"), weight)
        why = can.refusal(node, 2, bias) if isinstance(bias, Spec) else None
        return refused("bias", why and f"its bias is to be {why}")

    def sums_refusal(self, node: NodeView, weight: Spec) -> str | None:
        """Say why sums of products overflow, as far as that is known before any data."""
        sums, inputs = self.writer.policy.capability.sums, self._read(node, 0)
        return None if sums is None or inputs is None else sums(node, weight, inputs)

    def product_refusal(self, node: NodeView) -> str | None:
        """Say why sums of products of two activations overflow, as far as that is known so far."""
        sums, a, b = self.writer.policy.capability.sums, self._read(node, 0), self._read(node, 1)
        return None if sums is None or a is None or b is None else sums(node, b, a)

    def _read(self, node: NodeView, position: int) -> Spec | None:
        """Return how an operand is quantized, or the result that it is."""
        x = node.inputs[position]
        found = self.writer.operand(node, x) or self.writer.produced(x)
        return found if isinstance(found, Spec) else None
