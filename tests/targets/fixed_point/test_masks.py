"""Attention with masks of `fixed_point`: what is hidden has no share, however it is spelled."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesWarning
from jit_passes.export.c.reading import read_program
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS
from tests.advice import traced_branches
from tests.export.c.test_c import check
from tests.export.test_vectors import check as check_vectors
from tests.integer_oracle import multiplier_of
from tests.targets.fixed_point.test_fixed_point import Watch
from tests.targets.fixed_point.test_rows import WIDE, Codes, exponential

TOKENS, WIDTH = 6, 16
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
INFINITE = torch.zeros(TOKENS, TOKENS).masked_fill(CAUSAL, -math.inf)
# The third query sees nothing, the keys of the others are no triangle.
ROWS = torch.tensor([[0, 1, 0, 0, 1, 1], [1, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1]] * 2).bool()
FLOATS = ("mul", "nan_to_num", "add", "round", "clamp", "_to_copy", "sub")

# How a mask is written: scores `a` of `n` tokens, and a buffer `self.mask`.
SPELLINGS: dict[str, tuple[Any, Any]] = {
    "sum": (INFINITE, lambda a, m, n: a + m),
    "sum, first": (INFINITE, lambda a, m, n: m[None] + a),
    "large": (1 - CAUSAL.float(), lambda a, m, n: a + (1 - m) * -1e9),
    "difference": (CAUSAL.float() * 1e4, lambda a, m, n: a - m),
    "part": (
        torch.ones(1, 9, 9).triu(1),
        lambda a, m, n: a.masked_fill(m[:, :n, :n] == 1, -math.inf),
    ),
    "where": (~CAUSAL, lambda a, m, n: torch.where(m, a, torch.tensor(-1e9))),
    "where not": (CAUSAL, lambda a, m, n: torch.where(m, -math.inf, a)),
    "triu": (CAUSAL, lambda a, m, n: a + torch.full((n, n), -math.inf).triu(1)),
    "tril": (CAUSAL, lambda a, m, n: a.masked_fill(torch.ones(n, n).tril() == 0, -math.inf)),
    "places": (
        CAUSAL,
        lambda a, m, n: a.masked_fill(torch.arange(n)[:, None] < torch.arange(n), -1e9),
    ),
    "filled": (CAUSAL, lambda a, m, n: a + torch.zeros(n, n).masked_fill(m, -math.inf)),
}


class Attention(nn.Module):
    """Attention of two heads, whose mask is spelled in some way."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        mask, self.hide = SPELLINGS[spelling]
        self.register_buffer("mask", mask)

    def heads(self, x: Tensor) -> list[Tensor]:
        parts = self.qkv(x).unflatten(-1, [3, 2, 8]).permute(2, 0, 3, 1, 4)
        return list(parts.unbind(0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        scores = self.hide(q @ k.transpose(-2, -1) * 0.25, self.mask, x.shape[1])
        weights = torch.softmax(scores, -1)
        y: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return y


class Fused(Attention):
    """PyTorch's operator, causal, or with rows that are hidden altogether."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__("sum")
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        causal = self.mask is None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=causal)
        found: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return found


class Encoder(nn.Module):
    """PyTorch's encoder, causal."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 5)
        self.register_buffer("mask", INFINITE)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layers(x, self.mask, is_causal=True))
        return y


def data(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, TOKENS, WIDTH, generator=generator) * 3 for _ in range(count)]


def models(module: nn.Module, target: FixedPoint, script: bool = False, **options: Any) -> Any:
    """Return the network in TorchScript, the reference model and the lowered one."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    module.eval()
    traced = (
        torch.jit.script(module)
        if script
        else torch.jit.trace(module, data(1)[0], check_trace=False)
    )
    prepared = jit_passes.prepare(traced, target=target, **options)
    jit_passes.calibrate(prepared, data())
    reference = jit_passes.convert(prepared)
    return traced, reference, jit_passes.lower(reference)


def check_shares(lowered: Any, target: FixedPoint, hidden: Tensor, empty: bool = False) -> None:
    """Compare softmax with Python's integers, and with real numbers."""
    program, _, _ = read_program(lowered, (data(1)[0],), "forward")
    calls = [call for call in program.calls if call.kernel == "masked_softmax"]
    assert len(calls) == 1
    codes = Codes(program, calls[0], target)
    scale, (multiplier, shift) = codes.x.scale, multiplier_of(1 / codes.y.scale, 24)
    masks = np.broadcast_to(hidden.numpy(), codes.result.shape).reshape(-1, TOKENS).tolist()
    rows = codes.steps(codes.x).reshape(-1, TOKENS).tolist()
    for row, mask, results in zip(rows, masks, codes.result.reshape(-1, TOKENS), strict=True):
        seen = [n for n, hides in zip(row, mask, strict=True) if not hides]
        if seen:
            table = [
                0 if hides else exponential(max(seen) - n, codes.x)
                for n, hides in zip(row, mask, strict=True)
            ]
        else:
            table = [0 if empty else 2**20] * TOKENS
        total = max(sum(table), 1) << shift
        assert [codes.code(e * multiplier, total) for e in table] == results.tolist()
        if seen:
            scores = torch.tensor(row, dtype=torch.float64) * scale
            real = torch.softmax(scores.masked_fill(torch.tensor(mask), -math.inf), 0)
            error = (torch.tensor(results) - codes.y.zero_point) * codes.y.scale - real
            assert float(error.abs().max()) <= codes.y.scale + 1e-5
    assert len(np.unique(codes.result)) > 8


