"""Linears whose results residual sums take in float, so that they are rounded for these alone."""

from __future__ import annotations

from ..graph.view import GraphView, NodeView
from .capability import Capability
from .selection import readers_of

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
