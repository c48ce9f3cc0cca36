"""Batch norms that conversion will fold into the operator in front of them, in models that train.

Who annotates sees a graph in which that has happened, as in a graph to calibrate: the operator has
the batch norm's result for its own, and the bias that folding makes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..graph.view import GraphView, NodeView, ValueView

DEFERRED = "jit_passes::deferred_batch_norm"
FOLD_BIAS = "jit_passes::fold_bias"
_FOLDED_BIAS = 9  # the operand of a deferred batch norm that is the bias that folding makes
_BIAS = 2  # the operand of convolutions and linears


def show_folded(graph: GraphView, attribute: Callable[[str], torch.Tensor]) -> None:
    """Fold deferred batch norms in a snapshot.

    Args:
        graph: with parameters as constants. Its nodes keep their numbers.
        attribute: gives a tensor of the module by its path.
    """
    for norm in graph.nodes:
        if norm.kind == DEFERRED and (node := norm.inputs[0].producer) is not None:
            for operand, value in enumerate(norm.inputs):
                value.uses.remove((norm, operand))
            result, bias = norm.output, norm.inputs[_FOLDED_BIAS]
            result.producer, result.name = node, node.name
            bias.is_constant, bias.constant = True, _bias_now(bias, attribute)
            bias.uses.append((node, _BIAS))
            node.inputs[_BIAS].uses.remove((node, _BIAS))
            node.inputs[_BIAS], node.outputs, node.folded = bias, [result], norm
    graph.nodes = [node for node in graph.nodes if node.kind != DEFERRED]


def _bias_now(made: ValueView, attribute: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Return what folding would make of the bias of an untrained model."""
    assert made.producer is not None
    *tensors, eps = made.producer.inputs
    given = [value.constant if value.is_constant else attribute(value.name) for value in tensors]
    with torch.no_grad():
        bias: torch.Tensor = torch.ops.jit_passes.fold_bias(*given, eps.constant)
    return bias


def real_use(use: tuple[NodeView, int]) -> tuple[int, int]:
    """Return the number of the node and the operand that a use is in the graph itself."""
    node, operand = use
    if node.folded is not None and operand == _BIAS:
        return node.folded.index, _FOLDED_BIAS
    return node.index, operand
