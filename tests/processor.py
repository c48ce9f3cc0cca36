"""The tests' view of the processor: kernels of `stock` without VNNI take activations of 7 bits."""

from __future__ import annotations

import pytest
import torch

VNNI: bool = torch.cpu._is_vnni_supported()  # type: ignore[no-untyped-call]
HIGHEST = 255 if VNNI else 127
"""The largest code of an activation for the target `stock`, with any of its engines but qnnpack."""
BITS = HIGHEST.bit_length()
"""Bits of an activation for the target `stock`."""
needs_vnni = pytest.mark.skipif(
    not VNNI, reason="without VNNI, kernels add pairs of products in int16, where 8 bits overflow"
)

REDUCED = [pytest.param(False, marks=needs_vnni, id="8_bits"), pytest.param(True, id="7_bits")]
"""Values of `reduce_range` for kernels whose numbers are compared."""


def highest(reduced: bool) -> int:
    """Return the largest code of an activation, by `reduce_range`."""
    return 127 if reduced else 255


def bits_here(text: str) -> str:
    """Return the bits of a report, as `w8a8`, as `stock` has them on this processor."""
    return text if VNNI else text.replace("a8", "a7")


def decibels_here(floor: float) -> float:
    """Return a floor of SQNR for the bits of activations that `stock` has on this processor.

    A bit is 6 dB, and results of a few numbers differ by more.
    """
    return floor if VNNI else floor - 8.0
