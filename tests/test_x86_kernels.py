"""Integer kernels for x86: plain forms against slow references, vector forms against plain ones.

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

from tests.x86_kernels import (
    HAS_VNNI,
    Codes,
    Convolution,
    Image,
    Strides,
    call,
    requantize,
    spans,
)

Triple = tuple[int, int, int]
FORMS = [
    True,
    pytest.param(False, marks=pytest.mark.skipif(not HAS_VNNI, reason="no AVX-512 VNNI here")),
]
PARTS = [1, 3, 1 << 40]
forms = pytest.mark.parametrize("plain", FORMS, ids=lambda plain: "plain" if plain else "vnni")


def random_codes(rng: np.random.Generator, *shape: int) -> Codes:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def assert_rounds_to(
    found: Codes, value: NDArray[np.float64], low: int = 0, high: int = 255
) -> None:
    """Found codes are the clamped values, rounded, where these are no ties."""
    clamped = np.clip(value, low, high)
    assert found.min() >= low
    assert found.max() <= high
    assert np.abs(found - clamped).max() <= 0.5 + 1e-3


# --- Convolution.


@dataclass(frozen=True)
class Case:
    size: Triple
    channels: int
    out: int
    kernel: Triple = (1, 1, 1)
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    pad: Triple = (0, 0, 0)
    groups: int = 1
    images: int = 1
    zero_point: int = 7
    gap: int = 0

    def out_size(self) -> Triple:
        def along(axis: int) -> int:
            reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
            return (self.size[axis] + 2 * self.pad[axis] - reach) // self.stride[axis] + 1

        return along(0), along(1), along(2)


def sums_of(codes: Codes, weight: NDArray[np.int8], case: Case) -> NDArray[np.int64]:
    """The exact sums, tap by tap."""
    pads = [(0, 0), *((p, p) for p in case.pad), (0, 0)]
    x = np.pad(codes.astype(np.int64), pads, constant_values=case.zero_point) - case.zero_point
    out = case.out_size()
    total = np.zeros((case.images, *out, case.out), np.int64)
    per_group, out_per_group = case.channels // case.groups, case.out // case.groups
    for tap in np.ndindex(*case.kernel):
        begin = [tap[i] * case.dilation[i] for i in range(3)]
        window = tuple(
            slice(begin[i], begin[i] + (out[i] - 1) * case.stride[i] + 1, case.stride[i])
            for i in range(3)
        )
        taken = x[(slice(None), *window)]
        for g in range(case.groups):
            inputs = taken[..., g * per_group : (g + 1) * per_group]
            outputs = slice(g * out_per_group, (g + 1) * out_per_group)
            total[..., outputs] += inputs @ weight[(outputs, *tap)].astype(np.int64).T
    return total


CASES = {
    "one pixel": Case((1, 1, 1), 5, 3),
    "1x1": Case((1, 5, 9), 24, 40),
    "1x1, tails": Case((1, 7, 13), 19, 33, images=2),
    "1x1, 17 outputs": Case((1, 4, 3), 8, 17),
    "1x1, one output": Case((1, 6, 5), 64, 1),
    "1x1, strided": Case((1, 9, 15), 16, 32, stride=(1, 2, 2)),
    "1x1, in a slice": Case((1, 5, 8), 16, 32, gap=9),
    "linear": Case((1, 1, 3), 100, 70, images=1),
    "linear, one row": Case((1, 1, 1), 512, 100),
    "3x3": Case((1, 14, 14), 16, 32, (1, 3, 3), pad=(0, 1, 1)),
    "3x3, 7 wide": Case((1, 7, 7), 32, 48, (1, 3, 3), pad=(0, 1, 1), images=3),
    "3x3, odd": Case((1, 11, 23), 20, 36, (1, 3, 3), pad=(0, 1, 1), images=2),
    "3x3, no multiple of four": Case((1, 6, 10), 7, 21, (1, 3, 3), pad=(0, 1, 1)),
    "3x3, no multiple of four, in a slice": Case(
        (1, 6, 10), 7, 21, (1, 3, 3), pad=(0, 1, 1), gap=2
    ),
    "3x3, strided": Case((1, 13, 17), 12, 24, (1, 3, 3), (1, 2, 2), pad=(0, 1, 1)),
    "3x3, dilated": Case((1, 12, 11), 8, 16, (1, 3, 3), dilation=(1, 2, 3), pad=(0, 2, 3)),
    "3x3, all odd": Case((1, 10, 19), 6, 9, (1, 3, 2), (1, 3, 2), (1, 1, 3), (0, 2, 0), 3),
    "groups": Case((1, 8, 8), 32, 64, (1, 3, 3), pad=(0, 1, 1), groups=4),
    "groups of four": Case((1, 5, 9), 32, 32, (1, 3, 3), pad=(0, 1, 1), groups=8),
    "groups of one, 20 for each": Case((1, 5, 9), 5, 100, (1, 3, 3), pad=(0, 1, 1), groups=5),
    "groups of many to one": Case((1, 5, 9), 60, 6, (1, 1, 3), groups=6),
    "groups of two, dense": Case((1, 5, 9), 6, 6, (1, 3, 3), pad=(0, 1, 1), groups=3),
    "groups of two, in a slice": Case((1, 5, 9), 6, 6, (1, 3, 3), pad=(0, 1, 1), groups=3, gap=1),
    "groups of odd numbers": Case((1, 5, 6), 15, 35, (1, 3, 3), pad=(0, 1, 1), groups=5),
    "many outputs for a channel": Case((1, 5, 6), 6, 12, (1, 3, 3), pad=(0, 1, 1), groups=6),
    "first layer": Case((1, 20, 22), 3, 32, (1, 7, 7), (1, 2, 2), pad=(0, 3, 3)),
    "first layer, small": Case((1, 15, 17), 3, 16, (1, 3, 3), (1, 2, 2), pad=(0, 1, 1), images=2),
    "one axis": Case((1, 1, 50), 12, 20, (1, 1, 5), pad=(0, 0, 2)),
    "narrow": Case((1, 30, 2), 16, 16, (1, 3, 3), pad=(0, 1, 1)),
    "three axes": Case((5, 6, 7), 8, 18, (3, 3, 3), (2, 1, 1), (1, 1, 2), (1, 1, 2), images=2),
    "depthwise 3x3": Case((1, 14, 14), 64, 64, (1, 3, 3), pad=(0, 1, 1), groups=64),
    "depthwise 3x3, odd": Case((1, 9, 13), 83, 83, (1, 3, 3), pad=(0, 1, 1), groups=83, images=2),
    "depthwise 3x3, few": Case((1, 9, 13), 5, 5, (1, 3, 3), pad=(0, 1, 1), groups=5),
    "depthwise 3x3, strided": Case(
        (1, 9, 14), 96, 96, (1, 3, 3), (1, 2, 2), pad=(0, 1, 1), groups=96
    ),
    "depthwise 5x5": Case((1, 12, 11), 40, 40, (1, 5, 5), pad=(0, 2, 2), groups=40),
    "depthwise 5x5, strided": Case(
        (1, 13, 11), 72, 72, (1, 5, 5), (1, 2, 2), pad=(0, 2, 2), groups=72
    ),
    "depthwise 7x7": Case((1, 9, 9), 24, 24, (1, 7, 7), pad=(0, 3, 3), groups=24),
    "depthwise, in a slice": Case((1, 9, 9), 24, 24, (1, 3, 3), pad=(0, 1, 1), groups=24, gap=5),
    "depthwise, dilated": Case((1, 9, 9), 17, 17, (1, 3, 3), (1, 1, 2), (1, 2, 2), (0, 2, 2), 17),
    "depthwise, one axis": Case((1, 1, 40), 31, 31, (1, 1, 4), groups=31),
    "depthwise, three axes": Case((4, 5, 6), 33, 33, (3, 3, 3), pad=(1, 1, 1), groups=33),
    "depthwise, one channel": Case((1, 8, 9), 1, 1, (1, 3, 3), pad=(0, 1, 1)),
    "zero point 0": Case((1, 6, 6), 16, 16, (1, 3, 3), pad=(0, 1, 1), zero_point=0),
    "zero point 255": Case((1, 6, 6), 16, 16, (1, 3, 3), pad=(0, 1, 1), zero_point=255),
    "nothing": Case((1, 4, 4), 8, 8, images=0),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


class Prepared:
    """Operands of a case, with a border that the kernel asks for."""

    def __init__(self, case: Case, plain: bool, seed: int = 0, at_front: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.case = case
        self.codes = random_codes(rng, case.images, *case.size, case.channels)
        self.weight = rng.integers(
            -128, 128, (case.out, *case.kernel, case.channels // case.groups), dtype=np.int8
        )
        self.kernel = Convolution(
            self.weight, groups=case.groups, stride=case.stride, dilation=case.dilation,
            pad=case.pad, zero_point=case.zero_point, dense=not case.gap, plain=plain,
        )  # fmt: skip
        self.out = Image((case.images, *case.out_size(), case.out), gap=3)
        bare = Image.of(self.codes)
        border = self.kernel.border(bare, self.out)
        self.image = Image.of(self.codes, border=border, gap=case.gap, at_front=at_front)
        fill_border(self.image, case.zero_point)
        self.sums = sums_of(self.codes, self.weight, case)

    def run(self, part: int = 1 << 40, **how: object) -> Codes:
        self.out.codes[:] = 0
        self.kernel.run(self.image, self.out, requantize(**how), part)
        self.out.check()
        return self.out.codes.copy()

    def scales(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Scales and offsets that spread the sums over some more than the codes."""
        rng = np.random.default_rng(1)
        sums = self.sums.reshape(-1, self.case.out)
        if not len(sums):
            return np.ones(self.case.out, np.float32), np.zeros(self.case.out, np.float32)
        multiplier = rng.uniform(60, 120, self.case.out) / np.maximum(1, sums.std(0))
        offset = rng.uniform(90, 170, self.case.out) - sums.mean(0) * multiplier
        return multiplier.astype(np.float32), offset.astype(np.float32)


