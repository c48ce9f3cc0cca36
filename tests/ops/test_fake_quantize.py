"""Fake quantization against exact arithmetic, number by number, and against PyTorch's own."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import MovingAverageMinMaxObserver

import jit_passes  # noqa: F401  registers the operators
from jit_passes.observers import MovingAverageMinMax, ObserverState
from jit_passes.quantizer import QuantizationSpec, choose_qparams
from tests.codes import ROUNDS_STEPS, code_of

fake_quantize = torch.ops.jit_passes.fake_quantize
own = torch.ops.jit_passes


def moving_average(
    x: Tensor, state: Tensor, observe: bool, constant: float, low: int, high: int, *rest: Any
) -> Tensor:
    """Without a fold, pair sums or a group; rest: scheme, axis, rounding, name."""
    *scheme, name = rest
    before = (None, 0, observe, True, constant, False, low, high)
    return own.fake_quantize_moving_average(x, state, *before, *scheme, "", name, "")


def qparams_arguments(
    x: Tensor, state: Tensor, observe: bool, constant: float, low: int, high: int, *rest: Any
) -> tuple[Any, ...]:
    """Arguments for scale and zero point; rest: scheme, axis, name."""
    *scheme, name = rest
    return (x, state, None, 0, observe, constant, False, low, high, *scheme, "", name)


HALF = Fraction(1, 2)
ROUND = {
    "half_even": round,
    "half_away": lambda v: int(math.copysign(math.floor(abs(v) + HALF), v)),
    "half_up": lambda v: math.floor(v + HALF),
    "floor": math.floor,
    "ceil": math.ceil,
    "toward_zero": math.trunc,
}
OF_STEPS = {"half_even": ROUNDS_STEPS, "half_away": True, "toward_zero": True}  # others: of codes
GRIDS = [(-128, 127), (0, 255), (-32768, 32767), (-2, 1)]


def slow(
    x: float, scale: float, zero: int, low: int, high: int, rounding: str, double: bool, fused: bool
) -> tuple[float, bool]:
    """The formula in exact arithmetic behind the code, and whether the gradient passes."""
    code = code_of(
        x, scale, zero, fused=fused, double=double, rounding=ROUND[rounding],
        of_steps=OF_STEPS.get(rounding, False),
    )  # fmt: skip
    number = min(max(code, low), high) - zero
    return (number * scale if double else float(np.float32(number) * np.float32(scale))), (
        low <= code <= high
    )


def composed(operator: Any, *arguments: Any) -> Any:
    """Call the kernel for devices that have none of their own: the one behind that key too."""
    return operator.default.redispatch(
        torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU), *arguments
    )


def check(
    x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, axis: int | None, rounding: str
) -> None:
    """Asserts values and gradients equal to the slow ones, to the bit."""
    double = x.dtype == torch.float64
    leaf = x.detach().requires_grad_()
    result = fake_quantize(leaf, scale, zero, low, high, axis, rounding)
    assert (result.shape, result.dtype) == (x.shape, x.dtype)
    shape = [1] * x.dim()
    if axis is not None:
        shape[axis] = -1
    scales = scale.to(torch.float64).reshape(shape).expand(x.shape).reshape(-1).tolist()
    zeros = zero.reshape(shape).expand(x.shape).reshape(-1).tolist()
    pairs = [
        slow(v, s, z, low, high, rounding, double, axis is None)
        for v, s, z in zip(x.reshape(-1).tolist(), scales, zeros, strict=True)
    ]
    wanted = torch.tensor([value for value, _ in pairs], dtype=torch.float64).to(x.dtype)
    assert torch.equal(result.detach().reshape(-1), wanted)
    if x.numel():
        gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(x.dtype)
        result.backward(gradient)
        mask = torch.tensor([inside for _, inside in pairs]).reshape(x.shape)
        assert torch.equal(leaf.grad, torch.where(mask, gradient, torch.zeros_like(gradient)))
        assert leaf.grad.dtype == x.dtype
    plain = fake_quantize(x.detach(), scale, zero, low, high, axis, rounding)
    assert torch.equal(plain, result)  # without a mask: another kernel


def values(scale: float, zero: int, low: int, high: int) -> Tensor:
    """Ties, their neighbours, both ends of the range and beyond, and numbers of all magnitudes."""
    codes = torch.tensor([low - 2, low - 1, low, low + 1, -1, 0, 1, 2, high - 1, high, high + 1])
    ties = (torch.cat([codes - zero, torch.arange(-6, 6)]).double() + 0.5) * scale
    x = torch.cat([ties, (codes - zero) * scale]).float()
    inf = torch.full_like(x, math.inf)
    near = torch.cat([torch.nextafter(x, inf), torch.nextafter(x, -inf)])
    wide = torch.randn(200, generator=torch.Generator().manual_seed(0)) * scale * (high - low) / 2
    extremes = torch.tensor([0.0, -0.0, 1e30, -1e30, 1e-42, math.inf, -math.inf])
    return torch.cat([x, near, wide, 1e-4 * wide, extremes])


@pytest.mark.parametrize("rounding", ROUND)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.1, 1 / 3, 0.0235])
def test_definition(scale: float, grid: tuple[int, int], rounding: str) -> None:
    """Every value and every gradient, for zero points at both ends, off and in the middle."""
    low, high = grid
    step = torch.tensor([scale])
    for zero in {low, 0, (low + high) // 2 + 1}:
        x = values(scale, zero, low, high)
        check(x, step, torch.tensor([zero]), low, high, None, rounding)


@pytest.mark.parametrize("rounding", ROUND)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(dtype: torch.dtype, rounding: str) -> None:
    """Doubles with a true division; half types as float32 that is rounded once, at the end."""
    x = values(0.1, 3, -128, 127).to(dtype)
    for scale in (0.1, 0.25):
        step = torch.tensor([scale], dtype=torch.float64 if dtype == torch.float64 else None)
        check(x, step, torch.tensor([3]), -128, 127, None, rounding)


def test_just_below_a_half() -> None:
    """Adding a half to it gives 1 in floating point, and it is not 1."""
    for dtype in (torch.float32, torch.float64):
        half, one = torch.tensor(0.5, dtype=dtype), torch.tensor(1.0, dtype=dtype)
        x = torch.stack([torch.nextafter(half, -one), -torch.nextafter(half, -one), half, -half])
        step, zero = one.reshape(1), torch.zeros(1)
        up = fake_quantize(x, step, zero, -9, 9, None, "half_up")
        away = fake_quantize(x, step, zero, -9, 9, None, "half_away")
        assert up.tolist() == [0, 0, 1, 0]
        assert away.tolist() == [0, 0, 1, -1]


def layouts(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Tensors that lie in memory in all ways."""
    x = 2 * torch.randn(3, 6, 5, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    return {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "permuted": x.permute(3, 1, 0, 2),
        "sliced": x[:, 1::2, :, ::3],
        "expanded": x[:, :1].expand(-1, 7, -1, -1),
        "one_channel": x[:, :1],
        "empty": x[:0],
        "no_channels": x[:, :0],
    }


@pytest.mark.parametrize("rounding", ["half_even", "half_away"])
@pytest.mark.parametrize("axis", [None, 0, 1, 3, -1, -3])
@pytest.mark.parametrize("layout", layouts())
def test_layouts(layout: str, axis: int | None, rounding: str) -> None:
    """Values belong to their elements and channels; dense layouts are kept."""
    x = layouts()[layout]
    channels = 1 if axis is None else x.size(axis)
    scale = torch.linspace(0.01, 0.05, channels)
    zero = torch.arange(channels) - 3
    check(x, scale, zero, -64, 63, axis, rounding)
    result = fake_quantize(x, scale, zero, -64, 63, axis, rounding)
    assert result.stride() == torch.empty_like(x).stride()


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("rounding", ROUND)
def test_other_devices(rounding: str, dtype: torch.dtype, axis: int | None) -> None:
    """The form without a kernel, called on CPU tensors: the same numbers, to the bit."""
    x = torch.cat([values(0.25, 3, -128, 127), torch.tensor([math.nan])]).to(dtype)
    x = x[: x.numel() // 6 * 6].reshape(6, -1)
    channels = 1 if axis is None else x.size(axis)
    scale, zero = torch.linspace(0.05, 0.5, channels), torch.arange(channels)
    arguments = (x, scale, zero, -128, 127, axis, rounding)
    with_mask = torch.ops.jit_passes.fake_quantize_with_mask
    here, there = with_mask(*arguments), composed(with_mask, *arguments)
    torch.testing.assert_close(here[0], there[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(here[1], there[1])
    plain = composed(fake_quantize, *arguments)
    torch.testing.assert_close(here[0], plain, rtol=0, atol=0, equal_nan=True)
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    mask = torch.ops.jit_passes.mask_gradient
    assert torch.equal(mask(gradient, here[1]), composed(mask, gradient, here[1]))


def test_meta() -> None:
    """Shapes and types without numbers."""
    x = torch.empty(2, 3, 4, device="meta", dtype=torch.float16, requires_grad=True)
    one = torch.empty(3, device="meta")
    result = fake_quantize(x, one, one, -8, 7, 1)
    assert (result.shape, result.dtype, result.device.type) == (x.shape, x.dtype, "meta")
    state = torch.empty(2, 3, device="meta")
    scheme = "per_channel_affine"
    result = moving_average(x, state, True, 0.1, -8, 7, scheme, 1, "half_even", "x")
    assert (result.shape, result.dtype) == (x.shape, x.dtype)


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.1, 1 / 3, 0.0235])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_as_pytorch(grid: tuple[int, int], scale: float) -> None:
    """Values and gradients of fake_quantize_per_tensor_affine, to the bit.

    PyTorch's rounds before it adds the zero point, unlike quantize_per_tensor: no ties here.
    """
    low, high = grid
    for zero in {low, 0, high} - {-32768}:
        x = values(scale, zero, low, high)
        x = x[x.abs() < 1e9]  # PyTorch takes larger ones, as int64, for the smallest code
        if zero != 0:
            x = x[((x / scale).double() % 1 - 0.5).abs() > 1e-2]
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        step = torch.tensor([scale])
        left = fake_quantize(ours, step, torch.tensor([zero]), low, high)
        right = torch.fake_quantize_per_tensor_affine(theirs, scale, zero, low, high)
        assert torch.equal(left, right)
        left.backward(x)
        right.backward(x)
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("axis", [0, 1])
def test_as_pytorch_per_channel(axis: int) -> None:
    """Results are equal to those of fake_quantize_per_channel_affine."""
    x = 3 * torch.randn(6, 7, 5, generator=torch.Generator().manual_seed(3))
    scale = torch.linspace(0.01, 0.05, x.size(axis))
    zero = 2 * torch.arange(x.size(axis), dtype=torch.int32)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    left = fake_quantize(ours, scale, zero, -128, 127, axis)
    right = torch.fake_quantize_per_channel_affine(theirs, scale, zero, axis, -128, 127)
    assert torch.equal(left, right)
    left.backward(x)
    right.backward(x)
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("scale", [0.0235, 0.25, 0.028209442])
@pytest.mark.parametrize("zero", [0, 7, 107])
def test_as_quantize_and_dequantize(zero: int, scale: float) -> None:
    """The dialect's two operators, one after the other, and PyTorch's, to the bit."""
    ties = (torch.arange(-300, 300) + 0.5) * scale
    x = torch.cat([values(scale, zero, -128, 127), ties, ties[:1] * 1.9041372])
    x = x[x.abs() < 1e9]
    codes = torch.ops.jit_passes.quantize(x, scale, zero, -128, 127, torch.int8)
    expected = torch.ops.jit_passes.dequantize(codes, scale, zero)
    step, shift = torch.tensor([scale]), torch.tensor([zero])
    assert torch.equal(fake_quantize(x, step, shift, -128, 127), expected)
    theirs = torch.quantize_per_tensor(x, step.item(), zero, torch.qint8).dequantize()
    assert torch.equal(theirs, expected)
    rows = x.expand(3, -1)
    grid = step.expand(3), shift.expand(3), 0
    theirs = torch.quantize_per_channel(rows.contiguous(), *grid, torch.qint8).dequantize()
    assert torch.equal(fake_quantize(rows, *grid[:2], -128, 127, 0), theirs)


@pytest.mark.parametrize("axis", [None, 0])
def test_denormal_scales(axis: int | None) -> None:
    """0 stays 0, though 1 / scale is beyond float32, and what is normal is clipped."""
    x = torch.tensor([[0.0, 1.0, -1.0]])
    for operator in (fake_quantize, lambda *a: composed(fake_quantize, *a, "half_even")):
        found = operator(x, torch.tensor([1e-40]), torch.zeros(1), -8, 7, axis)
        scale = torch.tensor(1e-40)
        assert torch.equal(found, torch.stack([0 * scale, 7 * scale, -8 * scale]).reshape(1, 3))


def test_many_elements() -> None:
    """Enough for several threads and an odd rest."""
    x = 4 * torch.randn(300_007, generator=torch.Generator().manual_seed(4))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    left = fake_quantize(ours, torch.tensor([0.031]), torch.tensor([6]), -100, 100)
    right = torch.fake_quantize_per_tensor_affine(theirs, 0.031, 6, -100, 100)
    assert torch.equal(left, right)
    left.backward(x)
    right.backward(x)
    assert torch.equal(ours.grad, theirs.grad)


def test_nan() -> None:
    """A NaN stays a NaN, and has no gradient."""
    x = torch.tensor([math.nan, 1.0], requires_grad=True)
    result = fake_quantize(x, torch.ones(1), torch.zeros(1), -8, 7)
    result.backward(torch.ones(2))
    assert result[0].isnan() and x.grad.tolist() == [0, 1]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_negative_scales(grid: tuple[int, int]) -> None:
    """Mirror the grid: the result and the gradient are those of -x, the other way round."""
    low, high = grid
    for axis in (None, 0):
        x = values(0.1, 3, low, high).reshape(1, -1)
        left, right = x.clone().requires_grad_(), (-x).requires_grad_()
        ours = fake_quantize(left, torch.tensor([-0.1]), torch.tensor([3]), low, high, axis)
        theirs = fake_quantize(right, torch.tensor([0.1]), torch.tensor([3]), low, high, axis)
        assert torch.equal(ours, -theirs)
        ours.backward(x.nan_to_num(posinf=1))
        theirs.backward(x.nan_to_num(posinf=1))
        assert torch.equal(left.grad, right.grad)


def test_gradient_of_the_gradient() -> None:
    """Linear in the incoming gradient, with the same mask; no gradient to the grid."""
    x = torch.tensor([0.2, 5.0, -0.3, -7.0], dtype=torch.float64, requires_grad=True)
    incoming = torch.randn(4, dtype=torch.float64).requires_grad_()
    scale = torch.tensor([0.1], requires_grad=True)
    result = fake_quantize(x, scale, torch.zeros(1), -8, 7)
    (first,) = torch.autograd.grad(result, x, incoming, create_graph=True)
    assert torch.equal(first, incoming * torch.tensor([1, 0, 1, 0]))
    (second,) = torch.autograd.grad(first.square().sum(), incoming)
    assert torch.equal(second, 2 * incoming * torch.tensor([1, 0, 1, 0]))
    assert torch.autograd.grad(result.sum(), scale, allow_unused=True) == (None,)


def test_write_into_the_operand_afterwards() -> None:
    """The gradient needs nothing of it."""
    x = torch.tensor([0.2, 5.0], requires_grad=True)
    y = x * 1
    result = fake_quantize(y, torch.tensor([0.1]), torch.zeros(1), -8, 7)
    y.add_(1)
    result.backward(torch.ones(2))
    assert x.grad.tolist() == [1, 0]


def unseen(*channels: int) -> Tensor:
    """A range before its first batch."""
    return torch.stack([torch.full(channels, math.inf), torch.full(channels, -math.inf)])


SCHEMES = ("affine", "symmetric", "power_of_two")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("grid", [(-128, 127), (0, 255), (-127, 127), (-32768, 32767)], ids=str)
@pytest.mark.parametrize("constant", [0.01, 0.3, 1.0])
@pytest.mark.filterwarnings("ignore:a scale that is a power of two has the zero point 0")
def test_moving_average(constant: float, grid: tuple[int, int], scheme: str) -> None:
    """Over batches: the range of torch.ao's formula, the scale of choose_qparams for that range.

    Tolerance of the range: (1 - c) * r + c * x and r + c * (x - r) differ by float32 rounding.
    """
    reference = MovingAverageMinMaxObserver(averaging_constant=constant)
    state = unseen()
    low, high = grid
    spec = QuantizationSpec(
        "int32", low, high, f"per_tensor_{scheme}", None, MovingAverageMinMax(constant)
    )
    for seed in range(5):
        x = (seed + 1) * torch.randn(100, generator=torch.Generator().manual_seed(seed)) + seed
        reference(x)
        result = moving_average(
            x, state, True, constant, low, high, spec.qscheme, None, "half_even", "x"
        )
        wanted = torch.stack([reference.min_val, reference.max_val])
        torch.testing.assert_close(state, wanted, rtol=1e-5, atol=1e-6)
        if constant == 1.0:
            assert torch.equal(state, torch.stack([x.min(), x.max()]))
        chosen = choose_qparams(spec, ObserverState(state.double(), None))
        grid_of = (torch.tensor([chosen.scale]), torch.tensor([chosen.zero_point]), low, high)
        assert torch.equal(result, fake_quantize(x, *grid_of))
    before = state.clone()
    moving_average(x, state, False, constant, low, high, spec.qscheme, None, "half_even", "x")
    assert torch.equal(state, before)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "permuted", "sliced"])
