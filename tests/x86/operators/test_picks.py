"""Operators of plans that pick numbers, where and gather, and functions along an axis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, plan_of, plans_in, traced


class Alone(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 8)
        self.function = function

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), *others))


def in_one_plan(function: Callable[..., Tensor], *inputs: Tensor) -> torch.jit.ScriptModule:
    """Quantize the function between two layers in both modes, and return the dynamic model."""
    torch.manual_seed(0)
    model = Between(function).eval()
    script = torch.jit.trace(model, inputs)
    for mode in ("static", "dynamic"):
        lowered = jit_passes.quantize_script(script, [inputs], mode=mode, target="x86")
        assert len(plans_in(lowered)) == 1
        with torch.no_grad():
            assert sqnr(model(*inputs), lowered(*inputs)) > 28, mode
    return lowered


SHAPES = {
    "numbers": ((3, 4, 5), (3, 4, 5), (3, 4, 5)),
    "broadcast": ((4, 1), (3, 1, 5), (5,)),
    "image": ((2, 3, 6, 7), (2, 3, 6, 7), (3, 1, 1)),
    "five axes": ((2, 3, 1, 5, 2), (2, 1, 4, 5, 2), (1,)),
    "empty": ((0, 4), (4,), (0, 1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_where(name: str) -> None:
    """PyTorch's bits, with a condition of bool, or of numbers."""
    condition, a, b = (torch.randn(shape) for shape in SHAPES[name])
    if name == "numbers":
        a[0, 0, 0], b[0, 0, 1] = torch.inf, torch.nan

    def function(c: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.where(c, torch.neg(x), torch.neg(y))

    mask = condition > 0
    plan = plan_of(traced(Alone(function), mask, a, b))
    for given in (mask, ~mask):
        (got,) = plan.run([given, a, b])
        assert torch.equal(got.nan_to_num(7.0), torch.where(given, -a, -b).nan_to_num(7.0))


CAUSAL = torch.ones(12, 12, dtype=torch.bool).tril()


def test_where_between_layers() -> None:
    x = torch.randn(4, 12, 16)
    in_one_plan(lambda y, c: torch.where(c, torch.tanh(y), torch.square(y)), x, x > 0.5)
    in_one_plan(lambda y, c: torch.where(c, torch.tanh(y), -0.5), x, x > 0.5)

    def attend(y: Tensor) -> Tensor:
        scores = y @ y.transpose(-1, -2)
        return torch.softmax(torch.where(CAUSAL, scores, -1e4), -1) @ y

    in_one_plan(attend, x)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5), (2, 3, 2, 4, 5)], ids=len)
def test_gather(shape: tuple[int, ...], axis: int) -> None:
    """PyTorch's bits; the index may be shorter along other axes."""
    x = torch.randn(shape)
    sizes = [min(size, 2) for size in shape]
    sizes[axis] = 7
    plan = plan_of(
        traced(
            Alone(lambda x, i: torch.gather(torch.neg(x), axis, i)), x, torch.zeros(sizes).long()
        )
    )
    for _ in range(3):
        index = torch.randint(x.shape[axis], sizes)
        (got,) = plan.run([x, index])
        assert torch.equal(got, torch.gather(-x, axis, index))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("wrong", [-1, 12])
def test_gather_beyond_the_end(wrong: int, threads: int) -> None:
    """An index beyond the end is an error, on all threads, and the next call is right."""
    x, index = torch.randn(64, 12, 16), torch.randint(12, (64, 3, 16))
    lowered = in_one_plan(lambda y, i: torch.gather(F.layer_norm(y, [16]), 1, i), x, index)
    bad = index.clone()
    bad[5, 1, 3] = wrong
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        want = lowered(x, index)
        with pytest.raises(RuntimeError, match=rf"takes element {wrong} of an axis of 12"):
            lowered(x, bad)
        assert torch.equal(lowered(x, index), want)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("shape", [(5, 7), (2, 300, 33), (2, 3, 5, 6)], ids=len)
