"""Attention in the forms that models write it in."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, values

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Heads(nn.Module):
    """Attention of four heads, `[N, 4, T, 4]` each, between linears."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.query = nn.Linear(16, 16)
        self.key = nn.Linear(16, 16)
        self.value = nn.Linear(16, 16)
        self.attend = attend
        self.out = nn.Linear(16, 16)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), 4, 4).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        y = self.attend(q * 2, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=0.25)


def grouped_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)


def masked_by_bool(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, mask)


def masked_by_infinities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.full((q.size(2), k.size(2)), float("-inf")).triu(1)
    return F.scaled_dot_product_attention(q, k, v, mask)


def filled_with_infinities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 2
    later = torch.ones_like(scores[0, 0]).triu(1) == 1
    return torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ v


def filled_with_smallest(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.5
    later = torch.arange(5).view(1, 5) > torch.arange(5).view(5, 1)
    scores = scores + later.float() * -3.4028234663852886e38  # the smallest number of float32
    return torch.matmul(F.softmax(scores, dim=-1), v)


def in_batches(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n, h, t, d = q.shape
    q, k, v = q.reshape(n * h, t, d), k.reshape(n * h, t, d), v.reshape(n * h, t, d)
    bias = torch.zeros(n * h, t, t)
    weights = torch.softmax(torch.baddbmm(bias, q, k.transpose(1, 2), alpha=0.5), -1)
    return torch.bmm(weights, v).view(n, h, t, d)


def by_letters(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("nhid,nhjd->nhij", q, k) / 2
    return torch.einsum("nhij,nhjd->nhid", weights.softmax(-1), v)


def biased_by_distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    steps = torch.arange(q.size(2))
    distance = (steps.view(-1, 1) - steps.view(1, -1)).abs().to(q.dtype)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625]).view(4, 1, 1)
    return torch.softmax(q @ k.transpose(2, 3) / 2 - slopes * distance, -1) @ v


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def rotary(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(q.size(2)).to(q.dtype), torch.tensor([1.0, 0.1, 1.0, 0.1]))
    cos, sin = angles.cos(), angles.sin()
    q = q * cos + rotate_half(q) * sin
    k = k * cos + rotate_half(k) * sin
    return F.scaled_dot_product_attention(q, k, v)


def cosine(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The attention of Swin v2."""
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(2, 3)
    return torch.softmax(scores * 10, -1) @ v


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = q @ k.sum(2, keepdim=True).transpose(2, 3)
    return q @ (k.transpose(2, 3) @ v) / total


def with_sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(2, 3) / 2
    scores = torch.cat([scores, torch.zeros_like(scores[..., :1])], -1)
    return scores.softmax(-1)[..., :-1] @ v


def by_sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(q @ k.transpose(2, 3) - 1) @ v


class Packed(nn.Module):
    """One weight for query, key and value, which forward slices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 16) / 4)
        self.bias = nn.Parameter(torch.randn(48) / 4)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q = F.linear(x, self.weight[:16], self.bias[:16])
        k, v = F.linear(x, self.weight[16:], self.bias[16:]).chunk(2, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v))


class Interleaved(nn.Module):
    """One linear for query, key and value, whose result becomes `[3, N, H, T, D]`."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class Cross(nn.Module):
    """Queries of one width attend to a memory of another, and weights are not asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, kdim=12, vdim=12, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.head(self.attention(x, memory, memory, need_weights=False)[0])


class Padded(nn.Module):
    """Attention that leaves out what a mask of the caller marks."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, padding, need_weights=False)[0])


class Encoder(nn.Module):
    """Two layers of PyTorch's encoder, with a mask of the caller."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=padding))


class Decoder(nn.Module):
    """A layer of PyTorch's decoder: causal attention, and attention to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        mask = torch.full((x.size(1), x.size(1)), float("-inf")).triu(1)
        return self.head(self.layer(x, memory, mask))


class Whole(nn.Module):
    """PyTorch's encoder and decoder in one, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(16, 4, 1, 1, 32, norm_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.net(x.transpose(0, 1), y.transpose(0, 1)).transpose(0, 1)


class Cached(nn.Module):
    """A step of a language model: keys and values of the steps before come in and go out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.head = nn.Linear(16, 30, bias=False)

    def forward(self, ids: Tensor, keys: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embedding(ids)
        q, k, v = self.qkv(x).split(16, -1)
        keys, rest = torch.cat([keys, k], 1), torch.cat([rest, v], 1)
        y = self.out(F.scaled_dot_product_attention(q, keys, rest)) + x
        return self.head(y), keys, rest


class RelativeTable(nn.Module):
    """A bias for each distance, looked up in a table, as in Swin and T5."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.table = nn.Embedding(9, 4)
        self.register_buffer("places", torch.arange(5).view(5, 1) - torch.arange(5) + 4)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 12, 4).transpose(1, 2).chunk(3, 1)
        bias = self.table(self.places).permute(2, 0, 1).unsqueeze(0)
        weights = torch.softmax(q @ k.transpose(2, 3) / 2 + bias, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    """A block of GPT-2: products by addmm, gelu by tanh, norms in front."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attend = nn.Parameter(torch.randn(16, 48) / 4)
        self.attend_bias = nn.Parameter(torch.randn(48) / 4)
        self.project = nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm1(x).view(-1, 16)
        q, k, v = (
            torch.addmm(self.attend_bias, rows, self.attend).view(-1, x.size(1), 48).chunk(3, 2)
        )
        x = x + self.project(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        y = self.up(self.norm2(x))
        y = 0.5 * y * (1 + torch.tanh(0.7978845608 * (y + 0.044715 * torch.pow(y, 3))))
        return x + self.down(y)


class Tokens(nn.Module):
    """A vision transformer: patches by a convolution, a class token, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 5, 16))
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.size(0), -1, -1), y], 1) + self.positions
        return self.head(self.layer(y)[:, 0])


def _with_memory(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, 16), torch.randn(n, 7, 12)


def _alike(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, 16), torch.randn(n, 7, 16)


def _with_padding(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, 16), torch.arange(5) >= torch.randint(2, 6, (n, 1))


def _with_cache(n: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randint(30, (n, 1)), torch.randn(n, 4, 16), torch.randn(n, 4, 16)


def _first_step(n: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randint(30, (n, 3)), torch.randn(n, 0, 16), torch.randn(n, 0, 16)


ROWS = values(5, 16)
ATTENTIONS = (
    fused, causal, scaled, grouped_queries, masked_by_bool, masked_by_infinities,
    filled_with_infinities, filled_with_smallest, in_batches, by_letters, biased_by_distance,
    rotary, cosine, linear, with_sink, by_sigmoid,
)  # fmt: skip

CASES = [
    *(Case(f"attention_{f.__name__}", lambda f=f: Heads(f), ROWS, int8=4) for f in ATTENTIONS),
    Case("attention_packed", Packed, ROWS, int8=3),
    Case("attention_interleaved", Interleaved, ROWS, int8=2, others=values(9, 16)),
    Case("attention_cross", Cross, _with_memory, int8=5),
    Case("attention_padded", Padded, _with_padding, int8=3),
    Case("attention_encoder", Encoder, _with_padding, int8=9),
    Case("attention_decoder", Decoder, _alike, int8=7),
    Case("attention_whole", Whole, _alike, int8=10),
    Case("attention_cached", Cached, _with_cache, int8=4, others=_first_step),
    Case("attention_relative_table", RelativeTable, ROWS, int8=2),
    Case("attention_block", Block, ROWS, int8=4),
    Case("attention_tokens", Tokens, lambda n: (torch.randn(n, 4, 8, 8),), int8=6),
]
