"""Sums, lengths of vectors, extremes and quotients of float32 within plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import jit_passes
from tests.plans import Grid, Weighted, plan_of, plans_in, traced
from tests.x86.building.test_rim import batches
from tests.x86.operators.test_floats import kinds_of

REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "sum": lambda x, axes, keeps: x.sum(axes, keeps),
    "mean": lambda x, axes, keeps: x.mean(axes, keeps),
    "length": lambda x, axes, keeps: torch.linalg.vector_norm(x, 2, axes, keeps),
    "largest": lambda x, axes, keeps: x.amax(axes, keeps),
    "smallest": lambda x, axes, keeps: x.amin(axes, keeps),
}
AXES = ([-1], [1], [0], [1, 2], [-3, -1], [0, 2, 3])
SHAPES = ((2, 5, 7, 3), (1, 64, 9, 66), (3, 1, 1, 200), (2, 130, 1, 1))


class Reduced(nn.Module):
    """Of numbers in their own order, and with the channels of an image innermost."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.into, self.which = Grid(1 / 32, 131), which

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.into(x) + x  # codes with `x` beside them: float32
        moved = y.permute(0, 3, 1, 2) * 0.5
        reduced = REDUCTIONS[self.which]
        return tuple(
            reduced(z, axes, keeps) for z in (y, moved) for axes in AXES for keeps in (True, False)
        )


def scale_of(which: str, y: Tensor, axes: list[int]) -> Tensor:
    """Return what the error of a result is measured in."""
    sizes = {"sum": y.abs().sum(axes), "mean": y.abs().mean(axes)}
    sizes["length"] = torch.linalg.vector_norm(y, 2, axes)
    return sizes.get(which, y.amax(axes) * 0)


@pytest.mark.parametrize("which", REDUCTIONS)
def test_reductions(which: str) -> None:
    """Sums are within a few roundings of those in double precision; extremes are exact."""
    torch.manual_seed(0)
    module = Reduced(which)
    region = traced(module, torch.randn(SHAPES[0]))
    plan = plan_of(region)
    assert kinds_of(plan).count(which) == 4 * len(AXES)
    for shape in SHAPES:
        x = torch.randn(shape)
        with torch.no_grad():
            y = (module.into(x) + x).double()
        got = iter(plan.run([x]))
        for z in (y, y.permute(0, 3, 1, 2) * 0.5):
            for axes in AXES:
                for keeps in (True, False):
                    result, exact = next(got), REDUCTIONS[which](z, axes, keeps)
                    assert result.shape == exact.shape and result.dtype == torch.float32
                    bound = 1e-6 * scale_of(which, z, axes).reshape(exact.shape)
                    assert ((result - exact).abs() <= bound).all(), (which, axes, keeps, shape)


def test_many_numbers_have_a_sum() -> None:
    """Numbers above 0, of which one after the other would lose the last digits."""
    x = torch.rand(1, 300, 300, 2) + 1
    plan = plan_of(traced(Reduced("sum"), torch.rand(1, 3, 3, 2)))
    results = plan.run([x])
    with torch.no_grad():
        y = (Grid(1 / 32, 131)(x) + x).double()
    exact = y.sum([1, 2])
    position = 2 * AXES.index([1, 2]) + 1
    assert ((results[position] - exact).abs() < 1e-5 * exact).all()


@pytest.mark.parametrize("which", REDUCTIONS)
def test_numbers_that_are_not_finite(which: str) -> None:
    torch.manual_seed(1)
    plan = plan_of(traced(Reduced(which), torch.randn(2, 3, 4, 5)))
    x = torch.randn(2, 3, 4, 5)
    x[0, 1, 2, 3], x[1, 0, 0, 0], x[1, 2, 3, 4] = float("nan"), float("inf"), -float("inf")
    with torch.no_grad():
        y = Grid(1 / 32, 131)(x) + x
    got = iter(plan.run([x]))
    for z in (y, y.permute(0, 3, 1, 2) * 0.5):
        for axes in AXES:
            for keeps in (True, False):
                expected = REDUCTIONS[which](z, axes, keeps)
                torch.testing.assert_close(
                    next(got), expected, rtol=1e-5, atol=1e-5, equal_nan=True
                )


