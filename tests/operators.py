"""Fused operators one at a time, for comparing a lowered model with its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.view import GraphView, NodeView
from jit_passes.quantizer import (
    Annotations,
    DerivedQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    Role,
    SharedQuantizationSpec,
    bias_qparams,
)
from jit_passes.quantizers.joined import clipped_output


class EveryOperator(Quantizer):
    """Quantizes every operator of the table on its own, to as many codes as the target has."""

    def __init__(self, target: jit_passes.targets.Stock) -> None:
        self.target = target

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        _, highest = self.target.capability.activations.grids["uint8"]
        activation = QuantizationSpec(quant_max=highest)
        for node in graph.nodes:
            row = self.target.capability.operators.get(node.kind)
            absorbed = node in annotations
            if (
                row is None
                or absorbed
                or (row.role is not Role.WEIGHTED and row.check and row.check(node))
            ):
                continue
            operands: dict[Any, Any] = {}
            for index in row.operands:
                maker = node.inputs[index].producer
                elements = maker is not None and maker.kind == "prim::ListConstruct"
                values = maker.inputs if maker and elements else [node.inputs[index]]
                operands.update(dict.fromkeys(values, activation))
            spec: Any = row.fixed or activation
            if row.role is Role.SHARED:
                spec = SharedQuantizationSpec((node.inputs[0], node), observed=False)
            if row.role is Role.WEIGHTED:
                weight = self.target.quantizer().policy.weight_of(node)
                operands[node.inputs[1]] = weight
                if isinstance(node.inputs[2].constant, Tensor):
                    operands[node.inputs[2]] = bias_spec(node, weight)
            result = clipped_output(node, row).producer
            if result is node:
                annotation = QuantizationAnnotation(operands, spec, False, ranks=row.ranks)
                annotations[node] = annotation
            else:
                assert result is not None
                annotations[node] = QuantizationAnnotation(operands, None, False)
                annotations[result] = QuantizationAnnotation({}, spec, False, node, row.ranks)
        return annotations


def bias_spec(node: NodeView, weight: QuantizationSpec) -> DerivedQuantizationSpec:
    """The bias in steps of input scale times weight scale."""
    return DerivedQuantizationSpec(
        ((node.inputs[0], node), (node.inputs[1], node)), bias_qparams, "int32", -(2**31) + 1,
        qscheme=weight.qscheme, ch_axis=None if weight.ch_axis is None else 0,
    )  # fmt: skip


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


@dataclass(frozen=True)
class Pair:
    """A reference model and the lowered one."""

    reference: torch.jit.ScriptModule
    lowered: torch.jit.ScriptModule

    @property
    def scale(self) -> float:
        """Scale of the last quantize of the reference model."""
        found = None
        for node in self.reference.graph.nodes():
            if node.kind() == "jit_passes::quantize":
                found = node.inputsAt(1).toIValue()
        assert found is not None
        return found

    def kinds(self) -> set[str]:
        """Operators of the lowered model."""
        return {node.kind() for node in self.lowered.graph.nodes()}


def quantize_operator(
    model: nn.Module,
    *inputs: Tensor,
    engine: str | None = None,
    trace: bool = True,
    reduce_range: bool | None = None,
) -> Pair:
    """Return reference and lowered model of a module that is one operator."""
    model = model.eval()
    script = torch.jit.trace(model, inputs) if trace else torch.jit.script(model)
    target = jit_passes.targets.Stock(
        engine=engine, integer_pools=True, reduce_range=reduce_range
    )  # fmt: skip
    prepared = jit_passes.prepare(script, quantizer=EveryOperator(target), target=target)
    jit_passes.calibrate(prepared, [tuple(inputs)], progress=False)
    reference = jit_passes.convert(prepared)
    return Pair(reference, jit_passes.lower(reference, target))
