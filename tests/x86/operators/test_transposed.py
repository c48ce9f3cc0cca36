"""Transposed convolutions in plans, by themselves and in decoders and generators."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, Weighted, plan_of, traced
from tests.seeds import seeds
from tests.x86.lowering.test_fused import assert_bits, clip, grid, kernels
from tests.x86.models.test_plan import Weights, assert_equal
from tests.x86.program.test_state import mutate, restored

LAYERS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def draw_layer(draw: random.Random, dims: int, most: int = 24) -> nn.Module:
    """Any window, stride, padding, dilation and groups; often fewer taps than the stride."""

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randint(low, high) for _ in range(dims))

    groups = draw.choice([1, 1, 1, 2, 3])
    inputs, outputs = groups * draw.randint(1, most // groups), groups * draw.randint(1, 12)
    if draw.random() < 0.3:
        groups = inputs = outputs = draw.randint(1, 70)
    kernel, stride = each(1, 5 if dims < 3 else 3), each(1, 4 if dims < 3 else 3)
    dilation = draw.choice([(1,) * dims, each(1, 3)])
    windows = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    padding = tuple(draw.randint(0, window) for window in windows)
    more = tuple(draw.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
    return LAYERS[dims - 1](
        inputs, outputs, kernel, stride, padding, more, groups, draw.random() < 0.7, dilation
    )


def fewest(layer: Any) -> list[int]:
    """Return sizes of an image of which padding leaves something."""
    found = []
    for axis, kernel in enumerate(layer.kernel_size):
        window = layer.dilation[axis] * (kernel - 1) + 1 + layer.output_padding[axis]
        cut = 2 * layer.padding[axis] - window
        found.append(max(1, 1 + math.ceil((cut + 1) / layer.stride[axis])))
    return found


@pytest.mark.parametrize("seed", seeds(60))
def test_exact(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    layer = draw_layer(draw, draw.choice([1, 2, 2, 2, 3]))
    size = [n + draw.randint(0, 9 if len(layer.kernel_size) < 3 else 3) for n in fewest(layer)]
    inputs = layer.in_channels
    region = traced(Weights(layer, draw), torch.randn(2, inputs, *size))
    for batch in ((3,), (1,), (), (0,)):
        assert_equal(region, torch.randn(*batch, inputs, *size) * 40)
    assert_equal(region, torch.randn(2, inputs, *(n + 1 for n in size)) * 40)


def test_the_smallest_images() -> None:
    """Fewer results than the stride, and paddings beyond the window."""
    torch.manual_seed(0)
    draw = random.Random(0)
    for layer, size in (
        (nn.ConvTranspose2d(5, 6, 2, 7), (1, 1)),
        (nn.ConvTranspose2d(5, 6, 3, 4, 1, 3), (1, 2)),
        (nn.ConvTranspose2d(5, 6, (1, 9), (3, 1), (0, 4)), (1, 1)),
        (nn.ConvTranspose2d(5, 6, 2, 1, 3), (7, 6)),
        (nn.ConvTranspose1d(5, 6, 3, 4, 2, 3, dilation=2), (2,)),
        (nn.ConvTranspose1d(18, 10, 2, 2, 3, dilation=3), (9,)),  # one tap, and fewer results
    ):
        x = torch.randn(3, layer.in_channels, *size) * 40
        assert_equal(traced(Weights(layer, draw), x), x)


def test_nothing_is_left() -> None:
    region = traced(
        Weights(nn.ConvTranspose2d(3, 4, 2, 1, 2), random.Random(0)), torch.randn(1, 3, 9, 9)
    )
    x = torch.randn(1, 3, 3, 9)
    with pytest.raises(RuntimeError, match="too small"):
        region(x)
    with pytest.raises(RuntimeError, match="paddings that cut off all of its result"):
        plan_of(region).run([x])
    with pytest.raises(RuntimeError, match="takes 3 channels, and got the shape"):
        plan_of(region).run([torch.randn(1, 4, 9, 9)])


def test_profile() -> None:
    """Each pixel of the input is multiplied with all weights once."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 5, 7)
    for layer, name in (
        (nn.ConvTranspose2d(6, 8, 4, 2, 1), "transposed convolution 4x4"),
        (nn.ConvTranspose2d(6, 8, 3, 2, groups=2), "transposed grouped 3x3"),
        (nn.ConvTranspose2d(6, 6, (2, 4), 2, groups=6), "transposed depthwise 2x4"),
    ):
        products = 2 * 5 * 7 * layer.weight.numel()
        (row,) = plan_of(traced(Weights(layer, random.Random(1)), x)).profile([x])[1:-1]
        assert (row[1], row[3]) == (name, products)


