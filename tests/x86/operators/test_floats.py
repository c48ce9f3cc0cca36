"""Values in float32 within plans, against the reference models that they are built of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.targets import X86
from tests.advice import traced_branches
from tests.plans import Called, Grid, Weighted, plan_of, traced
from tests.seeds import seeds
from tests.x86.program.test_state import mutate, restored


def assert_same(region: Any, *inputs: Tensor) -> Any:
    """Check that a plan gives the bits of the reference model, and return it."""
    with torch.no_grad():
        expected = region(*inputs)
    plan = plan_of(region)
    results = plan.run(list(inputs))
    for got, wanted in zip(
        results, expected if isinstance(expected, tuple) else [expected], strict=True
    ):
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        assert torch.equal(got, wanted), f"{(got != wanted).sum()} of {got.numel()} differ"
    return plan


def kinds_of(plan: Any) -> list[str]:
    return [texts[0] for texts, _, _ in plan.__getstate__()[0][2]]


class Sums(nn.Module):
    """Sums of codes, float32 and constants, moved in all ways, and what is quantized of them.

    Scales are powers of two: sums of codes alone are rounded once, and are exact then.
    """

    def __init__(self, seed: int, width: int) -> None:
        super().__init__()
        self.seed, self.width = seed, width
        self.grids = nn.ModuleList(
            [Grid(1 / 32, 131), Grid(1 / 16, -3, torch.int8), Grid(1 / 8, 90)]
        )
        self.position = nn.Parameter(torch.randn(width), requires_grad=False)
        self.last, self.out = Weighted(nn.Linear(width, 9), exact=True), Grid(2.0, 120)

    def moved(self, draw: random.Random, x: Tensor) -> Tensor:
        kind = draw.choice(["none", "permute", "split", "slice", "cat", "reshape", "select"])
        if kind == "permute":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        if kind == "split":
            return torch.cat(list(x.chunk(2, 1))[::-1], 1)
        if kind == "slice":
            return torch.cat([x[:, 1:], x[:, :1]], 1)
        if kind == "cat":
            return torch.cat([x[..., 3:], x[..., :3]], -1)
        if kind == "reshape":
            return x.flatten(0, 1).unflatten(0, (-1, 6))
        if kind == "select":
            return torch.cat([x.narrow(1, 1, 5), x.select(1, 0).unflatten(1, (1, -1))], 1)
        return x

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        draw = random.Random(self.seed)
        values = [x, self.grids[0](x), self.grids[1](y)]
        for _ in range(draw.randint(1, 5)):
            a, b = draw.choice(values), draw.choice([*values, self.position])
            moved = self.moved(draw, a)
            result = moved + b if draw.random() < 0.6 else moved - b
            values.append(result if draw.random() < 0.7 else self.grids[2](result))
        given = values[-1] + x
        return self.out(self.last(self.grids[2](given))), given


@traced_branches
@pytest.mark.parametrize("seed", seeds(80))
def test_sums_are_exact(seed: int) -> None:
    torch.manual_seed(seed)
    width = random.Random(seed).choice([4, 6, 17, 64, 100])
    region = traced(Sums(seed, width), *torch.randn(2, 2, 6, width))
    for batch in (2, 1, 5):
        inputs = torch.randn(2, batch, 6, width)
        assert_same(region, *inputs)


class Layers(nn.Module):
    """Linear layers with sums and layer norms in float32 between them."""

    def __init__(self, width: int, layers: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.linears = nn.ModuleList([Weighted(nn.Linear(width, width)) for _ in range(layers + 1)])
        self.ins = nn.ModuleList([Grid(0.021 + 0.001 * i, 120 + i) for i in range(layers + 1)])
        self.outs = nn.ModuleList([Grid(0.15, 110 + i) for i in range(layers + 1)])
        for norm in self.norms:
            nn.init.normal_(norm.weight, 1, 0.3)
            nn.init.normal_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear, into, out in zip(
            self.norms, self.linears[:-1], self.ins, self.outs, strict=False
        ):
            if self.norm_first:
                x = x + out(linear(into(norm(x))))
            else:
                x = norm(x + out(linear(into(x))))
        return self.outs[-1](self.linears[-1](self.ins[-1](x)))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("width", [4, 33, 64, 200])
def test_layer_norms(width: int, norm_first: bool) -> None:
    """Few codes are one step apart, and whatever is computed of them."""
    torch.manual_seed(width)
    net = Layers(width, 3, norm_first)
    region = traced(net, torch.randn(2, 7, width))
    plan = plan_of(region)
    kinds = kinds_of(plan)
    assert kinds.count("layer_norm") == 3 and kinds.count("add") == 3
    for shape in ((2, 7, width), (1, width), (5, 3, 2, width), (width,)):
        x = torch.randn(shape) * 2
        with torch.no_grad():
            expected = region(x)
        (got,) = plan.run([x])
        assert ((got - expected).abs() > 0.01).float().mean() < 0.05


class Norm(nn.Module):
    """Layer norm of a sum with a linear layer, which is exact; quantized, and as it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), Weighted(nn.Linear(width, width), True)
        self.grids = nn.ModuleList([Grid(1 / 32, 120), Grid(1 / 4, 110), Grid(0.03, 128)])
        nn.init.normal_(self.norm.weight, 1, 0.3)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(x + self.grids[1](self.linear(self.grids[0](x))))
        return y, self.grids[2](y)


