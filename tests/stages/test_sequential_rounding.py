"""Codes of weights by the inputs that a layer has in the quantized model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.errors import JitPassesError
from jit_passes.graph.view import GraphView
from jit_passes.stages.gptq import Grid, gptq
from jit_passes.stages.independent import independent
from jit_passes.stages.input_sums import InputSums
from jit_passes.stages.watching import Walk, Watched
from tests.stages.test_round_weights import codes_of, prepared_net, scripted, smooth_images, sqnr

WAYS = ("gptq", "adaround")


def rows(seed: int, groups: int, count: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Return inputs in float, and with what quantization makes of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(groups, count, inputs, generator=generator)
    return x, x + 0.1 + 0.2 * torch.randn(groups, count, inputs, generator=generator)


def test_weight_that_is_aimed_at() -> None:
    """The weight solves least squares with a row for each input that pulls to the weight."""
    sums, pairs = InputSums(), [rows(seed, 2, 30, 5) for seed in range(3)]
    for x, y in pairs:
        sums.add([x[:, :10], x[:, 10:]], [y[:, :10], y[:, 10:]])
    weight = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(9))
    found = sums.aim(weight, damping=0.1)
    for group in range(2):
        x = torch.cat([x[group] for x, _ in pairs]).double()
        y = torch.cat([y[group] for _, y in pairs]).double()
        pull = math.sqrt(0.1 * float((y.T @ y).diagonal().mean())) * torch.eye(5).double()
        w = weight[group].double().T
        wanted = torch.linalg.lstsq(torch.cat([y, pull]), torch.cat([x @ w, pull @ w])).solution
        assert torch.allclose(found[group], wanted.T, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found[group], w.T, rtol=1e-2, atol=1e-2)


def test_error_of_the_result() -> None:
    sums, (x, y) = InputSums(), rows(0, 2, 50, 5)
    assert not sums.is_finite
    sums.add([x], [y])
    assert sums.is_finite
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(2, 4, 5, generator=generator)
    other = weight + 0.1 * torch.randn(2, 4, 5, generator=generator)
    wanted = (x @ weight.transpose(1, 2) - y @ other.transpose(1, 2)).double().square().sum()
    assert sums.error(weight, other) == pytest.approx(float(wanted), rel=1e-4)
    single, (x, y) = InputSums(), rows(0, 3, 50, 1)  # a depthwise layer with a window of 1 x 1
    single.add([x], [y])
    assert single.is_finite


@pytest.mark.parametrize("way", WAYS)
def test_a_net_has_less_error(way: str) -> None:
    """On images of their own, and weights stay on their grids."""
    model = scripted()
    prepared, data = prepared_net(model), smooth_images(0, 8)
    made = {
        how: jit_passes.convert(jit_passes.round_weights(prepared, iter(data), how=how))
        for how in (way, f"{way}_sequential")
    }
    assert sqnr(model, made[f"{way}_sequential"]) > sqnr(model, made[way])
    for codes in codes_of(made[f"{way}_sequential"]).values():
        assert codes.min() >= -8 and codes.max() <= 7
    known = jit_passes.provenance(made[f"{way}_sequential"])
    assert known is not None and known["weight_rounding"] == f"{way}_sequential"
    remarks = [row.remark for row in jit_passes.coverage(made[f"{way}_sequential"])]
    assert sum("less error on batches held back" in remark for remark in remarks) >= 3


class Blocks(nn.Module):
    """A layer in each branch of an `if`, and one behind both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) if bool(x.sum() > 0) else self.second(x)
        return self.last(torch.relu(x))


