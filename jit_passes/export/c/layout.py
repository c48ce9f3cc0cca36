"""Sizes and steps in memory, as C has them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from .program import Argument, Buffer, Struct
from .structs import AXES, LOOPS, POOL, RESCALING
from .sums import FormError, Rescaled


def rescaling(
    found: Rescaled, multipliers: Argument = None, shifts: Argument = None, per_channel: int = 0
) -> Struct:
    """Return a rescaling; without multipliers and shifts it only saturates."""
    values = (multipliers, shifts, per_channel, found.zero, found.low, found.high)
    return Struct(RESCALING, dict(zip(RESCALING.fields, values, strict=True)))


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return the steps in memory along each axis."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def from_strides(begin: int, steps: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """Return the places in memory that a first place and steps along the axes come to."""
    found = torch.tensor(begin)
    for axis, (step, size) in enumerate(zip(steps, shape, strict=True)):
        found = found + (step * torch.arange(size)).reshape([-1] + [1] * (len(shape) - axis - 1))
    return found.expand(tuple(shape))


def all_axes(numbers: Sequence[int], fill: int) -> tuple[int, ...]:
    """Return numbers of axes, with missing ones added in front."""
    return (fill,) * (AXES - len(numbers)) + tuple(numbers)


def loops(
    sizes: Sequence[int], a: Sequence[int], b: Sequence[int] = (), y: Sequence[int] = ()
) -> Struct:
    """Return axes of a loop, with the steps of operands a, b and of the result y.

    Raises:
        FormError: there are too many.
    """
    if len(sizes) > AXES:
        raise FormError(f"it has {len(sizes)} axes, and functions in C have {AXES}")
    values = [all_axes(sizes, 1), *(all_axes(strides, 0) for strides in (a, b, y))]
    return Struct(LOOPS, dict(zip(LOOPS.fields, values, strict=True)))


def broadcast_loops(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> Struct:
    """Return the axes of an operator on two operands that are broadcast."""

    def spread(own: Sequence[int]) -> list[int]:
        own = [1] * (len(shape) - len(own)) + list(own)
        return [0 if n == 1 else step for n, step in zip(own, strides_of(own), strict=True)]

    return loops(shape, spread(a), spread(b))


def pool_shape(
    x: Buffer, y: Buffer, one: bool, window: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> Struct:  # fmt: skip
    """Return the sizes of a pool in two dimensions; `one` says that the buffers have one."""
    dims = 1 if one else 2
    sizes = [[1] * (2 - dims) + list(b.shape[-dims:]) for b in (x, y)]
    numbers = [prod(x.shape[:-dims]), *sizes[0], *sizes[1], *window, *stride, *padding, *dilation]
    return Struct(POOL, dict(zip(POOL.fields, numbers, strict=True)))
