"""Recurrent nets, transformers, embeddings and the normalizations that go with them.

The recurrences and the fused attention may stay float; the linear layers around them are int8.
"""

import torch
from torch import Tensor, nn

from .case import Case, conv, images, values


class Recurrence(nn.Module):
    """A recurrent layer between two linear ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.before = nn.Linear(12, 16)
        self.layer = layer
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(torch.relu(self.before(x)))[0]
        return self.head(states[:, -1])


class CellLoop(nn.Module):
    """An LSTM cell in a loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(12, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(x.size(0), 16)
        memory = torch.zeros(x.size(0), 16)
        for step in x.unbind(1):
            hidden, memory = self.cell(step, (hidden, memory))
        return self.head(hidden)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = self.attention(x, x, x)
        assert weights is not None
        return self.head(y), weights


class Transformer(nn.Module):
    """An encoder layer of torch between an embedding and a linear head."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(
            16, 4, dim_feedforward=32, batch_first=True, norm_first=norm_first
        )
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(ids)))


class Bag(nn.Module):
    """A bag of embeddings, given by ids and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(30, 16, mode="mean")
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.bag(ids, offsets))


class Normalized(nn.Module):
    """A normalization between two convolutions."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv1 = conv()
        self.norm = norm
        self.conv2 = conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(torch.relu(self.norm(self.conv1(x))))


class NormalizedRows(nn.Module):
    """A normalization over the last dimension, between two linear layers."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.norm = norm
        self.second = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)))


def _tokens(n: int) -> tuple[Tensor]:
    return (torch.randint(30, (n, 6)),)


def _bags(n: int) -> tuple[Tensor, Tensor]:
    return torch.randint(30, (4 * n,)), torch.arange(0, 4 * n, 4)


LSTM = {"input_size": 16, "hidden_size": 16, "batch_first": True}

CASES = [
    Case("lstm", lambda: Recurrence(nn.LSTM(**LSTM)), values(6, 12), int8=2),
    Case(
        "lstm_two_layers",
        lambda: Recurrence(nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True)),
        values(6, 12),
        int8=2,
    ),
    Case("gru", lambda: Recurrence(nn.GRU(**LSTM)), values(6, 12), int8=2),
    Case("rnn", lambda: Recurrence(nn.RNN(**LSTM)), values(6, 12), int8=2),
    Case("lstm_cell", CellLoop, values(6, 12)),
    # In eval mode these choose a fused kernel; the branch with linear layers is never taken.
    Case("multihead_attention", SelfAttention, values(5, 16)),
    Case("transformer_layer", lambda: Transformer(False), _tokens),
    Case("transformer_norm_first", lambda: Transformer(True), _tokens),
    Case("embedding_bag", Bag, _bags),
    Case("layer_norm", lambda: NormalizedRows(nn.LayerNorm(16)), values(6, 12), int8=2),
    Case(
        "layer_norm_plain",
        lambda: NormalizedRows(nn.LayerNorm(16, elementwise_affine=False)),
        values(12),
        int8=2,
    ),
    Case("rms_norm", lambda: NormalizedRows(nn.RMSNorm(16)), values(6, 12), int8=2),
    Case("group_norm", lambda: Normalized(nn.GroupNorm(2, 8)), images(), int8=2),
    Case("instance_norm", lambda: Normalized(nn.InstanceNorm2d(8, affine=True)), images(), int8=2),
    Case("instance_norm_plain", lambda: Normalized(nn.InstanceNorm2d(8)), images(), int8=2),
    Case("local_response_norm", lambda: Normalized(nn.LocalResponseNorm(3)), images(), int8=2),
    Case("layer_norm_image", lambda: Normalized(nn.LayerNorm([8, 8, 8])), images(), int8=2),
]