def test_branches() -> None:
    """A layer of a branch that no data took keeps its codes."""
    torch.manual_seed(0)
    model = torch.jit.script(Blocks().eval())
    how: dict[str, Any] = {"target": "reference", "mode": "weight_only"}
    config = {"version": 1, "global": {"weight": {"bits": 4}}}
    data = [torch.randn(64, 8).abs() for _ in range(4)]
    prepared = jit_passes.prepare(model, config=config, **how)
    rounded = jit_passes.round_weights(prepared, data, how="gptq_sequential")
    before, after = (codes_of(jit_passes.convert(each)) for each in (prepared, rounded))
    changed = {name: not torch.equal(codes, after[name]) for name, codes in before.items()}
    assert [name for name, other in changed.items() if not other] == ["second:linear"]


def test_data_that_are_wrong() -> None:
    bad = [*smooth_images(0, 1), torch.full((1, 3, 16, 16), torch.nan)]
    with pytest.raises(JitPassesError, match="holds a NaN or an infinity"):
        jit_passes.round_weights(prepared_net(scripted()), bad, how="gptq_sequential")
    with pytest.raises(JitPassesError, match="the data is empty"):
        jit_passes.round_weights(prepared_net(scripted()), [], how="gptq_sequential")


class Fork(nn.Module):
    """Two layers that read one value, and one behind both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.left(x)) + self.right(x))


WEIGHTS: dict[str, Any] = {
    "target": "reference",
    "mode": "weight_only",
    "config": {"version": 1, "global": {"weight": {"bits": 3, "channelwise": False}}},
}


def fork() -> tuple[Fork, torch.jit.ScriptModule, list[Tensor]]:
    torch.manual_seed(0)
    net, mixed = Fork().eval(), torch.randn(8, 8)
    prepared = jit_passes.prepare(torch.jit.script(net), **WEIGHTS)
    return net, prepared, [torch.randn(64, 8) @ mixed for _ in range(4)]


def weights_of(model: torch.jit.ScriptModule) -> dict[str, Tensor]:
    """Return what the codes of weights stand for."""
    found = {}
    for node in GraphView.of(model).nodes:
        if node.kind == "aten::linear":
            maker = node.operand("weight").producer
            assert maker is not None
            codes, scale, zero_point = (value.constant for value in maker.inputs)
            found[node.module] = (codes.double() - zero_point) * scale
    return found


def test_codes_of_each_layer() -> None:
    """Codes are those of GPTQ with the inputs that the final codes in front of a layer give."""
    net, prepared, data = fork()
    made = jit_passes.convert(
        jit_passes.round_weights(prepared, data, how="gptq_sequential", damping=0.1)
    )
    final = {name: weight.float() for name, weight in weights_of(made).items()}
    x = torch.stack(data)

    def inner(left: Tensor, right: Tensor) -> Tensor:
        return torch.relu(x @ left.T) + x @ right.T

    seen = {"left": (x, x), "right": (x, x)}
    with torch.no_grad():
        before = inner(net.left.weight, net.right.weight)
        seen["last"] = before, inner(final["left"], final["right"])
    nearest = weights_of(jit_passes.convert(prepared))
    for name, (in_float, quantized) in seen.items():
        weight = getattr(net, name).weight.detach()[None]
        sums, held = InputSums(), InputSums()
        sums.add(in_float[:3].flatten(0, 1)[None, None], quantized[:3].flatten(0, 1)[None, None])
        held.add(in_float[3][None, None], quantized[3][None, None])
        ends = nearest[name]
        step = torch.unique(ends).diff().min()
        grid = Grid(step.expand(1, 8, 8), torch.zeros(1, 8, 8), -4, 3)
        codes = gptq(sums.aim(weight, 0.1), sums.quantized, grid, 0.1)
        found = grid.numbers(codes.double())
        assert held.error(weight, found) < held.error(weight, ends[None])
        assert torch.allclose(found[0], final[name].double(), rtol=1e-5)


@pytest.mark.parametrize("how", ["gptq_sequential", "adaround_sequential"])
def test_layers_that_share_a_pass(how: str) -> None:
    """Layers have the codes that they have one by one, as little memory makes them."""
    _, prepared, data = fork()
    both = (
        jit_passes.round_weights(prepared, data, how=how, memory=memory) for memory in (1, 2**30)
    )
    one, other = (weights_of(jit_passes.convert(each)) for each in both)
    assert all(torch.equal(one[name], other[name]) for name in one)


class Counting(nn.Module):
    """Its results depend on how many batches it has seen."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.first, self.last, self.counts = nn.Linear(8, 8), nn.Linear(8, 8), counts
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.seen.add_(1.0)
            x = x + self.seen
        return self.last(torch.relu(self.first(x)))


