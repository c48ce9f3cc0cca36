"""Trained fake quantization against its papers' equations, number by number, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jit_passes  # noqa: F401  registers the operators

own = torch.ops.jit_passes
GRIDS = [(-128, 127), (0, 255), (-8, 7), (-2, 1), (0, 3)]
OPERATORS = ["lsq", "lsq_plus", "tqt"]
KERNELS = ["lsq", "lsq_plus", "learnable"]  # of these TQT is the last one, its scale a power of two
ALL = [*OPERATORS, "learnable"]
FACTOR = 0.375  # the gradient scale
ROUND: dict[str, Callable[[float], int]] = {
    "half_even": round,
    "half_up": lambda v: math.floor(Fraction(v) + Fraction(1, 2)),
    "half_away": lambda v: int(math.copysign(math.floor(Fraction(abs(v)) + Fraction(1, 2)), v)),
    "floor": math.floor,
}


def slow(
    name: str, x: Tensor, gradient: Tensor, first: float, second: float, low: int, high: int,
    rounding: str = "half_even",
) -> tuple[list[float], list[float], float, float]:  # fmt: skip
    """One channel by the equations: values, dx, and the gradients of both parameters.

    ``first`` is the scale, or log2 of the threshold; ``second`` the offset.  The number of steps is
    that of the operator's precision, as the masks stand and fall with it; all else is in float64.
    """
    scale = first
    if name == "tqt":
        bits = round(math.log2(-low if low < 0 else high + 1))
        scale = 2.0 ** math.ceil(first) / 2.0**bits
    values, dx, terms, outsides = [], [], [], []
    for value, g in zip(x.reshape(-1).tolist(), gradient.reshape(-1).tolist(), strict=True):
        if x.dtype == torch.float64:
            v = (value - second) / scale
        else:
            with np.errstate(over="ignore"):
                v = float((np.float32(value) - np.float32(second)) * (1 / np.float32(scale)))
        whole = ROUND[rounding](min(max(v, -1e12), 1e12))
        code = min(max(whole, low), high)
        if name in ("tqt", "learnable"):
            inside = low <= whole <= high
            slope = (code - v) if inside else code
            slope *= scale * math.log(2) if name == "tqt" else 1
        else:
            inside = low < v < high
            slope = ((code - v) if inside else (low if v <= low else high)) * FACTOR
        if x.dtype == torch.float64:
            values.append(code * scale + second)
        else:
            values.append(float(np.float32(code) * np.float32(scale) + np.float32(second)))
        dx.append(g if inside else 0.0)
        terms.append(g * slope)
        outsides.append(0.0 if inside else g * FACTOR)
    return values, dx, math.fsum(terms), math.fsum(outsides)


def call(
    name: str, x: Tensor, parameters: tuple[Tensor, ...], low: int, high: int, axis: int | None,
    rounding: str = "half_even",
) -> Tensor:  # fmt: skip
    """The operator of that name."""
    factor = (FACTOR,) if name.startswith("lsq") else ()
    operator = getattr(own, f"fake_quantize_{name}")
    return operator(x, *parameters, low, high, *factor, axis, rounding)


def call_backward(
    name: str, gradient: Tensor, x: Tensor, parameters: tuple[Tensor, ...], *grid: Any
) -> tuple[Any, tuple[Any, ...]]:
    """Its backward and arguments for that."""
    low, high, axis = grid
    factor = (FACTOR,) if name.startswith("lsq") else ()
    operator = getattr(own, f"fake_quantize_{name}_backward")
    return operator, (gradient, x, *parameters, low, high, *factor, axis)


def parameters_of(name: str, channels: int, dtype: torch.dtype = torch.float32) -> Any:
    """Trained numbers for so many channels."""
    scale = torch.linspace(0.11, 0.23, channels, dtype=dtype)
    if name == "tqt":
        return (torch.linspace(-0.4, 2.3, channels, dtype=dtype),)
    return (
        (scale,)
        if name != "lsq_plus"
        else (scale, torch.linspace(-0.3, 0.7, channels, dtype=dtype))
    )


def numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Seeded, from a normal distribution."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def differentiate(
    name: str, x: Tensor, parameters: tuple[Tensor, ...], gradient: Tensor, *grid: Any
) -> list[Tensor]:
    """Result, gradient of x, gradients of the parameters."""
    leaves = [t.detach().requires_grad_() for t in (x, *parameters)]
    result = call(name, leaves[0], tuple(leaves[1:]), *grid)
    return [result.detach(), *torch.autograd.grad(result, leaves, gradient)]


def check(
    name: str, x: Tensor, parameters: tuple[Tensor, ...], low: int, high: int, axis: int | None,
    rounding: str = "half_even",
) -> None:  # fmt: skip
    """Values and dx to the bit.

    Gradients of parameters to 1e-6 of the sum of magnitudes: a float32 slope is rounded once, and
    so is the sum.
    """
    gradient = numbers(x.shape, 5, x.dtype)
    found = differentiate(name, x, parameters, gradient, low, high, axis, rounding)
    assert [t.dtype for t in found] == [x.dtype, x.dtype, *(p.dtype for p in parameters)]
    assert [t.shape for t in found] == [x.shape, x.shape, *(p.shape for p in parameters)]
    channels = 1 if axis is None else x.size(axis)
    for i in range(channels):
        part = (lambda t: t) if axis is None else (lambda t, i=i: t.select(axis, i))
        grid = [p.reshape(-1)[i].item() for p in parameters]
        second = grid[1] if len(grid) > 1 else 0.0
        values, dx, slope, outside = slow(
            name, part(x), part(gradient), grid[0], second, low, high, rounding
        )
        expected = torch.tensor(values, dtype=torch.float64).to(x.dtype)
        assert torch.equal(part(found[0]).reshape(-1), expected)
        assert torch.equal(part(found[1]).reshape(-1), torch.tensor(dx, dtype=x.dtype))
        tolerance = 1e-12 if parameters[0].dtype == torch.float64 == x.dtype else 1e-6
        size = part(gradient).double().abs().sum().item() * (high - low) * FACTOR + 1
        for sums, wanted in zip(found[2:], (slope, outside), strict=False):
            assert abs(sums.reshape(-1)[i].item() - wanted) <= tolerance * size


def values(scale: float, low: int, high: int, dtype: torch.dtype) -> Tensor:
    """Ties, both ends of the range, 0.4 and 0.6 beyond them, their neighbours, and the rest."""
    codes = torch.tensor([low - 1, low, low + 1, -1, 0, 1, high - 1, high, high + 1]).double()
    x = torch.cat([codes + shift for shift in (-0.6, -0.5, -0.4, 0, 0.4, 0.5, 0.6)]).to(dtype)
    x = x * scale
    inf = torch.full_like(x, math.inf)
    near = torch.cat([torch.nextafter(x, inf), torch.nextafter(x, -inf)])
    wide = numbers((200,), 0, dtype) * scale * (high - low) / 2
    return torch.cat([x, near, wide, 1e-3 * wide, torch.tensor([1e30, -1e30], dtype=dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_definition(name: str, grid: tuple[int, int], dtype: torch.dtype) -> None:
    """Every value, mask and sum, per tensor."""
    for scale in (1.0, 0.25, 0.1, 0.0235):
        x = values(scale, *grid, dtype)
        first = torch.tensor([scale], dtype=dtype)
        if name == "tqt":
            bits = math.log2(-grid[0] if grid[0] < 0 else grid[1] + 1)
            for shift in (0.0, -0.3):  # a whole exponent, and one that the ceiling rounds
                check(name, x, (first.log2().ceil() + bits + shift,), *grid, None)
        elif name == "lsq":
            check(name, x, (first,), *grid, None)
        else:
            for offset in (0.0, 0.3, -1.7):
                check(name, x + offset, (first, torch.full_like(first, offset)), *grid, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rounding", ROUND)
@pytest.mark.parametrize("name", ALL)
def test_roundings(name: str, rounding: str, dtype: torch.dtype) -> None:
    """Values, masks and sums with each rounding, per tensor and per channel."""
    x = values(0.25, -8, 7, dtype)
    first = torch.tensor([1.0 if name == "tqt" else 0.25], dtype=dtype)
    parameters = (first, torch.tensor([0.5], dtype=dtype))[: 1 + (name == "lsq_plus")]
    check(name, x, parameters, -8, 7, None, rounding)
    rows = numbers((3, 70), 4, dtype)
    check(name, rows, parameters_of(name, 3, dtype), -8, 7, 0, rounding)
    check(name, rows.T.contiguous(), parameters_of(name, 3, dtype), -8, 7, 1, rounding)


def one(name: str, x: float, parameters: tuple[float, ...]) -> list[float]:
    """Result and gradients of one number, in [-128, 127] and with gradient scale FACTOR."""
    given = tuple(torch.tensor(p, dtype=torch.float64) for p in parameters)
    number = torch.tensor([x], dtype=torch.float64)
    found = differentiate(name, number, given, torch.ones_like(number), -128, 127, None)
    return [t.item() for t in found]


def test_closed_forms() -> None:
    """By hand: where LSQ and TQT agree, and at the ends, where they do not."""
    ln2 = math.log(2)
    lsq = {  # with a scale of 1: value, dx, slope
        3.25: (3, 1, -0.25), 2.5: (2, 1, -0.5), 3.5: (4, 1, 0.5), -0.5: (0, 1, 0.5),
        126.75: (127, 1, 0.25), 127.0: (127, 0, 127), 127.4: (127, 0, 127), 127.6: (127, 0, 127),
        -127.75: (-128, 1, -0.25), -128.0: (-128, 0, -128), -128.4: (-128, 0, -128),
        math.inf: (127, 0, 127), -math.inf: (-128, 0, -128),
    }  # fmt: skip
    tqt = lsq | {
        127.0: (127, 1, 0), 127.4: (127, 1, 127 - 127.4), 127.5: (127, 0, 127),
        -128.0: (-128, 1, 0), -128.4: (-128, 1, 0.4),
        -128.5: (-128, 1, 0.5), -128.6: (-128, 0, -128),
    }  # fmt: skip
    for x, (value, inside, slope) in lsq.items():
        assert one("lsq", x, (1.0,)) == [value, inside, FACTOR * slope]
        assert one("lsq_plus", x, (1.0, 0.0)) == [
            value, inside, FACTOR * slope, FACTOR * (1 - inside)
        ]  # fmt: skip
        shifted = one("lsq_plus", 0.5 * x + 8, (0.5, 8.0))
        assert shifted[:2] == [0.5 * value + 8, inside]
        # 127.4 is not a float, and adding 8 rounds it
        assert shifted[2:] == pytest.approx([FACTOR * slope, FACTOR * (1 - inside)], abs=1e-13)
    for x, (value, inside, slope) in tqt.items():
        found = one("tqt", 0.5 * x, (6.0,))  # 2^6 / 128
        assert found == pytest.approx([0.5 * value, inside, 0.5 * ln2 * slope], rel=1e-13)
        assert one("tqt", 0.5 * x, (5.3,)) == found  # the ceiling


def test_scale_of_thresholds() -> None:
    """2^(b - 1) with signs, 2^b without; narrow ranges have the same as whole ones."""
    for low, high, bits in (
        (-128, 127, 7),
        (-127, 127, 7),
        (0, 255, 8),
        (-8, 7, 3),
        (-(2**15), 99, 15),
    ):
        step = own.fake_quantize_tqt(
            torch.ones(1) * 2.0**-20, torch.tensor(-20.0 + bits), low, high
        )
        assert step.item() == 2.0**-20


def layouts(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Tensors that lie in memory in all ways."""
    x = 2 * numbers((3, 6, 5, 4), 1, dtype)
    return {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "permuted": x.permute(3, 1, 0, 2),
        "sliced": x[:, 1::2, :, ::3],
        "expanded": x[:, :1].expand(-1, 7, -1, -1),
        "one_channel": x[:, :1],
        "empty": x[:0],
        "no_channels": x[:, :0],
        "vector": x.reshape(-1)[:7],
    }


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("axis", [None, 0, 1, 3, -1, -3])
@pytest.mark.parametrize("layout", layouts())
def test_layouts(layout: str, axis: int | None, name: str) -> None:
    """Values, gradients and sums belong to their elements and channels; dense layouts are kept."""
    x = layouts()[layout]
    if axis is not None and not -x.dim() <= axis < x.dim():
        return
    parameters = parameters_of(name, 1 if axis is None else x.size(axis))
    check(name, x, parameters, -8, 7, axis)
    gradient = numbers(x.shape, 2)
    result, dx, *_ = differentiate(name, x, parameters, gradient, -8, 7, axis)
    assert result.stride() == dx.stride() == torch.empty_like(x).stride()
    # A gradient that lies otherwise in memory, and the one of sum(), which is a single number.
    turned = gradient.transpose(0, -1).contiguous().transpose(0, -1)
    again = differentiate(name, x, parameters, turned, -8, 7, axis)
    assert torch.equal(dx, again[1])
    ones = differentiate(name, x, parameters, torch.ones(()).expand(x.shape), -8, 7, axis)
    same = differentiate(name, x, parameters, torch.ones(x.shape), -8, 7, axis)
    assert all(torch.equal(a, b) for a, b in zip(ones, same, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("name", ALL)
def test_half_types(name: str, axis: int | None, dtype: torch.dtype) -> None:
    """Computed as float32, rounded once; the parameters and their gradients stay float32."""
    x, gradient = numbers((4, 6, 8), 3, dtype), numbers((4, 6, 8), 4, dtype)
    parameters = parameters_of(name, 1 if axis is None else 6)
    grid = (-4, 3, axis)
    half = differentiate(name, x, parameters, gradient, *grid)
    whole = differentiate(name, x.float(), parameters, gradient.float(), *grid)
    assert torch.equal(half[0], whole[0].to(dtype)) and torch.equal(half[1], whole[1].to(dtype))
    for left, right in zip(half[2:], whole[2:], strict=True):
        assert left.dtype == torch.float32 and torch.equal(left, right)


@pytest.mark.parametrize("name", OPERATORS)
def test_autocast(name: str) -> None:
    """Takes what it is given, as fake_quantize: the dtype of x is that of the result."""
    with torch.autocast("cpu", torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            x = numbers((5,), 3, dtype)
            assert call(name, x, parameters_of(name, 1), -8, 7, None).dtype == dtype


SHAPES = {
    "tensor": ((300_007,), None),
    "rows": ((40, 7, 30, 41), 1),
    "side_by_side": ((9001, 37), 1),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", KERNELS)
def test_threads(name: str, shape: str) -> None:
    """One thread and several give equal bits; equal to sums in float64."""
    size, axis = SHAPES[shape]
    x, gradient = numbers(size, 6), numbers(size, 7)
    parameters = parameters_of(name, 1 if axis is None else size[axis])
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(differentiate(name, x, parameters, gradient, -8, 7, axis))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    operator, arguments = call_backward(name, gradient, x, parameters, -8, 7, axis)
    wanted = composed(operator, *arguments)
    assert torch.equal(results[0][1], wanted[0])
    for left, right in zip(results[0][2:], wanted[1:], strict=True):
        # The composition adds in float32.
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-2)


def composed(operator: Any, *arguments: Any) -> Any:
    """Call the kernel for devices that have none of their own: the one behind that key too."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
    return operator.default.redispatch(keys, *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", KERNELS)
def test_other_devices(name: str, axis: int | None, dtype: torch.dtype) -> None:
    """The form without a kernel, called on CPU tensors: values and dx to the bit.

    Tolerance of the sums: float32 additions of some 250 terms.
    """
    x = values(0.25, -8, 7, torch.float32).to(dtype)
    x = x[: x.numel() // 6 * 6].reshape(6, -1)
    x = x.clamp(-1e4, 1e4)
    parameters = parameters_of(name, 1 if axis is None else x.size(axis))
    factor = (FACTOR,) if name.startswith("lsq") else ()
    operator = getattr(own, f"fake_quantize_{name}")
    there = composed(operator, x, *parameters, -8, 7, *factor, axis)
    assert torch.equal(there, call(name, x, parameters, -8, 7, axis))
    operator, arguments = call_backward(
        name, numbers(x.shape, 8, dtype), x, parameters, -8, 7, axis
    )
    left, right = operator(*arguments), composed(operator, *arguments)
    assert torch.equal(left[0], right[0])
    for ours, theirs in zip(left[1:], right[1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_thresholds_on_other_devices() -> None:
    """Powers of two to the bit over the whole range; beyond it not a number."""
    operator = own.power_of_two_scale
    for exponent in range(-119, 134):
        for threshold in (torch.tensor([float(exponent)]), torch.tensor([exponent - 0.3])):
            scale = composed(operator, threshold, -128, 127)
            assert scale == 2.0 ** (exponent - 7) == operator(threshold, -128, 127)
    for beyond in (math.nan, math.inf, -math.inf, 200.0, -200.0):
        assert composed(operator, torch.tensor([beyond]), -128, 127).isnan()


@pytest.mark.parametrize("name", ALL)
def test_not_a_number(name: str) -> None:
    """Stays one, has no gradient, and shows in that of its scale only."""
    x = torch.tensor([[math.nan, 1.0], [0.3, 1.0]])
    found = differentiate(name, x, parameters_of(name, 2), torch.ones(2, 2), -8, 7, 1)
    assert found[0].isnan().tolist() == [[True, False], [False, False]]
    assert found[1].tolist() == [[0, 1], [1, 1]]
    assert found[2].isnan().tolist() == [True, False]


@pytest.mark.parametrize("name", ALL)
def test_autograd(name: str) -> None:
    """Nothing recorded where none is wanted; some only; no second one; no writing into x."""
    x, parameters = numbers((50,), 9), parameters_of(name, 1)
    with torch.no_grad():
        assert not call(name, x.clone().requires_grad_(), parameters, -8, 7, None).requires_grad
    leaf = parameters[0].clone().requires_grad_()
    call(name, x, (leaf, *parameters[1:]), -8, 7, None).sum().backward()
    assert leaf.grad.abs() > 0
    leaf = x.clone().requires_grad_()
    result = call(name, leaf, parameters, -8, 7, None)
    (first,) = torch.autograd.grad(result.square().sum(), leaf, create_graph=True)
    kernel = "learnable" if name == "tqt" else name
    with pytest.raises(RuntimeError, match=f"fake_quantize_{kernel}_backward is not implemented"):
        first.sum().backward()
    activation = leaf * 1
    result = call(name, activation, parameters, -8, 7, None)
    activation.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("grid", [(-128, 127), (0, 255), (-8, 7)], ids=str)
def test_as_pytorch(grid: tuple[int, int]) -> None:
    """_fake_quantize_learnable_per_tensor_affine, where the definitions coincide.

    TQT at a whole exponent is the learnable operator times ln 2 * scale, everywhere.  LSQ is it for
    numbers whose mask is the same before and after rounding.  Tolerance: its sums are float32.
    """
    low, high = grid
    scale, exponent = 2.0**-4, math.log2(-low if low < 0 else high + 1) - 4
    x = numbers((5000,), 10) * (high - low) * scale / 2
    gradient = numbers((5000,), 11)
    learnable = torch.ops.aten._fake_quantize_learnable_per_tensor_affine

    def theirs(x: Tensor, gradient: Tensor) -> list[Tensor]:
        leaves = [x.clone().requires_grad_(), torch.tensor([scale]).requires_grad_()]
        result = learnable(*leaves, torch.zeros(1), low, high, 1.0)
        return [result, *torch.autograd.grad(result, leaves, gradient)]

    wanted = theirs(x, gradient)
    found = differentiate("tqt", x, (torch.tensor([exponent]),), gradient, low, high, None)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    torch.testing.assert_close(found[2], wanted[2] * scale * math.log(2), rtol=1e-4, atol=1e-3)

    v = x / scale
    same = (v > low) & (v < high) | (v < low - 0.5) | (v > high + 0.5)
    x, gradient = x[same], gradient[same]
    wanted = theirs(x, gradient)
    found = differentiate("lsq", x, (torch.tensor([scale]),), gradient, low, high, None)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    torch.testing.assert_close(found[2], wanted[2] * FACTOR, rtol=1e-4, atol=1e-3)


def test_as_eager() -> None:
    """LSQ as NNI writes it, with detached differences: values and all gradients.

    Tolerance: autograd through the eager form adds in float32, and divides.
    """
    x = numbers((4000,), 12).requires_grad_()
    scale = torch.tensor([0.125], requires_grad=True)  # dividing is multiplying, so masks agree

    def eager(x: Tensor, scale: Tensor) -> Tensor:
        scaled = (scale - scale * FACTOR).detach() + scale * FACTOR
        clipped = (x / scaled).clamp(-8, 7)
        return ((clipped.round() - clipped).detach() + clipped) * scaled

    gradient = numbers((4000,), 13)
    left, right = own.fake_quantize_lsq(x, scale, -8, 7, FACTOR), eager(x, scale)
    assert torch.equal(left, right)
    ours = torch.autograd.grad(left, (x, scale), gradient)
    theirs = torch.autograd.grad(right, (x, scale), gradient)
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-3)


def error(x: Tensor, threshold: float, high: int) -> float:
    """The mean squared error of quantizing with [-high - 1, high] and that threshold."""
    scale = threshold / (high + 1)
    return (x - (x / scale).round().clamp(-high - 1, high) * scale).square().mean().item()


def descend(quantize: Callable[[Tensor], Tensor], x: Tensor, start: float) -> list[float]:
    """Log2 of the threshold over steps of Adam, on the mean squared error."""
    log2 = torch.tensor([start], requires_grad=True)
    optimizer = torch.optim.Adam([log2], lr=0.02)
    path = []
    for _ in range(600):
        optimizer.zero_grad()
        (quantize(log2) - x).square().mean().backward()
        optimizer.step()
        path.append(log2.item())
    return path


class ClippingOnly(torch.autograd.Function):
    """TensorFlow's gradient: the threshold sees what was clipped, and nothing else."""

    @staticmethod
    def forward(context: Any, x: Tensor, threshold: Tensor) -> Tensor:
        scale = threshold / 8
        steps = (x / scale).round()
        context.save_for_backward(steps)
        return steps.clamp(-8, 7) * scale

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (steps,) = context.saved_tensors
        return None, (gradient * ((steps > 7).float() - (steps < -8).float())).sum().reshape(1)


def test_thresholds_find_the_optimum() -> None:
    """A Gaussian in 4 bits, from thresholds eight times too wide and too narrow.

    LSQ ends at the threshold of the least error, to within 2 % of that error.  TQT ends at the
    power of two of the least error.  Without a term within the range, a wide threshold stays.
    """
    x = numbers((20_000,), 14)
    best = min((error(x, 2 ** (k / 50), 7), k / 50) for k in range(-200, 300))
    powers = min((error(x, 2.0**k, 7), k) for k in range(-4, 6))

    def lsq(log2: Tensor) -> Tensor:
        return own.fake_quantize_lsq(x, torch.exp2(log2) / 8, -8, 7, 1.0)

    def tqt(log2: Tensor) -> Tensor:
        return own.fake_quantize_tqt(x, log2, -8, 7)

    for start in (best[1] + 3, best[1] - 3):
        assert error(x, 2 ** descend(lsq, x, start)[-1], 7) < 1.02 * best[0]
        last = descend(tqt, x, start)[-50:]
        assert min(abs(math.ceil(k) - powers[1]) for k in last) == 0
        assert max(abs(k - powers[1]) for k in last) < 1.2  # it may swing around a whole exponent
    start = best[1] + 3
    path = descend(lambda log2: ClippingOnly.apply(x, torch.exp2(log2)), x, start)
    assert path[-1] == pytest.approx(start, abs=1e-6)
    assert error(x, 2 ** path[-1], 7) > 10 * best[0]


class Scripted(nn.Module):
    """All three in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.scale, self.offset = (
            nn.Parameter(torch.full((5, 1), 0.1)),
            nn.Parameter(torch.zeros(1)),
        )
        self.input_scale = nn.Parameter(torch.tensor(0.3))
        self.log2_threshold = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.ops.jit_passes.fake_quantize_lsq_plus(
            x, self.input_scale, self.offset, 0, 15, 0.01
        )
        weight = torch.ops.jit_passes.fake_quantize_lsq(
            self.linear.weight, self.scale, -8, 7, 0.1, 0
        )
        y = torch.nn.functional.linear(x, weight, self.linear.bias)
        return torch.ops.jit_passes.fake_quantize_tqt(y, self.log2_threshold, -128, 127)


def test_scripted_training(tmp_path: Path) -> None:
    """Scripted, saved and loaded, it trains step by step as in eager mode, and its loss falls."""
    torch.manual_seed(0)
    eager = Scripted()
    torch.jit.script(eager).save(str(tmp_path / "model.pt"))
    loaded = torch.jit.load(str(tmp_path / "model.pt"))
    x = numbers((64, 6), 15)
    target = x @ numbers((6, 5), 16)
    losses: list[list[float]] = []
    for model in (eager, loaded):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        losses.append([])
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(x) - target).square().mean()
            loss.backward()
            assert all(p.grad is not None for p in model.parameters())
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.5 * losses[0][0]
    assert loaded.scale.grad.shape == (5, 1) and loaded.input_scale.grad.shape == ()
    assert all(p.grad.any() for p in loaded.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("name", ALL)
def test_opcheck(name: str, axis: int | None) -> None:
    """PyTorch's checks: schema, autograd, fake tensors, tracing ahead of time."""
    x = numbers((2, 3, 4), 17)
    parameters = parameters_of(name, 1 if axis is None else 3)
    if name in KERNELS:
        operator, arguments = call_backward(name, numbers(x.shape, 18), x, parameters, -8, 7, axis)
        torch.library.opcheck(operator.default, arguments)
    leaves = [t.requires_grad_() for t in (x, *parameters)]
    factor = (FACTOR,) if name.startswith("lsq") else ()
    operator = getattr(own, f"fake_quantize_{name}")
    torch.library.opcheck(operator.default, (*leaves, -8, 7, *factor, axis))


def test_meta() -> None:
    """Shapes and types without numbers."""
    x = torch.empty(2, 3, 4, device="meta", dtype=torch.float16, requires_grad=True)
    for name in OPERATORS:
        given = tuple(
            torch.empty(3, device="meta", requires_grad=True) for _ in parameters_of(name, 3)
        )
        result = call(name, x, given, -8, 7, 1)
        assert (result.shape, result.dtype, result.device.type) == (x.shape, x.dtype, "meta")
        found = torch.autograd.grad(result.sum(), (x, *given))
        assert [t.shape for t in found] == [x.shape, *(p.shape for p in given)]


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("name", KERNELS)
def test_negative_scales(name: str, axis: int | None) -> None:
    """Mirror the grid: what comes out is that of -x and -offset, the other way round."""
    x = values(0.25, -8, 7, torch.float32).reshape(1, -1)
    gradient = numbers(x.shape, 19)
    scale, *offset = parameters_of(name, 1)
    ours = differentiate(name, x, (-scale, *offset), gradient, -8, 7, axis)
    theirs = differentiate(name, -x, (scale, *(-t for t in offset)), -gradient, -8, 7, axis)
    assert all(torch.equal(left, -right) for left, right in zip(ours, theirs, strict=True))


X = torch.ones(2, 3)
ONE, THREE = torch.ones(1), torch.ones(3)
LSQ, PLUS, TQT = own.fake_quantize_lsq, own.fake_quantize_lsq_plus, own.fake_quantize_tqt
BAD: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "empty_range": (LSQ, (X, ONE, 5, 5, 1.0), r"\[5, 5\] is empty"),
    "empty_range_plus": (PLUS, (X, ONE, ONE, 5, 5, 1.0), r"\[5, 5\] is empty"),
    "empty_range_tqt": (TQT, (X, ONE, 5, 5), r"\[5, 5\] is empty"),
    "large_range": (LSQ, (X, ONE, 0, 2**25, 1.0), "beyond the integers"),
    "zero_scale": (LSQ, (X, 0 * ONE, -8, 7, 1.0), "not 0, got 0"),
    "nan_scale": (LSQ, (X, math.nan * ONE, -8, 7, 1.0), "finite and not 0"),
    "infinite_scale": (PLUS, (X, math.inf * ONE, ONE, -8, 7, 1.0), "finite and not 0"),
    "nan_threshold": (TQT, (X, math.nan * ONE, -8, 7), "log2_threshold nan makes"),
    "infinite_threshold": (TQT, (X, math.inf * ONE, -8, 7), "log2_threshold inf makes"),
    "huge_threshold": (TQT, (X, 200 * ONE, -8, 7), r"scale 2\^197, which must lie"),
    "scales": (LSQ, (X, THREE, -8, 7, 1.0), "^1 scale for the tensor .* got 3"),
    "channels": (LSQ, (X, ONE, -8, 7, 1.0, 1), "^3 scale for the channels .* got 1"),
    "offsets": (PLUS, (X, THREE, ONE, -8, 7, 1.0, 1), "^3 offset for the channels .* got 1"),
    "thresholds": (TQT, (X, ONE, -8, 7, 1), "^3 log2_threshold for the channels .* got 1"),
    "axis": (TQT, (X, ONE, -8, 7, 2), "ch_axis 2 is outside .* 2 dim"),
    "integers": (LSQ, (X.int(), ONE, -8, 7, 1.0), "floating-point.*got Int"),
    "no_zero": (TQT, (X, ONE, 1, 7), "must hold 0 and a number above"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    """The message has what was wrong."""
    operator, arguments, message = BAD[name]
    with pytest.raises(RuntimeError, match=message):
        operator(*arguments)


@pytest.mark.parametrize("rounding", ["half_away", "toward_zero"])
def test_zero_points_change_no_gradient(rounding: str) -> None:
    """Roundings that depend on the sign of x: a zero point moves codes, and no number."""
    x, scale = values(0.25, -8, 7, torch.float32), torch.tensor([0.25])
    found = []
    for zero_point in (0, 37):
        leaves = [t.detach().requires_grad_() for t in (x, scale)]
        result = own.fake_quantize_lsq(*leaves, -8, 7, FACTOR, None, rounding, zero_point)
        found.append([result, *torch.autograd.grad(result, leaves, torch.ones_like(x))])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
