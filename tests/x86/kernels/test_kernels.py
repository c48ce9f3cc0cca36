"""Integer kernels for x86: plain forms against slow references, vector forms against these.

A code is that of a reference computed in float64 where its value before rounding is not within
1e-3 of a tie. Ties, and saturation, are cases by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from tests.codes import ROUNDS_STEPS
from tests.x86.kernels.calls import (
    ALL_CODES,
    PARTS,
    CodeRange,
    Codes,
    Form,
    Image,
    Strides,
    Triple,
    assert_rounds_to,
    call,
    forms,
    random_codes,
    spans,
    vector_forms,
)

NO_OFFSET = np.float32(0)

# --- Edges of a region.

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3),
    "channels_last_slice": lambda x: (
        torch.cat([x, x], 1)
        .permute(0, 2, 3, 4, 1)
        .contiguous()
        .permute(0, 4, 1, 2, 3)[:, : x.shape[1]]
    ),
    "permuted": lambda x: x.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
SHAPES = [
    (2, 3, 1, 5, 7),
    (1, 64, 1, 3, 70),
    (1, 65, 2, 2, 17),
    (3, 16, 1, 1, 1),
    (1, 1, 1, 2, 130),
]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def strides_of(x: torch.Tensor) -> Strides:
    n, c, d, h, w = x.stride()
    return Strides(n, d, h, w, c)


@forms
@shapes
@layouts
def test_quantize(layout: str, shape: tuple[int, ...], form: int) -> None:
    """The codes of the reference operator, bit for bit."""
    torch.manual_seed(0)
    x = LAYOUTS[layout](torch.randn(shape) * 3)
    scale, zero_point = 0.037, 131
    offset = 0 if ROUNDS_STEPS else zero_point
    n, c, d, h, w = shape
    for border, gap, part in (((0,) * 6, 0, 1 << 40), ((1, 1, 1, 1, 0, 0), 0, 1), ((0,) * 6, 5, 2)):
        out = Image((n, d, h, w, c), border=border, gap=gap)
        inverse = np.float32(1) / np.float32(scale)
        call(
            "quantize",
            x.numpy(),
            strides_of(x),
            out,
            inverse,
            np.float32(offset),
            CodeRange(3, 250, zero_point - offset),
            form,
            part,
        )
        expected = torch.ops.jit_passes.quantize(x, scale, zero_point, 3, 250, torch.uint8)
        assert (out.codes == expected.permute(0, 2, 3, 4, 1).numpy()).all()
        out.check()


@forms
def test_quantize_by_hand(form: int) -> None:
    """Ties go to the even code, numbers beyond the codes are clipped, a NaN is the lowest code."""
    values = [0.5, 1.5, 2.5, -0.5, 254.5, 255.5, 1e30, -1e30, np.inf, -np.inf, np.nan, 3.0]
    for count in (len(values), 5 * len(values)):
        x = np.resize(np.array(values, np.float32), count)
        out = Image((1, 1, 1, 1, count))
        strides = Strides(count, count, count, count, 1)
        call("quantize", x, strides, out, np.float32(1), np.float32(0), CodeRange(1, 255), form, 1)
        expected = np.resize([1, 2, 2, 1, 254, 255, 255, 1, 255, 1, 1, 3], count)
        assert (out.codes.reshape(-1) == expected).all()


@forms
@shapes
@layouts
def test_dequantize(layout: str, shape: tuple[int, ...], form: int) -> None:
    rng = np.random.default_rng(6)
    n, c, d, h, w = shape
    codes = random_codes(rng, n, d, h, w, c)
    for border, gap, part in (((0,) * 6, 0, 1 << 40), ((1, 2, 1, 1, 0, 0), 0, 1), ((0,) * 6, 7, 2)):
        out = LAYOUTS[layout](torch.zeros(shape))
        image = Image.of(codes, border=border, gap=gap)
        call("dequantize", image, out.numpy(), strides_of(out), np.float32(0.37), 9, form, part)
        expected = (codes.astype(np.float32) - 9) * np.float32(0.37)
        assert (out.permute(0, 2, 3, 4, 1).numpy() == expected).all()


# --- Element by element.

Pair = tuple[tuple[int, ...], tuple[int, ...]]
PAIRS: dict[str, Pair] = {
    "dense": ((2, 1, 5, 7, 24), (2, 1, 5, 7, 24)),
    "one column": ((1, 1, 4, 1, 300), (1, 1, 4, 1, 300)),
    "over space": ((2, 1, 5, 7, 65), (2, 1, 1, 1, 65)),
    "over channels": ((2, 2, 5, 7, 257), (2, 2, 5, 7, 1)),
    "over all": ((2, 1, 5, 7, 24), (1, 1, 1, 1, 1)),
    "over images": ((3, 1, 2, 3, 8), (1, 1, 2, 3, 8)),
    "one channel": ((2, 1, 5, 300, 1), (2, 1, 5, 300, 1)),
}
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def operands(
    pair: Pair, gap: int
) -> tuple[Image, Image, Image, NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(7)
    a, b = (random_codes(rng, *shape) for shape in pair)
    images = Image.of(a, gap=gap), Image.of(b, gap=gap)
    for axis, name in enumerate(("image", "plane", "row", "pixel")):
        if pair[1][axis] == 1:
            setattr(images[1].struct, name, 0)
    return *images, Image(pair[0], gap=gap), a.astype(np.int64), b.astype(np.int64)


@forms
@pairs
@pytest.mark.parametrize("gap", [0, 3])
def test_add(pair: Pair, gap: int, form: int) -> None:
    a, b, out, x, y = operands(pair, gap)
    table = random_codes(np.random.default_rng(8), 256)
    scales = np.float32(0.71), np.float32(-0.433), np.float32(90.3)
    value = x * float(scales[0]) + y * float(scales[1]) + float(scales[2])
    for part in PARTS:
        call("add", a, b, out, *scales, CodeRange(11, 240), None, form, part)
        assert_rounds_to(out.codes, value, 11, 240)
        out.check()
    plainly = out.codes.copy()
    call("add", a, b, out, *scales, CodeRange(11, 240), table, form, 1)
    assert (out.codes == table[plainly]).all()
    call("add", b, a, out, scales[1], scales[0], scales[2], CodeRange(11, 240), None, form, 1)
    assert_rounds_to(out.codes, value, 11, 240)


@forms
@pairs
@pytest.mark.parametrize("gap", [0, 3])
def test_multiply(pair: Pair, gap: int, form: int) -> None:
    a, b, out, x, y = operands(pair, gap)
    table = random_codes(np.random.default_rng(8), 256)
    scale, offset = np.float32(0.0137), np.float32(121)
    value = (x - 100) * (y - 255) * float(scale) + float(offset)
    for part in PARTS:
        call("multiply", a, b, out, 100, 255, scale, offset, ALL_CODES, None, form, part)
        assert_rounds_to(out.codes, value)
        out.check()
    plainly = out.codes.copy()
    call("multiply", a, b, out, 100, 255, scale, offset, ALL_CODES, table, form, 1)
    assert (out.codes == table[plainly]).all()


@forms
def test_rounding_of_sums(form: int) -> None:
    """All pairs of codes; sums of halves are exact, and ties go to the even code."""
    a, b = (x.astype(np.uint8).reshape(1, 1, 256, 256, 1) for x in np.indices((256, 256)))
    out = Image(a.shape)
    half = np.float32(0.5)
    call(
        "add", Image.of(a), Image.of(b), out, half, half, np.float32(-20), ALL_CODES, None, form, 7
    )
    exact = (a.astype(np.int64) + b) / 2 - 20
    assert (out.codes == np.clip(np.round(exact), 0, 255)).all()
    call(
        "multiply", Image.of(a), Image.of(b), out, 9, 3, half, half, CodeRange(5, 99), None, form, 7
    )
    exact = (a.astype(np.int64) - 9) * (b.astype(np.int64) - 3) / 2 + 0.5
    assert (out.codes == np.clip(np.round(exact), 5, 99)).all()


@vector_forms
def test_forms_of_sums_agree(form: int) -> None:
    """For all pairs of codes, with scales as they come."""
    rng = np.random.default_rng(9)
    a, b = (x.astype(np.uint8).reshape(1, 1, 256, 256, 1) for x in np.indices((256, 256)))
    images = Image.of(a), Image.of(b)
    for _ in range(5):
        m, k, offset = (np.float32(v) for v in rng.uniform(-1, 1, 3) * (1, 1, 200))
        for name, scales in (("add", (m, k, offset)), ("multiply", (100, 3, m / 50, offset))):
            plain, vector = Image(a.shape), Image(a.shape)
            call(name, *images, plain, *scales, ALL_CODES, None, Form.PLAIN, 7)
            call(name, *images, vector, *scales, ALL_CODES, None, form, 7)
            assert (plain.codes == vector.codes).all()


@forms
@pytest.mark.parametrize("shape", [(2, 1, 5, 7, 24), (1, 2, 3, 4, 65), (1, 1, 1, 1, 1000)], ids=str)
def test_look_up(shape: tuple[int, int, int, int, int], form: int) -> None:
    """Also from one layout to the other, without a table, and in place."""
    rng = np.random.default_rng(10)
    codes, table = random_codes(rng, *shape), random_codes(rng, 256)
    for gap, border in ((0, (0,) * 6), (5, (0,) * 6), (0, (1, 1, 1, 1, 1, 1))):
        image, out = Image.of(codes), Image(shape, gap=gap, border=border)
        call("look_up", image, out, table, form, 2)
        assert (out.codes == table[codes]).all()
        out.check()
        call("look_up", image, out, None, form, 1)
        assert (out.codes == codes).all()
        call("look_up", out, out, table, form, 1)
        assert (out.codes == table[codes]).all()
        out.check()


def test_resample() -> None:
    """The nearest pixels, as PyTorch finds them for sizes in a whole ratio, and a flip."""
    codes = random_codes(np.random.default_rng(11), 2, 1, 3, 5, 21)
    out = Image((2, 1, 6, 15, 21), gap=2)
    rows, columns = np.arange(6) // 2, np.arange(15) // 3
    call("resample", Image.of(codes), out, np.zeros(1, np.int64), rows, columns, 2)
    x = torch.from_numpy(codes[:, 0]).permute(0, 3, 1, 2)
    expected = F.interpolate(x, size=(6, 15), mode="nearest").permute(0, 2, 3, 1).numpy()
    assert (out.codes[:, 0] == expected).all()
    out.check()
    flipped = Image(codes.shape)
    call("resample", Image.of(codes), flipped, *(np.arange(s)[::-1].copy() for s in (1, 3, 5)), 1)
    assert (flipped.codes == codes[:, ::-1, ::-1, ::-1]).all()


def test_borders() -> None:
    """Every pixel around the image, and no other one, in front and behind of a volume too."""
    codes = random_codes(np.random.default_rng(12), 2, 3, 4, 5, 6)
    for border in ((1, 2, 3, 1, 0, 0), (0, 0, 0, 0, 1, 2), (0, 1, 0, 0, 0, 0), (0,) * 6):
        image = Image.of(codes, border=border).fill(77)
        assert (image.codes == codes).all()
        image.codes[:] = 77
        assert (image.whole == 77).all()
        image.whole[:] = 165
        image.check()


# --- Pools.


@dataclass(frozen=True)
class Pool:
    size: Triple
    kernel: Triple
    stride: Triple = (1, 1, 1)
    pad: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    ceil: bool = False
    include_pad: bool = True


POOLS = {
    "3x3, strided": Pool((1, 15, 15), (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    "2x2": Pool((1, 8, 6), (1, 2, 2), (1, 2, 2)),
    "without padding's zeros": Pool((1, 9, 7), (1, 3, 3), (1, 1, 1), (0, 1, 1), include_pad=False),
    "beyond the end": Pool((1, 10, 13), (1, 3, 2), (1, 2, 3), (0, 1, 1), ceil=True),
    "beyond the end, without zeros": Pool(
        (1, 10, 13), (1, 3, 2), (1, 2, 3), (0, 1, 1), (1, 1, 1), True, False
    ),
    "dilated": Pool((1, 14, 15), (1, 3, 3), (1, 2, 1), (0, 1, 1), (1, 2, 3)),
    "three axes": Pool((6, 7, 8), (3, 2, 3), (2, 2, 1), (1, 1, 0)),
    "5x5": Pool((1, 7, 7), (1, 5, 5), (1, 1, 1), (0, 2, 2)),
}
AVERAGES = {name: pool for name, pool in POOLS.items() if pool.dilation == (1, 1, 1)}
pools = pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
averages = pytest.mark.parametrize("pool", AVERAGES.values(), ids=AVERAGES)


def planar(codes: Codes) -> torch.Tensor:
    return torch.from_numpy(codes).permute(0, 4, 1, 2, 3).double()


def spans_of(pool: Pool, out: torch.Size) -> NDArray[np.int64]:
    found = []
    for axis in range(3):
        size, count, pad = pool.size[axis], out[2 + axis], pool.pad[axis]
        found.append(
            spans(
                size, count, pool.kernel[axis], pool.stride[axis], pool.dilation[axis], (pad, pad),
                pool.include_pad,
            )
        )  # fmt: skip
    return np.concatenate(found)


@forms
@pools
@pytest.mark.parametrize("channels", [1, 24, 64, 131])
def test_max_pool(pool: Pool, channels: int, form: int) -> None:
    codes = random_codes(np.random.default_rng(13), 2, *pool.size, channels)
    expected = F.max_pool3d(
        planar(codes), pool.kernel, pool.stride, pool.pad, pool.dilation, pool.ceil
    )
    out = Image((2, *expected.shape[2:], channels), gap=3)
    for part in PARTS:
        call(
            "max_pool",
            Image.of(codes),
            out,
            spans_of(pool, expected.shape),
            *pool.dilation,
            form,
            part,
        )
        assert (out.codes == expected.permute(0, 2, 3, 4, 1).numpy()).all()
        out.check()


@forms
@averages
@pytest.mark.parametrize("channels", [1, 24, 64, 131])
def test_average_pool(pool: Pool, channels: int, form: int) -> None:
    codes = random_codes(np.random.default_rng(14), 2, *pool.size, channels)
    average = F.avg_pool3d(
        planar(codes) - 100, pool.kernel, pool.stride, pool.pad, pool.ceil, pool.include_pad
    )
    out = Image((2, *average.shape[2:], channels), gap=3)
    for part in PARTS:
        call(
            "average_pool", Image.of(codes), out, spans_of(pool, average.shape), 1.37,
            *(100, np.float32(128), 0, CodeRange(3, 251), form, part),
        )  # fmt: skip
        assert_rounds_to(out.codes, (average * 1.37 + 128).permute(0, 2, 3, 4, 1).numpy(), 3, 251)
        out.check()


ADAPTIVE: list[tuple[Triple, Triple]] = [
    ((1, 7, 7), (1, 1, 1)),
    ((1, 7, 9), (1, 3, 4)),
    ((5, 6, 4), (2, 4, 4)),
    ((1, 3, 2), (1, 5, 3)),
    ((3, 25, 31), (1, 1, 1)),
]


@forms
@pytest.mark.parametrize("size, out", ADAPTIVE, ids=str)
def test_adaptive_pool(size: Triple, out: Triple, form: int) -> None:
    codes = random_codes(np.random.default_rng(15), 2, *size, 70)
    average = F.adaptive_avg_pool3d(planar(codes), out)
    largest = F.adaptive_max_pool3d(planar(codes), out)
    all_spans = np.concatenate([spans(size[i], out[i]) for i in range(3)])
    found = Image((2, *out, 70))
    call(
        "average_pool", Image.of(codes), found, all_spans, 1.0, 0, NO_OFFSET, 0, ALL_CODES, form, 1
    )
    assert_rounds_to(found.codes, average.permute(0, 2, 3, 4, 1).numpy())
    call("max_pool", Image.of(codes), found, all_spans, 1, 1, 1, form, 1)
    assert (found.codes == largest.permute(0, 2, 3, 4, 1).numpy()).all()


@forms
def test_rounding_of_averages(form: int) -> None:
    """Averages of two are exact, ties go to the even code; a divisor of the caller's stands in."""
    codes = np.indices((256, 256)).astype(np.uint8).reshape(1, 2, 1, 256, 256)
    codes = codes.transpose(0, 2, 3, 1, 4).copy().reshape(1, 1, 512, 1, 256)
    out = Image((1, 1, 256, 1, 256))
    pairs_of = np.concatenate([spans(1, 1, 1), spans(512, 256, 2, 2), spans(1, 1, 1)])
    exact = codes.reshape(256, 2, 256).astype(np.int64).sum(1)
    call("average_pool", Image.of(codes), out, pairs_of, 1.0, 0, NO_OFFSET, 0, ALL_CODES, form, 1)
    assert (out.codes.reshape(256, 256) == np.round(exact / 2)).all()
    call("average_pool", Image.of(codes), out, pairs_of, 1.0, 0, NO_OFFSET, 4, ALL_CODES, form, 1)
    assert (out.codes.reshape(256, 256) == np.round(exact / 4)).all()


@forms
def test_sums_of_large_windows(form: int) -> None:
    """More of the largest codes than 16 bits hold the sum of."""
    codes = np.full((1, 1, 20, 300, 65), 255, np.uint8)
    out = Image((1, 1, 1, 1, 65))
    whole = np.concatenate([spans(1, 1), spans(20, 1), spans(300, 1)])
    call("average_pool", Image.of(codes), out, whole, 0.5, 0, NO_OFFSET, 0, ALL_CODES, form, 1)
    assert (out.codes == 128).all()  # 127.5, the tie
