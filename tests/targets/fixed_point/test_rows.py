"""Products of matrices, softmax and layer norm of `fixed_point`, on Python's integers."""

from __future__ import annotations

import math
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning
from jit_passes.export.c.program import Buffer, Call, Program, Struct
from jit_passes.export.c.reading import read_program
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS
from tests.export.c.test_c import FLAGS, check
from tests.export.test_vectors import check as check_vectors
from tests.integer_oracle import multiplier_of, rounded
from tests.published_forms import quantize_multiplier, twice
from tests.targets.fixed_point import test_fixed_point as images
from tests.targets.fixed_point.test_fixed_point import Watch

ARM = shutil.which("arm-none-eabi-gcc")
Array = np.ndarray[Any, Any]
KERNELS = ("matmul", "softmax", "group_norm")
FORMS = [("multiplier", rounding) for rounding in (*ROUNDINGS, "double_round")]
FORMS.append(("shift", "half_even"))


class Block(nn.Module):
    """A transformer's block; the mean of a row of its norm is not that of its neighbour."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.last, self.other = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).unflatten(-1, [3, 2, 8]).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.last(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.other(x))))


class Matrices(nn.Module):
    """Products that broadcast, of batches and of vectors; softmax of an axis inside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm([5, 16], elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        scores = torch.softmax(torch.bmm(a.transpose(1, 2), b), 1)
        y = torch.matmul(a.unsqueeze(0), scores.unsqueeze(1))
        z = torch.matmul(self.norm(y), torch.relu(b)[0, 0])
        return torch.matmul(z[0, 0], torch.relu(a))


def data(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, 5, 16, generator=generator) * 2 for _ in range(count)]


def models(module: type[nn.Module], target: Any, **options: Any) -> Any:
    """Return the reference model and the lowered one."""
    script = torch.jit.script(network(module))
    prepared = jit_passes.prepare(script, target=target, **options)
    jit_passes.calibrate(prepared, data())
    reference = jit_passes.convert(prepared)
    return reference, jit_passes.lower(reference)


def network(module: type[nn.Module]) -> nn.Module:
    """Return a network, whose norms have weights of both signs."""
    torch.manual_seed(0)
    made = module().eval()
    for norm in (part for part in made.modules() if isinstance(part, nn.LayerNorm)):
        if norm.weight is not None:
            nn.init.uniform_(norm.weight, -1, 2)
            nn.init.uniform_(norm.bias, -1, 1)
    return made


class Codes:
    """The codes of operands and result of a call, and how the target rounds."""

    def __init__(self, program: Program, call: Call, target: FixedPoint) -> None:
        self.program, self.given, self.target = program, dict(call.arguments), target
        self.x, self.y, r = call.reads[0], call.writes, self.given["r"]
        assert isinstance(r, Struct)
        self.low, self.high = r.values["low"], r.values["high"]
        self.result = self.of(self.y)

    def of(self, buffer: Buffer) -> Array:
        return self.program.codes[buffer].numpy().astype(np.int64)

    def steps(self, buffer: Buffer) -> Array:
        """The codes as whole steps from 0."""
        return self.of(buffer) - buffer.zero_point

    def code(self, numerator: int, divisor: int) -> int:
        rounding = self.target.rounding
        rounding = "half_away" if rounding == "double_round" else rounding
        return self.saturated(rounded(numerator, divisor, rounding))

    def product(self, number: int, ratio: float) -> int:
        if self.target.rounding == "double_round":
            return self.saturated(twice(number, *quantize_multiplier(ratio)))
        multiplier, shift = multiplier_of(ratio)
        return self.code(number * multiplier, 1 << shift)

    def saturated(self, steps: int) -> int:
        return min(max(steps + self.y.zero_point, self.low), self.high)


def calls_of(module: type[nn.Module], target: FixedPoint) -> list[tuple[str, Codes]]:
    _, lowered = models(module, target)
    program, _, _ = read_program(lowered, (data(1)[0],), "forward")
    calls = [call for call in program.calls if call.kernel in KERNELS]
    return [(call.kernel, Codes(program, call, target)) for call in calls]