@traced_branches
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling: str) -> None:
    target = FixedPoint("shift")
    traced, reference, lowered = models(Attention(spelling), target)
    check_shares(lowered, target, CAUSAL)
    x = data(1)[0]
    with Watch() as watch:
        found = lowered(x)
    made = {"tril": ("ones", "tril"), "filled": ("zeros", "masked_fill")}  # masks of sizes
    assert set(watch.found) <= {*FLOATS, *made.get(spelling, ())}
    assert float((found != reference(x)).double().mean()) < 0.02  # ties of softmax
    assert float((found - traced(x)).detach().abs().max()) < 0.1


@pytest.mark.parametrize("rounding", [*ROUNDINGS, "double_round"])
def test_equals_integers(rounding: str) -> None:
    target = FixedPoint(rounding=rounding)
    check_shares(models(Fused(None), target)[2], target, CAUSAL)


@pytest.mark.parametrize(("fill", "empty"), [(-1e9, False), (-math.inf, True)])
def test_rows_that_are_hidden_altogether(fill: float, empty: bool, tmp_path: Path) -> None:
    """Finite numbers leave equal shares there, and PyTorch's attention none."""
    target, mask = FixedPoint(), torch.zeros(TOKENS, TOKENS).masked_fill(ROWS, fill)
    _, reference, lowered = models(Fused(mask), target)
    check_shares(lowered, target, ROWS, empty)
    x = data(1)[0]
    found, expected = (model(x).detach()[:, 2] for model in (lowered, reference))
    assert float((found - expected).abs().max()) < 0.02
    jit_passes.export_c(lowered, tmp_path, x)
    check(tmp_path, x.numel())


@pytest.mark.parametrize(("fill", "empty"), [(-1e9, False), (-math.inf, True)])
def test_scores_of_16_bits(fill: float, empty: bool, tmp_path: Path) -> None:
    target = FixedPoint(accumulator_bits=48)
    mask = torch.zeros(TOKENS, TOKENS).masked_fill(ROWS, fill)
    _, _, lowered = models(Fused(mask), target, config=WIDE)
    check_shares(lowered, target, ROWS, empty)
    jit_passes.export_c(lowered, tmp_path, data(1)[0])
    check(tmp_path, data(1)[0].numel())


class Layer(nn.Module):
    """PyTorch's layer, whose branches ask for the number of axes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True)
        self.register_buffer("mask", INFINITE)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x, self.mask)
        return y


@traced_branches
@pytest.mark.parametrize(
    ("module", "script"),
    [(Encoder, False), (Layer, True)],
    ids=["traced", "scripted"],
)
def test_gcc_gives_the_codes(module: Any, script: bool, tmp_path: Path) -> None:
    _, _, lowered = models(module(), FixedPoint(), script)
    first, *others = data(2)
    jit_passes.export_c(lowered, tmp_path, first, others)
    check(tmp_path, lowered(first).numel(), 2)
    jit_passes.export_vectors(lowered, [first], tmp_path / "vectors")
    assert "masked_softmax" in check_vectors(tmp_path / "vectors")


class Refused(Attention):
    """Masks that depend on data, that hide too little, or in two ways."""

    def __init__(self, why: str) -> None:
        super().__init__("sum")
        self.why = why

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        scores = q @ k.transpose(-2, -1)
        if self.why == "its mask depends on the data":
            scores = scores.masked_fill(scores > 1, -1e9)
        elif self.why.startswith("it fills"):
            scores = scores.masked_fill(CAUSAL, -3.0)
        elif self.why.startswith("one of"):
            scores = scores + INFINITE.clone().fill_diagonal_(-1e4)
        else:
            scores = scores.masked_fill(CAUSAL, -1e9)
            v = v * scores.amax()
        y: Tensor = self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))
        return y


@pytest.mark.parametrize(
    "why",
    [
        "its mask depends on the data",
        "it fills in a number that softmax may see: fill in -inf, or -100 or less",
        "one of its operands is a constant",
        "its result has another reader than softmax",
    ],
)
def test_refusals(why: str) -> None:
    """The reason is known before any data, and what follows is in float."""
    traced = torch.jit.trace(Refused(why).eval(), data(1)[0], check_trace=False)
    assert why in str(jit_passes.inspect(traced, target="fixed_point"))
    with pytest.warns(JitPassesWarning, match="computed in float"):
        models(Refused(why), FixedPoint())


@pytest.mark.parametrize("op", ["softmax", "masked_fill"])
def test_either_stays_in_float(op: str) -> None:
    """Filled scores are never quantized by themselves: the range would be minus infinity's."""
    config = {"version": 1, "rules": [{"op": op, "keep_float": True}]}
    with pytest.warns(JitPassesWarning, match="computed in float"):
        traced, _, lowered = models(Fused(None), FixedPoint(), config=config)
    x = data(1)[0]
    assert float((lowered(x) - traced(x)).detach().abs().max()) < 0.1
