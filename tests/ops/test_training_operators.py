"""Operators that train a grid against slow references: x * fold quantized, and divided again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes  # noqa: F401  registers the operators
from jit_passes.observers import KLJ, MeanSquaredError, Observer, ObserverState, ThreeSigma
from tests.folders import ROOT
from tests.processes import start_script
from tests.qat_nets import makes_scales_positive

own = torch.ops.jit_passes
GRIDS = [(-128, 127), (-8, 7), (-2, 1), (-127, 127)]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Seeded, from a normal distribution."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def corrections() -> Tensor:
    return torch.zeros(1, dtype=torch.int64)


def unset(*shape: int) -> Tensor:
    """A parameter before its first batch."""
    return torch.full(shape, math.inf).requires_grad_()


def unseen(*channels: int) -> Tensor:
    """A range before its first batch."""
    return torch.stack([torch.full(channels, math.inf), torch.full(channels, -math.inf)])


def lsq(
    x: Tensor, scale: Tensor, fold: Tensor | None = None, grid: tuple[int, int] = (-8, 7),
    *, axis: int | None = None, fold_axis: int = 0, observe: bool = True, enabled: bool = True,
    rule: str = "lsq", per_sample: bool = False, rounding: str = "half_even", group: str = "",
    count: Tensor | None = None,
) -> Tensor:  # fmt: skip
    count = corrections() if count is None else count
    before = (x, scale, count, fold, fold_axis, observe, enabled, rule, per_sample)
    return own.train_lsq(*before, *grid, axis, rounding, 0, group, "conv1 weight", "{}")


def tqt(
    x: Tensor, threshold: Tensor, fold: Tensor | None = None, grid: tuple[int, int] = (-8, 7),
    *, axis: int | None = None, fold_axis: int = 0, observe: bool = True, enabled: bool = True,
    rule: str = "max", rounding: str = "half_even", group: str = "",
) -> Tensor:  # fmt: skip
    before = (x, threshold, fold, fold_axis, observe, enabled, rule)
    return own.train_tqt(*before, *grid, axis, rounding, group, "conv1 weight", "{}")


def lsq_plus(
    x: Tensor, scale: Tensor, offset: Tensor, grid: tuple[int, int] = (-8, 7), *,
    observe: bool = True, enabled: bool = True, per_sample: bool = False,
    rounding: str = "half_even", group: str = "", count: Tensor | None = None,
) -> Tensor:  # fmt: skip
    count = corrections() if count is None else count
    before = (x, scale, offset, count, observe, enabled, per_sample)
    return own.train_lsq_plus(*before, *grid, rounding, group, "conv1 input", "{}")


def average(
    x: Tensor, state: Tensor, fold: Tensor | None = None, grid: tuple[int, int] = (-8, 7), *,
    axis: int | None = None, fold_axis: int = 0, observe: bool = True, enabled: bool = True,
    constant: float = 1.0, pair_sums: bool = False, scheme: str = "symmetric",
    rounding: str = "half_even", group: str = "",
) -> Tensor:  # fmt: skip
    scheme = f"per_{'tensor' if axis is None else 'channel'}_{scheme}"
    before = (x, state, fold, fold_axis, observe, enabled, constant, pair_sums)
    return own.fake_quantize_moving_average(
        *before, *grid, scheme, axis, rounding, group, "conv1 weight", "{}"
    )


class Slow(torch.autograd.Function):
    """Fake quantization in double, one scale for each element, with the papers' gradients."""

    @staticmethod
    def forward(
        context: Any, v: Tensor, scale: Tensor, low: int, high: int, rounded: bool
    ) -> Tensor:
        steps = v / scale
        code = steps.round()
        inside = ((code >= low) & (code <= high)) if rounded else ((steps > low) & (steps < high))
        clipped = code.clamp(low, high)
        context.save_for_backward(inside, torch.where(inside, code - steps, clipped))
        return clipped * scale

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inside, slope = context.saved_tensors
        return gradient * inside, gradient * slope, None, None, None


def along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[axis] = -1
    return values.reshape(shape)


def weight(fold_axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """A weight, a fold with negative numbers and one for its gradient; no ties for any scale used.

    Powers of two and few bits: products and quotients are exact, whichever way they are made.
    """
    x = (numbers(6, 5, 3, 3, seed=1) * 2**10).round() / 2**10 + 2**-13
    channels = x.size(fold_axis)
    fold = torch.tensor([1.0, -2.0, 0.25, -0.5, 4.0, -1.0])[:channels]
    return x, fold, numbers(*x.shape, seed=2)


def compare(
    ours: Tensor, theirs: Tensor, gradient: Tensor, leaves: list[Tensor], doubles: list[Tensor]
) -> None:
    """The result to float32; sums of gradients to 1e-5, as the tiny tensors behind are float32."""
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-7)
    found = torch.autograd.grad(ours, leaves, gradient)
    wanted = torch.autograd.grad(theirs, doubles, gradient.double())
    assert torch.equal(found[0].double(), wanted[0])
    for left, right in zip(found[1:], wanted[1:], strict=True):
        assert left.any()
        torch.testing.assert_close(left.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fold_axis", [0, 1])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", ["lsq", "tqt"])
