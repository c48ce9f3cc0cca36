"""Products of two activations, softmax and layer norm on codes: against float64, form by form."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.x86.kernels.calls import (
    ALL_CODES,
    PARTS,
    CodeRange,
    Codes,
    Form,
    Image,
    assert_rounds_to,
    call,
    forms,
    random_codes,
    vector_forms,
)

# --- Matrix products.

# Rows, products of a sum, columns: tails of 14 rows, 4 codes, 16 and 32 columns, and several.
SIZES = [
    (1, 1, 1),
    (2, 3, 5),
    (7, 4, 16),
    (8, 5, 17),
    (14, 64, 32),
    (15, 63, 33),
    (29, 66, 47),
    (32, 32, 32),
    (50, 130, 64),
    (13, 17, 49),
    (3, 700, 2),
]
# Batches of the left and the right operand.
BATCHES = [
    ((1, 1, 1), (1, 1, 1)),
    ((2, 3, 2), (2, 3, 2)),
    ((2, 1, 3), (1, 1, 3)),
    ((1, 1, 1), (2, 1, 2)),
    ((3, 1, 2), (3, 1, 1)),
]


def product(
    a: Image,
    b: Image,
    out: Image,
    transposed: bool,
    zero_points: tuple[int, int],
    scale: tuple[float, float],
    form: int,
    *,
    ends: tuple[int, int] = (0, 255),
    table: Codes | None = None,
    part: int = 1 << 40,
) -> None:
    size = call("matrix_product_bytes", b, transposed)
    packed = np.zeros(int(size) + 64, np.uint8)
    begin = -packed.ctypes.data % 64
    scales = (np.float32(number) for number in scale)
    call(
        *("matrix_product", a, b, out, packed[begin:], transposed, *zero_points, *scales),
        *(CodeRange(*ends), table, form, part),
    )


def sums_of(a: Codes, b: Codes, zero_points: tuple[int, int]) -> NDArray[np.int64]:
    """Exact sums [images, depth, height, rows, columns]; `b` has its rows along the width."""
    return np.matmul(a.astype(np.int64) - zero_points[0], b.astype(np.int64) - zero_points[1])


@forms
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matrix_product(
    size: tuple[int, int, int],
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    transposed: bool,
    form: int,
) -> None:
    rows, products, columns = size
    rng = np.random.default_rng(rows + products + columns)
    left = random_codes(rng, *batch[0], rows, products)
    right = random_codes(rng, *batch[1], products, columns)
    held = np.swapaxes(right, -1, -2) if transposed else right
    shape = np.broadcast_shapes(batch[0], batch[1])
    table = random_codes(rng, 256)
    for zero_points, gap in (((113, 140), 0), ((0, 128), 5), ((255, 0), 1)):
        a, b = Image.of(left, gap=gap), Image.of(held, gap=gap)
        out = Image((*shape, rows, columns), gap=gap)
        sums = sums_of(left, right, zero_points)
        # Sums themselves, as far as they are within the codes of the middle one.
        middle = float(128 - np.median(sums).round())
        for part in PARTS:
            product(a, b, out, transposed, zero_points, (1.0, middle), form, part=part)
            assert (out.codes == np.clip(sums + middle, 0, 255)).all()
            out.check()
        spread = max(float(np.abs(sums + middle - 128).max()), 1.0)
        scale = (120 / spread, 128 + (middle - 128) * 120 / spread)
        product(a, b, out, transposed, zero_points, scale, form, ends=(20, 230))
        found = [float(np.float32(number)) for number in scale]
        assert_rounds_to(out.codes, sums * found[0] + found[1], 20, 230)
        plainly = out.codes.copy()
        product(a, b, out, transposed, zero_points, scale, form, ends=(20, 230), table=table)
        assert (out.codes == table[plainly]).all()


@forms
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("a", "b"), [(0, 0), (255, 0), (0, 255), (255, 255)])
def test_largest_sums(a: int, b: int, transposed: bool, form: int) -> None:
    """As many products as are allowed, each as large as can be: no part of a sum leaves int32."""
    products = ((1 << 31) // (255 * 128) - 1) // 4
    left = Image.of(np.full((1, 1, 1, 15, products), a, np.uint8))
    right = np.full((1, 1, 1, products, 33), b, np.uint8)
    held = Image.of(np.swapaxes(right, -1, -2) if transposed else right)
    out = Image((1, 1, 1, 15, 33))
    for zero_points in ((0, 0), (255, 0), (0, 255), (255, 255)):
        exact = products * (a - zero_points[0]) * (b - zero_points[1])
        scale = 200 / (products * 255 * 255)
        product(left, held, out, transposed, zero_points, (scale, 27.5), form)
        found = float(np.float32(scale))
        assert_rounds_to(out.codes, np.full(out.shape, exact * found + 27.5), 0, 255)


# --- Softmax.

PIXELS = [(1, 1, 1, 1), (2, 1, 3, 5), (1, 2, 1, 17)]
CHANNELS = [1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 197, 300]


def softmax(
    image: Image, out: Image, scales: tuple[float, float], offset: float, form: int, part: int
) -> None:
    call("softmax", image, out, *scales, np.float32(offset), ALL_CODES, form, part)


def softmax_of(codes: Codes, scale: float) -> NDArray[np.float64]:
    x = codes.astype(np.float64) * scale
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_softmax(channels: int, form: int) -> None:
    rng = np.random.default_rng(channels)
    for pixels in PIXELS:
        for gap, scale, part in ((0, 0.04, 1 << 40), (3, 0.3, 1), (0, 0.001, 2)):
            codes = random_codes(rng, *pixels, channels)
            codes[0, 0, 0, 0] //= 8  # other than that, nearly all rows have a code next to 255
            exact = softmax_of(codes, scale)
            step = float(exact.max()) / 250
            out = Image(codes.shape, gap=gap)
            softmax(Image.of(codes, gap=gap), out, (scale, step), 4, form, part)
            assert_rounds_to(out.codes, exact / step + 4)
            out.check()


@forms
def test_softmax_by_hand(form: int) -> None:
    """Equal codes have equal parts, and one that is far above the others has it all."""
    codes = np.zeros((1, 1, 1, 3, 100), np.uint8)
    codes[0, 0, 0, 1], codes[0, 0, 0, 2, 71] = 255, 255
    out = Image(codes.shape)
    softmax(Image.of(codes), out, (1.0, 0.01), 0, form, 1)
    assert (out.codes[0, 0, 0, :2] == 1).all()
    assert (out.codes[0, 0, 0, 2] == np.where(np.arange(100) == 71, 100, 0)).all()


# --- Layer norm.


def layer_norm(
    image: Image,
    out: Image,
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    eps: float,
    form: int,
    part: int,
) -> None:
    call("layer_norm", image, out, weight, bias, eps, CodeRange(3, 250), form, part)


def layer_norm_of(codes: Codes, eps: float) -> NDArray[np.float64]:
    x = codes.astype(np.float64)
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + eps)


@forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_layer_norm(channels: int, form: int) -> None:
    rng = np.random.default_rng(channels)
    weight = rng.uniform(-60, 60, channels).astype(np.float32)
    bias = rng.uniform(100, 160, channels).astype(np.float32)
    for pixels in PIXELS:
        for gap, low, high, eps, part in ((0, 0, 256, 1e-2, 1 << 40), (3, 120, 124, 0.5, 1)):
            codes = rng.integers(low, high, (*pixels, channels), dtype=np.uint8)
            out = Image(codes.shape, gap=gap)
            layer_norm(Image.of(codes, gap=gap), out, weight, bias, eps, form, part)
            assert_rounds_to(out.codes, layer_norm_of(codes, eps) * weight + bias, 3, 250)
            out.check()


@forms
@pytest.mark.parametrize("code", [0, 1, 254, 255])
def test_layer_norm_of_equal_codes(code: int, form: int) -> None:
    """Their variance is exactly 0, for the largest sums of squares too."""
    channels = (1 << 31) // (255 * 255) - 1
    codes = np.full((1, 1, 1, 2, channels), code, np.uint8)
    weight, bias = np.ones(channels, np.float32), np.full(channels, 77.3, np.float32)
    out = Image(codes.shape)
    layer_norm(Image.of(codes), out, weight, bias, 1e-4, form, 1)
    assert (out.codes == 77).all()


# --- All forms.


@vector_forms
@pytest.mark.parametrize("channels", CHANNELS)
def test_forms_agree(channels: int, form: int) -> None:
    rng = np.random.default_rng(channels)
    codes = random_codes(rng, 2, 1, 1, 50, channels)
    weight = rng.uniform(-90, 90, channels).astype(np.float32)
    bias = rng.uniform(100, 160, channels).astype(np.float32)
    right = Image.of(random_codes(rng, 2, 1, 1, channels, 70))
    found: dict[str, list[Codes]] = {}
    for level in (Form.PLAIN, form):
        for name, shape in (
            ("softmax", codes.shape),
            ("norm", codes.shape),
            ("product", (2, 1, 1, 50, 70)),
        ):
            out = Image(shape)
            if name == "softmax":
                softmax(Image.of(codes), out, (0.0213, 1 / 256), 0.0, level, 1)
            elif name == "norm":
                layer_norm(Image.of(codes), out, weight, bias, 0.017, level, 1)
            else:
                scale = (0.02 / channels**0.5, 120.7)
                product(Image.of(codes), right, out, False, (100, 131), scale, level)
            found.setdefault(name, []).append(out.codes.copy())
    for one, other in found.values():
        assert (one == other).all()


def test_bytes_of_packed() -> None:
    """The beginning of sums, and whole blocks of 32 columns by four rows, for each matrix."""
    b = Image((2, 1, 3, 5, 33))
    assert int(call("matrix_product_bytes", b, False)) == 6 * 2 * 128 * 3
