"""Transformers as people write them down: each of them is one plan of the target x86."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.passes.pipeline import Pipeline
from tests.advice import traced_branches
from tests.compare import sqnr
from tests.plans import CANONICAL, plan_of, plans_in, scripted, traced

WIDTH, HEADS, WORDS, LONGEST, LAYERS = 32, 4, 100, 40, 2


class Norm(nn.Module):
    """Layer norm by the deviation of the elements, as The Annotated Transformer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gain * (x - mean) / (deviation + 1e-6) + self.shift


class MaskedAttention(nn.Module):
    """Query, key and value by three layers, and a mask of words that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.width = HEADS, WIDTH // HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), -1, self.heads, self.width).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.width)
        weights = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9).softmax(dim=-1)
        mixed = torch.matmul(weights, v).transpose(1, 2).contiguous()
        return self.out(mixed.view(x.size(0), -1, self.heads * self.width))


class CausalAttention(nn.Module):
    """One layer for query, key and value, and a mask for as many words as there may be."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.heads, self.width = HEADS, WIDTH
        seen = torch.tril(torch.ones(LONGEST, LONGEST))
        self.register_buffer("seen", seen.view(1, 1, LONGEST, LONGEST))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(self.width, dim=2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.seen[:, :, :t, :t] == 0, float("-inf"))
        mixed = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c)
        return self.out(mixed)


def mlp(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), activation, nn.Linear(2 * WIDTH, WIDTH))


