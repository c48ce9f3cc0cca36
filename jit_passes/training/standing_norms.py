"""Batch norms whose statistics stand still, as a part of the weights in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.editor import GraphEditor
from ..graph.modules import cover_of
from ..graph.view import GraphView, NodeView, ValueView
from ..quantizers.deferred import DEFERRED

FLOAT32, FLOAT64 = 6, 7  # as graphs have dtypes
BATCH_NORM = 9  # operands of aten::batch_norm


def absent_of(graph: GraphView) -> list[int]:
    """Return the ids of values that are None: a layer without bias has an attribute for it."""
    values = (value for node in graph.nodes for value in node.inputs)
    return list({v.id for v in values if v.is_constant and v.constant is None})


def fold_standing_norms(
    graph: GraphEditor, where: Sequence[str], absent: Sequence[int] = ()
) -> None:
    """Fold marked batch norms with their running statistics into weights and biases that train.

        %y = aten::conv2d(%x, %w, %b, ...)
        %z = jit_passes::deferred_batch_norm(%y, %gamma, %beta, %mean, %var, ...)
    ->  %f = gamma / sqrt(var + eps)                      operators of ATen, in double
        %z = aten::conv2d(%x, %w * %f, (%b - %mean) * %f + %beta, ...)

    Weight, bias, gamma and beta have their gradients; the statistics stand still. Weight and bias
    follow from parameters alone, so they count as constants of the layer.

    Args:
        graph: a graph with its parameters, behind `defer_batch_norm`.
        where: patterns of the paths of modules whose layers are meant. Behind other layers, batch
            norms are ordinary ones again.
        absent: ids of values that are None, see `absent_of`.
    """
    covers = cover_of(tuple(where))
    for norm in [node for node in graph.nodes if node.kind == DEFERRED]:
        layer = norm.operand("input").producer
        assert layer is not None
        if covers(layer.module):
            _fold(graph, norm, layer, absent)
            result = layer.output
        else:
            operands = norm.inputs[:BATCH_NORM]
            result = graph.insert("aten::batch_norm", operands, before=norm, like=norm).output
        graph.replace(norm.output, result)
        graph.remove(norm)


def _fold(graph: GraphEditor, norm: NodeView, layer: NodeView, absent: Sequence[int]) -> None:
    def insert(kind: str, *operands: Any) -> ValueView:
        return graph.insert(f"aten::{kind}", operands, before=layer, like=layer).output

    def double(name: str, node: NodeView = norm) -> ValueView | None:
        value = node.operand(name)
        if value.id in absent:
            return None
        if not value.is_tensor:  # scripts have parameters of some modules as Tensor?
            value = insert("_unwrap_optional", value)
        return insert("to", value, FLOAT64, False, False, None)

    variance, mean = double("running_var"), double("running_mean")
    factor = insert("rsqrt", insert("add", variance, norm.operand("eps"), 1))
    if (gamma := double("weight")) is not None:
        factor = insert("mul", gamma, factor)
    bias = double("bias", layer)
    shift = insert("neg", mean) if bias is None else insert("sub", bias, mean, 1)
    shift = insert("mul", shift, factor)
    if (beta := double("bias")) is not None:
        shift = insert("add", beta, shift, 1)
    weighted = layer.traits.weighted
    assert weighted is not None
    along = [1] * (weighted.spatial_dims + 2)
    along[int(weighted.transposed)] = -1
    factor = insert("to", insert("reshape", factor, along), FLOAT32, False, False, None)
    weight = insert("mul", layer.operand("weight"), factor)
    shift = insert("to", shift, FLOAT32, False, False, None)
    graph.set_input(layer, layer.position("weight"), weight)
    graph.set_input(layer, layer.position("bias"), shift)
