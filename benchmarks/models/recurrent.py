"""Recurrent nets as speech and language models have them: an LSTM that tags, a GRU that listens."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.models.audio import FEATURES


class Tagger(nn.Module):
    """Embedded tokens ``[batch, tokens, 384]`` to scores of tags ``[batch, tokens, 40]``.

    Two bidirectional LSTM layers (Huang et al., 2015, https://arxiv.org/abs/1508.01991).
    """

    def __init__(self, width: int = 384, hidden: int = 256, tags: int = 40) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, 2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(2 * hidden, tags)

    def forward(self, x: Tensor) -> Tensor:
        return self.tags(self.lstm(x)[0])


class WordTagger(nn.Module):
    """Words ``[batch, tokens]`` to scores of tags: an embedding and :class:`Tagger`."""

    def __init__(self, words: int = 1000, width: int = 384) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.tagger = Tagger(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.tagger(self.words(x))


class Listener(nn.Module):
    """Features ``[batch, 64, frames]`` to scores of letters ``[batch, frames / 2, 29]``.

    A convolution that halves the frames, and three GRU layers, as in Deep Speech 2 (Amodei et al.,
    2015, https://arxiv.org/abs/1512.02595), smaller and in one direction.
    """

    def __init__(self, hidden: int = 512, letters: int = 29) -> None:
        super().__init__()
        self.stem = nn.Conv1d(FEATURES, 128, 11, 2, 5)
        self.relu = nn.ReLU()
        self.gru = nn.GRU(128, hidden, 3, batch_first=True)
        self.letters = nn.Linear(hidden, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.letters(self.gru(self.relu(self.stem(x)).transpose(1, 2))[0])
