"""Nets with gates in plans: a Conformer, gated convolutions, and decoders of recurrent cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import plans_in
from tests.quantizing import seeded

MODES = pytest.mark.parametrize("mode", ["static", "dynamic"])
HOW = pytest.mark.parametrize("how", ["script", "trace"])


class Feed(nn.Module):
    """The feed-forward half of a Conformer's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(self.norm(x))))


class Conformer(nn.Module):
    """Gulati et al., "Conformer", Interspeech 2020, figure 1: one block behind subsampling."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 4, 3, 2), nn.ReLU()
        )
        self.project, self.last = nn.Linear(4 * 9, width), nn.LayerNorm(width)
        self.first, self.second = Feed(width), Feed(width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.before, self.inside = nn.LayerNorm(width), nn.BatchNorm1d(width)
        self.gate, self.out = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise = nn.Conv1d(width, width, 7, padding=3, groups=width)

    def convolve(self, x: Tensor) -> Tensor:
        y = F.glu(self.gate(self.before(x).transpose(1, 2)), dim=1)
        return self.out(F.silu(self.inside(self.depthwise(y)))).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.frames(x[:, None])
        b, c, t, f = y.shape
        y = self.project(y.transpose(1, 2).reshape(b, t, c * f))
        y = y + 0.5 * self.first(y)
        z = self.norm(y)
        y = y + self.attention(z, z, z, need_weights=False)[0]
        y = y + self.convolve(y)
        return self.last(y + 0.5 * self.second(y))


class Gated(nn.Module):
    """Dauphin et al., "Language modeling with gated convolutional networks", 2017."""

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 16, 16)
        self.layers = nn.ModuleList(nn.Conv1d(width, 32, 3, padding=1) for width in widths)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.glu(layer(x), 1)
        return self.last(x.mean(2))


class Decoder(nn.Module):
    """Steps of a cell, which a trace unrolls."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind](8, 16)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = torch.zeros(x.shape[1], 16)
        state = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
        seen = []
        for frame in x.unbind(0):
            state = self.cell(frame, state)
            seen.append(state[0] if isinstance(state, tuple) else state)
        return self.last(torch.stack(seen))


def one_plan(net: nn.Module, data: list[Tensor], how: str, mode: str, db: float) -> Any:
    """Quantize a net, and check that one plan has all of its layers, and what it gives."""
    with torch.no_grad():
        model = torch.jit.script(net) if how == "script" else torch.jit.trace(net, data[0])
        batches = data if mode == "static" else None
        quantized = jit_passes.quantize_script(model, batches, mode=mode, target="x86")
        layers = ("linear", "conv1d", "conv2d")
        rows = [row for row in jit_passes.coverage(quantized) if row.kind in layers]
        assert rows and all(row.dtype == "int8" for row in rows)
        assert len(plans_in(quantized)) == 1
        for x in data:
            assert sqnr(net(x), quantized(x)) > db
    return quantized


@HOW
@MODES
def test_conformer(how: str, mode: str) -> None:
    """Its attention asks for PyTorch's fast path, and compares sizes of keys and values."""
    net, data = seeded(Conformer), [torch.randn(2, 50, 40) for _ in range(3)]
    quantized = one_plan(net, data, how, mode, 35)
    kinds = {node.kind() for node in quantized.graph.nodes()}
    assert not kinds & {"prim::If", "aten::ne", "aten::is_grad_enabled", "aten::glu"}


@HOW
@MODES
def test_gated_convolutions(how: str, mode: str) -> None:
    """The mean over the third axis says that the second one has the channels."""
    net, data = seeded(Gated), [torch.randn(2, 8, 20) for _ in range(3)]
    quantized = one_plan(net, data, how, mode, 30)
    with pytest.raises(RuntimeError):
        quantized(torch.randn(8, 20))


@MODES
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cells(kind: str, mode: str) -> None:
    """A trace of a cell has writes to parts of what its linear layers give."""
    torch.manual_seed(0)
    net, data = Decoder(kind).eval(), [torch.randn(6, 2, 8) for _ in range(3)]
    quantized = one_plan(net, data, "trace", mode, 30)
    kinds = [node.kind() for node in quantized.graph.nodes()]
    assert not any(kind.endswith("_") and kind.startswith("aten::") for kind in kinds)