def test_moving_average_per_channel(layout: str, axis: int, scheme: str) -> None:
    """Each channel is what it is alone, ranges included, gradients too."""
    x = layouts()[layout].detach()
    leaf = x.clone().requires_grad_()
    count = x.size(axis)
    state, alone = unseen(count), [unseen() for _ in range(count)]
    rest = (-8, 7, f"per_channel_{scheme}", axis, "half_up", "x")
    for factor in (0.5, 1.0):
        result = moving_average(factor * leaf, state, True, 0.25, *rest)
        for i in range(count):
            row = (factor * x).select(axis, i)
            per_tensor = (-8, 7, f"per_tensor_{scheme}", None, "half_up", "x")
            one = moving_average(row, alone[i], True, 0.25, *per_tensor)
            torch.testing.assert_close(result.select(axis, i), one)
            assert torch.equal(state[:, i], alone[i])
    result.sum().backward()
    assert leaf.grad.unique().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("axis", [None, 1])
def test_moving_average_on_other_devices(axis: int | None, scheme: str) -> None:
    """The form without a kernel, called on CPU tensors: ranges and scales to the bit."""
    channels = () if axis is None else (5,)
    here, there = unseen(*channels), unseen(*channels)
    qscheme = f"per_tensor_{scheme}" if axis is None else f"per_channel_{scheme}"
    for seed in range(4):
        x = torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)) + 0.1
        x[:, 2] = 0 if seed < 2 else x[:, 2]
        rest = (True, 0.5, -128, 127, qscheme, axis, "x")
        left = own.moving_average_qparams(*qparams_arguments(x, here, *rest))
        right = composed(own.moving_average_qparams, *qparams_arguments(x, there, *rest))
        assert torch.equal(here, there)
        assert all(
            torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(left, right, strict=True)
        )
    arguments = qparams_arguments(x, unseen(*channels), False, *rest[1:])
    scale, _ = composed(own.moving_average_qparams, *arguments)
    assert scale.isnan().all()
    arguments = qparams_arguments(math.nan * x, here, *rest)
    scale, _ = composed(own.moving_average_qparams, *arguments)
    assert scale.isnan().all()


