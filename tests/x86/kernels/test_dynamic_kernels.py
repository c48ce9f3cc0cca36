"""Kernels of dynamic linear layers and convolutions, and of float32: against numpy and float64."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tests.codes import ROUNDS_STEPS
from tests.seeds import seeds
from tests.x86.kernels.calls import (
    CodeRange,
    Convolution,
    Form,
    Image,
    ToCodes,
    _library,
    call,
    forms,
    vector_forms,
)
from tests.x86.kernels.test_float_kernels import floats_in, image_of

Floats = NDArray[np.float32]
GRID = np.dtype([("scale", np.float32), ("zero_point", np.int32)])
EPS = float(np.finfo(np.float32).eps)
NONE, SCALE, CLIP, GELU, GELU_TANH, SIGMOID, SILU, TANH, HARDSIGMOID, HARDSWISH = range(10)
LEAKY_RELU, ELU, EXP, SOFTPLUS, MISH, CUBE, POWER = range(15, 22)
SHAPES = [(1, 1), (1, 7), (3, 64), (8, 65), (29, 384), (2, 5000)]
per_rows = pytest.mark.parametrize("per_row", [False, True], ids=["tensor", "row"])
AFFINE, SYMMETRIC, FBGEMM = range(3)
ranges = pytest.mark.parametrize("range_form", [AFFINE, SYMMETRIC, FBGEMM])


def quantize(
    x: Image, per_row: bool, range_form: int, form: int, part: int = 1 << 40
) -> tuple[Any, NDArray[np.uint8]]:
    """Return codes of the rows of an image of float32, and the grid of each."""
    rows = x.struct.images * x.struct.depth * x.struct.height * x.struct.width
    grids = np.zeros(rows, GRID)
    codes = np.zeros((rows, x.struct.channels), np.uint8)
    how = (per_row, range_form, ROUNDS_STEPS, form)
    call("quantize_rows", x, grids, codes, *how, part)
    return grids, codes


def chosen(x: Floats, per_row: bool, range_form: int) -> tuple[Any, Any, Any]:
    """Return what the operators of the dialect choose."""
    kind = "token" if per_row else "tensor"
    scheme = f"per_{kind}_{'symmetric' if range_form == SYMMETRIC else 'affine'}"
    form = "fbgemm" if range_form == FBGEMM else "pytorch"
    ops = torch.ops.jit_passes
    values = torch.from_numpy(x)
    scale, zero = ops.choose_qparams(values, 0, 255, scheme, form)
    codes = ops.quantize_dynamic(values, scale, zero, 0, 255, torch.uint8)
    return scale.reshape(-1).numpy(), zero.reshape(-1).numpy(), codes.numpy()


@forms
@per_rows
@ranges
@pytest.mark.parametrize("shape", SHAPES)
def test_rows(shape: tuple[int, int], range_form: int, per_row: bool, form: int) -> None:
    """The bits of the dialect: grids always, and codes where nothing is next to a tie."""
    rng = np.random.default_rng(shape[1])
    for size, middle, part in (
        (1, 0, 1 << 40), (1e-12, 0, 1), (3e38, 0, 2), (1, 40, 3), (1, -9, 1), (1e-3, 0, 1),
        (1e-3, 9, 1), (1e-3, -9, 1), (1e-41, 0, 1),
    ):  # fmt: skip
        x = np.clip(rng.normal(middle, 1, shape) * size, -3e38, 3e38).astype(np.float32)
        for gap in (0, 3):
            image = image_of(x.reshape(1, 1, 1, *shape), gap)
            grids, codes = quantize(image, per_row, range_form, form, part)
            scale, zero, wanted = chosen(x, per_row, range_form)
            assert (grids["scale"] == scale).all() and (grids["zero_point"] == zero).all()
            assert np.array_equal(codes, wanted)


@forms
@ranges
def test_numbers_that_are_not_finite(range_form: int, form: int) -> None:
    """A number that is not finite spoils the grid of its row, and of no other row."""
    x = np.random.default_rng(0).normal(0, 1, (1, 1, 1, 5, 100)).astype(np.float32)
    for per_row, place in itertools.product((False, True), (0, 69, 99)):
        x[..., 3, place] = 0
        wanted, codes = quantize(image_of(x), per_row, range_form, form)
        for bad, part in itertools.product((np.nan, -np.nan, np.inf, -np.inf), (1, 2, 1 << 40)):
            x[..., 3, place] = bad
            grids, found = quantize(image_of(x), per_row, range_form, form, part)
            assert np.isnan(grids["scale"]).tolist() == [False, False, False, True, False]
            assert np.array_equal(np.delete(grids, 3), np.delete(wanted, 3))
            assert np.array_equal(np.delete(found, 3, 0), np.delete(codes, 3, 0))


@forms
def test_zeros(form: int) -> None:
    """The smallest step there is, and the code of 0."""
    grids, codes = quantize(image_of(np.zeros((1, 1, 1, 2, 9), np.float32)), True, AFFINE, form)
    assert (grids["scale"] == np.float32(EPS)).all() and not codes.any()


def exact(
    codes: NDArray[np.uint8], weight: NDArray[np.int8], grids: Any, scales: Floats, bias: Floats
) -> NDArray[np.float64]:
    """Return results in float64 of sums in int64, and how large their parts are."""
    zero = grids["zero_point"].astype(np.int64)[:, None]
    sums = (codes.astype(np.int64) - zero) @ weight.astype(np.int64).T
    factor = grids["scale"].astype(np.float64)[:, None] * scales.astype(np.float64)
    return np.stack([sums * factor + bias, np.abs(sums * factor) + np.abs(bias)])


def multiply(
    codes: NDArray[np.uint8], weight: NDArray[np.int8], grids: Any, scales: Floats, bias: Floats,
    form: int, function: int = NONE, residual: Floats | None = None, gap: int = 0,
    part: int = 1 << 40, to_codes: ToCodes | None = None,
) -> Any:  # fmt: skip
    rows, inputs = codes.shape
    outputs = weight.shape[0]
    linear = Convolution(weight.reshape(outputs, 1, 1, 1, inputs), form=form)
    sums = weight.sum(1, dtype=np.int32)
    out = image_for((1, 1, 1, rows, outputs), gap, to_codes)
    added = None if residual is None else image_of(residual.reshape(1, 1, 1, rows, outputs), 2)
    image = Image.of(codes.reshape(1, 1, 1, rows, inputs))
    to_floats(linear, image, out, scales, bias, sums, grids, form, function, added, part, to_codes)
    out.check()
    return numbers_in(out, to_codes).reshape(rows, outputs)


def image_for(shape: tuple[int, ...], gap: int, to_codes: ToCodes | None) -> Image:
    """Return an image for float32, or for codes."""
    if to_codes is not None:
        return Image.of(np.full(shape, 7, np.uint8), gap=gap)
    return image_of(np.full(shape, 7, np.float32), gap)


def numbers_in(image: Image, to_codes: ToCodes | None) -> Any:
    return floats_in(image) if to_codes is None else image.codes.copy()


def to_floats(
    convolution: Convolution, image: Image, out: Image, scales: Floats, bias: Floats, sums: Any,
    grids: Any, form: int, function: int = NONE, residual: Image | None = None,
    part: int = 1 << 40, codes: ToCodes | None = None,
) -> None:  # fmt: skip
    call(
        "convolution_run_floats", convolution.handle, image, out, scales, bias, sums, grids,
        len(grids) > 1, function, np.float32(0.5), np.float32(0), residual or ctypes.c_void_p(),
        codes or ctypes.c_void_p(), form, part,
    )  # fmt: skip


def rounded(x: Floats, scale: float, zero_point: int, low: int, high: int) -> NDArray[np.uint8]:
    """Return the codes of the dialect."""
    values = torch.from_numpy(np.ascontiguousarray(x))
    quantize = torch.ops.jit_passes.quantize
    return quantize(values, scale, zero_point, low, high, torch.uint8).numpy()


def grid_of(x: Floats) -> tuple[tuple[float, int, int, int], ToCodes]:
    """Return a grid that clips some numbers: for `rounded`, and for kernels."""
    scale, zero_point, low, high = float(np.float32(np.abs(x).max() / 150)), 117, 3, 250
    offset = 0 if ROUNDS_STEPS else zero_point
    steps = CodeRange(low, high, zero_point - offset)
    return (scale, zero_point, low, high), ToCodes(np.float32(1) / np.float32(scale), offset, steps)


def drawn(rows: int, inputs: int, outputs: int, per_row: bool, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, inputs), dtype=np.uint8)
    weight = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    grids = np.zeros(rows if per_row else 1, GRID)
    grids["scale"] = rng.uniform(0.001, 1, len(grids))
    grids["zero_point"] = rng.integers(0, 256, len(grids))
    scales = rng.uniform(1e-4, 1e-2, outputs).astype(np.float32)
    bias = rng.normal(0, 10, outputs).astype(np.float32)
    return codes, weight, grids, scales, bias


SIZES = [(1, 1, 1), (1, 4, 3), (2, 5, 16), (7, 33, 17), (8, 64, 32), (13, 384, 40), (15, 7, 100),
         (29, 1536, 33)]  # fmt: skip


@forms
@per_rows
@pytest.mark.parametrize("size", SIZES)
def test_linear(size: tuple[int, int, int], per_row: bool, form: int) -> None:
    """Within the rounding of float32: sums are exact, and three roundings follow."""
    operands = drawn(*size, per_row and size[0] > 1)
    for gap, part in ((0, 1 << 40), (5, 1), (1, 3)):
        found = multiply(*operands, form, gap=gap, part=part)
        wanted, scale = exact(*operands)
        assert (np.abs(found - wanted) <= 2 * EPS * scale).all()


@forms
def test_the_largest_sums(form: int) -> None:
    """No pair of products saturates, and no sum wraps around."""
    for zero in (0, 255, 128):
        for code in (0, 255):
            codes = np.full((3, 16511), code, np.uint8)
            weight = np.stack([np.full(16511, w, np.int8) for w in (127, -127)])
            grids = np.array([(1, zero)], GRID)
            scales, bias = np.ones(2, np.float32), np.zeros(2, np.float32)
            found = multiply(codes, weight, grids, scales, bias, form)
            wanted = exact(codes, weight, grids, scales, bias)[0]
            assert np.array_equal(found, wanted.astype(np.float32))


@forms
@pytest.mark.parametrize("function", range(SCALE, POWER + 1))
def test_functions_and_sums_behind_a_linear(function: int, form: int) -> None:
    """The bits of the steps one by one."""
    operands = drawn(17, 20, 45, True, 1)
    residual = np.random.default_rng(2).normal(0, 1, (17, 45)).astype(np.float32)
    before = multiply(*operands, form)
    wanted = applied(before, function, 0.5, 0, form) + residual
    found = multiply(*operands, form, function, residual)
    assert np.array_equal(found, wanted, equal_nan=True)  # roots of numbers below 0


@forms
@pytest.mark.parametrize("function", [NONE, GELU])
def test_what_is_added_in_place(function: int, form: int) -> None:
    """The result may take the memory of what is added, in rows that are no multiple of anything."""
    codes, weight, *rest = drawn(17, 20, 45, True, 1)
    residual = np.random.default_rng(2).normal(0, 1, (17, 45)).astype(np.float32)
    wanted = multiply(codes, weight, *rest, form, function, residual)
    out = image_of(residual.reshape(1, 1, 1, 17, 45))
    linear = Convolution(weight.reshape(45, 1, 1, 1, 20), form=form)
    grids, scales, bias = rest
    sums = weight.sum(1, dtype=np.int32)
    image = Image.of(codes.reshape(1, 1, 1, 17, 20))
    to_floats(linear, image, out, scales, bias, sums, grids, form, function, out)
    assert np.array_equal(floats_in(out).reshape(17, 45), wanted)


@vector_forms
@per_rows
@pytest.mark.parametrize("size", SIZES)
def test_forms_of_the_linear_agree(size: tuple[int, int, int], per_row: bool, form: int) -> None:
    operands = drawn(*size, per_row and size[0] > 1, 3)
    residual = np.random.default_rng(4).normal(0, 1, (size[0], size[2])).astype(np.float32)
    for function in (NONE, GELU):
        plain, found = (
            multiply(*operands, level, function, residual) for level in (Form.PLAIN, form)
        )
        assert np.array_equal(plain, found)


class Case:
    """A convolution of codes with a border that holds their zero point."""

    def __init__(self, seed: int, depthwise: bool) -> None:
        draw, self.rng = random.Random(seed), np.random.default_rng(seed)
        dims = draw.choice([1, 2, 2, 2, 3])

        def each(low: int, high: int) -> tuple[int, ...]:
            return (1,) * (3 - dims) + tuple(draw.randint(low, high) for _ in range(dims))

        kernel, self.stride, self.dilation = each(1, 5 if dims < 3 else 3), each(1, 2), each(1, 2)
        windows = [d * (k - 1) for d, k in zip(self.dilation, kernel, strict=True)]
        self.pad = tuple(draw.randint(0, window) for window in windows)
        self.groups = draw.randint(2, 150) if depthwise else draw.choice([1, 1, 2, 3])
        inputs = self.groups * (1 if depthwise else draw.randint(1, 40))
        self.outputs = inputs if depthwise else self.groups * draw.randint(1, 50)
        size = [n + draw.randint(1, 12 if dims < 3 else 4) for n in windows]
        size[: 3 - dims] = [1] * (3 - dims)
        self.codes = self.rng.integers(0, 256, (draw.randint(1, 2), *size, inputs), dtype=np.uint8)
        shape = (self.outputs, *kernel, inputs // self.groups)
        self.weight = self.rng.integers(-127, 128, shape).astype(np.int8)
        self.grids = np.array([(draw.uniform(0.001, 1), draw.randint(0, 255))], GRID)
        self.scales = self.rng.uniform(1e-4, 1e-2, self.outputs).astype(np.float32)
        self.bias = self.rng.normal(0, 10, self.outputs).astype(np.float32)

    @functools.cached_property
    def wanted(self) -> NDArray[np.float64]:
        """The result by PyTorch in float64, and how large its parts are."""
        zero = int(self.grids["zero_point"][0])
        x = torch.from_numpy(self.codes.astype(np.float64) - zero).movedim(-1, 1)
        weight = torch.from_numpy(self.weight.astype(np.float64)).movedim(-1, 1)
        options = (self.stride, self.pad, self.dilation, self.groups)
        sums = torch.nn.functional.conv3d(x, weight, None, *options).movedim(1, -1).numpy()
        factor = self.grids["scale"].astype(np.float64) * self.scales.astype(np.float64)
        return np.stack([sums * factor + self.bias, np.abs(sums * factor) + np.abs(self.bias)])

    def run(
        self, form: int, function: int = NONE, added: bool = False, gap: int = 0,
        part: int = 1 << 40, to_codes: ToCodes | None = None, in_place: bool = False,
    ) -> Any:  # fmt: skip
        convolution = Convolution(
            self.weight, groups=self.groups, stride=self.stride, dilation=self.dilation,
            pad=self.pad, form=form,
        )  # fmt: skip
        shape = self.wanted[0].shape
        out = image_for(shape, gap, to_codes)
        residual = image_of(np.random.default_rng(3).normal(0, 1, shape).astype(np.float32), 2)
        out = residual if in_place else out
        image = Image.of(self.codes)
        border = convolution.border(image, out)
        image = Image.of(self.codes, border=border).fill(int(self.grids["zero_point"][0]))
        sums = self.weight.reshape(self.outputs, -1).sum(1, dtype=np.int32)
        to_floats(
            convolution, image, out, self.scales, self.bias, sums, self.grids, form, function,
            residual if added else None, part, to_codes,
        )  # fmt: skip
        out.check()
        return numbers_in(out, to_codes).reshape(shape)


@forms
@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("seed", seeds(15, few=8))
def test_convolutions(seed: int, depthwise: bool, form: int) -> None:
    """Within the rounding of float32: sums are exact, and three roundings follow."""
    case = Case(seed, depthwise)
    wanted, scale = case.wanted
    for gap, part in ((0, 1 << 40), (5, 1), (1, 3)):
        found = case.run(form, gap=gap, part=part)
        assert (np.abs(found - wanted) <= 2 * EPS * scale).all()


@vector_forms
@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("seed", [15 + seed for seed in seeds(10, few=5)])
def test_forms_of_convolutions_agree(seed: int, depthwise: bool, form: int) -> None:
    case = Case(seed, depthwise)
    for function in (NONE, CLIP, GELU, SILU):
        plain, found = (case.run(level, function, function != NONE) for level in (Form.PLAIN, form))
        assert np.array_equal(plain, found)


@forms
@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("seed", range(8))
def test_convolutions_that_add_in_place(seed: int, depthwise: bool, form: int) -> None:
    """The result may take the memory of what is added."""
    case = Case(seed, depthwise)
    for function in (NONE, SILU):
        wanted = case.run(form, function, added=True)
        assert np.array_equal(case.run(form, function, added=True, in_place=True), wanted)


@forms
@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("seed", [25 + seed for seed in seeds(10, few=5)])
def test_codes_of_convolutions(seed: int, depthwise: bool, form: int) -> None:
    """The codes of the float32 results, bit for bit."""
    case = Case(seed, depthwise)
    for function, added in itertools.product((NONE, SILU, HARDSWISH), (False, True)):
        floats = case.run(form, function, added)
        grid, to_codes = grid_of(floats)
        for gap, part in ((0, 1 << 40), (5, 1), (1, 3)):
            found = case.run(form, function, added, gap, part, to_codes)
            assert np.array_equal(found, rounded(floats, *grid))


@forms
@per_rows
@pytest.mark.parametrize("size", SIZES)
def test_codes_of_a_linear(size: tuple[int, int, int], per_row: bool, form: int) -> None:
    operands = drawn(*size, per_row and size[0] > 1, 5)
    residual = np.random.default_rng(6).normal(0, 1, (size[0], size[2])).astype(np.float32)
    for function, added in itertools.product((NONE, GELU), (None, residual)):
        floats = multiply(*operands, form, function, added)
        grid, to_codes = grid_of(floats)
        for gap, part in ((0, 1 << 40), (5, 1), (1, 3)):
            found = multiply(*operands, form, function, added, gap, part, to_codes)
            assert np.array_equal(found, rounded(floats, *grid))


def applied(x: Floats, function: int, first: float, second: float, form: int) -> Floats:
    x, out = np.ascontiguousarray(x), np.zeros_like(x)
    arguments = (np.float32(first), np.float32(second), form)
    call("function", x, out, x.size, function, *arguments)
    return out


def gelu_of(x: Floats, tanh: bool) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    if tanh:
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        return wide * 0.5 * (1 + np.tanh(inner))
    erfc = np.vectorize(math.erfc)
    return wide * 0.5 * erfc(-wide / math.sqrt(2))


@forms
@pytest.mark.parametrize("function", [GELU, GELU_TANH])
def test_gelu(function: int, form: int) -> None:
    """The probability has an error of 6e-8, half of an ulp of 1, and the product is rounded."""
    x = np.concatenate([np.linspace(-9, 9, 40001), np.logspace(-30, 30, 200), [0.0, -0.0]])
    x = np.concatenate([x, -np.logspace(-30, 30, 203)]).astype(np.float32)
    wanted = gelu_of(x, function == GELU_TANH)
    error = np.abs(applied(x, function, 0, 0, form) - wanted)
    assert (error <= 6e-8 * np.abs(x) + EPS / 2 * np.abs(wanted)).all()
    ends = applied(np.array([np.inf, np.nan, -np.nan], np.float32), function, 0, 0, form)
    assert ends[0] == np.inf and np.isnan(ends[1:]).all()


@vector_forms
@pytest.mark.parametrize("function", [GELU, GELU_TANH])
def test_forms_of_gelu_agree(function: int, form: int) -> None:
    x = np.random.default_rng(0).standard_t(2, 100003).astype(np.float32) * 2
    plain, found = (applied(x, function, 0, 0, level) for level in (Form.PLAIN, form))
    assert np.array_equal(plain, found)


# In float64, to three last places.
EXPONENTIALS = {
    SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
    SILU: lambda x: x / (1 + np.exp(-x)),
    TANH: np.tanh,
}


@pytest.mark.parametrize("function", EXPONENTIALS)
def test_sigmoids(function: int) -> None:
    x = np.concatenate([np.linspace(-30, 30, 60_001), np.logspace(-30, 2, 999), [0.0, -0.0]])
    x = np.concatenate([x, -x]).astype(np.float32)
    wanted = EXPONENTIALS[function](x.astype(np.float64))
    found = applied(x, function, 0, 0, form=Form.PLAIN)
    small = np.abs(x) < 2**-12 if function == TANH else np.zeros(x.shape, bool)
    rest = EPS if function == TANH else 1e-35  # of 1 - exp(-2 x); exponentials below exp(-87) are 0
    error = np.abs(found - wanted)
    assert (error[~small] <= 3 * EPS * np.abs(wanted[~small]) + rest).all()
    assert (error[small] <= EPS).all()
    ends = np.array([np.inf, -np.inf, 200, -200, np.nan], np.float32)
    found = applied(ends, function, 0, 0, form=Form.PLAIN)
    limits = {SIGMOID: [1, 0, 1, 0], TANH: [1, -1, 1, -1], SILU: [np.inf, np.nan, 200, 0]}
    assert np.array_equal(found[:4], np.array(limits[function], np.float32), equal_nan=True)
    assert np.isnan(found[4])


@pytest.mark.parametrize(
    ("function", "torch_function"), [(HARDSIGMOID, F.hardsigmoid), (HARDSWISH, F.hardswish)]
)
def test_ramps(function: int, torch_function: Any) -> None:
    """The bits of PyTorch's operators."""
    x = np.random.default_rng(0).normal(0, 3, 10_000).astype(np.float32)
    x[:8] = [np.nan, np.inf, 0, -0.0, 3, -3, 1e-42, -1e30]
    found = applied(x, function, 0, 0, form=Form.PLAIN)
    assert np.array_equal(found, torch_function(torch.from_numpy(x)).numpy(), equal_nan=True)