def fill_border(image: Image, value: int) -> None:
    """In an image with gaps, where the kernel that fills borders would fill these."""
    inside = image.codes.copy()
    image.whole[..., : image.shape[4]] = value
    image.codes[:] = inside


@forms
@cases
def test_convolution(case: Case, plain: bool) -> None:
    prepared = Prepared(case, plain)
    multiplier, offset = prepared.scales()
    found = prepared.run(multiplier=multiplier, offset=offset)
    if case.images:
        value = prepared.sums * multiplier.astype(np.float64) + offset
        assert_rounds_to(found, value)
        assert len(np.unique(found)) > min(5, found.size // 4)


@forms
@cases
def test_sums_are_exact(case: Case, plain: bool) -> None:
    """With a scale of 1 and the sum itself as the offset, every pixel is 128 once."""
    prepared = Prepared(case, plain)
    rng = np.random.default_rng(2)
    pixels = list(np.ndindex(*prepared.sums.shape[:4]))
    for i in rng.permutation(len(pixels))[:20]:
        offset = (128 - prepared.sums[pixels[i]]).astype(np.float32)
        found = prepared.run(multiplier=np.ones(case.out, np.float32), offset=offset)
        expected = np.clip(prepared.sums + offset.astype(np.int64), 0, 255)
        assert (found == expected).all()


@pytest.mark.skipif(not HAS_VNNI, reason="no AVX-512 VNNI here")
@pytest.mark.parametrize("at_front", [False, True], ids=["end", "front"])
@cases
def test_convolution_forms_agree(case: Case, at_front: bool) -> None:
    """Bit for bit, with clips, residual and table; any division into parts gives the same."""
    rng = np.random.default_rng(3)
    vnni = Prepared(case, False, at_front=at_front)
    plain = Prepared(case, True, at_front=at_front)
    multiplier, offset = vnni.scales()
    residual = Image.of(random_codes(rng, *vnni.out.shape), gap=1)
    table = random_codes(rng, 256)
    for options in (
        {},
        {"low": 17, "high": 203},
        {"residual": residual, "residual_multiplier": 0.37},
        {"residual": residual, "residual_multiplier": -1.9, "low": 3, "table": table},
    ):
        expected = plain.run(multiplier=multiplier, offset=offset, **options)
        for part in PARTS:
            found = vnni.run(part, multiplier=multiplier, offset=offset, **options)
            assert (found == expected).all()


@forms
def test_random_convolutions(plain: bool) -> None:
    """Any numbers in combination."""
    rng = np.random.default_rng(4)
    for _ in range(60):
        kernel = tuple(int(k) for k in rng.integers(1, (2, 5, 5)))
        groups = int(rng.choice([1, 1, 2, 3]))
        case = Case(
            size=tuple(int(s) for s in rng.integers(1, (4, 12, 34)) + kernel),
            channels=groups * int(rng.integers(1, 40)),
            out=groups * int(rng.integers(1, 70)),
            kernel=kernel,
            stride=tuple(int(s) for s in rng.integers(1, 4, 3)),
            pad=tuple(int(p) for p in rng.integers(0, kernel)),
            groups=groups,
            images=int(rng.integers(1, 3)),
            zero_point=int(rng.integers(0, 256)),
            gap=int(rng.choice([0, 0, 1, 4])),
        )
        if rng.random() < 0.3:
            case = Case(**{**case.__dict__, "groups": case.channels, "out": case.channels})
        prepared = Prepared(case, plain)
        multiplier, offset = prepared.scales()
        found = prepared.run(multiplier=multiplier, offset=offset)
        assert_rounds_to(found, prepared.sums * multiplier.astype(np.float64) + offset)


@forms
@pytest.mark.parametrize("groups", [1, 4], ids=["dense", "depthwise"])
def test_rounding_of_convolutions(groups: int, plain: bool) -> None:
    """Ties go to the even code, after the residual is added; codes beyond the ends are clipped."""
    weight = np.zeros((4, 1, 1, 1, 4 // groups), np.int8)
    for c in range(4):
        weight[c, ..., c if groups == 1 else 0] = (1, 3, -1, 127)[c]
    codes = np.arange(256, dtype=np.uint8).repeat(4).reshape(1, 1, 1, 256, 4)
    kernel = Convolution(weight, groups=groups, plain=plain)
    half, no_offset = np.full(4, 0.5, np.float32), np.zeros(4, np.float32)
    image, out = Image.of(codes), Image(codes.shape)
    kernel.run(image, out, requantize(half, no_offset))
    exact = codes.astype(np.int64) * (1, 3, -1, 127) / 2
    assert (out.codes == np.clip(np.round(exact), 0, 255)).all()  # NumPy rounds half to even
    kernel.run(image, out, requantize(half, no_offset, residual=image, residual_multiplier=0.25))
    exact = exact + codes * 0.25
    assert (out.codes == np.clip(np.round(exact), 0, 255)).all()
    huge = np.array([3e38, -3e38, 3e38, 1e10], np.float32)
    kernel.run(image, out, requantize(huge, no_offset, low=2, high=250))
    sign = np.sign(codes.astype(np.int64) * (1, 3, -1, 127)) * np.sign(huge)
    assert (out.codes == np.where(sign > 0, 250, 2)).all()


@forms
def test_residual_in_place(plain: bool) -> None:
    """The result may take the residual's memory, in widths that are no multiple of anything too."""
    for case in (Case((1, 5, 9), 16, 40), Case((1, 5, 9), 16, 40, (1, 3, 3), pad=(0, 1, 1))):
        prepared = Prepared(case, plain)
        multiplier, offset = prepared.scales()
        residual = random_codes(np.random.default_rng(5), *prepared.out.shape)
        apart = prepared.run(
            multiplier=multiplier,
            offset=offset,
            residual=Image.of(residual),
            residual_multiplier=0.5,
        )
        prepared.out.codes[:] = residual
        how = requantize(multiplier, offset, residual=prepared.out, residual_multiplier=0.5)
        prepared.kernel.run(prepared.image, prepared.out, how)
        assert (prepared.out.codes == apart).all()


def test_refuses_what_int32_does_not_hold() -> None:
    """And channels that the groups do not divide."""
    with pytest.raises(ValueError, match="refused"):
        Convolution(np.zeros((1, 1, 1, 1, 65_793), np.int8))
    with pytest.raises(ValueError, match="refused"):
        Convolution(np.zeros((3, 1, 1, 1, 2), np.int8), groups=2)


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
def test_quantize(layout: str, shape: tuple[int, ...], plain: bool) -> None:
    """The codes of the reference operator, bit for bit."""
    torch.manual_seed(0)
    x = LAYOUTS[layout](torch.randn(shape) * 3)
    scale, zero_point = 0.037, 131
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
            np.float32(zero_point),
            3,
            250,
            plain,
            part,
        )
        expected = torch.ops.jit_passes.quantize(x, scale, zero_point, 3, 250, torch.uint8)
        assert (out.codes == expected.permute(0, 2, 3, 4, 1).numpy()).all()
        out.check()


@forms
def test_quantize_by_hand(plain: bool) -> None:
    """Ties go to the even code, numbers beyond the codes are clipped, a NaN is the lowest code."""
    values = [0.5, 1.5, 2.5, -0.5, 254.5, 255.5, 1e30, -1e30, np.inf, -np.inf, np.nan, 3.0]
    for count in (len(values), 5 * len(values)):
        x = np.resize(np.array(values, np.float32), count)
        out = Image((1, 1, 1, 1, count))
        strides = Strides(count, count, count, count, 1)
        call("quantize", x, strides, out, np.float32(1), np.float32(0), 1, 255, plain, 1)
        expected = np.resize([1, 2, 2, 1, 254, 255, 255, 1, 255, 1, 1, 3], count)
        assert (out.codes.reshape(-1) == expected).all()


@forms
@shapes
@layouts
def test_dequantize(layout: str, shape: tuple[int, ...], plain: bool) -> None:
    rng = np.random.default_rng(6)
    n, c, d, h, w = shape
    codes = random_codes(rng, n, d, h, w, c)
    for border, gap, part in (((0,) * 6, 0, 1 << 40), ((1, 2, 1, 1, 0, 0), 0, 1), ((0,) * 6, 7, 2)):
        out = LAYOUTS[layout](torch.zeros(shape))
        image = Image.of(codes, border=border, gap=gap)
        call("dequantize", image, out.numpy(), strides_of(out), np.float32(0.37), 9, plain, part)
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
def test_add(pair: Pair, gap: int, plain: bool) -> None:
    a, b, out, x, y = operands(pair, gap)
    table = random_codes(np.random.default_rng(8), 256)
    scales = np.float32(0.71), np.float32(-0.433), np.float32(90.3)
    value = x * float(scales[0]) + y * float(scales[1]) + float(scales[2])
    for part in PARTS:
        call("add", a, b, out, *scales, 11, 240, None, plain, part)
        assert_rounds_to(out.codes, value, 11, 240)
        out.check()
    plainly = out.codes.copy()
    call("add", a, b, out, *scales, 11, 240, table, plain, 1)
    assert (out.codes == table[plainly]).all()
    call("add", b, a, out, scales[1], scales[0], scales[2], 11, 240, None, plain, 1)
    assert_rounds_to(out.codes, value, 11, 240)


@forms
@pairs
@pytest.mark.parametrize("gap", [0, 3])
def test_multiply(pair: Pair, gap: int, plain: bool) -> None:
    a, b, out, x, y = operands(pair, gap)
    table = random_codes(np.random.default_rng(8), 256)
    scale, offset = np.float32(0.0137), np.float32(121)
    value = (x - 100) * (y - 255) * float(scale) + float(offset)
    for part in PARTS:
        call("multiply", a, b, out, 100, 255, scale, offset, 0, 255, None, plain, part)
        assert_rounds_to(out.codes, value)
        out.check()
    plainly = out.codes.copy()
    call("multiply", a, b, out, 100, 255, scale, offset, 0, 255, table, plain, 1)
    assert (out.codes == table[plainly]).all()


@forms
def test_rounding_of_sums(plain: bool) -> None:
    """All pairs of codes; sums of halves are exact, and ties go to the even code."""
    a, b = (x.astype(np.uint8).reshape(1, 1, 256, 256, 1) for x in np.indices((256, 256)))
    out = Image(a.shape)
    half = np.float32(0.5)
    call("add", Image.of(a), Image.of(b), out, half, half, np.float32(-20), 0, 255, None, plain, 7)
    exact = (a.astype(np.int64) + b) / 2 - 20
    assert (out.codes == np.clip(np.round(exact), 0, 255)).all()
    call("multiply", Image.of(a), Image.of(b), out, 9, 3, half, half, 5, 99, None, plain, 7)
    exact = (a.astype(np.int64) - 9) * (b.astype(np.int64) - 3) / 2 + 0.5
    assert (out.codes == np.clip(np.round(exact), 5, 99)).all()


@pytest.mark.skipif(not HAS_VNNI, reason="no AVX-512 VNNI here")
def test_forms_of_sums_agree() -> None:
    """For all pairs of codes, with scales as they come."""
    rng = np.random.default_rng(9)
    a, b = (x.astype(np.uint8).reshape(1, 1, 256, 256, 1) for x in np.indices((256, 256)))
    images = Image.of(a), Image.of(b)
    for _ in range(5):
        m, k, offset = (np.float32(v) for v in rng.uniform(-1, 1, 3) * (1, 1, 200))
        for name, scales in (("add", (m, k, offset)), ("multiply", (100, 3, m / 50, offset))):
            plain, vnni = Image(a.shape), Image(a.shape)
            call(name, *images, plain, *scales, 0, 255, None, True, 7)
            call(name, *images, vnni, *scales, 0, 255, None, False, 7)
            assert (plain.codes == vnni.codes).all()


@forms
@pytest.mark.parametrize("shape", [(2, 1, 5, 7, 24), (1, 2, 3, 4, 65), (1, 1, 1, 1, 1000)], ids=str)
def test_look_up(shape: tuple[int, int, int, int, int], plain: bool) -> None:
    """Also from one layout to the other, without a table, and in place."""
    rng = np.random.default_rng(10)
    codes, table = random_codes(rng, *shape), random_codes(rng, 256)
    for gap, border in ((0, (0,) * 6), (5, (0,) * 6), (0, (1, 1, 1, 1, 1, 1))):
        image, out = Image.of(codes), Image(shape, gap=gap, border=border)
        call("look_up", image, out, table, plain, 2)
        assert (out.codes == table[codes]).all()
        out.check()
        call("look_up", image, out, None, plain, 1)
        assert (out.codes == codes).all()
        call("look_up", out, out, table, plain, 1)
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
pools = pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)


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
def test_max_pool(pool: Pool, channels: int, plain: bool) -> None:
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
            plain,
            part,
        )
        assert (out.codes == expected.permute(0, 2, 3, 4, 1).numpy()).all()
        out.check()


