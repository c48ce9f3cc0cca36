"""Headroom: room beyond the ends of a range that rests on little data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import torch

from .bins import filled_bins
from .observer import ObserverState

# Numbers for each code from which on there is none: with fewer codes rounding costs more, and
# clipping in proportion less.
PER_CODE = 4
# From so many numbers on, all of one sign, no number of the other sign is expected. By the sign
# test, such a sample has the chance 2**(1 - n), 1 %, if both signs are equally likely.
ONE_SIGN = 8
_LARGEST = torch.finfo(torch.float32).max


def headroom(state: ObserverState, codes: int, most: int) -> tuple[float, float]:
    """Return how far beyond the smallest and the largest number seen a range is to reach.

    The largest of n numbers is not the largest that there can be. Where the tail falls off
    exponentially, with the mean excess d, the largest of n is expected at d H(n) beyond some
    point, H(n) = 1 + 1/2 + ... + 1/n. So the largest of N is expected to be larger by

        d (H(N) - H(n)),   about d ln(N / n)           N = min(most, 4 codes)

    which is 0 from n = N on. d is estimated from the k = ceil(sqrt(n)) outermost numbers: it is
    their mean distance from the next one, x[k + 1]. For a single number, d is its distance from 0.
    The lower end is treated alike. 0 is an end of its own: a range does not cross 0 where the
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
        Room below and above, in units of the value, 0 or more.
    """
    if state.histogram is None or (count := int(state.histogram.sum())) == 0:
        return 0.0, 0.0
    whole = min(most, PER_CODE * codes)
    if count >= whole:
        return 0.0, 0.0
    low, high = state.range[:2].tolist()
    factor = _growth(count, whole)
    outermost = max(1, min(math.isqrt(count - 1) + 1, count - 1))
    smallest, largest = _ends(state, outermost + 1, low, high)
    below, above = factor * _mean_excess(smallest), factor * _mean_excess(largest)
    if low >= 0 and (low == 0 or count >= ONE_SIGN):
        below = min(below, low)
    if high <= 0 and (high == 0 or count >= ONE_SIGN):
        above = min(above, -high)
    return below, above


def widened(
    low: float, high: float, state: ObserverState, codes: int, most: int
) -> tuple[float, float]:
    """Return a range that was found, with headroom beyond the values seen."""
    below, above = headroom(state, codes, most)
    least, largest = state.range[:2].tolist()
    if below:
        low = max(min(low, least - below), -_LARGEST)
    if above:
        high = min(max(high, largest + above), _LARGEST)
    return low, high


@lru_cache(maxsize=1 << 12)
def _growth(count: int, whole: int) -> float:
    """Return H(whole) - H(count)."""
    return math.fsum(1 / i for i in range(count + 1, whole + 1))


def _ends(
    state: ObserverState, most: int, low: float, high: float
) -> tuple[list[float], list[float]]:
    """Return the smallest and the largest numbers, as many as that, from the outermost on."""
    counts, first, width = filled_bins(state)
    bins = counts.nonzero().flatten()
    pairs = list(zip(bins.tolist(), counts[bins].tolist(), strict=True))

    def numbers(pairs: Iterable[tuple[int, int]]) -> list[float]:
        found: list[float] = []
        for index, count in pairs:
            centre = min(max((index + first + 0.5) * width, low), high)
            found += [centre] * min(count, most - len(found))
            if len(found) == most:
                break
        return found

    return numbers(pairs), numbers(reversed(pairs))


def _mean_excess(outermost: list[float]) -> float:
    """Return how far numbers are from the last one in the mean; a single one, from 0."""
    *beyond, last = outermost
    return math.fsum(abs(number - last) for number in beyond) / len(beyond) if beyond else abs(last)