@forms
@pytest.mark.parametrize("power", [0.75, 1 / 3, -0.25, 1.5, 4, 5, -3, 20, 1e-3, 1e30])
def test_powers(power: float, form: int) -> None:
    """The nearest number, or the next one, of any that float32 has; C's rules for the others."""
    power = float(np.float32(power))
    x = np.concatenate([np.logspace(-44, 38, 5001), np.linspace(0.9, 1.1, 5001), [3.0, 8.0, 0.5]])
    x = np.concatenate([x, -x]).astype(np.float32)
    ends = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, -8]
    x = np.concatenate([x, np.array(ends, np.float32)])
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), power).astype(np.float32)
    found = applied(x, POWER, power, 0, form)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    is_number = np.isfinite(wanted)
    assert np.array_equal(found[~is_number], wanted[~is_number], equal_nan=True)
    assert np.array_equal(np.signbit(found[is_number]), np.signbit(wanted[is_number]))
    difference = np.abs(found[is_number].view(np.int32) - wanted[is_number].view(np.int32))
    assert difference.max() <= 1


@vector_forms
def test_forms_of_powers_agree(form: int) -> None:
    x = np.random.default_rng(0).standard_t(2, 10_003).astype(np.float32)
    for power in (0.75, -1.3, 7):
        plain, found = (applied(x, POWER, power, 0, level) for level in (Form.PLAIN, form))
        assert np.array_equal(plain, found, equal_nan=True)


