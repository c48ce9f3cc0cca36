"""Layers that read codes and give float32 in plans, against a slow form in float64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, Weighted, plan_of, plans_in, traced
from tests.x86.operators.test_dynamic import BEHIND_OTHERS, EXACT, FLIPPED, TOLERANCE, close
from tests.x86.operators.test_dynamic_convolution import draw_layer
from tests.x86.operators.test_floats import kinds_of
from tests.x86.program.test_state import mutate, restored

SCALE, ZERO = 0.03, 77


class Coded(nn.Module):
    """A layer on int8 weights that reads codes, and whose result is float32."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.grid, self.layer = Grid(SCALE, ZERO), Weighted(layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.grid(x))

    def slow(self, x: Tensor) -> Tensor:
        """Return the result in float64, of integers that are exact there."""
        layer: Any = self.layer.layer
        scale = float(torch.tensor(SCALE))
        codes = (self.grid(x).double() / scale).round()
        weight, scales = self.layer.codes.double(), self.layer.scales.float().double()
        if isinstance(layer, nn.Linear):
            return F.linear(codes, weight) * (scale * scales) + (
                0 if layer.bias is None else layer.bias.double()
            )
        options = (layer.stride, layer.padding, layer.dilation, layer.groups)
        sums = getattr(F, f"conv{len(layer.kernel_size)}d")(codes, weight, None, *options)
        trailing = (-1, *(1,) * len(layer.kernel_size))
        result = sums * (scale * scales).reshape(trailing)
        return result if layer.bias is None else result + layer.bias.double().reshape(trailing)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (64, 32), (100, 33), (384, 200)])
def test_linear(sizes: tuple[int, int]) -> None:
    """Inputs of any rank and layout, of one row, and of none."""
    torch.manual_seed(sizes[0])
    net = Coded(nn.Linear(*sizes, bias=sizes[0] != 5))
    width = sizes[0]
    plan = plan_of(traced(net, torch.randn(2, width)))
    assert kinds_of(plan) == ["input", "quantize", "linear_to_floats"]
    for shape in ((width,), (1, width), (29, width), (3, 5, width), (2, 3, 4, width)):
        x = 2 * torch.randn(shape) + 1
        wide = torch.randn(*shape[:-1], 2 * width)
        for given in (x, wide[..., ::2].copy_(x), x.movedim(-1, 0).contiguous().movedim(0, -1)):
            (found,) = plan.run([given])
            close(found, net.slow(x), EXACT)
    assert plan.run([torch.randn(0, width)])[0].shape == (0, sizes[1])


@pytest.mark.parametrize("seed", range(16))
def test_convolution(seed: int) -> None:
    """Windows that reach beyond the image see zeros, whose code is the zero point."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    dims = draw.choice([1, 2, 2, 3])
    net = Coded(draw_layer(draw, dims))
    channels = net.layer.layer.in_channels
    size = [draw.randint(7, 12) for _ in range(dims)]
    plan = plan_of(traced(net, torch.randn(2, channels, *size)))
    assert kinds_of(plan) == ["input", "quantize", "convolution_to_floats"]
    for batch in ((2,), (1,), ()):
        x = 2 * torch.randn(*batch, channels, *size) + 1
        last = x.movedim(-dims - 1, -1).contiguous().movedim(-1, -dims - 1)
        for given in (x, last):
            (found,) = plan.run([given])
            close(found, net.slow(x), EXACT)


class Behind(nn.Module):
    """A layer, a function of its result in float32, perhaps a sum, and codes."""

    def __init__(self, layer: nn.Module, function: Any, added: bool) -> None:
        super().__init__()
        self.coded, self.function, self.added = Coded(layer), function, added
        self.grid = Grid(0.1, 3)

    def forward(self, x: Tensor) -> Tensor:
        other = torch.square(self.coded(x))
        result = self.function(self.coded(x))
        return self.grid(result + other if self.added else result)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("function", [F.silu, F.hardswish, F.gelu, F.mish])
@pytest.mark.parametrize("seed", range(4))
def test_codes_behind_a_function(seed: int, function: Any, added: bool) -> None:
    """One step, in which nothing is rounded but its result."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    layer = draw_layer(draw, draw.choice([1, 2])) if seed else nn.Linear(24, 9)
    x = torch.randn(2, 24) if not seed else torch.randn(2, layer.in_channels, 9, 8)
    x = x[..., 0] if seed and len(layer.kernel_size) == 1 else x
    net = Behind(layer, function, added)
    plan = plan_of(traced(net, x))
    *_, step, last = (row[1] for row in plan.profile([x]))
    assert step.endswith(" + add" * added + " + quantize") and last == "dequantize"
    for given in (x, x[:1]):
        assert sqnr(net(given), plan.run([given])[0]) > FLIPPED


