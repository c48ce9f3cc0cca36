"""Norms of `fixed_point` but layer norm, on Python's integers and against real numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError
from jit_passes.export.c.reading import read_program
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS
from tests.advice import traced_branches
from tests.export.c.test_c import check
from tests.export.test_vectors import check as check_vectors
from tests.targets.fixed_point.test_fixed_point import ROUNDED, Watch
from tests.targets.fixed_point.test_rows import Codes, data

WIDTH = 16


class Norm(nn.Module):
    """PyTorch's norm of rows, between linears."""

    shape: tuple[int, ...] = (WIDTH,)

    def __init__(self, eps: float | None = 0.5) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.norm = nn.RMSNorm(self.shape, eps)
        nn.init.uniform_(self.norm.weight, -1, 2)

    def normalized(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.normalized(self.a(x)))
        return y


class Spelled(Norm):
    """As most language models spell it out."""

    def normalized(self, x: Tensor) -> Tensor:
        return self.norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.norm.eps))


class Planes(Norm):
    """Rows of two axes."""

    shape = (5, WIDTH)


def models(module: nn.Module, target: FixedPoint) -> Any:
    """Return the traced network and the lowered one."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    traced = torch.jit.trace(module.eval(), data(1)[0])
    prepared = jit_passes.prepare(traced, target=target)
    jit_passes.calibrate(prepared, data())
    return traced, jit_passes.lower(jit_passes.convert(prepared))


def check_norm(lowered: Any, norm: nn.RMSNorm, target: FixedPoint) -> None:
    """Compare with the equation in whole numbers, and with real numbers within the stated bound."""
    program, _, _ = read_program(lowered, (data(1)[0],), "forward")
    (call,) = (call for call in program.calls if call.kernel == "rms_norm")
    codes = Codes(program, call, target)
    count, x, scale = math.prod(norm.normalized_shape), codes.x, codes.y.scale
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    gains = norm.weight.detach().double().flatten() / scale
    limits = torch.iinfo(x.dtype)
    span = max(limits.max - x.zero_point, x.zero_point - limits.min)
    epsilon = eps * count**2 / x.scale**2
    room = 31 - int(gains.abs().max()).bit_length()
    bits = (62 - (count**2 * span**2 + int(epsilon) + 1).bit_length()) // 2
    bits = min(bits, 30 - (count * span).bit_length() + room - 16)
    lift = max(bits + 16 - room, 0)
    g = [round(Fraction(gain) * 2 ** (bits + 16 - lift)) for gain in gains.tolist()]
    rows, found = codes.steps(x).reshape(-1, count), codes.result.reshape(-1, count)
    inside = 0
    for row, results in zip(rows.tolist(), found.tolist(), strict=True):
        u = 4**bits * count * sum(n * n for n in row) + max(round(epsilon * 4**bits), 1)
        root = math.isqrt(u)
        numerators = [((count * n) << lift) * gain for n, gain in zip(row, g, strict=True)]
        assert u < 2**62 and max(map(abs, g)) < 2**31 and max(map(abs, numerators)) < 2**63
        assert [codes.code(n, root << 16) for n in numerators] == results
        numbers = torch.tensor(row, dtype=torch.float64) * x.scale
        real = numbers / (numbers.square().mean() + eps).sqrt() * gains
        error = 2.0**-17 + count**0.5 / 2 ** (bits + 17 - lift) + real.abs() * (1 / root + 1 / u)
        half = 1 if target.rounding == "truncate" else 0.5
        for number, step, bound in zip(results, real.tolist(), error.tolist(), strict=True):
            if codes.low < number < codes.high:
                assert abs(number - codes.y.zero_point - step) <= half + bound + 1e-9
                inside += 1
    assert inside > 40 and len(set(found.flatten().tolist())) > 8


@pytest.mark.parametrize("rounding", [*ROUNDINGS, "double_round"])
def test_equals_integers(rounding: str) -> None:
    target = FixedPoint(rounding=rounding)
    for module in (Norm(), Spelled(), Planes(None)):
        traced, lowered = models(module, target)
        check_norm(lowered, module.norm, target)
        x = data(1)[0]
        with Watch() as watch:
            found = lowered(x)
        floats = {"_to_copy", "mul", "nan_to_num", "add", "clamp", "sub", *ROUNDED[rounding]}
        assert set(watch.found) <= floats and len(watch.found) <= 9 + len(ROUNDED[rounding])
        assert float((found - traced(x)).detach().abs().max()) < 0.15


def test_gcc_gives_the_codes(tmp_path: Path) -> None:
    _, lowered = models(Norm(None), FixedPoint("shift"))
    first, *others = data(2)
    jit_passes.export_c(lowered, tmp_path, first, others)
    check(tmp_path, lowered(first).numel(), 2)
    jit_passes.export_vectors(lowered, [first], tmp_path / "vectors")
    assert "rms_norm" in check_vectors(tmp_path / "vectors")


class Groups(nn.Module):
    """A norm of groups of channels, or of single ones, behind a convolution."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 4, 1)
        if norm.weight is not None:
            nn.init.uniform_(norm.weight, -1, 2)
            nn.init.uniform_(norm.bias, -1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(torch.relu(self.norm(self.a(x))))
        return y


NORMS = {
    "groups": lambda: nn.GroupNorm(2, 8),
    "all": lambda: nn.GroupNorm(1, 8, eps=0.5, affine=False),
    "channels": lambda: nn.InstanceNorm2d(8, affine=True),
    "channels alone": lambda: nn.InstanceNorm2d(8),
}


def check_groups(lowered: Any, norm: Any, x: Tensor, target: FixedPoint) -> None:
    """Compare with the equation in whole numbers, and with PyTorch in double precision."""
    program, _, _ = read_program(lowered, (x,), "forward")
    (call,) = (call for call in program.calls if call.kernel == "group_norm")
    codes = Codes(program, call, target)
    found, steps, scale = codes.result, codes.steps(codes.x), codes.y.scale
    groups = norm.num_groups if isinstance(norm, nn.GroupNorm) else norm.num_features
    ones = torch.ones(8, dtype=torch.float64)
    gains, offsets = (
        (fill * ones if given is None else given.detach().double()) / scale
        for given, fill in ((norm.weight, 1), (norm.bias, 0))
    )
    ratio = norm.eps / codes.x.scale**2
    room = 31 - int(gains.abs().max()).bit_length()
    bits = (62 - (2**32 * 255**2 + int(ratio * 2**32) + 1).bit_length()) // 2
    bits = min(bits, 30 - (2**16 * 255).bit_length() + room - 16)
    lift = max(bits + 16 - room, 0)
    g = [round(Fraction(gain) * 2 ** (bits + 16 - lift)) for gain in gains.tolist()]
    b = [round(Fraction(offset) * 2**16) for offset in offsets.tolist()]
    shift = min(30 - math.frexp(ratio * 4**bits)[1], 62)
    e, size = round(Fraction(ratio * 4**bits) * 2**shift), 8 // groups
    for sample, results in zip(steps, found, strict=True):
        for group in range(groups):
            own = range(group * size, (group + 1) * size)
            row = [(c, n) for c in own for n in sample[c].flatten().tolist()]
            expected = [n for c in own for n in results[c].flatten().tolist()]
            count, total = len(row), sum(n for _, n in row)
            spread = count * sum(n * n for _, n in row) - total**2
            u = 4**bits * spread + (count**2 * e >> shift) + 1
            root = math.isqrt(u)
            numerators = [((count * n - total) << lift) * g[c] + root * b[c] for c, n in row]
            assert u < 2**62 and max(map(abs, numerators)) < 2**63
            assert [codes.code(n, root << 16) for n in numerators] == expected
    real = torch.from_numpy(steps).double() * codes.x.scale
    exact = F.group_norm(real, groups, gains, offsets, norm.eps) + codes.y.zero_point
    inside = (exact > codes.low) & (exact < codes.high)
    half = 1 if target.rounding == "truncate" else 0.5
    assert float((torch.from_numpy(found) - exact)[inside].abs().max()) <= half + 1e-3
    assert int(inside.sum()) > 100


def images(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 7, 6, generator=generator) for _ in range(count)]


