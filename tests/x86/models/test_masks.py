"""Attention whose mask the model computes, for the target x86."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, traced
from tests.x86.models.test_plan import assert_steps

WIDTH, HEADS, WORDS, LAYERS = 64, 4, 50, 3


class Attention(nn.Module):
    """Products of what comes in, with a mask of any kind."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)


MASKS = [(1, 1, 1, 7), (2, 1, 1, 7), (2, 3, 5, 7), (2, 1, 5, 7), (5, 7), (1, 7)]


@pytest.mark.parametrize("how", ["trace", "script"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_formula(shape: tuple[int, ...], dtype: torch.dtype, how: str) -> None:
    """Against PyTorch's operator, which gives zeros for a query without keys; for both dtypes."""
    torch.manual_seed(0)
    q = torch.randn(2, 3, 5, 8, dtype=dtype)
    k, v = torch.randn(2, 2, 3, 7, 8, dtype=dtype)
    visible = torch.rand(shape) < 0.5
    visible.view(-1, 7)[0], visible.view(-1, 7)[-1] = False, True
    added = torch.randn(shape, dtype=dtype).masked_fill(~visible, -float("inf"))
    net = Attention()
    model = torch.jit.script(net) if how == "script" else torch.jit.trace(net, (q, k, v, visible))
    result = jit_passes.run_pass("expand_attention", model)
    assert "scaled_dot_product_attention" not in str(result.graph)
    tolerance = 1e-14 if dtype == torch.float64 else 1e-5  # of sums of 7 numbers near 1
    for mask in (visible, added):
        expected = net(q, k, v, mask)
        assert (expected == 0).all(-1).any() == (visible.numel() > 7)
        torch.testing.assert_close(result(q, k, v, mask), expected, rtol=0, atol=tolerance)


class Shares(nn.Module):
    """The share of each key in a query, on integers but for the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.y = Grid(0.03, 120), Grid(0.04, 131), Grid(1 / 256, 0)

    def forward(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        scores = self.q(q) @ self.k(k).transpose(-2, -1) * 0.3 + mask
        return self.y(torch._safe_softmax(scores, -1))


@pytest.mark.parametrize("batch", [2, 1, 0])
@pytest.mark.parametrize("shape", [(1, 1, 1), (0, 1, 1), (0, 3, 5), (1, 5), (5,)], ids=str)
def test_shares_are_those_of_the_reference(shape: tuple[int, ...], batch: int) -> None:
    """Within one step; a first axis of 0 stands for the batch."""
    torch.manual_seed(0)
    for keys in (1, 7, 33, 130):
        q, k = torch.randn(batch, 3, 5, 8), torch.randn(batch, 3, keys, 8)
        mask = torch.randn(*(size or batch for size in shape), keys)
        mask = mask.masked_fill(torch.rand(mask.shape) < 0.4, -float("inf"))
        mask[..., -1:, :] = -float("inf")  # of the last query, or of all
        region = traced(Shares(), q, k, mask)
        assert_steps(region, [q, k, mask], 1)


class Layer(nn.Module):
    """As BERT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.width = WIDTH // HEADS
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.query(x).view(b, t, -1, self.width).transpose(1, 2)
        k = self.key(x).view(b, t, -1, self.width).transpose(1, 2)
        v = self.value(x).view(b, t, -1, self.width).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.transpose(1, 2).reshape(b, t, -1).contiguous()
        x = self.one(x + self.out(y))
        return self.two(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """Words and which of them are there come in. The mask is of bool, or a sum's operand."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(40, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor, there: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(x)
        mask = there[:, None, None, :]
        if self.kind == "bool":
            mask = mask.to(torch.bool)
        elif self.kind == "square":
            mask = mask.to(torch.bool).expand(-1, 1, ids.shape[1], -1)
        elif self.kind == "infinities":
            mask = torch.zeros(mask.shape).masked_fill(mask == 0, -float("inf"))
        else:
            mask = (1.0 - mask.to(torch.float32)) * -3.4e38
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def words(batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Return sentences of some length, padded behind."""
    lengths = torch.randint(1, tokens + 1, (batch, 1))
    return torch.randint(0, WORDS, (batch, tokens)), (torch.arange(tokens) < lengths).long()


def compiled(net: nn.Module, how: str, *inputs: Tensor) -> Any:
    if how == "script":
        return torch.jit.script(net)
    with torch.no_grad():
        return torch.jit.trace(net, inputs)


@pytest.mark.parametrize("how", ["trace", "script"])
@pytest.mark.parametrize("kind", ["bool", "square", "infinities", "numbers"])
def test_a_small_bert(kind: str, how: str) -> None:
    """One plan behind the embeddings; what is padded has no part in the result of the others."""
    torch.manual_seed(0)
    net = Bert(kind).eval()
    data = [words(4, 12) for _ in range(4)]
    model = compiled(net, how, *data[0])
    lowered = jit_passes.quantize_script(model, data, target="x86", mode="static")
    text = str(lowered.graph)
    assert text.count("prim::CallMethod") == 1
    assert not any(name in text for name in ("softmax", "matmul", "attention", "aten::linear"))
    rows = jit_passes.coverage(lowered)
    assert [row.kind for row in rows.int8].count("matmul") == 2 * LAYERS
    for batch, tokens in ((4, 12), (1, 5), (3, 33)):
        ids, there = words(batch, tokens)
        with torch.no_grad():
            expected, got = net(ids, there), lowered(ids, there)
        assert sqnr(expected[there.bool()], got[there.bool()]) > 20
        other = torch.where(there.bool(), ids, (ids + 1) % WORDS)
        assert torch.equal(lowered(other, there)[there.bool()], got[there.bool()])
    ids, there = words(2, 6)
    assert lowered(ids[:0], there[:0]).shape == (0, 6, 5)


class Parts(nn.Module):
    """Causal attention to views of the parts of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.width = HEADS, WIDTH
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(self.width, dim=2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class Layers(nn.Module):
    """Masked attention of layers of their own, with the number of heads given."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.width = HEADS, WIDTH // HEADS
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.size(0), x.size(1)
        q = self.query(x).view(b, t, self.heads, self.width).transpose(1, 2)
        k = self.key(x).view(b, t, self.heads, self.width).transpose(1, 2)
        v = self.value(x).view(b, t, self.heads, self.width).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, self.heads * self.width))


class Decoder(nn.Module):
    """As GPT has them."""

    def __init__(self, attention: type[nn.Module]) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(40, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(LAYERS)])
        self.layers = nn.ModuleList([attention() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(0, ids.shape[1], device=ids.device))
        for norm, layer in zip(self.norms, self.layers):  # noqa: B905  scripts have no strict=
            x = x + layer(norm(x))
        return self.head(x)


class Open(nn.Module):
    """Causal attention that leaves the number of tokens open; no graph tells its number of axes."""

    def __init__(self, packed: bool, branches: bool) -> None:
        super().__init__()
        self.packed, self.branches = packed, branches
        self.first = nn.Linear(WIDTH, WIDTH)
        self.qkv, self.one = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.branches and x.size(0) > 1:
            x = self.first(x)
        if self.packed:
            q, k, v = self.qkv(x).view(x.size(0), -1, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        q = self.one(x).view(x.size(0), -1, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.parametrize("tokens", [6, 16])
@pytest.mark.parametrize(
    ("branches", "how"), [(False, "script"), (False, "trace"), (True, "script")]
)
@pytest.mark.parametrize("packed", [False, True])
def test_an_open_number_of_tokens(packed: bool, branches: bool, how: str, tokens: int) -> None:
    """The mask has as many, whether calibration has as many as a head has features or not."""
    torch.manual_seed(0)
    net = Open(packed, branches).eval()
    data = [torch.randn(2, tokens, WIDTH) for _ in range(8)]
    lowered = jit_passes.quantize_script(
        compiled(net, how, data[0]), data, target="x86", mode="static"
    )
    for length in (1, 5, tokens, 33):
        x = torch.randn(2, length, WIDTH)
        with torch.no_grad():
            expected, got = net(x), lowered(x)
        assert sqnr(expected, got) > 25
        x[:, length // 2 :] = 0  # has no part in the result of what stands in front
        assert torch.equal(lowered(x)[:, :, : length // 2], got[:, :, : length // 2])


class Told(nn.Module):
    """A mask for a number of tokens that the caller gives, or leaves open with -1."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, tokens: int) -> Tensor:
        q = self.one(x).view(x.size(0), tokens, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def test_a_number_of_tokens_that_the_caller_gives() -> None:
    """-1 is no size of the mask."""
    torch.manual_seed(0)
    net = Told().eval()
    data = [(torch.randn(2, 6, WIDTH), tokens) for tokens in (6, -1, 6, -1)]
    lowered = jit_passes.quantize_script(torch.jit.script(net), data, target="x86", mode="static")
    for length, tokens in ((5, 5), (5, -1), (16, -1), (1, 1)):
        x = torch.randn(2, length, WIDTH)
        with torch.no_grad():
            assert sqnr(net(x, tokens), lowered(x, tokens)) > 25


@pytest.mark.parametrize(
    ("attention", "how"), [(Parts, "script"), (Layers, "script"), (Layers, "trace")]
)
def test_a_small_gpt(attention: type[nn.Module], how: str) -> None:
    """One plan, whose mask follows the number of tokens that come in; no scale is given."""
    torch.manual_seed(0)
    net = Decoder(attention).eval()
    data = [words(4, 12)[0] for _ in range(4)]
    lowered = jit_passes.quantize_script(
        compiled(net, how, data[0]), data, target="x86", mode="static"
    )
    text = str(lowered.graph)
    assert text.count("prim::CallMethod") == 1
    assert not any(name in text for name in ("softmax", "matmul", "attention", "aten::linear"))
    for batch, tokens in ((4, 12), (1, 1), (3, 33)):
        ids = words(batch, tokens)[0]
        with torch.no_grad():
            expected, got = net(ids), lowered(ids)
        assert sqnr(expected, got) > 25
        ids[:, tokens // 2 :] = 0  # has no part in the result of what stands in front
        assert torch.equal(lowered(ids)[:, : tokens // 2], got[:, : tokens // 2])
    assert lowered(torch.zeros(0, 6, dtype=torch.long)).shape == (0, 6, 5)


class Windows(nn.Module):
    """Windows of images, whose mask is repeated for as many images as there are, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.qkv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.bias = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(1, 6, 6))
        self.heads, self.width, self.tokens = HEADS, WIDTH // HEADS, 6

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        x = F.gelu(self.first(x)).view(-1, self.tokens, self.heads * self.width)
        windows, tokens, width = x.shape
        mask = self.bias.masked_fill(hidden, -100.0)
        images = windows // mask.shape[0]
        mask = mask[None, :, None].expand(images, -1, -1, -1, -1).flatten(0, 1)
        heads = self.qkv(x).view(windows, tokens, 3, self.heads, self.width).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(windows, tokens, width))


@pytest.mark.parametrize("how", ["trace", "script"])
def test_masks_of_windows(how: str) -> None:
    """How often a mask is repeated follows from what the plan computes; its dtype is known."""
    torch.manual_seed(0)
    net = Windows().eval()

    def windows(images: int, each: int) -> tuple[Tensor, Tensor]:
        return torch.randn(images, each * 6, WIDTH), torch.rand(each, 6, 6) < 0.3

    data = [windows(2, 3) for _ in range(4)]
    with torch.no_grad():
        model = torch.jit.script(net) if how == "script" else torch.jit.trace(net, data[0])
        lowered = jit_passes.quantize_script(model, data, target="x86", mode="static")
        text = str(lowered.graph)
        assert text.count("prim::CallMethod") == 1 and "prim::dtype" not in text
        for given in (data[0], windows(1, 5), windows(4, 1)):
            assert sqnr(net(*given), lowered(*given)) > 25
