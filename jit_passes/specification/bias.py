"""Biases in steps of the accumulator, and scales that are large enough for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from .derivation import derivation, derivation_name
from .parameters import QParams
from .qparams import float32, power_of_two_at_least
from .specification import QuantizationSpec, ResolvedSpec


@derivation
def bias_qparams(sources: Sequence[QParams]) -> tuple[float | torch.Tensor, int]:
    """Return input scale * weight scale, and 0: a bias in steps of the accumulator.

    Integer arithmetic adds it to the sum of products without rescaling. Per channel where the
    weight is.
    """
    inputs, weight = sources
    return inputs.scale * weight.scale, 0


ACCUMULATOR = derivation_name(bias_qparams)


def largest_code(chosen: QParams) -> int:
    """Return the largest code that a bias is to have: half of all.

    The second half is for the sum of products: with 8 bits on both sides, for 33,000 of them.
    """
    return chosen.quant_max // 2


def fits(bias: torch.Tensor, chosen: QParams) -> bool:
    """Say whether a bias has codes up to `largest_code` only."""
    return bool((bias.abs() <= chosen.scale * largest_code(chosen)).all())


def fitting_scales(
    bias: torch.Tensor, largest: int, inputs: QParams, weight: QParams, free: tuple[bool, bool]
) -> tuple[float | torch.Tensor, float | torch.Tensor]:
    """Return scales of input and weight with which a bias fits.

    |bias[c]| <= largest * input scale * weight scale[c]

    Zeros have the smallest scale there is, which no bias fits: in a channel that is pruned or
    dead, or where the data have left the input at 0. If the scale of the input is below the largest
    one of the weight, it is raised first, until the largest bias fits that channel. Then each
    channel of the weight is raised as far as its own bias asks.

    Products that are so much smaller than their bias lose nothing: coarser steps change a result by
    at most 2**-23 |bias| for each product of 8 bits.

    Args:
        bias: `[channels]`.
        largest: the largest code that the bias is to have.
        inputs: the parameters of the input.
        weight: the parameters of the weight, one scale or `[channels]`.
        free: whether the scales of input and weight may be raised.
    """
    needed = bias.detach().double().abs() / largest
    of_weight = torch.as_tensor(weight.scale, dtype=torch.float64)
    of_input, most = float(inputs.scale), float(of_weight.max())
    if free[0] and (of_input < most or not free[1]):
        of_input = max(of_input, float(needed.max()) / most)
    if free[1]:
        needed = needed if of_weight.dim() else needed.max()
        of_weight = torch.maximum(of_weight, needed / of_input)
    return of_input, of_weight if of_weight.dim() else float(of_weight)


def with_scale(known: QParams, scale: float | torch.Tensor, spec: ResolvedSpec) -> QParams:
    """Return parameters with another scale: a number of float32, as kernels have it.

    Where the specification asks for a power of two, it is the next one.
    """
    power = isinstance(spec, QuantizationSpec) and spec.power_of_two
    rounded = power_of_two_at_least if power else float32
    if not isinstance(scale, torch.Tensor):
        return replace(known, scale=rounded(scale))
    found = torch.tensor([rounded(step) for step in scale.reshape(-1).tolist()])
    return replace(known, scale=found.double().reshape(scale.shape))
