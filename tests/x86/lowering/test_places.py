"""Results of a plan that take the place of an operand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from tests.plans import Grid, Weighted, plan_of, traced


def layer(inputs: int, outputs: int) -> Weighted:
    """A convolution in which float32 has all numbers exactly."""
    weighted = Weighted(nn.Conv2d(inputs, outputs, 1), exact=True)
    weighted.scales *= 2.0**-6
    return weighted


class Residuals(nn.Module):
    """Convolutions whose results are added to what they read, and rounded once."""

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.x, self.hidden, self.sum = Grid(1.0, 100), Grid(1.0, 0), Grid(1.0, 120)
        self.first = nn.ModuleList(layer(width, hidden) for _ in range(layers))
        self.second = nn.ModuleList(layer(hidden, width) for _ in range(layers))
        self.square = layer(width, width)

    def added(self, x: Tensor, i: int) -> Tensor:
        return self.sum(x + self.second[i](self.hidden(F.relu(self.first[i](x)))))

    def forward(self, x: Tensor) -> Tensor:
        x = self.x(x)
        for i in range(len(self.first)):
            x = self.added(x, i)
        return F.max_pool2d(x, x.shape[-1])


class Twice(Residuals):
    """The sum adds to what its own convolution reads."""

    def forward(self, x: Tensor) -> Tensor:
        return self.sum(self.x(x) + self.square(self.x(x)))


class Kept(Residuals):
    """The operand of a sum is read once more behind it."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.x(x)
        for i in range(len(self.first)):
            x = self.sum(self.added(x, i) + self.square(x))
        return x


class Returned(Residuals):
    """The operand of a sum is a result of the plan."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.added(self.x(x), 0)
        return self.added(x, 1), x


def run(net: nn.Module, x: Tensor) -> int:
    """Compare a plan with its region, bit for bit, and return the bytes that it allocates."""
    region = traced(net.eval(), x)
    plan = plan_of(region)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        got = plan.run([x])
    wanted = region(x)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    return max(event.cpu_memory_usage for event in profiler.key_averages())


@pytest.mark.parametrize("size", [9, 32])
def test_sums_of_codes(size: int) -> None:
    """One place for all sums, and one for what is in between."""
    torch.manual_seed(0)
    net = Residuals(64, 16, 5)
    pixels = 2 * size**2
    assert pixels * 80 <= run(net, torch.randn(2, 64, size, size) * 20) < pixels * 80 + 1000


# With 300 pixels a side, layers are computed depth first: all in one step.
@pytest.mark.parametrize("size", [9, 300])
@pytest.mark.parametrize("kind", [Twice, Kept, Returned])
def test_what_is_read_elsewhere_stays(kind: type[Residuals], size: int) -> None:
    torch.manual_seed(1)
    run(kind(24, 16, 2), torch.randn(1, 24, size, size) * 20)


class Sums(nn.Module):
    """Float32 from the first layer to the last, as in a transformer."""

    def __init__(self, width: int, layers: int, keeps: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Weighted(nn.Linear(width, width), exact=True) for _ in range(layers)
        )
        self.read, self.made, self.keeps = Grid(8.0, 128), Grid(4.0, 120), keeps

    def forward(self, x: Tensor) -> Tensor:
        first = x = x * 2
        for linear in self.layers:
            x = x + self.made(linear(self.read(x)))
        return x[:, :1] * first[:, :1] if self.keeps else x[:, :1]


@pytest.mark.parametrize("keeps", [False, True])
def test_sums_of_float32(keeps: bool) -> None:
    torch.manual_seed(2)
    x = torch.randint(-400, 400, (4, 33, 48)).float()
    values = (
        4 + 2 + 4 * keeps
    )  # float32, codes that a layer reads and gives, and what the first sum adds to
    taken = run(Sums(48, 6, keeps), x)
    assert values * x.numel() <= taken < values * x.numel() + 3000
