"""Loops whose rounds the data or an open size decide, with inputs that take different ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim


class Grow(nn.Module):
    """A condition on the data, a layer, and the number of rounds as a result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        rounds = 0
        while bool(x.abs().sum() < 100):
            x = x * 1.5 + torch.tanh(self.layer(x)) * 0.1
            rounds += 1
        return x, rounds


class Rows(nn.Module):
    """A round for each row, of which there may be any number."""

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(5)
        for row in range(x.size(0)):
            total = total * 0.5 + x[row]
        return total


class Newton(nn.Module):
    """A break, after one round at least; the roots of x."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for _ in range(50):
            better = (y + x / y) / 2
            if bool((better - y).abs().max() < 1e-6):
                break
            y = better
        return y


class Fill(nn.Module):
    """Rounds that write to rows of a tensor from outside, with a branch in them."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        row = 0
        while row < x.size(0) and bool(x[row].sum() > -3):
            if bool(x[row, 0] > 0):
                y[row] = x[row].cumsum(0)
            row += 1
        return y


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


ROWS = ({0: Dim.DYNAMIC},)
LOOPS: dict[str, tuple[type[nn.Module], list[Tensor], Any]] = {
    "grow": (Grow, [_drawn(2, 5), 50 * _drawn(2, 5)], None),
    "rows": (Rows, [_drawn(3, 5), _drawn(7, 5)], ROWS),
    "newton": (Newton, [_drawn(3).abs() + 1, 100 * _drawn(3).abs() + 1], None),
    "fill": (Fill, [_drawn(4, 5, seed=1), _drawn(7, 5, seed=2)], ROWS),
}
"""By name a network, two inputs, and the sizes that are open."""
