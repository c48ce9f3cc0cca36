"""Group norm: the kernel on codes against numpy, plans against reference models, and networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import jit_passes
from tests.advice import traced_branches
from tests.plans import Grid, plan_of, plans_in, traced
from tests.x86.building.test_rim import batches
from tests.x86.kernels.calls import ALL_CODES, CodeRange, Image, call
from tests.x86.kernels.test_attention_kernels import assert_rounds_to
from tests.x86.operators.test_floats import converted, kinds_of
from tests.x86.program.test_state import mutate, restored

pytestmark = traced_branches

GROUPS = [(1, 1), (6, 3), (32, 32), (64, 32), (33, 3), (40, 1), (96, 4), (200, 2), (65, 65)]


def group_norm_of(codes: NDArray[np.uint8], groups: int, eps: float) -> NDArray[np.float64]:
    """Return it in float64, of images [images, depth, height, width, channels]."""
    n, d, h, w, c = codes.shape
    x = codes.astype(np.float64).reshape(n, d, h, w, groups, c // groups)
    axes = (1, 2, 3, 5)
    x = x - x.mean(axes, keepdims=True)
    return (x / np.sqrt(np.square(x).mean(axes, keepdims=True) + eps)).reshape(codes.shape)


@pytest.mark.parametrize(("channels", "groups"), GROUPS)
def test_kernel(channels: int, groups: int) -> None:
    rng = np.random.default_rng(channels)
    weight = rng.uniform(-60, 60, channels).astype(np.float32)
    bias = rng.uniform(50, 200, channels).astype(np.float32)
    for size, gap, part in (
        ((1, 1, 1, 1), 0, 1),
        ((3, 2, 5, 7), 2, 1),
        ((1, 1, 9, 16), 0, 1 << 40),
    ):
        codes = rng.integers(0, 256, (*size, channels), dtype=np.uint8)
        out = Image(codes.shape, gap=gap)
        call(
            "group_norm",
            Image.of(codes, gap=gap),
            out,
            groups,
            weight,
            bias,
            0.3,
            CodeRange(3, 250),
            part,
        )
        assert_rounds_to(out.codes, group_norm_of(codes, groups, 0.3) * weight + bias, 3, 250)
        out.check()


def test_long_rows() -> None:
    """More codes than int32 holds the squares of."""
    codes = np.full((1, 1, 1, 70000, 3), 255, np.uint8)
    codes[..., ::2, :] = 254
    out = Image(codes.shape)
    ones = np.ones(3, np.float32)
    call("group_norm", Image.of(codes), out, 1, ones * 10, ones * 100, 1e-9, ALL_CODES, 1)
    assert (out.codes[..., ::2, :] == 90).all() and (out.codes[..., 1::2, :] == 110).all()


class Normalized(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.into, self.out = Grid(0.03, 120), Grid(0.05, 131)
        self.norm = nn.GroupNorm(groups, channels)
        nn.init.normal_(self.norm.weight, 1, 0.3)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.out(torch.relu(self.norm(self.into(x))))) + 0.0


@pytest.mark.parametrize("sizes", [(), (9,), (5, 7), (3, 4, 5)], ids=str)
@pytest.mark.parametrize(("channels", "groups"), [(6, 3), (64, 32), (40, 1), (33, 33)])
def test_plans(channels: int, groups: int, sizes: tuple[int, ...]) -> None:
    """A code is a step away where float32 does not tell on which side of a tie it is."""
    torch.manual_seed(0)
    region = traced(Normalized(channels, groups), torch.randn(2, channels, *sizes))
    plan = plan_of(region)
    assert "group_norm" in kinds_of(plan)
    for batch in (2, 1, 5):
        x = torch.randn(batch, channels, *sizes)
        with torch.no_grad():
            expected = region(x)
        (got,) = plan.run([x])
        steps = ((got - expected) / 0.05).round().abs()
        assert got.shape == expected.shape and steps.max() <= 1 and steps.mean() < 1e-3
    assert plan.run([torch.randn(0, channels, *sizes)])[0].shape == (0, channels, *sizes)
    if sizes:
        with pytest.raises(RuntimeError, match="is a mean of no values"):
            plan.run([torch.randn(2, channels, *sizes[1:], 0)])
    with pytest.raises(RuntimeError, match=f"takes {channels} features"):
        plan.run([torch.randn(2, channels + 1, *sizes)])


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize(
    "norm",
    [
        nn.InstanceNorm2d(40),
        nn.InstanceNorm2d(6, affine=True),
        nn.GroupNorm(2, 6, affine=False),
        nn.GroupNorm(1, 33, affine=False),
    ],
    ids=["instance", "affine", "groups", "all"],
)
def test_one_number_for_all_channels(norm: nn.Module, codes: bool) -> None:
    """Instance norm has a group for each channel; without weights, any number of channels fits."""
    torch.manual_seed(0)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1, 0.3)
    channels = getattr(norm, "num_features", None) or norm.num_channels

    class Region(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.into, self.out = norm, Grid(0.03, 120), Grid(0.05, 131)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(self.into(x))) if codes else self.norm(x.sigmoid())

    region = traced(Region(), torch.randn(2, channels, 5, 7))
    plan = plan_of(region)
    assert "group_norm" in kinds_of(plan)
    fixed = [*norm.parameters()]
    for count in (channels, channels if fixed else 3 * channels):
        x = torch.randn(3, count, 5, 7)
        with torch.no_grad():
            expected, got = region(x), plan.run([x])[0]
        if codes:
            steps = ((got - expected) / 0.05).round().abs()
            assert steps.max() <= 1 and steps.mean() < 1e-3
        else:
            assert (got - expected).abs().max() < 1e-5
    if channels == 6:
        with pytest.raises(RuntimeError, match=r"groups|takes 6 features"):
            plan.run([torch.randn(2, 7, 5, 7)])


def test_statistics_of_its_own() -> None:
    """Instance norm with running statistics is a batch norm in evaluation; it stays in float."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.InstanceNorm2d(8, track_running_stats=True), nn.Conv2d(8, 4, 1)
    )
    net(torch.randn(4, 3, 6, 6))
    data = [torch.randn(2, 3, 6, 6)]
    found = jit_passes.quantize_script(
        torch.jit.script(net.eval()), data, target="x86", mode="static"
    )
    assert len(plans_in(found)) == 2
    with torch.no_grad():
        difference = found(data[0]) - net(data[0])
    assert difference.square().sum() < 1e-2 * net(data[0]).square().sum()


