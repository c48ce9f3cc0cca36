"""Factors of channels by the error that the rounding of weights leaves in results."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..specification.groups import rows_of, scales_of, spread
from ..specification.specification import QuantizationSpec

_EXPONENTS = 20
_LEAST = 2.0**-12  # of the largest mean: no channel counts as smaller
_ZERO = torch.finfo(torch.float32).tiny

Reader = tuple[Tensor, QuantizationSpec]


def sums_of(rows: Tensor) -> Tensor:
    """Return sums of |x| and x^2 over rows [n, channels], and their number, [3, channels]."""
    return torch.stack(
        [rows.abs().sum(0), rows.square().sum(0), torch.full_like(rows[0], len(rows))]
    )


def searched(sums: Tensor, readers: Sequence[Reader]) -> Tensor:
    """Return the factors s of channels for which the rounded weights W of all readers lose least.

    With the mean magnitude and the mean square of channel j of the values X in front,

        s_j = (mean |X_j|)^a,    error(a) = sum over i, j of  mean(X_j^2) (W - Q(W s) / s)_ij^2

    for a = 0, 0.05, ..., 0.95, with one a for all channels. Q rounds to the nearest code in the
    range of the largest weight. Source: AWQ (Lin et al., 2023, https://arxiv.org/abs/2306.00978,
    equations 4 and 5), whose error has the products of channels too.

    Args:
        sums: `sums_of` the values.
        readers: weights [outputs, channels], and how each is quantized.
    """
    mean, square = sums[:2] / sums[2].clamp_min(1)
    mean = mean.clamp_min(_LEAST * float(mean.max()))
    least, best = float("inf"), torch.ones_like(mean)
    if not mean.all():  # all values are 0
        return best
    for step in range(_EXPONENTS):
        factors = mean ** (step / _EXPONENTS)
        error = 0.0
        for weight, spec in readers:
            exact = weight.double()
            lost = exact - nearest(exact * factors, spec) / factors
            error += float((lost.square().sum(0) * square).sum())
        if error < least:
            least, best = error, factors
    return best


def nearest(weight: Tensor, spec: QuantizationSpec) -> Tensor:
    """Return a weight with the nearest codes in the range of its largest number, in float64.

    All ranges at once: `choose_qparams` goes over affine ones one by one, for each exponent.
    """
    axis = spec.ch_axis
    rows = weight.reshape(1, -1) if axis is None else rows_of(weight, axis, spec.group_size)
    low, high = rows.amin(1).clamp_max(0), rows.amax(1).clamp_min(0)
    steps = spec.quant_max - spec.quant_min
    if spec.power_of_two:
        below = low / spec.quant_min if spec.quant_min < 0 else torch.zeros_like(low)
        scale = torch.maximum(high / spec.quant_max, below).clamp_min(_ZERO).log2().ceil().exp2()
    elif spec.symmetric:
        scale = (2 * torch.maximum(-low, high) / steps).clamp_min(_ZERO)
    else:
        scale = ((high - low) / steps).clamp_min(_ZERO)
    affine = not (spec.power_of_two or spec.symmetric)
    zero = (spec.quant_min - low / scale).round() if affine else torch.full_like(low, spec.middle)
    if axis is None:
        scale, zero = scale.reshape(()), zero.reshape(())
    else:
        shape = scales_of(weight.shape, axis, spec.group_size, "a weight")
        scale, zero = (spread(x.reshape(shape), axis, weight.shape) for x in (scale, zero))
    codes = ((weight / scale).round() + zero).clamp(spec.quant_min, spec.quant_max)
    found: Tensor = (codes - zero) * scale
    return found
