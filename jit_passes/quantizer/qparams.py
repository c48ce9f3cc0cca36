"""Scale and zero point from a range."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..observers import ObserverState
from .specification import DTYPES, QuantizationSpec

# A scale below this makes 1 / scale overflow somewhere downstream; PyTorch's observers use it too.
SMALLEST_SCALE = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class QParams:
    """Parameters of one quantized value.

    Attributes:
        scale: input units per step; float64 tensor [channels] when there is an axis.
        zero_point: in steps; int64 tensor [channels] when there is an axis.
        axis: the channel axis; None per tensor.
    """

    scale: float | torch.Tensor
    zero_point: int | torch.Tensor
    axis: int | None
    quant_min: int
    quant_max: int
    dtype: str

    def as_options(self) -> tuple[object, ...]:
        """Return the tuple that the pass insert_quantize_dequantize takes."""
        code = {torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3}[DTYPES[self.dtype]]
        return self.scale, self.zero_point, self.axis, self.quant_min, self.quant_max, code


def affine_qparams(low: float, high: float, spec: QuantizationSpec) -> tuple[float, int]:
    """Return scale and zero point of one range.

    The range is widened to contain 0, so that 0 is exactly representable.

    affine:     scale = (high - low) / (quant_max - quant_min)
                zero_point = quant_min - round(low / scale), within [quant_min, quant_max]
    symmetric:  scale = 2 * max(-low, high) / (quant_max - quant_min)
                zero_point = the middle of the range, 0 for signed types
    """
    low, high = min(low, 0.0), max(high, 0.0)
    steps = spec.quant_max - spec.quant_min
    if spec.symmetric:
        scale = 2 * max(-low, high) / steps
        return max(scale, SMALLEST_SCALE), (spec.quant_min + spec.quant_max + 1) // 2
    scale = max((high - low) / steps, SMALLEST_SCALE)
    # In float32, as the kernels will see it.
    scale = float(torch.tensor(scale, dtype=torch.float32))
    zero_point = spec.quant_min - round(low / scale)
    return scale, min(max(zero_point, spec.quant_min), spec.quant_max)


def choose_qparams(spec: QuantizationSpec, state: ObserverState) -> QParams:
    """Return the parameters that a specification gives for what its observer has seen."""
    grid = (spec.quant_min, spec.quant_max, spec.dtype)
    if spec.ch_axis is None:
        low, high = spec.observer.find_range(state, spec.quant_min, spec.quant_max, spec.symmetric)
        scale, zero_point = affine_qparams(low, high, spec)
        return QParams(scale, zero_point, None, *grid)
    largest = torch.maximum(-state.range[0], state.range[1]).clamp_min(0)
    scales = (2 * largest / (spec.quant_max - spec.quant_min)).clamp_min(SMALLEST_SCALE)
    scales = scales.float().double()  # the kernels see float32
    return QParams(scales, torch.zeros(len(scales), dtype=torch.int64), spec.ch_axis, *grid)
