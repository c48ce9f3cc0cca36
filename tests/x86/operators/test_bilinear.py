"""Linear and cubic resizing within plans: against PyTorch, and in networks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, plan_of, plans_in, traced
from tests.x86.building.test_rim import batches
from tests.x86.operators.test_floats import converted, kinds_of
from tests.x86.program.test_state import mutate, restored

OPTIONS: dict[str, dict[str, Any]] = {
    "twice": {"scale_factor": 2.0},
    "twice, aligned": {"scale_factor": 2.0, "align_corners": True},
    "half": {"scale_factor": 0.5},
    "factors": {"scale_factor": (1.7, 0.6)},
    "nearly one": {"scale_factor": (1.05, 1.3)},
    "size": {"size": (9, 31)},
    "many rows": {"size": (33, 17)},
    "many rows, aligned": {"size": (40, 5), "align_corners": True},
    "size, aligned": {"size": (9, 31), "align_corners": True},
    "smaller": {"size": (2, 3)},
    "a pixel": {"size": (1, 1), "align_corners": True},
}
OPTIONS_OF_LINES: list[dict[str, Any]] = [
    {"scale_factor": 2.0}, {"scale_factor": 0.6, "align_corners": True}, {"size": 9}, {"size": 1},
]  # fmt: skip
LINES = [(2, 3, 7), (1, 40, 16), (3, 65, 5)]
OPTIONS_OF_VOLUMES: list[dict[str, Any]] = [
    {"scale_factor": 2.0}, {"scale_factor": (1.7, 0.6, 1.3), "align_corners": True},
    {"size": (3, 9, 2)}, {"size": (5, 4, 11), "align_corners": True},
]  # fmt: skip
VOLUMES = [(2, 3, 4, 3, 7), (1, 40, 1, 5, 4)]
MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}
SHAPES = [(2, 3, 6, 7), (1, 40, 4, 9), (3, 65, 2, 5), (1, 3, 8, 2)]


class Resized(nn.Module):
    def __init__(self, options: dict[str, Any], other: bool = False) -> None:
        super().__init__()
        self.options = options
        self.into = Grid(0.03, 120)
        self.out = Grid(0.021, 131) if other else Grid(0.03, 120)

    def forward(self, x: Tensor) -> Tensor:
        y = self.resized(self.into(x))
        return self.out(torch.relu(y)) + 0.0

    def resized(self, x: Tensor) -> Tensor:
        y: Tensor = F.interpolate(x, mode=MODES[x.dim()], **self.options)
        return y


CASES = [
    *itertools.product(OPTIONS.values(), SHAPES),
    *itertools.product(OPTIONS_OF_LINES, LINES),
    *itertools.product(OPTIONS_OF_VOLUMES, VOLUMES),
]


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(("options", "shape"), CASES, ids=str)
def test_plans(options: dict[str, Any], shape: tuple[int, ...], other: bool) -> None:
    """Ties are a step away where float32 rounds to another side, in PyTorch or here."""
    torch.manual_seed(0)
    net = Resized(options, other)
    region = traced(net, torch.randn(shape))
    plan = plan_of(region)
    assert "resize_linear" in kinds_of(plan)
    for batch in (shape[0], 1, 5):
        x = torch.randn(batch, *shape[1:])
        (got,) = plan.run([x])
        with torch.no_grad():
            expected = region(x)
            wide = net.resized(net.into(x).double()).relu()
        assert got.shape == expected.shape
        exact = wide.clamp(max=(255 - net.out.zero_point) * net.out.scale) / net.out.scale
        assert (got / net.out.scale - exact).abs().max() < 0.5 + 1e-3
        assert ((got - expected) / net.out.scale).round().abs().max() <= 1
    assert plan.run([torch.randn(0, *shape[1:])])[0].shape[0] == 0


class Returned(Resized):
    """The image is the result, and perhaps another value reads it too."""

    read = False

    def forward(self, x: Tensor) -> Any:
        y = self.resized(self.into(x))
        return (y, self.out(torch.relu(y))) if self.read else (y,)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize(("options", "shape"), CASES, ids=str)
def test_results(options: dict[str, Any], shape: tuple[int, ...], read: bool) -> None:
    """An image of many more rows that only the caller reads is computed channel by channel."""
    torch.manual_seed(0)
    net = Returned(options)
    net.read = read
    plan = plan_of(traced(net, torch.randn(shape)))
    for batch in (shape[0], 1, 5):
        x = torch.randn(batch, *shape[1:])
        got = plan.run([x])[0]
        wide = net.resized(net.into(x).double())
        assert got.shape == wide.shape and got.is_contiguous()
        assert (got - wide).abs().max() < 1e-6 * wide.abs().max()
        if not read and got[..., 0].numel() >= 4 * x[..., 0].numel() and x.dim() < 5:
            steps = [kernel for _, kernel, *_ in plan.profile([x])]
            assert steps[-1] == "resize_linear"  # right into the result
    assert plan.run([torch.randn(0, *shape[1:])])[0].shape[0] == 0


class Volumes(nn.Module):
    """A decoder of volumes, as for scans."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv3d(2, 8, 3, 2, 1), nn.Conv3d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(F.relu(self.one(x)), scale_factor=2.0, mode="trilinear")
        return self.two(y)


