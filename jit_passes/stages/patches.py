"""The numbers that a layer computes each of its outputs from."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

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
        most: rows about, evenly spread over the tokens or pixels; None for all.
    """
    weighted = node.traits.weighted
    assert weighted is not None
    dims = weighted.spatial_dims
    if not dims:
        rows = inputs.reshape(1, -1, inputs.shape[-1])
        yield rows if most is None else rows[:, :: ceil(rows.shape[1] / most) or 1]
        return
    batch = inputs.reshape(-1, *inputs.shape[-1 - dims :])
    pixels = batch[0, 0].numel()
    every = 1 if most is None else max(1, ceil((len(batch) * pixels / most) ** (1 / dims)))
    each = _NUMBERS // max(1, prod(weight.shape[1:]) * node.groups * pixels // every**dims) + 1
    for first in range(0, len(batch), each):
        yield _patches(batch[first : first + each], node, weight, every)


def _patches(batch: Tensor, node: NodeView, weight: Tensor, every: int) -> Tensor:
    """Return the numbers that each output is computed from, [groups, positions, K].

    Positions are every so many along each axis.
    """
    window = weight.shape[2:]
    stride, padding, dilation = (_numbers(node, name, len(window)) for name in _GEOMETRY[:3])
    batch = torch.nn.functional.pad(batch, [n for n in reversed(padding) for _ in range(2)])
    batch = batch.reshape(len(batch), node.groups, -1, *batch.shape[2:])
    for axis, (size, step, gap) in enumerate(zip(window, stride, dilation, strict=True), 3):
        batch = batch.unfold(axis, gap * (size - 1) + 1, step * every)[..., ::gap]
    # [batch, groups, channels, positions, window]
    rows = batch.movedim(2, 2 + len(window)).transpose(0, 1)
    return rows.flatten(2 + len(window)).flatten(1, 1 + len(window))


def _numbers(node: NodeView, operand: str, count: int) -> list[int]:
    """Return an option with a number for each spatial axis; one number may stand for all."""
    given = node.operand(operand).constant
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * count if len(numbers) == 1 else numbers