# By numbers of their own: in double precision, and how many roundings of the result there are.
BENDING: dict[str, tuple[int, float, float, Callable[[Tensor], Tensor], int]] = {
    "leaky_relu": (LEAKY_RELU, 0.1, 0, lambda x: F.leaky_relu(x, float(np.float32(0.1))), 1),
    "elu": (ELU, 1.5, 0, lambda x: F.elu(x, 1.5), 4),
    "exp": (EXP, 0, 0, torch.exp, 3),
    "softplus": (SOFTPLUS, 1, 20, F.softplus, 4),
    "softplus of twice": (SOFTPLUS, 2, 20, lambda x: F.softplus(x, 2), 4),
    "mish": (MISH, 0, 0, F.mish, 6),
    "cube": (CUBE, 0, 0, lambda x: x**3, 2),
}


@pytest.mark.parametrize("name", BENDING)
def test_bending_functions(name: str) -> None:
    """No digits are lost near 0 and far from it; exponentials below exp(-87) may be 0."""
    function, first, second, reference, roundings = BENDING[name]
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.normal(0, size, 5000) for size in (1e-6, 1e-3, 1, 5, 25)])
    x = x[np.abs(x) < 85].astype(np.float32)
    wanted = reference(torch.from_numpy(x).double()).numpy()
    found = applied(x, function, first, second, form=Form.PLAIN)
    assert (np.abs(found - wanted) <= roundings * EPS * np.abs(wanted) + 1e-35).all()
    ends = np.array([np.inf, -np.inf, np.nan, 0, 88.7, 89.5, -120], np.float32)
    wanted = reference(torch.from_numpy(ends)).numpy()
    found = applied(ends, function, first, second, form=Form.PLAIN)
    np.testing.assert_allclose(found, wanted, rtol=4 * EPS, atol=1e-35)


