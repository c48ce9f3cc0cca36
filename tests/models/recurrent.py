"""Recurrent layers and cells in the forms that taggers and speech nets have them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .case import Case, conv, values


class Layered(nn.Module):
    """A recurrent layer of any kind, read by a linear at each step."""

    def __init__(self, layer: nn.Module, width: int = 16) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


class Carried(nn.Module):
    """States come in and go out, and time is the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(12, 16)
        self.head = nn.Linear(16, 5)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.layer(x, state)
        return self.head(y), state


class PackedTagger(nn.Module):
    """Words of sentences of several lengths, by an LSTM both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12)
        self.layer = nn.LSTM(12, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(ids), lengths, True, False)
        y, _ = pad_packed_sequence(self.layer(packed)[0], True)
        return self.head(y)


class PackedSpeech(nn.Module):
    """Features of several lengths, sorted, by a GRU; its last state is the result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(12, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self.layer(pack_padded_sequence(x, lengths, batch_first=True))[1][-1])


class GruLoop(nn.Module):
    """A GRU cell in a loop, whose states are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(12, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.size(0), 16)
        states: list[Tensor] = []
        for step in range(x.size(1)):
            state = self.cell(x[:, step], state)
            states.append(state)
        return self.head(torch.stack(states, 1))


class RnnLoop(nn.Module):
    """An RNN cell in a loop that runs backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(12, 16, nonlinearity="relu")
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.size(0), 16)
        for step in x.flip(1).unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class StackedCells(nn.Module):
    """Two LSTM cells, one on the other, with lists of states."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(12, 16), nn.LSTMCell(16, 16)])
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = [torch.zeros(x.size(1), 16) for _ in range(2)]
        memory = [torch.zeros(x.size(1), 16) for _ in range(2)]
        y = x[0]
        for t in range(x.size(0)):
            y = x[t]
            for i, cell in enumerate(self.cells):
                hidden[i], memory[i] = cell(y, (hidden[i], memory[i]))
                y = hidden[i]
        return self.head(y)


class HandWrittenLstm(nn.Module):
    """An LSTM of one linear, as in papers' code."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(28, 64)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden, memory = x.new_zeros(x.size(0), 16), x.new_zeros(x.size(0), 16)
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([step, hidden], 1)).chunk(4, 1)
            memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(memory)
        return self.head(hidden)


class MinimalGate(nn.Module):
    """A recurrence of two linears with one gate, carried by a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(28, 16)
        self.step = nn.Linear(28, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.size(0), 16)
        for t in range(x.size(1)):
            both = torch.cat([x[:, t], state], 1)
            gate = torch.sigmoid(self.gate(both))
            state = (1 - gate) * state + gate * torch.tanh(self.step(both))
        return self.head(state)


class ConvolutionalLstm(nn.Module):
    """A recurrence over images."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = conv(8, 16)
        self.head = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros_like(x[:, 0])
        memory = torch.zeros_like(x[:, 0])
        for t in range(x.size(1)):
            i, f, g, o = self.gates(torch.cat([x[:, t], hidden], 1)).chunk(4, 1)
            memory = memory * f.sigmoid() + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * memory.tanh()
        return self.head(hidden)


class SpeechNet(nn.Module):
    """Convolutions in time, a GRU both ways, and a distribution for each step."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(12, 16, 3, 2, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.layer = nn.GRU(16, 8, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(self.front(x.transpose(1, 2)).transpose(1, 2))[0]
        return torch.log_softmax(self.head(y), -1)


class EncoderDecoder(nn.Module):
    """A GRU reads, and a cell writes five steps, each from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(12, 16, batch_first=True)
        self.cell = nn.GRUCell(5, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = self.encoder(x)[1][0]
        step = torch.zeros(x.size(0), 5)
        steps: list[Tensor] = []
        for _ in range(5):
            state = self.cell(step, state)
            step = torch.tanh(self.head(state))
            steps.append(step)
        return torch.stack(steps, 1)


class Scores(nn.Module):
    """A recommender: bags of features, dense ones beside, and products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(30, 8, mode="sum") for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.dense(dense)
        parts = [x]
        for i, bag in enumerate(self.bags):
            parts.append(bag(ids[:, i]))
        stacked = torch.stack(parts, 1)
        products = stacked @ stacked.transpose(1, 2)
        pairs = torch.tril_indices(4, 4, -1)
        return self.head(torch.cat([x, products[:, pairs[0], pairs[1]]], 1))


def _of(name: str, layer: Callable[[], nn.Module], width: int = 16, int8: int = 2) -> Case:
    return Case(name, lambda: Layered(layer(), width), STEPS, int8=int8)


def _with_states(n: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    return torch.randn(6, n, 12), (torch.randn(1, n, 16), torch.randn(1, n, 16))


def _sentences(n: int) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(1, 7, (n,))
    lengths[0] = 6
    return torch.randint(30, (n, 6)), lengths


def _sorted(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6, 12), torch.randint(1, 7, (n,)).sort(descending=True)[0]


STEPS = values(6, 12)
TIME_FIRST = {"input_size": 12, "hidden_size": 16}
BATCH_FIRST = TIME_FIRST | {"batch_first": True}

CASES = [
    _of("lstm_time_first", lambda: nn.LSTM(**TIME_FIRST)),
    _of("lstm_no_bias", lambda: nn.LSTM(**BATCH_FIRST, bias=False)),
    _of("lstm_projected", lambda: nn.LSTM(**BATCH_FIRST, proj_size=8), 8, int8=1),
    _of("gru_both_ways", lambda: nn.GRU(12, 8, 2, batch_first=True, bidirectional=True)),
    _of("rnn_relu", lambda: nn.RNN(**BATCH_FIRST, nonlinearity="relu")),
    _of("rnn_two_layers", lambda: nn.RNN(12, 8, 2, batch_first=True, bidirectional=True)),
    # `n` steps of one sequence.
    Case(
        "lstm_no_batch",
        lambda: Layered(nn.LSTM(**TIME_FIRST)),
        lambda n: (torch.randn(n, 12),),
        int8=2,
    ),
    Case("lstm_states", Carried, _with_states, int8=2),
    Case("packed_tagger", PackedTagger, _sentences, int8=3, trace=False),
    Case("packed_speech", PackedSpeech, _sorted, int8=2, trace=False),
    Case("gru_loop", GruLoop, STEPS, int8=2, others=values(9, 12)),
    Case("rnn_loop", RnnLoop, STEPS, int8=2),
    Case("stacked_cells", StackedCells, lambda n: (torch.randn(6, n, 12),), int8=3),
    Case("hand_written_lstm", HandWrittenLstm, STEPS, int8=2, floor=20.0),
    Case("minimal_gate", MinimalGate, STEPS, int8=3, floor=20.0),
    Case("convolutional_lstm", ConvolutionalLstm, values(5, 4, 8, 8), int8=2, floor=20.0),
    Case("speech_net", SpeechNet, values(10, 12), int8=3),
    Case("encoder_decoder", EncoderDecoder, STEPS, int8=3),
    Case(
        "recommender", Scores, lambda n: (torch.randn(n, 12), torch.randint(30, (n, 3, 4))), int8=7
    ),
]
