"""Operands that are rare: bounds and powers that are tensors, weights that are vectors, masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from tests.advice import traced_branches
from tests.processor import VNNI


class Clipped(nn.Module):
    """By tensors of one number, which are numbers, and by one for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        for name, bound in (("low", -6.0), ("high", 6.0)):
            self.register_buffer(name, torch.tensor(bound))
            self.register_buffer(f"{name}s", torch.full((8,), bound))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.clamp(self.one(x), self.low, self.high)
        return self.two(torch.clamp(y, self.lows, self.highs))


class Powers(nn.Module):
    """An exponent for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3)
        self.power = nn.Parameter(torch.rand(8, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.pow(self.conv(x.transpose(1, 2)[:, :4]).relu() + 0.1, self.power)


class Scored(nn.Module):
    """A linear layer whose weight is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.vector = nn.Linear(8, 8), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.linear(x), self.vector)


@pytest.mark.parametrize("target", ["stock", "x86", "reference"])
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
@pytest.mark.parametrize("net", [Clipped, Powers, Scored])
@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")
def test_rare_operands(net: type[nn.Module], mode: str, target: str) -> None:
    torch.manual_seed(0)
    model = torch.jit.script(net().eval())
    data = [torch.randn(2, 8, 8) for _ in range(4)]
    quantized = jit_passes.quantize_script(model, data, mode=mode, target=target, progress=False)
    with torch.no_grad():
        expected, found = model(data[0]), quantized(data[0])
    assert (found - expected).norm() < 0.05 * expected.norm()


class Masked(nn.Module):
    """A mask that hides tokens, as truths or whole numbers, and how many are left."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = mask.unsqueeze(-1)
        y = self.one(x) * wide
        count = mask.sum(1, keepdim=True)
        return self.two(self.norm(y.sum(1) / count)), count, wide


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("frontend", ["trace", "script"])
@pytest.mark.parametrize("target", ["stock", "x86"])
def test_masks(target: str, frontend: str, dtype: torch.dtype) -> None:
    """Masks come in beside float32, and a result made of masks keeps its dtype."""
    torch.manual_seed(0)
    net = Masked().eval()
    data = [(torch.randn(3, 5, 8), (torch.rand(3, 5) > 0.3).to(dtype)) for _ in range(4)]
    model: Any = torch.jit.script(net) if frontend == "script" else torch.jit.trace(net, data[0])
    for mode in ("static", "dynamic"):
        quantized = jit_passes.quantize_script(
            model, data, mode=mode, target=target, progress=False
        )
        for batch in data:
            with torch.no_grad():
                expected, found = net(*batch), quantized(*batch)
            assert (found[0] - expected[0]).norm() < 0.05 * expected[0].norm()
            for exact, same in zip(expected[1:], found[1:], strict=True):
                assert torch.equal(exact, same) and exact.dtype == same.dtype


class Cached(nn.Module):
    """A cache that begins with a tensor of no numbers, as traces of decoders have it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.cat([torch.tensor([], dtype=x.dtype), self.one(x)], dim=-2))


@traced_branches
@pytest.mark.parametrize("target", ["stock", "x86", "reference"])
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_a_cache_of_nothing(mode: str, target: str) -> None:
    torch.manual_seed(0)
    data = [torch.randn(2, 5, 16) for _ in range(4)]
    model = torch.jit.trace(Cached().eval(), data[0])
    quantized = jit_passes.quantize_script(model, data, mode=mode, target=target, progress=False)
    x = torch.randn(1, 7, 16)
    with torch.no_grad():
        most = 0.05 if target != "stock" or VNNI else 0.1  # else activations have 7 bits
        assert (quantized(x) - model(x)).norm() < most * model(x).norm()


class Counted(nn.Module):
    """Whole numbers that the model computes with, before a norm makes them floats."""

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.count = count

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        return self.two(self.norm(self.one(x) + self.count(m)))


def doubled(m: Tensor) -> Tensor:
    return m + m


def difference(m: Tensor) -> Tensor:
    return m - (m - 1)


def cast(m: Tensor) -> Tensor:
    return torch.sigmoid(m.float())


def quotient(m: Tensor) -> Tensor:
    return m / 3


def truncated(m: Tensor) -> Tensor:
    return (m.float() * 0.7).to(torch.int64) - m * 2**29


def hidden(m: Tensor) -> Tensor:
    return -(1 - m) * 1e-2


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("count", "dtype"),
    [
        *((doubled, torch.bool), (doubled, torch.uint8), (difference, torch.int64)),
        *((cast, torch.int64), (quotient, torch.int64), (hidden, torch.int64)),
        (truncated, torch.int64),
    ],
)
def test_whole_numbers_stay_whole(count: Any, dtype: torch.dtype, mode: str) -> None:
    torch.manual_seed(0)
    model = torch.jit.script(Counted(torch.jit.script(count)).eval())
    numbers = {torch.bool: (0, 2), torch.uint8: (120, 140), torch.int64: (0, 5)}[dtype]
    offset = 2**30 if count is difference else 0
    data = [
        (torch.randn(4, 8), (torch.randint(*numbers, (4, 8)) + offset).to(dtype)) for _ in range(4)
    ]
    lowered = jit_passes.quantize_script(model, data, mode=mode, target="x86", progress=False)
    for batch in data:
        with torch.no_grad():
            expected = model(*batch)
            assert (lowered(*batch) - expected).norm() < 0.06 * expected.norm()


class Widened(nn.Module):
    """A write keeps the dtype of what is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("places", torch.randn(8, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        y += self.places
        return self.two(y)


@pytest.mark.parametrize("target", ["stock", "x86", "reference"])
def test_a_write_of_a_wider_dtype(target: str) -> None:
    torch.manual_seed(0)
    model = torch.jit.script(Widened().eval())
    data = [torch.randn(4, 8) for _ in range(4)]
    quantized = jit_passes.quantize_script(model, data, target=target, progress=False)
    with torch.no_grad():
        expected = model(data[0])
        assert (quantized(data[0]) - expected).norm() < 0.05 * expected.norm()


class Mixture(nn.Module):
    """Parameters that stay in float, some of them in each mode."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear, self.norm = nn.Embedding(9, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.conv = nn.Conv1d(8, 8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return self.norm(self.linear(x)) + self.conv(x.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("target", ["stock", "x86", "reference"])
@pytest.mark.parametrize("mode", ["auto", "static", "dynamic", "weight_only"])
@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")
def test_training_on_does_not_change_the_result(mode: str, target: str) -> None:
    """A quantized model has memory of its own for all of its numbers."""
    torch.manual_seed(0)
    model = torch.jit.script(Mixture().eval())
    ids = torch.randint(0, 9, (2, 5))
    quantized = jit_passes.quantize_script(model, [ids], mode=mode, target=target, progress=False)
    expected = quantized(ids)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    assert torch.equal(quantized(ids), expected)
