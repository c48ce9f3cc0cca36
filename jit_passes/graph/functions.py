"""Functions of one tensor, element by element, that stand behind a value in a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .traits import packet_of
from .view import NodeView, ValueView, is_number

_EDGE = "jit_passes::edge"  # another name of its operand
_OBSERVES = "jit_passes::observe_"
_AFFINE = {_EDGE, "aten::add", "aten::div", "aten::mul", "aten::neg", "aten::rsub", "aten::sub"}


@dataclass(frozen=True)
class Function:
    """A function of a value, number by number: all that reads the value.

    Attributes:
        source: the value.
        nodes: the operators, in program order.
        result: the value that they compute; nothing else depends on the source.
    """

    source: ValueView
    nodes: tuple[NodeView, ...]
    result: ValueView

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function of each number, in float64, of `x` in float64."""
        known = {self.source.id: x}
        for node in self.nodes:
            known[node.output.id] = _computed(node, known)
        return known[self.result.id].double()


def function_behind(
    value: ValueView, ends: Callable[[ValueView], bool] = lambda _: False
) -> Function | None:
    """Return the function of a value that all of its readers are part of; None if there is none.

        %s = aten::sigmoid(%x)
        %y = aten::mul(%x, %s)                      f(x) = x sigmoid(x), if nothing else reads %x

    Operators are part of it that compute each number from one of the value, `isElementwise` in
    C++, with numbers as other operands. Questions for the shape count as no readers, nor do
    observers. Products with numbers and sums alone are no function: errors of the result are
    errors of the value.

    Args:
        value: of the graph of a float model, or of a prepared one.
        ends: says that a function does not go on behind its result, which is quantized, say.
    """
    known, open_, nodes = {value.id: value}, {value.id: value}, list[NodeView]()
    found = None
    while not any(one.written or one.is_result for one in open_.values()):
        taken = {node.index for node in nodes}
        users = [u for one in open_.values() for u in _readers(one) if u.index not in taken]
        node = min(users, key=lambda user: user.index, default=None)
        if node is None or (nodes and node.block != nodes[0].block) or not _takes(node, known):
            break
        nodes.append(node)
        known[node.output.id] = open_[node.output.id] = node.output
        taken.add(node.index)
        for id_, one in list(open_.items()):
            if one is not node.output and all(u.index in taken for u in _readers(one)):
                del open_[id_]
        if len(open_) == 1:
            bends = any(not _is_affine(each, known) for each in nodes)
            found = Function(value, tuple(nodes), node.output) if bends else None
        if ends(node.output):
            break
    return found


def is_function(node: NodeView) -> bool:
    """Say whether an operator computes each number from one of a tensor, as `x * 2` does.

    All other operands are numbers. `fold_lookup_tables` makes a table of such an operator.
    """
    tensors = [operand for operand in node.inputs if not _is_number(node, operand)]
    return node.traits.elementwise > 0 and len(tensors) == 1 and tensors[0].is_tensor


def _readers(value: ValueView) -> list[NodeView]:
    """Return the operators that read numbers of a value."""
    return [
        user
        for user, operand in value.uses
        if not (user.traits.asks_for_shape or (user.kind.startswith(_OBSERVES) and operand == 0))
    ]


def _takes(node: NodeView, known: dict[int, ValueView]) -> bool:
    """Say whether an operator computes each number from one of known values, and from numbers."""
    if node.kind == _EDGE:
        return True
    elementwise = node.traits.elementwise > 0 and len(node.outputs) == 1 and node.output.is_tensor
    return elementwise and all(
        operand.id in known or _is_number(node, operand) for operand in node.inputs
    )


def _is_affine(node: NodeView, known: dict[int, ValueView]) -> bool:
    """Say whether an operator multiplies one known value by numbers, or adds numbers."""
    once = sum(operand.id in known for operand in node.inputs) == 1
    inverts = node.kind == "aten::div" and node.main_operand.id not in known
    return node.kind in _AFFINE and once and not inverts


def _is_number(node: NodeView, operand: ValueView) -> bool:
    constant = operand.constant
    if node.kind == "aten::prelu" and isinstance(constant, Tensor):
        return constant.numel() == 1
    return is_number(operand)


def _computed(node: NodeView, known: dict[int, Tensor]) -> Tensor:
    if node.kind == _EDGE:
        return known[node.main_operand.id]
    packet = packet_of(node.kind)
    overload = getattr(packet, node.overload or "default")
    given = [known.get(operand.id, _double(operand.constant)) for operand in node.inputs]
    named = {
        argument.name: one
        for argument, one in zip(overload._schema.arguments, given, strict=True)
        if argument.kwarg_only
    }
    found: Tensor = overload(*given[: len(given) - len(named)], **named)
    return found


def _double(constant: Any) -> Any:
    floating = isinstance(constant, Tensor) and constant.is_floating_point()
    return constant.to(torch.float64) if floating else constant
