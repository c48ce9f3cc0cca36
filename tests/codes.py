"""Codes of numbers in exact arithmetic, rounded to float32 where the kernels round."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np


def float32_of(value: Fraction) -> float:
    """Return the nearest float32, ties to even: by way of a double it would be rounded twice."""
    near = np.float32(float(value))
    around = (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf)))
    return float(min(around, key=lambda number: abs(Fraction(float(number)) - value)))


def unrounded_code(x: float, scale: float, zero_point: int, *, fused: bool = True) -> float:
    """Return x / scale + zero_point as float32 kernels compute it, by a product with 1 / scale.

    Args:
        fused: whether product and sum are rounded once, as for a scale of the whole tensor; or
            both are, as for those of channels and for int32.
    """
    with np.errstate(over="ignore"):
        inverse = np.float32(1) / np.float32(scale)
        product = np.float32(x) * inverse
    if math.isinf(product):
        return float(product)
    if not fused:
        return float(product + np.float32(zero_point))
    return float32_of(Fraction(float(np.float32(x))) * Fraction(float(inverse)) + zero_point)
