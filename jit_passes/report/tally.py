"""Sums over the elements of a value of two models, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass
class Tally:
    """Sums over elements; x is of the float model."""

    signal: float = 0.0
    other: float = 0.0
    product: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    steps: float = 0.0

    def add(self, x: torch.Tensor, y: torch.Tensor, step: torch.Tensor | None) -> None:
        """Add elements of float64."""
        apart = (x - y).abs().nan_to_num(nan=math.inf)
        self.signal += float(x.square().sum())
        self.other += float(y.square().sum())
        self.product += float((x * y).sum())
        self.noise += float(apart.square().sum())
        if apart.numel():
            self.largest = max(self.largest, float(apart.max()))
            if step is not None:
                self.steps = max(self.steps, float((apart / step).max()))

    @property
    def sqnr(self) -> float:
        if self.noise == 0:
            return math.inf
        if self.signal == 0 or not math.isfinite(self.noise):  # the other model gives a NaN, say
            return -math.inf
        return 10 * math.log10(self.signal / self.noise)

    @property
    def cosine(self) -> float:
        norm = math.sqrt(self.signal * self.other)
        if not math.isfinite(norm):  # the other model gives a NaN or an infinity
            return 0.0
        return self.product / norm if norm else float(self.signal == self.other)
