"""Layers that do not wait for each other's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..graph.view import CALL, GraphView, NodeView


def independent(
    graph: GraphView, layers: Sequence[NodeView], fits: Callable[[Sequence[NodeView]], bool]
) -> Iterator[list[NodeView]]:
    """Yield layers in program order, in runs of neighbours that do not depend on each other.

    A layer in or behind a branch, a loop or a call stands alone. A layer behind a value that is
    written in place, or in a model that assigns attributes, does too: operands do not tell all
    then.

    Args:
        graph: of the layers.
        layers: nodes of it, in program order.
        fits: whether a run may have these layers; one layer alone always may.
    """
    in_front = _in_front(graph)
    run: list[NodeView] = []
    for layer in layers:
        known = in_front[layer.index]
        if run and not (
            known is not None
            and all(in_front[other.index] is not None for other in run)
            and known.isdisjoint(other.index for other in run)
            and fits([*run, layer])
        ):
            yield run
            run = []
        run.append(layer)
    if run:
        yield run


def is_plain(graph: GraphView) -> bool:
    """Say whether operands tell all: no branches, no calls, nothing that is written."""
    return None not in _in_front(graph).values()


def _in_front(graph: GraphView) -> dict[int, frozenset[int] | None]:
    """Return by node the nodes that its operands come from; None where these are not all."""
    found: dict[int, frozenset[int] | None] = {}
    has_state = any(node.kind == "prim::SetAttr" for node in graph.nodes)
    for node in graph.nodes:
        makers = [value.producer for value in node.inputs if value.producer is not None]
        parts = [found.get(maker.index) for maker in makers]
        is_hidden = node.block != 0 or node.kind in ("prim::If", "prim::Loop", CALL)
        is_written = any(value.written for value in node.inputs)
        if has_state or is_hidden or is_written or None in parts:
            found[node.index] = None
        else:
            known = frozenset(maker.index for maker in makers)
            found[node.index] = known.union(*(part for part in parts if part is not None))
    return found