def test_volumes() -> None:
    torch.manual_seed(0)
    _, reference = converted(Volumes().eval(), batches(2, 2, 6, 8, 4))
    found = jit_passes.partition(reference, target="x86")
    assert len(found.regions) == 1 and not found.refused
    lowered = jit_passes.lower(reference, target="x86")
    x = torch.randn(3, 2, 6, 8, 4)
    with torch.no_grad():
        expected = reference(x)
    assert (lowered(x) - expected).square().sum() < 1e-4 * expected.square().sum()


def test_other_images() -> None:
    """A size that is given stays."""
    torch.manual_seed(0)
    region = traced(Resized({"size": (9, 31)}), torch.randn(2, 3, 6, 7))
    plan = plan_of(region)
    for shape in ((2, 3, 11, 4), (1, 3, 1, 1), (1, 3, 40, 50)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert ((plan.run([x])[0] - region(x)) / 0.03).round().abs().max() <= 1
    with pytest.raises(RuntimeError, match="takes no empty axes"):
        plan.run([torch.randn(1, 3, 0, 4)])


class Decoder(nn.Module):
    """Convolutions with a resize between them, and one in a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.skip = nn.Conv2d(3, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(F.relu(self.one(x)), scale_factor=2.0, mode="bilinear")
        return self.two(torch.cat([y, self.skip(x)], 1)[:, :16]) + y


def test_networks() -> None:
    torch.manual_seed(0)
    net = Decoder().eval()
    _, reference = converted(net, batches(2, 3, 12, 16))
    found = jit_passes.partition(reference, target="x86")
    assert len(found.regions) == 1 and not found.refused
    lowered = jit_passes.lower(reference, target="x86")
    for batch in (2, 1, 5):
        x = torch.randn(batch, 3, 12, 16)
        with torch.no_grad():
            expected, exact = reference(x), net(x)
        assert (lowered(x) - expected).square().sum() < 1e-4 * expected.square().sum()
        assert (lowered(x) - exact).square().sum() < exact.square().sum() / 300


def test_states() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5)
    plan = plan_of(traced(Resized(OPTIONS["size"]), x))
    (expected,) = plan.run([x])
    assert torch.equal(restored(plan.__getstate__()[0]).run([x])[0], expected)
    refused, ran = mutate(plan, x, 800)
    assert refused > 150 and ran > 20


class Cubic(nn.Module):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.interpolate(x * 2, mode="bicubic", **self.options)
        return y + 0.5


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_cubic_resizing(options: dict[str, Any]) -> None:
    """PyTorch's operator: the error of places grows with sizes, and sums have 16 products."""
    torch.manual_seed(0)
    plan = plan_of(traced(Cubic(options), torch.randn(SHAPES[0])))
    assert "resize_cubic" in kinds_of(plan)
    for shape in (*SHAPES, (1, 1500, 3, 5), (2, 1, 2, 300)):
        x = torch.randn(shape)
        (got,) = plan.run([x])
        torch.testing.assert_close(
            got, Cubic(options)(x), rtol=0, atol=2e-5 + 5e-7 * max(shape[2:])
        )
    x[0, 0, 0, 1] = torch.nan
    (got,) = plan.run([x])
    assert torch.equal(got.isnan(), Cubic(options)(x).isnan())


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_cubic_resizing_between_layers(mode: str) -> None:
    """In one plan, of sizes that the model computes."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.interpolate(self.first(x), size=[x.size(2) + 3, x.size(3)], mode="bicubic")
            return self.last(y)

    torch.manual_seed(0)
    net, data = Net().eval(), batches(2, 3, 8, 9)
    model = torch.jit.script(net)
    lowered = jit_passes.quantize_script(model, data, mode=mode, target="x86", progress=False)
    assert len(plans_in(lowered)) == 1
    for size in ((8, 9), (5, 12)):
        x = torch.randn(1, 3, *size)
        with torch.no_grad():
            assert sqnr(net(x), lowered(x)) > 25
