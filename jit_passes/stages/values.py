"""Values of the float model that a converted one quantizes: how reports know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..graph.view import GraphView, NodeView

QUANTIZE = ("jit_passes::quantize", "jit_passes::quantize_per_channel")
DEQUANTIZE = ("jit_passes::dequantize", "jit_passes::dequantize_per_channel")


@dataclass(frozen=True)
class QuantizedValue:
    """A computed value, and its grid: a code q stands for (q - zero_point) * scale.

    Attributes:
        place: id of the place.
        name: of the value in the float model's canonical graph.
        scale, zero_point: one, or one for each channel.
        axis: of the channels; None for one scale.
        low, high: the codes at the ends.
    """

    place: int
    name: str
    scale: list[float]
    zero_point: list[int]
    axis: int | None
    low: int
    high: int

    def ends(self, dims: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the width of a step, and the smallest and the largest value of the grid.

        They broadcast over a tensor with so many dimensions.
        """
        sizes = [-1 if self.axis is not None and i == self.axis % dims else 1 for i in range(dims)]
        scale = torch.tensor(self.scale, dtype=torch.float64).reshape(sizes)
        zero = torch.tensor(self.zero_point).reshape(sizes)
        return scale, (self.low - zero) * scale, (self.high - zero) * scale


def quantized_values(graph: GraphView, places: Mapping[int, int | None]) -> list[QuantizedValue]:
    """Return the values that a reference model quantizes while it runs, in program order.

    Those whose grid is computed while the model runs have none that is known, and are left out.

    Args:
        graph: of the reference model, whose values have the names of the float model's.
        places: ids of places by index of node.
    """
    found = []
    for node in graph.nodes:
        place = places.get(node.index)
        if node.kind not in QUANTIZE or place is None or not node.inputs[1].is_constant:
            continue
        scale, zero_point = (torch.as_tensor(v.constant).reshape(-1) for v in node.inputs[1:3])
        axis = int(node.inputs[3].constant) if "per_channel" in node.kind else None
        low, high = (int(value.constant) for value in node.inputs[-3:-1])
        name = source_of(node).name
        found.append(
            QuantizedValue(place, name, scale.tolist(), zero_point.tolist(), axis, low, high)
        )
    return found


def source_of(quantize: NodeView) -> Any:
    """Return what is quantized: ahead of an earlier quantization of the same value."""
    value = quantize.inputs[0]
    while (maker := value.producer) is not None and maker.kind in (*QUANTIZE, *DEQUANTIZE):
        value = maker.inputs[0]
    return value
