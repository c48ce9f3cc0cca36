"""Scale and zero point from a range, in Glow's form."""

from __future__ import annotations

import math

import torch

from .specification import QuantizationSpec

# The range of all zeros has this scale.
SCALE_OF_ZERO = 0.1
_FLOAT = torch.finfo(torch.float32)


def glow_qparams(low: float, high: float, spec: QuantizationSpec) -> tuple[float, int]:
    """Return scale and zero point of a range that contains 0, as Glow does.

    `chooseQuantizationParams` in Glow's lib/Quantization/Base/Base.cpp:

    symmetric:  the end that needs the smaller scale is moved out to that of the other:
                low = high / quant_max * quant_min, or high = low / quant_min * quant_max
    all:        scale = (high - low) / (quant_max - quant_min), or 0.1 if that is 0
                zero_point = quant_min - low / scale, or quant_max - high / scale, whichever adds
                the smaller numbers; 0 if |low + high| is at most 2**-23; halves away from 0
    power of two: symmetric, with the next power of two as scale

    This is for types with 0 in the middle. Zero points of others are counted from the middle.
    Scales below float32's normal numbers are raised to those: their reciprocal is finite.
    """
    middle = (spec.quant_min + spec.quant_max + 1) // 2
    bottom, top = spec.quant_min - middle, spec.quant_max - middle
    if spec.symmetric or spec.power_of_two:
        below, above = low / bottom, high / top
        if below > above:
            high = _float32(below * top)
        else:
            low = _float32(above * bottom)
    scale = (high - low) / (top - bottom) or SCALE_OF_ZERO
    zero_point = _zero_point(low, high, scale, bottom, top)
    if spec.power_of_two:
        mantissa, exponent = math.frexp(scale)  # exact, as a logarithm is not
        scale, zero_point = math.ldexp(1.0, exponent - (mantissa == 0.5)), 0
    return max(_float32(scale), _FLOAT.tiny), zero_point + middle


def _zero_point(low: float, high: float, scale: float, bottom: int, top: int) -> int:
    if abs(_float32(high + low)) <= _FLOAT.eps:
        return 0
    from_bottom = abs(bottom) + abs(low / scale) < abs(top) + abs(high / scale)
    exact = bottom - low / scale if from_bottom else top - high / scale
    nearest = math.floor(abs(exact) + 0.5)
    return min(max(nearest if exact > 0 else -nearest, bottom), top)


def _float32(value: float) -> float:
    return float(torch.tensor(min(max(value, _FLOAT.min), _FLOAT.max), dtype=torch.float32))
