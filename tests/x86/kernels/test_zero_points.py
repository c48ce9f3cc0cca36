"""Zero points that are added to what is rounded, of all kernels that make codes.

Numbers are multiples of a half or a quarter, so all is exact. Halves go to even multiples of the
scale, whatever the zero point is.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.x86.kernels.calls import (
    CodeRange,
    Codes,
    Convolution,
    Image,
    Strides,
    assert_rounds_to,
    call,
    forms,
    random_codes,
    requantize,
    spans,
)
from tests.x86.kernels.test_attention_kernels import layer_norm_of, product, softmax_of, sums_of
from tests.x86.kernels.test_dynamic_kernels import AFFINE, GRID, SYMMETRIC, image_of
from tests.x86.operators.test_group_norm import group_norm_of

LOW, HIGH = 5, 243
zero_points = pytest.mark.parametrize("zero", [0, 77, 128, 255])
NO_OFFSET, HALF = np.float32(0), np.float32(0.5)


def expected(value: NDArray[np.float64], zero: int) -> NDArray[np.float64]:
    clipped: NDArray[np.float64] = np.clip(np.round(value) + zero, LOW, HIGH)
    return clipped


def random(*shape: int) -> Codes:
    return random_codes(np.random.default_rng(len(shape)), *shape)


@forms
@zero_points
def test_quantize(zero: int, form: int) -> None:
    values = [*(np.arange(-600, 600) / 4), 1e30, -1e30, np.inf, -np.inf, np.nan]
    x = np.array(values, np.float32)
    out = Image((1, 1, 1, 1, x.size))
    strides = Strides(x.size, x.size, x.size, x.size, 1)
    how = (np.float32(2), NO_OFFSET, CodeRange(LOW, HIGH, zero), form, 1)
    call("quantize", x, strides, out, *how)
    wanted = expected(2 * x.astype(np.float64), zero)
    wanted[-1] = LOW
    assert np.array_equal(out.codes.reshape(-1), wanted)
    planes = x[:1200].reshape(3, 400)  # with pixels innermost
    out = Image((1, 1, 1, 400, 3))
    call("quantize", planes, Strides(1200, 1200, 400, 1, 400), out, *how)
    assert np.array_equal(out.codes.reshape(400, 3).T, wanted[:1200].reshape(3, 400))


@forms
@zero_points
@pytest.mark.parametrize("channels", [7, 64, 100])
def test_sums_and_products(zero: int, form: int, channels: int) -> None:
    a, b = random(1, 1, 3, 5, channels), random(1, 1, 3, 5, channels)[..., ::-1].copy()
    x, y = a.astype(np.float64), b.astype(np.float64)
    out, table = Image(a.shape), random(256)
    codes_in = CodeRange(LOW, HIGH, zero)
    for names in (None, table):
        for name, numbers, value in (
            ("add", (HALF, np.float32(-0.25), np.float32(-1.25)), x / 2 - y / 4 - 1.25),
            ("multiply", (100, 128, np.float32(2.0**-6), HALF), (x - 100) * (y - 128) / 64 + 0.5),
        ):
            call(name, Image.of(a), Image.of(b), out, *numbers, codes_in, names, form, 2)
            wanted = expected(value, zero).astype(np.uint8)
            assert np.array_equal(out.codes, wanted if names is None else table[wanted])


@forms
@zero_points
@pytest.mark.parametrize("channels", [7, 70])
def test_averages(zero: int, form: int, channels: int) -> None:
    codes = random(2, 1, 8, 8, channels)
    out = Image((2, 1, 4, 4, channels))
    windows = np.concatenate([spans(1, 1, 1), *[spans(8, 4, 2, 2)] * 2])
    codes_in = CodeRange(LOW, HIGH, zero)
    call("average_pool", Image.of(codes), out, windows, 0.5, 100, HALF, 0, codes_in, form, 1)
    sums = codes.reshape(2, 1, 4, 2, 4, 2, channels).astype(np.float64).sum((3, 5))
    assert np.array_equal(out.codes, expected((sums - 400) / 8 + 0.5, zero))


@forms
@zero_points
@pytest.mark.parametrize("groups", [1, 40], ids=["dense", "depthwise"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("large", [False, True], ids=["bounded", "large"])
def test_convolution(zero: int, form: int, groups: int, kernel: int, large: bool) -> None:
    """With a residual and a table too; scaled sums may be larger than int32 holds."""
    rng = np.random.default_rng(1)
    weight = rng.integers(-3, 4, (40, 1, kernel, kernel, 40 // groups), dtype=np.int8)
    codes = random_codes(rng, 2, 1, 9, 17, 40)
    made = Convolution(weight, groups=groups, form=form)
    shape = (2, 1, 10 - kernel, 18 - kernel, 40)
    sums = np.zeros(shape)
    for ky in range(kernel):
        for kx in range(kernel):
            part = codes[:, :, ky : ky + shape[2], kx : kx + shape[3]].astype(np.float64)
            tap = weight[:, 0, ky, kx].astype(np.float64)
            sums += part * tap[:, 0] if groups > 1 else part @ tap.T
    residual, table = random_codes(rng, *shape), random_codes(rng, 256)
    multiplier = np.resize(np.array([0.5, -0.25, 2.0**-4], np.float32), 40)
    if large:
        multiplier[::5] = 2.0**22
    offset = np.resize(np.array([0.25, -3.5], np.float32), 40)
    value = sums * multiplier + offset
    image, other, out = Image.of(codes), Image.of(residual), Image(shape)
    for added, names in ((None, None), (other, None), (None, table), (other, table)):
        how = requantize(multiplier, offset, LOW, HIGH, names, added, 0.25, zero)
        made.run(image, out, how, 1)
        exact = value if added is None else value + residual / 4
        wanted = expected(exact, zero).astype(np.uint8)
        assert np.array_equal(out.codes, wanted if names is None else table[wanted])


@forms
@zero_points
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_matrices(zero: int, form: int, transposed: bool) -> None:
    a, b = random(1, 1, 2, 11, 33), random(1, 1, 2, 33, 70)
    right = b.transpose(0, 1, 2, 4, 3).copy() if transposed else b
    out, scale = Image((1, 1, 2, 11, 70)), (2.0**-8, -0.5)
    ends = (LOW, HIGH, zero)
    product(Image.of(a), Image.of(right), out, transposed, (99, 130), scale, form, ends=ends)
    assert np.array_equal(out.codes, expected(sums_of(a, b, (99, 130)) / 256 - 0.5, zero))


@forms
@zero_points
@pytest.mark.parametrize("channels", [9, 64, 130])
def test_norms_and_softmax(zero: int, form: int, channels: int) -> None:
    """Functions are not exact, so codes are next to the exact ones."""
    codes = random(1, 1, 2, 3, channels)
    codes_in = CodeRange(LOW, HIGH, zero)
    image, out = Image.of(codes), Image(codes.shape)
    call("softmax", image, out, 0.03, 1e-3, HALF, codes_in, form, 1)
    assert_rounds_to(out.codes, softmax_of(codes, 0.03) / 1e-3 + 0.5 + zero, LOW, HIGH)
    weight, bias = np.full(channels, 20, np.float32), np.full(channels, 7.25, np.float32)
    call("layer_norm", image, out, weight, bias, 0.5, codes_in, form, 1)
    assert_rounds_to(out.codes, layer_norm_of(codes, 0.5) * 20 + 7.25 + zero, LOW, HIGH)
    call("group_norm", image, out, 1, weight, bias, 0.5, codes_in, 1)
    assert_rounds_to(out.codes, group_norm_of(codes, 1, 0.5) * 20 + 7.25 + zero, LOW, HIGH)


@forms
@pytest.mark.parametrize("steps", [False, True], ids=["sum", "steps"])
@pytest.mark.parametrize("per_row", [False, True], ids=["tensor", "row"])
@pytest.mark.parametrize("range_form", [AFFINE, SYMMETRIC])
def test_rows(steps: bool, per_row: bool, range_form: int, form: int) -> None:
    """A step of 1 and a zero point that is odd: halves are rounded with it, or without."""
    x = np.resize(np.arange(-202, 309) / 2, (3, 511)).astype(np.float32)
    x[:, -1] = 154
    x = x[None, None, None]
    if range_form == SYMMETRIC:
        x = np.clip(x, -127.5, 127.5)
    grids, codes = np.zeros(3, GRID), np.zeros((3, 511), np.uint8)
    call("quantize_rows", image_of(x), grids, codes, per_row, range_form, steps, form, 1)
    zero = 128 if range_form == SYMMETRIC else 101
    assert (grids["scale"] == 1).all() and (grids["zero_point"] == zero).all()
    exact = np.round(x) + zero if steps else np.round(x + zero)
    assert np.array_equal(codes, np.clip(exact, 0, 255).reshape(3, 511))
