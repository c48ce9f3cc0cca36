"""Scale and zero point from a range."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import JitPassesError, warn
from ..observers import HistogramObserver, ObserverState
from ..observers.headroom import widened
from .derivation import find_derivation
from .grid import DTYPES
from .groups import spread
from .parameters import QParams
from .specification import FixedQParamsQuantizationSpec, GroupDerivation, QuantizationSpec

_FLOAT = torch.finfo(torch.float32)
# The product of two scales, of an input and a weight, is a normal number of float32.
SMALLEST_SCALE = 2.0**-60
SCALE_OF_ZEROS = _FLOAT.eps  # of the range of all zeros, as in PyTorch's observers
# The smallest normal float32, whose reciprocal is finite.
SMALLEST_POWER_OF_TWO = _FLOAT.tiny
SCALE_OF_ZERO = 0.1  # of the range of all zeros, in Glow's form


def affine_qparams(low: float, high: float, spec: QuantizationSpec) -> tuple[float, int]:
    """Return scale and zero point of one range.

    The range is widened to contain 0, so that 0 is exactly representable. For a specification with
    range_form "glow", see `glow_qparams`; otherwise:

    affine:     scale = (high - low) / (quant_max - quant_min)
                zero_point = quant_min - round(low / scale), within [quant_min, quant_max]
    symmetric:  scale = 2 * max(-low, high) / (quant_max - quant_min)
                zero_point = the middle of the range, 0 for signed types
    power of two:
                scale = 2 ** ceil(log2(max(high / quant_max, low / quant_min))), the second term
                only where quant_min < 0; zero_point = 0

    A scale is at least 2**-60, so that kernels can multiply two of them, and 2**-23 for a range of
    zeros. A power of two is at least 2**-126.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    spec = spec.for_range(low)
    if spec.range_form == "glow":
        return glow_qparams(low, high, spec)
    steps = spec.quant_max - spec.quant_min
    if spec.power_of_two:
        below = low / spec.quant_min if spec.quant_min < 0 else 0.0
        return power_of_two_at_least(max(high / spec.quant_max, below)), 0
    if spec.symmetric:
        return _usable(float32(2 * max(-low, high) / steps)), spec.middle
    # Each operation rounds to float32, as in PyTorch's observers.
    span = float32(high - low)
    scale = _usable(float32((span if math.isfinite(span) else high - low) / steps))
    zero_point = spec.quant_min - round(float32(low / scale))
    return scale, min(max(zero_point, spec.quant_min), spec.quant_max)


def _usable(scale: float) -> float:
    return max(scale, SMALLEST_SCALE) if scale else SCALE_OF_ZEROS


def float32(value: float) -> float:
    """Return the nearest number of float32."""
    return ctypes.c_float(value).value


def glow_qparams(low: float, high: float, spec: QuantizationSpec) -> tuple[float, int]:
    """Return scale and zero point of a range that contains 0, as Glow does.

    `chooseQuantizationParams` in Glow's lib/Quantization/Base/Base.cpp:

    symmetric:  the end that needs the smaller scale is moved out, so that both need one scale:
                low = high / quant_max * quant_min, or high = low / quant_min * quant_max
    all:        scale = (high - low) / (quant_max - quant_min), or 0.1 if that is 0
                zero_point = quant_min - low / scale, or quant_max - high / scale, whichever adds
                the smaller numbers; 0 if |low + high| is at most 2**-23; halves away from 0
    power of two: symmetric, with the next power of two as scale

    The formulas are for types with 0 in the middle. Zero points of others are counted from the
    middle. Scales below float32's normal numbers are raised to these: their reciprocal is finite.
    """
    middle = spec.middle
    bottom, top = spec.quant_min - middle, spec.quant_max - middle
    if spec.symmetric or spec.power_of_two:
        below, above = low / bottom, high / top
        if below > above:
            high = _within_float32(below * top)
        else:
            low = _within_float32(above * bottom)
    scale = (high - low) / (top - bottom) or SCALE_OF_ZERO
    zero_point = _glow_zero_point(low, high, scale, bottom, top)
    if spec.power_of_two:
        scale, zero_point = power_of_two_at_least(scale), 0
    return max(_within_float32(scale), _FLOAT.tiny), zero_point + middle