class Decoder(nn.Module):
    """Transposed convolutions that read and give parts of concatenations, with tables behind."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.channels, outputs = draw.randint(1, 20), draw.randint(1, 20)
        self.grids = nn.ModuleList(grid(draw) for _ in range(7))
        stride, dilation = draw.randint(1, 3), draw.randint(1, 2)
        options = {"stride": stride, "padding": draw.randint(0, 2), "dilation": dilation}
        self.first = Weighted(nn.Conv2d(self.channels, outputs, 3, padding=1), exact=True)
        self.up = Weighted(nn.ConvTranspose2d(outputs, 7, 3, **options), exact=True)
        self.other = Weighted(nn.ConvTranspose2d(outputs, 5, 3, **options), exact=True)
        self.whole = Weighted(nn.ConvTranspose2d(12, 6, 4, 2, 1), exact=True)
        self.last = Weighted(nn.Conv2d(12, 4, 3, padding=1), exact=True)
        self.clip = clip(draw)
        self.table = draw.choice([nn.Identity(), nn.Hardswish(), nn.LeakyReLU(0.25)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.grids[0](x)
        x = self.grids[1](self.clip(self.first(x)))
        a = self.grids[2](self.up(x))
        b = self.grids[2](self.table(self.grids[3](self.other(x))))
        joined = torch.cat([a, b], 1)
        y = self.grids[4](self.clip(self.whole(joined)))
        return self.grids[6](self.last(joined)) + self.grids[5](F.max_pool2d(y, 2)).mean(1, True)


@pytest.mark.parametrize("seed", range(10))
def test_decoders(seed: int) -> None:
    torch.manual_seed(seed)
    net = Decoder(random.Random(seed))
    x = torch.randn(2, net.channels, 9, 11) * 20
    region = traced(net, x)
    plan = plan_of(region)
    for size in ((9, 11), (5, 4)):
        x = torch.randn(2, net.channels, *size) * 20
        assert_bits(region, plan, x)
    assert kernels(plan, x).count("transposed convolution 4x4") == 1


class Generator(nn.Module):
    """The generator of DCGAN (Radford et al., 2015), with few channels."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride, padding in ((24, 32, 1, 0), (32, 16, 2, 1), (16, 8, 2, 1)):
            up = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
            layers += [up, nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UNet(nn.Module):
    """Two levels; windows of 3 and of 2, and a depthwise one to the size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1)
        self.third = nn.Conv2d(24, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 24, 3, 2, 1, 1)
        self.fourth = nn.Conv2d(48, 20, 3, padding=1)
        self.again = nn.ConvTranspose2d(20, 12, 2, 2)
        self.fifth, self.classes = nn.Conv2d(24, 16, 3, padding=1), nn.Conv2d(16, 5, 1)
        self.wide = nn.ConvTranspose2d(5, 5, 4, 2, 1, groups=5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.first(F.avg_pool2d(x, 2)))
        b = F.relu(self.second(F.max_pool2d(a, 2)))
        c = F.relu(self.third(F.max_pool2d(b, 2)))
        c = F.relu(self.fourth(torch.cat([self.up(c), b], 1)))
        c = F.relu(self.fifth(torch.cat([self.again(c), a], 1)))
        return self.wide(self.classes(c))


@pytest.mark.parametrize(
    ("net", "shape", "other"),
    [(Generator, (4, 24, 1, 1), (3, 24, 2, 3)), (UNet, (2, 3, 32, 48), (1, 3, 48, 16))],
    ids=["generator", "unet"],
)
def test_whole_networks(net: type[nn.Module], shape: Any, other: Any) -> None:
    """One plan, close to float, and to the reference model: a step at the end of each layer."""
    torch.manual_seed(0)
    model = torch.jit.script(net().eval())
    data = [torch.randn(shape) for _ in range(4)]
    prepared = jit_passes.calibrate(jit_passes.prepare(model, target="x86"), data, progress=False)
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    kinds = [node.kind for node in jit_passes.GraphView.of(lowered).nodes]
    assert kinds.count("prim::CallMethod") == 1 and not [k for k in kinds if "conv" in k]
    assert {row.dtype for row in jit_passes.coverage(lowered)} == {"int8"}
    for x in (*data, torch.randn(other)):
        assert sqnr(model(x), lowered(x)) > 25
        assert sqnr(reference(x), lowered(x)) > 35


def state_of(plan: Any) -> Any:
    return plan.__getstate__()[0]


def test_weights_are_held_once_and_come_back() -> None:
    """Packed weights are unpacked into the state: also where some taps are no pixel's."""
    torch.manual_seed(0)
    for layer, shape in (
        (nn.ConvTranspose2d(9, 6, (5, 4), (2, 3), (1, 2), dilation=(1, 3), groups=3), (2, 9, 6, 5)),
        (nn.ConvTranspose3d(4, 5, (1, 2, 3), (3, 2, 2)), (1, 4, 2, 3, 2)),
        (nn.ConvTranspose1d(70, 70, 5, 2, groups=70), (2, 70, 9)),
    ):
        x = torch.randn(shape) * 40
        region = traced(Weights(layer, random.Random(0)), x)
        plan = plan_of(region)
        before = state_of(plan)
        (expected,) = plan.run([x])
        after = state_of(plan)
        for (one, _, tensors), (two, _, others) in zip(before[2], after[2], strict=True):
            assert one == two and all(map(torch.equal, tensors, others))
        assert torch.equal(restored(after).run([x])[0], expected)
        assert torch.equal(copy.deepcopy(plan).run([x])[0], expected)
        assert torch.equal(plan.run([x])[0], expected)


def small_plan() -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        Grid(0.05, 120),
        Weighted(nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)),
        Grid(0.2, 128),
        Weighted(nn.ConvTranspose2d(6, 3, (4, 2), (3, 2), dilation=(2, 1))),
        Grid(0.5, 100),
    )
    x = torch.randn(2, 4, 5, 6)
    return plan_of(traced(net, x)), x


