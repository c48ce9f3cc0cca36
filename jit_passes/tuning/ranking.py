"""Layers by how much they are suspected, before any variant is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph.view import GraphView, NodeView
from ..report.compare import compare
from ..stages.batches import cloned
from .variants import Layer, Variants


def suspects(variants: Variants) -> list[tuple[Layer, float]]:
    """Return the layers, likely the most costly first, with their noise over signal.

    A comparison with the float model gives the own error of each value: the error with everything
    before it as in float. A layer counts by the worst of its values, or of their readers: a coarse
    grid shows in the reader of the value, and both layers must change for a finer grid. Without
    data, all are equally suspect, in program order.
    """
    if not variants.data:
        return [(layer, 1.0) for layer in variants.layers]
    reference = variants.reference(variants.prepared())
    found = compare(variants.model, reference, map(cloned, variants.data), progress=False)
    own: dict[str, float] = {}
    for row in found.rows:
        if row.kind != "output":
            own[row.name] = min(own.get(row.name, math.inf), row.own_sqnr)
    errors = [min(own.get(part, math.inf) for part in layer.parts) for layer in variants.layers]
    sources = _sources(variants.annotated.graph, variants.layers)
    through = list(errors)
    for layer, feeding in enumerate(sources):
        for source in feeding:
            through[source] = min(through[source], errors[layer])
    order = sorted(range(len(errors)), key=lambda i: (through[i], errors[i], i))
    return [(variants.layers[i], 10 ** (-max(through[i], -100.0) / 10)) for i in order]


def _sources(graph: GraphView, layers: Sequence[Layer]) -> list[set[int]]:
    """Return for each layer the numbers of the layers whose results it reads.

    The way leads through operators of no layer: rearranging ones, and ones in float.
    """
    number = {part: i for i, layer in enumerate(layers) for part in layer.parts}
    reached: dict[int, frozenset[int]] = {}  # by index of a node that belongs to no layer
    found: list[set[int]] = [set() for _ in layers]
    for node in graph.nodes:
        makers = [value.producer for _, _, value in node.operands if value.producer is not None]
        before = {layer for maker in makers for layer in _layers_at(maker, number, reached)}
        own = number.get(node.name)
        if own is None:
            reached[node.index] = frozenset(before)
        else:
            found[own] |= before - {own}
    return found


def _layers_at(
    node: NodeView, number: dict[str, int], reached: dict[int, frozenset[int]]
) -> frozenset[int]:
    own = number.get(node.name)
    return reached.get(node.index, frozenset()) if own is None else frozenset((own,))
