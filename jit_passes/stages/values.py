"""Values of the float model that a converted one quantizes: how reports know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import torch

from ..graph.view import NodeView, ValueView
from ..specification.parameters import QParams

QUANTIZE = ("jit_passes::quantize", "jit_passes::quantize_per_channel")
DEQUANTIZE = ("jit_passes::dequantize", "jit_passes::dequantize_per_channel")
EDGE = "jit_passes::edge"


def source_of(value: ValueView) -> ValueView:
    """Return the value that edges of a prepared model are other names of."""
    while value.producer is not None and value.producer.kind == EDGE:
        value = value.producer.main_operand
    return value


def readers_of(value: ValueView) -> list[NodeView]:
    """Return the operators that read a value of a prepared model, also by its edges' names.

    Observers are none.
    """
    pending, found = [source_of(value)], []
    while pending:
        for user, operand in pending.pop().uses:
            if user.kind == EDGE:
                pending.append(user.output)
            elif not (user.kind.startswith("jit_passes::observe") and operand == 0):
                found.append(user)
    return found


def grid_operands(node: NodeView) -> list[ValueView]:
    """Return scale and zero point of a quantize or a dequantize, and the axis if per channel."""
    names = "scales zero_points axis" if "per_channel" in node.kind else "scale zero_point"
    return [node.operand(name) for name in names.split()]


@dataclass(frozen=True)
class QuantizedValue:
    """A computed value, and its grid: a code q stands for (q - zero_point) * scale.

    Attributes:
        place: id of the place.
        name: of the value in the float model's canonical graph.
        scale, zero_point: one, or one for each channel.
        axis: of the channels; None for one scale.
        low, high: the codes at the ends.
        label: its name in tables and files: the name, or where the value has several grids, for
            all but the first with the operator that reads it, `relu -> conv2:conv2d`. Files of
            versions that did not note it have the name.
    """

    place: int
    name: str
    scale: list[float]
    zero_point: list[int]
    axis: int | None
    low: int
    high: int
    label: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    def ends(self, dims: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the width of a step, and the smallest and the largest value of the grid.

        The results broadcast over a tensor with so many dimensions.
        """
        sizes = [-1 if self.axis is not None and i == self.axis % dims else 1 for i in range(dims)]
        scale = torch.tensor(self.scale, dtype=torch.float64).reshape(sizes)
        zero = torch.tensor(self.zero_point).reshape(sizes)
        return scale, (self.low - zero) * scale, (self.high - zero) * scale


def quantized_values(
    named: Iterable[tuple[int, str, str]], parameters: Mapping[int, QParams]
) -> list[QuantizedValue]:
    """Return the values that a reference model quantizes while it runs, in program order.

    Args:
        named: ids of places, names of the values that are quantized there, and of their readers.
        parameters: by id. Places whose parameters are chosen as the model runs are left out.
    """
    found = []
    grids: dict[str, Any] = {}  # by label
    for place, name, reader in named:
        if (chosen := parameters.get(place)) is not None:
            scale = torch.as_tensor(chosen.scale, dtype=torch.float64).reshape(-1).tolist()
            zero_point = torch.as_tensor(chosen.zero_point).reshape(-1).tolist()
            grid = (scale, zero_point, chosen.axis, chosen.quant_min, chosen.quant_max)
            further = f"{name} -> {reader or 'result'}"
            labels = chain((name, further), (f"{further}#{k}" for k in count(1)))
            label = next(text for text in labels if grids.setdefault(text, grid) == grid)
            found.append(QuantizedValue(place, name, *grid, label))
    return found
