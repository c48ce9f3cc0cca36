"""The bases of all observers, and their statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..registered import Registered


@dataclass(frozen=True)
class ObserverState:
    """The buffers of an observer after calibration.

    Attributes:
        range: float64. Per tensor: min, max, lowest and highest rank seen, then exponent and
            offset of the histogram's bins. Per channel: shape [2, channels], minima and maxima.
        histogram: int64 [bins], bin i counting floor(x / 2**exponent) == offset + i; or None.
        rows: of a constant, the numbers that share a scale, row by row; else None.
        importance: how much the error of each of these counts; None for all alike.
        function: the function that alone reads the value, number by number in float64; None if
            other operators read it too.
        rounded: rounds results of `function` to their grid; None if they are not rounded.
    """

    range: torch.Tensor
    histogram: torch.Tensor | None
    rows: torch.Tensor | None = None
    importance: torch.Tensor | None = None
    function: Callable[[Tensor], Tensor] | None = None
    rounded: Callable[[Tensor], Tensor] | None = None

    @property
    def reached(self) -> bool:
        """Whether any value was seen."""
        low, high = (self.range[0], self.range[1])
        return bool((low <= high).all())

    @property
    def ranks(self) -> tuple[int, int]:
        """Lowest and highest number of dimensions seen. Only after the value was reached."""
        return int(self.range[2]), int(self.range[3])


@dataclass(frozen=True)
class Observer(Registered, noun="calibration method"):
    """Base of all observers. Subclasses are frozen dataclasses whose fields are their options.

    Defining one registers it, under its `name`: see `Registered`.

    Attributes:
        op: the operator that does the watching, in the namespace jit_passes.
        per_channel_op: the operator for specifications with a channel axis.
        searches_rows: whether it looks at the numbers of a channel, which only constants keep.
        weighs_inputs: whether it asks how large the inputs are that a weight multiplies.
        asks_function: whether it asks for the function that reads a value.
    """

    op: ClassVar[str] = "observe_min_max"
    per_channel_op: ClassVar[str] = "observe_per_channel_min_max"
    searches_rows: ClassVar[bool] = False
    weighs_inputs: ClassVar[bool] = False
    asks_function: ClassVar[bool] = False

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        """Return the range to quantize, from the buffers of a per-tensor observer."""
        return float(state.range[0]), float(state.range[1])

    def find_channel_ranges(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> torch.Tensor:
        """Return minima and maxima to quantize, shape [2, channels], from a per-channel observer.

        Channels have no histograms: by default, these are the extremes seen.
        """
        return state.range


@dataclass(frozen=True)
class HistogramObserver(Observer):
    """Base of observers that find a range in a histogram of all values, per tensor.

    The bins' width is a power of two, so that the histogram depends neither on the order of the
    batches nor on how the data was split.

    Attributes:
        bins: number of bins, at least two.
        headroom: how many numbers a range has to rest on; with fewer it gets room beyond the
            values seen, see headroom.py. With few codes, four for each code are enough. 0: none.
    """

    op: ClassVar[str] = "observe_histogram"
    bins: int = field(default=2048, kw_only=True)  # so that subclasses' fields come first
    headroom: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.bins, int) or self.bins < 2:
            raise ArgumentError(f"a histogram needs at least two bins, not {self.bins!r}")
        if not isinstance(self.headroom, int) or self.headroom < 0:
            raise ArgumentError(f"headroom is a number of values, 0 or more, not {self.headroom!r}")