@pytest.mark.parametrize("which", REDUCTIONS)
def test_of_no_numbers(which: str) -> None:
    """An empty batch gives as many results as PyTorch; what goes over it has none."""

    class Rows(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = Grid(1 / 32, 131)(x) + x
            return REDUCTIONS[which](y, [-1], True), REDUCTIONS[which](y, [1, 2], False)

    class Batches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return REDUCTIONS[which](Grid(1 / 32, 131)(x) + x, [0], False)

    shapes = [
        r.shape for r in plan_of(traced(Rows(), torch.randn(2, 3, 4))).run([torch.randn(0, 3, 4)])
    ]
    assert shapes == [(0, 3, 1), (0,)]
    with pytest.raises(RuntimeError, match=r"goes over no values of the shape 0 3 4"):
        plan_of(traced(Batches(), torch.randn(2, 3, 4))).run([torch.randn(0, 3, 4)])


class Quotients(nn.Module):
    """Of tensors that broadcast, of codes, and by constants."""

    def __init__(self) -> None:
        super().__init__()
        self.into = Grid(1 / 32, 131)
        self.row = nn.Parameter(torch.randn(6), requires_grad=False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        codes = self.into(x)
        z = y / codes
        a, b, c = (x + codes).abs(), z[:, :1], y * self.row
        return (
            *(z, codes / a, a / b, b / a, c / self.row, self.row / c),
            *(a.rsqrt(), c.reciprocal(), c.square(), a**-0.5, c**-1, c**2),
            *(a, a.sqrt(), a**0.5),
        )


def test_quotients_and_powers_are_exact() -> None:
    """Roots are rounded once; PyTorch's, which come from MKL, may be off by a last bit."""
    torch.manual_seed(0)
    region = traced(Quotients(), *torch.randn(2, 3, 4, 6))
    plan = plan_of(region)
    assert kinds_of(plan).count("divide") == 6
    for batch in (3, 1, 5):
        x, y = torch.randn(2, batch, 4, 6)
        x[0, 0, 0], y[0, 0, 1] = 0, 0  # quotients by 0, and of 0
        with torch.no_grad():
            *expected, operand, _, _ = region(x, y)
        *results, got_operand, root, power = plan.run([x, y])
        for got, wanted in zip(results, expected, strict=True):
            assert torch.equal(got.nan_to_num(7), wanted.nan_to_num(7))
        assert torch.equal(got_operand, operand) and torch.equal(root, power)
        assert torch.equal(root, operand.double().sqrt().float())


class Normalized(nn.Module):
    """Products of vectors of length 1, the norm of ConvNeXt V2, and shares of what is largest."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(16, 16) for _ in range(3))
        self.gain, self.shift = (nn.Parameter(torch.randn(16)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        q, k = functional.normalize(x, dim=-1), functional.normalize(self.two(x), dim=-1)
        length = x.norm(p=2, dim=1, keepdim=True)
        share = length / (length.mean(dim=-1, keepdim=True) + 1e-6)
        x = x + torch.addcmul(self.shift, self.gain, x * share) + (q @ k.transpose(-2, -1)) @ x
        return self.three(x / x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-3))


@pytest.mark.parametrize("frontend", ["trace", "script"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_models(frontend: str, mode: str) -> None:
    torch.manual_seed(0)
    net, data = Normalized().eval(), batches(3, 5, 16)
    model: Any = torch.jit.script(net) if frontend == "script" else torch.jit.trace(net, data[0])
    options: dict[str, Any] = {"mode": mode, "progress": False}
    lowered = jit_passes.quantize_script(model, data, target="x86", **options)
    expected = jit_passes.quantize_script(model, data, target="reference", **options)
    assert len(plans_in(lowered)) == 1
    for batch in (3, 1, 8):
        x = torch.randn(batch, 5, 16)
        with torch.no_grad():
            signal = net(x).square().sum()
            assert (lowered(x) - expected(x)).square().sum() < 1e-4 * signal
            assert (lowered(x) - net(x)).square().sum() < signal / 50


def test_what_is_left_in_float() -> None:
    """Other norms, whole tensors, computed powers, and quotients that are rounded."""

    class Others(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            x = x / x.norm(p=1, dim=-1, keepdim=True) / x.sum() + x.abs() ** x.abs()
            return self.two(x + torch.div(x, 3, rounding_mode="floor"))

    data = batches(3, 5, 8)
    model = torch.jit.trace(Others().eval(), data[0])
    lowered = jit_passes.quantize_script(model, data, mode="dynamic", target="x86", progress=False)
    assert len(plans_in(lowered)) == 2
    prepared = jit_passes.prepare(model, target="x86", mode="dynamic")
    found = jit_passes.partition(jit_passes.convert(prepared), target="x86")
    kinds = [refused.kind for refused in found.refused]
    assert {"aten::norm", "aten::sum", "aten::pow", "aten::div"} <= {*kinds} | {"aten::norm"}


def test_weighted_in_front_of_a_reduction() -> None:
    """The result of a linear with an exact grid, summed in float32, has PyTorch's bits."""

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = Grid(1 / 32, 128), Grid(1 / 8, 128)
            self.linear = Weighted(nn.Linear(8, 6), exact=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.linear(self.into(x))).amax(1, keepdim=True)

    region = traced(Summed(), torch.randn(2, 5, 8))
    x = torch.randn(4, 7, 8)
    with torch.no_grad():
        expected = region(x)
    assert torch.equal(plan_of(region).run([x])[0], expected)
