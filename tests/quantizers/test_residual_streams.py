"""Residual sums that read each other, in float on `x86`, where no layer takes them into its own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.targets import X86

WIDTH, BLOCKS = 16, 8


class Block(nn.Module):
    """A depthwise convolution, a layer norm and two linears over channels, added to the input."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.mix = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.norm = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + 0.1 * self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class Fused(nn.Module):
    """Two convolutions, the second of which adds the input before it rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


class Net(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, WIDTH, 1), nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean([2, 3]))


def net(kind: str = "norms") -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    model = Net([Fused() if kind == "fused" else Block(kind == "norms") for _ in range(BLOCKS)])
    if kind == "none":
        model.head[0] = nn.Identity()
    return torch.jit.script(model.eval())


def images(seed: int) -> Tensor:
    return torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


DATA, TEST = [images(1), images(2)], images(3)


def rounded(model: torch.jit.ScriptModule, **options: Any) -> int:
    """Return how many sums are on integers."""
    rows = jit_passes.inspect(model, **{"target": "x86", "mode": "static", **options})
    return sum(row.kind == "aten::add" and row.dtype == "int8" for row in rows)


def error(model: torch.jit.ScriptModule, **options: Any) -> float:
    quantized = jit_passes.quantize_script(
        model, DATA, target="x86", mode="static", progress=False, **options
    )
    with torch.no_grad():
        return float((quantized(TEST) - model(TEST)).square().mean())


def test_sums_in_float() -> None:
    """No sum is rounded, and all are in one region none the less."""
    model = net()
    assert rounded(model) == 0
    quantized = jit_passes.quantize_script(model, DATA, target="x86", progress=False)
    assert sum(hasattr(module, "compiled") for module in quantized.modules()) == 1


def test_a_rule_takes_it_back() -> None:
    """With sums on integers as before, the result has more error."""
    model = net()
    config = {"version": 1, "rules": [{"op": "add", "keep_float": False}]}
    assert rounded(model, config=config) == BLOCKS
    assert 10 * math.log10(error(model, config=config) / error(model)) > 2
    few = {"version": 1, "rules": [{"module": "blocks.0", "weight": {"bits": 4}}]}
    assert rounded(model, config=few) == 0  # a rule about weights says nothing of sums


@pytest.mark.parametrize(
    ("kind", "options", "count"),
    [
        ("fused", {}, BLOCKS),
        ("none", {}, BLOCKS),
        ("norms", {"target": "reference"}, BLOCKS),
        ("norms", {"target": X86(integer_layer_norm=True)}, BLOCKS),
    ],
)
def test_where_not(kind: str, options: dict[str, Any], count: int) -> None:
    """Layers add before they round, a network has no norms, a target has no float in regions."""
    assert rounded(net(kind), **options) == count


def test_patches_in_front() -> None:
    """In the mode auto, a convolution of patches gives float32 to the sums."""
    torch.manual_seed(0)
    model = Net([Block(True) for _ in range(2)])
    model.stem = nn.Conv2d(3, WIDTH, 2, stride=2)
    scripted = torch.jit.script(model.eval())
    quantized = jit_passes.quantize_script(scripted, DATA, target="x86", progress=False)
    rows = {row.name: row for row in jit_passes.coverage(quantized)}
    assert {name for name, row in rows.items() if row.mode == "dynamic"} == {"stem:conv2d"}
    assert "residual sums in float32" in rows["stem:conv2d"].why
    static = jit_passes.quantize_script(scripted, DATA, target="stock", progress=False)
    assert all(row.mode == "static" for row in jit_passes.coverage(static))
