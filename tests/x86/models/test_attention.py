"""Plans with products of activations, softmax and layer norm, against their reference models."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.targets import X86
from tests.advice import traced_branches
from tests.compare import sqnr
from tests.plans import Grid, plan_of, plans_in, traced
from tests.seeds import seeds
from tests.x86.models.test_plan import assert_equal, assert_steps
from tests.x86.operators.test_floats import kinds_of


class Product(nn.Module):
    """Scales are powers of two, and sums below 2^24: float32 has all numbers exactly."""

    def __init__(self, operator: str, draw: random.Random) -> None:
        super().__init__()
        self.operator = operator
        self.a, self.b = Grid(0.25, draw.randint(0, 255)), Grid(0.5, draw.randint(0, 255))
        self.y = Grid(2.0 ** draw.randint(2, 5), draw.randint(60, 200))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.y(getattr(torch, self.operator)(self.a(a), self.b(b)))


SHAPES = [
    ((5, 7), (7, 3)),
    ((15, 64), (64, 33)),
    ((2, 5, 7), (2, 7, 20)),
    ((2, 3, 29, 16), (2, 3, 16, 29)),
    ((2, 1, 4, 9), (3, 9, 5)),
    ((9,), (9, 5)),
    ((4, 9), (9,)),
    ((2, 3, 4, 9), (9,)),
    ((9,), (2, 3, 9, 5)),
    ((6, 2, 3, 4, 5), (3, 5, 4)),
    ((3, 4), (2, 2, 4, 1)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_are_exact(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Matrices, batches that broadcast, and vectors."""
    torch.manual_seed(0)
    a, b = (torch.randn(shape) * 20 for shape in shapes)
    region = traced(Product("matmul", random.Random(sum(shapes[0]))), a, b)
    assert_equal(region, a, b)


