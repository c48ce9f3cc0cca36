"""The parts of a weight that have a scale each: channels, or groups of neighbours within them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import JitPassesError


def scales_of(
    shape: Sequence[int], ch_axis: int, group_size: int | None, name: str
) -> tuple[int, ...]:
    """Return the shape of a tensor's scales: [channels], or [channels, groups].

    Groups lie along the input axis, which is the other of the first two: `[out, in, ...]` with
    ch_axis 0 has `in / group_size` of them in each channel.

    Args:
        shape: of the tensor.
        ch_axis: the channel axis.
        group_size: how many neighbours along the input axis share a scale; None for all of them.
        name: of the tensor, for messages.

    Raises:
        JitPassesError: the tensor has no input axis, or the group size does not divide it.
    """
    if group_size is None:
        return (shape[ch_axis],)
    if why := no_groups(shape, ch_axis, group_size):
        raise JitPassesError(
            f"'{name}' is to be quantized in groups of {group_size}, and {why}; leave group_size "
            "out for one scale for each channel"
        )
    axis = ch_axis % len(shape)
    return shape[axis], shape[1 - axis] // group_size


def no_groups(shape: Sequence[int], ch_axis: int, group_size: int, multiple: int = 1) -> str | None:
    """Say why a tensor has no groups of this size, and which it has; None if it has them.

    The sizes that a target has are a `multiple`. Groups of 1 are a scale for each number.
    """
    axis = ch_axis % max(len(shape), 1)
    if len(shape) < 2 or axis > 1:
        return f"has shape {list(shape)}: groups are for weights [out, in, ...]"
    inputs = shape[1 - axis]
    if inputs % group_size == 0:
        return None
    sizes = range(multiple, min(inputs, group_size) + 1, multiple)
    near = max((size for size in sizes if inputs % size == 0), default=1)
    advice = f": give it a divisor, {near} say" if near > 1 else ""
    return f"has {inputs} inputs (axis {1 - axis} of {list(shape)}), which are no multiple{advice}"


def rows_of(values: torch.Tensor, ch_axis: int, group_size: int | None = None) -> torch.Tensor:
    """Return the numbers that share a scale, row by row, in the order of the scales.

    Shape [channels, -1], or [channels * groups, -1].
    """
    rows = values.movedim(ch_axis, 0).flatten(1)
    if group_size is None:
        return rows
    width = group_size * (values.shape[2:].numel())
    return rows.reshape(-1, width)


def spread(numbers: torch.Tensor, ch_axis: int, shape: Sequence[int]) -> torch.Tensor:
    """Return a number for each channel or group, in a shape that fits a tensor of this shape."""
    axis = ch_axis % len(shape)
    if numbers.dim() < 2:
        return numbers.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    each = numbers.repeat_interleave(shape[1 - axis] // numbers.shape[1], 1)
    return each.transpose(0, axis).reshape(*shape[:2], *[1] * (len(shape) - 2))
