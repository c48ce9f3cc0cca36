"""Which memory the operators of a graph write to, directly or through views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

import torch

from ...graph.view import NodeView
from .blocks import Block, Step

# Nodes without a schema whose results hold their operands, or the other way round.
_STRUCTURES = {
    *("prim::ListConstruct", "prim::ListUnpack", "prim::DictConstruct", "prim::TupleConstruct"),
    *("prim::TupleUnpack", "prim::TupleIndex", "prim::TupleSlice", "prim::unchecked_cast"),
    *("prim::unchecked_unwrap_optional", "prim::data"),
}
_CONTAINERS = ("ListType", "DictType", "TupleType")


class Writes:
    """The values of a graph, the memory that they may share, and the operators that write there.

    Args:
        block: the outermost block.
    """

    def __init__(self, block: Block) -> None:
        self._sources: dict[int, list[int]] = {}  # of a value, the values of which it may be a view
        self._last: dict[int, NodeView] = {}  # the last writer
        self._repeated: set[int] = set()
        self._readers: dict[int, float] = dict.fromkeys(block.outputs, inf)
        for step in block.walk():
            self._add(step)
        for step in block.walk():
            for operand, writes in _aliased(step.node):
                for id in self._behind([operand]) if writes else ():
                    known = self._last.setdefault(id, step.node)
                    self._last[id] = max(known, step.node, key=lambda node: node.index)

    def _add(self, step: Step) -> None:
        node = step.node
        for inner in step.blocks:
            # Of a loop, inputs and operands, and results and outputs, differ by one or two.
            pairs = [(inner.inputs, [v.id for v in node.inputs]), (_outputs(node), inner.outputs)]
            if node.kind == "prim::Loop":
                pairs.append((inner.inputs, inner.outputs))  # the next round
                self._repeated.update(each.node.index for each in inner.walk())
                pairs.append((_outputs(node), [v.id for v in node.inputs]))  # no round
            for ids, values in pairs:
                for id, value in zip(reversed(list(ids)), reversed(list(values)), strict=False):
                    self._sources.setdefault(id, []).append(value)
            for id in inner.outputs:
                self._reads(id, node)
        for operand in node.inputs:
            self._reads(operand.id, node)
        for source, _ in _aliased(node):
            for id in _outputs(node):
                self._sources.setdefault(id, []).append(source)

    def _reads(self, id: int, node: NodeView) -> None:
        self._readers[id] = max(self._readers.get(id, -1), node.index)

    def _behind(self, ids: list[int]) -> set[int]:
        """Return the values, and all that they may be views of."""
        found: set[int] = set()
        while ids:
            id = ids.pop()
            if id not in found:
                found.add(id)
                ids += self._sources.get(id, ())
        return found

    def writer_of(self, id: int) -> NodeView | None:
        """Return the last operator that may write to the memory of a value; None if none may."""
        return self._last.get(id)

    def written_later(self, id: int, node: NodeView) -> bool:
        """Say whether an operator that runs behind the node may write there."""
        return id in self._last and self._follows(self._last[id].index, node)

    def read_later(self, id: int, node: NodeView) -> bool:
        """Say whether a node that runs behind this one reads the value."""
        return id in self._readers and self._follows(self._readers[id], node)

    def _follows(self, index: float, node: NodeView) -> bool:
        return index > node.index or node.index in self._repeated

    def roots_of(self, id: int, among: Mapping[int, object]) -> set[int]:
        """Return the values among some that this one may be, or be a view of."""
        return self._behind([id]) & among.keys()

    def written_in(self, block: Block) -> frozenset[int]:
        """Return the ids of the values that operators of a block may write to."""
        targets = [
            operand for step in block.walk() for operand, writes in _aliased(step.node) if writes
        ]
        return frozenset(self._behind(targets))


def is_changed_alone(body: Block, place: int) -> bool:
    """Say whether all that a round does with a carried value is to write to it, and to give it on.

    Args:
        body: the round of a loop.
        place: among the carried values.
    """
    id, given = body.outputs[1 + place], body.inputs[1 + place]
    makers = {value.id: step.node for step in body.steps for value in step.node.outputs}
    while id != given:
        node = makers.get(id)
        writes = [operand for operand, writes in _aliased(node) if writes] if node else []
        if len(writes) != 1 or node is None or len(node.outputs) != 1 or node.kind[-1] != "_":
            return False
        (id,) = writes
    return True


def _outputs(node: NodeView) -> list[int]:
    return [value.id for value in node.outputs]


def _aliased(node: NodeView) -> Iterator[tuple[int, bool]]:
    """Yield the operands that results may share memory with, and whether the node writes there."""
    if node.kind in _STRUCTURES:
        yield from ((value.id, False) for value in node.inputs)
    if node.overload is None:
        return
    try:
        schema = torch._C._get_schema(node.kind, node.overload)
    except RuntimeError:
        return
    # A schema says of an element of a dict that it is somewhere, and not where.
    elements = any(each.alias_info is not None for each in schema.returns)
    for argument, value in zip(schema.arguments, node.inputs, strict=False):
        if argument.alias_info is not None:
            yield value.id, argument.alias_info.is_write
        elif elements and argument.type.kind() in _CONTAINERS:
            yield value.id, False
