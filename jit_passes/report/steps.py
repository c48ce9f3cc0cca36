"""Between values and the codes that a converted model has for them."""

from __future__ import annotations

from typing import Any

import torch

from ..specification.grid import DTYPES
from ..specification.groups import spread
from ..specification.parameters import QParams
from .places import Site


def step_of(parameters: QParams, values: list[torch.Tensor]) -> torch.Tensor:
    """Return the width of a step, for each element of the values."""
    scale, axis = torch.as_tensor(parameters.scale).double(), parameters.axis
    if axis is None or not values:
        return scale
    return spread(scale, axis, values[0].shape)


def rounded(x: torch.Tensor, parameters: QParams) -> torch.Tensor:
    """Return the nearest values on the grid."""
    ends = (parameters.quant_min, parameters.quant_max)
    scale, zero, axis = parameters.scale, parameters.zero_point, parameters.axis
    codes = _quantized(x, scale, zero, axis, ends, DTYPES[parameters.dtype])
    return _dequantized(codes, scale, zero, axis)


def value_of(codes: torch.Tensor, site: Site) -> torch.Tensor:
    """Return the values of the converted model's codes; floats are values already."""
    if codes.is_quantized or codes.is_floating_point():
        return codes.dequantize() if codes.is_quantized else codes
    return _dequantized(codes, site.scale, site.zero_point, site.axis)


def codes_of(value: torch.Tensor, like: torch.Tensor, site: Site) -> torch.Tensor:
    """Return the value as the codes of the converted model at this place, or unchanged.

    Values beyond the ends of the grid are clipped: the dtype may hold more codes than the grid has.
    """
    if like.is_floating_point():
        return value
    if site.value is not None:
        _, low, high = site.value.ends(value.dim())
        value = value.clamp(low.to(value.dtype), high.to(value.dtype))
    if like.is_quantized:
        grid = like.q_scale(), like.q_zero_point()
        return torch.quantize_per_tensor(value, *grid, like.dtype)
    limits = torch.iinfo(like.dtype)
    ends = (limits.min, limits.max)
    return _quantized(value, site.scale, site.zero_point, site.axis, ends, like.dtype)


def has_codes(found: torch.Tensor, site: Site) -> bool:
    """Say whether a tensor holds values, or codes of a dtype that a grid can have."""
    known = found.is_quantized or found.is_floating_point()
    return known or (found.dtype in DTYPES.values() and site.scale is not None)


# The dialect's own operators, or ties would round otherwise than in the converted model.


def _quantized(
    x: torch.Tensor, scale: Any, zero: Any, axis: int | None, ends: tuple[int, int],
    dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    codes: torch.Tensor
    if axis is None:
        codes = torch.ops.jit_passes.quantize(x, scale, zero, *ends, dtype)
    else:
        codes = torch.ops.jit_passes.quantize_per_channel(x, scale, zero, axis, *ends, dtype)
    return codes


def _dequantized(codes: torch.Tensor, scale: Any, zero: Any, axis: int | None) -> torch.Tensor:
    values: torch.Tensor
    if axis is None:
        values = torch.ops.jit_passes.dequantize(codes, scale, zero)
    else:
        values = torch.ops.jit_passes.dequantize_per_channel(codes, scale, zero, axis)
    return values
