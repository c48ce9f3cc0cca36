"""The parameters of a quantized value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .grid import DTYPES

_CODES = {torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3}


@dataclass(frozen=True, slots=True)
class ChosenQParams:
    """How parameters are chosen as the model runs: see `QuantizationSpec`."""

    quant_min: int
    quant_max: int
    dtype: str
    qscheme: str
    range_form: str

    def as_options(self) -> dict[str, Any]:
        """Return the options of the pass insert_quantize_dequantize for a place."""
        own = {name: getattr(self, name) for name in self.__slots__}
        return own | {"dtype": _CODES[DTYPES[self.dtype]]}


@dataclass(frozen=True, slots=True)
class QParams:
    """Parameters of one quantized value.

    Attributes:
        scale: input units per step; when there is an axis a float64 tensor, [channels] or
            [channels, groups].
        zero_point: in steps; int64 tensor of the same shape when there is an axis.
        axis: the channel axis; None per tensor.
        rounding: how codes are rounded; see `QuantizationSpec`.
    """

    scale: float | torch.Tensor
    zero_point: int | torch.Tensor
    axis: int | None
    quant_min: int
    quant_max: int
    dtype: str
    rounding: str = "half_even"

    def as_options(self) -> dict[str, Any]:
        """Return the options of the pass insert_quantize_dequantize for a place."""
        own = {name: getattr(self, name) for name in self.__slots__}
        return own | {"dtype": _CODES[DTYPES[self.dtype]]}