def scale_of(low: float, high: float, quant_min: int, quant_max: int) -> float:
    """The power of two for a range."""
    state = torch.tensor([low, high], dtype=torch.float32)
    rest = (False, 1.0, quant_min, quant_max, "per_tensor_power_of_two", None, "x")
    scale, zero = own.moving_average_qparams(*qparams_arguments(torch.ones(1), state, *rest))
    assert zero.tolist() == [0]
    return scale.item()


def test_powers_of_two() -> None:
    """Closed forms: the smallest power of two at which neither end is clipped."""
    assert scale_of(0, 6, -128, 127) == 0.0625  # 6 / 127 = 0.047
    assert scale_of(-1, 3, -128, 127) == 0.03125  # 3 / 127 = 0.024
    assert scale_of(-4, 2, -128, 127) == 0.03125  # -4 / -128 exactly
    assert scale_of(-4, 2, 0, 255) == 2**-6  # 2 / 255; what is negative is clipped
    assert scale_of(0, 0, -128, 127) == 2**-126
    assert scale_of(1, 2, -128, 127) == scale_of(0, 2, -128, 127)


@pytest.mark.parametrize("bits", [2, 3, 8, 15, 16])
def test_powers_of_two_at_the_boundary(bits: int) -> None:
    """At the largest and smallest code exactly, and one float32 beyond."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    for exponent in (-100, -40, -7, 0, 5, 60):
        power = 2.0**exponent
        top, bottom = np.float32(high * power), np.float32(low * power)
        beyond = float(np.nextafter(top, np.float32(np.inf)))
        below = float(np.nextafter(bottom, np.float32(-np.inf)))
        assert scale_of(0, float(top), low, high) == power
        assert scale_of(0, beyond, low, high) == 2 * power
        assert scale_of(float(bottom), 0, low, high) == power
        assert scale_of(below, 0, low, high) == 2 * power


def test_zeros() -> None:
    """Stay zeros, and their gradient passes, whatever the scheme."""
    for scheme in SCHEMES:
        x = torch.zeros(5, requires_grad=True)
        rest = (True, 1.0, -128, 127, f"per_tensor_{scheme}", None, "half_even", "x")
        result = moving_average(x, unseen(), *rest)
        result.backward(torch.ones(5))
        assert torch.equal(result, torch.zeros(5)) and torch.equal(x.grad, torch.ones(5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_cast_model(dtype: torch.dtype) -> None:
    """A range that was cast with its model is written to all the same."""
    x = torch.randn(50, generator=torch.Generator().manual_seed(6)).to(dtype)
    state = unseen().to(dtype)
    rest = (-128, 127, "per_tensor_power_of_two", None, "half_even", "x")
    result = moving_average(x, state, True, 1.0, *rest)
    assert result.dtype == dtype
    assert torch.equal(state, torch.stack([x.min(), x.max()]))


def test_empty_batch() -> None:
    """Is no batch."""
    state = unseen()
    rest = (-128, 127, "per_tensor_affine", None, "half_even", "x")
    assert moving_average(torch.zeros(0, 3), state, True, 0.1, *rest).shape == (0, 3)
    assert torch.equal(state, unseen())


class Scripted(nn.Module):
    """Both operators in a graph, with a range as buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("range", unseen())
        self.scale = nn.Parameter(torch.tensor([0.1]))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.jit_passes.fake_quantize_moving_average(
            x, self.range, None, 0, self.training, True, 0.1, False, -8, 7, "per_tensor_affine",
            None, "half_even", "", "x", ""
        )  # fmt: skip
        return torch.ops.jit_passes.fake_quantize(y, self.scale, torch.zeros(1), -8, 7)


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A file keeps numbers, ranges and gradients; dead code elimination keeps the range."""
    model = torch.jit.script(Scripted())
    batches = [torch.randn(40, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    model(batches[0])
    model.save(str(tmp_path / "model.pt"))
    loaded = torch.jit.load(str(tmp_path / "model.pt"))
    for x in (*batches, *batches):
        left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
        ours, theirs = model(left), loaded(right)
        assert torch.equal(ours, theirs) and torch.equal(model.range, loaded.range)
        ours.sum().backward()
        theirs.sum().backward()
        assert torch.equal(left.grad, right.grad) and left.grad.any()
    loaded.eval()
    before = loaded.range.clone()
    loaded(100 * batches[0])
    assert torch.equal(loaded.range, before)


X = torch.ones(2, 3)
AVERAGING = (None, 0, True, True, 0.1, False, -8, 7)
OPCHECKS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "per_tensor": (fake_quantize, (torch.tensor([0.1]), torch.zeros(1), -8, 7)),
    "per_channel": (fake_quantize, (torch.full((3,), 0.1), torch.zeros(3), -8, 7, 1, "floor")),
    "moving_average": (
        own.fake_quantize_moving_average,
        (unseen(), *AVERAGING, "per_tensor_affine", None, "half_even", "", "x", ""),
    ),
    "moving_average_per_channel": (
        own.fake_quantize_moving_average,
        (unseen(3), *AVERAGING, "per_channel_power_of_two", 1, "half_even", "", "x", ""),
    ),
    "qparams": (
        own.moving_average_qparams,
        qparams_arguments(X, unseen(), True, 0.1, -8, 7, "per_tensor_symmetric", None, "x")[1:],
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPCHECKS)
def test_opcheck(name: str) -> None:
    """PyTorch's checks: schema, autograd, fake tensors, tracing ahead of time."""
    operator, rest = OPCHECKS[name]
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(7))
    x.requires_grad_(operator is not own.moving_average_qparams)
    torch.library.opcheck(operator.default, (x, *rest))


