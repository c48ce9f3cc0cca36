"""quantize and dequantize against exact arithmetic and PyTorch's own kernels, to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import jit_passes  # noqa: F401  registers the operators
from tests.codes import ROUNDS_STEPS, code_of

quantize = torch.ops.jit_passes.quantize
dequantize = torch.ops.jit_passes.dequantize
quantize_per_channel = torch.ops.jit_passes.quantize_per_channel
dequantize_per_channel = torch.ops.jit_passes.dequantize_per_channel

QUANTIZED = {torch.uint8: torch.quint8, torch.int8: torch.qint8, torch.int32: torch.qint32}
BYTES = [torch.uint8, torch.int8]
DTYPES = [*BYTES, torch.int16, torch.int32]


def limits(dtype: torch.dtype) -> tuple[int, int]:
    """Smallest and largest code of a type."""
    info = torch.iinfo(dtype)
    return info.min, info.max


def codes(
    x: Tensor, scale: float, zero_point: int, low: int, high: int, fused: bool = True
) -> list[float]:
    """All codes in the order of the elements, number by number by the definition."""
    found = (code_of(v, scale, zero_point, fused=fused) for v in x.float().reshape(-1).tolist())
    return [min(max(code, low), high) for code in found]


def values(seed: int = 0) -> Tensor:
    """Values of all magnitudes, far outside of the range too."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(257, generator=generator)
    return torch.cat([x, 100 * x, 1e-6 * x, torch.tensor([0.0, -0.0, 1e30, -1e30, 1e-42])])


def awkward(layout: str) -> Tensor:
    """A tensor that is not a plain block of memory."""
    x = 3 * torch.randn(4, 6, 5, 8, generator=torch.Generator().manual_seed(1))
    return {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(0, 2),
        "permuted": x.permute(3, 1, 0, 2),
        "sliced": x[:, 1::2, :, ::3],
        "narrowed": x[1:3, :, 2:],
        "expanded": x[:, :1].expand(-1, 7, -1, -1),
        "scalar": x[0, 0, 0, 0],
        "half": x.half(),
        "bfloat16": x.bfloat16(),
        "double": x.double(),
        "double_sliced": x.double()[..., ::2],
    }[layout]


DENSE = ["contiguous", "channels_last", "transposed", "permuted"]
LAYOUTS = [*DENSE, "sliced", "narrowed", "expanded", "scalar"]
LAYOUTS += ["half", "bfloat16", "double", "double_sliced"]


@pytest.mark.parametrize("zero_point", [0, 3, 100])
@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 3, 0.0235, 17.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_definition(dtype: torch.dtype, scale: float, zero_point: int) -> None:
    """Every code is what exact arithmetic gives, saturation included."""
    low, high = limits(dtype)
    x = values()
    expected = codes(x, scale, zero_point, low, high, fused=dtype != torch.int32)
    found = quantize(x, scale, zero_point, low, high, dtype)
    assert found.dtype == dtype
    assert found.tolist() == expected


def test_int32_range_ends() -> None:
    """Codes saturate at the ends of the range, which float32 cannot hold."""
    x = torch.tensor([1e20, -1e20, 0.0])
    low, high = limits(torch.int32)
    assert quantize(x, 1.0, 0, low, high, torch.int32).tolist() == [high, low, 0]
    inner = quantize(x, 1.0, 0, low + 99, high - 99, torch.int32)
    assert inner.tolist() == [high - 99, low + 99, 0]


