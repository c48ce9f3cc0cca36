"""Comparisons of plans, whose truths other operators of the plan read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, plan_of, traced
from tests.x86.operators.test_floats import kinds_of
from tests.x86.operators.test_picks import SHAPES, Alone, Between, in_one_plan
from tests.x86.program.test_state import mutate, restored

Function = Callable[..., Tensor]
TESTS: dict[str, Function] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "isnan": lambda a, b: torch.isnan(a) | torch.isnan(b),
    "logical and": torch.logical_and,
    "logical or": torch.logical_or,
    "logical not": lambda a, b: torch.logical_not(a) | (b > 0),
    "and": lambda a, b: (a > 0) & (b > 0),
    "or": lambda a, b: (a > 0) | (b != 0),
    "not": lambda a, b: ~(a > b),
    "number": lambda a, b: (a > 0.1) & (b <= -1),
}


class Picked(nn.Module):
    """Numbers by a test, of float32 or of codes."""

    def __init__(self, test: Function, codes: bool) -> None:
        super().__init__()
        self.test, self.codes = test, codes
        self.first, self.second = Grid(0.031, 131), Grid(0.031, 120)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a = self.first(a) if self.codes else torch.neg(a)
        b = self.second(b) if self.codes else torch.neg(b)
        return torch.where(self.test(a, b), torch.square(a), torch.neg(b))


def special(x: Tensor) -> Tensor:
    """Write zeros of both signs, infinities and a NaN to the front of a tensor."""
    values = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0])
    count = min(len(values), x.numel())
    x.view(-1)[:count] = values[:count]
    return x


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("name", TESTS)
def test_against_pytorch(name: str, codes: bool) -> None:
    """The bits of PyTorch's operators, with tails, operands that broadcast, and empty tensors."""
    for _, a_shape, b_shape in (*SHAPES.values(), ((), (33, 67), (33, 67))):
        module = Picked(TESTS[name], codes).eval()
        a, b = torch.randn(a_shape), torch.randn(b_shape)
        region = traced(module, a, b)
        plan = plan_of(region)
        assert "compare" in kinds_of(plan)
        if not codes:
            a, b = special(a), special(b.flip(0).clone())
        for x, y in ((a, b), (b.expand_as(a + b).clone(), a)):
            assert torch.equal(plan.run([x, y])[0].nan_to_num(7.0), region(x, y).nan_to_num(7.0))


@pytest.mark.parametrize("codes", [True, False])
def test_layouts(codes: bool) -> None:
    """Channels last, and views with gaps."""
    module = Picked(TESTS["lt"], codes).eval()
    x = torch.randn(2, 35, 6, 7)
    region = traced(module, x, x)
    plan = plan_of(region)
    last = torch.randn(2, 35, 6, 7).contiguous(memory_format=torch.channels_last)
    gaps = torch.randn(2, 70, 12, 7)[:, ::2, ::2]
    for a, b in ((x, last), (last, last.flip(1)), (gaps, x), (x[:0], x[:0])):
        assert torch.equal(plan.run([a, b])[0], region(a, b))


BETWEEN: dict[str, Function] = {
    "leaky": lambda y: torch.where(y > 0, y, y * 0.1),
    "below another": lambda y: torch.where(torch.lt(y, torch.sigmoid(y)), y, torch.tanh(y)),
    "filled": lambda y: y.masked_fill(y < 0.1, 0.0),
    "within": lambda y: torch.where((y > 0) & (y < 1), y, torch.tanh(y)),
    "factor": lambda y: y * (y > 0).float(),
    "two readers": lambda y: torch.where(y > 0, y, y * 0.5).masked_fill(~(y > 0), 0.0),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_between_layers(name: str) -> None:
    in_one_plan(BETWEEN[name], torch.randn(6, 9, 16))


OUTSIDE: dict[str, Function] = {
    "returned": lambda y: torch.where(y > 0, y, 0.1),
    "product of truths": lambda y: y * (y > 0),
    "sum of truths": lambda y: y / (y > 0).sum(-1, keepdim=True).clamp(min=1),
    "reshaped": lambda y: torch.where((y > 0).flatten(1).view_as(y), y, 0.1),
}


class Reads(nn.Module):
    """A test between two layers, which others read too."""

    def __init__(self, function: Function, gives: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 8)
        self.function, self.gives = function, gives

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        z = self.function(y)
        return self.last(z), y > 0 if self.gives else torch.zeros(1)


BITS: dict[str, Function] = {
    "and": lambda y, ids: torch.where((ids != 0) & (y > 0), y, torch.tanh(y)),
    "not, or": lambda y, ids: torch.where(~(ids != 0) | (y > 0), y, torch.tanh(y)),
    "positions": lambda y, n: torch.where((torch.arange(16) >= n) & (y > 0), y, torch.tanh(y)),
}


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("name", BITS)
def test_truths_of_whole_numbers(name: str, mode: str) -> None:
    """Comparisons of whole numbers stay outside, and the operators on bits that read them too."""
    torch.manual_seed(0)
    inputs = torch.randn(6, 9, 16), torch.randint(0, 5, (9, 1))
    model = Between(BITS[name]).eval()
    script = torch.jit.trace(model, inputs)
    lowered = jit_passes.quantize_script(script, [inputs], mode=mode, target="x86")
    with torch.no_grad():
        assert sqnr(model(*inputs), lowered(*inputs)) > 28


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_truths_that_others_read(name: str, mode: str) -> None:
    """No plan gives truths: these stay outside, and what reads them takes them as they are."""
    torch.manual_seed(0)
    x = torch.randn(6, 9, 16)
    model = Reads(OUTSIDE[name], gives=name == "returned").eval()
    script = torch.jit.trace(model, x)
    lowered = jit_passes.quantize_script(script, [x], mode=mode, target="x86")
    with torch.no_grad():
        (y, truths), (found, found_truths) = model(x), lowered(x)
    assert sqnr(y, found) > 22
    assert found_truths.dtype == truths.dtype and found_truths.shape == truths.shape


def test_bits_of_numbers() -> None:
    """An operator on bits of whole numbers is refused."""
    whole = torch.randint(5, (3, 4))
    region = traced(Alone(lambda x, i: F.relu(x) + (i & i)), torch.randn(3, 4), whole)
    with pytest.raises(RuntimeError, match="not truths that the model compares"):
        plan_of(region)


def test_files() -> None:
    x = torch.randn(3, 20)
    plan = plan_of(traced(Picked(TESTS["ge"], True).eval(), x, x))
    assert torch.equal(
        restored(plan.__getstate__()[0]).run([x, x.flip(0)])[0], plan.run([x, x.flip(0)])[0]
    )
    lists, scales, operators = plan.__getstate__()[0]
    others = [
        (texts, [*parts[:2], [7]] if texts[0] == "compare" else parts, tensors)
        for texts, parts, tensors in operators
    ]
    with pytest.raises(RuntimeError, match="test 7"):
        restored((lists, scales, others))
    assert mutate(plan, [x, x], 300)[0] > 30
