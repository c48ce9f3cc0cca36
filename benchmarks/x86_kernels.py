"""Time the integer kernels of the x86 target on one thread, as a share of the processor's peak.

Usage, from the repository root::

    python -m benchmarks.x86_kernels [part of a name ...]

Microseconds of each form that the processor has. Convolutions are shown as a share of the peak of
multiply-adds of the form's instructions too, measured first with registers only. Shapes are those
of layers of known networks, and operands stay in the caches. Each time is the minimum over many
runs. Loops that a compiler vectorizes take the widest registers of the processor in all forms.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tests.x86.kernels.calls import (
    ALL_CODES,
    FORMS,
    Convolution,
    Form,
    Image,
    Strides,
    call,
    requantize,
    spans,
)
from tests.x86.kernels.test_convolution import Case

SECONDS = 0.1  # for each row


def fastest(run: Callable[[], object], seconds: float = SECONDS) -> float:
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return float(best)


def net(out: Image, run: Callable[[], object]) -> float:
    """The minimum, less that of a call which has nothing to compute: ctypes takes microseconds."""
    whole, images = fastest(run), out.struct.images
    out.struct.images = 0
    nothing = fastest(run, SECONDS / 5)
    out.struct.images = images
    return whole - nothing


def square(
    size: int, channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> Case:
    return Case(
        (1, size, size), channels, out, (1, kernel, kernel), (1, stride, stride),
        pad=(0, kernel // 2, kernel // 2), groups=groups,
    )  # fmt: skip


CONVOLUTIONS = {
    "1x1 16-96 @112": square(112, 16, 96),
    "1x1 24-144 @56": square(56, 24, 144),
    "1x1 32-64 @56": square(56, 32, 64),
    "1x1 64-384 @14": square(14, 64, 384),
    "1x1 96-24 @56": square(56, 96, 24),
    "1x1 384-64 @14": square(14, 384, 64),
    "1x1 256-64 @56": square(56, 256, 64),
    "1x1 960-160 @7": square(7, 960, 160),
    "1x1 1024-256 @14": square(14, 1024, 256),
    "3x3 64-64 @56": square(56, 64, 64, 3),
    "3x3 128-128 @28": square(28, 128, 128, 3),
    "3x3 256-256 @14": square(14, 256, 256, 3),
    "3x3 512-512 @7": square(7, 512, 512, 3),
    "3x3 64-64 @53": square(53, 64, 64, 3),
    "3x3 60-70 @25": square(25, 60, 70, 3),
    "7x7 3-64 @224, stride 2": square(224, 3, 64, 7, 2),
    "3x3 3-32 @224, stride 2": square(224, 3, 32, 3, 2),
    "3x3 128-128 @28, 32 groups": square(28, 128, 128, 3, groups=32),
    "linear 512-1000": Case((1, 1, 1), 512, 1000),
    "linear 384-1536, 128 rows": Case((1, 1, 128), 384, 1536),
    "depthwise 3x3 32 @112": square(112, 32, 32, 3, groups=32),
    "depthwise 3x3 144 @56": square(56, 144, 144, 3, groups=144),
    "depthwise 3x3 192 @28": square(28, 192, 192, 3, groups=192),
    "depthwise 3x3 96 @112, stride 2": square(112, 96, 96, 3, 2, 96),
    "depthwise 3x3 960 @7": square(7, 960, 960, 3, groups=960),
    "depthwise 5x5 120 @28": square(28, 120, 120, 5, groups=120),
    "depthwise 5x5 672 @14, stride 2": square(14, 672, 672, 5, 2, 672),
    "depthwise 1x33 256 @1000": Case(
        (1, 1, 1000), 256, 256, (1, 1, 33), pad=(0, 0, 16), groups=256
    ),
    "depthwise 7x7 96 @56": square(56, 96, 96, 7, groups=96),
}


def convolution(case: Case, form: Form) -> float:
    rng = np.random.default_rng(0)
    shape = (case.out, *case.kernel, case.channels // case.groups)
    kernel = Convolution(
        rng.integers(-128, 128, shape, dtype=np.int8), groups=case.groups, stride=case.stride,
        pad=case.pad, zero_point=3, form=form,
    )  # fmt: skip
    out = Image((1, *case.out_size(), case.out))
    bare = Image((1, *case.size, case.channels))
    image = Image(bare.shape, border=kernel.border(bare, out))
    image.whole[:] = rng.integers(0, 256, image.whole.shape, dtype=np.uint8)
    scale = np.full(case.out, 1e-3, np.float32)
    how = requantize(scale, scale)
    return net(out, lambda: kernel.run(image, out, how))


# A name, the bytes that are read and written, the image whose number of items counts, and a run.
Row = tuple[str, int, Image, Callable[[Form], object]]


def others() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    every, half, one = 1 << 40, np.float32(0.5), spans(1, 1)

    def image(size: int, channels: int) -> Image:
        return Image.of(rng.integers(0, 256, (1, 1, size, size, channels), dtype=np.uint8))

    def edges(size: int, channels: int) -> Iterator[Row]:
        x = rng.standard_normal((channels, size, size)).astype(np.float32)
        codes, name = image(size, channels), f"{channels} @{size}"
        for layout, strides in (
            ("NCHW", Strides(x.size, x.size, size, 1, size * size)),
            ("NHWC", Strides(x.size, x.size, size * channels, channels, 1)),
        ):
            yield (
                f"quantize {layout} {name}",
                5 * x.size,
                codes,
                partial(
                    call_with_form, "quantize", (x, strides, codes, half, half, ALL_CODES), every
                ),
            )
            yield (
                f"dequantize {layout} {name}",
                5 * x.size,
                codes,
                partial(call_with_form, "dequantize", (codes, x, strides, half, 3), every),
            )

    yield from edges(224, 3)
    yield from edges(56, 64)
    a, b, c = (image(56, 64) for _ in range(3))
    large, deep, mean = image(112, 64), image(7, 1280), image(1, 1280)
    table = rng.integers(0, 256, 256, dtype=np.uint8)
    three = np.concatenate([one, *[spans(112, 56, 3, 2, 1, (1, 1))] * 2])
    whole = np.concatenate([one, *[spans(7, 1)] * 2])
    size, pooled = a.codes.size, large.codes.size + a.codes.size
    average = (1.0, 0, np.float32(0), 0, ALL_CODES)
    for name, count, out, kernel, operands in (
        ("add 64 @56", 3 * size, c, "add", (a, b, c, half, half, half, ALL_CODES, None)),
        ("multiply 64 @56", 3 * size, c, "multiply", (a, b, c, 3, 5, half, half, ALL_CODES, None)),
        ("table 64 @56", 2 * size, c, "look_up", (a, c, table)),
        ("copy 64 @56", 2 * size, c, "look_up", (a, c, None)),
        ("max pool 3x3 64 @112, stride 2", pooled, c, "max_pool", (large, c, three, 1, 1, 1)),
        (
            "average pool 3x3 64 @112, stride 2",
            pooled,
            c,
            "average_pool",
            (large, c, three, *average),
        ),
        ("mean 1280 @7", deep.codes.size, mean, "average_pool", (deep, mean, whole, *average)),
    ):
        yield name, count, out, partial(call_with_form, kernel, operands, every)
    yield from attention(128, 64, 6)


def attention(tokens: int, width: int, heads: int) -> Iterator[Row]:
    """Yield the kernels of one attention, and the norm in front of it."""
    rng = np.random.default_rng(0)
    every, small, of = 1 << 40, np.float32(1e-3), f"{tokens} tokens, {heads} heads of {width}"

    def matrices(rows: int, columns: int) -> Image:
        return Image.of(rng.integers(0, 256, (1, 1, heads, rows, columns), dtype=np.uint8))

    scores, q, k = matrices(tokens, tokens), matrices(tokens, width), matrices(tokens, width)
    for name, a, b, out, transposed in (
        (f"product to scores, {of}", q, k, scores, True),
        (f"product with values, {of}", scores, k, q, False),
    ):
        packed = np.zeros(int(call("matrix_product_bytes", b, transposed)) + 64, np.uint8)
        aligned = packed[-packed.ctypes.data % 64 :]
        operands = (a, b, out, aligned, transposed, 3, 5, small, small, ALL_CODES, None)
        count = a.codes.size + b.codes.size + out.codes.size
        yield name, count, out, partial(call_with_form, "matrix_product", operands, every)
    steps = (0.03, 1 / 256, np.float32(0), ALL_CODES)
    operands = (scores, scores, *steps)
    yield (
        f"softmax, {of}",
        2 * scores.codes.size,
        scores,
        partial(call_with_form, "softmax", operands, every),
    )
    x = Image.of(rng.integers(0, 256, (1, 1, 1, tokens, heads * width), dtype=np.uint8))
    numbers = np.full(heads * width, 30, np.float32)
    operands = (x, x, numbers, numbers, 1e-3, ALL_CODES)
    yield (
        f"layer norm, {of}",
        2 * x.codes.size,
        x,
        partial(call_with_form, "layer_norm", operands, every),
    )


def call_with_form(name: str, operands: tuple[object, ...], part: int, form: Form) -> object:
    return call(name, *operands, form, part)


def peak(form: Form) -> float:
    """Return multiply-adds per second of loops without memory."""
    count = 1 << 20
    products = int(call("multiply_add", 0, form))
    return count * products / fastest(lambda: call("multiply_add", count, form), 0.5)


def main() -> None:
    wanted = sys.argv[1:]
    vector, names = FORMS[1:], [form.name.lower() for form in FORMS]
    peaks = {form: peak(form) for form in vector}
    for form, rate in peaks.items():
        print(f"peak of {form.name.lower()}: {rate / 1e9:.0f} G multiply-adds/s")
    header = "".join(f" {name}, us | share |" for name in names[1:])
    print(f"\n| convolution | {names[0]}, us |{header}")
    print("| --- | ---: |" + " ---: | ---: |" * len(vector))
    for name, case in CONVOLUTIONS.items():
        if not all(part in name for part in wanted):
            continue
        products = int(np.prod((*case.out_size(), *case.kernel))) * case.out
        products *= case.channels // case.groups
        cells = [f"{convolution(case, FORMS[0]) * 1e6:.0f}"]
        for form in vector:
            seconds = convolution(case, form)
            cells += [f"{seconds * 1e6:.1f}", f"{products / seconds / peaks[form]:.0%}"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print("\n| other | " + " | ".join(f"{name}, us" for name in names) + " | GB/s |")
    print("| --- |" + " ---: |" * (len(names) + 1))
    for name, count, out, run in others():
        if all(part in name for part in wanted):
            times = [net(out, partial(run, form)) for form in FORMS]
            cells = [f"{seconds * 1e6:.1f}" for seconds in times]
            print(f"| {name} | " + " | ".join(cells) + f" | {count / times[-1] / 1e9:.0f} |")


if __name__ == "__main__":
    main()
