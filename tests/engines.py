"""Small networks for tests of engines, and what is promised of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import quantize_script
from jit_passes.stages.module import Report
from tests.processor import VNNI


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))
        self.b = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.b(torch.relu(self.a(x))))


class Network(nn.Module):
    """A residual block, relu6, depthwise, concatenation, pools, linears and products."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU6())
        self.block = Block(8)
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.ReLU6())
        self.one, self.two = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, image: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.depthwise(self.block(self.stem(image))), 2)
        tokens = torch.cat([self.one(y), self.two(y)], 1).flatten(2).transpose(1, 2)
        scores = torch.matmul(self.query(tokens), self.key(tokens).transpose(1, 2))
        y = torch.matmul(torch.softmax(scores, -1), tokens).transpose(1, 2).unflatten(2, (4, 4))
        return self.head(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


class Between(nn.Module):
    """A function between two convolutions of one to three dimensions."""

    def __init__(self, function: nn.Module, dims: int = 2) -> None:
        super().__init__()
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.first, self.second = kind(4, 4, 3), kind(4, 4, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


def data(*shape: int, count: int = 3) -> list[Tensor]:
    """Return batches that reach beyond 6, where relu6 clips."""
    generator = torch.Generator().manual_seed(0)
    return [3 * torch.randn(shape, generator=generator) for _ in range(count)]


def quantized(model: nn.Module, batches: list[Tensor], target: str, **options: Any) -> Any:
    torch.manual_seed(0)
    scripted = torch.jit.script(model.eval())
    given = {"mode": "static", "progress": False} | options
    if target in ("onnxruntime", "inductor") and given["mode"] == "static" and not VNNI:
        # Their kernels add pairs of products in int16, where weights of 8 bits overflow.
        config = given.get("config") or {"version": 1}
        few = {"weight": {"bits": 7}} | config.get("global", {})
        given["config"] = {**config, "global": few}
    return quantize_script(scripted, batches, target=target, **given)


def promised(model: Any) -> int:
    """Return how many operators coverage says are on integers."""
    return sum(row.dtype == "int8" for row in Report.read(model).operators)


def apart(found: Tensor, model: Any, x: Tensor) -> float:
    """Return the largest difference from the reference model, in steps of the result."""
    step = jit_passes.encodings_of(model).activations[-1].scale[0]
    return float((found - model(x)).abs().max()) / step
