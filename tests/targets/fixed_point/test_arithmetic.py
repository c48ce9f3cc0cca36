"""The integer arithmetic of the target `fixed_point`, against Python's integers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from math import isqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jit_passes import GraphEditor, JitPassesError, Pipeline
from jit_passes.export.c.rounding import arithmetic
from jit_passes.export.c.structs import RESCALING
from jit_passes.targets.fixed_point.arithmetic import Arithmetic
from jit_passes.targets.fixed_point.borders import lower_to_codes, lower_to_floats
from jit_passes.targets.fixed_point.codes import RefusedError
from jit_passes.targets.fixed_point.rescale import ROUNDINGS, Rescale, common_rescale, rescale_of
from tests.integer_oracle import multiplier_of, rounded
from tests.published_forms import (
    apply_scale_16,
    apply_scale_32,
    once,
    quantize_multiplier,
    tosa_multiplier,
    twice,
)


class Identity(nn.Module):
    """A graph for operators to be put into."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def computing(insert: Callable[[Arithmetic, Any], Any], rounding: str) -> torch.jit.ScriptModule:
    """Return a module that computes what a function inserts."""

    def replace_relu(graph: GraphEditor) -> None:
        (node,) = (node for node in graph.nodes if node.kind == "aten::relu")
        made = insert(Arithmetic(graph, node, node, rounding), node.main_operand)
        graph.replace(node.output, made)

    module: torch.jit.ScriptModule
    module = Pipeline("computing", (replace_relu,)).run(torch.jit.script(Identity())).module
    return module


