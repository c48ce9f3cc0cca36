"""Plans that take values apart: slices, parts, other orders of axes, and shuffled channels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.plans import Grid, Weighted, plan_of, traced
from tests.seeds import seeds


def assert_all_equal(region: Any, *inputs: Tensor) -> None:
    with torch.no_grad():
        expected = region(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    got = plan_of(region).run(list(inputs))
    assert [g.shape for g in got] == [e.shape for e in expected]
    for g, e in zip(got, expected, strict=True):
        assert torch.equal(g, e), f"{(g != e).sum()} of {g.numel()} differ"


def shuffled(x: Tensor, groups: int) -> Tensor:
    n, c, *rest = x.shape
    return x.view(n, groups, c // groups, *rest).transpose(1, 2).contiguous().view(n, c, *rest)


class Pooled(nn.Module):
    """A vector for each image, as many classifiers have it."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes, self.grid = axes, Grid(0.03, 120)
        self.linear = Weighted(nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.grid(F.max_pool2d(self.grid(x), 4))
        for axis in self.axes:
            x = x.squeeze(axis)
        return self.grid(self.linear(x))


@pytest.mark.parametrize("axes", [(3, 2), (-1, -1), (2, 2), (-2, 2)])
def test_squeeze(axes: tuple[int, ...]) -> None:
    """One plan for sizes of which the axes are 1, or some are not: these stay."""
    torch.manual_seed(0)
    region = traced(Pooled(axes), torch.randn(3, 6, 4, 4))
    assert_all_equal(region, torch.randn(3, 6, 4, 4))
    assert_all_equal(region, torch.randn(1, 6, 4, 4))
    last = traced(LastSqueezed(), torch.randn(3, 6, 1, 2))
    for shape in ((3, 6, 1, 2), (3, 1, 6, 1), (1, 1, 1, 1), (2, 3, 4, 5)):
        assert_all_equal(last, torch.randn(shape))


class LastSqueezed(nn.Module):
    """Axes that are 1 for some inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = Grid(0.03, 120)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.grid(x)
        return x.squeeze(-1), torch.relu(x).squeeze((0, 2))


class Moving(nn.Module):
    """A chain of operators that move codes; each may leave results that later ones read too."""

    def __init__(self, seed: int, grid: Grid, last: Grid | None) -> None:
        super().__init__()
        self.seed, self.grid, self.last = seed, grid, last

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        draw = random.Random(self.seed)
        values = [self.grid(x)]
        for _ in range(draw.randint(1, 5)):
            x = draw.choice(values[-3:])
            moved = [v for v in self.moved(draw, x) if v.numel() or not values[0].numel()]
            values += moved
        results = tuple(values[1:][-3:]) or (values[0] + 0,)
        results = tuple(self.last(r) if self.last else r for r in results)
        return results if len(results) > 1 else results[0]

    @staticmethod
    def moved(draw: random.Random, x: Tensor) -> list[Tensor]:
        axis = draw.randrange(-x.dim(), x.dim())
        size, any_end = int(x.shape[axis]), lambda: draw.choice([None, draw.randint(-80, 80)])
        kind = draw.choice(
            [
                "slice",
                "slice",
                "select",
                "narrow",
                "chunk",
                "chunk",
                "split",
                "sizes",
                "unsafe",
                "transpose",
                "flatten",
                "unflatten",
                "shuffle",
                "shuffle",
                "cat",
                "pad",
                "pool",
            ]
        )
        if kind == "slice":
            index: list[Any] = [slice(None)] * x.dim()
            index[axis] = slice(any_end(), any_end(), draw.choice([None, 1, 2, 3]))
            return [x[tuple(index)]]
        if kind == "select" and x.dim() > 1 and size:
            return [x.select(axis, draw.randrange(-size, size))]
        if kind == "narrow" and size:
            start = draw.randrange(size)
            length = draw.randint(1, size - start)
            return [x.narrow(axis, start - draw.choice([0, size]), length)]
        if kind == "chunk":
            return list(x.chunk(draw.randint(1, 6), axis))
        if kind == "split":
            return list(x.split(draw.randint(max(1, size // 5), 2 * size + 1), axis))
        if kind == "unsafe":
            return list(torch.unsafe_chunk(x, draw.randint(1, 4), axis))
        if kind == "sizes" and size > 2:
            cuts = sorted(draw.sample(range(1, size), 2))
            return list(x.split([cuts[0], cuts[1] - cuts[0], size - cuts[1]], axis))
        if kind == "transpose":
            return [x.transpose(axis, draw.randrange(x.dim()))]
        if kind == "flatten":
            first, last = sorted(draw.randrange(x.dim()) for _ in range(2))
            return [x.flatten(first, last)]
        if kind == "unflatten" and x.dim() < 5:
            divisor = draw.choice([d for d in range(1, size + 1) if size % d == 0] or [1])
            return [x.unflatten(axis, (divisor, size // divisor))]
        if kind == "shuffle" and 2 < x.dim() < 5:
            divisors = [d for d in (1, 2, 3, 5) if int(x.shape[1]) % d == 0]
            return [F.channel_shuffle(x, draw.choice(divisors))]
        if kind == "cat":
            return [torch.cat([x, x.narrow(axis, 0, max(size - 1, 0)), x], axis)]
        if kind == "pad":
            return [F.pad(x, (draw.randint(0, 2), draw.randint(0, 2)))]
        if kind == "pool" and x.dim() == 4 and min(map(int, x.shape[1:])) > 2:
            return [F.max_pool2d(x, 3, draw.randint(1, 2), 1)]
        return [x.contiguous()]


@pytest.mark.parametrize("seed", seeds(150))
def test_what_takes_values_apart_is_exact(seed: int) -> None:
    """Any axes, ends and numbers of parts; results read once, often or never."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    rank = draw.choice([2, 3, 4, 4, 4, 5])
    batch = draw.choice([0, 1, 2, 3])
    small = [draw.randint(1, 9) for _ in range(rank - 2)]
    x = torch.randn(batch, draw.randint(1, 70), *small)
    last = draw.choice([None, Grid(0.027, 77), Grid(0.05, -3, torch.int8)])
    assert_all_equal(traced(Moving(seed, Grid(0.031, 131), last), x), x)


class Unit(nn.Module):
    """Branches that read parts of a value, with a border around some, joined and shuffled."""

    def __init__(self, draw: random.Random, groups: int, width: int, other: bool) -> None:
        super().__init__()
        self.groups, self.width = groups, width
        self.grid, self.last = Grid(0.5, 131), Grid(2.0 if other else 0.5, 99 if other else 131)

        def conv(outputs: int, kernel: int, deep: bool = False) -> Weighted:
            layer = nn.Conv2d(
                width, outputs, kernel, padding=kernel // 2, groups=width if deep else 1
            )
            return Weighted(layer, exact=True)

        self.one, self.two = conv(width, draw.choice([1, 3])), conv(width, 3, deep=True)
        self.three = conv(width, 1)
        self.again = draw.random() < 0.5
        self.name = draw.choice(["chunk", "split", "slice"])

    def parts(self, x: Tensor) -> list[Tensor]:
        if self.name == "chunk":
            return list(x.chunk(self.groups, 1))
        if self.name == "split":
            return list(x.split(self.width, 1))
        return [x[:, i * self.width : (i + 1) * self.width] for i in range(self.groups)]

    def forward(self, x: Tensor) -> Any:
        parts = self.parts(self.grid(x))
        y = self.last(self.three(self.grid(self.two(self.grid(self.one(parts[-1]))))))
        joined = torch.cat([*parts[:-1], y], 1)
        joined = self.last(joined) if self.last.scale != self.grid.scale else joined
        out = shuffled(joined, self.groups)
        if self.again:
            return out, joined, self.last(self.two(parts[0])), parts[-1].flatten(1)
        return out


@pytest.mark.parametrize("seed", seeds(40))
def test_units_of_shuffled_channels(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    groups, width = draw.choice([2, 2, 2, 3, 5]), draw.randint(1, 70)
    net = Unit(draw, groups, width, other=draw.random() < 0.6)
    shape = (groups * width, draw.randint(1, 19), draw.randint(1, 15))
    region = traced(net, torch.randn(2, *shape) * 30)
    for batch in (2, 1, 3, 0):
        assert_all_equal(region, torch.randn(batch, *shape) * 30)


def test_a_shuffle_is_one_step() -> None:
    """Nothing is left of reshapes, nor is a concatenation in front of them."""
    region = traced(Unit(random.Random(0), 2, 8, True), torch.randn(1, 16, 5, 5))
    kinds = [operator[0][0] for operator in plan_of(region).__getstate__()[0][2]]
    assert "shuffle" in kinds
    assert not {"unflatten", "transpose", "flatten", "reshape"} & set(kinds)


PARTS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "chunk": lambda x: list(x.chunk(4, 1)),
    "split": lambda x: list(x.split(2, 1)),
    "sizes": lambda x: list(x.split([1, 2, 3], 1)),
    "narrow": lambda x: [x.narrow(1, 2, 4)],
    "select": lambda x: [x.select(1, 5), x.select(1, -6)],
}


class Parts(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.grid = name, Grid(0.031, 131)

    def forward(self, x: Tensor) -> Any:
        return tuple(PARTS[self.name](self.grid(x)))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("name", PARTS)
def test_other_sizes(name: str, channels: int) -> None:
    """Made for six channels; a plan raises where the reference model does, and nowhere else."""
    region = traced(Parts(name), torch.randn(2, 6, 3))
    plan = plan_of(region)
    x = torch.randn(2, channels, 3)
    try:
        expected = region(x)
    except RuntimeError:
        with pytest.raises(RuntimeError, match=f"and got the shape 2 {channels} 3"):
            plan.run([x])
        return
    for got, part in zip(plan.run([x]), expected, strict=True):
        assert torch.equal(got, part)


def test_slices_follow_the_size() -> None:
    """Ends count from the end, and those beyond it are cut off."""

    class Slices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grid = Grid(0.031, 131)

        def forward(self, x: Tensor) -> Any:
            x = self.grid(x)
            return x[:, -3:], x[:, :-2], x[:, 4:9], x[:, 1:-1:2], x[..., -100:2]

    region = traced(Slices(), torch.randn(2, 6, 3, 3))
    for channels in range(1, 13):
        assert_all_equal(region, torch.randn(2, channels, 3, 3))
