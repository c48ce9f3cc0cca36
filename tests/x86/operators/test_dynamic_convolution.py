"""Dynamic convolutions in plans: against the reference model, and a slow one in float64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesWarning
from tests.compare import sqnr
from tests.plans import Weighted, plan_of, traced
from tests.x86.lowering.test_fused import kernels
from tests.x86.operators.test_dynamic import BEHIND_OTHERS, EXACT, close
from tests.x86.operators.test_floats import kinds_of
from tests.x86.program.test_state import mutate, restored

Q = torch.ops.jit_passes
FORMS = [("affine", "pytorch"), ("affine", "fbgemm"), ("symmetric", "pytorch")]
forms = pytest.mark.parametrize("form", FORMS, ids="-".join)


class Dynamic(nn.Module):
    """A convolution on int8 weights whose input is quantized as it comes."""

    def __init__(self, layer: nn.Module, form: tuple[str, str] = FORMS[0]) -> None:
        super().__init__()
        self.scheme, self.form = f"per_tensor_{form[0]}", form[1]
        self.layer = Weighted(layer)

    def codes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, zero = Q.choose_qparams(x, 0, 255, self.scheme, self.form)
        return Q.quantize_dynamic(x, scale, zero, 0, 255, torch.uint8), scale, zero

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(Q.dequantize_dynamic(*self.codes(x)))

    def slow(self, x: Tensor) -> Tensor:
        """Return the result in float64, of integers that are exact there."""
        codes, scale, zero = self.codes(x)
        layer: Any = self.layer.layer
        function = getattr(F, f"conv{len(layer.kernel_size)}d")
        options = (layer.stride, layer.padding, layer.dilation, layer.groups)
        weight = self.layer.codes.double()
        sums = function(codes.double() - zero.double(), weight, None, *options)
        trailing = (-1, *(1,) * len(layer.kernel_size))
        result = sums * scale.double() * self.layer.scales.float().double().reshape(trailing)
        return result if layer.bias is None else result + layer.bias.reshape(trailing)


def draw_layer(draw: random.Random, dims: int) -> nn.Module:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, high) for _ in range(dims))

    groups = draw.choice([1, 1, 2])
    inputs, outputs = groups * draw.randint(1, 20), groups * draw.randint(1, 40)
    if draw.random() < 0.3:
        groups = inputs = outputs = draw.randint(2, 70)
    layers = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return layers[dims - 1](
        inputs, outputs, each(1, 4 if dims < 3 else 3), each(1, 2), each(0, 3), each(1, 2), groups,
        draw.random() < 0.7,
    )  # fmt: skip


@forms
@pytest.mark.parametrize("seed", range(12))
def test_one_convolution(seed: int, form: tuple[str, str]) -> None:
    """Inputs in any order of axes, with a batch and without one, and of none."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    dims = draw.choice([1, 2, 2, 3])
    net = Dynamic(draw_layer(draw, dims), form)
    channels = net.layer.layer.in_channels
    size = [draw.randint(7, 12) for _ in range(dims)]
    plan = plan_of(traced(net, torch.randn(2, channels, *size)))
    assert kinds_of(plan) == ["input", "convolution_dynamic"]
    for batch in ((2,), (1,), ()):
        for scale, middle in ((1.0, 0.0), (1e-3, 5e-3), (1e4, -1e4)):
            x = scale * torch.randn(*batch, channels, *size) + middle
            last = x.movedim(-dims - 1, -1).contiguous().movedim(-1, -dims - 1)
            wide = torch.randn(*x.shape[:-1], 2 * x.shape[-1])
            for given in (x, last, wide[..., ::2].copy_(x)):
                (found,) = plan.run([given])
                close(found, net.slow(x), EXACT)
                close(found, net(x), 1e-5)  # float32 of hundreds of products
    assert (
        plan.run([torch.randn(0, channels, *size)])[0].shape
        == net(x.new_zeros(0, channels, *size)).shape
    )
    with pytest.raises(RuntimeError, match=f"takes {channels} channels, and got the shape"):
        plan.run([torch.randn(2, channels + 1, *size)])


