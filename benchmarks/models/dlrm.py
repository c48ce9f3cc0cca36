"""DLRM, a recommender (Naumov et al., 2019, https://arxiv.org/abs/1906.00091).

With the columns of Criteo's click logs, 13 counts and 26 categories of each row, and the widths
that the paper's authors publish for these.
"""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

COUNTS = 13
CATEGORIES = 26


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with a relu behind each, the last one's left away."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Rows ``[batch, 39]`` of whole numbers, counts and then categories, to logits ``[batch, 1]``.

    Dot products of all pairs of embeddings, and of these with what is made of the counts.
    """

    def __init__(self, entries: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(entries, width) for _ in range(CATEGORIES))
        self.counts = perceptron(COUNTS, 512, 256, 64, width)
        pairs = (CATEGORIES + 1) * CATEGORIES // 2
        self.top = perceptron(width + pairs, 512, 256, 1)
        rows, columns = torch.tril_indices(CATEGORIES + 1, CATEGORIES + 1, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, x: Tensor) -> Tensor:
        dense = torch.relu(self.counts(x[:, :COUNTS].float().log1p()))
        vectors = [table(x[:, COUNTS + index]) for index, table in enumerate(self.embeddings)]
        stacked = torch.stack([dense, *vectors], 1)
        products = stacked @ stacked.transpose(1, 2)
        return self.top(torch.cat([dense, products[:, self.rows, self.columns]], 1))


def clicks(batch: int, seed: int) -> Tensor:
    """``batch`` rows: counts with a long tail, and categories of which a few are frequent."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randn(batch, COUNTS, generator=generator).exp()
    categories = 1000 * torch.rand(batch, CATEGORIES, generator=generator) ** 3
    return torch.cat([3 * counts, categories], 1).long()
