"""Plans that cut images into windows and move elements: six axes, codes and float32."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, plan_of, plans_in, traced
from tests.seeds import seeds
from tests.x86.operators.test_parts import assert_all_equal


class Moving(nn.Module):
    """A chain of such operators, on codes or on float32; some results are read by others too."""

    def __init__(self, seed: int, codes: bool) -> None:
        super().__init__()
        self.seed, self.codes = seed, codes
        self.grid, self.last = Grid(0.031, 131), Grid(0.027, 77)

    def forward(self, x: Tensor) -> Any:
        draw = random.Random(self.seed)
        values = [self.grid(x) if self.codes else F.hardswish(x)]
        for _ in range(draw.randint(1, 6)):
            values.append(self.moved(draw, draw.choice(values[-2:])))
        results = values[1:][-3:]
        if draw.random() < 0.5:
            results = [self.last(r) if self.codes else F.relu(r) for r in results]
        return tuple(results)

    @staticmethod
    def moved(draw: random.Random, x: Tensor) -> Tensor:
        rank = x.dim()
        axis = draw.randrange(-rank, rank)
        kinds = ["roll", "flip", "repeat", "reflect", "replicate", "circular"]
        kinds += ["unsqueeze", "squeeze", "expand", "split", "permute", "flatten"]
        kind = draw.choice(kinds)
        if kind == "roll" and rank <= 5:
            axes = draw.sample(range(-rank, 0), min(draw.randint(1, 3), rank))
            return torch.roll(x, [draw.randint(-9, 9) for _ in axes], axes)
        if kind == "flip" and rank <= 5:
            return x.flip(draw.sample(range(-rank, 0), draw.randint(1, rank)))
        if kind == "repeat" and rank <= 4 and x.numel() < 1000:
            return x.repeat([draw.randint(1, 2) for _ in range(draw.choice([rank, rank + 1]))])
        if kind in ("reflect", "replicate", "circular") and 3 <= rank <= 5 and 0 < x.numel() < 2000:
            most = {"reflect": -1, "replicate": 3, "circular": 0}[kind]
            padded = [s + most for s in reversed(x.shape[2:]) for _ in range(2)]
            return F.pad(x, [draw.randint(0, min(p, 4)) for p in padded], mode=kind)
        if kind == "unsqueeze" and rank < 6:
            return x.unsqueeze(draw.randrange(-rank - 1, rank + 1))
        if kind == "squeeze" and rank > 1:
            more = {axis, *(-1 - int(i) for i in range(rank - 1) if draw.random() < 0.3)}
            same = len({i % rank for i in more}) < len(more)
            return x.squeeze(axis) if same or draw.random() < 0.5 else x.squeeze([*more])
        if kind == "expand" and rank <= 5:
            sizes = [draw.choice([-1, draw.randint(1, 3)]) if s == 1 else -1 for s in x.shape]
            lead = [draw.randint(1, 3)] if rank < 5 and draw.random() < 0.5 else []
            return x.expand(lead + sizes)
        if kind == "split" and rank < 6:
            size = int(x.shape[axis])
            most = min(6 - rank, 2)
            parts = [draw.choice([d for d in range(1, size + 1) if size % d == 0] or [1])]
            if most == 2 and draw.random() < 0.5:
                parts.append(1)
            return x.unflatten(axis, (*parts, -1) if size else (1, 0))
        if kind == "permute":
            axes = draw.sample(range(rank), rank)
            y = x.permute(axes)
            return y.contiguous() if draw.random() < 0.3 else y
        first, last = sorted(draw.randrange(rank) for _ in range(2))
        return x.flatten(first, last)


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("seed", seeds(80))
def test_moves_are_exact(seed: int, codes: bool) -> None:
    """Inputs with and without gaps, of up to six axes."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    rank = draw.choice([2, 3, 4, 4, 5, 6])
    shape = [draw.randint(0, 3), draw.choice([4, 6, 12]), *(draw.choice([1, 4]) for _ in range(5))]
    x = torch.randn(*shape[:rank])
    if draw.random() < 0.3:
        x = x.transpose(draw.randrange(rank), draw.randrange(rank))
    assert_all_equal(traced(Moving(seed, codes), x), x)


