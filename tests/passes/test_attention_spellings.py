"""Attention as models spell it: the heads split in one way or another, of any number of tokens.

Each spelling is drawn by its number, scripted or traced, and compared with the float model. Traces
and calibration have as many tokens as a head has features, or another number: a graph that takes
one size for another one is right at one of both only.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.seeds import seeds

HEADS, FEATURES = 2, 8
WIDTH = HEADS * FEATURES
LENGTHS = (1, 5, FEATURES, 12)
ROUNDING = {"static": 20, "dynamic": 25, "weight_only": 30}  # dB that 8 bits leave at least

# Sizes of a tensor t, [n, tokens, WIDTH], whose last axis is split; most often, tokens are open.
SIZES = (
    *("n, -1, 2, 8", "t.size(0), -1, 2, 8", "t.shape[0], -1, 2, t.size(2) // 2"),
    *("n, tokens, -1, 8", "n, tokens, 2, -1", "-1, tokens, 2, 8", "n, tokens, 2, 8"),
)
SPLITS = (
    *(f"t.{name}({sizes})" for name in ("view", "reshape") for sizes in SIZES),
    *("t.unflatten(-1, (2, 8))", "t.unflatten(2, (-1, 8))", "t.unflatten(-1, (2, -1))"),
)
ORDERS = (".transpose(1, 2)", ".transpose(-2, -3)", ".permute(0, 2, 1, 3)")
# Heads of the result of one layer, [n, tokens, 3 * WIDTH], for all three.
PACKED_SIZES = (
    *("n, -1, 3, 2, 8", "a.size(0), -1, 3, 2, 8", "a.shape[0], -1, 3, 2, a.size(2) // 6"),
    *("n, tokens, -1, 2, 8", "n, tokens, 3, -1, 8", "-1, tokens, 3, 2, 8", "n, tokens, 3, 2, 8"),
)
PACKED = (
    *(f"a.{name}({sizes})" for name in ("view", "reshape") for sizes in PACKED_SIZES),
    *("a.unflatten(-1, (3, 2, 8))", "a.unflatten(2, (3, -1, 8))"),
)
PARTS = (
    "q, k, v = p.unbind(0)", "q, k, v = p[0], p[1], p[2]", "q, k, v = p.select(0, 0), p[1], p[2]"
)  # fmt: skip
CUTS = ("a.chunk(3, -1)", "a.chunk(3, dim=2)", "a.split(16, -1)", "a.split(16, dim=2)")
MASKS = {
    "none": "y = F.scaled_dot_product_attention(q, k, v)",
    "causal": "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "decided": "y = F.scaled_dot_product_attention(q, k, v, is_causal=bool(tokens > 1))",
    "bool": (
        "mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()\n"
        "        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"
    ),
    "added": (
        "mask = torch.full((q.size(2), q.size(2)), -1e4).triu(1)\n"
        "        y = torch.softmax(q @ k.transpose(-2, -1) / k.size(-1) ** 0.5 + mask, -1) @ v"
    ),
}
ENDS = (
    "self.last(y.transpose(1, 2).reshape(n, -1, 16))",
    "self.last(y.transpose(1, 2).reshape(n, tokens, 16))",
    "self.last(y.transpose(1, 2).flatten(2))",
    "self.last(y.permute(0, 2, 1, 3).contiguous().view(n, tokens, -1))",
    *("y", "y.transpose(1, 2)", "y.transpose(1, 2).reshape(x.shape)"),
)
BEFORE = (
    "x = x", "x = self.first(x)", "x = torch.relu(self.first(x)) + x",
    "x = self.first(x) if n % 2 == 0 else x",
)  # fmt: skip
SOURCE = """
class Spelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.qkv = nn.Linear(16, 48)

    def split(self, t: Tensor, n: int, tokens: int) -> Tensor:
        return {split}

    def forward(self, x: Tensor) -> Tensor:
        n, tokens = x.size(0), x.size(1)
        {before}
        {parts}
        {mask}
        return {end}
