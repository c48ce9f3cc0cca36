"""The integer arithmetic of the target `fixed_point`, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jit_passes import GraphEditor, JitPassesError, Pipeline
from jit_passes.targets.fixed_point.arithmetic import Arithmetic
from jit_passes.targets.fixed_point.borders import lower_to_codes, lower_to_floats
from jit_passes.targets.fixed_point.rescale import ROUNDINGS, Rescale, common_rescale, rescale_of
from tests.integer_oracle import multiplier_of, rounded


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
