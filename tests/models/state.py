"""Models that remember: their buffers and attributes change in forward.

Quantizing runs the model on calibration data; none of that may show. The quantized module starts
from the state in which the float module was, and from then on its state changes as the float one's.
"""

import torch
from torch import Tensor, nn

from .case import Case, conv, images, values


class Counter(nn.Module):
    """Counts its calls in a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return torch.relu(self.conv(x)), self.calls.clone()


class Rebinder(nn.Module):
    """Counts its calls in a buffer that it rebinds, and in a Python number."""

    calls: int

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.calls = 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, int, Tensor]:
        self.calls += 1
        self.total = self.total + 1
        return torch.relu(self.conv(x)), self.calls, self.total


class MovingMean(nn.Module):
    """Keeps a moving mean of a convolution's output and subtracts it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.head = conv(8, 4)
        self.register_buffer("mean", torch.zeros(8, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        self.mean.mul_(0.9).add_(0.1 * y.mean([0, 2, 3]).view(8, 1, 1))
        return self.head(y - self.mean), self.mean.clone()


class Recurrent(nn.Module):
    """Carries a feature map from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.mix = conv(8, 8)
        self.register_buffer("hidden", torch.zeros(1, 8, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x) + self.hidden)
        self.hidden = torch.tanh(self.mix(y)).mean(0, keepdim=True)
        return y


class FirstCall(nn.Module):
    """Takes another branch on its first call than on the following ones."""

    ready: bool

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.ready = False
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.gain.fill_(2.0)
            self.ready = True
        return torch.relu(self.conv(x)) * self.gain


class Ring(nn.Module):
    """Writes each call's features into the next row of a buffer, and reads all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 16)
        self.head = nn.Linear(16, 5)
        self.register_buffer("rows", torch.zeros(4, 16))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.layer(x))
        self.rows.index_copy_(0, self.position, y.mean(0, keepdim=True))
        self.position.add_(1).remainder_(4)
        return self.head(y + self.rows.sum(0)), self.position.clone()


class CachedAttention(nn.Module):
    """Keys and values in buffers that are written in place, at a position that moves round."""

    position: int

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.position = 0
        self.register_buffer("keys", torch.zeros(8, 16))
        self.register_buffer("memory", torch.zeros(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        end = self.position + 2
        self.keys[self.position : end] = k[0]
        self.memory[self.position : end] = v[0]
        self.position = end % 8
        weights = torch.softmax(q @ self.keys[:end].t() / 4, -1)
        return self.out(weights @ self.memory[:end])


class Streaming(nn.Module):
    """A convolution over a stream: the last columns of a call go in front of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3)
        self.register_buffer("last", torch.zeros(1, 4, 2))

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.last.expand(x.size(0), -1, -1), x], 2)
        self.last = joined[:1, :, -2:].clone()
        return torch.relu(self.conv(joined))


class History(nn.Module):
    """A list of tensors as an attribute, which grows."""

    history: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.history = []

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        self.history.append(x.mean())
        return torch.relu(self.conv(x)) + torch.stack(self.history).sum(), len(self.history)


class Largest(nn.Module):
    """Keeps the largest number that it has seen, and divides by it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 16)
        self.register_buffer("largest", torch.ones(()))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        torch.maximum(self.largest, x.abs().max(), out=self.largest)
        return self.head(torch.relu(self.layer(x / self.largest))), self.largest.clone()


CASES = [
    Case("state_counter", Counter, images()),
    Case("state_rebinder", Rebinder, images(), trace=False),
    Case("state_moving_mean", MovingMean, images(), int8=2),
    Case("state_recurrent", Recurrent, images(), trace=False),
    Case("state_first_call", FirstCall, images(), trace=False),
    Case("state_ring", Ring, values(12), int8=2),
    # 256 numbers to calibrate by: one that is a fifth larger costs 20 dB.
    Case(
        "state_cache",
        CachedAttention,
        lambda _n: (torch.randn(1, 2, 16),),
        int8=2,
        trace=False,
        floor=15.0,
    ),
    Case("state_streaming", Streaming, values(4, 12), trace=False),
    Case("state_history", History, images(), trace=False),
    Case("state_largest", Largest, values(12), int8=2),
]
