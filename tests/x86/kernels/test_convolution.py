"""Integer convolutions for x86: plain forms against slow references, vector forms against these.

A code is that of a reference computed in float64 where its value before rounding is not within
1e-3 of a tie. Ties, and saturation, are cases by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.x86.kernels.calls import (
    PARTS,
    Codes,
    Convolution,
    Form,
    Image,
    Triple,
    assert_rounds_to,
    forms,
    random_codes,
    requantize,
    vector_forms,
)


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
    "1x1, 67 fours": Case((1, 5, 9), 265, 40),
    "3x3, 50 fours": Case((1, 9, 21), 66, 40, (1, 3, 3), pad=(0, 1, 1)),
    "linear": Case((1, 1, 3), 100, 70, images=1),
    "linear, 257 fours": Case((1, 1, 20), 1028, 33, images=1),
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
    "depthwise, nine in a row": Case((1, 1, 41), 70, 70, (1, 1, 9), pad=(0, 0, 4), groups=70),
    "depthwise, six in a row": Case((1, 3, 7), 24, 24, (1, 1, 6), pad=(0, 0, 2), groups=24, gap=3),
    "depthwise, 33 in a row": Case(
        (1, 1, 90), 130, 130, (1, 1, 33), pad=(0, 0, 16), groups=130, images=2
    ),
    "depthwise, in a row, strided": Case(
        (1, 2, 60), 37, 37, (1, 1, 11), (1, 1, 3), pad=(0, 0, 5), groups=37
    ),
    "depthwise, in a row, dilated": Case(
        (1, 2, 60), 67, 67, (1, 1, 7), dilation=(1, 1, 3), pad=(0, 0, 9), groups=67
    ),
    "depthwise, three axes": Case((4, 5, 6), 33, 33, (3, 3, 3), pad=(1, 1, 1), groups=33),
    "depthwise, one channel": Case((1, 8, 9), 1, 1, (1, 3, 3), pad=(0, 1, 1)),
    "zero point 0": Case((1, 6, 6), 16, 16, (1, 3, 3), pad=(0, 1, 1), zero_point=0),
    "zero point 255": Case((1, 6, 6), 16, 16, (1, 3, 3), pad=(0, 1, 1), zero_point=255),
    "nothing": Case((1, 4, 4), 8, 8, images=0),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


class Prepared:
    """Operands of a case, with a border that the kernel asks for."""

    def __init__(self, case: Case, form: int, seed: int = 0, at_front: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.case = case
        self.codes = random_codes(rng, case.images, *case.size, case.channels)
        self.weight = rng.integers(
            -128, 128, (case.out, *case.kernel, case.channels // case.groups), dtype=np.int8
        )
        self.kernel = Convolution(
            self.weight, groups=case.groups, stride=case.stride, dilation=case.dilation,
            pad=case.pad, zero_point=case.zero_point, dense=not case.gap, form=form,
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
def test_convolution(case: Case, form: int) -> None:
    prepared = Prepared(case, form)
    multiplier, offset = prepared.scales()
    found = prepared.run(multiplier=multiplier, offset=offset)
    if case.images:
        value = prepared.sums * multiplier.astype(np.float64) + offset
        assert_rounds_to(found, value)
        assert len(np.unique(found)) > min(5, found.size // 4)


@forms
@cases
def test_sums_are_exact(case: Case, form: int) -> None:
    """With a scale of 1 and the sum itself as the offset, every pixel is 128 once."""
    prepared = Prepared(case, form)
    rng = np.random.default_rng(2)
    pixels = list(np.ndindex(*prepared.sums.shape[:4]))
    for i in rng.permutation(len(pixels))[:20]:
        offset = (128 - prepared.sums[pixels[i]]).astype(np.float32)
        found = prepared.run(multiplier=np.ones(case.out, np.float32), offset=offset)
        expected = np.clip(prepared.sums + offset.astype(np.int64), 0, 255)
        assert (found == expected).all()


@vector_forms
@pytest.mark.parametrize("at_front", [False, True], ids=["end", "front"])
@cases
def test_convolution_forms_agree(case: Case, at_front: bool, form: int) -> None:
    """Bit for bit, with clips, table and sum; any division into parts gives the same."""
    rng = np.random.default_rng(3)
    vector = Prepared(case, form, at_front=at_front)
    plain = Prepared(case, Form.PLAIN, at_front=at_front)
    multiplier, offset = vector.scales()
    gap = int(rng.integers(2))
    residual = Image.of(random_codes(rng, *vector.out.shape), gap=gap, border=(1, 0, 0, gap, 0, 0))
    table = random_codes(rng, 256)
    half = {"residual": residual, "residual_multiplier": 0.37}
    huge = np.where(multiplier < np.median(multiplier), -3e38, 3e38).astype(np.float32)
    for options in (
        {},
        {"low": 17, "high": 203},
        {"table": table},
        half,
        {**half, "residual_multiplier": -1.7, "low": 3, "table": table},
        {**half, "residual_multiplier": 1e36, "low": 9, "high": 200},
        {**half, "multiplier": huge},
        {"multiplier": huge},
    ):
        how = {"multiplier": multiplier, "offset": offset, **options}
        expected = plain.run(**how)
        for part in PARTS:
            assert (vector.run(part, **how) == expected).all()


@forms
@cases
def test_sum_behind_a_convolution(case: Case, form: int) -> None:
    """The sum is rounded once, to the code next to the sum of products and residual."""
    rng = np.random.default_rng(8)
    prepared = Prepared(case, form)
    multiplier, offset = prepared.scales()
    residual = Image.of(random_codes(rng, *prepared.out.shape), border=(0, 1, 1, 0, 0, 0))
    how = {"multiplier": multiplier, "offset": offset, "residual": residual}
    for factor, low, high in ((0.25, 0, 255), (-0.31, 30, 180), (1.0, 7, 200)):
        added = residual.codes * np.float64(np.float32(factor)) + offset
        value = prepared.sums * multiplier.astype(np.float64) + added.astype(np.float32)
        found = prepared.run(**how, residual_multiplier=factor, low=low, high=high)
        if case.images:
            assert_rounds_to(found, value, low, high)
    codes = prepared.run(**how, residual_multiplier=0.25)
    table = random_codes(rng, 256)
    assert (prepared.run(**how, residual_multiplier=0.25, table=table) == table[codes]).all()


@forms
def test_random_convolutions(form: int) -> None:
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
        prepared = Prepared(case, form)
        multiplier, offset = prepared.scales()
        found = prepared.run(multiplier=multiplier, offset=offset)
        assert_rounds_to(found, prepared.sums * multiplier.astype(np.float64) + offset)


@forms
@pytest.mark.parametrize("groups", [1, 4], ids=["dense", "depthwise"])
def test_rounding_of_convolutions(groups: int, form: int) -> None:
    """Ties go to the even code, with a sum too; codes beyond the ends are clipped."""
    weight = np.zeros((4, 1, 1, 1, 4 // groups), np.int8)
    for c in range(4):
        weight[c, ..., c if groups == 1 else 0] = (1, 3, -1, 127)[c]
    codes = np.arange(256, dtype=np.uint8).repeat(4).reshape(1, 1, 1, 256, 4)
    kernel = Convolution(weight, groups=groups, form=form)
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
def test_residual_in_place(form: int) -> None:
    """The result may take the residual's memory, in widths that are no multiple of anything too."""
    for case in (
        Case((1, 5, 9), 16, 40),
        Case((1, 5, 9), 16, 40, (1, 3, 3), pad=(0, 1, 1)),
        Case((1, 5, 9), 88, 88, (1, 3, 3), pad=(0, 1, 1), groups=88),
        Case((1, 5, 7), 30, 30, (1, 5, 5), (1, 2, 2), pad=(0, 2, 2), groups=30),
        Case((1, 4, 1), 30, 30, (1, 3, 3), pad=(0, 1, 1), groups=30),
    ):
        prepared = Prepared(case, form)
        multiplier, offset = prepared.scales()
        residual = random_codes(np.random.default_rng(5), *prepared.out.shape)
        how = {"multiplier": multiplier, "offset": offset, "residual_multiplier": 0.5}
        apart = prepared.run(**how, residual=Image.of(residual))
        prepared.out.codes[:] = residual
        own = requantize(**how, residual=prepared.out)
        prepared.kernel.run(prepared.image, prepared.out, own)
        assert (prepared.out.codes == apart).all()


def test_refuses_what_int32_does_not_hold() -> None:
    """And channels that the groups do not divide."""
    with pytest.raises(ValueError, match="refused"):
        Convolution(np.zeros((1, 1, 1, 1, 65_793), np.int8))
    with pytest.raises(ValueError, match="refused"):
        Convolution(np.zeros((3, 1, 1, 1, 2), np.int8), groups=2)
