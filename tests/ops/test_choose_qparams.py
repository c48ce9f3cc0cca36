"""Parameters that are chosen as a model runs, against calibration and PyTorch's kernels."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jit_passes
from jit_passes.quantizer import QuantizationSpec
from jit_passes.specification.qparams import affine_qparams

choose_qparams = torch.ops.jit_passes.choose_qparams
quantize_dynamic = torch.ops.jit_passes.quantize_dynamic
dequantize_dynamic = torch.ops.jit_passes.dequantize_dynamic
train_dynamic = torch.ops.jit_passes.train_dynamic

GRIDS = [("uint8", 0, 255), ("int8", -128, 127), ("int8", -127, 127), ("uint8", 0, 15),
         ("int16", -(2**15), 2**15 - 1)]  # fmt: skip
# Among them ends whose span is beyond float32, and scales below those that either form allows.
EXPONENTS = (-45, -40, -38, -30, -20, -8, -5, -4.3, -4, -3, -1, 0, 1, 5, 20, 37, 38.4)


def pairs(count: int) -> Iterator[Tensor]:
    """Two numbers of any size, on one side of 0 or on both, some equal to 0."""
    draw = random.Random(0)
    largest = float(np.finfo(np.float32).max)
    for number in range(count):
        size = 10.0 ** draw.choice(EXPONENTS)
        ends = [draw.uniform(-1, 1) * size for _ in range(2)]
        side = number % 10
        ends = [abs(end) for end in ends] if side == 0 else ends
        ends = [-abs(end) for end in ends] if side == 1 else ends
        ends = [0.0, ends[1]] if side == 2 else [0.0, 0.0] if side == 3 else ends
        yield torch.tensor([min(max(end, -largest), largest) for end in ends])


def chosen(x: Tensor, low: int, high: int, scheme: str, form: str) -> tuple[float, int]:
    scale, zero_point = choose_qparams(x, low, high, scheme, form)
    assert (scale.dtype, zero_point.dtype) == (torch.float32, torch.int32)
    return float(scale), int(zero_point)


def round_trip(x: Tensor, low: int, high: int, scheme: str, form: str = "pytorch") -> Tensor:
    scale, zero_point = choose_qparams(x, low, high, scheme, form)
    codes = quantize_dynamic(x, scale, zero_point, low, high, torch.int16)
    return dequantize_dynamic(codes, scale, zero_point)


@pytest.mark.parametrize("scheme", ["per_tensor_affine", "per_tensor_symmetric"])
@pytest.mark.parametrize(("dtype", "low", "high"), GRIDS)
def test_as_calibration_finds_them(scheme: str, dtype: str, low: int, high: int) -> None:
    """To the bit what the range of MinMax comes to."""
    spec = QuantizationSpec(dtype, low, high, scheme)
    for x in pairs(500):
        scale, zero_point = affine_qparams(float(x.min()), float(x.max()), spec)
        assert chosen(x, low, high, scheme, "pytorch") == (np.float32(scale), zero_point), x


@pytest.mark.parametrize("reduce_range", [False, True])
def test_as_pytorch_kernels_find_them(reduce_range: bool) -> None:
    """To the bit what PyTorch's dynamic operators choose."""
    high = 127 if reduce_range else 255
    for x in pairs(2000):
        scale, zero_point = torch._choose_qparams_per_tensor(x, reduce_range)
        found = chosen(x, 0, high, "per_tensor_affine", "fbgemm")
        assert found == (np.float32(scale), zero_point), x