@pytest.mark.parametrize("width", [1, 4, 33, 64, 200, 384])
def test_layer_norm(width: int) -> None:
    """PyTorch adds up in another order: next to a tie codes are one step apart."""
    torch.manual_seed(width)
    region = traced(Norm(width), torch.randn(2, 7, width))
    plan = plan_of(region)
    for shape in ((2, 7, width), (1, width), (5, 3, 2, width), (width,)):
        x = torch.randn(shape) * 2
        with torch.no_grad():
            floats, codes = region(x)
        got_floats, got_codes = plan.run([x])
        assert torch.allclose(got_floats, floats, rtol=1e-5, atol=2e-5)
        steps = ((got_codes - codes) / 0.03).round().abs()
        of_tie = ((floats / 0.03).abs().frac() - 0.5).abs()
        assert steps.max() <= 1 and (of_tie[steps > 0] < 1e-3).all()


def test_codes_come_out_of_layer_norm() -> None:
    """One step normalizes, keeps float32 where others read it, and quantizes."""
    torch.manual_seed(0)
    x = torch.randn(2, 7, 32)
    for norm_first in (False, True):
        plan = plan_of(traced(Layers(32, 3, norm_first), x))
        names = [row[1] for row in plan.profile([x])]
        inner = names[names.index("linear") + 1 :]
        assert inner.count("layer_norm") >= 2 and inner.count("quantize") == norm_first


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_any_number_of_threads_gives_the_same_bits(threads: Callable[[int], None]) -> None:
    torch.manual_seed(0)
    plan, x = plan_of(traced(Layers(48, 4, False), torch.randn(2, 9, 48))), torch.randn(5, 29, 48)
    threads(1)
    (expected,) = plan.run([x])
    for number in (2, 3, 8):
        threads(number)
        for _ in range(20):
            assert torch.equal(plan.run([x])[0], expected)


def test_inputs_of_any_layout() -> None:
    torch.manual_seed(0)
    plan = plan_of(traced(Layers(48, 2, True), torch.randn(2, 9, 48)))
    x = torch.randn(4, 9, 48)
    (expected,) = plan.run([x])
    for other in (
        x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        torch.randn(4, 9, 96)[..., ::2].copy_(x),
        x.double(),
        (-x)._neg_view(),
    ):
        assert torch.equal(plan.run([other])[0], expected)
    one = x[:, :1, :1].expand(4, 9, 48)
    assert torch.equal(plan.run([one])[0], plan.run([one.contiguous()])[0])
    for empty in (x[:0], x[:, :0]):
        assert plan.run([empty])[0].shape == empty.shape


def test_an_empty_value_on_one_thread(threads: Callable[[int], None]) -> None:
    """A step without items is none."""
    threads(1)

    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grid = Grid(0.05, 100)

        def forward(self, x: Tensor) -> Tensor:
            x = self.grid(x)
            return torch.cat([x[..., :0].transpose(0, 1).flatten(1).unflatten(1, (3, 0)), x], -1)

    x = torch.randn(3, 3, 5)
    assert_same(traced(Empty(), x), x)


