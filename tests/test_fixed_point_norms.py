"""Root-mean-square norms of `fixed_point`, on Python's integers and against real numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.export.c.reading import read_program
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS
from tests.test_export_c import check
from tests.test_export_vectors import check as check_vectors
from tests.test_fixed_point import Watch
from tests.test_fixed_point_rows import Codes, data

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


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_equals_integers(rounding: str) -> None:
    target = FixedPoint(rounding=rounding)
    for module in (Norm(), Spelled(), Planes(None)):
        traced, lowered = models(module, target)
        check_norm(lowered, module.norm, target)
        x = data(1)[0]
        with Watch() as watch:
            found = lowered(x)
        floats = {"_to_copy", "mul", "nan_to_num", "add", "round", "clamp", "sub"}
        assert set(watch.found) <= floats and len(watch.found) <= 10
        assert float((found - traced(x)).detach().abs().max()) < 0.15


def test_gcc_gives_the_codes(tmp_path: Path) -> None:
    _, lowered = models(Norm(None), FixedPoint("shift"))
    first, *others = data(2)
    jit_passes.export_c(lowered, tmp_path, first, others)
    check(tmp_path, lowered(first).numel(), 2)
    jit_passes.export_vectors(lowered, [first], tmp_path / "vectors")
    assert "rms_norm" in check_vectors(tmp_path / "vectors")


def test_refusal() -> None:
    module = Norm().eval()
    with torch.no_grad():
        module.norm.weight[3] = math.inf
    told = str(jit_passes.inspect(torch.jit.trace(module, data(1)[0]), target="fixed_point"))
    assert "its weight or bias holds a NaN or an infinity" in told