def lowered_groups(norm: nn.Module, target: FixedPoint) -> Any:
    torch.manual_seed(0)
    traced = torch.jit.trace(Groups(norm).eval(), images(1)[0])
    prepared = jit_passes.prepare(traced, target=target)
    jit_passes.calibrate(prepared, images())
    return jit_passes.lower(jit_passes.convert(prepared))


@traced_branches
@pytest.mark.parametrize("rounding", [*ROUNDINGS, "double_round"])
@pytest.mark.parametrize("name", NORMS)
def test_groups_equal_integers(name: str, rounding: str) -> None:
    norm, target = NORMS[name](), FixedPoint(rounding=rounding)
    check_groups(lowered_groups(norm, target), norm, images(1)[0], target)


@traced_branches
@pytest.mark.parametrize("name", ["groups", "channels alone"])
def test_gcc_gives_the_codes_of_groups(name: str, tmp_path: Path) -> None:
    lowered = lowered_groups(NORMS[name](), FixedPoint(rounding="double_round"))
    first, *others = images(2)
    jit_passes.export_c(lowered, tmp_path, first, others)
    check(tmp_path, lowered(first).numel(), 2)
    with pytest.raises(JitPassesError, match="numbers, and 64 bits hold only groups of 65536"):
        jit_passes.export_c(lowered, tmp_path / "large", torch.randn(1, 3, 266, 266))
    assert not (tmp_path / "large").exists()


@traced_branches
def test_refusals() -> None:
    module = Norm().eval()
    with torch.no_grad():
        module.norm.weight[3] = math.inf
    told = str(jit_passes.inspect(torch.jit.trace(module, data(1)[0]), target="fixed_point"))
    assert "its weight or bias holds a NaN or an infinity" in told
    running = Groups(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)).eval()
    told = str(jit_passes.inspect(torch.jit.trace(running, images(1)[0]), target="fixed_point"))
    assert "it takes running statistics" in told