def test_state_begins_anew() -> None:
    """A model that counts its batches has the codes of one that is given the counts in the data."""
    data, found = [torch.randn(64, 8) for _ in range(4)], []
    given = [x + float(number) for number, x in enumerate(data, 1)]
    for counts, batches in ((True, data), (False, given)):
        torch.manual_seed(0)
        prepared = jit_passes.prepare(torch.jit.script(Counting(counts).eval()), **WEIGHTS)
        rounded = jit_passes.round_weights(prepared, batches, how="gptq_sequential")
        found.append(weights_of(jit_passes.convert(rounded)))
        assert not torch.equal(found[-1]["last"], weights_of(jit_passes.convert(prepared))["last"])
    assert all(torch.equal(weight, found[1][name]) for name, weight in found[0].items())


def runs_of(model: torch.jit.ScriptModule) -> list[list[str]]:
    """Return the modules of layers that share a pass."""
    graph = GraphView.of(model)
    layers = [node for node in graph.nodes if node.traits.weighted is not None]
    return [[node.module for node in run] for run in independent(graph, layers, lambda _: True)]


def test_layers_that_do_not_depend_on_each_other() -> None:
    frozen = (torch.jit.freeze(torch.jit.script(each.eval())) for each in (Fork(), Blocks()))
    fork, blocks = map(runs_of, frozen)
    assert [len(run) for run in fork] == [2, 1]
    assert [len(run) for run in blocks] == [1, 1, 1]


class Scaled(nn.Module):
    """Layers on a chain with a value that is read far behind, and an option with a default."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, other: Tensor, scale: float = 2.0) -> Tensor:
        y = torch.relu(self.first(x * scale))
        z = self.second(y) + other[: x.size(0)]
        return self.third(z * scale + y)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((torch.ones(3, 8), torch.arange(40.0).view(5, 8)), {}),
    ((torch.arange(8.0)[None],), {"scale": 0.5, "other": torch.ones(1, 8)}),
]


@pytest.mark.parametrize("memory", [0, 500, 2**30])
def test_a_walk_that_goes_on(memory: int) -> None:
    """Layers have the inputs of runs of the whole model, wherever a step begins."""
    torch.manual_seed(0)
    net = Scaled().eval()
    model = torch.jit.freeze(torch.jit.script(net))
    names = [n.name for n in GraphView.of(model).nodes if n.traits.weighted is not None]
    assert len(names) == 3
    watched = Watched(model, "forward", names)
    assert watched.segments is not None
    walk, expected = Walk(watched, CALLS, memory), []
    for module in (net.first, net.second, net.third):
        seen: list[Tensor] = []
        hook = module.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        for args, kwargs in CALLS:
            net(*args, **kwargs)
        hook.remove()
        expected.append(seen)
    for name, wanted in zip(names, expected, strict=True):
        found = [batch[name] for batch in walk.inputs([name])]
        assert all(torch.equal(one, other) for [one], other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    "batch", [torch.randn(3, 7), (torch.randn(3, 8), 1), {"y": torch.randn(3, 8)}, ("text",)]
)
def test_batches_that_the_model_does_not_take(batch: Any) -> None:
    _, prepared, data = fork()
    with pytest.raises(JitPassesError, match="batch"):
        jit_passes.round_weights(prepared, [*data, batch], how="gptq_sequential")
