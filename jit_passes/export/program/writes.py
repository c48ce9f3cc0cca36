"""Which memory the operators of a graph write to, directly or through views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
        paths: by index of a node, the attribute that it reads or assigns.
    """

    def __init__(self, block: Block, paths: Mapping[int, str]) -> None:
        self._paths = paths
        self._makers = {value.id: step.node for step in block.walk() for value in step.node.outputs}
        # An attribute is a value too, with a number below all other values.
        self.state = {path: -2 - k for k, path in enumerate(dict.fromkeys(paths.values()))}
        self._sources: dict[int, list[int]] = {}  # by value: the values that it may be a view of
        self._last: dict[int, NodeView] = {}  # the last writer
        self._repeated: set[int] = set()
        # Attributes are read by the next call.
        self._readers: dict[int, float] = dict.fromkeys((*block.outputs, *self.state.values()), inf)
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
            # In a loop, inputs and operands, and results and outputs, differ by one or two.
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
        if (path := self._paths.get(node.index)) is not None:
            state = self.state[path]
            if node.kind == "prim::GetAttr":
                self._sources.setdefault(node.output.id, []).append(state)
            else:
                self._sources.setdefault(state, []).append(node.inputs[-1].id)
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
        known = (self._last[each] for each in self._behind([id]) if each in self._last)
        return any(self._follows(writer.index, node) for writer in known)

    def read_later(self, id: int, node: NodeView) -> bool:
        """Say whether a node that runs behind this one reads the value."""
        return id in self._readers and self._follows(self._readers[id], node)

    def _follows(self, index: float, node: NodeView) -> bool:
        return index > node.index or node.index in self._repeated

    def roots_of(self, id: int, among: Iterable[int]) -> set[int]:
        """Return the other values among some that this one may be, or be a view of."""
        return self._behind([id]) & set(among) - {id}

    def is_written(self, path: str) -> bool:
        """Say whether an operator may write to the memory of an attribute."""
        return self.state[path] in self._last

    def assigns_itself(self, node: NodeView) -> bool:
        """Say whether `prim::SetAttr` gives an attribute the tensor that it has, written to."""
        id: int | None = node.inputs[-1].id
        path = self._paths.get(node.index)
        while id is not None:
            maker = self._makers.get(id)
            if maker is None:
                return False
            if maker.kind == "prim::GetAttr":
                return path is not None and self._paths.get(maker.index) == path
            id = _written_alone(maker)
        return False

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
        found = _written_alone(makers[id]) if id in makers else None
        if found is None:
            return False
        id = found
    return True


def _written_alone(node: NodeView) -> int | None:
    """Return the operand that a node writes to and gives back; None for other nodes."""
    writes = [operand for operand, writes in _aliased(node) if writes]
    alone = len(writes) == 1 and len(node.outputs) == 1 and node.kind[-1] == "_"
    return writes[0] if alone else None


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
