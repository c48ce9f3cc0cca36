"""Where a profile looks: the tensors of a graph, and stable names for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .. import _C
from ..graph.view import GraphView, NodeView, Use, ValueView
from ..stages.values import EDGE
from .fingerprint import GET_ATTRIBUTE, hash_of_graph, hash_of_weights, observers_of

CONTROL = ("prim::If", "prim::Loop")


@dataclass(frozen=True)
class Probe:
    """A place at which a value is looked at.

    Attributes:
        name: the value's name, `conv:conv2d`, where it is computed; `conv:conv2d -> relu:relu` for
            how an operator finds it.
        value: the value.
        uses: the operator's operands that it is; none where it is computed.
    """

    name: str
    value: ValueView
    uses: tuple[Use, ...] = ()


@dataclass
class Probes:
    """The tensors of a normalized graph, with or without observers, which change no answer.

    Attributes:
        view: the graph.
        graph: PyTorch's object for it.
        names: by id of the value: name of its node, or argument, or attribute, or
            `Loop.block0.1` for an input of a block. Unique.
        unsure: ids of values that may be uninitialized where they are defined, because an
            exception or an early return comes before anyone reads them.
        hidden: indices of observers, and of nodes that read their buffers.
    """

    view: GraphView
    graph: Any
    names: dict[int, str] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    hidden: set[int] = field(default_factory=set)
    _homes: dict[int, int] = field(default_factory=dict)  # number of the block by id of its inputs

    @classmethod
    def of(cls, module: Any, method: str) -> Probes:
        """Look at a method of a C++ module that was normalized."""
        probes = cls(GraphView.of(module, method), module._get_method(method).graph)
        places = {index for index, _, _ in _C.places(module, method)}
        probes.hidden = observers_of(probes.view, places)
        _Namer(probes, probes.graph).run()
        return probes

    @cached_property
    def hash(self) -> str:
        """See `hash_of_graph`."""
        return hash_of_graph(self.view, self.graph, self.hidden)

    @cached_property
    def weights(self) -> str:
        """See `hash_of_weights`."""
        return hash_of_weights(self.view, self.hidden)

    def all(self) -> list[Probe]:
        """Return all places to look at: where values are computed, in program order, and uses.

        Between two uses a value may be written in place, and a branch or loop may run more or less
        often than the code around it: there, a use sees other values than were computed.
        """
        found = []
        for value in self.values():
            name = self.names[value.id]
            if value.id not in self.unsure:
                found.append(Probe(name, value))
            groups: dict[str, list[Use]] = {}
            for use in self.own_uses(value):
                groups.setdefault(self.use_name(value, use), []).append(use)
            found += [Probe(group, value, tuple(uses)) for group, uses in groups.items()]
        return found

    def values(self) -> Iterator[ValueView]:
        """Yield the tensors that the model is given or computes."""
        seen = set()
        for value in self.view.inputs:
            seen.add(value.id)
            if value.is_tensor:
                yield value
        for node in self.view.nodes:
            for value in (*node.inputs, *node.outputs):
                if value.id in self.names and value.id not in seen:
                    seen.add(value.id)
                    if value.is_tensor and not value.is_constant:
                        yield value

    def own_uses(self, value: ValueView) -> list[Use]:
        """Return the uses that have a place of their own; in another block the first one."""
        uses = [use for use in self.uses(value) if _computes(use[0])]
        if value.written:
            return uses
        first: dict[int, Use] = {}
        for user, operand in uses:
            if self.is_elsewhere(value, user.block):
                first.setdefault(user.block, (user, operand))
        return list(first.values())

    def is_elsewhere(self, value: ValueView, block: int) -> bool:
        """Say whether uses in a block see something else than the value where it is computed."""
        home = self._homes.get(value.id, 0) if value.producer is None else value.producer.block
        return block != home or value.id in self.unsure

    def use_name(self, value: ValueView, use: Use) -> str:
        """Return a use's name in profiles."""
        return f"{self.names[value.id]} -> {use[0].name}"

    def uses(self, value: ValueView) -> list[Use]:
        """Return the model's own uses of a value, in program order."""
        found: list[Use] = []
        for user, operand in value.uses:
            if user.kind == EDGE:
                found += self.uses(user.output)
            elif user.index not in self.hidden:
                found.append((user, operand))
        return sorted(found, key=lambda use: (use[0].index, use[1]))


def _computes(user: NodeView) -> bool:
    """Say whether an operator makes a tensor of its operands.

    Other operators never see a value quantized. An operator that asks whether two values are one
    object must not get another name for one of them.
    """
    if not user.name or user.kind in CONTROL:
        return False
    return user.kind == "prim::ListConstruct" or any(value.is_tensor for value in user.outputs)


class _Namer:
    """Finds names and blocks; PyTorch's own view of the graph knows blocks and attributes."""

    def __init__(self, probes: Probes, graph: Any) -> None:
        self.probes = probes
        self.graph = graph
        self.nodes = probes.view.nodes
        self.taken: set[str] = set()
        self.later: list[tuple[int, str]] = []  # of these, names may be taken by nodes
        self.count = 0
        self.paths: dict[int, str] = {}
        self.control: list[tuple[Any, list[Any]]] = []  # branches and loops with their blocks

    def run(self) -> None:
        for value in list(self.graph.inputs())[1:]:
            self.later.append((value.unique(), ""))
        self.block(self.graph)
        self.spread_unsure()
        arguments = {value.id: value.name for value in self.probes.view.inputs}
        for unique, name in self.later:
            self.name(unique, arguments.get(unique, name))

    def block(self, block: Any) -> int:
        """Visit a block in the order of the view; return its number."""
        number = -1
        for node in block.nodes():
            inner = [(b, self.block(b)) for b in node.blocks()]
            view = self.nodes[self.count]
            self.count += 1
            number = view.block
            self.node(node, view, inner)
        return number

    def node(self, node: Any, view: NodeView, blocks: list[tuple[Any, int]]) -> None:
        if node.kind() == GET_ATTRIBUTE:
            owner = self.paths.get(next(node.inputs()).unique(), "")
            path = f"{owner}.{node.s('name')}".lstrip(".")
            self.paths[node.output().unique()] = path
            if view.index not in self.probes.hidden:
                self.later.append((node.output().unique(), path))
        elif view.name:
            for value in view.outputs:
                self.name(value.id, value.name)
        if node.kind() == "prim::Uninitialized":
            self.probes.unsure.add(node.output().unique())
        if blocks:
            self.control.append((node, [block for block, _ in blocks]))
        for index, (block, number) in enumerate(blocks):
            for k, value in enumerate(block.inputs()):
                self.probes._homes[value.unique()] = number
                self.later.append((value.unique(), f"{view.name}.block{index}.{k}"))

    def spread_unsure(self) -> None:
        """Note results of branches and loops, and values loops carry, that may be uninitialized."""
        unsure, before = self.probes.unsure, -1
        while len(unsure) != before:
            before = len(unsure)
            for node, blocks in self.control:
                loop = node.kind() == "prim::Loop"
                for k, output in enumerate(node.outputs()):
                    results = [list(block.outputs())[k + loop] for block in blocks]
                    targets = [output]
                    if loop:
                        results.append(list(node.inputs())[k + 2])
                        targets += [list(block.inputs())[k + 1] for block in blocks]
                    if any(value.unique() in unsure for value in results):
                        unsure.update(value.unique() for value in targets)

    def name(self, unique: int, name: str) -> None:
        base, count = name, 0
        while name in self.taken:
            count += 1
            name = f"{base}#{count}"
        self.taken.add(name)
        self.probes.names[unique] = name
