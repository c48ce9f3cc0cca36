"""Concatenations in plans: values side by side, prefixes of one another, each with its own grid."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, Weighted, plan_of, plans_in, traced
from tests.seeds import seeds

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)


def exact_grid(draw: random.Random) -> Grid:
    dtype = draw.choice([torch.uint8, torch.int8])
    zero_point = draw.randint(-20, 20) + (128 if dtype == torch.uint8 else 0)
    return Grid(2.0 ** draw.randint(-1, 1), zero_point, dtype)


def batch_norm(dims: int, channels: int) -> nn.Module:
    norm = NORMS[dims - 1](channels)
    norm.running_mean.normal_(0, 20), norm.running_var.uniform_(100, 900)
    norm.weight.data.normal_(), norm.bias.data.normal_()
    norm.weight.data[0] = 0
    return norm


class Reader(nn.Module):
    """A reader of a concatenation of some features: a batch norm, a convolution, or the caller."""

    def __init__(self, dims: int, parts: list[int], widths: list[int], draw: random.Random) -> None:
        super().__init__()
        self.parts, self.nested = parts, draw.randint(0, len(parts) - 1)
        channels = sum(widths[part] for part in parts)
        self.kind = draw.choice(["norm", "norm", "norm", "convolution", "caller"])
        self.own, self.out = exact_grid(draw), Grid(0.02, draw.randint(60, 200))
        if self.kind == "norm":
            self.norm = nn.Sequential(
                batch_norm(dims, channels), draw.choice([nn.ReLU(), nn.Identity()])
            )
        elif self.kind == "convolution":
            layer = CONVOLUTIONS[dims - 1](channels, 3, 3, padding=1)
            self.layer, self.out = Weighted(layer, exact=True), Grid(4.0, 99)

    def forward(self, features: list[Tensor]) -> Tensor:
        values = [features[part] for part in self.parts]
        if self.nested > 1:
            values = [torch.cat(values[: self.nested], 1), *values[self.nested :]]
        joined = torch.cat(values, 1)
        if self.kind == "norm":
            return self.out(self.norm(joined))
        joined = self.own(joined)
        return joined if self.kind == "caller" else self.out(self.layer(joined))


class Joined(nn.Module):
    """Features, and readers of lists of them, of which some begin as others do."""

    def __init__(self, dims: int, draw: random.Random) -> None:
        super().__init__()
        self.dims, self.x = dims, exact_grid(draw)
        widths = [draw.choice([1, 3, 8, 16, 40, 64, 70]) for _ in range(draw.randint(2, 6))]
        features = [CONVOLUTIONS[dims - 1](3, width, 3, padding=1) for width in widths]
        self.features = nn.ModuleList(Weighted(layer, exact=True) for layer in features)
        same = exact_grid(draw)
        self.grids = nn.ModuleList(draw.choice([exact_grid(draw), same]) for _ in widths)
        order = draw.sample(range(len(widths)), len(widths))
        self.readers = nn.ModuleList()
        for _ in range(draw.randint(2, 6)):
            parts = order[: draw.randint(1, len(order))]
            if draw.random() < 0.3:
                parts = [draw.choice(order) for _ in range(draw.randint(1, 5))]
            self.readers.append(Reader(dims, parts, widths, draw))
        # One feature is also read by itself, with a border around it.
        self.alone = draw.randrange(len(widths))
        layer = CONVOLUTIONS[dims - 1](widths[self.alone], 2, 3, padding=1)
        self.border, self.last = Weighted(layer, exact=True), Grid(2.0, 99)

    def forward(self, x: Tensor) -> Any:
        x = self.x(x)
        features = [g(f(x)) for f, g in zip(self.features, self.grids, strict=True)]
        pooled = POOLS[self.dims - 1](features[self.alone], 2)
        alone = self.last(self.border(features[self.alone]))
        return *(reader(features) for reader in self.readers), alone, pooled


@pytest.mark.parametrize("seed", seeds(80))
def test_lists_of_features(seed: int) -> None:
    """Where numbers are exact, so is the plan; a batch norm may round a tie the other way."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    dims = draw.choice([1, 2, 2, 2, 3])
    net = Joined(dims, draw).eval()
    region = traced(net, torch.randn(2, 3, *(draw.randint(2, 9) for _ in range(dims))) * 40)
    plan = plan_of(region)
    for _ in range(2):
        x = torch.randn(draw.randint(1, 3), 3, *(draw.randint(2, 9) for _ in range(dims))) * 40
        expected, got = region(x), plan.run([x])
        assert [a.shape for a in got] == [b.shape for b in expected]
        kinds = [reader.kind for reader in net.readers] + ["alone", "pooled"]
        for kind, a, b in zip(kinds, got, expected, strict=True):
            if kind == "norm":
                assert (a - b).abs().max() < 1.01 * 0.02
                assert (a != b).float().mean() < 0.02
            else:
                assert torch.equal(a, b), kind


