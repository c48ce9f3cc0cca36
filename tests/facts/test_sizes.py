"""Sizes of tensors: where the graph does not tell them, passes leave a model what it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.stages.normalize import normalize

STEPS = 40


class Unbatched(nn.Module):
    """A convolution takes data without a batch axis too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y / y.size(1)


class Written(nn.Module):
    """A list that changes in a branch."""

    def forward(self, x: Tensor, swaps: bool) -> Tensor:
        tail = [4, 8]
        if swaps:
            tail[0] = 8
            tail[1] = 4
        return x.reshape(x.shape[:-1] + tail)


class Given(nn.Module):
    """A list that the caller gives."""

    def forward(self, x: Tensor, shape: list[int]) -> Tensor:
        return x.reshape(shape[:-1] + [4, 8])  # noqa: RUF005


class Remainder(nn.Module):
    """The last axis takes what windows leave of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        n, c, h, _ = y.shape
        return y.reshape(n, c, h // 4, 4, -1)


class Exchange(nn.Module):
    """Windows leave as much of one axis as they lack of another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        n, c, h, w = y.shape
        y = y[:, :, :, : w // 4 * 4].reshape(n, c, h, w // 4, 4)
        return y.reshape(n, c, h // 4, 4, w)


class Vector(nn.Module):
    """A linear layer whose weight is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        n, t, _ = x.shape
        y = F.linear(x, self.weight)
        return F.linear(x.flatten(0, 1), self.weight).reshape(n, t, -1), y.size(-1)


class Activated(nn.Module):
    """prelu has a number for each channel, which is not the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.prelu = nn.Conv2d(3, 8, 3, padding=1), nn.PReLU(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.prelu(self.conv(x))
        n, c, h, w = y.shape
        return y.flatten(2).softmax(-1).view(n, c, h, w)


class Scores(nn.Module):
    """A product with a vector has an axis less, and the last one is none of the vector's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.vector = nn.Linear(8, 8), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        scores = y.tanh() @ self.vector
        n, t = scores.shape
        return y * scores.reshape(n, t, 1), scores.flatten().reshape(n, t)


class Started(nn.Module):
    """A tensor of no numbers goes with any other in a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("start", torch.zeros(0))

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        y = torch.cat([self.start, x], 1)
        if y.dim() == 1:
            y = y + 100
        return y, y.size(0)


class Grouped(nn.Module):
    """Heads of keys that queries share; a query without a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(3, 5, 4))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        y = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        z = F.scaled_dot_product_attention(self.query, k[:, :1], k[:, :1])
        if z.dim() == 3:
            z = z.unsqueeze(0)
        return y.transpose(1, 2).flatten(2) / y.shape[1], z


class Bounded(nn.Module):
    """A bound that may be a tensor, with more axes."""

    def forward(self, x: Tensor, low: Tensor | None) -> tuple[int, Tensor]:
        y = torch.clamp(x, min=low)
        return y.size(0), y.reshape(y.size(0), -1)


class Unbatched2d(nn.Module):
    """Sizes in front of the last one, with a batch axis and without."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        return y.view(-1, y.size(-1)), y.reshape(y.shape[0], 1, -1)


class Powers(nn.Module):
    """Two powers of one number, whose shapes are those of the exponents."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        a, b = 2.0**x, 2.0**y
        n, _ = a.shape
        m, _ = b.shape
        return b.reshape(n, 2, -1), m


class Asked(nn.Module):
    """A size that the caller gives, or leaves open with -1, and sizes made of it."""

    def forward(self, x: Tensor, n: int, m: int) -> tuple[Tensor, Tensor, Tensor, bool]:
        y, z = x.reshape(n, 4), x.unflatten(1, (m, 4))
        wide = x[:, :1].expand(-1, m + 0, 8)
        places = torch.arange(y.size(0)) + torch.zeros(z.size(1), 1, 1) + y.view(n, 2, 2).size(0)
        return places, torch.ones(wide.size(1)), y.view(n, 2, 2).flatten(1), y.size(0) == n


class Regrouped(nn.Module):
    """A size that is left open twice, and is another one then."""

    def forward(self, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        y, z = x.reshape(n, 4, 4), x[:2].reshape(n, 2, 2)
        return y.reshape(n, 8), z.reshape(y.size(0) // 3, -1)


class Sums(nn.Module):
    """A number that is a sum of itself, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.steps = nn.Linear(3, 5), STEPS

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        c = y.size(-1)
        for _ in range(self.steps):
            c = c + c - c
        return y * c


CASES: dict[str, tuple[type[nn.Module], tuple[Any, ...]]] = {
    "unbatched": (Unbatched, (torch.randn(4, 19),)),
    "batched": (Unbatched, (torch.randn(2, 4, 19),)),
    "written": (Written, (torch.randn(2, 3, 32), True)),
    "not written": (Written, (torch.randn(2, 3, 32), False)),
    "given": (Given, (torch.randn(2, 3, 32), [2, 3, 32])),
    "given otherwise": (Given, (torch.randn(2, 3, 32), [3, 2, 32])),
    "remainder": (Remainder, (torch.randn(2, 3, 6, 6),)),
    "no remainder": (Remainder, (torch.randn(2, 3, 8, 6),)),
    "exchange": (Exchange, (torch.randn(2, 3, 6, 6),)),
    "powers": (Powers, (torch.randn(2, 8), torch.randn(4, 4))),
    "started": (Started, (torch.randn(2, 4),)),
    "grouped": (Grouped, (torch.randn(2, 8, 6, 4), torch.randn(2, 2, 7, 4))),
    "bounded": (Bounded, (torch.randn(2, 4), torch.randn(3, 1, 1))),
    "asked": (Asked, (torch.randn(3, 8, 8), 48, 2)),
    "left open": (Asked, (torch.randn(3, 8, 8), -1, -1)),
    "regrouped": (Regrouped, (torch.randn(6, 16), -1)),
    "image": (Unbatched2d, (torch.randn(3, 6, 5),)),
    "images": (Unbatched2d, (torch.randn(2, 3, 6, 5),)),
    "prelu": (Activated, (torch.randn(2, 3, 6, 9),)),
    "scores": (Scores, (torch.randn(2, 5, 8),)),
    "vector": (Vector, (torch.randn(2, 3, 8),)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_the_same(name: str) -> None:
    made, inputs = CASES[name]
    torch.manual_seed(0)
    script = torch.jit.script(made().eval())
    module = normalize(script._c).module
    with torch.no_grad():
        torch.testing.assert_close(module.forward(*inputs), script(*inputs), rtol=0, atol=0)


def test_sums_of_sums() -> None:
    """Each is looked at once: with 40 steps there are 3^40 ways to the first one."""
    torch.manual_seed(0)
    model, x = Sums().eval(), torch.randn(2, 3)
    module = normalize(torch.jit.script(model)._c).module
    kinds = [node.kind for node in jit_passes.GraphView.of(module).nodes]
    assert "prim::Loop" not in kinds and "aten::sub" not in kinds
    with torch.no_grad():
        assert torch.equal(module.forward(x), model(x))
