"""A calibration of somebody else's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from jit_passes.observers import HistogramObserver, ObserverState


@dataclass(frozen=True)
class CoreRange(HistogramObserver):
    """Quantize [-t, t]: t is the least end of a bin with a share of all |x| within, times grow.

    Attributes:
        share: above 0, at most 1.
        grow: factors for the lower and the upper end.
    """

    name: ClassVar[str] = "core_range"
    share: float = 0.9
    grow: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f"share is in (0, 1], not {self.share}")

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        """Return the range."""
        assert state.histogram is not None
        exponent, offset = state.range[4:].tolist()
        index = torch.arange(len(state.histogram)) + int(offset)
        end = torch.where(index < 0, -index, index + 1)  # the bin's far end, in widths
        order = end.argsort(stable=True)
        counted = state.histogram[order].cumsum(0)
        first = int(torch.searchsorted(counted, counted[-1] * self.share))
        threshold = float(end[order[first]]) * 2.0**exponent
        return -threshold * self.grow[0], threshold * self.grow[1]