@forms
def test_numbers_that_are_not_finite(form: tuple[str, str]) -> None:
    """Their sample is NaN. Others are as the range of the finite numbers makes them."""
    torch.manual_seed(0)
    layers = [
        (nn.Conv2d(3, 7, 3, padding=1), (9, 8)),
        (nn.Conv2d(3, 3, 3, groups=3), (9, 8)),
        (nn.Conv2d(3, 40, 1), (30, 30)),
        (nn.Conv1d(3, 7, 3, padding=1), (2000,)),
        (nn.Conv3d(3, 7, 3), (4, 5, 6)),
        (nn.ConvTranspose2d(3, 7, 3, 2), (9, 8)),
    ]
    for layer, size in layers:
        net = Dynamic(layer, form)
        plan = plan_of(traced(net, torch.randn(2, 3, *size)))
        inputs = torch.randn(3, 3, *size), torch.randn(size[0], 3, 3, *size[1:]).transpose(0, 2)
        for x in inputs:
            x[1, 2, 3] = 0
            (finite,) = plan.run([x])
            for bad in (float("nan"), float("inf"), -float("inf")):
                x[1, 2, 3] = bad
                (found,), wanted = plan.run([x]), net(x)
                assert found[1].isnan().all() and wanted[1].isnan().any()
                assert torch.equal(found[[0, 2]], finite[[0, 2]])
                close(found[[0, 2]], wanted[[0, 2]], 1e-5)


