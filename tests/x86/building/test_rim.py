"""Operators in float at the rim of a plan: in front of its integers, and behind them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.plans import Grid, Weighted, plan_of, traced
from tests.x86.operators.test_floats import converted
from tests.x86.program.test_state import mutate, restored

WIDTH = 24


class Around(nn.Module):
    """A perceptron with what stands around it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.first, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 40), nn.ReLU(), nn.Linear(40, WIDTH))
        self.position = nn.Parameter(torch.randn(WIDTH))
        for norm in (self.first, self.last):
            nn.init.normal_(norm.weight, 1, 0.3)
            nn.init.normal_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "begins":
            return self.mlp(self.first(x))
        if self.form == "ends":
            return self.last(self.mlp(x))
        if self.form == "both":
            return self.last(self.mlp(self.first(x)))
        if self.form == "around":
            return x + self.mlp(self.first(x))
        if self.form == "residual":
            return self.last(x + self.mlp(x))
        if self.form == "moved":  # what only moves stands further out
            y = self.mlp(self.first(x.transpose(1, 2).contiguous().transpose(1, 2)))
            return self.last(x - y).transpose(1, 2)
        return self.last(self.mlp(self.first(x + self.position))).mean(1)  # positions


FORMS = {  # how many operators are inside, and what stays outside
    "begins": (4, ()),
    "ends": (4, ()),
    "both": (5, ()),
    "around": (5, ()),
    "residual": (5, ()),
    "moved": (6, ("transpose", "contiguous", "transpose#1", "transpose#2")),
    "positions": (7, ()),
}


def batches(*shape: int) -> list[Tensor]:
    return [torch.randn(shape) for _ in range(4)]


def assert_close(got: Tensor, expected: Tensor, step: float) -> None:
    """Layer norm adds up in another order: next to ties, codes are a step away.

    In front of linear layers such a code changes a row by some steps of their results.
    """
    assert got.shape == expected.shape and got.dtype == expected.dtype
    assert got.stride() == expected.stride()
    apart = (got - expected).abs()
    assert (apart > 2e-5 * (1 + expected.abs())).float().mean() < 0.05, apart.max()
    assert apart.max() <= 3 * step


def step_of(reference: Any) -> float:
    """Return the largest scale of its activations."""
    graph = reference.inlined_graph
    nodes = graph.findAllNodes("jit_passes::quantize")
    return float(max(list(node.inputs())[1].toIValue() for node in nodes))


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    torch.manual_seed(0)
    model, reference = converted(Around(form).eval(), batches(3, 7, WIDTH))
    found = jit_passes.partition(reference, target="x86")
    count, outside = FORMS[form]
    (region,) = found.regions
    assert len(region.operators) == count
    assert tuple(refusal.name for refusal in found.refused) == outside
    computed = [name for name in region.operators if "relu" not in name]
    assert jit_passes.inspect(model, target="x86").regions == [tuple(computed)]
    lowered = jit_passes.lower(reference, target="x86")
    assert "aten::layer_norm" not in str(lowered.graph) and "aten::add" not in str(lowered.graph)
    buffer = io.BytesIO()
    torch.jit.save(lowered, buffer)
    buffer.seek(0)
    loaded, step = torch.jit.load(buffer), step_of(reference)
    for batch in (3, 1, 8):
        x = torch.randn(batch, 7, WIDTH)
        before = x.clone()
        with torch.no_grad():
            expected = reference(x)
        got = lowered(x)
        assert_close(got, expected, step)
        assert torch.equal(x, before) and not got.requires_grad
        assert torch.equal(loaded(x), got)
        with torch.inference_mode():
            assert torch.equal(lowered(x.clone()), got)


@pytest.mark.parametrize("form", ["both", "around"])
def test_inputs_of_any_layout(form: str) -> None:
    """Inputs that are not contiguous, and of other dtypes, are copied."""
    torch.manual_seed(0)
    _, reference = converted(Around(form).eval(), batches(3, 7, WIDTH))
    lowered = jit_passes.lower(reference, target="x86")
    x = torch.randn(5, 7, WIDTH)
    expected = lowered(x)
    for other in (
        x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        torch.randn(5, 7, 2 * WIDTH)[..., ::2].copy_(x),
        torch.randn(5, 8, WIDTH)[:, 1:].copy_(x),
        x.double(),
        (-x)._neg_view(),
        torch.cat([torch.zeros(1), x.flatten()])[1:].view_as(x),
    ):
        assert torch.equal(lowered(other), expected)
    row = x[:, :1].expand_as(x)
    assert torch.equal(lowered(row), lowered(row.contiguous()))
    assert lowered(x[:0]).shape == (0, 7, WIDTH)


