"""Plans against the reference models that they are built of."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advice import even_kernels
from tests.plans import Grid, Weighted, last_step, plan_of, reference, traced
from tests.seeds import seeds
from tests.x86.program.test_state import mutate


def assert_steps(region: Any, inputs: list[Tensor], steps: float) -> None:
    """Check that no code of the result is further than that from the reference model's."""
    with torch.no_grad():
        expected = region(*inputs)
    (got,) = plan_of(region).run(inputs)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    distance = (
        (got - expected).abs().max() / last_step(region) if got.numel() else torch.tensor(0.0)
    )
    assert distance < steps + 0.01, f"{distance:.2f} steps"


def assert_equal(region: Any, *inputs: Tensor) -> None:
    with torch.no_grad():
        expected = region(*inputs)
    (got,) = plan_of(region).run(list(inputs))
    assert torch.equal(got, expected), f"{(got != expected).sum()} of {got.numel()} differ"


class Weights(nn.Module):
    """Scales are powers of two, and sums below 2^24: float32 has all numbers exactly."""

    def __init__(self, layer: nn.Module, draw: random.Random) -> None:
        super().__init__()
        dtype = draw.choice([torch.uint8, torch.int8])
        self.x = Grid(0.5, draw.randint(-20, 20) + (128 if dtype == torch.uint8 else 0), dtype)
        self.layer = Weighted(layer, exact=True)
        self.y = Grid(2.0 ** draw.randint(-1, 2), draw.randint(60, 200))
        self.clip = draw.choice([nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-3.3, 9.1)])

    def forward(self, x: Tensor) -> Tensor:
        return self.y(self.clip(self.layer(self.x(x))))