def sums(channels: int, count: int = 2000) -> Tensor:
    """Return numbers of 32 bits, large and small ones, the ends among them."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(1, 32, (count, channels), generator=generator)
    numbers = (torch.rand(count, channels, generator=generator) * 2**bits).long()
    numbers[0], numbers[1], numbers[2] = -(2**31), 2**31 - 1, 0
    sign = 1 - 2 * torch.randint(0, 2, (count, channels), generator=generator)
    return torch.cat([numbers[:3], numbers[3:] * sign[3:]])


# Multipliers and shifts: many ties with small shifts, none, and the largest.
RESCALES = [
    Rescale((1, 1, 3, 5), (1, 2, 3, 0)),
    Rescale((2**31 - 1, 2**30, 2**30 + 1, 12345), (31, 31, 40, 62)),
    Rescale((1,), (4,)),
    Rescale((3,), (0,)),
]


@pytest.mark.parametrize("rescale", RESCALES, ids=str)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rescaled(rounding: str, rescale: Rescale) -> None:
    module = computing(lambda math, x: math.rescaled(x, rescale, (-1,)), rounding)
    x = sums(4)
    found = module(x)
    pairs = [pair * (4 // len(pair)) for pair in (rescale.multipliers, rescale.shifts)]
    expected = [
        [rounded(n * m, 1 << s, rounding) for n, m, s in zip(row, *pairs, strict=True)]
        for row in x.tolist()
    ]
    assert found.tolist() == expected


def ratios() -> list[float]:
    """Return ratios whose multipliers are short, so that there are ties, and long ones."""
    generator = torch.Generator().manual_seed(1)
    found = [2.0**-n for n in (2, 5, 8, 9, 24, 30, 31, 32)] + [
        0.75,
        3 / 8,
        5 * 2.0**-9,
        1 - 2**-40,
        20.0,
    ]
    exponents = torch.randint(-40, 1, (30,), generator=generator).tolist()
    halves = torch.rand(30, generator=generator, dtype=torch.float64).tolist()
    return found + [(1 + half) / 2 * 2.0**n for half, n in zip(halves, exponents, strict=True)]


def numbers_at_ties(ratio: float, count: int = 300) -> list[int]:
    """Return sums of 32 bits, the ends and ones whose products lie next to ties among them.

    With a ratio above 1 the sums are those that TFLite can shift to the left.
    """
    end = 2**31 >> max(quantize_multiplier(ratio)[1], 0)
    ends = [-end, end - 1, 0, 1, -1, end // 2, -end // 2]
    near = [round((k + 0.5) / ratio) + d for k in range(-12, 12) for d in (-1, 0, 1)]
    drawn = sums(1, count).flatten().tolist()
    return [n for n in ends + near + drawn if -end <= n < end]


def test_double_rounding_is_that_of_gemmlowp_and_of_tosa() -> None:
    """Both are one function: of all sums, ties and ends among them, whatever the ratio."""
    apart = 0
    for ratio in ratios():
        rescale = rescale_of([ratio], 31, False)
        module = computing(lambda math, x, r=rescale: math.rescaled(x, r, (-1,)), "double_round")
        x = numbers_at_ties(ratio)
        found = module(torch.tensor(x)).tolist()
        assert found == [twice(n, *quantize_multiplier(ratio)) for n in x], ratio
        multiplier, shift = tosa_multiplier(ratio, 31)
        for n, y in zip(x, found, strict=True):
            if abs(n) < 1 << (shift - 1):  # which TOSA demands
                assert y == apply_scale_32(n, multiplier, shift, True), (ratio, n)
        apart += sum(
            a != once(n, *quantize_multiplier(ratio)) for a, n in zip(found, x, strict=True)
        )
    assert apart > 100  # from rounding once


def test_half_up_is_single_rounding() -> None:
    """Of TFLite and of TOSA, with multipliers of 32 bits and of 16."""
    for ratio in ratios():
        x = numbers_at_ties(ratio)
        for bits in (31, 15):
            rescale = rescale_of([ratio], bits, False)
            module = computing(lambda math, x, r=rescale: math.rescaled(x, r, (-1,)), "half_up")
            found = module(torch.tensor(x)).tolist()
            multiplier, shift = tosa_multiplier(ratio, bits)
            scale = apply_scale_32 if bits == 31 else apply_scale_16
            for n, y in zip(x, found, strict=True):
                if bits == 15 or abs(n) < 1 << (shift - 1):
                    assert y == scale(n, multiplier, shift), (ratio, bits, n)
            if bits == 31 and quantize_multiplier(ratio)[0]:
                assert found == [once(n, *quantize_multiplier(ratio)) for n in x], ratio


def test_double_rounding_needs_a_multiplier() -> None:
    with pytest.raises((RefusedError, JitPassesError), match="'double_round' has no form of it"):
        computing(lambda math, x: math.shifted(x, (3,)), "double_round")


@pytest.mark.parametrize("rounding", ["half_up", "double_round"])
def test_c_rounds_alike(rounding: str, tmp_path: Path) -> None:
    """The functions of C, compiled by gcc, on sums at ties and ends."""
    form = once if rounding == "half_up" else twice
    rows = []
    for ratio in [ratio for ratio in ratios() if quantize_multiplier(ratio)[0]]:
        (multiplier,), (shift,) = vars(rescale_of([ratio], 31, False).normalized).values()
        numbers = numbers_at_ties(ratio, 20)
        rows += [(n, multiplier, shift, form(n, *quantize_multiplier(ratio))) for n in numbers]
    table = ",\n".join(f"{{{n}LL, {m}, {s}, {y}LL}}" for n, m, s, y in rows)
    (tmp_path / "program.c").write_text(f"""\