@pytest.mark.parametrize("form", ["begins", "ends", "both", "around", "residual"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite(form: str, number: float) -> None:
    """A row with such a number is that of the reference model, and others do not see it."""
    torch.manual_seed(0)
    _, reference = converted(Around(form).eval(), batches(3, 7, WIDTH))
    lowered = jit_passes.lower(reference, target="x86")
    x = torch.randn(3, 7, WIDTH)
    clean = lowered(x)
    x[1, 2, 5] = number
    with torch.no_grad():
        expected = reference(x)
    got = lowered(x)
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert torch.equal(got.isnan(), expected.isnan())
    finite = expected.isfinite()
    assert (got - expected)[finite].abs().max() <= 3 * step_of(reference)
    assert torch.equal(got[[0, 2]], clean[[0, 2]])


class Images(nn.Module):
    """Layer norm over channels in front of a convolution, and behind one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.LayerNorm(8), nn.LayerNorm(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.first(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return self.last((x + y).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_channels() -> None:
    torch.manual_seed(0)
    _, reference = converted(Images().eval(), batches(2, 8, 6, 9))
    found = jit_passes.partition(reference, target="x86")
    (region,) = found.regions
    assert {name.split(":")[-1] for name in region.operators} == {
        "layer_norm", "permute#1", "conv2d", "add", "permute#2"
    }  # fmt: skip
    assert {r.name for r in found.refused} == {"permute", "permute#3"}
    lowered = jit_passes.lower(reference, target="x86")
    for shape in ((2, 8, 6, 9), (1, 8, 3, 3), (5, 8, 1, 4)):
        for x in (torch.randn(shape), torch.randn(shape).to(memory_format=torch.channels_last)):
            with torch.no_grad():
                assert_close(lowered(x), reference(x), step_of(reference))


def names_of(net: nn.Module, *shape: int) -> list[tuple[str, ...]]:
    torch.manual_seed(0)
    _, reference = converted(net.eval(), batches(*shape))
    return [r.operators for r in jit_passes.partition(reference, target="x86").regions]


class Written(nn.Module):
    """The first layer norm reads what is written in place, and so does the last sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x)
        y[:, 0] = 1.0
        return self.linear(self.norm(y)) + y


class Returns(nn.Module):
    """With the first layer norm inside, a path would leave the region and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.two(self.one(y) + torch.cummax(y, 1)[0])


class Apart(nn.Module):
    """Layer norms that no path over the plan's operators joins with integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.linear, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cummax(self.linear(torch.cummax(self.first(x), 0)[0]), 0)[0])


class Averages(nn.Module):
    """Means in front of integers, and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.two(self.one(x.mean(1))) + x.mean(2).unsqueeze(-1)[:, 0]).mean(1)


class Shifted(nn.Module):
    """A sum that no layer norm reads: its operand would be copied, to be written once more."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.conv = nn.Parameter(torch.randn(3, 1, 1)), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x - self.mean) + x


@pytest.mark.parametrize(
    ("make", "shape", "regions"),
    [
        (Written, (4, 8), [("linear:linear",)]),
        (Returns, (4, 8), [("one:linear", "add", "two:linear")]),
        (Averages, (4, 5, 8), [("one:linear", "two:linear", "add", "mean#2")]),
        (Shifted, (2, 3, 6, 6), [("conv:conv2d", "add")]),
        (Apart, (4, 8), [("linear:linear",)]),
    ],
    ids=["written", "returns", "averages", "shifted", "apart"],
)
def test_what_stays_outside(
    make: Callable[[], nn.Module], shape: tuple[int, ...], regions: list[tuple[str, ...]]
) -> None:
    assert names_of(make(), *shape) == regions


class Plain(nn.Module):
    """A region by hand: float32 in, float32 and codes out, one of them twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), Weighted(nn.Linear(width, width), True)
        self.into, self.out = Grid(1 / 32, 120), Grid(1 / 4, 110)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x - y
        w = self.out(self.linear(self.into(z)))
        return z, w + y, w, z, self.norm(w + y), (w + y).flatten(0, 1)


def test_values_lie_where_they_are_taken_and_given() -> None:
    """Without a copy; results are tensors of their own, whatever happens to the others."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 5, 16)
    region = traced(Plain(16), x, y)
    plan = plan_of(region)
    kernels = [row[1] for row in plan.profile([x, y])]
    assert "input" not in kernels
    assert kernels.count("dequantize") == 2  # codes, and the value that is returned once more
    for batch in (3, 1, 6):
        x, y = torch.randn(2, batch, 5, 16)
        kept = x.clone(), y.clone()
        with torch.no_grad():
            expected = region(x, y)
        results = plan.run([x, y])
        for got, wanted in zip(results[:4], expected[:4], strict=True):
            assert torch.equal(got, wanted)
        torch.testing.assert_close(results[4], expected[4], rtol=1e-5, atol=2e-5)
        assert torch.equal(results[5], expected[5])
        for result in results:
            result.zero_()
        assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])
        assert torch.equal(plan.run([x, y])[0], expected[0])


def test_states() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, WIDTH)
    for form in ("both", "around"):
        _, reference = converted(Around(form).eval(), batches(3, 7, WIDTH))
        (region,) = jit_passes.partition(reference, target="x86").regions
        plan = plan_of(region.module)
        (expected,) = plan.run([x])
        assert torch.equal(restored(plan.__getstate__()[0]).run([x])[0], expected)
        refused, ran = mutate(plan, x, 800)
        assert refused > 200 and ran > 20