def test_fold(name: str, per_channel: bool, grid: tuple[int, int], fold_axis: int) -> None:
    """fq(x * fold) / fold, and gradients for x, the parameter and the fold."""
    x, fold, gradient = weight(fold_axis)
    for factor in (1.0, 16.0):  # within the grid, and far beyond
        size = len(fold) if per_channel else 1
        if name == "lsq":
            parameter = torch.linspace(0.3, 0.5, size) / factor
        else:
            parameter = torch.linspace(-0.4, 1.9, size) - math.log2(factor)
        leaves = [t.clone().requires_grad_() for t in (x, parameter, fold)]
        doubles = [t.double().requires_grad_() for t in (x, parameter, fold)]
        axis = fold_axis if per_channel else None
        options: dict[str, Any] = {"axis": axis, "fold_axis": fold_axis, "observe": False}
        ours = {"lsq": lsq, "tqt": tqt}[name](*leaves, grid, **options)
        values, parameter, fold_of = doubles
        if name == "lsq":
            g = 1 / math.sqrt(x.numel() / size * grid[1])
            scale = parameter.detach() + g * (parameter - parameter.detach())
        else:
            power = torch.exp2(parameter.ceil() - math.ceil(math.log2(-grid[0]))).detach()
            scale = power * (1 + math.log(2) * (parameter - parameter.detach()))
        fold_of = along(fold_of, x, fold_axis)
        scales = (along(scale, x, fold_axis) if per_channel else scale).expand(x.shape)
        theirs = Slow.apply(values * fold_of, scales, *grid, name == "tqt") / fold_of
        compare(ours, theirs, gradient, leaves, doubles)


