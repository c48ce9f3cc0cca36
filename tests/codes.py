"""Codes of numbers in exact arithmetic, rounded to float32 where the kernels round."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Since torch 2.14 quantize_per_tensor rounds x / scale; before, the code with its zero point.
ROUNDS_STEPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)


def float32_of(value: Fraction) -> float:
    """Return the nearest float32, ties to even: by way of a double it would be rounded twice."""
    near = np.float32(float(value))
    around = (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf)))
    return float(min(around, key=lambda number: abs(Fraction(float(number)) - value)))


def unrounded_code(x: float, scale: float, zero_point: int, *, fused: bool) -> float:
    """Return x / scale + zero_point as float32 kernels compute it, by a product with 1 / scale."""
    with np.errstate(over="ignore"):
        inverse = np.float32(1) / np.float32(scale)
        product = np.float32(x) * inverse
    if math.isinf(product):
        return float(product)
    if not fused:
        return float(product + np.float32(zero_point))
    return float32_of(Fraction(float(np.float32(x))) * Fraction(float(inverse)) + zero_point)


def codes_of(x: Tensor, inverse_scale: float, zero_point: int) -> Tensor:
    """Return float32 codes of float32 numbers that nothing clamps; products are exact in double."""
    steps = x.double() * inverse_scale
    if ROUNDS_STEPS:
        return steps.float().round() + zero_point
    return (steps + zero_point).float().round()


def code_of(
    x: float,
    scale: float,
    zero_point: int,
    *,
    fused: bool = True,
    double: bool = False,
    rounding: Callable[[Any], int] = round,
    of_steps: bool = ROUNDS_STEPS,
) -> float:
    """Return the code of a number, not clamped; that of one too large is infinite.

    Args:
        fused: whether product and sum are rounded to float32 once, as for a scale of the whole
            tensor, or both are, as for scales of channels and for int32; of codes only.
        double: whether the number is divided by its scale in double.
        rounding: of fractions.
        of_steps: whether the zero point is added behind rounding, and not in front of it.
    """
    first, last = (0, zero_point) if of_steps else (zero_point, 0)
    if double:
        unrounded = x / scale + first
    else:
        unrounded = unrounded_code(x, scale, first, fused=fused and not of_steps)
    if math.isinf(unrounded):
        return unrounded
    rounded = rounding(Fraction(unrounded))
    return rounded + last if double else float(np.float32(rounded) + np.float32(last))