def _glow_zero_point(low: float, high: float, scale: float, bottom: int, top: int) -> int:
    if abs(_within_float32(high + low)) <= _FLOAT.eps:
        return 0
    from_bottom = abs(bottom) + abs(low / scale) < abs(top) + abs(high / scale)
    exact = bottom - low / scale if from_bottom else top - high / scale
    nearest = math.floor(abs(exact) + 0.5)
    return min(max(nearest if exact > 0 else -nearest, bottom), top)


def _within_float32(value: float) -> float:
    return float32(min(max(value, _FLOAT.min), _FLOAT.max))


def power_of_two_at_least(value: float) -> float:
    """Return the smallest power of two that is not below the value, and 2**-126 at least."""
    if value <= SMALLEST_POWER_OF_TWO:
        return SMALLEST_POWER_OF_TWO
    mantissa, exponent = math.frexp(value)  # exact, as a logarithm is not
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def choose_qparams(
    spec: QuantizationSpec,
    state: ObserverState,
    scales: tuple[int, ...] = (-1,),
    *,
    sampled: bool = False,
    name: str = "",
) -> QParams:
    """Return the parameters that a specification gives for its observer's state.

    Args:
        spec: the specification.
        state: the statistics of its observer.
        scales: the shape of scales and zero points of channels.
        sampled: whether numbers may occur that were not seen; never for constants.
        name: of the quantized value, for errors.

    Raises:
        JitPassesError: the observer gives no range.
    """
    grid = (spec.quant_min, spec.quant_max, spec.dtype, spec.rounding)
    if spec.ch_axis is None:
        spec = spec.for_range(float(state.range[0]))
        found = spec.observer.find_range(state, spec.quant_min, spec.quant_max, spec.centred)
        low, high = _checked(found, spec.observer.name, name)
        if sampled and isinstance(spec.observer, HistogramObserver):
            codes = spec.quant_max - spec.quant_min + 1
            low, high = widened(low, high, state, codes, spec.observer.headroom)
        if spec.power_of_two and spec.quant_min == 0 and float(state.range[0]) < 0:
            warn(
                "a scale that is a power of two has the zero point 0, so that values below 0 "
                f"become 0 in {spec.dtype}: use dtype int8 where the target has it, or the scheme "
                "affine"
            )
        scale, zero_point = affine_qparams(low, high, spec)
        return QParams(scale, zero_point, None, *grid)
    ranges = spec.observer.find_channel_ranges(state, spec.quant_min, spec.quant_max, spec.centred)
    if not spec.symmetric or spec.range_form != "pytorch":
        pairs = [affine_qparams(low, high, spec) for low, high in ranges.T.tolist()]
        steps = torch.tensor([scale for scale, _ in pairs], dtype=torch.float64)
        zero_points = torch.tensor([zero for _, zero in pairs], dtype=torch.int64)
        return QParams(steps.reshape(scales), zero_points.reshape(scales), spec.ch_axis, *grid)
    largest = torch.maximum(-ranges[0], ranges[1]).clamp_min(0)
    steps = 2 * largest / (spec.quant_max - spec.quant_min)
    steps = torch.where(steps > 0, steps.clamp_min(SMALLEST_SCALE), SCALE_OF_ZEROS)
    steps = steps.float().double().reshape(scales)  # the kernels see float32
    zero_points = torch.full(steps.shape, spec.middle, dtype=torch.int64)
    return QParams(steps, zero_points, spec.ch_axis, *grid)


def _checked(found: Any, observer: str, name: str) -> tuple[float, float]:
    """Return the range that an observer has found, as two numbers.

    Raises:
        JitPassesError: the observer gives something else.
    """
    try:
        low, high = map(float, found)
    except (TypeError, ValueError):
        low, high = 1.0, -1.0
    if math.isfinite(low) and math.isfinite(high) and low <= high:
        return low, high
    raise JitPassesError(
        f"find_range of the observer '{observer}' gives {found!r}{name and f' for {name!r}'}: it "
        "returns two finite numbers, the lower end first"
    )


