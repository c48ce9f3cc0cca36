"""Weights for kernels that add pairs of products in int16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .observer import Observer


@dataclass(frozen=True)
class PairSums(Observer):
    """Quantize weights so that sums of neighbouring products stay within int16.

    A kernel that multiplies uint8 activations by int8 weights with `vpmaddubsw` adds products
    2k and 2k + 1 of a channel in int16. With activations up to 255, |w[2k] + w[2k + 1]| <= 128 in
    steps keeps the sum within 32767. The range of a channel is therefore the larger of its values
    and of its pairs' sums: between 8 and 7 bits, as little as the weights at hand need.
    """

    name: ClassVar[str] = "pair_sums"
    per_channel_op: ClassVar[str] = "observe_pair_sums"
