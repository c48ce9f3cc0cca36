"""The record of one value: its range, and a histogram whose bins merge exactly."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import JitPassesError
from ..observers import ObserverState

INFINITY = math.inf
EXPONENTS = (-149, 128)  # of powers of two around all float32
MOST_BINS = 1 << 20
_NO_EXPONENT = -200


@dataclass(frozen=True)
class ValueProfile:
    """The numbers of one value, over all batches.

    Bin i of `counts` counts the x with floor(x / 2**exponent) == offset + i.

    Attributes:
        name: as in `Probe`.
        low: smallest value; inf if there was none, or an infinite one.
        high: largest value; -inf if there was none, or an infinite one.
        ranks: lowest and highest number of dimensions; None if not known.
        exponent: of the bins' width, as a power of two.
        offset: index of the first bin, in widths from 0.
        counts: from the first to the last bin that is not empty.
        weight: whether it is a constant of the model.
        finite: whether no value was infinite.
    """

    name: str
    low: float = INFINITY
    high: float = -INFINITY
    ranks: tuple[int, int] | None = None
    exponent: int = 0
    offset: int = 0
    counts: tuple[int, ...] = field(default=(), repr=False)
    weight: bool = False
    finite: bool = True

    @property
    def reached(self) -> bool:
        """Whether there is a range: some value was seen, and all were finite."""
        return self.low <= self.high

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @classmethod
    def of(cls, name: str, state: State, weight: bool = False) -> ValueProfile:
        """Read the buffers of an observer of histograms."""
        low, high, lowest, highest, exponent, offset = state.range.tolist()
        ranks = (int(lowest), int(highest)) if lowest <= highest else None
        if math.isnan(low):
            return cls(name, ranks=ranks, weight=weight, finite=False)
        filled = state.histogram.nonzero()
        if low > high or len(filled) == 0:
            return cls(name, low, high, ranks, weight=weight)
        begin, last = int(filled[0]), int(filled[-1])
        counts = tuple(state.histogram[begin : last + 1].tolist())
        return cls(name, low, high, ranks, int(exponent), int(offset) + begin, counts, weight)

    def as_state(self) -> State:
        """Return buffers that hold exactly this, with as many bins as there are counts."""
        lowest, highest = self.ranks or (INFINITY, -INFINITY)
        ends = (self.low, self.high) if self.finite else (math.nan, math.nan)
        row = [*ends, lowest, highest, self.exponent, self.offset]
        return State(
            torch.tensor(row, dtype=torch.float64), torch.tensor(self.counts, dtype=torch.int64)
        )

    def with_bins(self, bins: int) -> State:
        """Return the buffers of an observer with so many bins that has seen these values.

        Where the range was edited, counts outside of it go to the bins at its ends, and bins that
        are wider than the observer's are spread evenly.

        Raises:
            JitPassesError: there is a range and no histogram.
        """
        state = State.new(bins)
        if not self.reached:
            state.add(self.as_state())
            return state
        if not self.counts:
            raise JitPassesError(
                f"'{self.name}' has a range but no histogram: profile it again, or take MinMax as "
                "its observer"
            )
        exponent, offset = layout(self.low, self.high, bins)
        inside = self.clipped()
        if inside.exponent > exponent:
            edges = [k * 2.0**exponent for k in range(offset, index_of(self.high, exponent) + 2)]
            counts = spread(inside.counts, inside.edges(), edges)
            inside = replace(inside, exponent=exponent, offset=offset, counts=tuple(counts))
        state.add(inside.as_state())
        # As written in the file, where that is no float32.
        state.range[:2] = torch.tensor([self.low, self.high], dtype=torch.float64)
        return state

    def clipped(self) -> ValueProfile:
        """Return this record with all counts in the bins that the range reaches."""
        begin, end = index_of(self.low, self.exponent), index_of(self.high, self.exponent)
        if begin <= self.offset and self.offset + len(self.counts) - 1 <= end:
            return self
        size = min(end - begin + 1, len(self.counts))
        first = min(max(self.offset, begin), end - size + 1)
        counts = [0] * size
        for i, count in enumerate(self.counts):
            counts[min(max(self.offset + i, first), first + size - 1) - first] += count
        return replace(self, offset=first, counts=tuple(counts))

    def trimmed(self) -> ValueProfile:
        """Return the same without empty bins at the ends."""
        filled = [i for i, count in enumerate(self.counts) if count]
        counts = self.counts[filled[0] : filled[-1] + 1]
        return replace(self, offset=self.offset + filled[0], counts=counts)

    def edges(self) -> list[float]:
        """Return the borders of the bins, the outermost moved in to the range."""
        width = 2.0**self.exponent
        edges = [(self.offset + i) * width for i in range(len(self.counts) + 1)]
        return [min(max(edge, self.low), self.high) for edge in edges]


@dataclass(frozen=True, eq=False)
class State(ObserverState):
    """The buffers of an observer of histograms."""

    histogram: Tensor

    @classmethod
    def new(cls, bins: int) -> State:
        """Return buffers that have seen nothing."""
        row = [INFINITY, -INFINITY, INFINITY, -INFINITY, 0.0, 0.0]
        return cls(torch.tensor(row, dtype=torch.float64), torch.zeros(bins, dtype=torch.int64))

    def add(self, other: State) -> None:
        """Add the data of other buffers; exact if their bins are not the wider ones."""
        torch.ops.jit_passes.merge_histogram(
            other.range, other.histogram, self.range, self.histogram
        )


def layout(low: float, high: float, bins: int) -> tuple[int, int]:
    """Return exponent and offset of so many bins over a range."""
    state = State.new(bins)
    row = torch.tensor([low, high, INFINITY, -INFINITY, _NO_EXPONENT, 0], dtype=torch.float64)
    state.add(State(row, torch.zeros(1, dtype=torch.int64)))
    return int(state.range[4]), int(state.range[5])


def spread(counts: Sequence[int], edges: Sequence[float], targets: Sequence[float]) -> list[int]:
    """Return the counts of other bins, as if all within a bin were spread evenly over it.

    The cumulative sum is interpolated at the new borders and rounded, so that the total stays.

    Args:
        counts: one fewer than edges.
        edges: borders of the bins, not decreasing.
        targets: borders of the new bins, increasing; numbers outside go to the ends.
    """
    total, sums, passed, bin_ = sum(counts), [0], 0, 0
    for target in targets[1:-1]:
        while bin_ < len(counts) and edges[bin_ + 1] <= target:
            passed += counts[bin_]
            bin_ += 1
        part = 0.0
        if bin_ < len(counts) and edges[bin_] < target:
            part = (target - edges[bin_]) / (edges[bin_ + 1] - edges[bin_])
            part *= counts[bin_]
        sums.append(passed + math.floor(part + 0.5))
    sums.append(total)
    return [after - before for before, after in pairwise(sums)]


def index_of(x: float, exponent: int) -> int:
    """Return the bin of x as a float32, as observers see it."""
    (rounded,) = struct.unpack("f", struct.pack("f", x))
    return math.floor(math.ldexp(rounded, -exponent))