@pytest.mark.parametrize("rounding", ["half_even", "half_away"])
@pytest.mark.parametrize("scheme", ["symmetric", "power_of_two"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("fold_axis", [0, 1])
def test_moving_average_fold(fold_axis: int, per_channel: bool, scheme: str, rounding: str) -> None:
    """The range is that of x * fold; the result fq(x * fold) / fold, with gradients."""
    x, fold, gradient = weight(fold_axis)
    axis = fold_axis if per_channel else None
    for grid in ((-8, 7), (0, 255), (-127, 127)):
        leaves = [t.clone().requires_grad_() for t in (x, fold)]
        doubles = [t.double().requires_grad_() for t in (x, fold)]
        channels = (len(fold),) if per_channel else ()
        state, product = unseen(*channels), unseen(*channels)
        options: dict[str, Any] = {"scheme": scheme, "rounding": rounding, "axis": axis}
        average(x, state, fold, grid, fold_axis=fold_axis, **options)
        average(x * along(fold, x, fold_axis), product, None, grid, **options)
        assert torch.equal(state, product)
        state.mul_(0.77)  # the largest number is a tie by definition, and rounds as it likes
        options["observe"] = False
        ours = average(leaves[0], state, leaves[1], grid, fold_axis=fold_axis, **options)
        qscheme = f"per_{'channel' if per_channel else 'tensor'}_{scheme}"
        scale, zero = own.moving_average_qparams(
            x, state, None, 0, False, 1.0, False, *grid, qscheme, axis, "", "x"
        )
        zero = int(zero[0])
        scales = (along(scale, x, fold_axis) if per_channel else scale).double().expand(x.shape)
        fold_of = along(doubles[1], x, fold_axis)
        theirs = Slow.apply(doubles[0] * fold_of, scales, grid[0] - zero, grid[1] - zero, True)
        compare(ours, theirs / fold_of, gradient, leaves, doubles)


def test_moving_average_on_other_devices() -> None:
    """The form without a kernel: the same ranges and scales with folds and pair sums."""
    x, fold, _ = weight(0)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
    operator = own.moving_average_qparams
    for axis, pair_sums, given in (
        (0, True, fold),
        (0, True, None),
        (0, False, fold),
        (None, False, fold),
    ):
        channels = () if axis is None else (6,)
        here, there = unseen(*channels), unseen(*channels)
        scheme = "per_tensor_symmetric" if axis is None else "per_channel_symmetric"
        rest = (given, 0, True, 0.5, pair_sums, -8, 7, scheme, axis, "", "x")
        for values in (x, 2 * x[:, 1:]):
            left = operator(values, here, *rest)
            right = operator.default.redispatch(keys, values, there, *rest)
            assert torch.equal(here, there) and torch.equal(left[0], right[0])


def test_pair_sums() -> None:
    """The ranges of observe_pair_sums, folded too, for an even and an odd number of values."""
    for count in (6, 7, 1):
        x = numbers(5, count, seed=3) + 1
        wanted = torch.stack([torch.full((5,), math.inf), torch.full((5,), -math.inf)]).double()
        own.observe_pair_sums(x, wanted, 0, "x", "")
        state = unseen(5)
        average(x, state, axis=0, pair_sums=True)
        assert torch.equal(state.double(), wanted)
        fold = torch.tensor([1.0, -2.0, 0.5, -1.0, 4.0])
        wanted = torch.stack([torch.full((5,), math.inf), torch.full((5,), -math.inf)]).double()
        own.observe_pair_sums(x * fold[:, None], wanted, 0, "x", "")
        state = unseen(5)
        average(x, state, fold, axis=0, pair_sums=True)
        assert torch.equal(state.double(), wanted)


def test_fold_of_zeros() -> None:
    """Channels of zeros stay zeros, with the gradient of numbers within the range."""
    for scheme in ("symmetric", "power_of_two"):
        x, fold = torch.zeros(2, 3).requires_grad_(), torch.tensor([1e3, -1e-3])
        result = average(x, unseen(2), fold, axis=0, scheme=scheme)
        assert torch.equal(result, torch.zeros(2, 3))
        assert torch.autograd.grad(result.sum(), x)[0].eq(1).all()


def test_affine_fold() -> None:
    with pytest.raises(RuntimeError, match="'conv1 weight' is the weight before a batch norm"):
        average(torch.ones(2, 2), unseen(), torch.ones(2), scheme="affine")


@pytest.mark.parametrize("per_sample", [False, True])
def test_gradient_scale(per_sample: bool) -> None:
    """1 / sqrt(N * quant_max), of a sample where it is asked for."""
    x, gradient = numbers(4, 6, 5, seed=4), numbers(4, 6, 5, seed=5)
    for axis, count in ((None, 120), (1, 20)):
        scale = torch.full((1 if axis is None else 6,), 0.2).requires_grad_()
        ours = lsq(x, scale, axis=axis, per_sample=per_sample)
        factor = 1 / math.sqrt(count / (4 if per_sample else 1) * 7)
        theirs = own.fake_quantize_lsq(x, scale, -8, 7, factor, axis)
        assert torch.equal(ours, theirs)
        found = [torch.autograd.grad(y, scale, gradient)[0] for y in (ours, theirs)]
        assert torch.equal(*found) and found[0].any()


@pytest.mark.parametrize("grid", [(-128, 127), (0, 15)], ids=str)
def test_lsq_plus(grid: tuple[int, int]) -> None:
    """The offset is a whole number of steps within the grid, and all gradients are the paper's."""
    x, gradient = numbers(8, 50, seed=6), numbers(8, 50, seed=7)
    for offset in (0.0, 0.31, -0.44, 1e3, -1e3):
        leaves = [x.clone().requires_grad_()]
        leaves += [torch.tensor([v]).requires_grad_() for v in (0.125, offset)]
        ours = lsq_plus(leaves[0], leaves[1], leaves[2], grid, per_sample=True)
        whole = min(max(round(offset / 0.125), -grid[1]), -grid[0]) * 0.125
        g = 1 / math.sqrt(50 * grid[1])
        theirs = own.fake_quantize_lsq_plus(
            x, torch.tensor([0.125]), torch.tensor([whole]), *grid, g
        )
        assert torch.equal(ours, theirs)
        found = torch.autograd.grad(ours, leaves, gradient)
        steps = (x - whole) / 0.125
        outside = (steps <= grid[0]) | (steps >= grid[1])
        slope = torch.where(outside, steps.clamp(*grid), steps.round() - steps)
        of_offset = g * (gradient * outside).sum()
        of_scale = g * (gradient * slope).sum()
        torch.testing.assert_close(found[1], of_scale.reshape(1), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(found[2], of_offset.reshape(1), rtol=1e-5, atol=1e-5)
        assert leaves[2]._version == 0  # autograd knows nothing of what is put back
        assert leaves[2].item() == pytest.approx(
            min(max(offset, -grid[1] * 0.125), -grid[0] * 0.125)
        )


def test_lsq_plus_as_autograd() -> None:
    """In double, by rounding that autograd takes for the identity, with the offset a constant."""
    x, gradient = numbers(200, seed=9).double(), numbers(200, seed=10).double()
    for s, o in ((0.2, -0.71), (0.3, -0.4), (0.11, -1.3)):
        leaves = [t.double().requires_grad_() for t in (x, torch.tensor([s]), torch.tensor([o]))]
        scale, offset = leaves[1:]
        whole = offset + ((offset / scale).round() * scale - offset).detach()
        steps = ((leaves[0] - whole) / scale).clamp(0, 15)
        code = steps + (steps.round() - steps).detach()
        expected = torch.autograd.grad(code * scale + whole, leaves, gradient)
        given = [t.detach().clone().requires_grad_() for t in leaves]
        ours = lsq_plus(given[0], given[1], given[2], (0, 15), per_sample=True)
        found = torch.autograd.grad(ours, given, gradient)
        g = 1 / math.sqrt(200 / 200 * 15)  # a sample has one feature
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)
        for left, right in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(left, g * right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("start", [3.0, -50.0])
def test_an_offset_comes_back(start: float) -> None:
    """From beyond either end of its range, by steps of an optimizer."""
    x = torch.linspace(-1, 1, 64)
    scale = torch.tensor([2 / 15])
    offset = torch.tensor([start]).requires_grad_()
    optimizer = torch.optim.SGD([offset], lr=0.2)
    for _ in range(200):
        optimizer.zero_grad()
        (lsq_plus(x, scale, offset, (0, 15)) - x).square().sum().backward()
        optimizer.step()
    assert offset.item() == pytest.approx(-1, abs=0.15)


def observed(x: Tensor) -> ObserverState:
    """The state of an observer of histograms."""
    state = torch.tensor([math.inf, -math.inf, math.inf, -math.inf, 0, 0], dtype=torch.float64)
    histogram = torch.zeros(2048, dtype=torch.int64)
    own.observe_histogram(x, state, histogram, "x", "")
    return ObserverState(state, histogram)


def high(observer: Observer, x: Tensor, grid: tuple[int, int]) -> float:
    return observer.find_range(observed(x), *grid, grid[0] < 0)[1]


def sigma(x: Tensor) -> float:
    return max(abs(x.mean() - 3 * x.std(correction=0)), abs(x.mean() + 3 * x.std(correction=0)))


RULES: dict[str, Callable[[Tensor, tuple[int, int]], float]] = {
    "lsq": lambda x, grid: 2 * x.abs().mean() / math.sqrt(grid[1]),
    "three_sigma": lambda x, grid: sigma(x) / max(-grid[0], grid[1]),
    "max": lambda x, grid: x.abs().max() / max(-grid[0], grid[1]),
    "klj": lambda x, grid: high(KLJ(), x.float(), grid) / max(-grid[0], grid[1]),
}


@pytest.mark.parametrize("grid", [(-128, 127), (-8, 7), (0, 15)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_first_scale(rule: str, grid: tuple[int, int]) -> None:
    """Closed forms in double and the observers' numbers; the second batch changes nothing."""
    x = numbers(7, 300, seed=8) + 0.2
    x = x.clamp_min(0) if grid[0] == 0 else x
    scale = unset(1)
    lsq(x, scale, None, grid, rule=rule)
    first = scale.item()
    assert scale._version == 0  # autograd knows nothing of it
    assert first == pytest.approx(float(RULES[rule](x.double(), grid)), rel=1e-6)
    lsq(3 * x, scale, None, grid, rule=rule)
    assert scale.item() == first
    if rule != "klj":
        scale, alone = unset(7), [unset(1) for _ in range(7)]
        lsq(x, scale, None, grid, rule=rule, axis=0)
        for row, one in zip(x, alone, strict=True):
            lsq(row, one, None, grid, rule=rule)
        assert torch.equal(scale, torch.cat(alone))


@pytest.mark.parametrize("rule", [*RULES, "mean_squared_error"])
def test_first_scale_of_a_fold(rule: str) -> None:
    """The statistics are those of x * fold."""
    x, fold, _ = weight(0)
    for axis in (None, 0):
        if axis is None or rule in ("lsq", "max", "three_sigma"):
            scales = [unset(1 if axis is None else 6) for _ in range(2)]
            lsq(x, scales[0], fold, rule=rule, axis=axis)
            lsq(x * along(fold, x, 0), scales[1], rule=rule, axis=axis)
            assert torch.equal(*scales)


def test_least_squared_error() -> None:
    """No scale on a fine grid of them has an error that is less by more than 2 %."""
    x = numbers(5000, seed=9)

    def cost(y: Tensor) -> float:
        return (y - x).square().mean().item()

    for grid in ((-8, 7), (-2, 1)):
        scale = unset(1)
        found = cost(lsq(x, scale, None, grid, rule="mean_squared_error"))
        others = (torch.tensor([k / 500]) for k in range(10, 1000))
        assert found < 1.02 * min(cost(own.fake_quantize_lsq(x, s, *grid, 1.0)) for s in others)
    relu, scale = x.clamp_min(0), unset(1)
    lsq(x, scale, None, (0, 15), rule="mean_squared_error")
    other = unset(1)
    lsq(relu, other, None, (0, 15), rule="mean_squared_error")
    assert torch.equal(scale, other)
    range_of = MeanSquaredError().find_range(observed(x + 1), 0, 15, False)
    scale, offset = unset(1), unset(1)
    lsq_plus(x + 1, scale, offset, (0, 15))
    assert scale.item() == pytest.approx((range_of[1] - range_of[0]) / 15, rel=0.1)
    assert offset.item() == pytest.approx(range_of[0], rel=0.1)


def test_first_threshold() -> None:
    """TQT's rules, the observers' numbers: log2 of the threshold."""
    x = numbers(3000, seed=10) + 0.1
    for grid in ((-128, 127), (-8, 7)):
        wanted = {
            "max": x.abs().max().item(),
            "klj": high(KLJ(), x, grid),
            "three_sigma": abs((x.double() + 1e-6).mean()) + 3 * x.double().std(correction=0),
        }
        for rule, threshold in wanted.items():
            parameter = unset(1)
            tqt(x, parameter, None, grid, rule=rule)
            assert parameter.item() == pytest.approx(math.log2(threshold), abs=1e-6)
    # The observer has bins instead of numbers: off by two of them at most.
    assert high(ThreeSigma(), x, (-8, 7)) == pytest.approx(wanted["three_sigma"].item(), rel=1e-2)


def test_zeros() -> None:
    """A first batch of zeros has the smallest scale."""
    for rule in [*RULES, "mean_squared_error"]:
        scale = unset(1)
        assert not lsq(torch.zeros(9), scale, rule=rule).any() and scale.item() == 2**-23
    threshold, offset, scale = unset(1), unset(1), unset(1)
    assert not tqt(torch.zeros(9), threshold).any() and threshold.item() == 3 - 23
    assert not lsq_plus(torch.zeros(9), scale, offset).any() and scale.item() == 2**-23


TRAINED: dict[str, Callable[..., Tensor]] = {
    "lsq": lambda x, p, **rest: lsq(x, p, **rest),
    "lsq_plus": lambda x, p, **rest: lsq_plus(x, p, p.detach().clone().requires_grad_(), **rest),
    "tqt": lambda x, p, **rest: tqt(x, p, **rest),
}


@pytest.mark.parametrize("name", TRAINED)
def test_before_the_first_batch(name: str) -> None:
    """Without one an error; an empty one is none, and has gradients; disabled is x."""
    operator, x = TRAINED[name], numbers(3, 4, seed=11).requires_grad_()
    message = "^'conv1 (weight|input)' has no scale yet: run a batch in training mode first"
    with pytest.raises(ValueError, match=message):
        operator(x, unset(1), observe=False)
    for observe in (False, True):
        parameter = unset(1)
        empty = x[:0]
        result = operator(empty, parameter, observe=observe)
        assert result.shape == (0, 4) and parameter.isinf().all()
        found = torch.autograd.grad(result.sum(), (x, parameter))
        assert not found[0].any() and not found[1].any() and not found[1].isnan().any()
        result = operator(x, parameter, observe=observe, enabled=False)
        assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()
        assert parameter.isfinite().all() == observe


def test_disabled_moving_average() -> None:
    """Observed all the same."""
    x, state = numbers(3, 4), unseen()
    assert torch.equal(average(x, state, observe=False, enabled=False), x)
    assert torch.equal(state, unseen())
    result = average(x, state, enabled=False)
    assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()
    assert torch.equal(state, torch.stack([x.min(), x.max()]))


@pytest.mark.parametrize("name", ["lsq", "lsq_plus"])
def test_guard(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A scale at 0 or below is made positive and counted; one that is not finite is an error."""
    x = numbers(30, seed=12).requires_grad_()

    def run(scale: Tensor, count: Tensor) -> tuple[Tensor, str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if name == "lsq":
                axis = 0 if scale.numel() > 1 else None
                result = lsq(x, scale, axis=axis, observe=False, count=count)
            else:
                result = lsq_plus(x, scale, torch.zeros(1), observe=False, count=count)
        # torch 2.13 prints what an operator warns of that Python calls.
        return result, "".join(str(w.message) for w in caught) + capfd.readouterr().err

    for value, corrected in ((0.0, 2**-23), (-0.25, 0.25), (-1e-12, 2**-23)):
        scale, count = torch.tensor([value]).requires_grad_(), corrections()
        used = scale * 1  # autograd knows nothing of the correction
        first, told = run(scale, count)
        assert "took 1 of 1 scales of 'conv1" in told
        second, told = run(scale, count)
        assert not told
        assert scale.item() == corrected and count.item() == 1 and scale._version == 0
        (first + second + used).sum().backward()
        assert scale.grad is not None
    for value in (math.nan, -math.inf):
        with pytest.raises(ValueError, match=r"trained scale of 'conv1 .*lower the learning rate"):
            run(torch.tensor([value]), corrections())
    if name == "lsq":
        scales = torch.full((30,), 0.1)
        scales[3], scales[7] = -0.5, 0.0
        count = corrections()
        assert "took 2 of 30 scales of 'conv1" in run(scales, count)[1]
        assert scales[3] == 0.5 and scales[7] == 2**-23 and count.item() == 2
        scales[4] = math.inf
        with pytest.raises(ValueError, match="is inf: lower"):
            run(scales, count)
    for value in (math.nan, -math.inf):
        with pytest.raises(ValueError, match=r"trained threshold of 'conv1 .*lower the learning"):
            tqt(x, torch.tensor([value]), observe=False)


def composed(operator: Any, *arguments: Any) -> None:
    """Call the kernel for devices that have none of their own: the one behind that key too."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
    operator.default.redispatch(keys, *arguments)


def test_guard_on_other_devices() -> None:
    """Called on CPU tensors: the same corrections, and nothing that would wait for a device."""
    x, count = numbers(5), corrections()
    scale = torch.tensor([0.0, -0.25, 0.5, math.nan, -1e-12])
    rest = (None, 0, False, True, "lsq", -8, 7, 0, "", "x")
    composed(own.prepare_lsq, x, scale, count, *rest)
    assert scale[:3].tolist() == [2**-23, 0.25, 0.5] and scale[3].isnan() and scale[4] == 2**-23
    assert count.item() == 3 and scale._version == 0
    scale, offset = torch.tensor([-1.0]), torch.tensor([math.nan])
    composed(own.prepare_lsq_plus, x, scale, offset, count, False, True, -8, 7, "", "x")
    assert scale.item() == 1 and count.item() == 4
    first, threshold = unset(1).detach(), unset(1).detach()
    composed(own.prepare_lsq, x, first, count, None, 0, True, True, "max", -8, 7, None, "", "x")
    assert first.item() == pytest.approx(x.abs().max().item() / 8)
    composed(own.prepare_tqt, x, threshold, None, 0, False, True, "max", -8, 7, None, "", "x")
    assert threshold.isinf().all()  # and the scale is not a number
    composed(own.prepare_tqt, x, threshold, None, 0, True, True, "max", -8, 7, None, "", "x")
    assert threshold.item() == pytest.approx(x.abs().max().log2().item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    """Results in the dtype of x, under autocast too; parameters and their gradients are float32."""
    x, fold, _ = weight(0)
    x = x.to(dtype)
    for name in ("lsq", "tqt", "lsq_plus", "average"):
        for given in (None, fold) if name != "lsq_plus" else (None,):
            with torch.autocast("cpu", torch.bfloat16):
                if name == "average":
                    parameter = unseen()
                    result, whole = (
                        average(x, parameter, given),
                        average(x.float(), unseen(), given),
                    )
                else:
                    parameter = torch.full((1,), 0.3).requires_grad_()
                    extra = {} if given is None else {"fold": given}
                    result = TRAINED[name](x, parameter, **extra)
                    whole = TRAINED[name](x.float(), parameter, **extra)
                    (gradient,) = torch.autograd.grad(result.float().square().sum(), parameter)
                    assert gradient.dtype == torch.float32 and gradient.any()
            assert result.dtype == dtype and parameter.dtype == torch.float32
            assert torch.equal(result, whole.to(dtype)) and result.any()


@pytest.mark.parametrize("name", TRAINED)
def test_threads(name: str) -> None:
    """First values and gradients have the same bits for any number of threads."""
    x = numbers(64, 3, 50, 31, seed=13)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for rule in ("klj", "three_sigma", "lsq"):
                options = {} if name == "lsq_plus" else {"rule": rule}
                if name == "tqt" and rule == "lsq":
                    continue
                parameter = unset(1)
                result = TRAINED[name](x, parameter, **options)
                gradient = torch.autograd.grad(result.square().sum() * 0 + result.sum(), parameter)
                results.append((threads, rule, [result, parameter, *gradient]))
    finally:
        torch.set_num_threads(before)
    for threads, rule, tensors in results:
        first = next(t for n, r, t in results if n == 1 and r == rule)
        assert threads == 1 or all(map(torch.equal, tensors, first))


def test_fixed() -> None:
    """fake_quantize with constants."""
    x = numbers(50, seed=14).requires_grad_()
    result = own.train_fixed(x, 0.1, 3, True, 0, 15, "half_even", "x", "")
    wanted = own.fake_quantize(x, torch.tensor([0.1]), torch.tensor([3]), 0, 15)
    assert torch.equal(result, wanted)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (result, wanted)))
    result = own.train_fixed(x, 0.1, 3, False, 0, 15, "half_even", "x", "")
    assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match="the scale of 'x' must be finite and above 0, got -1"):
        own.train_fixed(x, -1.0, 3, True, 0, 15, "half_even", "x", "")


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "rule": (lambda: lsq(torch.ones(3), unset(1), rule="min"), "not 'min'"),
    "rule_tqt": (lambda: tqt(torch.ones(3), unset(1), rule="lsq"), "not 'lsq'"),
    "channels": (lambda: lsq(torch.ones(3, 2), unset(3), axis=0, rule="klj"), "for a whole tensor"),
    "fold": (lambda: lsq(torch.ones(3, 2), unset(1), torch.ones(2)), "does not go with shape"),
    "fold_axis": (
        lambda: tqt(torch.ones(3, 3), unset(3), torch.ones(3), axis=0, fold_axis=1), "both must be"
    ),
    "zero": (lambda: lsq(torch.ones(3, 2), unset(1), torch.zeros(3)), "finite and not 0"),
    "nan": (lambda: lsq(torch.tensor([math.nan]), unset(1)), "'conv1 weight' holds a NaN"),
    "infinity": (lambda: tqt(torch.tensor([math.inf]), unset(1)), "'conv1 weight' holds a NaN"),
    "scales": (lambda: lsq(torch.ones(3), unset(2)), "1 scale for the tensor"),
    "pair_sums": (lambda: average(torch.ones(3), unseen(), pair_sums=True), "a ch_axis"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    """The message has what was wrong."""
    operator, message = BAD[name]
    with pytest.raises((RuntimeError, ValueError), match=message):
        operator()


class Scripted(nn.Module):
    """All operators in a graph: a linear layer with a fold, as before a batch norm."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which
        self.linear = nn.Linear(6, 5, bias=False)
        self.gamma = nn.Parameter(torch.tensor([1.0, -1.0, 0.5, 2.0, -0.7]))
        self.weight_parameter = nn.Parameter(torch.full((1,), math.inf))
        self.input_scale = nn.Parameter(torch.full((1,), math.inf))
        self.input_offset = nn.Parameter(torch.full((1,), math.inf))
        self.register_buffer("corrections", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("range", unseen())

    def forward(self, x: Tensor) -> Tensor:
        x = torch.ops.jit_passes.train_lsq_plus(
            x, self.input_scale, self.input_offset, self.corrections, self.training, True, True,
            -128, 127, "half_even", "", "input", ""
        )  # fmt: skip
        weight = self.linear.weight
        if self.which == "lsq":
            weight = torch.ops.jit_passes.train_lsq(
                weight, self.weight_parameter, self.corrections, self.gamma, 0, self.training,
                True, "lsq", False, -8, 7, None, "half_even", 0, "", "weight", ""
            )  # fmt: skip
        elif self.which == "tqt":
            weight = torch.ops.jit_passes.train_tqt(
                weight, self.weight_parameter, self.gamma, 0, self.training, True, "max",
                -8, 7, None, "half_even", "", "weight", ""
            )  # fmt: skip
        else:
            weight = torch.ops.jit_passes.fake_quantize_moving_average(
                weight, self.range, self.gamma, 0, True, True, 1.0, False, -8, 7,
                "per_tensor_symmetric", None, "half_even", "", "weight", ""
            )  # fmt: skip
        y = torch.nn.functional.linear(x, weight) * self.gamma
        return torch.ops.jit_passes.train_fixed(
            y, 0.02, 0, True, -512, 511, "half_even", "output", ""
        )


@makes_scales_positive
@pytest.mark.parametrize("which", ["lsq", "tqt", "average"])
def test_scripted_training(which: str, tmp_path: Path) -> None:
    """Scripted, saved and loaded, it trains step by step as in eager mode, and its loss falls."""
    torch.manual_seed(0)
    eager = Scripted(which)
    torch.jit.script(eager).save(str(tmp_path / "model.pt"))
    loaded = torch.jit.load(str(tmp_path / "model.pt"))
    x = numbers(64, 6, seed=15)
    target = x @ numbers(6, 5, seed=16)
    losses: list[list[float]] = []
    for model in (eager, loaded):
        model(x)  # the first batch
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses.append([])
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(x) - target).square().mean()
            loss.backward()
            assert all(
                p.grad is not None
                for name, p in model.named_parameters()
                if which != "average" or name != "weight_parameter"
            )
            optimizer.step()
            losses[-1].append(loss.item())
        model.eval()
        assert model(x).isfinite().all()
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.6 * losses[0][0]


OPCHECKS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "lsq": lambda: (
        own.train_lsq,
        (torch.tensor([0.1]).requires_grad_(), corrections(), None, 0, False, True, "lsq", True,
         -8, 7, None, "half_even", 8, "", "x", ""),
    ),
    "lsq_fold": lambda: (
        own.train_lsq,
        (torch.tensor([0.1]).requires_grad_(), corrections(), torch.tensor([1.0, -2.0]), 0, True,
         True, "lsq", False, -8, 7, None, "half_up", 0, "", "x", ""),
    ),
    "lsq_plus": lambda: (
        own.train_lsq_plus,
        (torch.tensor([0.1]).requires_grad_(), torch.zeros(1).requires_grad_(), corrections(),
         True, True, True, -8, 7, "floor", "", "x", ""),
    ),
    "tqt": lambda: (
        own.train_tqt,
        (torch.tensor([1.3]).requires_grad_(), torch.tensor([1.0, -2.0]), 0, True, True, "max",
         -8, 7, None, "half_away", "", "x", ""),
    ),
    "average": lambda: (
        own.fake_quantize_moving_average,
        (unseen(2), torch.tensor([1.0, -2.0]).requires_grad_(), 0, True, True, 0.1, True, -8, 7,
         "per_channel_symmetric", 0, "half_even", "", "x", ""),
    ),
    "fixed": lambda: (own.train_fixed, (0.1, 3, True, 0, 15, "half_even", "x", "")),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPCHECKS)
def test_opcheck(name: str) -> None:
    """PyTorch's checks: schema, autograd, fake tensors, tracing ahead of time."""
    operator, rest = OPCHECKS[name]()
    torch.library.opcheck(operator.default, (numbers(2, 3, 4).requires_grad_(), *rest))


DISTRIBUTED = """
import sys, torch, torch.distributed as dist
from tests.ops.test_training_operators import first_values
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{path}/meet", rank=rank, world_size=2)
torch.save(first_values(rank, "0"), f"{path}/rank{{rank}}.pt")
dist.destroy_process_group()
"""


def first_values(rank: int | None, group: str) -> dict[str, Tensor]:
    """The start of all operators, given half of a batch, or all of it where rank is None."""
    batch = numbers(12, 40, seed=17) * torch.linspace(0.5, 3, 12)[:, None] + 0.3
    parts = {"even": (5, 7), "empty": (12, 0)}
    found: dict[str, Tensor] = {}
    for part, sizes in parts.items():
        x = batch if rank is None else batch.split(sizes)[rank]
        for rule in (*RULES, "mean_squared_error"):
            scale = found[f"lsq {rule} {part}"] = unset(1)
            lsq(x, scale, rule=rule, group=group)
        for rule in ("klj", "three_sigma", "max"):
            threshold = found[f"tqt {rule} {part}"] = unset(1)
            tqt(x, threshold, rule=rule, group=group)
        scale, offset = unset(1), unset(1)
        lsq_plus(x, scale, offset, group=group)
        found[f"lsq_plus {part}"] = torch.cat([scale, offset])
        found[f"average {part}"] = unseen()
        for factor in (1, 2):
            average(factor * x, found[f"average {part}"], constant=0.1, group=group)
    return {name: tensor.detach() for name, tensor in found.items()}


def test_process_group(tmp_path: Path) -> None:
    """Two ranks start from what one process has for all of the batch, also if one rank has nothing.

    Tolerance: sums of double in another order, rounded to float32.
    """
    code = DISTRIBUTED.format(path=str(tmp_path))
    script = tmp_path / "rank.py"
    script.write_text(code)
    found = {"PYTHONPATH": str(ROOT)}
    ranks = [start_script(script, str(rank), cwd=tmp_path, environment=found) for rank in range(2)]
    done = [rank.wait(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in done] == [0, 0], [rank.stderr[-2000:] for rank in done]
    left, right = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    alone = first_values(None, "no group of that name")
    for name, value in alone.items():
        assert torch.equal(left[name], right[name]) and value.isfinite().all()
        torch.testing.assert_close(left[name], value, rtol=1e-6, atol=0)
    assert not torch.equal(first_values(0, "")["lsq lsq even"], alone["lsq lsq even"])
