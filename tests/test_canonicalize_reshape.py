"""Reshapes by computed sizes, in terms of the axes that they join and split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes.stages.normalize import normalize


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        n, c, h, w = x.size()
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).contiguous()
        return x.view(n, c, h, w)


class Gate(nn.Module):
    """Squeeze and excitation, as its authors write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        n, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(n, c)
        y = torch.sigmoid(self.fc(y)).view(n, c, 1, 1)
        return x * y


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return x.view(x.size(0), -1)


class Tokens(nn.Module):
    """Pixels in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        n, c = x.shape[0], x.shape[1]
        return x.reshape(n, c, -1).transpose(1, 2)


class Sizes(nn.Module):
    """Sizes behind the last axis, of another value, and of a number that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z = y.reshape(y.size(0), y.size(1), -1, 2)
        return z.reshape(y.size(0), 2, 3, y.size(-2), y.size(-1)).flatten(0, 1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "shuffle": Shuffle, "gate": Gate, "head": Head, "tokens": Tokens, "sizes": Sizes,
}  # fmt: skip
LEFT = {"sizes": {"aten::reshape", "aten::size"}}


@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
@pytest.mark.parametrize("name", MODELS)
def test_the_model_stays_the_same(name: str, traced: bool) -> None:
    """At any sizes; and nothing asks for them any more."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    x = torch.randn(2, 3, 8, 10)
    script = torch.jit.trace(model, x) if traced else torch.jit.script(model)
    module = normalize(script._c).module
    found = {node.kind for node in jit_passes.GraphView.of(module).nodes}
    assert found & {"aten::reshape", "aten::view", "aten::size"} == LEFT.get(name, set())
    for size in ((2, 3, 8, 10), (1, 3, 12, 8), (5, 3, 4, 4)):
        x = torch.randn(size)
        assert torch.equal(module.forward(x), model(x))


def test_sizes_after_a_write() -> None:
    """A value that changes its shape in place has other sizes before and after."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            n, c = x.size(0), x.size(2)
            x.transpose_(1, 2)
            return x.reshape(n, c, -1)

    model = Written().eval()
    module = normalize(torch.jit.script(model)._c).module
    x = torch.randn(2, 3, 5, 7)
    assert torch.equal(module.forward(x), model(x))
