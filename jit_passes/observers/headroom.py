"""Room beyond the ends of a range of which little data was seen."""

from __future__ import annotations

import math

import torch

from .bins import filled_bins
from .observer import ObserverState

# Numbers for each code from which on there is none: with fewer codes rounding costs more, and
# clipping in proportion less.
PER_CODE = 4
# From so many numbers on, all of one sign, no number of the other sign is expected: it has a
# chance of 1 % where both signs are alike, 2**(1 - n), by the sign test.
ONE_SIGN = 8
_LARGEST = torch.finfo(torch.float32).max


def headroom(state: ObserverState, codes: int, most: int) -> tuple[float, float]:
    """Return how far beyond the smallest and the largest number seen a range is to reach.

    The largest of n numbers is not the largest that there can be. Where the tail falls off
    exponentially, with the mean excess d, the largest of n is expected at d H(n) beyond some
    point, H(n) = 1 + 1/2 + ... + 1/n. So the largest of N is expected to be larger by

        d (H(N) - H(n)),   about d ln(N / n)           N = min(most, 4 codes)

    which is 0 from n = N on. d is estimated from the k = ceil(sqrt(n)) outermost numbers: it is
    their mean distance from the next one, x[k + 1]. Of a single number d is its distance from 0.
    The other end is treated alike. 0 is an end of its own: a range does not cross it where the
    smallest number is 0, as behind a relu, nor where 8 numbers or more have one sign.

    Source: the expected maximum, A. Renyi, On the theory of order statistics, Acta Math. Acad.
    Sci. Hung. 4 (1953), 191-231; d as the maximum-likelihood estimate from the k largest, I.
    Weissman, Estimation of parameters and large quantiles based on the k largest observations,
    JASA 73 (1978), 812-815, whose quantile is x[k + 1] + d ln(k N / n). The sum here begins at the
    largest number instead, so that it narrows no range.

    Args:
        state: of an observer with a histogram; numbers are resolved to its bins.
        codes: of the grid.
        most: the number N for many codes.

    Returns:
        Both in units of the value, 0 or more.
    """
    if state.histogram is None or (count := int(state.histogram.sum())) == 0:
        return 0.0, 0.0
    whole = min(most, PER_CODE * codes)
    if count >= whole:
        return 0.0, 0.0
    low, high = state.range[:2].tolist()
    factor = math.fsum(1 / i for i in range(count + 1, whole + 1))  # H(N) - H(n)
    counts, first, width = filled_bins(state)
    centres = (torch.arange(len(counts), dtype=torch.float64) + (first + 0.5)) * width
    numbers = centres.repeat_interleave(counts).clamp(low, high)
    below, above = (factor * _mean_excess(ordered) for ordered in (-numbers.flip(0), numbers))
    if low >= 0 and (low == 0 or count >= ONE_SIGN):
        below = min(below, low)
    if high <= 0 and (high == 0 or count >= ONE_SIGN):
        above = min(above, -high)
    return below, above


def widened(
    low: float, high: float, state: ObserverState, codes: int, most: int
) -> tuple[float, float]:
    """Return a range that was found, with headroom beyond what was seen."""
    below, above = headroom(state, codes, most)
    least, largest = state.range[:2].tolist()
    if below:
        low = max(min(low, least - below), -_LARGEST)
    if above:
        high = min(max(high, largest + above), _LARGEST)
    return low, high


def _mean_excess(ordered: torch.Tensor) -> float:
    """Return d of the largest of ordered numbers."""
    count = len(ordered)
    if count == 1:
        return abs(float(ordered[0]))
    outermost = min(math.isqrt(count - 1) + 1, count - 1)
    return float((ordered[-outermost:] - ordered[-outermost - 1]).mean())
