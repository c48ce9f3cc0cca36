"""Nets with planted bad layers, which lose accuracy in int8, among healthy ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


def spread(net: nn.Module) -> None:
    """Weights with which each layer's results are as large as its inputs, and no biases."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)


class ScaledChannel(nn.Module):
    """A channel 100 times as large as the others before a depthwise convolution, which divides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.mix = nn.Conv2d(16, 16, 1)
        self.expand = nn.Conv2d(16, 16, 1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.project = nn.Conv2d(16, 16, 1)
        self.last = nn.Conv2d(16, 24, 3, padding=1)
        self.head = nn.Linear(24, 10)
        spread(self)
        with torch.no_grad():
            self.expand.weight[3] *= 100
            self.depthwise.weight[3] /= 100

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.mix(torch.relu(self.stem(x))))
        y = torch.relu(self.depthwise(self.expand(y)))
        y = torch.relu(self.last(torch.relu(self.project(y))))
        return self.head(y.mean([2, 3]))


class Attention(nn.Module):
    """One dimension of the queries is 200 times as large as the others, of the keys as small."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 24)
        self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))
        self.out = nn.Linear(24, 24)
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 24)
        self.head = nn.Linear(24, 10)
        spread(self)
        with torch.no_grad():
            for linear, factor in ((self.q, 200), (self.k, 1 / 200)):
                linear.weight[5] *= factor

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        weights = torch.softmax(torch.matmul(self.q(y), self.k(y).transpose(1, 2)), -1)
        y = y + self.out(torch.matmul(weights, self.v(y)))
        y = y + self.down(torch.relu(self.up(y)))
        return self.head(y)


class Chain(nn.Module):
    """Convolutions, of which the configuration gives one weights of 2 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.ReLU())
              for i in range(8))
        )  # fmt: skip
        self.head = nn.Linear(16, 10)
        spread(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean([2, 3]))


class LongTail(nn.Module):
    """A swish of which one channel has a long tail, that is cut off behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.first = nn.Conv2d(16, 16, 3, padding=1)
        self.wide = nn.Conv2d(16, 16, 1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.third = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)
        spread(self)
        with torch.no_grad():
            self.wide.weight[7] *= 400

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(torch.relu(self.stem(x))))
        y = self.wide(y)
        y = y * torch.sigmoid(y)
        y = torch.relu(self.second(torch.clamp(y, max=1.0)))
        return self.head(torch.relu(self.third(y)).mean([2, 3]))


@dataclass(frozen=True)
class Planted:
    """A net and what is known of it.

    Attributes:
        net: class of the module.
        shape: of an input.
        bad: names of the layers to be found.
        budget: the least SQNR in dB.
        config: of the quantization.
        evaluations: the most that may be measured.
    """

    net: type[nn.Module]
    shape: tuple[int, ...]
    bad: frozenset[str]
    budget: float
    evaluations: int
    config: dict[str, Any] | None = field(default=None, hash=False)

    def model(self) -> torch.jit.ScriptModule:
        torch.manual_seed(0)
        return torch.jit.script(self.net().eval())

    def data(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(4, *self.shape, generator=generator) for _ in range(2)]


TWO_BITS = {"version": 1, "rules": [{"module": "body.4.0", "weight": {"bits": 2}}]}
STATIC = {"version": 1, "global": {"mode": "static"}}
PLANTED = {
    "scaled channel": Planted(
        ScaledChannel, (3, 8, 8), frozenset({"expand:conv2d", "depthwise:conv2d"}), 30, 4
    ),
    "attention": Planted(Attention, (6, 12), frozenset({"q:linear", "k:linear"}), 25, 6, STATIC),
    "2 bits": Planted(Chain, (3, 8, 8), frozenset({"body.4.0:conv2d"}), 25, 2, TWO_BITS),
    "long tail": Planted(LongTail, (3, 8, 8), frozenset({"wide:conv2d"}), 30, 3),
}
