"""Sizes that follow from weights and options are those of the values, as the model runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphView
from jit_passes.graph.sizes import rank_of, size_of
from jit_passes.stages.recording import Recorder, copy_of
from jit_passes.targets.fixed_point.accumulator import products_in_sum
from jit_passes.testing import random_modules


class Heads(nn.Module):
    """Heads of attention in all forms that people write."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.conv = nn.Linear(12, 24), nn.Conv2d(2, 6, 3, padding=1)
        self.norm, self.row = nn.LayerNorm(12), nn.Conv1d(12, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.qkv(self.norm(x))
        q, k = y.chunk(2, -1)
        a = q.view(x.shape[0], -1, 3, 4).transpose(1, 2)
        b = k.reshape(x.shape[0], x.shape[1], 3, 4).permute(0, 2, 3, 1)
        scores = torch.softmax(torch.matmul(a, b) * 0.5, -1)
        parts = y.unflatten(-1, [2, 3, 4]).permute(2, 0, 3, 1, 4)
        c, d = parts.unbind(0)
        z = torch.matmul(scores, c + d[:, :1]) + torch.select(parts, 0, 1)
        pairs = torch.bmm(q, k.transpose(1, 2)).unsqueeze(1).expand(-1, 2, -1, -1)
        rows = self.row(q.transpose(1, 2)).mean(-1).select(1, 0)
        image = F.relu(self.conv(pairs)).sum((1, 2, 3)) + rows
        return (
            z.sum((1, 2, 3)) + image + y.unflatten(1, [1, -1]).unflatten(-1, [6, 4])[:, 0, 0, 0, 0]
        )


def sizes(script: torch.jit.ScriptModule, inputs: tuple[Tensor, ...]) -> tuple[int, int]:
    """Check all values of a reference model; return how many sizes are known, and of how many."""
    prepared = jit_passes.prepare(script)
    jit_passes.calibrate(prepared, [inputs])
    model = jit_passes.convert(prepared)
    graph = GraphView.of(model)
    nodes = {
        n.index: n
        for n in graph.nodes
        if n.block == 0 and len(n.outputs) == 1 and n.output.is_tensor and n.inputs
    }
    recorder = Recorder(copy_of(model, "forward"), "forward", list(nodes))
    _, values = recorder.run((inputs, {}))
    known = count = 0
    for index, node in nodes.items():
        if not values.get(index):
            continue
        shape = values[index][0].shape
        assert rank_of(node.output) in (None, len(shape)), node
        for axis in range(-len(shape), 0):
            found = size_of(node.output, axis)
            assert found in (None, shape[axis]), (node, axis, found, shape)
            known += found is not None
            count += 1
        assert size_of(node.output, -len(shape) - 1) is None, node
    return known, count


@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_heads(frontend: str) -> None:
    x = torch.randn(2, 5, 12)
    module = Heads().eval()
    model = torch.jit.script(module) if frontend == "script" else torch.jit.trace(module, x)
    assert sizes(model, (x,))[0] > 35
    graph = GraphView.of(jit_passes.prepare(model, target="fixed_point"))
    counts = {n.name: products_in_sum(n) for n in graph.nodes if n.traits.product}
    # The second one adds over the positions, of which the inputs tell the number.
    assert counts == {"matmul": 4, "matmul#1": None, "bmm": 12}


@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")
def test_drawn_modules() -> None:
    known = 0
    for drawn in random_modules(10, seed=21):
        script = drawn.compile(training=False, dtype=torch.float32)
        known += sizes(script, drawn.arguments(torch.float32))[0]
    assert known > 50