class Windows(nn.Module):
    """As Swin has them: rolled, cut, put together again and rolled back."""

    def __init__(self, codes: bool) -> None:
        super().__init__()
        self.grid, self.codes = Grid(0.031, 131), codes

    def forward(self, x: Tensor) -> Tensor:
        x = self.grid(x) if self.codes else F.hardswish(x)
        x = torch.roll(x, (-2, -2), (1, 2)).unflatten(2, (-1, 4)).unflatten(1, (-1, 4))
        x = x.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(0, 2)
        x = x.unflatten(1, (4, 4)).unflatten(0, (-1, 2, 3)).permute(0, 1, 3, 2, 4, 5)
        return torch.roll(x.flatten(3, 4).flatten(1, 2), (2, 2), (1, 2))


@pytest.mark.parametrize("codes", [True, False])
def test_windows_come_back(codes: bool) -> None:
    region = traced(Windows(codes), torch.randn(2, 8, 12, 5))
    plan = plan_of(region)
    for batch in (2, 1, 3, 0):
        x = torch.randn(batch, 8, 12, 5)
        (got,) = plan.run([x])
        expected = Grid(0.031, 131)(x) if codes else F.hardswish(x)
        assert torch.equal(got, expected) and torch.equal(region(x), expected)


def test_a_roll_is_one_step() -> None:
    """Two axes at once, and nothing is copied where the rolled axes are outermost."""
    plan = plan_of(traced(Windows(True), torch.randn(2, 8, 12, 5)))
    kernels = [step[1] for step in plan.profile([torch.randn(2, 8, 12, 5)])]
    assert kernels.count("roll") == 2 and kernels.count("copy") == 2


@pytest.mark.parametrize("make", [lambda x: x.unsqueeze(0), lambda x: x.flatten(0, 2)])
def test_other_axes(make: Any) -> None:
    """More or fewer than the windows are cut out of are an error."""
    region = traced(Windows(True), torch.randn(2, 8, 12, 5))
    with pytest.raises(RuntimeError, match=r"axes|got the shape"):
        plan_of(region).run([make(torch.randn(2, 8, 12, 5))])