class Shared(nn.Module):
    """Layers that read one value, functions and sums behind them, and layers behind those."""

    def __init__(self) -> None:
        super().__init__()
        one, three = nn.Conv2d(12, 12, 1), nn.Conv2d(12, 12, 3, padding=1)
        wide = nn.Conv2d(12, 12, 5, padding=2, groups=12)
        self.first = nn.ModuleList(Dynamic(layer) for layer in (one, three, wide))
        self.other = Dynamic(nn.Conv2d(12, 12, 1), FORMS[2])
        self.last = Dynamic(nn.Conv2d(24, 5, 3, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a, b, c = (layer(x) for layer in self.first)
        d = x + F.gelu(c)
        e = F.relu(b) + a
        return self.last(torch.cat([d, e], 1)), self.other(x).mean((2, 3)), F.gelu(a)


def test_one_quantization_for_all_readers() -> None:
    torch.manual_seed(0)
    net, x = Shared(), torch.randn(2, 12, 10, 11)
    plan = plan_of(traced(net, x))
    names = kernels(plan, x)
    assert names.count("quantize as it comes") == 3
    assert names.count("dynamic depthwise 5x5") + names.count("dynamic depthwise 5x5 + add") == 1
    for shape in ((2, 12, 10, 11), (1, 12, 40, 37)):
        x = torch.randn(shape)
        for found, wanted in zip(plan.run([x]), net(x), strict=True):
            close(found, wanted, BEHIND_OTHERS)


class Block(nn.Module):
    """An inverted residual."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.project = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 16, 1)
        self.middle = nn.Conv2d(48, 48, 3, padding=1, groups=48)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(F.relu6(self.middle(F.relu6(self.expand(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.first(x))))
        return self.head(x.mean((2, 3)))


def nets() -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    return torch.jit.script(Net().eval()), torch.randn(4, 3, 40, 36)


def test_a_network_without_data() -> None:
    """One plan, as close to float as with data; the sums are part of the convolutions."""
    model, x = nets()
    lowered = jit_passes.quantize_script(model, mode="dynamic", target="x86")
    assert {row.mode for row in jit_passes.coverage(lowered)} == {"dynamic"}
    kinds = [node.kind for node in jit_passes.GraphView.of(lowered).nodes]
    assert kinds.count("prim::CallMethod") == 1 and "aten::conv2d" not in kinds
    reference = jit_passes.convert(jit_passes.prepare(model, mode="dynamic", target="x86"))
    (region,) = jit_passes.partition(reference, "x86").regions
    assert kernels(plan_of(region.module), x).count("dynamic convolution 1x1 + add") == 2
    static = jit_passes.quantize_script(model, [x], mode="static", target="x86", progress=False)
    for batch in (x, x[:1, :, :31, :17], 3 * x + 1):
        close(lowered(batch), reference(batch), BEHIND_OTHERS)
        assert sqnr(model(batch), lowered(batch)) > 30
    assert sqnr(model(x), lowered(x)) > sqnr(model(x), static(x)) - 1


class Gated(nn.Module):
    """Squeeze and excitation, and the functions of newer networks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 12, 3, 2, 1), nn.Conv2d(12, 4, 1)
        self.up, self.wide = nn.Conv2d(4, 12, 1), nn.Conv2d(12, 20, 3)
        self.other, self.last = nn.Conv2d(12, 20, 3), nn.Conv2d(20, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.first(x))
        gate = F.hardswish(self.down(F.adaptive_avg_pool2d(x, 1)))
        x = x * torch.sigmoid(self.up(gate))
        x = torch.tanh(self.wide(x)) * F.hardsigmoid(self.other(x))
        return self.last(x)


def test_functions_between_convolutions() -> None:
    torch.manual_seed(0)
    model, x = torch.jit.script(Gated().eval()), torch.randn(2, 3, 30, 25)
    lowered = jit_passes.quantize_script(model, mode="dynamic", target="x86")
    kinds = {node.kind for node in jit_passes.GraphView.of(lowered).nodes}
    assert not {kind for kind in kinds if kind.startswith("aten::")}
    reference = jit_passes.convert(jit_passes.prepare(model, mode="dynamic", target="x86"))
    close(lowered(x), reference(x), BEHIND_OTHERS)
    assert sqnr(model(x), lowered(x)) > 30
    (region,) = jit_passes.partition(reference, "x86").regions
    assert kernels(plan_of(region.module), x).count("function") == 0  # part of the convolutions


def test_what_auto_does_without_data() -> None:
    """Convolutions wait for somebody to say so; a rule does."""
    model, _ = nets()
    with pytest.warns(JitPassesWarning, match="7 operators stay in float without data"):
        lowered = jit_passes.quantize_script(model, target="x86")
    modes = {row.name: row.mode or row.dtype for row in jit_passes.coverage(lowered)}
    assert modes.pop("head:linear") == "dynamic" and {*modes.values()} == {"float"}
    config = {"version": 1, "rules": [{"op": "conv2d", "mode": "dynamic"}]}
    lowered = jit_passes.quantize_script(model, config=config, target="x86")
    assert {row.mode for row in jit_passes.coverage(lowered)} == {"dynamic"}


def test_tokens_are_no_pixels() -> None:
    model, _ = nets()
    rule = {"op": "conv2d", "mode": "dynamic", "input": {"tokenwise": True}}
    config = {"version": 1, "rules": [rule]}
    with pytest.warns(JitPassesWarning, match="per_token_affine, and the target has per_tensor"):
        jit_passes.prepare(model, config=config, target="x86")


def test_any_number_of_threads_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    net, x = Shared(), torch.randn(2, 12, 33, 29)
    plan = plan_of(traced(net, x))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = plan.run([x])
        for number in (2, 3, 8):
            torch.set_num_threads(number)
            for _ in range(10):
                assert all(map(torch.equal, plan.run([x]), expected))
    finally:
        torch.set_num_threads(before)


def test_states() -> None:
    torch.manual_seed(0)
    net, x = Shared(), torch.randn(1, 12, 8, 9)
    plan = plan_of(traced(net, x))
    expected = plan.run([x])
    found = restored(plan.__getstate__()[0]).run([x])
    assert all(map(torch.equal, found, expected))
    refused, ran = mutate(plan, x, 800)
    assert refused > 300 and ran > 30


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (14, 1, "0 where they are no rows"),
        (15, 3, "no formulas with this number"),
        (3, 0, "a stride of 0"),
    ],
)
def test_messages(place: int, value: int, message: str) -> None:
    net = Dynamic(nn.Conv2d(3, 4, 3))
    lists, scales, operators = plan_of(traced(net, torch.randn(1, 3, 8, 8))).__getstate__()[0]
    operators[1][1][2][place] = value
    with pytest.raises(RuntimeError, match=message):
        restored((lists, scales, operators))


SIZES = [(1, 4, 10), (1, 4, 33), (2, 4, 10), (1, 4, 1, 10), (1, 4, 7, 10)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_one_makes_is_quantized_for_the_next(sizes: tuple[int, ...]) -> None:
    """Channels are innermost there, and one image of one row has no more than these two axes."""
    torch.manual_seed(0)
    layer: Any = nn.Conv1d if len(sizes) == 3 else nn.Conv2d
    net = nn.Sequential(Dynamic(layer(4, 8, 1)), nn.ReLU(), Dynamic(layer(8, 5, 1)))
    x = torch.randn(sizes)
    region = traced(net, x)
    assert sqnr(region(x), plan_of(region).run([x])[0]) > 100