class Block(nn.Module):
    """A dense block, whose layers give little, so that memory is what they read."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        widths = [width * (i + 1) for i in range(layers)]
        self.x, self.last = Grid(0.5, 120), Grid(0.5, 99)
        self.norms = nn.ModuleList(batch_norm(2, w) for w in widths)
        self.layers = nn.ModuleList(Weighted(nn.Conv2d(w, width, 1)) for w in widths)
        self.grids = nn.ModuleList(Grid(0.5 + 0.1 * i, 110 + i) for i in range(layers))
        self.hidden = nn.ModuleList(Grid(0.05, 0) for _ in widths)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.x(x)]
        for norm, hidden, layer, grid in zip(
            self.norms, self.hidden, self.layers, self.grids, strict=True
        ):
            y = hidden(F.relu(norm(torch.cat(features, 1))))
            features.append(grid(layer(y)))
        return self.last(features[-1].mean((2, 3)))


def test_prefixes_are_not_copied() -> None:
    """The arena holds the features once, and what one layer makes of them."""
    layers, width, size = 12, 16, 32
    torch.manual_seed(0)
    x = torch.randn(1, width, size, size) * 20
    net = Block(layers, width).eval()
    region = traced(net, x)
    plan = plan_of(region)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        (got,) = plan.run([x])
    assert (got - region(x)).abs().max() < 1.01 * 0.5
    features = hidden = layers * width * size**2  # the last one is no part
    largest = max(event.cpu_memory_usage for event in profiler.key_averages())
    assert features + hidden <= largest < 1.1 * (features + hidden)


class Branches(nn.Module):
    """Concatenations that are read in several ways; what is rounded follows from the readers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.norm, self.deep = nn.BatchNorm2d(12), nn.BatchNorm2d(24)
        self.one, self.two = nn.Conv2d(12, 8, 3), nn.Conv2d(24, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.a(x)), self.b(x)
        parts = torch.cat([a, b], 1)  # read by a batch norm, and as part of the next one
        rounded = torch.cat([b, a], 1)  # read by a batch norm and a convolution
        joined = torch.cat([parts, b, a], 1)
        y = self.one(F.relu(self.norm(parts))) + self.one(rounded)
        return y + self.two(F.relu(self.deep(joined))) + self.one(F.relu(self.norm(rounded)))


def test_what_is_rounded() -> None:
    """A concatenation that only batch norms read, or others of its kind, has no place."""
    torch.manual_seed(0)
    net = Branches().eval()
    batches = [torch.randn(2, 3, 16, 16) for _ in range(4)]
    prepared = jit_passes.prepare(torch.jit.script(net), target="x86")
    jit_passes.calibrate(prepared, batches)
    converted = jit_passes.convert(prepared)
    joins = [node for node in converted.graph.nodes() if node.kind() == "aten::cat"]
    assert len(joins) == 3
    quantized = [
        any(use.user.kind() == "jit_passes::quantize" for use in node.output().uses())
        for node in joins
    ]
    assert sorted(quantized) == [False, False, True]
    lowered = jit_passes.lower(converted, target="x86")
    assert not jit_passes.coverage(lowered).float
    kinds = [node.kind() for node in lowered.graph.nodes()]
    assert kinds.count("prim::CallMethod") == 1 and "aten::cat" not in kinds
    assert sqnr(converted(batches[0]), lowered(batches[0])) > 45
    assert sqnr(net(batches[0]), lowered(batches[0])) > 25


class Stacked(nn.Module):
    """Lists along any axis, of values that have other readers too, in codes and in float32."""

    def __init__(self, draw: random.Random, channels: int) -> None:
        super().__init__()
        same = exact_grid(draw)
        self.x = exact_grid(draw)
        self.layers = nn.ModuleList(
            Weighted(nn.Conv2d(channels, channels, 3, padding=1), exact=True) for _ in range(3)
        )
        self.grids = nn.ModuleList(draw.choice([exact_grid(draw), same, same]) for _ in range(3))
        self.lists = [
            ([draw.randrange(6) for _ in range(draw.randint(1, 4))], draw.randint(0, 4))
            for _ in range(draw.randint(2, 4))
        ]
        self.own = nn.ModuleList(draw.choice([nn.Identity(), same]) for _ in self.lists)
        self.alone = draw.randrange(3), draw.randrange(6)
        layer = nn.Conv2d(channels, 2, 3, padding=1)
        self.border, self.last = Weighted(layer, exact=True), Grid(4.0, 99)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.x(x)
        values = [g(f(x)) for f, g in zip(self.layers, self.grids, strict=True)]
        values += [F.relu(values[0]), values[1].flip(2), torch.cat([x, values[2]], 0).chunk(2)[0]]
        results = [self.last(self.border(values[self.alone[0]])), values[self.alone[1]]]
        for (parts, axis), own in zip(self.lists, self.own, strict=True):
            of = [values[part] for part in parts]
            stacked = [value.unsqueeze(axis) for value in of] if axis < 3 else of
            whole = torch.cat(stacked, axis % 3)
            results += [own(whole), whole.select(0, 0)]
        return tuple(results)


