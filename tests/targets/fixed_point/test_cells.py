"""Recurrent cells and gates of `fixed_point`: functions of parts of a tensor are tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.targets import FixedPoint
from tests.export.c.test_c import check
from tests.targets.fixed_point.test_fixed_point import Watch


class Tagger(nn.Module):
    """An LSTM, a GRU and a plain cell, run over two steps; their states come in and go out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LSTMCell(8, 12), nn.GRUCell(12, 12)
        self.c, self.last = nn.RNNCell(12, 12, bias=False), nn.Linear(12, 5)

    def forward(self, x: Tensor, a: Tensor, memory: Tensor, b: Tensor, c: Tensor) -> Any:
        tags = []
        for step in range(2):
            a, memory = self.a(x[:, step], (a, memory))
            b = self.b(a, b)
            c = self.c(b, c)
            tags.append(self.last(c))
        return torch.stack(tags, 1), a, memory, b, c


class Gates(nn.Module):
    """Parts of one tensor, each in a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(4, 5)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        i, g, o, f = self.a(x).chunk(4, -1)
        y = torch.sigmoid(i) * torch.tanh(g) + o * torch.sigmoid(o) * f
        return self.b(y)


class Items(nn.Module):
    """Items of lists, of the input and as a result too; a product with a number behind a move."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 12), nn.Linear(3, 5), nn.Linear(5, 5)

    def forward(
        self, x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor
    ) -> tuple[Tensor, Tensor]:
        parts = self.a(x.chunk(2, -1)[1]).split(3, -1)
        y = self.b(parts[0] * parts[-1])
        return self.c(y.flip(1) * 2).unbind(1)[0], parts[2]


def data(count: int = 4) -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(2)
    states = [(2, 12)] * 4
    return [
        tuple(torch.randn(size, generator=generator).clamp(-1, 1) for size in [(2, 2, 8), *states])
        for _ in range(count)
    ]


def models(module: type[nn.Module], target: FixedPoint) -> Any:
    """Return the traced network, the reference model and the lowered one."""
    torch.manual_seed(0)
    scripted = module is Items  # a trace unpacks lists as a whole
    made = module().eval()
    traced = torch.jit.script(made) if scripted else torch.jit.trace(made, data(1)[0])
    prepared = jit_passes.prepare(traced, target=target)
    jit_passes.calibrate(prepared, data())
    reference = jit_passes.convert(prepared)
    return traced, reference, jit_passes.lower(reference)


@pytest.mark.parametrize("module", [Tagger, Gates, Items])
def test_equals_the_reference_and_gcc(module: type[nn.Module], tmp_path: Path) -> None:
    traced, reference, lowered = models(module, FixedPoint("shift"))
    x = data(1)[0]
    with Watch() as watch:
        lowered(*x)
    # Inputs are quantized, and the last codes become floats. Nothing else does.
    assert set(watch.found) == {"mul", "nan_to_num", "round", "clamp", "_to_copy"}
    found = lowered(*x)
    results = [r if isinstance(r, tuple) else (r,) for r in (found, reference(*x), traced(*x))]
    for own, expected, real in zip(*results, strict=True):
        assert torch.equal(own, expected) and len(own.unique()) > 4
        assert float((own - real).detach().abs().max()) < 0.2
    jit_passes.export_c(lowered, tmp_path, x, data(2)[1:])
    check(tmp_path, sum(own.numel() for own in results[0]), 2)
