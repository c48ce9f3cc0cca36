"""Multiply-accumulates of a model's operators, by running it once."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..graph.view import GraphView, NodeView, ValueView
from ..stages.recording import Recorder


def macs_of(module: Any, method: str, arguments: tuple[Any, ...]) -> dict[str, int]:
    """Return the multiply-accumulates of convolutions, linears and matrix products, by name.

        convolution          elements of the result * elements of the weight / output channels
        transposed           elements of the input * elements of the weight / input channels
        linear               elements of the result * inputs
        matrix product       elements of the result * columns of the first operand

    Of all times that a loop computes it. Others, as recurrent layers, are left out.

    Args:
        module: a C++ module in canonical form that no one else holds, whose inputs have nodes.
        method: which to run.
        arguments: a batch, positional and by name.
    """
    graph = GraphView.of(module, method)
    found = [node for node in graph.nodes if _is_known(node)]
    wanted = [node.index for node in found]
    firsts = [maker.index for node in found if (maker := node.inputs[0].producer) is not None]
    recorder = Recorder(module, method, [*wanted, *firsts])
    _, values = recorder.run(arguments)
    counts: dict[str, int] = {}
    for node in found:
        results = values.get(node.index, [])
        first = node.inputs[0]
        given = values.get(first.producer.index, []) if first.producer is not None else []
        if not given and isinstance(first.constant, torch.Tensor):
            given = [first.constant]
        counts[node.name] = sum(
            _count(node, result, given[min(k, len(given) - 1)])
            for k, result in enumerate(results)
            if given
        )
    return counts


def _is_known(node: NodeView) -> bool:
    if node.traits.weighted is not None:
        return len(node.outputs) == 1 and _weight(node) is not None
    return node.kind in ("aten::matmul", "aten::mm", "aten::bmm")


def _weight(node: NodeView) -> torch.Tensor | None:
    value: ValueView = node.inputs[1]
    return value.constant if isinstance(value.constant, torch.Tensor) else None


def _count(node: NodeView, result: torch.Tensor, given: torch.Tensor) -> int:
    weighted, weight = node.traits.weighted, _weight(node)
    if weighted is None or weight is None:
        return result.numel() * given.shape[-1]
    channels = math.prod(weight.shape[1:])
    return (given if weighted.transposed else result).numel() * channels
