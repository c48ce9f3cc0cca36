"""Residual sums in float, and linears whose results are rounded for these alone."""

from __future__ import annotations

from ..graph.kinds import ROW_NORMS
from ..graph.view import GraphView, NodeView
from .capability import Capability
from .joined import is_summed
from .rearranged import origin_of, readers_of
from .support import OperatorSupport

STREAM = "a residual sum that the next one reads: each rounding would add to the error"
_LINEAR, _SUM, _PRODUCT, _NORM = "aten::linear", "aten::add", "aten::mul", "aten::layer_norm"


def has_float_sums(can: Capability) -> bool:
    """Say whether sums in front of layer norms stay in float, with products in front of these."""
    product = can.operators.get(_PRODUCT)
    on_integers = _NORM in can.operators and product is not None and product.constants
    return not (can.integers_only or on_integers)


def find_summed(graph: GraphView) -> set[int]:
    """Return the indices of linears whose results nothing but a residual sum reads.

    A sum is residual if a layer norm reads it, or another residual sum, and no layer with weights
    does, which would want it on integers. Operators that rearrange may stand in between.
    """
    residual: set[int] = set()
    found: set[int] = set()
    for node in reversed(list(graph.nodes)):
        if node.kind == _SUM and _is_residual(node, residual):
            residual.add(node.index)
        elif node.kind == _LINEAR and not node.output.written:
            readers = _readers(node)
            beside = all(user.block == node.block for user, _ in node.output.uses)
            if beside and len(readers) == 1 and readers[0] and readers[0].index in residual:
                found.add(node.index)
    return found


def find_stream(graph: GraphView, can: Capability) -> set[int]:
    """Return the indices of residual sums that are better in float, one behind another.

        x1 = x0 + f(x0), x2 = x1 + g(x1), ...

    On integers each of them would be rounded, and all these errors stay to the end. Branches read
    codes of x1 none the less, as many as before. Sums that the backend adds to the products of a
    layer ahead of rounding are left out: in float they would cost a pass over memory.
    Nor are sums of networks without norms of rows, whose regions hold nothing else in float.
    """
    row = can.operators.get(_SUM)
    if row is None or _SUM not in can.floats or not has_float_sums(can):
        return set()
    if not any(node.kind in ROW_NORMS for node in graph.nodes):
        return set()
    sums = {
        node.output.id: node
        for node in graph.nodes
        if node.kind == _SUM and node.output.is_tensor and not _is_fused(node, row)
    }
    found: set[int] = set()
    for node in sums.values():
        for value in node.inputs[:2]:
            before = sums.get(origin_of(value, sums).id)
            if before is not None and before.block == node.block and len(_readers(before)) > 1:
                found |= {before.index, node.index}
    return found


def find_first(graph: GraphView, can: Capability) -> set[int]:
    """Return the indices of convolutions whose results residual sums in float begin with.

    A norm of rows may stand in between.
    """
    stream = find_stream(graph, can)

    def is_read(node: NodeView) -> bool:
        readers = [reader for reader in _readers(node) if reader is not None]
        return any(
            reader.index in stream or (reader.kind in ROW_NORMS and is_read(reader))
            for reader in readers
        )

    weighted = [(node, node.traits.weighted) for node in graph.nodes if stream]
    return {
        node.index
        for node, trait in weighted
        if trait is not None and trait.spatial_dims and is_read(node)
    }


def _is_fused(node: NodeView, row: OperatorSupport) -> bool:
    """Say whether a sum has a number or a constant, or is added to the products of a layer."""
    return any(
        is_summed(value, node, row) or not value.is_tensor or value.is_constant
        for value in node.inputs[:2]
    )


def _is_residual(node: NodeView, residual: set[int]) -> bool:
    if not node.output.is_tensor or node.output.written:
        return False
    readers = [reader for reader in _readers(node) if reader is not None]
    weighted = any(reader.traits.weighted is not None for reader in readers)
    normed = any(reader.kind == _NORM or reader.index in residual for reader in readers)
    return normed and not weighted


def _readers(node: NodeView) -> list[NodeView | None]:
    """Return the readers of a result and of its rearrangements; None for the method's caller."""
    uses = readers_of(node.output, lambda user, operand: False)
    return [None if use is None else use[0] for use in uses]
