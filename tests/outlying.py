"""A sentence encoder with outlying dimensions, as pretrained transformers have them.

In these, a few dimensions of what a layer norm gives are 20 to 100 times larger than the rest
(Dettmers et al., "LLM.int8()", arXiv:2208.07339), and what reads them has learned smaller weights
for them. Random weights do not show that.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WORDS = 500
WIDTH = 96
DIMENSIONS = (5, 40)


class Layer(nn.Module):
    """Attention and two linears, a layer norm behind each: a layer of BERT."""

    def __init__(self, heads: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def split(self, x: Tensor) -> Tensor:
        """Return [batch, heads, tokens, width of a head]."""
        return x.reshape(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, tokens, width]."""
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)) * q.size(3) ** -0.5, -1)
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(x.shape)
        x = self.first(x + self.out(mixed))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """Tokens to one vector for each sentence."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [batch, width]."""
        x = self.norm(self.embedding(tokens))
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


def outlying(size: float, learned: float) -> Encoder:
    """Return an encoder in eval mode.

    Args:
        size: how many times larger the first of two dimensions is behind each norm.
        learned: the power of that by which the weights that read them are smaller; with 1 they
            count no more than others.
    """
    torch.manual_seed(0)
    model = Encoder().eval()
    factors = torch.ones(WIDTH)
    factors[list(DIMENSIONS)] = torch.tensor([size, 0.6 * size])
    with torch.no_grad():
        for layer in model.layers:
            assert isinstance(layer, Layer)
            for linear in (layer.q, layer.k, layer.v, layer.out, layer.up, layer.down):
                nn.init.normal_(linear.weight, std=0.5 * linear.in_features**-0.5)
            for linear in (layer.q, layer.k, layer.v, layer.up):
                linear.weight /= factors**learned
            layer.first.weight *= factors
            layer.second.weight *= factors
        model.norm.weight *= factors
        # The result is not to be those two dimensions and little else.
        assert isinstance(layer, Layer)
        layer.second.weight /= factors
    return model