class Padded(nn.Module):
    """A padding in front of a convolution becomes part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.grid, self.layer = Grid(SCALE, ZERO), Weighted(nn.Conv2d(5, 7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.pad(self.grid(x), (2, 0, 1, 3)))


def test_padding() -> None:
    torch.manual_seed(0)
    net, x = Padded(), torch.randn(2, 5, 9, 8)
    plan = plan_of(traced(net, x))
    assert kinds_of(plan) == ["input", "quantize", "convolution_to_floats"]
    close(plan.run([x])[0], net(x), 1e-5)  # float32 of hundreds of products


class Slices(nn.Module):
    """Parts of the channels of one value, each read by a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = Grid(SCALE, ZERO)
        self.rows = Weighted(nn.Linear(24, 9)), Weighted(nn.Linear(40, 9))
        self.one, self.other = self.rows

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.grid(x).split([24, 40], -1)
        return self.one(first) - self.other(second)


def test_parts_of_channels() -> None:
    torch.manual_seed(0)
    net, x = Slices(), torch.randn(6, 64)
    close(plan_of(traced(net, x)).run([x])[0], net(x))


class Sums(nn.Module):
    """Sums of results in float32: with a value in float32, with codes, with one another."""

    def __init__(self) -> None:
        super().__init__()
        self.grid, self.wide = Grid(SCALE, ZERO), Grid(0.2, 120)
        self.layers = nn.ModuleList([Weighted(nn.Linear(24, 24)) for _ in range(5)])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        codes = self.grid(x)
        stream = torch.softmax(x, -1)
        one = stream + self.layers[0](codes)
        two = codes - F.gelu(self.layers[1](codes))
        three = self.layers[2](codes) + self.layers[3](codes)
        four = self.wide(self.layers[4](codes) + stream)
        return one, two, three, four, self.wide(one)


def test_sums() -> None:
    """A sum with a value in float32 that is there already is part of the step."""
    torch.manual_seed(0)
    net, x = Sums(), torch.randn(7, 24)
    plan = plan_of(traced(net, x))
    names = [row[1] for row in plan.profile([x])]
    assert names.count("linear_to_floats + add") == 2 and names.count("linear_to_floats") == 2
    assert names.count("linear_to_floats + add + quantize") == 1
    *found, last = zip(plan.run([x]), net(x), strict=True)
    for own, wanted in found[:3]:
        close(own, wanted)
    for own, wanted in (found[3], last):
        close(own, wanted, BEHIND_OTHERS)


def test_state() -> None:
    """A plan is saved and loaded; a damaged one is refused, or runs."""
    torch.manual_seed(0)
    net, x = Coded(nn.Linear(24, 8)), torch.randn(3, 24)
    plan = plan_of(traced(net, x))
    other = restored(plan.__getstate__()[0])
    assert torch.equal(other.run([x])[0], plan.run([x])[0])
    close(plan.run([x])[0], net(x), TOLERANCE)
    refused, ran = mutate(plan, x, 300)
    assert refused > 100 and ran > 10