def test_clip_and_scale() -> None:
    x = np.array([-np.inf, -3, -0.5, 0, 0.25, 2, np.inf, np.nan], np.float32)
    for low, high in ((0, math.inf), (-1, 1), (-math.inf, 0.5), (3, 1)):
        wanted = torch.clamp(torch.from_numpy(x), low, high).numpy()
        assert np.array_equal(applied(x, CLIP, low, high, False), wanted, equal_nan=True)
    assert np.array_equal(applied(x, SCALE, 0.1, 0, False), x * np.float32(0.1), equal_nan=True)


PRODUCTS = [(1, 1, 1), (2, 3, 5), (12, 64, 32), (13, 64, 33), (25, 1, 100), (128, 64, 128),
            (5, 300, 64), (1, 129, 64), (12, 256, 70)]  # fmt: skip


def read_in_place(size: tuple[int, int, int], transposed: bool) -> bool:
    """Say whether plans give a right operand of this size to the kernel as it lies."""
    rows, inner, columns = size
    return rows <= 12 and (inner <= 256 or (not transposed and columns % 32 == 0))


def product(
    a: Floats, b: Floats, transposed: bool, form: int, part: int = 1 << 40, in_place: bool = False
) -> Floats:
    """Return a @ b of [batch, rows, columns]; a transposed right operand is given as it lies."""
    given = np.ascontiguousarray(b.swapaxes(1, 2)) if transposed else b
    left, right = (image_of(x[:, None, None], gap) for x, gap in ((a, 3), (given, 1)))
    out = image_of(np.full((a.shape[0], 1, 1, a.shape[1], b.shape[2]), 7, np.float32), 2)
    size = _library.jit_passes_x86_float_product_bytes
    size.restype = ctypes.c_int64
    room = size(ctypes.byref(right.struct), ctypes.c_bool(transposed)) + 64
    packed = np.full(room, 0xA5, np.uint8)
    start = -packed.ctypes.data % 64
    call("float_product", left, right, out, packed[start:], transposed, in_place, form, part)
    assert not in_place or (packed == 0xA5).all()
    out.check()
    return floats_in(out)[:, 0, 0]


