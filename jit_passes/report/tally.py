"""Sums over the elements of a value of two models, and measures from these sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

# So few elements that all their results stay in a processor's cache. PyTorch takes one thread for
# so few. Threads that wait for each other thousands of times are slow on a busy machine.
PIECE = 1 << 14


def pieces(first: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the elements of tensors in pieces, as float64, where the first is finite.

    Args:
        first: of any shape.
        others: of the same shape, or of one that expands to it.
    """
    flat = [first.reshape(-1), *(other.expand(first.shape).reshape(-1) for other in others)]
    for begin in range(0, flat[0].numel(), PIECE):
        piece = tuple(values[begin : begin + PIECE].double() for values in flat)
        if not math.isfinite(_dot(piece[0], piece[0])):
            finite = torch.isfinite(piece[0])
            piece = tuple(values[finite] for values in piece)
        yield piece


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
        """Add a piece: float64 in one dimension, x finite."""
        apart = (x - y).abs_()
        noise = _dot(apart, apart)
        if not math.isfinite(noise):
            apart = apart.nan_to_num_(nan=math.inf)
            noise = math.inf
        self.signal += _dot(x, x)
        self.other += _dot(y, y)
        self.product += _dot(x, y)
        self.noise += noise
        if apart.numel():
            self.largest = max(self.largest, float(apart.max()))
            if step is not None:
                self.steps = max(self.steps, float(apart.div_(step).max()))

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


def _dot(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(torch.mul(x, y).sum())
