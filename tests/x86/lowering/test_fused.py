"""Steps of plans that are computed together: the bits of the reference model, and fewer steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.plans import Grid, Weighted, plan_of, traced
from tests.seeds import seeds


def grid(draw: random.Random) -> Grid:
    """A grid whose sums and quotients float32 has exactly."""
    return Grid(2.0 ** draw.randint(-2, 2), draw.randint(40, 200))


def convolution(draw: random.Random, inputs: int, outputs: int) -> nn.Module:
    kernel = draw.choice([1, 1, 3])
    groups = inputs if inputs == outputs and draw.random() < 0.3 else 1
    return Weighted(nn.Conv2d(inputs, outputs, kernel, 1, kernel // 2, groups=groups), exact=True)


def clip(draw: random.Random) -> nn.Module:
    return draw.choice([nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-20.3, 30.1)])


def kernels(plan: Any, x: Tensor) -> list[str]:
    return [kernel for _, kernel, *_ in plan.profile([x])]


def assert_bits(region: Any, plan: Any, x: Tensor) -> None:
    """Of the reference model, on any number of threads."""
    with torch.no_grad():
        expected = region(x)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(plan.run([x])[0], expected)
    finally:
        torch.set_num_threads(before)


class Residual(nn.Module):
    """A convolution, and a sum with what came in or with another convolution.

    In some, the convolution is rounded before it is added, as is a function of it.
    """

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.channels, outputs = draw.randint(1, 70), draw.randint(1, 70)
        self.same = draw.random() < 0.5
        outputs = self.channels if self.same else outputs
        self.x, self.y, self.function, self.z = (grid(draw) for _ in range(4))
        self.layer = convolution(draw, self.channels, outputs)
        self.other, self.r = convolution(draw, self.channels, outputs), grid(draw)
        self.clip, self.last = clip(draw), clip(draw)
        self.rounded, self.table, self.form = (draw.randint(0, n) for n in (3, 1, 4))
        self.pooled, self.after = draw.random() < 0.3, convolution(draw, outputs, 9)
        self.end = grid(draw)

    def forward(self, x: Tensor) -> Tensor:
        x = self.x(x)
        y = self.layer(x)
        if self.rounded == 0:
            y = self.y(self.clip(y))
        r = x if self.same else self.r(self.other(x))
        z = (y + r, r + y, y - r, r - y, torch.add(r, y, alpha=-0.5))[self.form]
        z = self.z(self.last(z))
        z = self.function(F.hardswish(z)) if self.table else z
        z = F.max_pool2d(z, 3, 1, 1) if self.pooled else z
        return self.end(self.after(z))


@pytest.mark.parametrize("seed", seeds(40))
def test_sums_behind_convolutions(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    module = Residual(draw)
    size = (module.channels, draw.randint(1, 20), draw.randint(1, 33))
    region = traced(module, torch.randn(2, *size))
    plan = plan_of(region)
    for batch in (1, draw.randint(2, 9)):
        assert_bits(region, plan, torch.randn(batch, *size) * 40)
    names = kernels(plan, torch.randn(1, *size))
    fused = int(module.rounded > 0)
    assert sum(name.endswith(" + add") for name in names) == fused
    assert names.count("add") == 1 - fused


class Padded(nn.Module):
    """A sum behind a convolution whose padding is an operator in front of it."""

    def __init__(self) -> None:
        super().__init__()
        draw = random.Random(3)
        self.x, self.z, self.layer = (
            grid(draw),
            grid(draw),
            Weighted(nn.Conv2d(6, 6, 3), exact=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.x(x)
        return self.z(x - self.layer(F.pad(x, (1, 1, 1, 1))))


def test_a_padding_in_front_of_a_sum() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 5, 7) * 20
    region = traced(Padded(), x)
    plan = plan_of(region)
    assert_bits(region, plan, x)
    assert kernels(plan, x) == ["quantize", "convolution 3x3 + add", "dequantize"]


class Linear(nn.Module):
    """A sum behind a linear, of any rank; the operands may broadcast."""

    def __init__(self, inputs: int, outputs: int, form: int) -> None:
        super().__init__()
        draw = random.Random(inputs)
        self.x, self.r, self.z = grid(draw), grid(draw), grid(draw)
        self.layer, self.form = Weighted(nn.Linear(inputs, outputs), exact=True), form

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        y, r = self.layer(self.x(x)), self.r(r)
        return self.z(F.relu((y + r, r - y, torch.add(y, r, alpha=2))[self.form]))


@pytest.mark.parametrize("shape", [(7,), (1, 7), (5, 33), (3, 2, 40), (2, 3, 5, 70)], ids=str)
@pytest.mark.parametrize("form", range(3))
def test_sums_behind_linear(shape: tuple[int, ...], form: int) -> None:
    torch.manual_seed(0)
    net = Linear(shape[-1], 37, form)
    x, r = torch.randn(shape) * 20, torch.randn(*shape[:-1], 37) * 20
    region = traced(net, x, r)
    plan = plan_of(region)
    with torch.no_grad():
        assert torch.equal(plan.run([x, r])[0], region(x, r))
    assert [kernel for _, kernel, *_ in plan.profile([x, r])].count("linear + add") == 1


@pytest.mark.parametrize("form", range(3))
@pytest.mark.parametrize(
    "shapes",
    [((3, 4, 7), (9,)), ((7,), (3, 4, 9)), ((3, 1, 7), (1, 4, 9)), ((3, 4, 7), (1,))],
    ids=str,
)
def test_sums_that_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]], form: int) -> None:
    """Where no operand, or one only, has the size of the sum, the linear is rounded by itself.

    Tolerance: half a step of 255 over the range beyond which the sum is clipped, and one of it.
    """
    torch.manual_seed(0)
    net = Linear(7, 9, form)
    net.z.scale = 4.0
    x, r = (torch.randn(shape) * 20 for shape in shapes)
    region = traced(net, x, r)
    plan = plan_of(region)
    with torch.no_grad():
        expected = region(x, r)
    (found,) = plan.run([x, r])
    assert expected.unique().numel() > 20
    factors = ((1, 1), (-1, 1), (1, 2))[form]
    half = (255 * net.z.scale + 255 * net.r.scale * abs(factors[1])) / 255 / 2
    assert (found - expected).abs().max() <= half + net.z.scale
    assert [kernel for _, kernel, *_ in plan.profile([x, r])].count("add") == 1


class Shared(nn.Module):
    """Sums that stay: of a value that is read elsewhere, and a broadcast one."""

    def __init__(self) -> None:
        super().__init__()
        draw = random.Random(1)
        self.grids = nn.ModuleList(grid(draw) for _ in range(7))
        self.layers = nn.ModuleList(Weighted(nn.Conv2d(6, 6, 1), exact=True) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.grids[0](x)
        a = self.grids[1](self.layers[0](x))
        twice = self.grids[2](a + a)
        b = self.grids[3](self.layers[1](twice))
        read = self.grids[4](b + twice)
        row = F.max_pool2d(self.grids[5](self.layers[2](b)), (5, 1))
        return self.grids[6](read + row)


def test_sums_that_stay() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 5, 7) * 20
    region = traced(Shared(), x)
    plan = plan_of(region)
    assert_bits(region, plan, x)
    assert kernels(plan, x).count("add") == 2


class Joined(nn.Module):
    """A concatenation on a grid of its own."""

    def __init__(self) -> None:
        super().__init__()
        draw = random.Random(2)
        self.grids = nn.ModuleList(grid(draw) for _ in range(9))
        self.layers = nn.ModuleList(
            Weighted(nn.Conv2d(6, 6, k, padding=k // 2), exact=True) for k in (1, 3, 1)
        )
        self.up = Weighted(nn.ConvTranspose2d(6, 6, 2, 2), exact=True)
        self.after = Weighted(nn.Conv2d(30, 7, 3, padding=1), exact=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grids[0](x)
        a = self.grids[1](self.layers[0](x))
        b = self.grids[2](F.hardswish(self.grids[3](self.layers[1](x))))
        c = self.grids[4](a + x)  # neither is read by the concatenation alone
        d = self.grids[5](self.up(F.max_pool2d(x, 2)))
        joined = self.grids[6](torch.cat([a, b, c, d, x], 1))
        return self.grids[7](self.after(joined))


def test_concatenations_on_a_grid_of_their_own() -> None:
    """Steps whose result nobody else reads give its codes at once; the others are copied."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 8, 10) * 20
    region = traced(Joined(), x)
    plan = plan_of(region)
    assert_bits(region, plan, x)
    assert kernels(plan, x).count("copy") == 2


