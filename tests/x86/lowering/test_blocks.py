"""Parts of values in plans: where they are neighbours, they are names, and nothing is copied."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, Weighted, plan_of, plans_in, traced
from tests.seeds import seeds


class Parted(nn.Module):
    """Parts of parts, in codes and in float32, whose wholes have later readers too."""

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__()
        self.seed, self.first = seed, Grid(0.5, 100)
        self.layer = Weighted(nn.Linear(4, 8), exact=True)
        self.constant = nn.Parameter(torch.randint(-9, 9, (3, *[4] * (rank - 1))).float())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        draw = random.Random(self.seed)
        values = [F.relu(self.layer(self.first(x))), self.first(x), self.constant, x]
        for _ in range(12):
            values.append(self.made(draw, draw.choice(values[-6:])))
        return tuple(value for value in values[4:] if draw.random() < 0.4) or (values[-1],)

    def made(self, draw: random.Random, x: Tensor) -> Tensor:
        axis = draw.randrange(x.dim())
        size = x.shape[axis]
        how = draw.choice(["narrow", "select", "chunk", "permute", "add", "cat", "relu", "narrow"])
        if how == "narrow":
            start = draw.randrange(size)
            return x.narrow(axis, start, draw.randint(1, size - start))
        if how == "select" and x.dim() > 2:
            return x.unbind(axis)[draw.randrange(size)]
        if how == "chunk" and size > 1:
            return x.chunk(2, axis)[draw.randrange(2)]
        if how == "permute":
            return x.permute(draw.sample(range(x.dim()), x.dim()))
        if how == "cat":
            return torch.cat([x, x.narrow(axis, 0, draw.randint(1, size))], axis)
        return x + F.relu(x) if how == "add" else F.relu(x)


@pytest.mark.parametrize("seed", seeds(80))
def test_parts_of_parts(seed: int) -> None:
    """Bits of the reference model, wherever the parts lie."""
    torch.manual_seed(seed)
    rank = random.Random(seed).choice([3, 4])

    def inputs() -> Tensor:
        return torch.randint(-9, 9, (3, *[4] * (rank - 1))).float()

    region = traced(Parted(seed, rank), inputs())
    plan = plan_of(region)
    for _ in range(2):
        x = inputs()
        with torch.no_grad():
            expected = region(x)
        for got, wanted in zip(plan.run([x]), expected, strict=True):
            assert torch.equal(got, wanted)


class Attention(nn.Module):
    """Query, key and value out of one product, stacked along the outermost axis, and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.position = nn.Parameter(torch.randn(50, 32))

    def forward(self, x: Tensor, old_keys: Tensor, old_values: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.position[2 : 2 + x.shape[1]]
        q, k, v = self.qkv(x).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        keys, values = torch.cat([old_keys, k], 2), torch.cat([old_values, v], 2)
        y = (q @ keys.transpose(2, 3)).softmax(3) @ values
        return self.out(y.transpose(1, 2).flatten(2)), keys


@pytest.mark.parametrize("tokens", [1, 3, 12, 13, 40])
def test_attention_copies_nothing_twice(tokens: int) -> None:
    """The stack is written once; a product of few rows packs no operand; constants stay."""
    torch.manual_seed(0)
    net = Attention().eval()
    lowered = jit_passes.quantize_script(torch.jit.script(net), mode="dynamic", target="x86")
    (plan,) = plans_in(lowered)
    inputs = torch.randn(2, tokens, 32), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    rows = plan.profile(list(inputs))
    kernels = [kernel for _, kernel, *_ in rows]
    copies = {name: size for name, kernel, size, *_ in rows if kernel == "copy"}
    assert copies.pop("permute") == [3, 2, 4, tokens, 8]
    assert "unbind" not in copies and "constant" not in kernels
    assert kernels.count("pack") == (0 if tokens <= 12 else 2)
    assert kernels.count("matrix_product") == 2
    for got, wanted in zip(lowered(*inputs), net(*inputs), strict=True):
        assert sqnr(wanted, got) > 35
