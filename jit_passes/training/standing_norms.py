"""Batch norms whose statistics stand still, as a part of the weights in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..graph.editor import GraphEditor
from ..graph.modules import cover_of
from ..graph.view import GraphView, NodeView, ValueView
from ..quantizers.deferred import DEFERRED
from ..specification.slots import ADD_BIAS, CORRELATION, Correlation

FLOAT64 = 7  # as graphs have dtypes
BATCH_NORM = 9  # operands of aten::batch_norm


@dataclass(frozen=True)
class StandingNorm:
    """A batch norm of a graph that has running statistics.

    Attributes:
        spatial_dims: number of axes behind the channels.
        channels: how many it has.
    """

    spatial_dims: int
    channels: int


def standing_norms(module: Any, method: str) -> dict[int, StandingNorm]:
    """Return batch norms of images and rows that no layer has in it, by index of their node."""
    found = {}
    for node in GraphView.of(module, method, parameters=True).nodes:
        if node.kind != "aten::batch_norm":
            continue
        # An image that a convolution or a pool reads is taken to have a batch axis.
        dims = node.main_operand.facts.ranks[-1] - 2
        if dims not in (1, 2):
            continue
        mean, variance = (node.operand(f"running_{name}").constant for name in ("mean", "var"))
        if isinstance(mean, torch.Tensor) and isinstance(variance, torch.Tensor):
            found[node.index] = StandingNorm(dims, mean.numel())
    return found


def put_behind_layers(graph: GraphEditor, where: Sequence[str], norms: Any) -> None:
    """Put batch norms behind convolutions that change nothing, whose weights they then are.

        %z = aten::batch_norm(%x, %gamma, %beta, %mean, %var, ...)
    ->  %w = aten::reshape(aten::ones_like(%mean), [C, 1, 1, 1])
        %y = aten::conv2d(%x, %w, None, 1, 0, 1, C)
        %z = jit_passes::deferred_batch_norm(%y, %gamma, %beta, %mean, %var, ...)

    Args:
        graph: a graph with its parameters, behind `defer_batch_norm`.
        where: patterns of the paths of modules whose batch norms are meant.
        norms: which may be; see `standing_norms`.
    """
    covers = cover_of(tuple(where))
    for norm in [node for node in graph.nodes if node.index in norms]:
        if covers(norm.module):
            result = _put_behind_layer(graph, norm, norms[norm.index])
            graph.replace(norm.output, result)
            graph.remove(norm)


def _put_behind_layer(graph: GraphEditor, norm: NodeView, standing: StandingNorm) -> ValueView:
    def insert(kind: str, *operands: Any) -> ValueView:
        return graph.insert(kind, operands, before=norm, like=norm).output

    def tensor(value: ValueView) -> ValueView:  # scripts have buffers of some modules as Tensor?
        return value if value.is_tensor else insert("aten::_unwrap_optional", value)

    dims, channels = standing.spatial_dims, standing.channels
    x, gamma, beta, *statistics = norm.inputs[:5]
    mean, variance = map(tensor, statistics)
    ones = insert("aten::ones_like", mean, *[None] * 5)  # a constant would not follow model.to
    weight = insert("aten::reshape", ones, [channels, *[1] * (dims + 1)])
    lists = [1] * dims, [0] * dims, [1] * dims
    layer = insert(f"aten::conv{dims}d", x, weight, None, *lists, channels)
    numbers = gamma, beta, mean, variance
    shift = insert("jit_passes::fold_bias", None, *numbers, norm.operand("eps"))
    options = norm.operands_behind("running_var")
    return insert(DEFERRED, layer, *numbers, *options, shift, None, False)


def absent_of(graph: GraphView) -> list[int]:
    """Return the ids of values that are None: a layer without bias has an attribute for it."""
    values = (value for node in graph.nodes for value in node.inputs)
    return list({v.id for v in values if v.is_constant and v.constant is None})


def fold_standing_norms(
    graph: GraphEditor, where: Sequence[str], absent: Sequence[int] = ()
) -> None:
    """Fold marked batch norms with their running statistics into weights and biases that train.

        %s = jit_passes::correlation(%x, %w, ...)
        %y = jit_passes::add_bias(%s, %b, ...)             if there is a bias
        %z = jit_passes::deferred_batch_norm(%y, %gamma, %beta, %mean, %var, ...)
    ->  %f = gamma / sqrt(var + eps)                      operators of ATen, in double
        %s = jit_passes::correlation(%x, %w * %f, ...)
        %z = jit_passes::add_bias(%s, (%b - %mean) * %f + %beta, ...)

    Weight, bias, gamma and beta have their gradients; the statistics stand still. Weight and bias
    follow from parameters alone, so they count as constants of the layer.

    Args:
        graph: a graph with its parameters, behind `defer_batch_norm` and `split_conv_bias`.
        where: patterns of the paths of modules whose layers are meant. Behind other layers, batch
            norms are ordinary ones again.
        absent: ids of values that are None, see `absent_of`.
    """
    covers = cover_of(tuple(where))
    for norm in [node for node in graph.nodes if node.kind == DEFERRED]:
        layer = norm.operand("input").producer
        assert layer is not None
        if covers(layer.module):
            result = _fold(graph, norm, absent)
        else:
            operands = norm.inputs[:BATCH_NORM]
            result = graph.insert("aten::batch_norm", operands, before=norm, like=norm).output
        graph.replace(norm.output, result)
        graph.remove(norm)


def _fold(graph: GraphEditor, norm: NodeView, absent: Sequence[int]) -> ValueView:
    last = norm.operand("input").producer
    added = last if last is not None and last.kind == ADD_BIAS else None
    layer = last if added is None else added.main_operand.producer
    assert layer is not None and layer.kind == CORRELATION
    place = layer

    def insert(kind: str, *operands: Any) -> ValueView:
        return graph.insert(f"aten::{kind}", operands, before=place, like=layer).output

    def double(value: ValueView) -> ValueView | None:
        if value.id in absent:
            return None
        if not value.is_tensor:  # scripts have parameters of some modules as Tensor?
            value = insert("_unwrap_optional", value)
        return insert("to", value, FLOAT64, False, False, None)

    variance, mean = (double(norm.operand(name)) for name in ("running_var", "running_mean"))
    factor = insert("rsqrt", insert("add", variance, norm.operand("eps"), 1))
    if (gamma := double(norm.operand("weight"))) is not None:
        factor = insert("mul", gamma, factor)
    read, weight = Correlation.of(layer), layer.operand("weight")
    along = [1] * (read.spatial_dims + 2)
    along[int(read.transposed)] = -1
    scaled = insert("mul", weight, insert("type_as", insert("reshape", factor, along), weight))
    graph.set_input(layer, layer.position("weight"), scaled)
    place = added or norm  # where the bias is known
    bias = double(added.operand("bias")) if added else None
    shift = insert("neg", mean) if bias is None else insert("sub", bias, mean, 1)
    shift = insert("mul", shift, factor)
    if (beta := double(norm.operand("bias"))) is not None:
        shift = insert("add", beta, shift, 1)
    shift = insert("type_as", shift, weight)
    if added:
        graph.set_input(added, added.position("bias"), shift)
        return added.output
    operands: list[Any] = [layer.output, shift, read.spatial_dims]
    return graph.insert(ADD_BIAS, operands, before=norm, like=layer).output
