"""Pools, batch norms and resized images in float32 within plans, as in nets in the mode dynamic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes import _C
from tests.compare import sqnr
from tests.plans import Grid, plan_of, plans_in, traced
from tests.x86.operators.test_floats import kinds_of
from tests.x86.program.test_state import mutate


class Pooled(nn.Module):
    """Of codes with float32 beside them, which is float32."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = Grid(1 / 32, 131), nn.BatchNorm2d(70)
        for name, low in (("running_mean", -1.0), ("running_var", 0.5), ("weight", -1.0)):
            nn.init.uniform_(getattr(self.norm, name), low, 2.0)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.into(x) + x
        pools = (
            F.max_pool2d(y, 3, 2, 1),
            F.max_pool2d(y, (2, 3), 1, dilation=2, ceil_mode=True),
            F.avg_pool2d(y, 3, 2, 1),
            F.avg_pool2d(y, (3, 2), count_include_pad=False, ceil_mode=True),
            F.avg_pool2d(y, 2, divisor_override=3),
        )
        resized = (
            F.interpolate(y, scale_factor=2.0, mode="nearest"),
            F.interpolate(y, size=[5, 9], mode="bilinear", align_corners=False),
            F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=True),
        )
        return (self.norm(y), *pools, *resized, F.adaptive_max_pool2d(y, (3, 4)))


def test_pools_norms_and_resized_images() -> None:
    """Largest and nearest numbers are exact; others are sums, within a few roundings."""
    torch.manual_seed(0)
    region = traced(Pooled(), torch.randn(2, 70, 9, 12))
    plan = plan_of(region)
    kinds = kinds_of(plan)
    for kind in ("affine", "max_pool", "average_pool", "resize_nearest", "resize_linear"):
        assert kind in kinds
    for shape in ((2, 70, 9, 12), (1, 70, 8, 7), (3, 70, 15, 6)):
        x = torch.randn(shape)
        x[0, 3, 2, 1] = float("nan")
        with torch.no_grad():
            expected = region(x)
        for place, (got, wanted) in enumerate(zip(plan.run([x]), expected, strict=True)):
            exact = place in (1, 2, 6, 9)
            torch.testing.assert_close(
                got, wanted, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5, equal_nan=True
            )


def test_states_that_were_changed() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 70, 9, 12)
    plan = plan_of(traced(Pooled(), x))
    refused, ran = mutate(plan, x, 400)
    assert refused > 80 and ran > 8


class Adaptive(nn.Module):
    def __init__(self, indices: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.indices = indices

    def forward(self, x: Tensor) -> Tensor:
        y, places = F.adaptive_max_pool2d_with_indices(self.first(x), [4, 3])
        return self.last(y + places if self.indices else y)


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("frontend", [torch.jit.script, torch.jit.trace], ids=["script", "trace"])
def test_largest_numbers_of_adaptive_windows(frontend: Any, mode: str) -> None:
    """One plan, unless the model reads where they are."""
    torch.manual_seed(0)
    data = [torch.randn(2, 3, 9, 10) for _ in range(3)]
    for indices in (False, True):
        net = Adaptive(indices).eval()
        model = net if frontend is torch.jit.script else (net, data[0])
        script = frontend(*model) if isinstance(model, tuple) else frontend(model)
        lowered = jit_passes.quantize_script(script, data, mode=mode, target="x86", progress=False)
        assert len(plans_in(lowered)) == 1 + indices
        for size in ((9, 10), (12, 8)) if mode == "static" else ((9, 10), (4, 3), (2, 17)):
            x = torch.randn(1, 3, *size)
            if not indices:  # else one that is a step away may be the largest
                with torch.no_grad():
                    assert sqnr(net(x), lowered(x)) > 25


def test_indices_that_are_read_are_named() -> None:
    region = traced(Adaptive(indices=True), torch.randn(2, 3, 9, 10))
    assert "the model reads its indices" in _C.plan_refusals(region._c, "forward").values()


class Net(nn.Module):
    """Norms in front of convolutions, as in dense nets, and a path up again, as in U-Nets."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.three, self.norm = nn.Conv2d(24, 5, 1), nn.BatchNorm2d(12)
        self.norm.running_var.fill_(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        y = F.max_pool2d(self.norm(x.sigmoid()).relu(), 2)
        y = F.interpolate(self.two(y), scale_factor=2.0, mode="bilinear")
        return self.three(torch.cat([x, y], 1))


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("pool", "size"),
    [
        (nn.AvgPool2d(32, ceil_mode=True), 8),  # as EfficientNet's pooler has it
        (nn.MaxPool2d(32, ceil_mode=True), 8),
        (nn.AvgPool2d(7, 6, padding=2, ceil_mode=True), 6),
        (nn.MaxPool2d(3, 2, dilation=2, ceil_mode=True), 7),
    ],
    ids=str,
)
def test_windows_that_reach_beyond_the_image(pool: nn.Module, size: int, mode: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), pool, nn.Conv2d(8, 8, 1)).eval()
    data = [torch.randn(2, 3, size, size) for _ in range(4)]
    model = torch.jit.script(net)
    lowered = jit_passes.quantize_script(model, data, mode=mode, target="x86", progress=False)
    assert len(plans_in(lowered)) == 1
    for side in (size, size + 1, size + 4):
        x = torch.randn(1, 3, side, size)
        with torch.no_grad():
            assert lowered(x).shape == net(x).shape and sqnr(net(x), lowered(x)) > 20


@pytest.mark.parametrize("frontend", ["trace", "script"])
def test_a_net_in_the_mode_dynamic(frontend: str) -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 16, 20)
    model: Any = torch.jit.script(net) if frontend == "script" else torch.jit.trace(net, x)
    lowered, reference = (
        jit_passes.quantize_script(model, mode="dynamic", target=target, progress=False)
        for target in ("x86", "reference")
    )
    assert len(plans_in(lowered)) == 1 or frontend == "script"
    for shape in ((2, 3, 16, 20), (1, 3, 8, 12)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert sqnr(net(x), lowered(x)) > 25 and sqnr(reference(x), lowered(x)) > 45