@forms
@pools
@pytest.mark.parametrize("channels", [1, 24, 64, 131])
def test_average_pool(pool: Pool, channels: int, plain: bool) -> None:
    if pool.dilation != (1, 1, 1):
        pytest.skip("averages have no dilation")
    codes = random_codes(np.random.default_rng(14), 2, *pool.size, channels)
    average = F.avg_pool3d(
        planar(codes) - 100, pool.kernel, pool.stride, pool.pad, pool.ceil, pool.include_pad
    )
    out = Image((2, *average.shape[2:], channels), gap=3)
    for part in PARTS:
        call(
            "average_pool", Image.of(codes), out, spans_of(pool, average.shape), 1.37,
            *(100, 128, 0, 3, 251, plain, part),
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
def test_adaptive_pool(size: Triple, out: Triple, plain: bool) -> None:
    codes = random_codes(np.random.default_rng(15), 2, *size, 70)
    average = F.adaptive_avg_pool3d(planar(codes), out)
    largest = F.adaptive_max_pool3d(planar(codes), out)
    all_spans = np.concatenate([spans(size[i], out[i]) for i in range(3)])
    found = Image((2, *out, 70))
    call("average_pool", Image.of(codes), found, all_spans, 1.0, 0, 0, 0, 0, 255, plain, 1)
    assert_rounds_to(found.codes, average.permute(0, 2, 3, 4, 1).numpy())
    call("max_pool", Image.of(codes), found, all_spans, 1, 1, 1, plain, 1)
    assert (found.codes == largest.permute(0, 2, 3, 4, 1).numpy()).all()


@forms
def test_rounding_of_averages(plain: bool) -> None:
    """Averages of two are exact, ties go to the even code; a divisor of the caller's stands in."""
    codes = np.indices((256, 256)).astype(np.uint8).reshape(1, 2, 1, 256, 256)
    codes = codes.transpose(0, 2, 3, 1, 4).copy().reshape(1, 1, 512, 1, 256)
    out = Image((1, 1, 256, 1, 256))
    pairs_of = np.concatenate([spans(1, 1, 1), spans(512, 256, 2, 2), spans(1, 1, 1)])
    exact = codes.reshape(256, 2, 256).astype(np.int64).sum(1)
    call("average_pool", Image.of(codes), out, pairs_of, 1.0, 0, 0, 0, 0, 255, plain, 1)
    assert (out.codes.reshape(256, 256) == np.round(exact / 2)).all()
    call("average_pool", Image.of(codes), out, pairs_of, 1.0, 0, 0, 4, 0, 255, plain, 1)
    assert (out.codes.reshape(256, 256) == np.round(exact / 4)).all()