@pytest.mark.parametrize(
    "shape", [(5,), (7, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (3, 0), (2, 0, 4)]
)
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_a_token_is_a_tensor(shape: tuple[int, ...], scheme: str) -> None:
    """Each token has what it would have alone, and scales have the shape of a sum over it."""
    x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 1
    scale, zero_point = choose_qparams(x, -128, 127, f"per_token_{scheme}", "pytorch")
    assert scale.shape == zero_point.shape == (*shape[:-1], 1)
    rows = x.reshape(math.prod(shape[:-1]), shape[-1])
    alone = [chosen(row, -128, 127, f"per_tensor_{scheme}", "pytorch") for row in rows]
    assert list(zip(scale.flatten().tolist(), zero_point.flatten().tolist(), strict=True)) == alone
    codes = quantize_dynamic(x, scale, zero_point, -128, 127, torch.int8)
    for row, found, (step, zero) in zip(rows, codes.reshape(rows.shape), alone, strict=True):
        wanted = torch.ops.jit_passes.quantize(row, step, zero, -128, 127, torch.int8)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_codes_are_those_of_quantize(dtype: torch.dtype) -> None:
    """The codes and what they mean, ties too, with a scale as a tensor instead of a number."""
    x = torch.cat([torch.randn(4096), torch.arange(-40, 40) * 0.125])
    step, zero, low, high = 0.25, 3, 0, 100
    scale, zero_point = torch.tensor(step), torch.tensor(zero, dtype=torch.int32)
    codes = quantize_dynamic(x, scale, zero_point, low, high, dtype)
    assert codes.dtype == dtype
    assert torch.equal(codes, torch.ops.jit_passes.quantize(x, step, zero, low, high, dtype))
    values = torch.ops.jit_passes.dequantize(codes, step, zero)
    assert torch.equal(dequantize_dynamic(codes, scale, zero_point), values)


@pytest.mark.parametrize("scheme", ["per_tensor_affine", "per_tensor_symmetric"])
def test_nothing_is_off_by_more_than_a_step(scheme: str) -> None:
    """By exact arithmetic: half a step, and half of one more where the zero point was rounded."""
    for x in pairs(500):
        scale, _ = chosen(x, -128, 127, scheme, "pytorch")
        if float(x.abs().max()) > 1e38:
            continue  # a step further out is no float32
        errors = [abs(a - b) for a, b in zip(
            x.double().tolist(), round_trip(x, -128, 127, scheme).double().tolist(), strict=True
        )]  # fmt: skip
        assert max(errors) <= scale * (1 + 1e-4)


def test_empty() -> None:
    """No number has the range of a 0, and gives no number."""
    for shape in ((0,), (0, 4), (3, 0)):
        x = torch.empty(shape)
        assert chosen(x, 0, 255, "per_tensor_affine", "pytorch") == chosen(
            torch.zeros(1), 0, 255, "per_tensor_affine", "pytorch"
        )
        assert round_trip(x, 0, 255, "per_tensor_affine").shape == shape


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("form", ["pytorch", "fbgemm"])
def test_not_finite(bad: float, form: str) -> None:
    """NaN comes out in the token, or in their place alone; ranges are of the finite numbers."""
    x = torch.tensor([[1.0, 2.0], [bad, 1.0], [-3.0, 4.0]])
    found = round_trip(x, 0, 255, "per_token_affine", form)
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()
    assert torch.equal(found[[0, 2]], round_trip(x[[0, 2]], 0, 255, "per_token_affine", form))
    found = round_trip(x, 0, 255, "per_tensor_affine", form)
    assert torch.equal(found.isnan(), ~x.isfinite())
    x[1, 0] = 0
    wanted = round_trip(x, 0, 255, "per_tensor_affine", form)
    assert torch.equal(found[~found.isnan()], wanted[~found.isnan()])


def test_scalars_and_other_precisions() -> None:
    """A tensor without axes is one token; half precision and double count as float32."""
    scalar = torch.tensor(-2.5)
    for scheme in ("per_tensor_affine", "per_token_affine"):
        assert float(round_trip(scalar, 0, 255, scheme)) == pytest.approx(-2.5, rel=1e-6)
    x = torch.randn(9, 4)
    for dtype in (torch.half, torch.bfloat16, torch.double):
        given = x.to(dtype)
        wanted = round_trip(given.float(), 0, 255, "per_token_affine")
        assert torch.equal(round_trip(given, 0, 255, "per_token_affine"), wanted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, dtype=torch.int32), 0, 255, "per_tensor_affine", "pytorch"), "floating"),
        ((torch.zeros(2), 255, 0, "per_tensor_affine", "pytorch"), "is empty"),
        ((torch.zeros(2), 0, 255, "per_channel_affine", "pytorch"), "per tensor or per token"),
        ((torch.zeros(2), 0, 255, "per_tensor_affine", "glow"), "no range form 'glow'"),
        ((torch.zeros(2), 0, 255, "per_tensor_symmetric", "fbgemm"), "no range form 'fbgemm'"),
    ],
)
def test_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        choose_qparams(*arguments)


@pytest.mark.parametrize("scheme", ["per_tensor_affine", "per_token_symmetric"])
def test_training(scheme: str) -> None:
    """The value is that of quantize and dequantize; the gradient passes straight through."""
    x = torch.randn(6, 5, requires_grad=True)
    found = train_dynamic(x, 0, 15, scheme, "pytorch", True, "x", "")
    assert torch.equal(found, round_trip(x.detach(), 0, 15, scheme))
    gradient = torch.randn(6, 5)
    found.backward(gradient)
    assert x.grad is not None and torch.equal(x.grad, gradient)
    plain = train_dynamic(x, 0, 15, scheme, "pytorch", False, "x", "")
    assert torch.equal(plain, x) and plain is not x


def test_the_operators_are_listed() -> None:
    assert {"choose_qparams", "quantize_dynamic", "dequantize_dynamic", "train_dynamic"} <= {
        name.removeprefix("jit_passes::") for name in jit_passes._C.ops()
    }
