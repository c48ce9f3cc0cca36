"""Kernels of float32: against numpy, against float64, and all forms bit for bit."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.x86.kernels.calls import (
    GUARD,
    SLACK,
    CodeRange,
    Form,
    Image,
    ImageStruct,
    Memory,
    call,
    forms,
    vector_forms,
)  # fmt: skip

Floats = NDArray[np.float32]

CHANNELS = [1, 5, 16, 63, 64, 65, 100, 128, 384, 1000]
PIXELS = [(1, 1, 1, 1), (2, 1, 3, 5), (1, 2, 1, 17)]


def image_of(x: Floats, gap: int = 0) -> Image:
    """Return an image of float32, with so many floats behind a pixel."""
    image = Image.of(np.ascontiguousarray(x).view(np.uint8), gap=4 * gap)
    image.struct.channels = x.shape[-1]
    return image


def floats_in(image: Image) -> Floats:
    return np.ascontiguousarray(image.codes).view(np.float32)


def normalize(
    x: Floats,
    weight: Floats,
    bias: Floats,
    eps: float,
    form: int,
    gap: int = 0,
    part: int = 1 << 40,
    centred: bool = True,
) -> tuple[Floats, NDArray[np.uint8]]:
    """Return floats and codes of one call that gives both; either alone has the same bits."""
    scale, offset, codes_in = np.float32(1 / 0.03), np.float32(57), CodeRange(3, 250, 74)
    results = []
    for wants in ((True, True), (True, False), (False, True)):
        floats, codes = image_of(np.zeros_like(x), gap), Image(x.shape, gap=gap)
        call(
            "layer_norm_floats",
            image_of(x, gap),
            floats if wants[0] else ctypes.c_void_p(),
            codes if wants[1] else ctypes.c_void_p(),
            weight, bias, eps, centred, scale, offset, codes_in, form, part,
        )  # fmt: skip
        floats.check()
        codes.check()
        results.append((floats_in(floats), codes.codes.copy()))
    assert np.array_equal(results[0][0], results[1][0])
    assert np.array_equal(results[0][1], results[2][1])
    floats, codes = results[0]
    exact = floats.astype(np.float64) * scale + offset  # fused: rounded to float32 once
    rounded = (np.rint(exact.astype(np.float32)) + 74).clip(3, 250)
    assert np.array_equal(codes, rounded.astype(np.uint8))
    return floats, codes


def normal_of(x: Floats, eps: float) -> NDArray[np.float64]:
    centered = x.astype(np.float64)
    centered = centered - centered.mean(-1, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + eps)


@forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_layer_norm(channels: int, form: int) -> None:
    """Errors are those of float32: of the mean, as large as the numbers, and of the result."""
    rng = np.random.default_rng(channels)
    weight = rng.uniform(-2, 2, channels).astype(np.float32)
    bias = rng.uniform(-1, 1, channels).astype(np.float32)
    for pixels in PIXELS:
        for spread, middle, gap, part in ((1, 0, 0, 1 << 40), (1e-3, 0, 2, 1), (30, 500, 3, 2)):
            x = rng.normal(middle, spread, (*pixels, channels)).astype(np.float32)
            floats, _ = normalize(x, weight, bias, 1e-5, form, gap, part)
            normal = normal_of(x, 1e-5)
            ulp = np.finfo(np.float32).eps
            of_mean = abs(middle) / np.sqrt(x.astype(np.float64).var(-1, keepdims=True) + 1e-5)
            error = ulp * (8 * np.abs(normal) + 2 * of_mean + 4)
            assert (np.abs(floats - (normal * weight + bias)) <= 2 * error + ulp).all()


@forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_rms_norm(channels: int, form: int) -> None:
    """The mean of squares has the error of a sum of numbers that are not below 0."""
    rng = np.random.default_rng(channels)
    weight, zero = rng.uniform(-2, 2, channels).astype(np.float32), np.zeros(channels, np.float32)
    for pixels in PIXELS:
        for spread, middle, gap, part in ((1, 0, 0, 1 << 40), (1e-3, 0, 2, 1), (30, 500, 3, 2)):
            x = rng.normal(middle, spread, (*pixels, channels)).astype(np.float32)
            floats, _ = normalize(x, weight, zero, 1e-6, form, gap, part, centred=False)
            exact = x.astype(np.float64)
            exact = exact / np.sqrt(np.square(exact).mean(-1, keepdims=True) + 1e-6) * weight
            ulp = np.finfo(np.float32).eps
            assert (np.abs(floats - exact) <= ulp * (2 + channels / 64) * np.abs(exact)).all()


@forms
@pytest.mark.parametrize("number", [0.0, 1.0, -77.25, 1e30])
def test_layer_norm_of_equal_numbers(number: float, form: int) -> None:
    """Their variance is exactly 0, where their sum is exact."""
    x = np.full((1, 1, 1, 3, 256), number, np.float32)
    bias = np.linspace(-1, 1, 256).astype(np.float32)
    floats, _ = normalize(x, np.ones(256, np.float32), bias, 1e-5, form)
    assert np.array_equal(floats, np.broadcast_to(bias, x.shape))


@forms
def test_layer_norm_of_infinity(form: int) -> None:
    """A NaN becomes the smallest code, and other rows stay as they are."""
    x = np.random.default_rng(0).normal(0, 1, (1, 1, 1, 3, 70)).astype(np.float32)
    weight, bias = np.ones(70, np.float32), np.zeros(70, np.float32)
    floats, codes = np.zeros_like(x), Image(x.shape)
    changed = x.copy()
    changed[..., 1, 66] = np.inf
    result = image_of(floats)
    call(
        "layer_norm_floats", image_of(changed), result, codes, weight, bias, 1e-5, True,
        np.float32(20), np.float32(100), CodeRange(7, 255), form, 1,
    )  # fmt: skip
    expected, _ = normalize(x, weight, bias, 1e-5, form)
    got = floats_in(result)
    assert np.isnan(got[..., 1, :]).all() and (codes.codes[..., 1, :] == 7).all()
    assert np.array_equal(got[..., ::2, :], expected[..., ::2, :])


@vector_forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_forms_agree(channels: int, form: int) -> None:
    rng = np.random.default_rng(channels)
    weight, bias = rng.normal(1, 1, (2, channels)).astype(np.float32)
    for scale in (1e-20, 1e-3, 1, 1e4, 1e18):
        x = (rng.standard_t(2, (2, 1, 1, 9, channels)) * scale).astype(np.float32)
        for centred in (True, False):
            plain, found = (
                normalize(x, weight, bias, 1e-5, level, centred=centred)
                for level in (Form.PLAIN, form)
            )
            assert np.array_equal(plain[0], found[0]) and np.array_equal(plain[1], found[1])


OPERANDS = {
    "dense": ((2, 1, 5, 7, 24), (2, 1, 5, 7, 24)),
    "long rows": ((1, 1, 1, 90, 33), (1, 1, 1, 90, 33)),
    "over pixels": ((2, 1, 5, 7, 65), (1, 1, 1, 1, 65)),
    "over channels": ((2, 2, 5, 7, 257), (2, 2, 5, 7, 1)),
    "over all": ((2, 1, 5, 7, 24), (1, 1, 1, 1, 1)),
    "many channels": ((1, 1, 2, 2, 2500), (1, 1, 2, 1, 2500)),
}


SCALES = {"floats": (0, 0), "codes and floats": (0.037, 0), "codes": (0.037, 0.011)}


@pytest.mark.parametrize("types", SCALES)
@pytest.mark.parametrize("name", OPERANDS)
def test_sums_and_products(name: str, types: str) -> None:
    """The bits of operators in float32, rounded one after the other."""
    rng = np.random.default_rng(0)
    scales = SCALES[types]
    for gap, part in ((0, 1 << 40), (3, 1)):
        images, values = [], []
        for shape, scale, zero in zip(OPERANDS[name], scales, (131, 7), strict=True):
            if scale:
                codes = rng.integers(0, 256, shape, dtype=np.uint8)
                images.append(Image.of(codes, gap=gap))
                values.append(
                    (codes.astype(np.int32) - zero).astype(np.float32) * np.float32(scale)
                )
            else:
                values.append(rng.normal(0, 3, shape).astype(np.float32))
                images.append(image_of(values[-1], gap))
        for image, (n, d, h, w, _) in zip(images, OPERANDS[name], strict=True):
            for axis, size in (("image", n), ("plane", d), ("row", h), ("pixel", w)):
                if size == 1 and OPERANDS[name][0][1:4] != (1, 1, 1):
                    setattr(image.struct, axis, 0)
        out = image_of(np.zeros(OPERANDS[name][0], np.float32), gap)
        types_of = (
            np.float32(scales[0]), ctypes.c_int32(131), np.float32(scales[1]), ctypes.c_int32(7)
        )  # fmt: skip
        for factor in (1, -1):
            call("add_floats", *images, out, *types_of, np.float32(factor), part)
            assert np.array_equal(floats_in(out), values[0] + np.float32(factor) * values[1])
        call("multiply_floats", *images, out, *types_of, part)
        assert np.array_equal(floats_in(out), values[0] * values[1])
        out.check()
        if types == "floats":  # where the first operand lies
            call("add_floats", *images, images[0], *types_of, np.float32(1), part)
            assert np.array_equal(floats_in(images[0]), values[0] + values[1])


def softmax(
    x: Floats, form: int, gap: int = 0, part: int = 1 << 40, hides: bool = False
) -> tuple[Floats, NDArray[np.uint8]]:
    """Return floats and codes of one call that gives both; either alone has the same bits."""
    results = []
    for wants in ((True, True), (True, False), (False, True)):
        floats, codes = image_of(np.zeros_like(x), gap), Image(x.shape, gap=gap)
        call(
            "softmax_floats",
            image_of(x, gap),
            floats if wants[0] else ctypes.c_void_p(),
            codes if wants[1] else ctypes.c_void_p(),
            np.float32(255), np.float32(2), CodeRange(2, 250), hides, form, part,
        )  # fmt: skip
        floats.check()
        codes.check()
        results.append((floats_in(floats), codes.codes.copy()))
    assert np.array_equal(results[0][0], results[1][0], equal_nan=True)
    assert np.array_equal(results[0][1], results[2][1])
    return results[0]


@forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_softmax(channels: int, form: int) -> None:
    """Relative to each share: exponents are exact to an ulp of the largest difference."""
    rng = np.random.default_rng(channels)
    ulp = np.finfo(np.float32).eps
    for pixels in PIXELS:
        for spread, middle, gap, part in ((1, 0, 0, 1 << 40), (1e-3, 0, 2, 1), (12, 500, 3, 2)):
            x = rng.normal(middle, spread, (*pixels, channels)).astype(np.float32)
            x[rng.random(x.shape) < 0.2] = -np.inf
            x[..., 0] = middle
            floats, codes = softmax(x, form, gap, part)
            wide = x.astype(np.float64)
            exact = np.exp(wide - wide.max(-1, keepdims=True))
            exact /= exact.sum(-1, keepdims=True)
            assert (floats[x == -np.inf] == 0).all()
            assert (np.abs(floats - exact) <= 8 * ulp * exact + 1e-37).all()
            fused = (floats.astype(np.float64) * 255 + 2).astype(np.float32)
            assert np.array_equal(codes, np.rint(fused).clip(2, 250).astype(np.uint8))


@vector_forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_forms_of_softmax_agree(channels: int, form: int) -> None:
    for spread in (1e-3, 1, 40, 1e4):
        rng = np.random.default_rng(channels)
        x = rng.normal(0, spread, (2, 1, 1, 9, channels)).astype(np.float32)
        plain, found = (softmax(x, level) for level in (Form.PLAIN, form))
        assert np.array_equal(plain[0], found[0]) and np.array_equal(plain[1], found[1])


@forms
def test_softmax_without_numbers(form: int) -> None:
    """A row with an infinity or a NaN is NaN, one of minus infinities where nothing hides."""
    x = np.random.default_rng(0).normal(0, 1, (1, 1, 1, 5, 70)).astype(np.float32)
    expected, _ = softmax(x, form)
    x[..., 1, :], x[..., 2, 66], x[..., 3, 0] = -np.inf, np.inf, np.nan
    for hides in (False, True):
        floats, codes = softmax(x, form, hides=hides)
        row = floats[..., 1, :]
        assert (row == 0).all() if hides else np.isnan(row).all()
        assert np.isnan(floats[..., 2:4, :]).all() and (codes[..., 1:4, :] == 2).all()
        assert np.array_equal(floats[..., ::4, :], expected[..., ::4, :])


@forms
def test_softmax_that_hides(form: int) -> None:
    """A NaN shows although all else is hidden; numbers of any size are no minus infinities."""
    x = np.full((1, 1, 1, 3, 70), -np.inf, np.float32)
    x[..., 1, 3], x[..., 2, 69] = np.nan, np.finfo(np.float32).min
    floats, _ = softmax(x, form, hides=True)
    assert (floats[..., 0, :] == 0).all() and np.isnan(floats[..., 1, :]).all()
    assert (floats[..., 2, :69] == 0).all() and floats[..., 2, 69] == 1


def log_softmax(x: Floats, form: int, gap: int = 0, part: int = 1 << 40) -> Floats:
    out = image_of(np.zeros_like(x), gap)
    call("log_softmax_floats", image_of(x, gap), out, form, part)
    out.check()
    return floats_in(out)


@forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_log_softmax(channels: int, form: int) -> None:
    """The sum of exponentials is exact to eight ulps, and each of both differences is rounded."""
    rng = np.random.default_rng(channels)
    ulp = np.finfo(np.float32).eps
    for pixels in PIXELS:
        for spread, middle, gap, part in ((1, 0, 0, 1 << 40), (1e-3, 0, 2, 1), (12, 500, 3, 2)):
            x = rng.normal(middle, spread, (*pixels, channels)).astype(np.float32)
            wide = x.astype(np.float64)
            exact = wide - wide.max(-1, keepdims=True)
            exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
            assert (
                np.abs(log_softmax(x, form, gap, part) - exact) <= ulp * (8 + np.abs(exact))
            ).all()


@vector_forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_forms_of_log_softmax_agree(channels: int, form: int) -> None:
    for spread in (1e-3, 1, 40, 1e4):
        rng = np.random.default_rng(channels)
        x = rng.normal(0, spread, (2, 1, 1, 19, channels)).astype(np.float32)
        x[0, 0, 0, 3, 0], x[0, 0, 0, 5, -1], x[1, 0, 0, 18, channels // 2] = np.nan, np.inf, -np.inf
        plain, found = (log_softmax(x, level) for level in (Form.PLAIN, form))
        assert np.array_equal(plain, found, equal_nan=True)


@forms
def test_log_softmax_without_numbers(form: int) -> None:
    """A row with a NaN or infinity, or of minus infinities alone, is NaN; no other row is."""
    x = np.random.default_rng(0).normal(0, 1, (1, 1, 1, 11, 70)).astype(np.float32)
    expected = log_softmax(x, form)
    x[..., 1, :], x[..., 2, 66], x[..., 9, 0], x[..., 4, 3] = -np.inf, np.inf, np.nan, -np.inf
    found = log_softmax(x, form)
    assert np.isnan(found[..., [1, 2, 9], :]).all() and found[..., 4, 3] == -np.inf
    others = [0, 3, 5, 6, 7, 8, 10]
    assert np.array_equal(found[..., others, :], expected[..., others, :])


# Of float64, by number of the kernel.
REDUCTIONS = (
    np.sum,
    np.mean,
    lambda x, **axes: np.sqrt(np.square(x).sum(**axes)),
    np.max,
    np.min,
)


def reduced(x: Floats, which: int, axes: tuple[int, ...], form: int, gap: int, part: int) -> Floats:
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    out = image_of(np.zeros(shape, np.float32), gap)
    call("reduce_floats", image_of(x, gap), out, which, form, part)
    out.check()
    return floats_in(out)


@forms
@pytest.mark.parametrize("which", range(len(REDUCTIONS)))
def test_reductions(which: int, form: int) -> None:
    """Extremes are exact, and sums within a few roundings of all that is added."""
    rng = np.random.default_rng(which)
    ulp = np.finfo(np.float32).eps
    for pixels, channels in itertools.product(PIXELS, (1, 5, 64, 65, 100, 300)):
        x = rng.normal(0.5, 1, (*pixels, channels)).astype(np.float32)
        for axes in ((4,), (3, 4), (2, 3, 4), (3,)):
            for gap, part in ((0, 1 << 40), (3, 1)):
                found = reduced(x, which, axes, form, gap, part)
                plain = reduced(x, which, axes, Form.PLAIN, gap, part)
                wide = x.astype(np.float64)
                exact = REDUCTIONS[which](wide, axis=axes, keepdims=True)
                size = REDUCTIONS[which](np.abs(wide), axis=axes, keepdims=True)
                bound = 0 if which > 2 else (8 + x.size / 64) * ulp * size
                assert (np.abs(found - exact) <= bound).all()
                assert np.array_equal(found, plain)


@forms
@pytest.mark.parametrize("which", range(len(REDUCTIONS)))
def test_reductions_of_what_is_no_number(which: int, form: int) -> None:
    """A NaN is the result, wherever it is, and no other row has it."""
    for channels in (5, 64, 130):
        x = np.random.default_rng(0).normal(0, 1, (1, 1, 1, channels, channels)).astype(np.float32)
        np.fill_diagonal(x[0, 0, 0], np.nan)
        assert np.isnan(reduced(x, which, (4,), form, 0, 1)).all()
        np.fill_diagonal(x[0, 0, 0], -np.inf)
        x[..., 0, :] = 1
        found = reduced(x, which, (4,), form, 0, 1)
        assert np.isfinite(found[..., 0, :]).all() and not np.isnan(found).any()


SELECTED = {
    "dense": ((2, 1, 5, 7, 24),) * 3,
    "numbers": ((2, 1, 5, 7, 24), (2, 1, 5, 7, 24), (1, 1, 1, 1, 1)),
    "long rows": ((1, 1, 1, 90, 33), (1, 1, 1, 1, 1), (1, 1, 1, 1, 1)),
    "over pixels and channels": ((2, 2, 5, 7, 1), (1, 1, 1, 1, 65), (2, 2, 5, 7, 65)),
    "one channel": ((2, 1, 5, 7, 1), (1, 1, 1, 1, 1), (2, 1, 5, 7, 1)),
    "many channels": ((1, 1, 2, 2, 2500), (1, 1, 2, 1, 2500), (1, 1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", SELECTED)
def test_selections(name: str) -> None:
    """The bits of one or of the other operand; a NaN is not 0."""
    rng = np.random.default_rng(0)
    shape = np.broadcast_shapes(*SELECTED[name])
    for gap, part in ((0, 1 << 40), (3, 1)):
        values = [rng.normal(0, 3, own).astype(np.float32) for own in SELECTED[name]]
        values[0][rng.random(values[0].shape) < 0.5] = 0
        values[0].flat[-1] = np.nan
        images = [image_of(value, gap) for value in values]
        for image, (n, d, h, w, _) in zip(images, SELECTED[name], strict=True):
            for axis, size in (("image", n), ("plane", d), ("row", h), ("pixel", w)):
                if size == 1:
                    setattr(image.struct, axis, 0)
        out = image_of(np.zeros(shape, np.float32), gap)
        call("select_floats", *images, out, part)
        out.check()
        assert np.array_equal(floats_in(out), np.where(values[0] != 0, values[1], values[2]))


@forms
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("step", [2, 3, 5])
def test_copies_of_channels_with_a_step(step: int, size: int, form: int) -> None:
    """Of dense pixels, and of those with channels behind, up to the last bytes of memory."""
    rng = np.random.default_rng(0)
    for width, channels, start, gap in itertools.product(
        (1, 7), (1, 3, 15, 16, 31, 32, 33, 50), (0, 1), (0, 2)
    ):
        whole = channels * step + gap
        x = rng.integers(0, 256, (3, width, whole, size), dtype=np.uint8)
        source = Memory(x.size + SLACK)
        source.bytes[:] = GUARD
        source.bytes[: x.size] = x.reshape(-1)
        wanted = x[:, :, start : start + channels * step : step]
        target = Memory(3 * width * (channels + gap) * size)
        target.bytes[:] = GUARD
        out = target.bytes.reshape(3, width, channels + gap, size)
        structs = [
            ImageStruct(at, 1, 3, width, channels, pixel, width * pixel, 0, 1, 0)
            for at, pixel in (
                (source.bytes.ctypes.data + start * size, whole * size),
                (target.bytes.ctypes.data, (channels + gap) * size),
            )
        ]
        call("copy_across", structs[0], step * size, structs[1], size, size, int(form), 2)
        assert np.array_equal(out[:, :, :channels], wanted)
        out[:, :, :channels] = GUARD
        assert (target.bytes == GUARD).all()


@forms
@pytest.mark.parametrize("size", [1, 4])
def test_copies_between_orders_of_axes(size: int, form: int) -> None:
    """Channels side by side, pixels side by side, or neither: all elements come, and no others."""
    rng = np.random.default_rng(0)
    for width, channels in itertools.product((1, 7, 8, 16, 17, 40), (1, 3, 8, 9, 19, 64)):
        for from_last, to_last, gap in itertools.product((True, False), (True, False), (0, 2)):
            x = rng.integers(0, 256, (3, channels + gap, width + gap, size), dtype=np.uint8)
            source = Memory(x.size, at_front=bool(gap))
            target = Memory(x.size, at_front=not gap)
            found = target.bytes.reshape(3, -1)
            found[:] = GUARD
            views = []
            for memory, last in ((source, from_last), (target, to_last)):
                shape = (
                    (3, width + gap, channels + gap) if last else (3, channels + gap, width + gap)
                )
                view = memory.bytes.reshape(*shape, size)
                views.append(view if last else view.swapaxes(1, 2))
            views[0][:] = x.swapaxes(1, 2)
            images = [
                ImageStruct(
                    v.ctypes.data, 1, 3, width, channels, v.strides[1], v.strides[0], 0, 1, 0
                )
                for v in views
            ]
            steps = [v.strides[2] for v in views]
            call("copy_across", images[0], steps[0], images[1], steps[1], size, int(form), 2)
            assert np.array_equal(views[1][:, :width, :channels], views[0][:, :width, :channels])
            views[1][:, :width, :channels] = GUARD
            assert (target.bytes == GUARD).all()
