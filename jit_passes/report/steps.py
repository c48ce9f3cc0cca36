"""Between values and the codes that a converted model has for them."""

from __future__ import annotations

from typing import Any

import torch

from ..specification.parameters import QParams
from .places import Site


def _along(factor: torch.Tensor, axis: int, like: torch.Tensor) -> torch.Tensor:
    shape = [-1 if i == axis % like.dim() else 1 for i in range(like.dim())]
    return factor.reshape(shape)


def _broadcast(value: Any, axis: int | None, like: torch.Tensor) -> torch.Tensor:
    numbers = torch.as_tensor(value)
    return numbers if axis is None else _along(numbers, axis, like)


def step_of(parameters: QParams, values: list[torch.Tensor]) -> torch.Tensor:
    """Return the width of a step, for each element of the values."""
    like = values[0] if values else torch.zeros(1)
    return _broadcast(parameters.scale, parameters.axis, like).double()


def rounded(x: torch.Tensor, parameters: QParams) -> torch.Tensor:
    """Return the nearest values on the grid."""
    scale = _broadcast(parameters.scale, parameters.axis, x).double()
    zero = _broadcast(parameters.zero_point, parameters.axis, x)
    codes = (x.double() / scale).round() + zero
    return (codes.clamp(parameters.quant_min, parameters.quant_max) - zero) * scale


def value_of(codes: torch.Tensor, site: Site) -> torch.Tensor:
    """Return what the codes of the converted model stand for."""
    if codes.is_quantized:
        return codes.dequantize()
    scale = _broadcast(site.scale, site.axis, codes).float()
    return (codes.long() - _broadcast(site.zero_point, site.axis, codes)).float() * scale


def codes_of(value: torch.Tensor, like: torch.Tensor, site: Site) -> torch.Tensor:
    """Return the value as the codes that the converted model has there."""
    if like.is_quantized:
        grid = like.q_scale(), like.q_zero_point()
        return torch.quantize_per_tensor(value, *grid, like.dtype)
    limits = torch.iinfo(like.dtype)
    step = _broadcast(site.scale, site.axis, value)
    zero = _broadcast(site.zero_point, site.axis, value)
    return ((value / step).round() + zero).clamp(limits.min, limits.max).to(like.dtype)