def near_ties(count: int, scale: float, seed: int) -> Tensor:
    """Halves of a step as float32 has them, their neighbours, and normally distributed numbers."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-400, 400, (count,), generator=generator) + 0.5
    ties = (steps.double() * scale).float()
    inf = torch.full_like(ties, math.inf)
    normal = 80 * scale * torch.randn(count, generator=generator)
    choice = torch.randint(0, 4, (count,), generator=generator)
    return torch.stack(
        [ties, torch.nextafter(ties, inf), torch.nextafter(ties, -inf), normal]
    ).gather(0, choice[None])[0]


COUNTS = (*range(1, 40), 64, 127, 1001, 40_003)


@pytest.mark.parametrize("dtype", [*BYTES, torch.int32], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_as_pytorch(seed: int, dtype: torch.dtype) -> None:
    """The integers of torch.quantize_per_tensor, ties and rests of vectors too: over a million."""
    generator = np.random.default_rng(seed)
    scale = float(np.float32(2.0 ** generator.integers(-8, 3) if seed % 3 == 0
                             else 10 ** generator.uniform(-3, 1)))  # fmt: skip
    for i, count in enumerate(COUNTS):
        zero_point = int(generator.integers(0, 64)) * 2 + (i % 4 > 0)  # most of them odd
        x = near_ties(count, scale, seed + i)
        theirs = torch.quantize_per_tensor(x, scale, zero_point, QUANTIZED[dtype])
        ours = quantize(x, scale, zero_point, *limits(dtype), dtype)
        assert torch.equal(ours, theirs.int_repr())
        assert torch.equal(dequantize(ours, scale, zero_point), theirs.dequantize())


@pytest.mark.parametrize("dtype", [*BYTES, torch.int32], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_as_pytorch_per_channel(axis: int, dtype: torch.dtype) -> None:
    """The integers of torch.quantize_per_channel, ties and odd zero points too: two millions."""
    scales = torch.tensor([0.25, 0.0271, 1 / 3, 0.0282094423, 1.7, 0.1, 0.5], dtype=torch.float64)
    zero_points = torch.tensor([1, 3, 0, 117, 64, 5, 127])
    rows = [near_ties(100_003, scale, i) for i, scale in enumerate(scales.tolist())]
    x = torch.stack(rows).reshape(7, 1, -1).transpose(0, axis).contiguous()
    theirs = torch.quantize_per_channel(x, scales, zero_points, axis, QUANTIZED[dtype])
    ours = quantize_per_channel(x, scales, zero_points, axis, *limits(dtype), dtype)
    assert torch.equal(ours, theirs.int_repr())


def test_next_to_a_tie() -> None:
    """67.49999997 steps and a zero point of 139: the product alone rounds up to 67.5."""
    x = torch.tensor([1.9041372537612915])
    code = quantize(x, 0.028209442272782326, 139, 0, 255, torch.uint8).item()
    assert code == (68 + 139 if ROUNDS_STEPS else 206)


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.25])
def test_ties_go_to_even(dtype: torch.dtype, scale: float) -> None:
    """Numbers of steps that are halves, exactly, or codes that are, with the zero point."""
    x = (torch.arange(-400, 400) + 0.5) * scale
    low, high = limits(dtype)
    for zero_point in (0, 1, 64, 77):
        first, last = (0, zero_point) if ROUNDS_STEPS else (zero_point, 0)
        even = [round(v / scale + first) + last for v in x.tolist()]
        expected = [min(max(code, low), high) for code in even]
        assert quantize(x, scale, zero_point, low, high, dtype).tolist() == expected


@pytest.mark.parametrize("grid", [(0, 127), (-127, 127), (-8, 7), (3, 4), (0, 1)], ids=str)
def test_narrow_range(grid: tuple[int, int]) -> None:
    """Saturation at quant_min and quant_max, not at the type's ends."""
    x = values(3)
    found = quantize(x, 0.1, grid[0], *grid, torch.int8)
    assert (found.min(), found.max()) == grid
    assert found.tolist() == codes(x, 0.1, grid[0], *grid)