def check_product(codes: Codes) -> None:
    a, b = codes.given["a"], codes.given["b"]
    rows, inner, columns = (codes.given[name] for name in ("rows", "inner", "columns"))
    left = codes.steps(a).reshape(-1, rows, inner)
    right = codes.steps(b).reshape(-1, inner, columns)
    sizes = codes.result.size // (rows * columns)
    # The batches of one operand lie in front of those of the other, or both are the same.
    pairs = [
        (n % len(left), n // len(left))
        if len(left) * len(right) == sizes
        else (n % len(left), n % len(right))
        for n in range(sizes)
    ]
    ratio = a.scale * b.scale / codes.y.scale
    sums = np.stack([left[i] @ right[j] for i, j in pairs])
    expected = [codes.product(int(n), ratio) for n in sums.flatten()]
    assert expected == codes.result.flatten().tolist()


def exponential(distance: int, x: Buffer) -> int:
    """exp(-distance * scale) * 2^20, of codes of 16 bits as a product of two numbers."""
    if x.dtype != torch.int16:
        return round(Fraction(math.exp(-distance * x.scale)) * 2**20)
    parts = [distance // 256 * 256, distance % 256]
    first, last = (round(Fraction(math.exp(-part * x.scale)) * 2**30) for part in parts)
    return (first * last + 2**39) // 2**40


def check_softmax(codes: Codes, axis: int) -> None:
    """The equation, and how far it is from real numbers."""
    x, scale = codes.x, codes.y.scale
    rows = np.moveaxis(codes.steps(x), axis, -1).reshape(-1, codes.result.shape[axis])
    found = np.moveaxis(codes.result, axis, -1).reshape(rows.shape)
    multiplier, shift = multiplier_of(1 / scale, 24)
    for row, results in zip(rows.tolist(), found.tolist(), strict=True):
        table = [exponential(max(row) - n, x) for n in row]
        total = sum(table) << shift
        assert [codes.code(e * multiplier, total) for e in table] == results
        real = torch.softmax(torch.tensor(row, dtype=torch.float64) * x.scale, 0)
        error = (1.002 + real * (len(row) + 1.002)) / 2**21 / (1 - len(row) / 2**21) + real / 2**24
        half = 1 if codes.target.rounding == "truncate" else 0.5
        steps = torch.tensor(results) - codes.y.zero_point
        assert bool(((steps - real / scale).abs() <= half + error / scale).all())


def check_layer_norm(codes: Codes, norm: nn.LayerNorm) -> None:
    x, scale, count = codes.x, codes.y.scale, math.prod(norm.normalized_shape)
    weight = torch.ones(count) if norm.weight is None else norm.weight.detach()
    bias = torch.zeros(count) if norm.bias is None else norm.bias.detach()
    gains, offsets = (numbers.double() / scale for numbers in (weight, bias))
    epsilon = norm.eps * count**2 / x.scale**2
    largest = count**2 * 255**2 + int(epsilon) + 1
    room = 31 - int(gains.abs().max()).bit_length()
    bits = (62 - largest.bit_length()) // 2
    bits = min(bits, 30 - (count * 255).bit_length() + room - 16)
    lift = max(bits + 16 - room, 0)
    g = [round(Fraction(gain) * 2 ** (bits + 16 - lift)) for gain in gains.tolist()]
    b = [round(Fraction(offset) * 2**16) for offset in offsets.tolist()]
    rows, found = codes.steps(x).reshape(-1, count), codes.result.reshape(-1, count)
    for row, results in zip(rows.tolist(), found.tolist(), strict=True):
        spread = count * sum(n * n for n in row) - sum(row) ** 2
        u = 4**bits * spread + max(round(epsilon * 4**bits), 1)
        root = math.isqrt(u)
        assert u < 2**62 and max(map(abs, (*g, *b))) < 2**31
        centred = [(count * n - sum(row)) << lift for n in row]
        numerators = [n * g[i] + root * b[i] for i, n in enumerate(centred)]
        assert max(map(abs, numerators)) < 2**63
        assert [codes.code(n, root << 16) for n in numerators] == results
        numbers = torch.tensor(row, dtype=torch.float64) * x.scale
        real = F.layer_norm(numbers, [count], None, None, norm.eps) * gains
        error = 2.0**-17 + count**0.5 / 2 ** (bits + 17 - lift) + real.abs() * (1 / root + 1 / u)
        half = 1 if codes.target.rounding == "truncate" else 0.5
        steps, exact = torch.tensor(results) - codes.y.zero_point, real + offsets
        inside = (exact + codes.y.zero_point > codes.low) & (
            exact + codes.y.zero_point < codes.high
        )
        assert bool(((steps - exact).abs() <= half + error + 1e-9)[inside].all())
        assert bool(inside.any())


@pytest.mark.parametrize(("requantization", "rounding"), FORMS)
def test_equals_integers(requantization: str, rounding: str) -> None:
    target = FixedPoint(requantization, rounding)
    for module, axis, kernels in (
        (Block, -1, ["group_norm", "matmul", "softmax", "matmul", "group_norm"]),
        (Matrices, 1, ["matmul", "softmax", "matmul", "group_norm", "matmul", "matmul"]),
    ):
        found = calls_of(module, target)
        assert [kernel for kernel, _ in found] == kernels
        norms = (part for part in network(module).modules() if isinstance(part, nn.LayerNorm))
        for kernel, codes in found:
            assert len(np.unique(codes.result)) > 4
            if kernel == "matmul":
                check_product(codes)
            elif kernel == "softmax":
                check_softmax(codes, axis)
            else:
                check_layer_norm(codes, next(norms))


@pytest.mark.parametrize("module", [Block, Matrices])
def test_gcc_gives_the_codes(module: type[nn.Module], tmp_path: Path) -> None:
    _, lowered = models(module, FixedPoint())
    first, *others = data(2)
    jit_passes.export_c(lowered, tmp_path, first, others)
    check(tmp_path, lowered(first).numel(), 2)


@pytest.mark.skipif(ARM is None, reason="it needs arm-none-eabi-gcc, of gcc-arm-none-eabi")
def test_compiles_for_cortex_m4(tmp_path: Path) -> None:
    """int32_t is a long there, and 64 bits take two registers."""
    assert ARM is not None
    wide = FixedPoint(accumulator_bits=48)
    for (_, lowered), x in (
        (models(Block, FixedPoint()), data(1)[0]),
        (images.models(images.Everything, wide), images.data(1)[0]),
    ):
        jit_passes.export_c(lowered, tmp_path, x)
        command = [ARM, *FLAGS, "-ffreestanding", "-mcpu=cortex-m4", "-mthumb", "-c", "model.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]


def test_attention_is_integers_alone() -> None:
    """Floats are quantized first, and the last codes become floats. Nothing else does."""
    reference, lowered = models(Block, FixedPoint("shift"))
    x = data(1)[0]
    with Watch() as watch:
        lowered(x)
    assert watch.found == ["mul", "nan_to_num", "round", "clamp", "_to_copy", "mul"]
    found, expected = lowered(x), reference(x)
    assert float((found != expected).double().mean()) < 0.02  # a tie of softmax or layer norm


def test_rows_of_one_number_and_of_equal_ones() -> None:
    """The variance is 0, and the root that of eps."""
    _, lowered = models(Block, FixedPoint())
    found = lowered(torch.full((2, 5, 16), 0.5))
    assert bool(found.isfinite().all()) and len(found.unique()) > 4


def test_vectors(tmp_path: Path) -> None:
    _, lowered = models(Block, FixedPoint())
    jit_passes.export_vectors(lowered, data(2), tmp_path)
    assert {"matmul", "softmax", "group_norm"} <= set(check_vectors(tmp_path))


WIDE = {
    "version": 1,
    "global": {name: {"bits": 16, "signed": True} for name in ("input", "output")},
}
SMALL = {
    "version": 1,
    "rules": [{"module": "a", "input": {"bits": 4}, "weight": {"bits": 4}}],
}


def test_sums_that_overflow_before_data() -> None:
    """The width of a head follows from weights and options, and codes of both have 8 bits."""
    script = torch.jit.script(network(Block))
    rows = jit_passes.inspect(script, target=FixedPoint(accumulator_bits=16))
    first = next(row for row in rows if row.name == "matmul")
    # Affine codes: the zero points of the fewest bits are those in the middle.
    assert f"its sums may reach [{-128 * 127 * 8}, {128 * 128 * 8}]" in first.reason
    assert "takes 19 bits, and the accumulator has 16: take accumulator_bits=24" in first.reason
    wide = jit_passes.inspect(script, target=FixedPoint(accumulator_bits=24))
    assert all("accumulator" not in row.reason for row in wide)


def test_sums_that_overflow_with_their_zero_points() -> None:
    """With zero points in the middle 24 bits would hold them, which relu has not."""
    target = FixedPoint(accumulator_bits=24)
    rows = jit_passes.inspect(torch.jit.script(network(Positive)), target=target)
    assert all("accumulator" not in row.reason for row in rows)
    reach = f"its sums may reach .0, {200 * 255 * 255}., which takes 25 bits"
    with pytest.warns(JitPassesWarning, match=rf"'matmul' \({reach}"):
        models(Positive, target)


class Positive(nn.Module):
    """Sums of 200 products of numbers that are not below 0."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 200)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        return torch.matmul(y, y.transpose(1, 2))


def test_sums_that_overflow(tmp_path: Path) -> None:
    """Of inputs' sizes the target knows nothing: it checks a product, and the program the sum."""
    with pytest.warns(JitPassesWarning, match=r"'bmm' \(its sums may reach .* takes 17 bits"):
        models(Long, FixedPoint(accumulator_bits=16), config=SMALL)
    _, lowered = models(Long, FixedPoint(accumulator_bits=24))
    with pytest.raises(JitPassesError, match=r"'bmm' .*: its sums may reach .* takes 26 bits"):
        jit_passes.export_c(lowered, tmp_path, data(1)[0])
    assert not any(tmp_path.iterdir())


class Long(nn.Module):
    """Sums of 320 products."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x)).reshape(1, 1, -1).expand(1, 2, -1).flatten(1).unsqueeze(1)
        return torch.bmm(y, y.transpose(1, 2))


@pytest.mark.parametrize("rounding", ["half_even", "truncate"])
def test_softmax_of_16_bits(rounding: str, tmp_path: Path) -> None:
    """Its exponentials are products of two."""
    target = FixedPoint(rounding=rounding, accumulator_bits=48)
    module = Scores if rounding == "truncate" else Matrices
    _, lowered = models(module, target, config=WIDE)
    x = data(1)[0]
    program, _, _ = read_program(lowered, (x,), "forward")
    (call,) = (call for call in program.calls if call.kernel == "softmax")
    codes = Codes(program, call, target)
    assert codes.x.dtype == torch.int16 and len(np.unique(codes.result)) > 50
    check_softmax(codes, -1 if module is Scores else 1)
    if module is Scores:
        jit_passes.export_c(lowered, tmp_path, x)
        check(tmp_path, lowered(x).numel())


class Scores(nn.Module):
    """Softmax behind a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.a(x) * 4, -1)


def test_refusals() -> None:
    with pytest.warns(JitPassesWarning, match="'matmul' .one of its operands is a constant"):
        models(Fixed, FixedPoint())


class Fixed(nn.Module):
    """A product with a constant on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("mixing", torch.randn(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.matmul(self.mixing, self.a(x)))
