"""Multiply-accumulates of a model's operators, by running it once."""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import _C
from ..graph.view import GraphView, NodeView, ValueView
from ..passes.pipeline import Pipeline
from ..specification.recurrent import RECURRENT, input_of, matrices_of
from ..stages.annotate import FROZEN, formed
from ..stages.batches import batches, cloned
from ..stages.module import converted_report
from ..stages.recording import Recorder
from ..targets import Target
from .compare import name_inputs
from .coverage import Coverage, coverage

PRODUCTS = ("aten::matmul", "aten::mm", "aten::bmm")
ATTENTION = "aten::scaled_dot_product_attention"


def integer_share(
    model: torch.jit.ScriptModule,
    quantized: torch.jit.ScriptModule,
    batch: Any,
    method: str = "forward",
) -> float:
    """Return which part of a model's multiply-accumulates is on integers, of 1.

    Args:
        model: the float model that the other was made from. The model does not change.
        quantized: a reference model or a lowered one.
        batch: inputs, as `calibrate` takes them.
        method: which of the model.

    Raises:
        JitPassesError: `quantized` is none.
    """
    record = converted_report(quantized)
    target = Target.from_record(record.target)
    module, _ = formed(FROZEN.enter(model, method), method, target, record.made)
    (arguments,) = batches([batch], None)
    macs = macs_of(module, method, cloned(arguments), model)
    return share_of(coverage(quantized, method), macs)


def share_of(covered: Coverage, macs: dict[str, int]) -> float:
    """Return which part of the multiply-accumulates is of operators on integers.

    An operator whose weight alone is quantized computes in float.
    """
    total = sum(macs.get(row.name, 0) for row in covered)
    on_integers = (row for row in covered.int8 if row.mode != "weight_only")
    return sum(macs.get(row.name, 0) for row in on_integers) / total if total else 0.0


def macs_of(
    module: Any, method: str, arguments: tuple[Any, ...], origin: torch.jit.ScriptModule
) -> dict[str, int]:
    """Return the multiply-accumulates of operators with weights and of matrix products, by name.

        convolution          elements of the result * elements of the weight / output channels
        transposed           elements of the input * elements of the weight / input channels
        linear               elements of the result * inputs
        matrix product       elements of the result * columns of the first operand
        attention            (elements of the query + elements of the result) * keys
        recurrent layer      tokens of the input * elements of all matrices

    Counted for all rounds of a loop. An embedding has none. Attention that is causal counts as if
    it were not.

    Args:
        module: a C++ module in canonical form, which is not changed.
        method: which to run.
        arguments: a batch, positional and by name.
        origin: the float model from which the module was made.
    """
    module = Pipeline("name_inputs", (name_inputs,)).run(_C.clone(module, method), method).module
    graph = GraphView.of(module, method)
    found = [node for node in graph.nodes if _is_known(node)]
    seen = {node.index: [_kept(value) for value in _read(node)] for node in found}
    recorder = Recorder(
        module, method, sorted({i for kept in seen.values() for i in kept if i is not None}),
        origin=origin,
    )  # fmt: skip
    _, values = recorder.run(arguments)
    counts: dict[str, int] = {}
    for node in found:
        known = [
            values.get(index, []) if index is not None else _constants(value)
            for index, value in zip(seen[node.index], _read(node), strict=True)
        ]
        times = max(map(len, known)) if all(known) else 0
        counts[node.name] = sum(
            _count(node, *(tensors[min(k, len(tensors) - 1)] for tensors in known))
            for k in range(times)
        )
    return counts


def _is_known(node: NodeView) -> bool:
    if node.traits.weighted is not None:
        return len(node.outputs) == 1 and _weight(node) is not None
    if node.kind in RECURRENT:
        return matrices_of(node) is not None
    return node.kind in PRODUCTS or node.kind == ATTENTION


def _read(node: NodeView) -> list[ValueView]:
    """Return the values whose sizes say how much a node computes; `_count` takes them."""
    if node.kind in RECURRENT:
        return [input_of(node)]
    if node.kind == ATTENTION:
        return [node.output, node.operand("query"), node.operand("key")]
    return [node.output, node.main_operand]


def _kept(value: ValueView) -> int | None:
    return value.producer.index if value.producer and not value.is_constant else None


def _constants(value: ValueView) -> list[torch.Tensor]:
    return [value.constant] if isinstance(value.constant, torch.Tensor) else []


def _weight(node: NodeView) -> torch.Tensor | None:
    weight = node.operand("weight").constant if node.traits.weighted is not None else None
    return weight if isinstance(weight, torch.Tensor) else None


def _count(node: NodeView, result: torch.Tensor, *operands: torch.Tensor) -> int:
    if node.kind in RECURRENT:
        numbers: int = sum(value.constant.numel() for _, value in matrices_of(node) or ())
        return result.numel() // max(result.shape[-1], 1) * numbers
    if node.kind == ATTENTION:
        query, key = operands
        return (query.numel() + result.numel()) * key.shape[-2]
    weighted, weight = node.traits.weighted, _weight(node)
    if weighted is None or weight is None:
        return result.numel() * operands[0].shape[-1]
    channels = math.prod(weight.shape[1:])
    return (operands[0] if weighted.transposed else result).numel() * channels