def test_infinities_saturate() -> None:
    """An infinity is a value beyond the range."""
    x = torch.tensor([math.inf, -math.inf])
    assert quantize(x, 0.1, 7, 0, 255, torch.uint8).tolist() == [255, 0]
    assert quantize(x, 0.1, 0, -127, 127, torch.int8).tolist() == [127, -127]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, dtype: torch.dtype) -> None:
    """Codes belong to their elements, whatever the memory looks like; it is kept when dense."""
    x = awkward(layout)
    before = x.clone()
    grid = (0 if dtype == torch.uint8 else -100, 100)
    found = quantize(x, 0.05, 2, *grid, dtype)
    assert found.shape == x.shape
    assert found.reshape(-1).tolist() == codes(x, 0.05, 2, *grid, dtype != torch.int32)
    assert torch.equal(x, before)
    back = dequantize(found, 0.05, 2)
    assert back.dtype == torch.float32
    expected = (found.double() - 2) * float(np.float32(0.05))
    assert torch.equal(back, expected.float())
    if layout in DENSE:
        assert found.stride() == back.stride() == x.stride()


@pytest.mark.parametrize("layout", ["sliced", "expanded", "transposed"])
def test_dequantize_layouts(layout: str) -> None:
    """Integers that are not a plain block of memory."""
    q = (awkward(layout) * 10).to(torch.int8)
    assert torch.equal(dequantize(q, 0.5, 3), (q.float() - 3) * 0.5)
    q = (awkward("contiguous") * 10).to(torch.int16)
    view = {"sliced": q[:, ::2], "expanded": q[:1].expand(3, -1, -1, -1), "transposed": q.mT}
    assert torch.equal(dequantize(view[layout], 0.5, 3), (view[layout].float() - 3) * 0.5)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (0, 4)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    """No elements, the right shape and type."""
    q = quantize(torch.zeros(shape), 0.1, 0, 0, 255, torch.uint8)
    assert (q.shape, q.dtype) == (shape, torch.uint8)
    x = dequantize(q, 0.1, 0)
    assert (x.shape, x.dtype) == (shape, torch.float32)


def test_many_elements() -> None:
    """Enough for several threads and an odd rest."""
    x = 4 * torch.randn(300_007, generator=torch.Generator().manual_seed(4))
    ours = quantize(x, 0.031, 128, 0, 255, torch.uint8)
    theirs = torch.quantize_per_tensor(x, 0.031, 128, torch.quint8)
    assert torch.equal(ours, theirs.int_repr())
    assert torch.equal(dequantize(theirs.int_repr(), 0.031, 128), theirs.dequantize())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype: torch.dtype) -> None:
    """Codes survive going to float and back."""
    low, high = (-(2**15), 2**15) if dtype == torch.int32 else limits(dtype)
    q = torch.arange(low, high + 1).to(dtype)
    for scale in (0.1, 1 / 3, 0.0007):
        back = quantize(dequantize(q, scale, 5), scale, 5, low, high, dtype)
        assert torch.equal(back, q)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced", "expanded", "half"])
@pytest.mark.parametrize("axis", [0, 1, 3])
@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_per_channel(dtype: torch.dtype, axis: int, layout: str) -> None:
    """Each channel by the definition, and what PyTorch gives for all."""
    x = awkward(layout)
    channels = x.size(axis)
    scales = torch.linspace(0.01, 0.2, channels, dtype=torch.float64)
    zero_points = torch.arange(channels) + (dtype == torch.uint8) * 100
    low, high = limits(dtype)
    found = quantize_per_channel(x, scales, zero_points, axis, low, high, dtype)
    back = dequantize_per_channel(found, scales, zero_points, axis)
    assert (found.dtype, back.dtype, found.shape) == (dtype, torch.float32, x.shape)
    for i in range(channels):
        scale, zero_point = scales[i].item(), int(zero_points[i])
        row = x.select(axis, i)
        alone = found.select(axis, i)
        assert alone.reshape(-1).tolist() == codes(row, scale, zero_point, low, high, fused=False)
        assert torch.equal(back.select(axis, i), dequantize(alone, scale, zero_point))
    theirs = torch.quantize_per_channel(
        x.float().contiguous(), scales, zero_points, axis, QUANTIZED[dtype]
    )
    assert torch.equal(found, theirs.int_repr())
    back = dequantize_per_channel(theirs.int_repr(), scales, zero_points, axis)
    assert torch.allclose(back, theirs.dequantize(), rtol=1e-6, atol=0)


