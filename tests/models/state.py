"""Models that remember: their buffers and attributes change in forward.

Quantizing runs the model on calibration data; none of that may show. The quantized module starts
from the state in which the float module was, and from then on its state changes as the float one's.
"""

import torch
from torch import Tensor, nn

from .case import Case, conv, images


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


CASES = [
    Case("state_counter", Counter, images()),
    Case("state_rebinder", Rebinder, images(), trace=False),
    Case("state_moving_mean", MovingMean, images(), int8=2),
    Case("state_recurrent", Recurrent, images(), trace=False),
    Case("state_first_call", FirstCall, images(), trace=False),
]
