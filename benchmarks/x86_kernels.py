"""Time the integer kernels of the x86 target on one thread, as a share of what the processor can do.

Run it alone: python -m benchmarks.x86_kernels [part of a name ...]

Convolutions are shown as a share of the peak of multiply-adds, measured first with registers only; the
others in bytes read and written per second. Operands are those of layers of known networks, and stay
in the caches. Each time is the minimum over many runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from tests.test_x86_kernels import Case
from tests.x86_kernels import Convolution, Image, Strides, call, requantize, spans

SECONDS = 0.1  # for each row


def fastest(run: Callable[[], object], seconds: float = SECONDS) -> float:
    """The minimum, without the time of a call by ctypes that does nothing."""
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return float(best)


def square(
    size: int, channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> Case:
    return Case(
        (1, size, size), channels, out, (1, kernel, kernel), (1, stride, stride),
        pad=(0, kernel // 2, kernel // 2), groups=groups,
    )  # fmt: skip


CONVOLUTIONS = {
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
    "depthwise 7x7 96 @56": square(56, 96, 96, 7, groups=96),
}


def convolution(case: Case, plain: bool) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    shape = (case.out, *case.kernel, case.channels // case.groups)
    kernel = Convolution(
        rng.integers(-128, 128, shape, dtype=np.int8), groups=case.groups, stride=case.stride,
        pad=case.pad, zero_point=3, plain=plain,
    )  # fmt: skip
    out = Image((1, *case.out_size(), case.out))
    bare = Image((1, *case.size, case.channels))
    image = Image(bare.shape, border=kernel.border(bare, out))
    image.whole[:] = rng.integers(0, 256, image.whole.shape, dtype=np.uint8)
    scale = np.full(case.out, 1e-3, np.float32)
    how = requantize(scale, scale)
    return lambda: kernel.run(image, out, how)


def others() -> Iterator[tuple[str, int, Callable[[bool], Callable[[], object]]]]:
    """A name, bytes, and what runs it."""
    rng = np.random.default_rng(0)
    every = 1 << 40

    def image(*shape: int) -> Image:
        return Image.of(rng.integers(0, 256, (1, 1, *shape), dtype=np.uint8))

    for size, channels in ((224, 3), (56, 64)):
        x = rng.standard_normal((channels, size, size)).astype(np.float32)
        nchw = Strides(x.size, x.size, size, 1, size * size)
        nhwc = Strides(x.size, x.size, size * channels, channels, 1)
        codes, y = image(size, size, channels), x.copy()
        for layout, strides in (("NCHW", nchw), ("NHWC", nhwc)):
            yield (
                f"quantize {layout} {channels} @{size}",
                5 * x.size,
                lambda plain, x=x, s=strides, c=codes: (
                    lambda: call(
                        "quantize", x, s, c, np.float32(9), np.float32(3), 0, 255, plain, every
                    )
                ),
            )
            yield (
                f"dequantize {layout} {channels} @{size}",
                5 * x.size,
                lambda plain, y=y, s=strides, c=codes: (
                    lambda: call("dequantize", c, y, s, np.float32(9), 3, plain, every)
                ),
            )
    a, b, c = (image(56, 56, 64) for _ in range(3))
    table = rng.integers(0, 256, 256, dtype=np.uint8)
    half = np.float32(0.5)
    size = a.codes.size
    yield (
        "add 64 @56",
        3 * size,
        lambda plain: lambda: call("add", a, b, c, half, half, half, 0, 255, None, plain, every),
    )
    yield (
        "multiply 64 @56",
        3 * size,
        lambda plain: (
            lambda: call("multiply", a, b, c, 3, 5, half, half, 0, 255, None, plain, every)
        ),
    )
    yield "table 64 @56", 2 * size, lambda plain: lambda: call("look_up", a, c, table, plain, every)
    yield "copy 64 @56", 2 * size, lambda plain: lambda: call("look_up", a, c, None, plain, every)
    large, small = image(112, 112, 64), image(56, 56, 64)
    three = np.concatenate([spans(1, 1, 1), *[spans(112, 56, 3, 2, 1, (1, 1))] * 2])
    yield (
        "max pool 3x3 64 @112, stride 2",
        large.codes.size + small.codes.size,
        lambda plain: lambda: call("max_pool", large, small, three, 1, 1, 1, plain, every),
    )
    yield (
        "average pool 3x3 64 @112, stride 2",
        large.codes.size + small.codes.size,
        lambda plain: (
            lambda: call("average_pool", large, small, three, 1.0, 0, 0, 0, 0, 255, plain, every)
        ),
    )
    deep, mean = image(7, 7, 1280), image(1, 1, 1280)
    whole = np.concatenate([spans(1, 1), *[spans(7, 1)] * 2])
    yield (
        "mean 1280 @7",
        deep.codes.size,
        lambda plain: (
            lambda: call("average_pool", deep, mean, whole, 1.0, 0, 0, 0, 0, 255, plain, every)
        ),
    )


def main() -> None:
    wanted = sys.argv[1:]
    chosen = [name for name in CONVOLUTIONS if all(part in name for part in wanted)]
    peak = (1 << 20) * 64 * 20 / fastest(lambda: call("multiply_add", 1 << 20), 0.5)
    nothing = fastest(lambda: call("vnni"))
    print(f"peak {peak / 1e9:.0f} GMAC/s\n")
    print("| convolution | us | GMAC/s | share of peak | plain form, us |")
    print("| --- | --- | --- | --- | --- |")
    for name in chosen:
        case = CONVOLUTIONS[name]
        products = int(np.prod(case.out_size())) * case.out * int(np.prod(case.kernel))
        products *= case.channels // case.groups
        vnni, plain = (fastest(convolution(case, form)) - nothing for form in (False, True))
        print(
            f"| {name} | {vnni * 1e6:.1f} | {products / vnni / 1e9:.0f} | "
            f"{products / vnni / peak:.0%} | {plain * 1e6:.0f} |"
        )
    print("\n| other | us | GB/s | plain form, us |")
    print("| --- | --- | --- | --- |")
    for name, size, run in others():
        if all(part in name for part in wanted):
            vnni, plain = (fastest(run(form)) - nothing for form in (False, True))
            print(f"| {name} | {vnni * 1e6:.1f} | {size / vnni / 1e9:.0f} | {plain * 1e6:.0f} |")


if __name__ == "__main__":
    main()