def test_batched_products_are_strict() -> None:
    torch.manual_seed(1)
    a, b = torch.randn(3, 20, 31) * 20, torch.randn(3, 31, 40) * 20
    region = traced(Product("bmm", random.Random(0)), a, b)
    assert_equal(region, a, b)
    plan = plan_of(region)
    for left, right in ((a[:1], b), (a[0], b[0]), (a, b[:2])):
        with pytest.raises(RuntimeError, match="are no batches of one size"):
            plan.run([left, right])


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((3, 4), (5, 6), "whose inner axes differ"),
        ((2, 3, 4), (3, 4, 5), "do not broadcast"),
        ((), (3,), "takes no numbers"),
        ((1, 16449), (16449, 1), "sums of 16449 products, which int32 does not hold"),
    ],
)
def test_products_of_other_shapes(a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    region = traced(Product("matmul", random.Random(0)), torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(RuntimeError, match=message):
        plan_of(region).run([torch.ones(a), torch.ones(b)])


class Scores(nn.Module):
    """Products of parts of one value, which are split into heads in some way."""

    def __init__(self, way: str, heads: int, scale: bool) -> None:
        super().__init__()
        self.way, self.heads, self.scale = way, heads, scale
        self.x, self.y, self.z = Grid(0.25, 121), Grid(4.0, 131), Grid(2.0, 131)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.way == "chunk":
            parts = [p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in x.chunk(3, 2)]
            return parts[0], parts[1], parts[2]
        if self.way == "select":
            whole = x.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            return whole.select(0, 0), whole.select(0, 1), whole.select(0, 2)
        if self.way == "interleaved":  # heads are innermost: no view will do
            whole = x.unflatten(2, (-1, 3, self.heads)).permute(3, 0, 4, 1, 2)
            return whole.select(0, 0), whole.select(0, 1), whole.select(0, 2)
        parts = [
            p.unflatten(2, (self.heads, -1)).permute(0, 2, 1, 3) for p in x.split(8 * self.heads, 2)
        ]
        return parts[0], parts[1], parts[2]

    def forward(self, x: Tensor) -> Tensor:
        q, k, _ = self.split(self.x(x))
        scores = self.y(q @ k.transpose(-2, -1))
        return self.z(scores * 0.5) if self.scale else scores


class Mixed(Scores):
    """As many tokens as a head is wide, and heads that come together again."""

    def forward(self, x: Tensor) -> Tensor:
        q, _, v = self.split(self.x(x))
        y = self.y(q @ v)
        return y.transpose(1, 2).flatten(2)


WAYS = ["chunk", "select", "interleaved", "split"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("scale", [False, True])
def test_scores_are_exact(way: str, heads: int, scale: bool) -> None:
    """For any number of tokens and batches, whatever rearranges the operands."""
    torch.manual_seed(heads)
    region = traced(Scores(way, heads, scale), torch.randn(2, 5, 3 * heads * 8) * 10)
    for batch, tokens in ((2, 5), (1, 33), (3, 1)):
        assert_equal(region, torch.randn(batch, tokens, 3 * heads * 8) * 10)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_heads_come_together(way: str, heads: int) -> None:
    torch.manual_seed(heads)
    x = torch.randn(2, 8, 3 * heads * 8) * 10
    assert_equal(traced(Mixed(way, heads, False), x), x)


def test_a_product_of_a_value_that_others_read() -> None:
    """The transposition is read by a product and returned: it is a copy."""

    class Shared(Scores):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
            q, k, _ = self.split(self.x(x))
            y = self.y(q @ k.transpose(-2, -1))
            return y, k, y.transpose(1, 2)

    torch.manual_seed(0)
    x = torch.randn(2, 7, 48) * 10
    region = traced(Shared("chunk", 2, False), x)
    with torch.no_grad():
        expected = region(x)
    for got, wanted in zip(plan_of(region).run([x]), expected, strict=True):
        assert torch.equal(got, wanted)


class Chain(nn.Module):
    """Products of whatever was computed before, rearranged, of which any may be results too."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.seed, self.x = seed, Grid(0.25, 121)
        self.grids = nn.ModuleList([Grid(2.0 ** draw.randint(4, 9), 131) for _ in range(3)])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        draw = random.Random(self.seed)
        values = [self.x(x)]
        for grid in self.grids:
            a, b = (self.moved(draw, draw.choice(values)) for _ in range(2))
            if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
                b = a.transpose(-1, -2)
            y = grid(a @ b)
            values.append(torch.relu(y) if draw.random() < 0.2 else y)
            values.append(self.moved(draw, values[-1]))
        return tuple(draw.sample(values[1:], 2))

    @staticmethod
    def moved(draw: random.Random, x: Tensor) -> Tensor:
        for _ in range(draw.randint(0, 3)):
            axis = draw.randrange(x.dim())
            size = int(x.shape[axis])
            kind = draw.choice(["transpose", "permute", "unflatten", "chunk", "slice", "select"])
            if kind == "transpose":
                x = x.transpose(axis, draw.randrange(x.dim()))
            elif kind == "permute":
                x = x.permute(draw.sample(range(x.dim()), x.dim()))
            elif kind == "unflatten" and x.dim() < 5 and size % 2 == 0:
                x = x.unflatten(axis, draw.choice([(2, -1), (-1, 2)]))
            elif kind == "chunk" and size > 3:
                x = draw.choice(x.chunk(2, axis))
            elif kind == "slice" and size > 4:
                x = x[(slice(None),) * axis + (slice(1, -1, draw.choice([1, 2])),)]
            elif kind == "select" and x.dim() > 3:
                x = x.select(axis, draw.randrange(size))
        return x


@traced_branches
@pytest.mark.parametrize("seed", seeds(60))
def test_chains_of_products_are_exact(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(2, 3, 8, 12) * 10
    region = traced(Chain(seed), x)
    with torch.no_grad():
        expected = region(x)
    for got, wanted in zip(plan_of(region).run([x]), expected, strict=True):
        assert torch.equal(got, wanted)


class Between(nn.Module):
    """A layer between two grids."""

    def __init__(self, layer: nn.Module, x: Grid, y: Grid) -> None:
        super().__init__()
        self.layer, self.x, self.y = layer, x, y

    def forward(self, x: Tensor) -> Tensor:
        return self.y(self.layer(self.x(x)))


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 4, 130), (2, 65, 3, 4), (1, 1, 1)], ids=str)
def test_softmax(shape: tuple[int, ...], axis: int) -> None:
    torch.manual_seed(axis)
    grids = Grid(0.043, 117), Grid(1 / 256, 0)
    region = traced(Between(nn.Softmax(axis), *grids), torch.randn(shape))
    for scale in (0.5, 2.0, 20.0):
        assert_steps(region, [torch.randn(shape) * scale], 1)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("channels", [1, 7, 64, 100, 384])
def test_layer_norm(channels: int, affine: bool) -> None:
    torch.manual_seed(channels)
    layer = nn.LayerNorm(channels, elementwise_affine=affine)
    if affine:
        nn.init.normal_(layer.weight, 1, 0.5)
        nn.init.normal_(layer.bias)
    region = traced(Between(layer, Grid(0.031, 99), Grid(0.025, 128)), torch.randn(2, channels))
    for shape in ((channels,), (3, channels), (2, 5, channels), (2, 3, 4, channels)):
        for scale in (0.01, 0.3, 2.0):
            assert_steps(region, [torch.randn(shape) * scale + 0.5], 1)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_layer_norm_of_images() -> None:
    torch.manual_seed(0)
    region = traced(
        Between(ChannelNorm(20), Grid(0.03, 99), Grid(0.025, 128)), torch.randn(2, 20, 3, 3)
    )
    assert_steps(region, [torch.randn(3, 20, 5, 4)], 1)


class LastAxes(nn.Module):
    """Layer norm over rows and columns, between convolutions."""

    def __init__(self, affine: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1)
        self.norm = nn.LayerNorm((4, 6), elementwise_affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_of_rows_and_columns(affine: bool) -> None:
    """In one plan, which takes the sizes of the norm alone: 6 times 4 are others than 4 times 6."""
    torch.manual_seed(0)
    net, x = LastAxes(affine).eval(), torch.randn(2, 3, 4, 6)
    found = jit_passes.quantize_script(torch.jit.script(net), [x], mode="static", target="x86")
    (plan,) = plans_in(found)
    assert "layer_norm" in kinds_of(plan)
    with torch.no_grad():
        assert sqnr(net(x), found(x)) > 28
        for sizes in ((6, 4), (2, 12), (12, 2), (24, 1), (1, 24), (8, 6), (4, 12)):
            with pytest.raises(RuntimeError, match="got the shape"):
                found(torch.randn(2, 3, *sizes))


class Encoder(nn.Module):
    """One layer of a transformer, norm first or behind."""

    def __init__(self, width: int, heads: int, first: bool) -> None:
        super().__init__()
        self.heads, self.first, self.scale = heads, first, (width // heads) ** -0.5
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.head = nn.Linear(width, 10)

    def attend(self, x: Tensor) -> Tensor:
        parts = [p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, 2)]
        weights = torch.softmax(parts[0] @ parts[1].transpose(-2, -1) * self.scale, -1)
        return self.out((weights @ parts[2]).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = x + self.attend(self.norms[0](x))
            x = x + self.mlp(self.norms[1](x))
        else:
            x = self.norms[0](x + self.attend(x))
            x = self.norms[1](x + self.mlp(x))
        return self.head(x.mean(1))


@pytest.mark.parametrize("first", [False, True])
def test_an_encoder_is_one_region(first: bool) -> None:
    torch.manual_seed(0)
    net = Encoder(32, 4, first).eval()
    batches = [torch.randn(4, 9, 32) for _ in range(4)]
    model = torch.jit.trace(net, batches[0])
    target = X86(integer_layer_norm=True)
    lowered = jit_passes.quantize_script(model, batches, mode="static", target=target)
    assert str(lowered.graph).count("prim::CallMethod") == 1
    assert str(lowered.graph).count("aten::") == 0
    float_result = net(batches[0])
    error = (lowered(batches[0]) - float_result).square().mean() / float_result.square().mean()
    assert error < 10 ** (-2.0)
    for batch, tokens in ((1, 9), (3, 20)):
        assert lowered(torch.randn(batch, tokens, 32)).shape == (batch, 10)


class ClassToken(nn.Module):
    """A token that is much smaller than the others, as vision transformers put in front."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.001)
        self.positions = nn.Parameter(torch.randn(1, 10, width) * 0.001)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), self.layers[0](x)], 1)
        tokens = tokens + self.positions
        tokens = tokens + self.layers[1](self.norms[0](tokens))
        return self.layers[2](self.norms[1](tokens))


def test_small_rows_keep_their_digits() -> None:
    """Layer norm is in float unless asked for: one scale has no codes for a token that small."""
    torch.manual_seed(0)
    net = ClassToken(32).eval()
    batches = [torch.randn(4, 9, 32) for _ in range(4)]
    with torch.no_grad():
        model = torch.jit.trace(net, batches[0])
        expected = net(batches[0])[:, 0]
        error = {}
        for integer in (False, True):
            target = X86(integer_layer_norm=integer)
            lowered = jit_passes.quantize_script(model, batches, mode="static", target=target)
            difference = lowered(batches[0])[:, 0] - expected
            error[integer] = float(difference.square().mean() / expected.square().mean())
    assert error[False] < 10 ** (-2.0) and error[True] > 10 ** (-0.5), error
