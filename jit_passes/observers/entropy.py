"""Ranges of a histogram that lose the least information."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..errors import ArgumentError, not_among
from .bins import clip, filled_bins, levels, magnitudes, mirrored_bins
from .observer import HistogramObserver, ObserverState

FORMS = ("nvidia", "glow")


@dataclass(frozen=True)
class Entropy(HistogramObserver):
    """Quantize the range that loses the least information, by one of two definitions.

    D = sum of P ln(P / Q). P are the counts, with the counts outside of the range added at its
    ends. Q are the counts inside of it, evened out over as many groups of bins as there are codes.

    - "nvidia" (Szymon Migacz, "8-bit inference with TensorRT", 2017; as in pytorch_quantization,
      calib/histogram.py): the threshold of |x|. The bin at 0 takes its neighbour's count. The
      largest of the best thresholds.
    - "glow" (lib/Quantization/Base/Calibration.cpp, `optimizeKL`): both ends of the range, which
      shrinks by two bins a step, symmetrically or where the fewest values are. The widest of the
      best ranges. 2**bits - 1 groups, and empty bins count as 1e-4.

    Attributes:
        form: "nvidia" or "glow".
    """

    name: ClassVar[str] = "entropy"
    form: str = "nvidia"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ArgumentError(not_among("form", self.form, FORMS))
        super().__post_init__()

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        low, high = state.range[:2].tolist()
        if self.form == "nvidia":
            counts, width = magnitudes(state)
            groups = levels(state, quant_min, quant_max, symmetric)
            kept = torch.ops.jit_passes.search_range_entropy(counts, groups)
            return clip(state, min(kept * width, max(-low, high)), symmetric)
        counts, first, width = mirrored_bins(state) if symmetric else filled_bins(state)
        groups = 2 ** (quant_max - quant_min).bit_length() - 1
        begin, end = torch.ops.jit_passes.search_range_entropy_glow(
            counts, max(groups, 2), symmetric
        )
        if symmetric:
            return clip(state, min((first + end) * width, max(-low, high)), symmetric)
        return max((first + begin) * width, low), min((first + end) * width, high)


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