class InFloats(nn.Module):
    """Group norm in float32, behind a function of an input and in front of one."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.norm(nn.functional.leaky_relu(x)))


@pytest.mark.parametrize("sizes", [(), (9,), (5, 7), (3, 4, 5)], ids=str)
@pytest.mark.parametrize(("channels", "groups"), GROUPS[1:])
def test_plans_in_float32(channels: int, groups: int, sizes: tuple[int, ...]) -> None:
    """Against double precision; the mean may be large beside the deviation, or all values one."""
    torch.manual_seed(0)
    model = InFloats(channels, groups)
    plan = plan_of(traced(model, torch.randn(2, channels, *sizes)))
    exact = InFloats(channels, groups)
    exact.load_state_dict(model.state_dict())
    exact = exact.double()
    for batch, mean in ((2, 0.0), (3, 30.0), (5, 1.0)):
        x = torch.randn(batch, channels, *sizes) + mean
        x[0] = 2.5
        with torch.no_grad():
            expected = exact(x.double())
        (got,) = plan.run([x])
        assert (got - expected).abs().max() < 2e-6 * (1 + mean) * (1 + expected.abs().max())
    strided = torch.randn(2, *sizes, channels).movedim(-1, 1)
    with torch.no_grad():
        expected = exact(strided.double())
    assert (plan.run([strided])[0] - expected).abs().max() < 4e-6 * (1 + expected.abs().max())


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_networks_in_float32(mode: str) -> None:
    """One plan where the layers around it take floats, and where its result is read in float."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 16, 3),
        nn.GroupNorm(4, 16),
    ).eval()  # fmt: skip
    data = batches(2, 3, 12, 16)
    lowered = jit_passes.quantize_script(
        torch.jit.script(model), data, target="x86", mode=mode, progress=False
    )
    assert len(plans_in(lowered)) == 1
    for shape in ((2, 3, 12, 16), (1, 3, 5, 4), (0, 3, 8, 8)):
        x = torch.randn(shape)
        with torch.no_grad():
            expected, got = model(x), lowered(x)
        assert got.shape == expected.shape
        assert (got - expected).square().sum() <= 1e-3 * expected.square().sum()


class Unit(nn.Module):
    """A residual unit, as networks for diffusion have it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, 32) for _ in range(2)])
        self.convs = nn.ModuleList([nn.Conv2d(32, 32, 3, padding=1) for _ in range(2)])
        for norm in self.norms:
            nn.init.normal_(norm.weight, 1, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = y = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = conv(nn.functional.silu(norm(y)))
        return x + y


def test_networks() -> None:
    torch.manual_seed(0)
    net = Unit().eval()
    _, reference = converted(net, batches(2, 3, 12, 16))
    found = jit_passes.partition(reference, target="x86")
    assert len(found.regions) == 1 and not found.refused
    lowered = jit_passes.lower(reference, target="x86")
    for shape in ((2, 3, 12, 16), (1, 3, 5, 4), (3, 3, 16, 31)):
        x = torch.randn(shape)
        with torch.no_grad():
            expected, exact = reference(x), net(x)
        assert (lowered(x) - expected).square().sum() < 1e-4 * expected.square().sum()
        assert (lowered(x) - exact).square().sum() < exact.square().sum() / 300


def test_large_groups() -> None:
    """The square of the number of values times that of a code leaves 64 bits."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 64, 1), nn.GroupNorm(1, 64), nn.Conv2d(64, 2, 1)).eval()
    _, reference = converted(net, batches(1, 3, 16, 16))
    lowered = jit_passes.lower(reference, target="x86")
    x = torch.randn(1, 3, 400, 400)
    with torch.no_grad():
        expected = reference(x)
        assert (lowered(x) - expected).square().sum() < 1e-4 * expected.square().sum()


def test_states() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 4, 5)
    plan = plan_of(traced(Normalized(6, 3), x))
    (expected,) = plan.run([x])
    assert torch.equal(restored(plan.__getstate__()[0]).run([x])[0], expected)
    refused, ran = mutate(plan, x, 800)
    assert refused > 200 and ran > 20
    lists, scales, operators = plan.__getstate__()[0]
    number = next(i for i, op in enumerate(operators) if op[0][0] == "group_norm")
    texts, (inputs, output, _), tensors = operators[number]
    operators[number] = (texts, [inputs, output, [4]], tensors)
    with pytest.raises(RuntimeError, match="6 channels in 4 groups"):
        restored((lists, scales, operators))
