"""A drawing of a graph with a line for each operator, in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...graph.view import NodeView
from ...quantizers.disjoint import DisjointSets

WIDTH, HEIGHT = 14, 24  # of a lane and of a line, in pixels


@dataclass(frozen=True)
class Drawing:
    """Where operators stand, and the curves between them.

    Attributes:
        lanes: of each operator, from the left.
        edges: from operators to the readers of their results, each as the numbers of two lines.
        curves: of SVG, of the edges.
        width: of all.
    """

    lanes: list[int]
    edges: list[tuple[int, int]]
    curves: list[str]
    width: int


def drawn(nodes: Sequence[NodeView], shown: Sequence[NodeView]) -> Drawing:
    """Draw the operators that are shown; through others, lines go on.

    An operator takes the lane of its first operand without later readers, else the first free lane.
    A lane is free again behind the last reader of its result.
    """
    row = {node.index: k for k, node in enumerate(shown)}
    before = _operands(nodes, row)
    last = {}
    for k, sources in enumerate(before):
        for source in sources:
            last[source] = k
    lanes: list[int] = []
    taken: dict[int, int] = {}  # by lane, which operator's result is in it
    for k, sources in enumerate(before):
        ends = [s for s in sources if last[s] == k]
        free = [lanes[s] for s in ends]
        for lane in free:
            taken.pop(lane, None)
        lane = min(free) if free else next(i for i in range(len(taken) + 1) if i not in taken)
        lanes.append(lane)
        if k in last:
            taken[lane] = k
    edges = [(source, k) for k, sources in enumerate(before) for source in sources]
    curves = [_curve(*edge, lanes) for edge in edges]
    return Drawing(lanes, edges, curves, (max(lanes, default=0) + 1) * WIDTH)


def regions_of(edges: Sequence[tuple[int, int]], on_integers: Sequence[bool]) -> list[int]:
    """Number the sets of lines on integers that edges join, from 1 on; 0 in float."""
    sets: DisjointSets[int] = DisjointSets()
    for source, reader in edges:
        if on_integers[source] and on_integers[reader]:
            sets.unite(source, reader)
    numbers: dict[int, int] = {}
    return [
        numbers.setdefault(sets.root(k), len(numbers) + 1) if inside else 0
        for k, inside in enumerate(on_integers)
    ]


def _operands(nodes: Sequence[NodeView], row: dict[int, int]) -> list[list[int]]:
    """Return for each line the lines that it reads, through operators that are not shown."""
    through: dict[int, dict[int, None]] = {}
    found: list[list[int]] = [[] for _ in row]
    for node in nodes:
        sources: dict[int, None] = {}
        for value in node.inputs:
            maker = value.producer
            if maker is None:
                continue
            sources |= {row[maker.index]: None} if maker.index in row else through[maker.index]
        if node.index in row:
            found[row[node.index]] = sorted(sources)
        else:
            through[node.index] = sources
    return found


def _curve(source: int, reader: int, lanes: Sequence[int]) -> str:
    """Return a path down in the lane of the source, and over to the reader in its last line."""
    x, to_x = (lanes[k] * WIDTH + WIDTH // 2 for k in (source, reader))
    y, to_y = (k * HEIGHT + HEIGHT // 2 for k in (source, reader))
    turn = to_y - HEIGHT
    return f"M{x} {y}V{turn}C{x} {turn + HEIGHT // 2} {to_x} {turn + HEIGHT // 2} {to_x} {to_y}"
