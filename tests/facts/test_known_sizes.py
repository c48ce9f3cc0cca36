"""Facts of tensors hold for the values, as the model runs: numbers of axes, sizes and dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphEditor, GraphView, JitPassesError
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
        shape, facts = values[index][0].shape, node.output.facts
        assert len(shape) in facts.ranks, node
        assert facts.dtype in (None, values[index][0].dtype), node
        for axis in range(-len(shape), 0):
            found = facts.size(axis)
            assert found in (None, shape[axis]), (node, axis, found, shape)
            known += found is not None
            count += 1
        assert facts.size(-len(shape) - 1) is None, node
    return known, count


@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_heads(frontend: str) -> None:
    x = torch.randn(2, 5, 12)
    module = Heads().eval()
    model = torch.jit.script(module) if frontend == "script" else torch.jit.trace(module, x)
    assert sizes(model, (x,))[0] > 35
    prepared = jit_passes.prepare(model, target="fixed_point")
    graph = GraphView.of(prepared)
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


def facts_of(graph: GraphView, kind: str) -> jit_passes.graph.facts.Facts:
    return next(node.output.facts for node in graph.nodes if node.kind == kind)


def test_sizes_behind_an_unknown_rank() -> None:
    """Sizes of the last axes are known, though nobody says how many axes there are."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.table = nn.Linear(6, 12), nn.Embedding(5, 12)

        def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
            y = self.rows(x) + self.table(tokens)
            return torch.softmax(y.unflatten(-1, [3, -1]).transpose(-1, -2), -1).select(-2, 0)

    script = torch.jit.freeze(torch.jit.script(Rows().eval()))
    graph = GraphView.of(script)
    assert facts_of(graph, "aten::linear").ranks.start == 1
    assert facts_of(graph, "aten::linear").sizes == (12,)
    assert facts_of(graph, "aten::softmax").sizes[-2:] == (4, 3)
    assert facts_of(graph, "aten::select").sizes == (3,)
    assert facts_of(graph, "aten::select").rank is None


def test_a_loop_keeps_the_number_of_axes() -> None:
    @torch.jit.script
    def steps(x: Tensor, n: int) -> Tensor:
        y = x.reshape(2, 3)
        for _ in range(n):
            y = torch.relu(y) + 1
        return y

    @torch.jit.script
    def grows(x: Tensor, n: int) -> Tensor:
        y = x.reshape(2, 3)
        for _ in range(n):
            y = y.unsqueeze(0)
        return y

    assert facts_of(GraphView.of_graph(steps.graph), "prim::Loop").rank == 2
    assert facts_of(GraphView.of_graph(grows.graph), "prim::Loop").ranks == range(2, 65)


def test_written_tensor_has_no_shape() -> None:
    """A write may change the shape, so nothing is told of it."""

    @torch.jit.script
    def kept(x: Tensor) -> Tensor:
        return x.reshape(2, 3)

    @torch.jit.script
    def squeezed(x: Tensor) -> Tensor:
        return x.reshape(2, 3).unsqueeze_(0)

    assert facts_of(GraphView.of_graph(kept.graph), "aten::reshape").sizes == (2, 3)
    assert facts_of(GraphView.of_graph(squeezed.graph), "aten::reshape").sizes == ()


def test_editor_and_constants() -> None:
    """An editor has the facts of its graph; a value that it inserts has none."""
    seen = []

    def look(graph: GraphEditor) -> None:
        linear = next(node for node in graph.nodes if node.kind == "aten::linear")
        weight = linear.operand("weight")
        seen.append((linear.output.facts.size(-1), weight.facts.sizes, weight.facts.dtype))
        relu = graph.insert("aten::relu", [linear.output], before=None)
        seen.append(relu.output.facts.ranks)

    frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(3, 4))).eval())
    jit_passes.Pipeline("look", (look,)).run(frozen)
    assert seen == [(4, (4, 3), torch.float32), range(65)]


def test_facts_of_a_graph_that_is_gone() -> None:
    node = GraphView.of(torch.jit.script(nn.ReLU())).nodes[-1]
    with pytest.raises(JitPassesError, match="the graph of this node is gone"):
        _ = node.outputs[0].facts


def test_products_with_vectors() -> None:
    """A vector takes an axis away."""

    class Vectors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.register_buffer("right", torch.ones(10))
            self.register_buffer("left", torch.ones(11))

        def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = self.conv(x)
            return y @ self.right, self.left @ y, y @ z

    model, inputs = Vectors().eval(), (torch.randn(1, 3, 11, 10), torch.randn(10))
    for made in (torch.jit.script(model), torch.jit.trace(model, inputs)):
        graph = jit_passes.normalized_graph(made)
        made_by = graph.outputs[0].producer
        assert made_by is not None
        for output, found in zip(made_by.inputs, model(*inputs), strict=True):
            facts = output.facts
            assert found.dim() in facts.ranks
            assert all(facts.size(axis) in (None, found.size(axis)) for axis in range(-3, 0))


def test_facts_of_a_normalized_graph() -> None:
    """The graph keeps its module, which nobody else has."""
    script = torch.jit.script(Heads().eval())
    graph = jit_passes.normalized_graph(script)
    assert facts_of(graph, "aten::conv2d").rank == 4
    annotations = jit_passes.targets.X86().quantizer().annotate(jit_passes.normalized_graph(script))
    assert annotations
