"""Ranges of a histogram: with the least squared error, or without the outermost values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..errors import ArgumentError
from .bins import clip, filled_bins
from .observer import HistogramObserver, Observer, ObserverState


def _search_rows(
    state: ObserverState, quant_min: int, quant_max: int, symmetric: bool, factors: int
) -> torch.Tensor:
    """Return the range of least squared error for each row of numbers, [2, rows].

    Args:
        state: of an observer of a constant.
        quant_min: of the codes.
        quant_max: of the codes.
        symmetric: whether ranges are.
        factors: see `MeanSquaredError`; 0 for the search of `Histogram`.
    """
    assert state.rows is not None
    rows, importance = state.rows.cpu(), state.importance
    importance = None if importance is None else importance.cpu()
    found: torch.Tensor = torch.ops.jit_passes.search_range_of_rows(
        rows, importance, quant_min, quant_max, symmetric, factors
    )
    return found


@dataclass(frozen=True)
class Histogram(HistogramObserver):
    """Quantize the range with the least mean squared error over a histogram of all values.

    Of a weight with a scale for each channel, the error is that of the channel's own numbers.
    """

    name: ClassVar[str] = "histogram"
    searches_rows: ClassVar[bool] = True
    headroom: int = field(default=1024, kw_only=True)

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high, _, _, exponent, offset = state.range.tolist()
        search = torch.ops.jit_passes.search_range_l2.default
        found: tuple[float, float] = search(
            state.histogram, int(exponent), int(offset), low, high, quant_min, quant_max, symmetric
        )
        return found

    def find_channel_ranges(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> torch.Tensor:
        return _search_rows(state, quant_min, quant_max, symmetric, factors=0)


@dataclass(frozen=True)
class MeanSquaredError(HistogramObserver):
    """Quantize the range of a grid with the least mean squared error over a histogram.

    [a / factors * low, b / factors * high]     a, b in 1 .. factors

    with a = b where the range is symmetric or one-sided. A symmetric range may be wider, so that
    the largest number has a code: 15 / 14 of it in [-8, 7]. `Histogram` minimizes this error from
    coarse to fine, one end after the other, which is finer and faster. This search is certain to
    find the best range of its grid. Of a weight with a scale for each channel, the error is that of
    the channel's own numbers.

    Attributes:
        factors: steps of the grid.
    """

    name: ClassVar[str] = "mean_squared_error"
    searches_rows: ClassVar[bool] = True
    factors: int = 100
    headroom: int = field(default=1024, kw_only=True)

    def __post_init__(self) -> None:
        if self.factors < 1:
            raise ArgumentError(f"the search needs at least one factor, not {self.factors}")
        super().__post_init__()

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high, _, _, exponent, offset = state.range.tolist()
        bins = (state.histogram, int(exponent), int(offset), low, high)
        found: tuple[float, float] = torch.ops.jit_passes.search_range_exhaustive(
            *bins, quant_min, quant_max, symmetric, self.factors
        )
        return found

    def find_channel_ranges(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> torch.Tensor:
        return _search_rows(state, quant_min, quant_max, symmetric, self.factors)


@dataclass(frozen=True)
class OutputError(Observer):
    """Quantize the range of weights that gives the result of their layer the least squared error.

    Inputs x of a layer with weights w are taken as uncorrelated, with mean squares that calibration
    finds for each input channel:

        error = sum over i of  E[x_i^2] (w_i - dequantize(quantize(w_i)))^2

    over the weights i that share a scale. Ranges are searched as by `Histogram`. Without data, and
    for weights that are neither of a convolution nor of a linear, all E[x_i^2] are equal.

    Source: the diagonal of the Hessian 2 E[x x^T], as in Nagel et al., Up or Down? Adaptive
    Rounding for Post-Training Quantization, 2020 (arXiv:2004.10568), equations 13 and 20.
    """

    name: ClassVar[str] = "output_error"
    searches_rows: ClassVar[bool] = True
    weighs_inputs: ClassVar[bool] = True

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high = self.find_channel_ranges(state, quant_min, quant_max, symmetric)[:, 0].tolist()
        return low, high

    def find_channel_ranges(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> torch.Tensor:
        return _search_rows(state, quant_min, quant_max, symmetric, factors=0)


@dataclass(frozen=True)
class Percentile(HistogramObserver):
    """Quantize the range that leaves (100 - percentile) % of the values out, half at each end.

    Resolved to the bins of a histogram, within the range that was seen.

    Attributes:
        percentile: in (50, 100].
    """

    name: ClassVar[str] = "percentile"
    percentile: float = 99.99

    def __post_init__(self) -> None:
        if not 50 < self.percentile <= 100:
            raise ArgumentError(f"percentile is in (50, 100], not {self.percentile}")
        super().__post_init__()

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        assert state.histogram is not None
        low, high, _, _, exponent, offset = state.range.tolist()
        cumulative = state.histogram.cumsum(0).double()
        tail = cumulative[-1] * (100 - self.percentile) / 200
        first = int(torch.searchsorted(cumulative, tail, right=True))
        last = int(torch.searchsorted(cumulative, cumulative[-1] - tail))
        width = 2.0**exponent
        return max(low, (offset + first) * width), min(high, (offset + last + 1) * width)


@dataclass(frozen=True)
class ThreeSigma(HistogramObserver):
    """Quantize [-t, t] with t = |mean(x + 1e-6)| + 3 std(x).

    TQT (Jain et al., arXiv:1903.08066, "3SD") calibrates weights with it. Mean and deviation are
    taken of the bins' centres, within the values seen: each is off by half a bin at most, so t is
    off by two bins at most. Where the values are spread evenly, a symmetric range reaches beyond
    all of them.
    """

    name: ClassVar[str] = "three_sigma"

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high = state.range[:2].tolist()
        counts, first, width = filled_bins(state)
        weights = counts.double() / counts.sum()
        indices = torch.arange(first, first + len(counts), dtype=torch.float64)
        centres = ((indices + 0.5) * width).clamp(low, high)
        mean = float((weights * centres).sum())
        deviation = float((weights * (centres - mean).square()).sum().sqrt())
        return clip(state, abs(mean + 1e-6) + 3 * deviation, symmetric)