class Block(nn.Module):
    """Two linears behind a layer norm, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 4, 4)
        self.blocks = nn.Sequential(*(Block(24) for _ in range(3)))
        self.head = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


def test_sums_of_a_stream() -> None:
    """By default sums in float and the caller take results unrounded; a rule says otherwise."""
    torch.manual_seed(0)
    model = torch.jit.script(Net().eval())
    batches = [torch.randn(4, 3, 20, 16) for _ in range(3)]
    prepared = jit_passes.prepare(model, target="x86", mode="static")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, batches, progress=False))
    lowered = jit_passes.lower(reference)
    (plan,) = (m.compiled for m in lowered.modules() if hasattr(m, "compiled"))
    assert kinds_of(plan).count("linear_to_floats") == 3 + 1
    rule = {"version": 1, "rules": [{"op": "linear", "output": {"calibration": "histogram"}}]}
    options = {"target": "x86", "mode": "static", "progress": False}
    rounded = jit_passes.quantize_script(model, batches, config=rule, **options)
    kinds = [k for m in rounded.modules() if hasattr(m, "compiled") for k in kinds_of(m.compiled)]
    assert "linear_to_floats" not in kinds
    with torch.no_grad():
        x = torch.randn(4, 3, 20, 16)
        assert sqnr(reference(x), lowered(x)) > FLIPPED
        assert sqnr(model(x), lowered(x)) > sqnr(model(x), rounded(x))


@pytest.mark.parametrize("op", ["conv2d", "linear"])
def test_results_in_float_by_a_rule(op: str) -> None:
    """All is one region none the less."""
    torch.manual_seed(0)
    model = torch.jit.script(Net().eval())
    batches = [torch.randn(4, 3, 20, 16) for _ in range(3)]
    rule = {"version": 1, "rules": [{"op": op, "output": {"dtype": "float"}}]}
    options: dict[str, Any] = {"target": "x86", "mode": "static", "config": rule}
    prepared = jit_passes.prepare(model, **options)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, batches, progress=False))
    lowered = jit_passes.lower(reference)
    (plan,) = (m.compiled for m in lowered.modules() if hasattr(m, "compiled"))
    name = "convolution" if op == "conv2d" else "linear"
    assert f"{name}_to_floats" in kinds_of(plan) and name not in kinds_of(plan)
    with torch.no_grad():
        x = torch.randn(4, 3, 20, 16)
        assert sqnr(reference(x), lowered(x)) > FLIPPED


class Head(nn.Module):
    """A linear, and a form of its result."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.last, self.form = nn.Linear(64, 3), form

    def forward(self, x: Tensor) -> Any:
        made = self.last(x)
        forms = {
            "tensor": lambda: made,
            "tuple": lambda: (x, made),
            "dict": lambda: {"scores": made},
            "nested": lambda: {"all": (made, x)},
            "view": lambda: made.unsqueeze(1),
            "sum too": lambda: (made, made + x[:, :3]),
            "relu": lambda: torch.relu(made),
        }
        return forms[self.form]()


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict", "nested"])
def test_results_of_the_model(form: str) -> None:
    """A linear that nothing but the caller reads is not rounded, and not cut off."""
    torch.manual_seed(0)
    net = Head(form).eval()
    batches = [torch.rand(32, 64) for _ in range(4)]
    model = torch.jit.trace(net, batches[0], strict=False)
    options: dict[str, Any] = {"target": "x86", "progress": False}
    lowered = jit_passes.quantize_script(model, batches, **options)
    rule = {"version": 1, "rules": [{"module": "last", "output": {"dtype": "uint8"}}]}
    rounded = jit_passes.quantize_script(model, batches, config=rule, **options)
    assert kinds_in(lowered).count("linear_to_floats") == 1
    assert "linear_to_floats" not in kinds_in(rounded)
    x = (net.last.weight > 0).float()  # within its range, and its results are not
    with torch.no_grad():
        expected, actual, clipped = (scores(run(x)) for run in (net, lowered, rounded))
        assert expected.max() > 1.2 * max(scores(net(batch)).max() for batch in batches)
    assert sqnr(expected, actual) > 35 > 20 > sqnr(expected, clipped)


@pytest.mark.parametrize("form", ["view", "sum too", "relu"])
def test_results_that_others_read(form: str) -> None:
    """Operators on integers have codes to read, and a view is one of them."""
    torch.manual_seed(0)
    batches = [torch.rand(8, 64) for _ in range(4)]
    model = torch.jit.trace(Head(form).eval(), batches[0])
    lowered = jit_passes.quantize_script(model, batches, target="x86", progress=False)
    assert kinds_in(lowered).count("linear") == 1


def kinds_in(model: torch.jit.ScriptModule) -> list[str]:
    return [kind for plan in plans_in(model) for kind in kinds_of(plan)]


def scores(result: Any) -> Tensor:
    """Return the three scores within a result of `Head`."""
    while not isinstance(result, Tensor):
        parts = list(result.values()) if isinstance(result, dict) else list(result)
        result = next((p for p in parts if isinstance(p, Tensor) and p.shape[-1] == 3), parts[0])
    return result
