"""Products, numbers and softmax in float32 within plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import _C
from tests.compare import assert_codes
from tests.plans import Grid, Weighted, plan_of, traced
from tests.x86.building.test_rim import batches
from tests.x86.operators.test_floats import assert_same, converted, kinds_of
from tests.x86.program.test_state import mutate, restored


class Arithmetic(nn.Module):
    """Numbers, constants and values; scales are powers of two, so that linear is exact."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.grid, self.out = Grid(1 / 32, 131), Grid(1 / 8, 90), Grid(2.0, 120)
        self.factor = nn.Parameter(torch.randn(width), requires_grad=False)
        self.column = nn.Parameter(torch.randn(6, 1), requires_grad=False)
        self.linear = Weighted(nn.Linear(width, 9), exact=True)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        codes = self.into(x)
        a = (x * 0.3 + 1) * codes - 0.7 * y
        b = self.factor * a * self.column - 3
        c = torch.sub(b, codes, alpha=2)
        return self.out(self.linear(self.grid(c))), c, b * b, codes * codes[:, :1]


@pytest.mark.parametrize("width", [1, 5, 16, 100])
def test_arithmetic_is_exact(width: int) -> None:
    torch.manual_seed(width)
    region = traced(Arithmetic(width), *torch.randn(2, 2, 6, width))
    for batch in (2, 1, 5):
        plan = assert_same(region, *torch.randn(2, batch, 6, width))
    assert {"add", "multiply"} <= set(kinds_of(plan))


def test_numbers_that_are_not_finite_in_arithmetic() -> None:
    torch.manual_seed(0)
    region = traced(Arithmetic(5), *torch.randn(2, 2, 6, 5))
    plan = plan_of(region)
    x, y = torch.randn(2, 3, 6, 5)
    x[0, 1, 2], x[1, 0, 0], y[2, 3, 3] = float("nan"), float("inf"), -float("inf")
    with torch.no_grad():
        expected = region(x, y)
    for got, wanted in zip(plan.run([x, y]), expected, strict=True):
        assert torch.equal(got.nan_to_num(7), wanted.nan_to_num(7))


class Masked(nn.Module):
    """Attention by hand; the mask comes in, and minus infinity hides what is behind a token."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = Grid(0.03, 120), Grid(0.025, 131), Grid(0.04, 128)
        self.scores, self.weights, self.out = (
            Grid(0.19371237, 128),
            Grid(1 / 255, 0),
            Grid(0.03, 128),
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.attend(q, k, v, mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(self.q(q) @ self.k(k).transpose(1, 2)) * 0.3
        weights = torch.softmax(scores + mask, -1)
        return weights, self.out(self.weights(weights) @ self.v(v))


def test_softmax() -> None:
    """PyTorch adds up in another order: shares differ in their last bits, and codes by a step."""
    torch.manual_seed(0)
    mask = torch.full((7, 7), -float("inf")).triu(1)
    region = traced(Masked(), *torch.randn(3, 2, 7, 16), mask)
    plan = plan_of(region)
    names = [row[1] for row in plan.profile([*torch.randn(3, 2, 7, 16), mask])]
    assert names.count("softmax") == 1 and names.count("quantize") == 3  # those of q, k and v
    for batch, tokens in ((2, 7), (1, 1), (3, 70), (2, 130)):
        inputs = torch.randn(3, batch, tokens, 16)
        mask = torch.full((tokens, tokens), -float("inf")).triu(1)
        with torch.no_grad():
            weights, result = region(*inputs, mask)
        got_weights, got = plan.run([*inputs, mask])
        torch.testing.assert_close(got_weights, weights, rtol=2e-6, atol=0)
        assert (got_weights.triu(1) == 0).all()
        assert (got - result).abs().max() < 0.031
        assert ((got - result).abs() > 1e-6).float().mean() < 0.01


class Scaled(nn.Module):
    """Arithmetic with numbers and a gain behind layer norm, and in front of linear."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.gain = nn.Parameter(torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x) * 0.5 + 1
        x = x + self.one(y) * self.gain
        return self.two(torch.softmax(x * 2.0, -1) - x) * 3


@pytest.mark.parametrize("frontend", ["trace", "script"])
def test_models(frontend: str) -> None:
    torch.manual_seed(0)
    net, data = Scaled().eval(), batches(3, 5, 16)
    model: Any = torch.jit.script(net) if frontend == "script" else torch.jit.trace(net, data[0])
    prepared = jit_passes.prepare(model, target="x86")
    jit_passes.calibrate(prepared, data)
    reference = jit_passes.convert(prepared)
    found = jit_passes.partition(reference, target="x86")
    assert len(found.regions) == 1 and not found.refused
    lowered = jit_passes.lower(reference, target="x86")
    for batch in (3, 1, 8):
        x = torch.randn(batch, 5, 16)
        with torch.no_grad():
            signal, noise = reference(x).square().sum(), (lowered(x) - reference(x)).square().sum()
            assert noise < 1e-5 * signal
            assert (lowered(x) - net(x)).square().sum() < signal / 50


