"""The numbers that a layer computes each of its outputs from."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from ..graph.view import NodeView

_NUMBERS = 2**24  # at a time, 64 MiB


_GEOMETRY = ("stride", "padding", "dilation", "groups")


def has_patches(node: NodeView) -> bool:
    """Say whether it is a linear, or a convolution of constant options that is not transposed."""
    weighted = node.traits.weighted
    if weighted is None or weighted.transposed:
        return False
    options = (node.operand(name) for name in _GEOMETRY) if weighted.spatial_dims else ()
    return all(value.is_constant and not isinstance(value.constant, str) for value in options)


def patches(
    node: NodeView, weight: Tensor, inputs: Tensor, most: int | None = None
) -> Iterator[Tensor]:
    """Yield the inputs of a layer's outputs, [groups, rows, K], some rows at a time.

    K is the number of inputs of one output, in the order of the weight's row: a result without bias
    is `rows @ weight.reshape(groups, -1, K).transpose(1, 2)`.

    Args:
        node: a layer that has patches.
        weight: its weight.
        inputs: with or without a batch axis.
        most: rows, drawn from all tokens or pixels; None for all. The draw depends on their number
            alone.
    """
    weighted = node.traits.weighted
    assert weighted is not None
    if not inputs.numel():
        return
    if not weighted.spatial_dims:
        rows = inputs.reshape(1, -1, inputs.shape[-1])
        yield rows if most is None else rows[:, _drawn(rows.shape[1], most)]
        return
    batch = inputs.reshape(-1, *inputs.shape[-1 - weighted.spatial_dims :])
    if most is not None:
        windows = _windows(batch, node, weight)
        positions = windows.shape[: 1 + weighted.spatial_dims]
        each = _NUMBERS // max(1, windows[0].numel() // prod(positions[1:])) + 1
        for index in torch.split(_drawn(prod(positions), most), each):
            some = windows[torch.unravel_index(index, positions)]
            yield some.flatten(2).transpose(0, 1)
        return
    each = _NUMBERS // max(1, prod(weight.shape[1:]) * node.groups * batch[0, 0].numel()) + 1
    for first in range(0, len(batch), each):
        windows = _windows(batch[first : first + each], node, weight)
        rows = windows.flatten(2 + weighted.spatial_dims)  # [batch, positions, groups, K]
        yield rows.flatten(0, weighted.spatial_dims).transpose(0, 1)


def _drawn(count: int, most: int) -> Tensor:
    """Return as many different numbers below `count`, all of them if they are no more, in order."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values


def _windows(batch: Tensor, node: NodeView, weight: Tensor) -> Tensor:
    """Return the numbers of each output, [batch, *positions, groups, channels, *window]; a view."""
    window = weight.shape[2:]
    stride, padding, dilation = (_numbers(node, name, len(window)) for name in _GEOMETRY[:3])
    batch = torch.nn.functional.pad(batch, [n for n in reversed(padding) for _ in range(2)])
    batch = batch.reshape(len(batch), node.groups, -1, *batch.shape[2:])
    for axis, (size, step, gap) in enumerate(zip(window, stride, dilation, strict=True), 3):
        batch = batch.unfold(axis, gap * (size - 1) + 1, step)[..., ::gap]
    # [batch, groups, channels, *positions, *window]
    return batch.movedim((1, 2), (1 + len(window), 2 + len(window)))


def _numbers(node: NodeView, operand: str, count: int) -> list[int]:
    """Return an option with a number for each spatial axis; one number may stand for all."""
    given = node.operand(operand).constant
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * count if len(numbers) == 1 else numbers
