"""A histogram of values as one of their magnitudes, and as one that is symmetric about 0."""

from __future__ import annotations

import torch
from torch import Tensor

from .observer import ObserverState


def filled_bins(state: ObserverState) -> tuple[Tensor, int, float]:
    """Return the counts from the first to the last bin that is not empty, and where they are.

    Returns:
        counts, first, width: bin i reaches from (first + i) * width to (first + i + 1) * width.
    """
    assert state.histogram is not None
    filled = state.histogram.nonzero()
    begin, last = int(filled[0]), int(filled[-1])
    exponent, offset = int(state.range[4]), int(state.range[5])
    return state.histogram[begin : last + 1], offset + begin, 2.0**exponent


def magnitudes(state: ObserverState) -> tuple[Tensor, float]:
    """Return the counts of |x| from 0 to the last bin that is not empty, and the bins' width.

    Bin i has the counts of bins i and -i - 1: edges are multiples of the width, so only a negative
    value on an edge itself is counted one bin nearer to 0. Neighbouring bins are added until there
    are no more of them than in the histogram.
    """
    counts, first, width = filled_bins(state)
    indices, width = _coarsen(first, counts, width, _bins(state))
    folded = torch.where(indices < 0, -indices - 1, indices)
    return _sum_at(folded, counts, int(folded.max()) + 1), width


def mirrored_bins(state: ObserverState) -> tuple[Tensor, int, float]:
    """Return the result of `filled_bins`, with as many bins below 0 as above.

    Neighbouring bins are added until there are no more of them than in the histogram.
    """
    counts, first, width = filled_bins(state)
    indices, width = _coarsen(first, counts, width, _bins(state) // 2)
    half = int(torch.maximum(indices, -indices - 1).max()) + 1
    return _sum_at(indices + half, counts, 2 * half), -half, width


def clip(state: ObserverState, threshold: float, symmetric: bool) -> tuple[float, float]:
    """Return [-threshold, threshold]; if not symmetric, its part within the values seen."""
    threshold = min(threshold, torch.finfo(torch.float32).max)
    if symmetric:
        return -threshold, threshold
    low, high = state.range[:2].tolist()
    return max(min(low, 0.0), -threshold), min(max(high, 0.0), threshold)


def levels(state: ObserverState, quant_min: int, quant_max: int, symmetric: bool) -> int:
    """Return how many codes |x| has: all if the range is one-sided, else half of them.

    2**bits or 2**(bits - 1), where the codes fill `bits` bits but for some at the ends.
    """
    bits = (quant_max - quant_min).bit_length()
    low, high = state.range[:2].tolist()
    one_sided = not symmetric and (low >= 0 or high <= 0)
    return 1 << (bits if one_sided else max(bits - 1, 1))


def _bins(state: ObserverState) -> int:
    assert state.histogram is not None
    return len(state.histogram)


def _coarsen(first: int, counts: Tensor, width: float, bins: int) -> tuple[Tensor, float]:
    """Return the bins' indices among wider ones, where `bins` hold |x|, and the width."""
    indices = torch.arange(first, first + len(counts))
    while max(int(indices[-1]), -int(indices[0]) - 1) >= max(bins, 1):
        indices, width = indices >> 1, 2 * width
    return indices, width


def _sum_at(indices: Tensor, counts: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int64).index_add_(0, indices, counts)
