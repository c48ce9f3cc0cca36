"""Three standard deviations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .bins import clip, filled_bins
from .histogram_observer import HistogramObserver
from .observer import ObserverState


@dataclass(frozen=True)
class ThreeSigma(HistogramObserver):
    """Quantize [-t, t] with t = |mean(x + 1e-6)| + 3 std(x).

    TQT (Jain et al., arXiv:1903.08066, "3SD") calibrates weights with it. Mean and deviation are
    those of the bins' centres, within the values seen: each is off by half a bin at most, so t by
    two bins. Where the values are spread evenly, a symmetric range reaches beyond all of them.
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