class Annotated(nn.Module):
    """An encoder with waves for positions; words of number 0 are none."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.attention = nn.ModuleList(MaskedAttention() for _ in range(LAYERS))
        self.mlp = nn.ModuleList(mlp(nn.ReLU()) for _ in range(LAYERS))
        self.norms = nn.ModuleList(Norm() for _ in range(2 * LAYERS + 1))
        place = torch.arange(LONGEST).unsqueeze(1)
        rate = torch.exp(torch.arange(0, WIDTH, 2) * -(math.log(10000.0) / WIDTH))
        waves = torch.stack([torch.sin(place * rate), torch.cos(place * rate)], -1)
        self.register_buffer("waves", waves.flatten(1).unsqueeze(0))
        self.root = math.sqrt(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 0).unsqueeze(-2)
        x = self.words(ids) * self.root
        x = x + self.waves[:, : x.size(1)]
        for attention, mlp, norm in zip(self.attention, self.mlp, self.norms, strict=False):
            x = x + attention(norm(x), mask)
            x = x + mlp(norm(x))
        return x


class Gpt(nn.Module):
    """A decoder that learns its positions, as minGPT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.attention = nn.ModuleList(CausalAttention() for _ in range(LAYERS))
        self.mlp = nn.ModuleList(mlp(nn.GELU()) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        _, t = ids.size()
        places = torch.arange(0, t, dtype=torch.long, device=ids.device).unsqueeze(0)
        x = self.words(ids) + self.places(places)
        for attention, mlp, norm in zip(self.attention, self.mlp, self.norms, strict=True):
            x = x + attention(norm(x))
            x = x + mlp(norm(x))
        return self.head(x)


class Patches(nn.Module):
    """A vision transformer whose patches and heads are reshapes, and whose positions are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.token = nn.Linear(48, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, LONGEST, WIDTH))
        self.norm, self.heads = nn.LayerNorm(WIDTH), HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        b, c, h, w = images.shape
        x = images.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
        x = self.first(x.reshape(b, (h // 4) * (w // 4), 48))
        x = torch.cat((self.token.expand(b, -1, -1), x), 1)
        x = x + self.places[:, : x.shape[1]]
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        b, n, d = q.shape
        q = q.reshape(b, n, self.heads, d // self.heads).transpose(1, 2)
        k = k.reshape(b, n, self.heads, d // self.heads).transpose(1, 2)
        v = v.reshape(b, n, self.heads, d // self.heads).transpose(1, 2)
        weights = (torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5).softmax(-1)
        x = x + self.out(torch.matmul(weights, v).transpose(1, 2).reshape(b, n, d))
        return self.head(x[:, 0])


def words(batch: int, count: int) -> Tensor:
    """Words, of which the last ones are none, but in the first sentence."""
    ids = torch.randint(1, WORDS, (batch, count))
    ids[1:, count - count // 3 :] = 0
    return ids


def images(batch: int, count: int) -> Tensor:
    return torch.randn(batch, 3, 16, 4 * (1 + count % 4))


@traced_branches
@pytest.mark.parametrize("mode", ["auto", "static"])
@pytest.mark.parametrize("form", ["scripted", "traced"])
@pytest.mark.parametrize(("made", "inputs"), [(Annotated, words), (Gpt, words), (Patches, images)])
def test_models(
    made: Callable[[], nn.Module], inputs: Callable[[int, int], Tensor], form: str, mode: str
) -> None:
    """One plan, also for other sizes than those of the data."""
    torch.manual_seed(0)
    model = made().eval()
    data = [inputs(4, 9) for _ in range(8)]
    script = torch.jit.script(model) if form == "scripted" else torch.jit.trace(model, data[0])
    quantized = jit_passes.quantize_script(script, data, target="x86", mode=mode, progress=False)
    assert len(plans_in(quantized)) == 1
    with torch.no_grad():
        for sizes in ((4, 9), (1, 6), (3, 23)):
            x = inputs(*sizes)
            assert sqnr(model(x), quantized(x)) > 24


class Filled(nn.Module):
    """Numbers in the places of truths that come in, or of a constant's that sizes cut."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number
        self.register_buffer("hidden", torch.rand(9, 9) > 0.5)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = F.hardswish(x)
        y = x.masked_fill(mask, self.number)
        return F.relu(y), F.softmax(
            x.masked_fill(self.hidden[: x.size(-2), : x.size(-1)], -9.0), -1
        )


@pytest.mark.parametrize("number", [0.0, -1e9, 3.25, -math.inf, math.inf, math.nan])
@pytest.mark.parametrize("form", ["scripted", "traced"])
def test_masked_fill(form: str, number: float) -> None:
    """The bits of PyTorch, for masks that broadcast; what is hidden may be no number."""
    example = (torch.randn(2, 4, 6), torch.rand(2, 4, 6) > 0.5)
    model = Filled(number)
    region = scripted(model) if form == "scripted" else traced(model, *example)
    plan = plan_of(region)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((2, 4, 6), (2, 4, 6)), ((3, 5, 7), (5, 1)), ((2, 1, 6), (1, 1, 6)), ((1, 9, 9), ()),
        ((3, 2, 8), (3, 1, 8)),
    ]  # fmt: skip
    for shape, of_mask in shapes:
        x, mask = torch.randn(shape), torch.rand(of_mask) > 0.5
        x[0, 0, 0] = math.nan
        filled, shares = plan.run([x, mask])
        expected, of_shares = region(x, mask)
        assert torch.equal(filled.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.allclose(shares, of_shares, rtol=1e-6, atol=1e-7, equal_nan=True)
    with pytest.raises(RuntimeError, match="input 0 of the plan must have a floating-point dtype"):
        plan.run([torch.ones(2, 4, 6, dtype=torch.long), example[1]])


class Spread(nn.Module):
    """Deviations and variances along an axis."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = F.hardswish(x)
        return (
            x.std(-1, keepdim=True),
            x.std(1),
            x.var(-1, unbiased=False),
            torch.var(x, 0, correction=2),
        )


@pytest.mark.filterwarnings("ignore:(std|var)\\(\\). degrees of freedom is <= 0:UserWarning")
def test_deviations() -> None:
    """Against PyTorch's in double precision, also where nothing varies and results are NaN."""
    spelled = Pipeline("spelled", ("freeze", "spell_out_composites"))
    plan = plan_of(CANONICAL.run(spelled.run(torch.jit.script(Spread().eval())).module).module)
    for shape in ((4, 5, 6), (3, 1, 40), (7, 2, 3)):
        x = torch.randn(shape) + 10
        for got, want in zip(plan.run([x]), Spread()(x.double()), strict=True):
            assert torch.allclose(got.double(), want, rtol=2e-6, atol=1e-6, equal_nan=True)


class Double(nn.Module):
    """Adds a part of a constant that no plan has: the sum is float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.register_buffer("places", torch.randn(1, LONGEST, WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        moved = x + self.places[:, : x.shape[1]]
        return self.last(torch.relu(moved.float()))


@pytest.mark.parametrize("form", ["scripted", "traced"])
def test_constants_that_no_plan_has(form: str) -> None:
    """Its reader stays outside of the plans, and the others are in them."""
    torch.manual_seed(0)
    model, data = Double().eval(), [torch.randn(8, 5, WIDTH) for _ in range(8)]
    script = torch.jit.script(model) if form == "scripted" else torch.jit.trace(model, data[0])
    quantized = jit_passes.quantize_script(script, data, target="x86", progress=False)
    assert len(plans_in(quantized)) == 2
    with torch.no_grad():
        for count in (5, 1, 12):
            x = torch.randn(3, count, WIDTH)
            assert sqnr(model(x), quantized(x)) > 22
