"""Sums that Inductor computes wrongly with an operator on integers: forms that keep them apart.

    before                           after
    %y = linear(%x, dequantize(%w))  %y = linear(%x, dequantize(%w))
    %z = add(%kept, %y)              %a = unsqueeze(%kept, 0)
                                     %b = unsqueeze(%y, 0)
                                     %s = add(%a, %b)
                                     %z = squeeze(%s, 0)

    %z = add(%x, %y, alpha=2)        %b = mul(%y, 2)
                                     %z = add(%x, %b)

where %kept is an argument of the program, a parameter or a buffer, or a view or a copy of one.

Inductor of torch 2.13 adds a linear on integers to the other operand in place. Inductor checks that
nothing else in the program reads this operand. It does not check whether the operand lives on after
the call: the caller's tensor, or a parameter, then holds the sum. An operator between the two
prevents this. A copy of the operand would not, since Inductor removes it, or makes a constant of
it. Alpha is left out of these sums, and of sums with convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

_ATEN: Any = torch.ops.aten
_SUMS = (_ATEN.add.Tensor, _ATEN.add_.Tensor)
_LINEARS = (_ATEN.linear.default,)
_WEIGHTED = (*_LINEARS, _ATEN.conv1d.default, _ATEN.conv2d.default)
_COPIES = (_ATEN.clone.default, _ATEN._to_copy.default, getitem)
_ON_INTEGERS = "quantized_decomposed::dequantize_per_channel"


def keep_apart(program: torch.export.ExportedProgram) -> None:
    """Write sums so that Inductor computes them rightly, in place. No value changes."""
    given = {*program.graph_signature.user_inputs}
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        arguments = {node.name for node in module.graph.nodes if node.op == "placeholder"}
        if module is program.graph_module:
            arguments &= given
        lasting = _lasting(module.graph, arguments)
        for node in list(module.graph.nodes):
            if node.target not in _SUMS or not all(isinstance(x, Node) for x in node.args[:2]):
                continue
            if node.kwargs.get("alpha", 1) != 1 and any(_has(x, _WEIGHTED) for x in node.args):
                _multiply(node)
            a, b = node.args[:2]
            if (a in lasting and _has(b, _LINEARS)) or (b in lasting and _has(a, _LINEARS)):
                _part(node)
        module.recompile()


def _lasting(graph: Graph, arguments: set[str]) -> set[Node]:
    """Return a graph's placeholders, constants, and views and copies of these.

    Placeholders that are no arguments are constants.
    """
    lasting: set[Node] = set()
    varying: set[Node] = set()
    for node in graph.nodes:
        if node.name in arguments or varying & {*node.all_input_nodes}:
            varying.add(node)
        of_lasting = bool(lasting & {*node.all_input_nodes})
        if node.op == "placeholder" or node not in varying or (_is_view(node) and of_lasting):
            lasting.add(node)
    return lasting


def _is_view(node: Node) -> bool:
    """Say whether a node gives its operand, a part or a copy of it."""
    if node.target in _COPIES:
        return True
    schema: Any = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info for result in schema.returns)


def _has(node: Node, kinds: tuple[Any, ...]) -> bool:
    """Say whether a node is an operator of these whose weight is of integers."""
    if node.target not in kinds or not isinstance(weight := node.args[1], Node):
        return False
    schema: Any = getattr(weight.target, "_schema", None)
    return schema is not None and schema.name == _ON_INTEGERS


def _multiply(total: Node) -> None:
    """Multiply the second operand of a sum by alpha ahead of it."""
    a, b = total.args[:2]
    [scaled] = _inserted(total, [(_ATEN.mul.Tensor, b, total.kwargs["alpha"])])
    total.args, total.kwargs = (a, scaled), {}


def _part(total: Node) -> None:
    """Give the operands of a sum an axis, and take it from the result."""
    a, b = _inserted(total, [(_ATEN.unsqueeze.default, x, 0) for x in total.args[:2]])
    [added] = _inserted(total, [(total.target, a, b)])
    total.target, total.args, total.kwargs = _ATEN.squeeze.dim, (added, 0), {}


def _inserted(before: Node, calls: list[tuple[Any, Any, Any]]) -> Iterator[Node]:
    """Insert calls of two operands in front of a node, and return them."""
    made = []
    with before.graph.inserting_before(before):
        for target, *operands in calls:
            node = before.graph.call_function(target, tuple(operands))
            values = [x.meta["val"] if isinstance(x, Node) else x for x in operands]
            node.meta["val"] = target(*values)
            made.append(node)
    return iter(made)