def test_a_number_that_the_model_computes() -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * (int(x[0, 0]) * 0 + x.size(0))

    torch.manual_seed(0)
    prepared = jit_passes.prepare(torch.jit.script(Computed().eval()), target="x86")
    jit_passes.calibrate(prepared, batches(4, 8))
    reference = jit_passes.convert(prepared)
    (region,) = jit_passes.partition(reference, target="x86").regions
    assert region.operators == ("linear:linear",)
    lowered = jit_passes.lower(reference, target="x86")
    step = jit_passes.encodings_of(reference).activations[-1].scale[0]
    for rows in (1, 3, 300):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            expected, found = reference(x), lowered(x)
        if rows == 300:
            assert_codes(expected, found, step * rows)
        else:  # of few codes none may differ, or one
            assert (found - expected).abs().max() < 1.01 * step * rows


def test_states() -> None:
    torch.manual_seed(0)
    mask = torch.full((7, 7), -float("inf")).triu(1)
    x = torch.randn(7, 7)

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.linear = Masked(), Weighted(nn.Linear(7, 7))
            self.grids = nn.ModuleList([Grid(0.02, 128), Grid(0.1, 120)])
            self.mask = nn.Parameter(mask, requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            x = x.unflatten(0, (1, 7))
            weights, y = self.attention.attend(x, x, x, self.mask)
            return self.grids[1](self.linear(self.grids[0](y * 0.5 - weights)))

    plan = plan_of(traced(Square(), x))
    (expected,) = plan.run([x])
    assert expected.isfinite().all()
    assert torch.equal(restored(plan.__getstate__()[0]).run([x])[0], expected)
    refused, ran = mutate(plan, x, 1000)
    assert refused > 250 and ran > 25


def test_sums_in_front_of_softmax() -> None:
    """A mask that hides scores has no grid: with -10,000 on it, scores would have no digits."""

    class Hides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
            self.mask = nn.Parameter(torch.full((5, 5), -10000.0).triu(1), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.q(x) @ self.k(x).transpose(1, 2) * 0.25
            return torch.softmax(scores + self.mask, -1) @ self.k(x)

    torch.manual_seed(0)
    net, data = Hides().eval(), batches(3, 5, 16)
    _, reference = converted(net, data)
    (region,) = jit_passes.partition(reference, target="x86").regions
    assert len(region.operators) == 9
    lowered, x = jit_passes.lower(reference, target="x86"), torch.randn(4, 5, 16)
    with torch.no_grad():
        assert (lowered(x) - net(x)).square().sum() < net(x).square().sum() / 300


def test_long_products() -> None:
    """Sums of float32 have no limit; those of codes are refused where int32 would not hold them."""

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            kv = self.k(x).softmax(-2).transpose(-1, -2) @ self.v(x)
            return self.q(x).softmax(-1) @ kv

    torch.manual_seed(0)
    model = torch.jit.script(Linear().eval())
    lowered = jit_passes.quantize_script(model, mode="dynamic", target="x86")
    x = torch.randn(1, 40000, 8)
    with torch.no_grad():
        expected = model(x)
        assert (lowered(x) - expected).square().sum() < expected.square().sum() / 1000


def test_products_between_dynamic_operators() -> None:
    """Products stay in float, and so the model asks for no data."""

    class Powers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x)
            return self.two(y @ y @ y @ y @ y)

    model = torch.jit.trace(Powers().eval(), torch.randn(8, 8))
    config = {"version": 1, "rules": [{"op": "linear", "mode": "dynamic"}]}
    prepared = jit_passes.prepare(model, target="x86", config=config)
    rows = jit_passes.coverage(jit_passes.lower(jit_passes.convert(prepared), target="x86"))
    assert [row.kind for row in rows.int8] == ["linear", "linear"]


class Power(nn.Module):
    """Of numbers on no grid."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0.5).pow(self.power)


@pytest.mark.parametrize("power", [0.0, torch.inf, torch.nan])
def test_powers_without_a_form(power: float) -> None:
    region = traced(Power(power), torch.randn(2, 3))
    (refusal,) = _C.plan_refusals(region._c, "forward").values()
    assert "its power is" in refusal


@pytest.mark.parametrize("power", [0.75, -1.5, 4.0, 1e-2, 7])
def test_powers(power: float) -> None:
    """Powers are right to the last place, of numbers of both signs and of NaN."""

    plan = plan_of(traced(Power(power), torch.randn(2, 3)))
    assert kinds_of(plan)[-1] == "function"
    x = torch.cat([torch.randn(500) * 10.0**i for i in range(-6, 7)])
    x[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 2.0])
    (got,) = plan.run([x])
    wanted = (x * 0.5).double().pow(power).float()
    torch.testing.assert_close(got, wanted, rtol=1.2e-7, atol=0, equal_nan=True)
