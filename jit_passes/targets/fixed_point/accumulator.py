"""Sums of products, and the width of the register that holds them."""

from __future__ import annotations

import torch

WIDTHS = (16, 24, 32, 48)


def reach(weight: torch.Tensor, bias: torch.Tensor | None, low: int, high: int) -> tuple[int, int]:
    """Return the smallest and the largest number that a sum of products can come to.

    It holds for each partial sum too, in any order, and where a window reaches over the rim:

        largest = max over c of  sum_i max(w[c, i] * low, w[c, i] * high, 0) + max(b[c], 0)

    Args:
        weight: codes `[channels, ...]`, whole numbers.
        bias: `[channels]`, in steps of the sum; None for none.
        low: the smallest code of the input, less its zero point; not above 0.
        high: the largest one; not below 0.
    """
    rows = weight.to(torch.int64).flatten(1)
    above, below = rows.clamp(min=0).sum(1), rows.clamp(max=0).sum(1)
    added = torch.zeros_like(above) if bias is None else bias.to(torch.int64)
    least = above * low + below * high + added.clamp(max=0)
    most = above * high + below * low + added.clamp(min=0)
    if not rows.numel():
        least, most = added.clamp(max=0), added.clamp(min=0)
    return int(least.min()) if len(least) else 0, int(most.max()) if len(most) else 0


def overflow(least: int, most: int, bits: int) -> str | None:
    """Say that numbers do not fit an accumulator; None if they do."""
    needed = max(_width(least), _width(most))
    if needed <= bits:
        return None
    widths = [width for width in WIDTHS if width >= needed]
    wider = f"accumulator_bits={widths[0]}, or " * bool(widths)
    return (
        f"its sums may reach [{least}, {most}], which takes {needed} bits, and the accumulator has "
        f"{bits}: take {wider}fewer bits for its input or its weight"
    )


def _width(number: int) -> int:
    """Return the bits of a number in two's complement."""
    return (number if number >= 0 else -number - 1).bit_length() + 1