def test_states() -> None:
    """A plan that is saved and loaded gives the same bits; a changed state is refused, or runs."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 12)
    plan = plan_of(traced(Layers(12, 2, False), x))
    (expected,) = plan.run([x])
    assert torch.equal(restored(plan.__getstate__()[0]).run([x])[0], expected)
    model = torch.jit.script(Called(plan))
    assert torch.equal(torch.jit.freeze(model.eval())(x), expected)
    assert "float32" in str(plan)
    refused, ran = mutate(plan, x, 1500)
    assert refused > 300 and ran > 30


def test_types_are_checked() -> None:
    """An operator that reads float32 in place of codes, or the reverse, is refused."""
    torch.manual_seed(0)
    lists, scales, operators = plan_of(
        traced(Layers(12, 1, False), torch.randn(2, 12))
    ).__getstate__()[0]
    values = len(scales)
    floats = [i for i in range(values) if lists[1][4 * i + 3]]
    codes = [i for i in range(values) if i not in floats]
    assert floats and codes
    tried = 0
    for number, (texts, (inputs, output, attributes), tensors) in enumerate(operators):
        if texts[0] == "add":
            continue
        for place, value in enumerate(inputs):
            made = [op[1][1][0] for op in operators[:number]]
            for other in (v for v in made if (v in floats) != (value in floats)):
                changed = [*inputs[:place], other, *inputs[place + 1 :]]
                state = [*operators]
                state[number] = (texts, [changed, output, attributes], tensors)
                with pytest.raises(RuntimeError, match="operands and a result of these types"):
                    restored((lists, scales, state))
                tried += 1
    assert tried > 4


# --- Regions.


def encoder(norm_first: bool, layers: int = 3) -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def converted(net: nn.Module, data: list[Tensor]) -> Any:
    with torch.no_grad():
        model = torch.jit.trace(net, data[0])
    prepared = jit_passes.prepare(model, mode="static", target="x86")
    jit_passes.calibrate(prepared, data)
    return model, jit_passes.convert(prepared)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_is_one_region(norm_first: bool) -> None:
    """With what stands in float at its rim."""
    torch.manual_seed(0)
    net = encoder(norm_first)
    data = [torch.randn(4, 10, 64) for _ in range(4)]
    model, reference = converted(net, data)
    (region,) = jit_passes.partition(reference, target="x86").regions
    assert sum("layer_norm" in name for name in region.operators) == 6
    assert not jit_passes.partition(reference, target="x86").refused
    (inspected,) = jit_passes.inspect(model, mode="static", target="x86").regions
    assert [name for name in inspected if "layer_norm" in name or ":add" in name] == [
        name for name in region.operators if "layer_norm" in name or ":add" in name
    ]
    lowered = jit_passes.lower(reference, target="x86")
    assert str(lowered.graph).count("prim::CallMethod") == 1
    for batch in (1, 4, 7):
        x = torch.randn(batch, 10, 64)
        with torch.no_grad():
            noise = (lowered(x) - reference(x)).square().sum()
            assert noise / reference(x).square().sum() < 1e-5
            assert torch.equal(lowered(x), lowered(x))


class Rim(nn.Module):
    """Layer norms in front of, behind and between linear layers, one of them read by a cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(4)])
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        z = self.norms[1](y + self.one(y))
        w = self.two(z) + torch.cos(self.norms[2](z))
        return self.norms[3](w)


def test_no_path_leads_over_what_is_outside() -> None:
    torch.manual_seed(0)
    _, reference = converted(Rim().eval(), [torch.randn(4, 16) for _ in range(3)])
    found = jit_passes.partition(reference, target="x86")
    assert [r.operators for r in found.regions] == [
        (
            *("norms.0:layer_norm", "one:linear", "add"),
            *("norms.1:layer_norm", "two:linear", "norms.2:layer_norm"),
        )
    ]
    assert [value.name for value in found.regions[0].outputs] == [
        "two:linear",
        "norms.2:layer_norm",
    ]
    x = torch.randn(300, 16)
    with torch.no_grad():
        lowered = jit_passes.lower(reference, target="x86")
        apart = (lowered(x) - reference(x)).abs().amax(1)
    # A code that is a step apart, in the middle between two, is seen in all of its row.
    assert apart.max() < 0.1 and (apart > 1e-5).float().mean() < 0.02


class Stage(nn.Module):
    """A block of ConvNeXt whose residual is float, with a pool and a norm in float behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 12, 2, 2), nn.LayerNorm(12)
        self.depthwise, self.norm = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.LayerNorm(12)
        self.mlp = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 12))
        self.factor = nn.Parameter(torch.rand(12, 1, 1))
        self.last, self.head = nn.LayerNorm(12), nn.Linear(12, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        x = x + self.factor * y.permute(0, 3, 1, 2)
        x = F.adaptive_avg_pool2d(x, 1).permute(0, 2, 3, 1)
        return self.head(self.last(x).permute(0, 3, 1, 2).flatten(1))


@pytest.mark.parametrize("integer", [False, True])
def test_images(integer: bool) -> None:
    torch.manual_seed(0)
    net, data = Stage().eval(), [torch.randn(2, 3, 12, 16) for _ in range(4)]
    with torch.no_grad():
        model = torch.jit.trace(net, data[0])
        reference = jit_passes.quantize_script(model, data, mode="static", target="reference")
        lowered = jit_passes.quantize_script(
            model, data, mode="static", target=X86(integer_layer_norm=integer)
        )
    assert str(lowered.graph).count("prim::CallMethod") == 1
    assert "layer_norm" not in str(lowered.graph)
    for size in ((12, 16), (5, 9), (31, 8)):
        x = torch.randn(3, 3, *size)
        with torch.no_grad():
            signal, noise = net(x).square().sum(), (net(x) - lowered(x)).square().sum()
            of_reference = (net(x) - reference(x)).square().sum()
        assert signal > 30 * noise and (integer or noise < 2 * of_reference)
