"""Values of the float model that a converted one quantizes: how reports know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from ..specification.parameters import QParams

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


def quantized_values(
    named: Iterable[tuple[int, str]], parameters: Mapping[int, QParams]
) -> list[QuantizedValue]:
    """Return the values that a reference model quantizes while it runs, in program order.

    Args:
        named: ids of places, and names of the values that are quantized there.
        parameters: by id. Those that are chosen as the model runs are missing, and left out.
    """
    found = []
    for place, name in named:
        if (chosen := parameters.get(place)) is not None:
            scale, zero_point = (
                torch.as_tensor(x).reshape(-1).tolist() for x in (chosen.scale, chosen.zero_point)
            )
            ends = chosen.quant_min, chosen.quant_max
            found.append(QuantizedValue(place, name, scale, zero_point, chosen.axis, *ends))
    return found