@even_kernels
@pytest.mark.parametrize("seed", seeds(60))
def test_convolutions_are_exact(seed: int) -> None:
    """Any window, stride, padding, dilation and groups in one to three dimensions."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    dims = draw.choice([1, 2, 2, 2, 3])
    groups = draw.choice([1, 1, 1, 2, 3])
    inputs, outputs = groups * draw.randint(1, 24), groups * draw.randint(1, 40)
    if draw.random() < 0.3:
        groups = inputs = draw.randint(1, 70)
        outputs = inputs * draw.choice([1, 1, 2])

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, high) for _ in range(dims))

    kernel, dilation = each(1, 5 if dims < 3 else 3), each(1, 2)
    padding: Any = draw.choice(["same", "valid", each(0, 3), each(0, 3)])
    stride = (1,) * dims if padding == "same" else each(1, 3)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](
        inputs, outputs, kernel, bias=draw.random() < 0.7, **options
    )
    windows = zip(dilation, kernel, strict=True)
    size = tuple(d * (k - 1) + draw.randint(1, 17 if dims < 3 else 6) for d, k in windows)
    x = torch.randn(draw.randint(1, 3), inputs, *size) * 40
    region = traced(Weights(layer, draw), x)
    assert_equal(region, x)
    assert_equal(region, torch.randn(inputs, *(n + 1 for n in size)) * 40)


@pytest.mark.parametrize("seed", range(12))
def test_linear_is_exact(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    inputs, outputs = draw.randint(1, 300), draw.randint(1, 100)
    region = traced(Weights(nn.Linear(inputs, outputs), draw), torch.randn(2, inputs))
    for shape in [(inputs,), (5, inputs), (2, 17, inputs), (2, 3, 4, inputs)]:
        assert_equal(region, torch.randn(shape) * 40)


class Binary(nn.Module):
    def __init__(self, operator: str, a: Grid, b: Grid, y: Grid) -> None:
        super().__init__()
        self.operator, self.a, self.b, self.y = operator, a, b, y

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.y(getattr(torch, self.operator)(self.a(a), self.b(b)))


SHAPES = [
    ((2, 5, 7, 6), (2, 5, 7, 6)),
    ((2, 5, 7, 6), (2, 5, 1, 1)),
    ((1, 5, 7, 6), (2, 1, 7, 1)),
    ((2, 5, 7, 6), (6,)),
    ((3, 1), (2, 3, 70)),
    ((197, 64), (197, 64)),
    ((4,), (4,)),
    ((2, 3, 4, 5, 6), (3, 1, 5, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("operator", ["add", "sub", "mul"])
def test_operators_of_two_tensors(operator: str, shapes: tuple[Any, Any]) -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(shape) * 3 for shape in shapes)
    exact = Binary(operator, Grid(0.25, 130), Grid(0.125, 3, torch.int8), Grid(0.5, 117))
    assert_equal(traced(exact, a, b), a, b)
    region = traced(Binary(operator, Grid(0.031, 130), Grid(0.07, 99), Grid(0.053, 117)), a, b)
    assert_steps(region, [a, b], 1)


class Unary(nn.Module):
    """Between the grids, or on one grid alone."""

    def __init__(self, operator: Any, y: Grid | None, x: Grid | None = None) -> None:
        super().__init__()
        self.x = x or Grid(0.031, 131)
        self.operator, self.y = operator, y or self.x

    def forward(self, x: Tensor) -> Tensor:
        return self.y(self.operator(self.x(x)))


AVERAGES = {
    "avg_pool1d": (nn.AvgPool1d(3, 2, 1), 3),
    "avg_pool1d_ceil": (nn.AvgPool1d(3, 2, 1, ceil_mode=True, count_include_pad=False), 3),
    "avg_pool2d": (nn.AvgPool2d(3, 2, 1), 4),
    "avg_pool2d_ceil": (
        nn.AvgPool2d((2, 3), 2, (1, 0), ceil_mode=True, count_include_pad=False),
        4,
    ),
    "avg_pool2d_divisor": (nn.AvgPool2d(2, divisor_override=3), 4),
    "avg_pool3d": (nn.AvgPool3d(2, 2, 1), 5),
    "adaptive1": (nn.AdaptiveAvgPool2d(1), 4),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 5)), 4),
    "adaptive1d": (nn.AdaptiveAvgPool1d(4), 3),
    "mean_space": (lambda x: x.mean((2, 3)), 4),
    "mean_space_kept": (lambda x: x.mean((-1, -2), keepdim=True), 4),
    "mean_tokens": (lambda x: x.mean(1), 3),
    "mean_last": (lambda x: x.mean(-1), 3),
    "mean_channels": (lambda x: x.mean(1, keepdim=True), 4),
    "mean_two": (lambda x: x.mean((1, 3)), 4),
    "mean_batch": (lambda x: x.mean(0), 3),
    "mean_all": (lambda x: x.mean((0, 1, 2)), 3),
}


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_batch_norms(rank: int) -> None:
    """Of any sign, and none."""
    torch.manual_seed(0)
    norm = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 2](6)
    norm.weight.data = torch.tensor([1.0, -0.7, 0.0, 2.0, 0.3, -1.5])
    for numbers in (norm.bias.data, norm.running_mean):
        numbers.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = torch.randn((3, 6, 9, 4, 5)[:rank])
    assert_steps(traced(Unary(nn.Sequential(norm, nn.ReLU()), Grid(0.021, 60)), x), [x], 1)


@pytest.mark.parametrize("slopes", [1, 6])
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_prelu(rank: int, slopes: int) -> None:
    """Slopes of any sign, and none; on codes, and in float32."""
    torch.manual_seed(0)
    prelu = nn.PReLU(slopes)
    prelu.weight.data = torch.tensor([-0.7, 0.25, 0.0, 2.0, 0.3, -1.5])[-slopes:]
    x = torch.randn((3, 6, 9, 4, 5)[:rank])
    for out in (Grid(0.021, 60), None):
        assert_steps(traced(Unary(prelu, out), x), [x], 1)
    region = traced(nn.Sequential(Grid(0.031, 131), nn.Identity(), nn.Tanh(), prelu), x)
    bad = x.clone()
    bad.view(-1)[7] = torch.nan
    for given in (x, bad):
        found = plan_of(region).run([given])[0]
        with torch.no_grad():
            assert torch.allclose(found, region(given), rtol=1e-6, atol=1e-7, equal_nan=True)
    refused, ran = mutate(plan_of(region), x, 200)
    assert refused and ran
    with pytest.raises(RuntimeError, match=r"has 6 slopes, and got the shape 2 5"):
        plan_of(traced(Unary(nn.PReLU(6), None), x)).run([torch.randn(2, 5, *x.shape[2:])])


@pytest.mark.parametrize("name", AVERAGES)
def test_averages(name: str) -> None:
    operator, rank = AVERAGES[name]
    torch.manual_seed(0)
    x = torch.randn((2, 6, 9, 11, 8)[:rank])
    assert_steps(traced(Unary(operator, Grid(0.0131, 120)), x), [x], 1)
    assert_steps(traced(Unary(operator, None), x), [x], 1)


MOVES = {
    "max_pool1d": (nn.MaxPool1d(3, 2, 1), 3),
    "max_pool2d": (nn.MaxPool2d(3, 2, 1), 4),
    "max_pool2d_ceil": (nn.MaxPool2d((2, 3), (3, 2), (1, 0), (2, 1), ceil_mode=True), 4),
    "max_pool3d": (nn.MaxPool3d(2, padding=1), 5),
    "adaptive_max_pool1d": (nn.AdaptiveMaxPool1d(4), 3),
    "adaptive_max_pool2d": (nn.AdaptiveMaxPool2d((9, 4)), 4),
    "adaptive_max_pool2d_of_one": (nn.AdaptiveMaxPool2d(1), 4),
    "adaptive_max_pool3d": (nn.AdaptiveMaxPool3d((2, 7, 10)), 5),
    "hardswish_of_adaptive": (lambda x: F.hardswish(F.adaptive_max_pool2d(x, 3)), 4),
    "relu": (torch.relu, 4),
    "sigmoid": (torch.sigmoid, 4),
    "hardswish": (F.hardswish, 3),
    "hardswish_of_pool": (lambda x: F.hardswish(F.max_pool2d(x, 3, 2, 1)), 4),
    "relu6_of_pad": (lambda x: F.relu6(F.pad(x, (1, 0, 2, 3))), 4),
    "silu_of_slice": (lambda x: F.silu(x.flatten(2)[:, 1:4]), 4),
    "chain": (lambda x: F.gelu(x * 2 + 1), 4),
    "flatten": (lambda x: x.flatten(1), 4),
    "flatten_space": (lambda x: x.flatten(2), 4),
    "flatten_all": (lambda x: x.flatten(), 3),
    "view": (lambda x: x.view(2, -1), 4),
    "reshape": (lambda x: x.reshape(2, 3, 2, -1), 4),
    "permute": (lambda x: x.permute(0, 2, 3, 1), 4),
    "permute_all": (lambda x: x.permute(3, 1, 0, 2), 4),
    "swap": (lambda x: x.transpose(2, 3), 4),
    "swap_and_clone": (lambda x: x.transpose(2, 3).contiguous(), 4),
    "swap_of_volume": (lambda x: x.transpose(2, 4), 5),
    "pad": (lambda x: F.pad(x, (1, 0, 2, 3)), 4),
    "pad_channels": (lambda x: F.pad(x, (0, 0, 0, 1, 2, 0)), 4),
    "resize1d": (lambda x: F.interpolate(x, size=17), 3),
    "resize": (lambda x: F.interpolate(x, scale_factor=(2.0, 1.7)), 4),
    "resize_down": (lambda x: F.interpolate(x, size=(4, 7)), 4),
    "cat_channels": (lambda x: torch.cat([x, x.relu(), x], 1), 4),
    "cat_batch": (lambda x: torch.cat([x, x.relu()], 0), 4),
    "cat_width": (lambda x: torch.cat([x, x.relu()], -1), 4),
    "cat_then_flatten": (lambda x: torch.cat([x.relu(), F.max_pool2d(x, 1)], 1).flatten(1), 4),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_codes_is_exact(name: str) -> None:
    operator, rank = MOVES[name]
    torch.manual_seed(0)
    x = torch.randn((2, 6, 9, 11, 8)[:rank])
    for y in (None, Grid(0.027, 77), Grid(0.05, -3, torch.int8)):
        assert_equal(traced(Unary(operator, y), x), x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_windows_without_a_value(dtype: torch.dtype) -> None:
    """Dilation steps over the image: the maximum of nothing is the lowest code."""

    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grid = Grid(0.5, 7 if dtype == torch.uint8 else -3, dtype)

        def forward(self, x: Tensor) -> Tensor:
            return self.grid(F.max_pool2d(torch.relu(self.grid(x)), 2, 1, 1, 5))

    x = torch.randn(1, 3, 4, 4) * 30
    region = traced(Pool(), x)
    assert region(x).min() < 0
    assert_equal(region, x)


class Dense(nn.Module):
    """Convolutions that read slices of concatenations, some of them nested; all on one grid."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid, self.last = grid, Grid(2.0, 99)

        def conv(inputs: int, outputs: int, kernel: int, groups: int = 1) -> Weighted:
            layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)
            return Weighted(layer, exact=True)

        self.one, self.two, self.three = conv(3, 5, 3), conv(5, 8, 5), conv(13, 4, 3)
        self.deep, self.mix, self.end = conv(8, 8, 3, 8), conv(17, 6, 1), conv(23, 3, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.grid(x)
        one = self.grid(self.one(x))
        two = self.grid(self.two(one))
        inner = torch.cat([one, two], 1)
        three = self.grid(self.three(inner))
        outer = torch.cat([inner, three], 1)
        mixed = self.grid(self.mix(outer))
        deep = F.max_pool2d(self.grid(self.deep(two)), 3, 1, 1)
        end = self.last(self.end(torch.cat([outer, mixed], 1)))
        return end, inner, deep, one.flatten(1), two.permute(0, 2, 3, 1)


def test_slices_of_concatenations() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 11, 14) * 30
    net = Dense(Grid(0.5, 131))
    region = traced(net, x)
    for size in ((11, 14), (5, 21)):
        x = torch.randn(2, 3, *size) * 30
        got, expected = plan_of(region).run([x]), region(x)
        assert [g.shape for g in got] == [e.shape for e in expected]
        assert all(torch.equal(g, e) for g, e in zip(got, expected, strict=True))