#include <stdint.h>
{RESCALING.text}
{"".join(arithmetic(rounding).values())}
static const long long rows[][4] = {{{table}}};
int main(void)
{{
    int wrong = 0;
    (void)rescale;
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; ++i) {{
        wrong += round_shift(rows[i][0] * rows[i][1], (int32_t)rows[i][2]) != rows[i][3];
    }}
    return wrong != 0;
}}
""")
    command = ["gcc", "-std=c99", "-fsanitize=undefined", "-fno-sanitize-recover=all", "program.c"]
    subprocess.run([*command, "-o", "program"], cwd=tmp_path, check=True)
    assert len(rows) > 1000
    subprocess.run(["./program"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("divisor", [3, 49, 98, 6 << 20])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_divided(rounding: str, divisor: int) -> None:
    module = computing(lambda math, x: math.divided(x, divisor), rounding)
    ties = torch.arange(-20, 20) * divisor + divisor // 2
    x = torch.cat([sums(1, 500).flatten() * (2**20 + 1), ties, ties + 1])
    assert module(x).tolist() == [rounded(n, divisor, rounding) for n in x.tolist()]


def test_root() -> None:
    module = computing(lambda math, x: math.root(x), "truncate")
    edges = [k * k + d for k in (2, 3, 1000, 46341, 2**15, 2**30 + 7, 2**31) for d in (-1, 0, 1)]
    bits = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 62
    x = [n for n in (*range(1, 300), *edges, *(int(2**b) for b in bits.tolist())) if n <= 2**62]
    assert module(torch.tensor(x)).tolist() == [isqrt(n) for n in x]


def test_rescale_of_ratios() -> None:
    """The multiplier is that of the definition, with factors of 2 taken out."""
    generator = torch.Generator().manual_seed(0)
    ratios = torch.exp(20 * torch.randn(500, generator=generator, dtype=torch.float64)).tolist()
    ratios = [ratio for ratio in ratios if ratio < 2**30] + [0.5, 1.0, 1 - 2**-40, 2.0**-40]
    for ratio in ratios:
        (multiplier,), (shift,) = (
            getattr(rescale_of([ratio], 31, False), name) for name in ("multipliers", "shifts")
        )
        wanted, most = multiplier_of(ratio)
        assert multiplier << (most - shift) == wanted
        assert multiplier < 2**31 and (multiplier % 2 or shift == 0)
    assert rescale_of([0.25, 0.25], 31, True) == Rescale((1,), (2,))
    assert rescale_of([0.25, 4.0], 31, True) == Rescale((1, 4), (2, 0))
    assert common_rescale([0.5, -0.25], 31, True) == ((2, -1), 2)


@pytest.mark.parametrize(
    ("ratio", "only_shift", "message"),
    [(0.3, True, "not a power of two: give its values"), (2.0**31, False, "has 31 bits")],
)
def test_rescale_refuses(ratio: float, only_shift: bool, message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        rescale_of([ratio], 31, only_shift)


GRIDS = [
    (0.5, 0, -128, 127, torch.int8),
    (0.1, 0, 0, 255, torch.uint8),
    (0.0303, 117, 0, 255, torch.uint8),
    (0.7, 3, 0, 15, torch.uint8),
    (1e-3, -7, -100, 100, torch.int8),
    (2.0**-9, 1, -(2**15), 2**15 - 1, torch.int16),
    (3e-5, 0, -(2**15), 2**15 - 1, torch.int16),
]


@pytest.mark.parametrize(("scale", "zero", "low", "high", "dtype"), GRIDS, ids=str)
def test_borders(scale: float, zero: int, low: int, high: int, dtype: torch.dtype) -> None:
    """Codes and their floats are those of the dialect: at ties, beside them, and for NaN."""
    scale = float(torch.tensor(scale))
    numbers = {torch.uint8: 0, torch.int8: 1, torch.int16: 2}
    grid = [scale, zero, low, high, numbers[dtype]]

    def insert(graph: GraphEditor) -> None:
        (node,) = (node for node in graph.nodes if node.kind == "aten::relu")
        codes = graph.insert("jit_passes::quantize", [node.main_operand, *grid], before=node)
        floats = graph.insert("jit_passes::dequantize", [codes.output, *grid[:2]], before=node)
        graph.replace(node.output, floats.output)

    script = torch.jit.script(Identity())
    expected = Pipeline("inserted", (insert,)).run(script).module
    steps = (insert, lower_to_codes(), lower_to_floats, "remove_dead_code")
    found = Pipeline("lowered", steps, ensures=("no_dialect",)).run(script).module
    ties = (torch.arange(low - 3, high + 3) - zero + 0.5) * scale
    beside = [ties, ties.nextafter(torch.tensor(1e9)), ties.nextafter(torch.tensor(-1e9))]
    generator = torch.Generator().manual_seed(0)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 0.0, -0.0, 1e-40])
    spread = torch.randn(200_000, generator=generator) * scale * (high - low) / 4
    x = torch.cat([*beside, spread, odd])
    assert torch.equal(found(x), expected(x))