class Block(nn.Module):
    """A convolution and attention within windows and within a grid, as MaxViT has them."""

    def __init__(self, size: int = 4, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.size, self.heads = size, heads
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.last = nn.Linear(width, width), nn.Conv2d(width, 8, 1)

    def attend(self, x: Tensor) -> Tensor:
        """Take and give [N, windows, pixels, C]."""
        n, windows, pixels, c = x.shape
        qkv = self.qkv(self.norm(x))
        q, k, v = qkv.chunk(3, 3)
        q = q.reshape(n, windows, pixels, self.heads, c // self.heads).permute(0, 1, 3, 2, 4)
        k = k.reshape(n, windows, pixels, self.heads, c // self.heads).permute(0, 1, 3, 2, 4)
        v = v.reshape(n, windows, pixels, self.heads, c // self.heads).permute(0, 1, 3, 2, 4)
        y = torch.softmax(q @ k.transpose(-2, -1) * 0.35, -1) @ v
        return x + self.out(y.permute(0, 1, 3, 2, 4).reshape(n, windows, pixels, c))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        n, c, h, w = x.shape
        p = self.size
        y = x.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1)
        y = self.attend(y.reshape(n, (h // p) * (w // p), p * p, c))
        y = y.reshape(n, 2, 3, p, p, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, 2 * p, 3 * p)
        return self.last(torch.roll(y, (1, -2), (2, 3)))


@pytest.mark.parametrize("how", ["trace", "script"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_attention_within_windows_is_one_plan(mode: str, how: str) -> None:
    torch.manual_seed(0)
    net = Block().eval()
    data = [torch.randn(2, 3, 8, 12) for _ in range(4)]
    model = torch.jit.script(net) if how == "script" else torch.jit.trace(net, data[0])
    given = data if mode == "static" else None
    lowered = jit_passes.quantize_script(model, given, mode=mode, target="x86")
    reference = jit_passes.quantize_script(model, given, mode=mode, target="reference")
    assert len(plans_in(lowered)) == 1
    for batch in (2, 1, 5):
        x = torch.randn(batch, 3, 8, 12)
        with torch.no_grad():
            expected = net(x)
            assert sqnr(expected, lowered(x)) > sqnr(expected, reference(x)) - 0.5 > 28
    assert lowered(torch.zeros(0, 3, 8, 12)).shape == (0, 8, 8, 12)


STRIDED: dict[str, Any] = {
    "one behind": lambda: torch.randn(3, 4, 1, 4, 4, 4).transpose(1, 2),
    "one in front": lambda: torch.randn(1, 2, 4, 4, 4, 4).transpose(0, 1),
    "far apart": lambda: torch.randn(3, 8, 4, 2, 4, 4)[:, :1].transpose(0, 1),
    "all of one": lambda: torch.randn(1, 1, 1, 7, 1, 1).permute(3, 0, 1, 2, 4, 5),
    "none": lambda: torch.randn(1, 2, 4, 0, 4, 4).transpose(0, 1),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_of_axes_of_one(name: str) -> None:
    """An input of six axes is contiguous whatever the stride of an axis of size 1 is."""
    torch.manual_seed(0)
    x = STRIDED[name]()
    grid = Grid(0.031, 131)
    (got,) = plan_of(traced(grid, x)).run([x])
    assert x.dim() == 6 and torch.equal(got, grid(x))


class Many(nn.Module):
    """Six axes between linear layers, and an operator of five axes at most that reads them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.last, self.inner = (nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)

    def work(self, x: Tensor) -> Tensor:
        if self.kind == "layer_norm":
            return self.norm(x)
        if self.kind == "softmax":
            return x.softmax(-1)
        if self.kind == "add":
            return torch.relu(x) + self.norm.weight
        if self.kind == "sub":
            return torch.relu(x) - self.norm.weight
        if self.kind == "mean":
            return x + x.mean(-1, keepdim=True)
        if self.kind == "matmul":
            return x.reshape(2, 2, 4, 2, 4, 16) @ x.transpose(-2, -1) @ x
        if self.kind == "cat":
            return torch.cat([x[..., 3:], x[..., :3]], -1)
        if self.kind == "roll":
            return torch.roll(x, (1,), (2,))
        return self.inner(x) if self.kind == "linear" else torch.tanh(x)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).reshape(2, 2, 4, 2, 4, 16)
        return self.last(self.work(y).reshape(2, 8, 8, 16))


KINDS = ["layer_norm", "softmax", "add", "sub", "mean", "matmul", "cat", "roll", "linear", "tanh"]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("kind", KINDS)
def test_operators_of_fewer_axes(kind: str, mode: str) -> None:
    """The operators stay outside of plans, and plans run."""
    torch.manual_seed(0)
    net = Many(kind).eval()
    data = [torch.randn(2, 8, 8, 16) for _ in range(2)]
    given = data if mode == "static" else None
    lowered = jit_passes.quantize_script(torch.jit.script(net), given, mode=mode, target="x86")
    if mode == "dynamic":  # in the other, what is not quantized keeps its neighbours in float
        assert len(plans_in(lowered)) == (1 if kind in ("tanh", "linear") else 2)
    assert plans_in(lowered)
    with torch.no_grad():
        assert sqnr(net(data[0]), lowered(data[0])) > 20


@pytest.mark.parametrize("kind", [*KINDS[:-2], "unsqueeze"])
def test_plans_that_no_input_fits(kind: str) -> None:
    """Where a target asks for one, building it says which operator it is."""

    class Region(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.many = Many(kind)

        def forward(self, x: Tensor) -> Tensor:
            x = F.hardswish(x).reshape(2, 2, 4, 2, 4, 16)
            return x.unsqueeze(0) if kind == "unsqueeze" else self.many.work(x)

    with pytest.raises(RuntimeError, match=r"more than [56] axes"):
        plan_of(traced(Region(), torch.randn(2, 8, 8, 16)))
