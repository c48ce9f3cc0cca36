"""Views that are written to, of what is computed from quantized operators' results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes


def contiguous(y: Tensor) -> Tensor:
    u = F.relu(y) * 2
    v = u.contiguous()
    u.neg_()
    return v


def reshape(y: Tensor) -> Tensor:
    u = y * 2
    v = u.reshape(2, -1)
    u.neg_()
    return v


def flatten(y: Tensor) -> Tensor:
    u = y * 2
    u.flatten(1).add_(1)
    return u


def view(y: Tensor) -> Tensor:
    y = y + y[:, :1] * 0.5
    y.view(-1).add_(0.25)
    return y


def permuted(y: Tensor) -> Tensor:
    """A copy in float: a channels-last tensor would be a view."""
    u = y.permute(0, 2, 3, 1) * 2
    v = u.contiguous()
    u.neg_()
    return v


def transposed(y: Tensor) -> Tensor:
    u = y.transpose(2, 3).transpose(2, 3) * 2
    v = u.reshape(-1)
    u.neg_()
    return v


def branch(y: Tensor) -> Tensor:
    u = y * 2
    if bool(y.sum() > -1e9):
        u = u + 1
    v = u.contiguous()
    u.neg_()
    return v


def loop(y: Tensor) -> Tensor:
    u = y * 2
    for _ in range(int(y.size(0))):
        u = u + y
    v = u.flatten()
    u.neg_()
    return v


class Net(nn.Module):
    """A convolution, and what follows on it."""

    def __init__(self, tail: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.tail = tail

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.conv(x))


@pytest.mark.parametrize("target", ["stock", "x86"])
@pytest.mark.parametrize(
    "tail", [contiguous, reshape, flatten, view, permuted, transposed, branch, loop]
)
def test_written_views(tail: Callable[[Tensor], Tensor], target: str) -> None:
    """Views and copies are those of the float model, though int8 convolutions are channels-last."""
    torch.manual_seed(0)
    batches = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    net = Net(torch.jit.script(tail)).eval()
    script = torch.jit.script(net)
    quantized = jit_passes.quantize_script(script, batches, target=target, progress=False)
    assert [row.name for row in jit_passes.coverage(quantized).int8] == ["conv:conv2d"]
    with torch.no_grad():
        expected, found = net(batches[0]), quantized(batches[0])
    assert (expected - found).norm() < 0.05 * expected.norm()


class Told(nn.Module):
    """A model that asks how its tensors lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, list[int], bool]:
        y = self.conv(x)
        return y.as_strided((2, 4, 3), (8, 2, 1)), y.stride(), y.is_contiguous()


class Overlapping(nn.Module):
    """Windows of a sequence, cut out of the memory of a view, as Longformer does."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x).view(6, 3, 2, 8).transpose(0, 1).transpose(1, 2).reshape(6, 6, 8)
        return self.out(y.as_strided((6, 6, 8), (8, 48, 1)))


@pytest.mark.parametrize("target", ["stock", "x86"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_windows_of_a_view(mode: str, target: str) -> None:
    """The way to a view stays outside of regions, whose results lie in another order."""
    torch.manual_seed(0)
    data = [torch.randn(6, 3, 16) for _ in range(4)]
    for model in (torch.jit.script(Overlapping()), torch.jit.trace(Overlapping(), data[0])):
        model.eval()
        quantized = jit_passes.quantize_script(
            model, data, mode=mode, target=target, progress=False
        )
        with torch.no_grad():
            expected, found = model(data[0]), quantized(data[0])
        assert (expected - found).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("target", ["stock", "x86"])
def test_what_a_model_asks_of_memory(target: str) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    script = torch.jit.script(Told().eval())
    quantized = jit_passes.quantize_script(script, batches, target=target, progress=False)
    with torch.no_grad():
        expected, found = script(batches[0]), quantized(batches[0])
    assert found[1:] == expected[1:]
    assert (expected[0] - found[0]).norm() < 0.05 * expected[0].norm()