def test_log_softmax(shape: tuple[int, ...], axis: int) -> None:
    """Against double precision, also of numbers that are far apart."""
    plan = plan_of(traced(Alone(lambda x: F.log_softmax(torch.neg(x), axis)), torch.randn(shape)))
    for scale in (1, 1e-3, 200):
        x = scale * torch.randn(shape)
        (got,) = plan.run([x])
        want = F.log_softmax(-x.double(), axis)
        assert (got - want).abs().max() <= 3e-7 * want.abs().max()
    x = torch.randn(shape)
    x.view(-1)[0] = torch.nan
    (got,) = plan.run([x])
    assert torch.equal(got.isnan(), F.log_softmax(-x, axis).isnan())


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(5,), (5, 7), (2, 30, 33), (2, 3, 5, 6), (0, 4)], ids=str)
def test_cumsum(shape: tuple[int, ...], axis: int) -> None:
    """The numbers of PyTorch's operator, whose sums are in double precision too."""
    axis = min(axis, len(shape) - 1)
    plan = plan_of(traced(Alone(lambda x: torch.neg(x).cumsum(axis)), torch.randn(shape)))
    x = torch.randn(shape)
    (got,) = plan.run([x])
    assert torch.equal(got, (-x).cumsum(axis))
    if x.numel():
        x.view(-1)[x.numel() // 2] = torch.nan
        (got,) = plan.run([x])
        assert torch.equal(got.isnan(), x.cumsum(axis).isnan())


class OfCodes(nn.Module):
    """A function of codes on a grid, in float32."""

    def __init__(self, function: Callable[..., Tensor], columns: int) -> None:
        super().__init__()
        self.function, self.grid = function, Grid(0.031, 131)
        self.slopes = nn.Parameter(torch.linspace(-1, 1, columns))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.grid(x), self.slopes)


OF_ROWS: dict[str, Callable[..., Tensor]] = {
    "log_softmax": lambda x, _: F.log_softmax(x, 1),
    "cumsum": lambda x, _: x.cumsum(1),
    "prelu": F.prelu,
    "layer_norm": lambda x, s: F.layer_norm(x.transpose(1, -1), list(s.shape), s, s),
    "softmax": lambda x, _: x.softmax(1),
}


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("columns", [1, 7, 64, 4096, 4097])
def test_rows_of_codes(columns: int, name: str) -> None:
    """Decoded as the kernel reads them: the bits of float32 that comes in, and no step more."""
    function = OF_ROWS[name]
    module = OfCodes(function, columns).eval()
    shape = (2, columns, 3, 37) if columns < 100 else (2, columns, 3)
    plan = plan_of(traced(module, torch.randn(shape)))
    slopes = module.slopes.detach()
    floats = plan_of(traced(Alone(lambda x: function(torch.neg(x), slopes)), torch.randn(shape)))
    x = torch.randn(shape)
    last = torch.randn(shape[0], *shape[2:], columns).movedim(-1, 1)
    for given in (x, last, x[:0], x[:1]):
        assert torch.equal(plan.run([given])[0], floats.run([-module.grid(given)])[0])
    steps = [row[1] for row in plan.profile([x])]
    assert ("dequantize" in steps[:-1]) == (columns > 4096)


def test_cumsum_between_layers() -> None:
    in_one_plan(lambda y: y.cumsum(-1) / 4, torch.randn(9, 16))


def test_log_softmax_between_layers() -> None:
    in_one_plan(lambda y: F.log_softmax(y, -1), torch.randn(9, 16))


@pytest.mark.parametrize("number", [1e39, 1e300])
def test_numbers_beyond_float32(number: float) -> None:
    """Numbers beyond float32 are infinite there, as in the float model, and no error."""
    model = torch.jit.trace(Between(lambda y: y * number).eval(), torch.randn(3, 16))
    lowered = jit_passes.quantize_script(model, mode="dynamic", target="x86")
    assert not lowered(torch.randn(3, 16)).isfinite().any()


def test_more_elements_than_float32_tells_apart() -> None:
    plan = plan_of(
        traced(
            Alone(lambda x, i: torch.gather(torch.neg(x), 0, i)), torch.ones(3), torch.tensor([1])
        )
    )
    with pytest.raises(RuntimeError, match="picks along at most 16777216 numbers"):
        plan.run([torch.zeros(2**24 + 1), torch.tensor([5])])
