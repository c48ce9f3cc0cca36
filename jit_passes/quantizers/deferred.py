"""Batch norms that conversion will fold into the operator in front of them, in models that train.

A quantizer sees a graph with folded batch norms, as a graph to calibrate: the operator has the
batch norm's result and the folded bias.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..graph.view import GraphView, NodeView, ValueView

DEFERRED = "jit_passes::deferred_batch_norm"
FOLD_BIAS = "jit_passes::fold_bias"


def show_folded(graph: GraphView, attribute: Callable[[str], torch.Tensor]) -> None:
    """Fold deferred batch norms in a snapshot."""
    for norm in graph.nodes:
        if norm.kind == DEFERRED and (node := norm.operand("input").producer) is not None:
            for operand, value in enumerate(norm.inputs):
                value.uses.remove((norm, operand))
            result, bias, place = norm.output, norm.operand("rounded"), node.position("bias")
            result.producer, result.name = node, node.name
            bias.is_constant, bias.constant = True, _bias_now(bias, attribute)
            bias.uses.append((node, place))
            node.inputs[place].uses.remove((node, place))
            node.inputs[place], node.outputs, node.folded = bias, [result], norm
    graph.nodes = [node for node in graph.nodes if node.kind != DEFERRED]


def _bias_now(made: ValueView, attribute: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Return the bias of an untrained model as folding would make it."""
    assert made.producer is not None
    *tensors, eps = made.producer.inputs
    given = [value.constant if value.is_constant else attribute(value.name) for value in tensors]
    with torch.no_grad():
        bias: torch.Tensor = torch.ops.jit_passes.fold_bias(*given, eps.constant)
    return bias


def real_use(use: tuple[NodeView, int]) -> tuple[int, int]:
    """Return the number of the node and the operand that a use is in the graph itself."""
    node, operand = use
    if node.folded is not None and operand == node.position("bias"):
        return node.folded.index, node.folded.position("rounded")
    return node.index, operand