ONE, ZERO = torch.ones(1), torch.zeros(1)
SEEN = torch.tensor([-1.0, 1.0])
AVERAGE = (-8, 7, "per_tensor_affine", None, "half_even", "conv1 input")
BAD: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "empty_range": (fake_quantize, (X, ONE, ZERO, 5, 5), r"\[5, 5\] is empty"),
    "large_range": (fake_quantize, (X, ONE, ZERO, 0, 2**25), "beyond the integers"),
    "zero_scale": (fake_quantize, (X, ZERO, ZERO, -8, 7), "not 0, got 0"),
    "nan_scale": (fake_quantize, (X, ONE * math.nan, ZERO, -8, 7), "finite and not 0"),
    "infinite_scale": (fake_quantize, (X, ONE * math.inf, ZERO, -8, 7), "finite and not 0"),
    "rounding": (fake_quantize, (X, ONE, ZERO, -8, 7, None, "up"), "not 'up'"),
    "scales": (fake_quantize, (X, torch.ones(3), torch.zeros(3), -8, 7), "^1 scale .* got 3 and 3"),
    "channels": (fake_quantize, (X, ONE, ZERO, -8, 7, 1), "^3 scale .* got 1 and 1"),
    "axis": (fake_quantize, (X, ONE, ZERO, -8, 7, 2), "ch_axis 2 is outside .* 2 dim"),
    "integers": (fake_quantize, (X.int(), ONE, ZERO, -8, 7), "floating-point.*got Int"),
    "unseen": (
        moving_average, (X, unseen(), False, 0.1, *AVERAGE), "'conv1 input' is known: run a batch"
    ),
    "nan": (moving_average, (X * math.nan, unseen(), True, 0.1, *AVERAGE), "'conv1 input' holds"),
    "infinity": (moving_average, (X / 0, SEEN, True, 0.1, *AVERAGE), "'conv1 input' holds"),
    "constant": (moving_average, (X, SEEN, True, 0.0, *AVERAGE), "in \\(0, 1\\], not 0"),
    "range_shape": (moving_average, (X, torch.ones(3), True, 0.1, *AVERAGE), r"shape \[3\]"),
    "average_integers": (moving_average, (X.int(), SEEN, True, 0.1, *AVERAGE), "input' is Int"),
    "no_zero": (moving_average, (X, SEEN, True, 0.1, 1, 7, *AVERAGE[2:]), "does not hold 0"),
    "scheme": (
        moving_average, (X, SEEN, True, 0.1, -8, 7, "per_tensor", None, "floor", "x"), "not 'per_te"
    ),
    "scheme_axis": (
        moving_average, (X, SEEN, True, 0.1, -8, 7, "per_channel_affine", None, "floor", "x"),
        "ch_axis = None does not go with per_channel_affine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    """The message has what was wrong, and a range is as it was."""
    operator, arguments, message = BAD[name]
    before = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
    with pytest.raises((RuntimeError, ValueError), match=message):
        operator(*arguments)
    for left, right in zip(arguments, before, strict=True):
        if isinstance(left, Tensor):
            torch.testing.assert_close(left, right, equal_nan=True)
