"""Models with layers that have state or modes of their own."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Stream(nn.Module):
    """A state that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(1, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.state = torch.cat([self.state[-2:], self.linear(x)])
        return self.state.cumsum(0)


class Lazy(nn.Module):
    """A state that the first call makes."""

    state: Optional[Tensor]  # noqa: UP045
    never: Optional[Tensor]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.state, self.never = None, None

    def forward(self, x: Tensor) -> Tensor:
        state, never = self.state, self.never
        new = x if state is None else state + x
        self.state = new
        return new if never is None else new + never


class OnlyInTraining(nn.Module):
    """A buffer that it writes to in training is read otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout()
        self.calls = 3
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.total = self.total + 1
            self.total.add_(1)
        return self.dropout(self.norm(x)) * self.total + self.calls


class Measures(nn.Module):
    """Statistics are measured, whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))
        self.register_buffer("weight", torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        y = F.batch_norm(x, self.mean, self.var, self.weight, training=True)
        return y.mean((0, 2, 3)) + self.mean + self.var


class MeasuresInstances(Measures):
    """Measures by the norm of single images."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.instance_norm(x, self.mean, self.var, self.weight, use_input_stats=True)
        return y.mean((0, 2, 3)) + self.mean + self.var


class NormInTraining(nn.Module):
    """A batch norm that stays in training mode, and one in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.fixed = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        for value in (*self.parameters(), *self.buffers()):
            if value.is_floating_point():
                value.data.uniform_(0.5, 2)

    def train(self, mode: bool = True) -> "NormInTraining":
        super().train(mode)
        self.trained.train()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.fixed(self.trained(x)).mean((0, 2, 3)) + self.trained.running_mean


class Shapes(nn.Module):
    """Operators next to which a trace writes the shapes of its example."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.register_buffer("state", torch.zeros(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).view(x.size(0), 2, 3).transpose(1, 2)
        self.state += y.reshape(-1, 6).mean(0, keepdim=True)
        return y.flatten(1).expand(x.size(0), 6) + self.state.expand_as(y.flatten(1))


class WrittenParameter(nn.Module):
    """A parameter that is written to without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.moving, self.fixed = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.moving.add_(1)
        return x * self.moving + self.fixed


class Recurrent(nn.Module):
    """An LSTM, which has its parameters in a list too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Attention(nn.Module):
    """Attention, whose module has a fast path and many attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]
