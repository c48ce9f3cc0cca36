"""Ranges that a function has by itself, for quantizers that put it into a table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Range = tuple[float, float]

# By operator kind: the range of the input and of the result.
#
# Beyond its input range the function is flat: clipping the input changes the result by less than
# one step of 8 bits, 1 - tanh(3) = 0.0049 of 2 / 255 and 1 - sigmoid(6) = 0.0025 of 1 / 255. Fewer
# codes are then spent where nothing happens than with a range from calibration. Source: Glow,
# lib/Quantization/Quantization.cpp, tables of Tanh and Sigmoid.
FIXED_RANGES: Mapping[str, tuple[Range, Range]] = MappingProxyType(
    {
        "aten::tanh": ((-3.0, 3.0), (-1.0, 1.0)),
        "aten::sigmoid": ((-6.0, 6.0), (0.0, 1.0)),
    }
)
