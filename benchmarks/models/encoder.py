"""A transformer encoder (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762), norm first.

Operators one by one, as most hand-written encoders have them, instead of PyTorch's fused attention.
Weights and gains are drawn so that layers keep the variance of what they are given, and that
attention is neither equal for all tokens nor on one of them.
"""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 384


class Attention(nn.Module):
    """Every token's mean of all others, weighted by the softmax of products, in each head.

    With `causal`, of those up to itself.
    """

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, 2)
        q, k, v = self.split(q), self.split(k), self.split(v)
        scores = q @ k.transpose(-2, -1) * self.scale
        if self.causal:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        weights = torch.softmax(scores, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` to ``[batch, heads, tokens, width of a head]``."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention and two linear layers with a gelu, each added to its input."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    """Embedded tokens ``[batch, tokens, 384]`` to logits ``[batch, 1000]`` of their mean."""

    def __init__(
        self, layers: int = 6, width: int = WIDTH, heads: int = 6, causal: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(width, heads, causal) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.normal_(module.bias, std=0.1)
            elif isinstance(module, nn.LayerNorm):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(x)).mean(1))