def test_per_channel_bias() -> None:
    """int32 codes with a scale for each element, as biases are stored."""
    bias = torch.tensor([0.5, -1e3, 4e-5])
    scales = torch.tensor([1e-4, 1e-3, 2e-5])
    zeros = torch.zeros(3, dtype=torch.int64)
    low, high = limits(torch.int32)
    q = quantize_per_channel(bias, scales, zeros, 0, low, high, torch.int32)
    assert q.tolist() == [round(b / s) for b, s in zip(bias.tolist(), scales.tolist(), strict=True)]
    assert (dequantize_per_channel(q, scales, zeros, 0) - bias).abs().le(scales / 2 + 1e-4).all()


X = torch.ones(2, 3)
SCALES, ZEROS = torch.ones(3), torch.zeros(3, dtype=torch.int64)
BAD = {
    "zero_scale": (quantize, (X, 0.0, 0, 0, 255, torch.uint8), "above 0, got 0"),
    "negative_scale": (quantize, (X, -0.5, 0, 0, 255, torch.uint8), "above 0, got -0.5"),
    "nan_scale": (quantize, (X, math.nan, 0, 0, 255, torch.uint8), "finite and above 0"),
    "infinite_scale": (quantize, (X, math.inf, 0, 0, 255, torch.uint8), "finite and above 0"),
    "too_large": (quantize, (X, 1.0, 0, 0, 256, torch.uint8), r"range \[0, 256\] does not fit"),
    "too_small": (quantize, (X, 1.0, 0, -1, 9, torch.uint8), r"range \[-1, 9\] does not fit"),
    "empty_range": (quantize, (X, 1.0, 0, 5, 5, torch.int8), r"range \[5, 5\]"),
    "backwards": (quantize, (X, 1.0, 0, 7, -7, torch.int8), r"range \[7, -7\]"),
    "to_float": (quantize, (X, 1.0, 0, 0, 9, torch.float32), "int16 or int32, not"),
    "to_int64": (quantize, (X, 1.0, 0, 0, 9, torch.int64), "int16 or int32, not"),
    "integers": (quantize, (X.int(), 1.0, 0, 0, 9, torch.uint8), "floating-point.*got Int"),
    "from_float": (dequantize, (X, 1.0, 0), "int16 or int32, not Float"),
    "from_int64": (dequantize, (X.long(), 1.0, 0), "int16 or int32, not Long"),
    "channels": (
        quantize_per_channel, (X, SCALES[:2], ZEROS[:2], 1, 0, 9, torch.uint8), "3 channels, got 2"
    ),
    "zero_points": (
        quantize_per_channel, (X, SCALES, ZEROS[:1], 1, 0, 9, torch.uint8), "got 3 and 1"
    ),
    "axis": (quantize_per_channel, (X, SCALES, ZEROS, 2, 0, 9, torch.uint8), "axis 2 .* 2 dim"),
    "axis_below": (quantize_per_channel, (X, SCALES, ZEROS, -9, 0, 9, torch.uint8), "outside of"),
    "channel_range": (
        quantize_per_channel, (X, SCALES, ZEROS, 1, 0, 300, torch.uint8), r"\[0, 300\]"
    ),
    "channel_scale": (
        quantize_per_channel, (X, 0 * SCALES, ZEROS, 1, 0, 9, torch.uint8), "above 0"
    ),
    "channel_integers": (
        quantize_per_channel, (X.int(), SCALES, ZEROS, 1, 0, 9, torch.uint8), "floating-point"
    ),
    "back_axis": (dequantize_per_channel, (X.char(), SCALES, ZEROS, 5), "axis 5"),
    "back_channels": (dequantize_per_channel, (X.char(), SCALES, ZEROS, 0), "2 channels, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    """The message has the number or the type that was wrong."""
    operator, arguments, message = BAD[name]
    with pytest.raises(RuntimeError, match=message):
        operator(*arguments)