class Residual(nn.Module):
    """A residual block, an inverted one, a concatenation with a shortcut, a head."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.one = nn.Conv2d(width, width, 3, 1, 1)
        self.two = nn.Conv2d(width, width, 3, 1, 1)
        self.expand = nn.Conv2d(width, 3 * width, 1)
        self.depthwise = nn.Conv2d(3 * width, 3 * width, 5, 2, 2, groups=3 * width)
        self.project = nn.Conv2d(3 * width, width, 1)
        self.squeeze = nn.Conv2d(width, width, 1)
        self.up = nn.Conv2d(2 * width, width, (1, 3), padding=(0, 1))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        x = F.relu(self.two(F.relu(self.one(x))) + x)
        y = F.relu6(self.depthwise(F.hardswish(self.expand(x))))
        y = self.project(y)
        y = y * torch.sigmoid(self.squeeze(F.adaptive_avg_pool2d(y, 1)))
        y = F.interpolate(y, scale_factor=2.0)
        y = F.leaky_relu(self.up(torch.cat([x, y], 1)), 0.1)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class Sequence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(4, width, 5, padding="same")
        self.deep = nn.Conv1d(width, width, 3, padding=2, dilation=2, groups=width)
        self.mix = nn.Linear(width, 2 * width)
        self.back = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.embed(x))
        x = x + torch.tanh(self.deep(x))
        x = x.permute(0, 2, 1)
        return self.head(self.back(F.gelu(self.mix(x))).mean(1))


@pytest.mark.parametrize("seed", range(6))
def test_networks(seed: int) -> None:
    """A rounded tie may go the other way in each layer; the result is next to the reference's."""
    torch.manual_seed(seed)
    net, shape = Residual(seed * 5 + 8, 10), (2, 3, 32 + 8 * seed, 40)
    if seed % 2:
        net, shape = Sequence(seed * 3 + 8), (2, 4, 30 + seed)
    region = reference(net.eval(), [torch.randn(shape) for _ in range(4)])
    assert_steps(region, [torch.randn(shape)], 1)
    assert_steps(region, [torch.randn(5, *shape[1:])], 1)
