"""The threshold with the least symmetric divergence between cumulative distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .bins import check_bins, clip, levels, magnitudes
from .observer import Observer, ObserverState


@dataclass(frozen=True)
class KLJ(Observer):
    """Quantize [-t, t] with the least Kullback-Leibler-J divergence.

    D = sum of (cdf - q) log2(cdf / q): cdf is the cumulative distribution of |x|; q is it too, but
    1 behind t, and before t interpolated from as many points as there are codes. t is the middle of
    the bin behind the best one. Algorithm 1 of D'Alberto and Dasdan, arXiv:1805.07941; TQT (Jain et
    al., arXiv:1903.08066) calibrates activations with it.

    Attributes:
        bins: number of bins.
    """

    op: ClassVar[str] = "observe_histogram"
    bins: int = 2048

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high = state.range[:2].tolist()
        counts, width = magnitudes(state)
        codes = levels(state, quant_min, quant_max, symmetric)
        kept = torch.ops.jit_passes.search_range_klj(counts, codes)
        return clip(state, min((kept + 0.5) * width, max(-low, high)), symmetric)