def fixed_qparams(spec: FixedQParamsQuantizationSpec) -> QParams:
    """Return the parameters that a specification fixes."""
    grid = (spec.quant_min, spec.quant_max, spec.dtype, spec.rounding)
    return QParams(spec.scale, spec.zero_point, None, *grid)


def derive_qparams(spec: GroupDerivation, sources: Sequence[QParams], name: str) -> QParams:
    """Return the parameters that a specification derives from other values' parameters."""
    function = find_derivation(spec.function)
    who = f"deriving the parameters of '{name}' with {spec.function}"
    try:
        scale, zero_point = function(sources)
        scales = torch.as_tensor(scale, dtype=torch.float64)
        zero_points = torch.as_tensor(zero_point, dtype=torch.int64).expand(scales.shape)
    except Exception as error:
        raise JitPassesError(f"{who} failed: {error}") from error
    if scales.dim() > 1 or (scales.dim() == 1) != (spec.ch_axis is not None):
        shape = f"scales of shape {list(scales.shape)}" if scales.dim() else "one scale"
        raise JitPassesError(
            f"{who} gave {shape}, and the specification's ch_axis is {spec.ch_axis}"
        )
    if not _are_within(scales, math.ulp(0.0), sys.float_info.max):
        raise JitPassesError(f"{who} gave a scale that is not finite and above 0: {scale}")
    if not _are_within(zero_points, spec.quant_min, spec.quant_max):
        raise JitPassesError(
            f"{who} gave a zero point outside of [{spec.quant_min}, {spec.quant_max}]: {zero_point}"
        )
    grid = (spec.quant_min, spec.quant_max, spec.dtype)
    if spec.ch_axis is None:
        return QParams(float(scales), int(zero_points), None, *grid)
    return QParams(scales, zero_points.contiguous(), spec.ch_axis, *grid)


def _are_within(values: torch.Tensor, low: float, high: float) -> bool:
    if not values.numel():
        return True
    least, largest = (end.item() for end in values.aminmax())  # NaN, if there is one
    return low <= least and largest <= high


def spread_qparams(qparams: QParams, shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and zero point in float64, in shapes that fit a tensor of this shape."""
    scale = torch.as_tensor(qparams.scale, dtype=torch.float64)
    zero_point = torch.as_tensor(qparams.zero_point, dtype=torch.float64)
    if qparams.axis is None:
        return scale, zero_point
    return spread(scale, qparams.axis, shape), spread(zero_point, qparams.axis, shape)


def codes_of(values: torch.Tensor, grid: QParams) -> torch.Tensor:
    """Return the codes of numbers of float32, with one scale, as a reference model has them."""
    ops, ends = torch.ops.jit_passes, (grid.quant_min, grid.quant_max)
    scale, zero_point = float(grid.scale), int(grid.zero_point)
    if grid.rounding != "half_even":
        numbers = torch.tensor([scale]), torch.tensor([zero_point])
        values = ops.fake_quantize(values, *numbers, *ends, None, grid.rounding)
    found: torch.Tensor = ops.quantize(values, scale, zero_point, *ends, DTYPES[grid.dtype])
    return found


def dequantized(codes: torch.Tensor, qparams: QParams) -> torch.Tensor:
    """Return the numbers that codes stand for, (q - zero_point) * scale, in float64."""
    scale, zero_point = spread_qparams(qparams, codes.shape)
    return (codes.double() - zero_point) * scale


def count_beyond(constant: torch.Tensor, chosen: QParams) -> int:
    """Count the numbers of a constant that lie beyond its integers."""
    scale, zero_point = spread_qparams(chosen, constant.shape)
    codes = (constant.detach().double() / scale).round() + zero_point
    return int(((codes < chosen.quant_min) | (codes > chosen.quant_max)).sum())