def test_mutated_states() -> None:
    refused, ran = mutate(*small_plan(), 800)
    assert refused > 300 and ran > 30


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 4, "1 to 3 spatial axes, not 4"),
        (1, 4, "6 results in 4 groups"),
        (2, 2, "a window in more than its spatial axes"),
        (3, 0, "a stride of 0"),
        (3, 1 << 14, "it falls into more than 4096 parts"),
        (6, -1, "a padding of -1"),
        (9, -(1 << 40), "a padding of -1099511627776"),
        (12, 1 << 40, "a dilation of 1099511627776"),
    ],
)
def test_messages(place: int, value: int, message: str) -> None:
    lists, scales, operators = state_of(small_plan()[0])
    for (kind, *_), (_, _, attributes), _ in operators:
        if kind == "transposed_convolution":
            attributes[place] = value
            break
    with pytest.raises(RuntimeError, match=message):
        restored((lists, scales, operators))


def test_borders_beyond_all_memory() -> None:
    """Windows far wider than what they are read for are an error, before memory is asked for."""
    lists, scales, operators = state_of(small_plan()[0])
    for (kind, *_), (_, _, attributes), _ in operators:
        if kind == "transposed_convolution":
            attributes[6:8] = attributes[9:11] = attributes[12:14] = [1 << 15, 1 << 15]
            break
    with pytest.raises(RuntimeError, match=r"with its padding takes \S+ bytes"):
        restored((lists, scales, operators)).run([torch.zeros(4096, 4, 4, 4)])