@pytest.mark.parametrize("transposed", [False, True])
@forms
@pytest.mark.parametrize("size", PRODUCTS)
def test_products(size: tuple[int, int, int], form: int, transposed: bool) -> None:
    """Products are added in order, each sum rounded once."""
    rows, inner, columns = size
    rng = np.random.default_rng(rows)
    a = rng.normal(0, 1, (3, rows, inner)).astype(np.float32)
    b = rng.normal(0, 1, (3, inner, columns)).astype(np.float32)
    for part in (1 << 40, 1):
        found = product(a, b, transposed, form, part)
        wide = a.astype(np.float64), b.astype(np.float64)
        bound = inner * EPS * (np.abs(wide[0]) @ np.abs(wide[1]))
        assert (np.abs(found - wide[0] @ wide[1]) <= bound).all()
        if read_in_place(size, transposed):
            assert np.array_equal(found, product(a, b, transposed, form, part, in_place=True))


@vector_forms
@pytest.mark.parametrize("size", PRODUCTS)
def test_forms_of_products_agree(size: tuple[int, int, int], form: int) -> None:
    rows, inner, columns = size
    rng = np.random.default_rng(rows)
    a = rng.normal(0, 1, (2, rows, inner)).astype(np.float32)
    b = rng.normal(0, 1, (2, inner, columns)).astype(np.float32)
    plain, found = (product(a, b, True, level) for level in (Form.PLAIN, form))
    assert np.array_equal(plain, found)
