"""Ratios of scales as integers: a multiplier and a shift.

A sum of products q_x * q_w has steps of s_x * s_w, and the result has steps of s_y. So

    q_y = clamp(round(M * sum) + z_y, quant_min, quant_max),   M = s_x * s_w / s_y
    M ~ multiplier * 2^-shift

Source: Jacob et al., "Quantization and training of neural networks for efficient
integer-arithmetic-only inference" (CVPR 2018), equations 5 and 6. The product has 64 bits and is
rounded once, as `apply_scale_32` of TOSA without `double_round`, and TFLite with
`TFLITE_SINGLE_ROUNDING`. With the rounding `double_round` it is rounded twice where the shift n is
above 31:

    h = floor((sum * multiplier + 2^30) / 2^31)
    round(M * sum) = h / 2^(n - 31), halves away from zero

Sources: `SaturatingRoundingDoublingHighMul` and `RoundingDivideByPOT` of gemmlowp, which TFLite and
CMSIS-NN have too. `apply_scale_32` of TOSA with `double_round` gives equal integers, in one step:

    round(M * sum) = floor((sum * multiplier + 2^(n - 1) + k) / 2^n),   k = 2^30, or -2^30 below 0

The multiplier is from 2^30 on then, so 31 bits of the product are always dropped first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import JitPassesError

# How a number is rounded once, and the word that the reference model has for it.
ROUNDINGS = {
    "half_even": "half_even", "half_up": "half_up", "half_away": "half_away", "truncate": "floor",
}  # fmt: skip
DOUBLE_ROUND = "double_round"
HIGH = 31  # bits that double rounding drops first
LONGEST = 62  # bits of a shift: the product has 64 with its sign


@dataclass(frozen=True)
class Rescale:
    """Multiplication by numbers near a ratio, one for the tensor or one for each channel.

    y = round(x * multiplier[c] / (count * 2^shift[c]))

    Attributes:
        multipliers: one, or one for each channel.
        shifts: as many; from 0 to 62.
    """

    multipliers: tuple[int, ...]
    shifts: tuple[int, ...]

    @property
    def normalized(self) -> Rescale:
        """Equal ratios whose multipliers have 31 bits, as far as shifts reach."""
        pairs = zip(self.multipliers, self.shifts, strict=True)
        lifts = [min(HIGH - m.bit_length(), LONGEST - s) for m, s in pairs]
        return Rescale(
            tuple(m << lift for m, lift in zip(self.multipliers, lifts, strict=True)),
            tuple(s + lift for s, lift in zip(self.shifts, lifts, strict=True)),
        )


def rounding_of_codes(rounding: str) -> str:
    """Return how the reference model of a target rounds: `QuantizationSpec.rounding`.

    The second of two roundings has no form in floats, which round once.
    """
    return ROUNDINGS.get(rounding, "half_even")


def rounding_of_quotients(rounding: str) -> str:
    """Return how a target rounds quotients: TFLite rounds halves away from zero."""
    return "half_away" if rounding == DOUBLE_ROUND else rounding


def rescale_of(ratios: Sequence[float], bits: int, only_shift: bool) -> Rescale:
    """Return the multipliers and shifts that are nearest to some ratios.

    multiplier = round(ratio * 2^shift), halves to even, with the largest shift for which it is
    below 2^bits; then both are halved as long as the multiplier is even. A power of two has the
    multiplier 1, if it is below 1.

    Args:
        ratios: above 0, in double precision.
        bits: of a multiplier, without a sign.
        only_shift: whether ratios must be powers of two.

    Raises:
        JitPassesError: a ratio is not a power of two, or too large.
    """
    pairs = [_decomposed(ratio, bits, only_shift) for ratio in ratios]
    if len(set(pairs)) == 1:
        pairs = pairs[:1]
    return Rescale(tuple(m for m, _ in pairs), tuple(s for _, s in pairs))


def common_rescale(
    ratios: Sequence[float], bits: int, only_shift: bool
) -> tuple[tuple[int, ...], int]:
    """Return multipliers of several operands whose sum is shifted once, and the shift.

    multiplier[k] = round(ratio[k] * 2^shift); the largest one is below 2^bits. A ratio may be below
    0. The operands are rounded together, not one by one.

    Raises:
        JitPassesError: a ratio is not a power of two, or too large.
    """
    for ratio in ratios if only_shift else ():
        _check_power_of_two(abs(ratio))
    shift = min(_shift_of(abs(ratio), bits) for ratio in ratios)
    found = [round(math.ldexp(ratio, shift)) for ratio in ratios]
    while shift > 0 and all(multiplier % 2 == 0 for multiplier in found):
        found, shift = [multiplier // 2 for multiplier in found], shift - 1
    return tuple(found), shift


def _decomposed(ratio: float, bits: int, only_shift: bool) -> tuple[int, int]:
    if only_shift:
        _check_power_of_two(ratio)
    shift = _shift_of(ratio, bits)
    multiplier = round(math.ldexp(ratio, shift))
    while shift > 0 and multiplier % 2 == 0:
        multiplier, shift = multiplier // 2, shift - 1
    return multiplier, shift


def _shift_of(ratio: float, bits: int) -> int:
    """Return the largest shift for which the multiplier has no more than so many bits."""
    _, exponent = math.frexp(ratio)  # ratio = mantissa * 2^exponent, 0.5 <= mantissa < 1
    shift = min(bits - exponent, LONGEST)
    if round(math.ldexp(ratio, shift)) >= 1 << bits:
        shift -= 1
    if shift < 0:
        raise JitPassesError(
            f"its result has steps that are {ratio:g} times smaller than its sums have, and a "
            f"multiplier has {bits} bits: calibrate it with data for which it is not constant"
        )
    return shift


def _check_power_of_two(ratio: float) -> None:
    if math.frexp(ratio)[0] != 0.5:
        raise JitPassesError(
            f"the ratio of its scales is {ratio:g}, which is not a power of two: give its values "
            "the scheme power_of_two, or take requantization='multiplier'"
        )