"""


def statements(draw: random.Random) -> Iterator[str]:
    """The lines that make q, k and v."""
    way = draw.choice(("layers", "cut", "packed"))
    if way == "packed":
        yield "a = self.qkv(x)"
        yield f"p = {draw.choice(PACKED)}.permute(2, 0, 3, 1, 4)"
        yield draw.choice(PARTS)
        return
    if way == "cut":
        yield "a = self.qkv(x)"
        yield f"b, c, d = {draw.choice(CUTS)}"
    else:
        yield "b, c, d = self.q(x), self.k(x), self.v(x)"
    yield "q, k, v = self.split(b, n, tokens), self.split(c, n, tokens), self.split(d, n, tokens)"


def spelled(number: int) -> tuple[str, nn.Module]:
    """A spelling of that number: its source, and the model."""
    draw = random.Random(number)
    source = SOURCE.format(
        split=draw.choice(SPLITS) + draw.choice(ORDERS), before=draw.choice(BEFORE),
        parts="\n        ".join(statements(draw)), mask=MASKS[draw.choice((*MASKS, "causal"))],
        end=draw.choice(ENDS),
    )  # fmt: skip
    name = f"<spelling {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope = {"__name__": __name__, "torch": torch, "nn": nn, "F": F, "Tensor": Tensor}
    exec(compile(source, name, "exec"), scope)
    return source, scope["Spelled"]().eval()


@pytest.mark.parametrize("number", seeds(40))
def test_any_length(number: int) -> None:
    """All targets compute what the float model does, whatever the number of tokens."""
    source, net = spelled(number)
    draw = random.Random(-1 - number)
    mode, tokens = draw.choice(tuple(ROUNDING)), draw.choice((6, FEATURES))
    words = torch.randn(64, WIDTH)  # all that is ever said, so that ranges fit
    data = [words[torch.randint(64, (4, tokens))] for _ in range(16)]
    data += [words[:, None].expand(-1, tokens, -1)]  # as large as one token by itself
    decides = "bool(" in source or " if " in source  # which a trace does once for all
    frontend = "script" if decides else draw.choice(("script", "trace"))
    model = torch.jit.script(net) if frontend == "script" else torch.jit.trace(net, data[0])
    # The share of a token by itself is 1, which only a mask shows where there are more tokens.
    lengths = LENGTHS[mode == "static" and "attention(q, k, v)" in source :]
    for target in ("x86", "stock", "reference"):
        quantized = jit_passes.quantize_script(model, data, target=target, mode=mode)
        for length in lengths:
            x = words[torch.randint(64, (2, length))]
            with torch.no_grad():
                found = sqnr(net(x), quantized(x))
            assert found > ROUNDING[mode], (target, mode, frontend, length, found, source)


class SizesAsNumbers(nn.Module):
    """The number of tokens, which a view leaves open: a factor, a result, an end, a divisor."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.positions = nn.Parameter(torch.randn(64, FEATURES))

    def forward(self, x: Tensor) -> tuple[Tensor, int, Tensor, Tensor]:
        packed = self.qkv(x).view(x.size(0), -1, 3, 2, 8)
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        means = v.sum(2) / v.size(2)
        return q * (1.0 / q.size(-2)), q.size(2), k + self.positions[: k.size(2)], means


@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
@pytest.mark.parametrize("target", ["x86", "stock", "reference"])
def test_the_number_of_tokens_as_a_number(target: str, traced: bool) -> None:
    torch.manual_seed(0)
    net = SizesAsNumbers().eval()
    data = [torch.randn(16, FEATURES, WIDTH) for _ in range(4)]
    # A trace gives the number as a tensor, which the check of traces takes for a wrong one.
    model = torch.jit.trace(net, data[0], check_trace=False) if traced else torch.jit.script(net)
    for mode in ("static", "weight_only"):
        quantized = jit_passes.quantize_script(model, data, target=target, mode=mode)
        for tokens in LENGTHS:
            x = torch.randn(2, tokens, WIDTH)
            (scaled, count, *rest), (wanted, _, *others) = quantized(x), model(x)
            assert int(count) == tokens
            for found, expected in zip((scaled, *rest), (wanted, *others), strict=True):
                assert sqnr(expected, found) > 20
