"""How TFLite, gemmlowp and TOSA multiply a sum by a ratio: their formulas, on Python's integers.

Sources: `fixedpoint.h` of gemmlowp; `common.h` and `quantization_util.cc` of TFLite, whose `shift`
is to the left; "Scaling operations" of the TOSA specification, and `computeMultiplierAndShift` of
MLIR's TOSA dialect.
"""

from __future__ import annotations

import math

INT32 = (-(2**31), 2**31 - 1)


def _checked(x: int) -> int:
    assert INT32[0] <= x <= INT32[1], x
    return x


def quantize_multiplier(ratio: float) -> tuple[int, int]:
    """Return TFLite's multiplier, and its shift to the left."""
    mantissa, shift = math.frexp(ratio)
    fixed = math.floor(mantissa * 2**31 + 0.5)
    if fixed == 2**31:
        fixed, shift = fixed // 2, shift + 1
    return (0, 0) if shift < -31 else (fixed, shift)


def high_mul(a: int, b: int) -> int:
    """SaturatingRoundingDoublingHighMul; C divides towards 0."""
    if a == b == INT32[0]:
        return INT32[1]
    product = a * b + (2**30 if a * b >= 0 else 1 - 2**30)
    return product // 2**31 if product >= 0 else -(-product // 2**31)


def divide_by_power(x: int, exponent: int) -> int:
    """RoundingDivideByPOT."""
    mask = (1 << exponent) - 1
    threshold = (mask >> 1) + (1 if x < 0 else 0)
    return (x >> exponent) + (1 if x & mask > threshold else 0)


def twice(x: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier, of gemmlowp and CMSIS-NN."""
    lifted = _checked(x << max(shift, 0))
    return divide_by_power(high_mul(lifted, multiplier), max(-shift, 0))


def once(x: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier with TFLITE_SINGLE_ROUNDING."""
    total = 31 - shift
    return (x * multiplier + (1 << (total - 1))) >> total


def tosa_multiplier(ratio: float, bits: int) -> tuple[int, int]:
    """Return TOSA's multiplier, of 31 or 15 bits, and its shift to the right."""
    mantissa, exponent = math.frexp(ratio)
    multiplier = math.floor(mantissa * 2**bits + 0.5)
    if multiplier == 2**bits:
        multiplier, exponent = multiplier // 2, exponent + 1
    shift = bits - exponent
    if shift > 62:
        multiplier, shift = multiplier >> min(31, shift - 62), 62
    return multiplier, shift


def apply_scale_32(value: int, multiplier: int, shift: int, double_round: bool = False) -> int:
    assert multiplier >= 0 and 2 <= shift <= 62
    assert -(1 << (shift - 1)) <= value < 1 << (shift - 1)
    half = 1 << (shift - 1)
    if double_round and shift > 31:
        half += 1 << 30 if value >= 0 else -(1 << 30)
    return _checked((value * multiplier + half) >> shift)


def apply_scale_16(value: int, multiplier: int, shift: int) -> int:
    assert 0 <= multiplier < 2**15 and 2 <= shift <= 62
    assert -(2**47) <= value < 2**47
    return _checked((value * multiplier + (1 << (shift - 1))) >> shift)
