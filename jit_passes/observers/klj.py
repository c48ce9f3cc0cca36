"""The threshold with the least symmetric divergence between cumulative distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .bins import clip, levels, magnitudes
from .histogram_observer import HistogramObserver
from .observer import ObserverState


@dataclass(frozen=True)
class KLJ(HistogramObserver):
    """Quantize [-t, t] with the least Kullback-Leibler-J divergence.

    D = sum of (cdf - q) log2(cdf / q): cdf is the cumulative distribution of |x|; q is it too, but
    1 behind t, and before t interpolated from as many points as there are codes. t is the middle of
    the bin behind the best one. Algorithm 1 of D'Alberto and Dasdan, arXiv:1805.07941; TQT (Jain et
    al., arXiv:1903.08066) calibrates activations with it.
    """

    name: ClassVar[str] = "klj"
    aliases: ClassVar[tuple[str, ...]] = ("kl_j",)

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high = state.range[:2].tolist()
        counts, width = magnitudes(state)
        codes = levels(state, quant_min, quant_max, symmetric)
        kept = torch.ops.jit_passes.search_range_klj(counts, codes)
        return clip(state, min((kept + 0.5) * width, max(-low, high)), symmetric)
