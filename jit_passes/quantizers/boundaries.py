"""Choosing between integers and float so that the fewest values are converted.

Each value that one side makes and the other reads is converted once. For operators that may be on
either side, the choice with the fewest conversions is a minimum cut: on the source's side are the
operators on integers, and an edge that is cut is a conversion. With an auxiliary vertex for the
readers of a value,

    maker -> readers : 1,   readers -> each reader : infinite       integers made, float read
    each reader -> readers' : infinite,   readers' -> maker : 1     float made, integers read

(a cut of a function of this kind is Kolmogorov and Zabih, "What energy functions can be minimized
via graph cuts?", 2004, theorem 4.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from .disjoint import DisjointSets

INTEGERS, FLOAT = "integers", "float"  # sides that are given
UNBOUNDED = 1 << 30


@dataclass(frozen=True)
class Flow:
    """The maker and the readers of a value: INTEGERS, FLOAT, or an operator that may be either."""

    maker: Hashable
    readers: tuple[Hashable, ...]


def on_integers(flows: Sequence[Flow]) -> set[Hashable]:
    """Return the operators to compute on integers, so that the fewest values are converted.

    Among choices with equally few conversions, the one with the fewest operators on integers.
    """
    found: set[Hashable] = set()
    for part in _components(flows):
        found |= _cut(part)
    return found


def _components(flows: Sequence[Flow]) -> list[list[Flow]]:
    """Split into parts that have no operator in common: each is a small problem."""
    sets: DisjointSets[Hashable] = DisjointSets()

    def free(flow: Flow) -> list[Hashable]:
        return [v for v in (flow.maker, *flow.readers) if v not in (INTEGERS, FLOAT)]

    for flow in flows:
        operators = free(flow)
        for operator in operators[1:]:
            sets.unite(operator, operators[0])
    parts: dict[Hashable, list[Flow]] = {}
    for flow in flows:
        if operators := free(flow):
            parts.setdefault(sets.root(operators[0]), []).append(flow)
    return list(parts.values())


@dataclass
class _Network:
    """Arcs with capacities, and their reverses."""

    ends: list[int] = field(default_factory=list)
    capacities: list[int] = field(default_factory=list)
    arcs: dict[int, list[int]] = field(default_factory=dict)  # by vertex
    vertices: dict[Hashable, int] = field(default_factory=dict)

    def vertex(self, name: Hashable) -> int:
        return self.vertices.setdefault(name, len(self.vertices))

    def join(self, start: Hashable, end: Hashable, capacity: int) -> None:
        for a, b, c in ((start, end, capacity), (end, start, 0)):
            self.arcs.setdefault(self.vertex(a), []).append(len(self.ends))
            self.ends.append(self.vertex(b))
            self.capacities.append(c)

    def reach(self, source: int) -> dict[int, int]:
        """Return the arc that reaches each vertex, where there is capacity left."""
        by = {source: -1}
        queue = deque([source])
        while queue:
            for arc in self.arcs.get(queue.popleft(), ()):
                if self.capacities[arc] and self.ends[arc] not in by:
                    by[self.ends[arc]] = arc
                    queue.append(self.ends[arc])
        return by


def _cut(flows: list[Flow]) -> set[Hashable]:
    """Return the operators on the source's side of the smallest minimum cut (Edmonds and Karp)."""
    network = _Network()
    source, sink = network.vertex(INTEGERS), network.vertex(FLOAT)
    for number, flow in enumerate(flows):
        read, wanted = ("read", number), ("wanted", number)
        network.join(flow.maker, read, 1)
        network.join(wanted, flow.maker, 1)
        for reader in flow.readers:
            network.join(read, reader, UNBOUNDED)
            network.join(reader, wanted, UNBOUNDED)
    while sink in (by := network.reach(source)):
        vertex = sink
        while vertex != source:  # every path ends in an arc of capacity 1: one unit at a time
            arc = by[vertex]
            network.capacities[arc] -= 1
            network.capacities[arc ^ 1] += 1
            vertex = network.ends[arc ^ 1]
    names = {vertex: name for name, vertex in network.vertices.items()}
    operators = {o for f in flows for o in (f.maker, *f.readers)} - {INTEGERS, FLOAT}
    return {names[vertex] for vertex in by} & operators
