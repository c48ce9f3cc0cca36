"""Quantized layers whose bias can be another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..graph.editor import GraphEditor
from ..graph.traits import packet_of
from ..graph.view import GraphView, NodeView, ValueView
from ..passes.pipeline import Pipeline
from ..specification.specification import GroupDerivation
from .module import Report
from .scaling import Layer, is_layer
from .seen import read_places
from .values import DEQUANTIZE, grid_operands, source_of


@dataclass(frozen=True)
class BiasedLayer:
    """A quantized layer whose bias can be another one.

    Attributes:
        prepared: its node in the prepared model.
        reference: its node in the reference model.
        bias: as it was.
        step: of the bias, [channels] or one; 0 where it is float.
    """

    prepared: NodeView
    reference: NodeView
    bias: Tensor
    step: Tensor

    @property
    def spatial_dims(self) -> int:
        weighted = self.prepared.traits.weighted
        assert weighted is not None
        return weighted.spatial_dims

    @property
    def axis(self) -> int:
        return -1 - self.spatial_dims

    def rounded(self, shift: Tensor) -> Tensor:
        """Return the shift of the bias once the bias is rounded."""
        if not self.step.any():
            return shift
        bias = self.bias.double()
        return ((bias + shift) / self.step).round() * self.step - bias

    @property
    def lost(self) -> Tensor:
        """The weight less the numbers of its codes."""
        rounded = _weight_of(self.reference)  # numbers that nothing else holds
        return torch.sub(_weight_of(self.prepared), rounded, out=rounded)

    def mean_input(self, inputs: Tensor) -> tuple[Tensor, int]:
        """Return the mean of inputs over a batch, and how many they are.

        A layer is linear, so the mean of inputs gives the mean of results.
        """
        if inputs.dim() <= self.spatial_dims + 1:
            return inputs.unsqueeze(0), 1
        rows = inputs.flatten(0, -2 - self.spatial_dims)
        return rows.mean(0, keepdim=True), len(rows)

    def applied(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return the layer's result for other weights, without the bias."""
        options = [value.constant for value in self.prepared.operands_behind("bias")]
        found: Tensor = packet_of(self.prepared.kind)(inputs, weight, None, *options)
        return found


def biased_layers(
    prepared: torch.jit.ScriptModule, reference: torch.jit.ScriptModule, report: Report
) -> list[BiasedLayer]:
    """Return the quantized layers that have a bias without a range of its own, in program order."""
    method = report.method
    ranged = {
        known.place.owner
        for known in read_places(prepared, report)[1]
        if known.place.slot == "bias" and not isinstance(known.place.spec, GroupDerivation)
    }
    quantized = {
        node.name: node
        for node in GraphView.of(reference, method).nodes
        if node.traits.weighted is not None and _is_quantized(node)
    }
    found = []
    for node in GraphView.of(prepared, method).nodes:
        if node.name not in quantized or node.name in ranged or node.traits.weighted is None:
            continue
        bias = source_of(node.operand("bias")).constant
        if isinstance(bias, Tensor):
            step = _step(quantized[node.name].operand("bias"))
            found.append(BiasedLayer(node, quantized[node.name], bias.detach(), step))
    return found


def _is_quantized(node: NodeView) -> bool:
    made = node.operand("weight").producer
    return made is not None and made.kind in DEQUANTIZE and made.main_operand.is_constant


def _step(bias: ValueView) -> Tensor:
    made = bias.producer
    if made is None or made.kind not in DEQUANTIZE:
        return torch.zeros((), dtype=torch.float64)
    scale, *_ = grid_operands(made)
    return torch.as_tensor(scale.constant, dtype=torch.float64)


def _weight_of(node: NodeView) -> Tensor:
    """Return the weight of a layer, in numbers where it is stored as codes."""
    value = source_of(node.operand("weight"))
    made = value.producer
    if made is not None and made.kind in DEQUANTIZE:
        found: Tensor = packet_of(made.kind)(*(given.constant for given in made.inputs))
        return found
    constant: Tensor = value.constant
    return constant.detach()


class ZeroBiases:
    """Gives layers without a bias one of zeros, which a correction can change."""

    made: Mapping[str, Any] = MappingProxyType({})
    remarks: Mapping[str, str] = MappingProxyType({})

    def __call__(self, module: Any, method: str) -> Any:
        """Return the module with a bias for each layer of constant weights."""

        def give(graph: GraphEditor) -> None:
            for node in graph.nodes:
                if is_layer(node) and node.operand("bias").constant is None:
                    layer = Layer(node, None, torch.zeros(0))
                    first = layer.by_group(node.operand("weight").constant)[..., 0, 0]
                    zeros = torch.zeros_like(first).flatten()
                    bias = graph.constant(zeros, before=node)
                    graph.set_input(node, node.position("bias"), bias)

        return Pipeline("zero_biases", (give,)).run(module, method).module