@pytest.mark.parametrize("seed", seeds(60))
def test_lists_along_any_axis(seed: int) -> None:
    """Bits of the reference model, wherever values lie, for other sizes too."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    channels = draw.choice([1, 1, 3, 8])
    net = Stacked(draw, channels).eval()

    def images() -> Tensor:
        size = (draw.choice([1, 1, 2]), channels, draw.choice([1, 4, 7]), draw.choice([1, 3, 8]))
        return torch.randn(size) * 40

    region = traced(net, images())
    plan = plan_of(region)
    for _ in range(4):
        x = images()
        with torch.no_grad():
            expected = region(x)
        for got, wanted in zip(plan.run([x]), expected, strict=True):
            assert torch.equal(got, wanted)


class Caches(nn.Module):
    """Caches of layers, joined with what is new, and stacked for the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        kept, caches = [], [a, b, c]
        for i, layer in enumerate(self.layers):
            cache = caches[i]
            keys = torch.cat([cache, layer(x).unflatten(2, (2, 4)).transpose(1, 2)], 2)
            kept.append(keys)
            x = x + keys.mean(2).flatten(1).unsqueeze(1)
        return x, torch.stack(kept)


def test_stacked_caches_are_not_copied() -> None:
    """Each layer's cache is joined at its place in the result, for one batch without a copy."""
    torch.manual_seed(0)
    net = Caches().eval()
    lowered = jit_passes.quantize_script(torch.jit.script(net), mode="dynamic", target="x86")
    (plan,) = plans_in(lowered)
    caches = [[2, 2, 6, 4]] * 6
    for batch in (1, 2):
        inputs = [torch.randn(batch, 1, 8), *(torch.randn(batch, 2, 5, 4) for _ in range(3))]
        copies = [size for _, kernel, size, *_ in plan.profile(inputs) if kernel == "copy"]
        # Heads are innermost in memory, so the axis that grows is outermost for one batch.
        assert [size for size in copies if size[-2:] == [6, 4]] == caches * (batch - 1)
        for got, wanted in zip(lowered(*inputs), net(*inputs), strict=True):
            assert sqnr(wanted, got) > 30


class Cached(nn.Module):
    """Attention's cache, and a batch norm of parts that come from the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(16, 16), nn.Linear(16, 8)
        self.stem, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor, cache: Tensor, image: Tensor, more: Tensor) -> list[Tensor]:
        keys = torch.cat([cache, self.key(x)], 1)
        features = self.norm(torch.cat([more, self.stem(image)], 1))
        return [self.out(keys), keys, self.last(F.relu(features))]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_empty_parts(mode: str) -> None:
    """A cache begins as a tensor of no numbers and one axis, in front of the first call."""
    torch.manual_seed(0)
    net = Cached().eval()
    full, empty = torch.randn(2, 5, 16), torch.zeros(0)
    image = torch.randn(2, 3, 9, 9)
    calls = [
        (torch.randn(2, 3, 16), cache, image, more)
        for cache in (full, empty, full[:, :0])
        for more in (empty, torch.zeros(2, 0, 7, 7))
    ]
    lowered = jit_passes.quantize_script(torch.jit.script(net), calls, mode=mode, target="x86")
    assert "aten::cat" not in [node.kind() for node in lowered.graph.nodes()]
    for call in calls:
        for got, wanted in zip(lowered(*call), net(*call), strict=True):
            assert got.shape == wanted.shape
            assert sqnr(wanted, got) > 25
    with pytest.raises(RuntimeError, match=r"cat \(concat\) got the shapes"):
        lowered(calls[0][0], torch.zeros(0, 2), image, empty)


class AlongTwoAxes(nn.Module):
    """Concatenations of channels, joined along the height."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 4, 1) for _ in range(3))
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = (layer(x) for layer in self.layers)
        upper, lower = torch.cat([a, 3 * b], 1), torch.cat([2 * c, a], 1)
        return self.last(torch.cat([upper, lower], 2))


def test_concatenations_along_two_axes() -> None:
    """The outer one cannot take the parts of the inner ones: all three have codes."""
    torch.manual_seed(0)
    model, x = AlongTwoAxes().eval(), torch.randn(2, 3, 8, 8)
    script = torch.jit.trace(model, x)
    rows = jit_passes.inspect(script, target="x86", mode="static")
    assert not any(row.part_of for row in rows if row.kind == "aten::cat")
    lowered = jit_passes.quantize_script(script, [x], target="x86", mode="static", progress=False)
    (plan,) = plans_in(lowered)
    assert str(plan).count("= concat(") == 3 and "float32" not in str(plan).partition("\n")[2]
    with torch.no_grad():
        assert sqnr(lowered(x), model(x)) > 30
