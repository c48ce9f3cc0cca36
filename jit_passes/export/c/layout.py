"""Sizes and steps in memory, as text of C."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from .kernels import AXES
from .program import Buffer
from .sums import FormError, Rescaled


def saturation(found: Rescaled) -> str:
    """Return a rescaling that only saturates."""
    return f"&(const rescaling){{0, 0, 0, {found.zero}, {found.low}, {found.high}}}"


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return the steps in memory along each axis."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def from_strides(begin: int, steps: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """Return the places in memory that a first place and steps along the axes come to."""
    found = torch.tensor(begin)
    for axis, (step, size) in enumerate(zip(steps, shape, strict=True)):
        found = found + (step * torch.arange(size)).reshape([-1] + [1] * (len(shape) - axis - 1))
    return found.expand(tuple(shape))


def axes_text(numbers: Sequence[int], fill: int) -> str:
    """Return numbers of axes as text, with those in front that are missing."""
    return "{" + ", ".join(map(str, [fill] * (AXES - len(numbers)) + list(numbers))) + "}"


def loop_text(
    sizes: Sequence[int], a: Sequence[int], b: Sequence[int] = (), y: Sequence[int] = ()
) -> str:
    """Return axes of a loop, with the steps of operands a, b and of the result y.

    Raises:
        FormError: there are too many.
    """
    if len(sizes) > AXES:
        raise FormError(f"it has {len(sizes)} axes, and functions in C have {AXES}")
    texts = [axes_text(sizes, 1), *(axes_text(strides, 0) for strides in (a, b, y))]
    return f"&(const loops){{{', '.join(texts)}}}"


def broadcast_loops(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> str:
    """Return the axes of an operator on two operands that are broadcast."""

    def spread(own: Sequence[int]) -> list[int]:
        own = [1] * (len(shape) - len(own)) + list(own)
        return [0 if n == 1 else step for n, step in zip(own, strides_of(own), strict=True)]

    return loop_text(shape, spread(a), spread(b))


def pool_text(
    x: Buffer, y: Buffer, one: bool, window: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> str:  # fmt: skip
    """Return the sizes of a pool in two dimensions; `one` says that the buffers have one."""
    dims = 1 if one else 2
    sizes = [[1] * (2 - dims) + list(b.shape[-dims:]) for b in (x, y)]
    numbers = [prod(x.shape[:-dims]), *sizes[0], *sizes[1], *window, *stride, *padding, *dilation]
    return f"&(const pool_shape){{{', '.join(map(str, numbers))}}}"