class Deep(nn.Module):
    """Layers with large values in between: an inverted residual, or others one after the other."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        dense = draw.random() < 0.3
        self.channels, wide = draw.randint(1, 40), draw.randint(50, 60 if dense else 100)
        stride, dilation = draw.randint(1, 2), draw.choice([1, 1, 2])
        kernel = draw.choice([3, 3, 5])
        self.same = stride == 1 and draw.random() < 0.6
        pad = dilation * (kernel // 2) if self.same else draw.randint(0, kernel)
        outputs = self.channels if self.same else draw.randint(1, 50)
        window = {"stride": stride, "padding": pad, "dilation": dilation}
        groups = 1 if dense else wide
        layers = [
            nn.Conv2d(self.channels, wide, 1),
            nn.Conv2d(wide, wide, kernel, groups=groups, **window),
            nn.Conv2d(wide, outputs, 1),
        ]
        if not self.same and draw.random() < 0.5:
            first = nn.Conv2d(self.channels, self.channels, 3, stride=draw.randint(1, 2), padding=2)
            layers.insert(0, first)
        self.layers = nn.ModuleList(Weighted(layer, exact=True) for layer in layers)
        self.clips = nn.ModuleList(clip(draw) for _ in layers)
        self.grids = nn.ModuleList(grid(draw) for _ in layers)
        self.tables = [draw.random() < 0.2 for _ in layers]
        self.functions = nn.ModuleList(grid(draw) for _ in layers)
        self.x, self.z = grid(draw), grid(draw)

    def forward(self, x: Tensor) -> Tensor:
        y = x = self.x(x)
        for i, layer in enumerate(self.layers):
            y = layer(y)
            if self.same and layer is self.layers[-1]:
                return self.z(y + x)
            y = self.grids[i](self.clips[i](y))
            if self.tables[i]:
                y = self.functions[i](F.hardswish(y))
        return y


@pytest.mark.parametrize("seed", range(14))
def test_layers_depth_first(seed: int) -> None:
    """Any windows, tails of channels, batches, and rows that no band divides."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    module = Deep(draw)
    size = (module.channels, draw.randint(102, 140), draw.randint(94, 120))
    region = traced(module, torch.randn(1, *size))
    plan = plan_of(region)
    for batch in (9, draw.randint(2, 8)):
        x = torch.randn(batch, *size) * 20
        assert_bits(region, plan, x)
    assert any(", " in kernel for kernel in kernels(plan, torch.randn(9, *size)))


def test_profile() -> None:
    """Steps with their operators, kernels, sizes of results, and exact numbers of products."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 8, 10)
    plan = plan_of(traced(Joined(), x))
    steps = plan.profile([x])
    assert all(nanoseconds > 0 for *_, nanoseconds in steps)
    found = [(kernel, sizes, products) for _, kernel, sizes, products, _ in steps]
    assert found[0] == ("quantize", [2, 6, 8, 10], 0)
    assert found[-1] == ("dequantize", [2, 7, 8, 10], 0)
    assert ("convolution 1x1", [2, 6, 8, 10], 2 * 6 * 80 * 6) in found
    assert ("transposed convolution 2x2", [2, 6, 8, 10], 2 * 6 * 80 * 6) in found
    assert found[-2] == ("convolution 3x3", [2, 7, 8, 10], 2 * 7 * 80 * 30 * 9)
