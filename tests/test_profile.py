"""Profiles: quantizing with one is calibrating with its data; merging, files, Glow's form."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from models import CASES, Case
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphView, JitPassesError, JitPassesWarning, Profile, ValueProfile
from jit_passes.observers import Entropy, Histogram, MinMax, MovingAverageMinMax, Observer
from jit_passes.profile.sites import Sites
from jit_passes.profile.value import State, spread
from jit_passes.quantizer import (
    Annotations,
    BackendQuantizer,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)
from jit_passes.stages.normalize import normalize
from jit_passes.targets import TargetQuantizer, resolve_target

Batch = tuple[object, ...]
Batches = list[Batch]


class Plain(nn.Module):
    """Convolutions with batch norm, a residual, a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.again, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        y = torch.relu(self.again(y) + y)
        return self.head(y.mean([2, 3]))


class Control(nn.Module):
    """A branch not always taken, one never, and a loop, all reading values from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.rare = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.never, self.body = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.side = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor, n: int) -> Tensor:
        y = torch.sigmoid(self.stem(x))
        if n > 1:
            y = torch.relu(self.rare(y)) + torch.relu(self.side(x))
        if n > 100:
            y = self.never(y)
        z = y
        for _ in range(n):
            z = torch.relu(self.body(z)) + self.side(x)
        return z


class InPlace(nn.Module):
    """Values that are written, through views too, between the operators that read them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        before = self.second(y)
        y[:, 0] = 3.0 * x[:, 0]
        after = torch.relu_(self.second(y))
        y.mul_(2.0)
        return before + self.second(y) + after


class Integers(nn.Module):
    """Indices, comparisons and counts between floats."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.linear = nn.Embedding(10, 6), nn.Linear(6, 6)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(self.embed(tokens % 10))
        best = torch.argmax(y, -1)
        return self.linear(torch.relu(y) * (tokens > 3).unsqueeze(-1)), best


class Transformer(nn.Module):
    """One layer of attention, masked with an infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24)
        self.out, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mask = torch.ones(x.size(1), x.size(1)).triu(1) > 0
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(mask, float("-inf"))
        x = x + self.out(torch.softmax(scores, -1) @ v)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def images(seed: int, count: int = 4) -> Batches:
    """Images of growing contrast, so that each batch widens the ranges."""
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(2, 3, 6, 6, generator=g) * (i + 1),) for i in range(count)]


def tokens(seed: int) -> Batches:
    """Numbers of words, of several lengths."""
    g = torch.Generator().manual_seed(seed)
    return [(torch.randint(0, 99, (2, 3 + i), generator=g),) for i in range(4)]


def sequences(seed: int) -> Batches:
    """Sequences of several lengths."""
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(2, 3 + i, 8, generator=g),) for i in range(4)]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batches]]] = {
    "plain": (Plain, images),
    "control": (Control, lambda seed: [(*b, i) for i, b in enumerate(images(seed))]),
    "in_place": (InPlace, images),
    "integers": (Integers, tokens),
    "transformer": (Transformer, sequences),
}


def script_of(name: str) -> torch.jit.ScriptModule:
    """The same model for the same name."""
    torch.manual_seed(0)
    return torch.jit.script(MODELS[name][0]().eval())


def profile_of(name: str, **options: object) -> Profile:
    """Its profile."""
    return jit_passes.profile(script_of(name), MODELS[name][1](0), **options)


def saved(module: torch.jit.ScriptModule) -> bytes:
    """The file."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


def observe_with(observer: Observer) -> BackendQuantizer:
    """The target's quantizer with another observer of activations."""
    return TargetQuantizer(resolve_target("auto"), activation=QuantizationSpec(observer=observer))


def finish(prepared: torch.jit.ScriptModule) -> tuple[bytes, bytes]:
    """Files of the reference and the lowered model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)
        reference = jit_passes.convert(prepared)
        return saved(reference), saved(jit_passes.lower(reference))


@pytest.mark.parametrize(
    "observer", [Histogram(), Histogram(bins=512), MinMax(), Entropy("glow")], ids=str
)
@pytest.mark.parametrize("name", MODELS)
def test_same_as_calibrating(name: str, observer: Observer, tmp_path: Path) -> None:
    """Observers' states, and both files, byte by byte; through a file."""
    profile_of(name).save(tmp_path / "model.profile.yaml")
    quantizer, script = observe_with(observer), script_of(name)
    calibrated = jit_passes.prepare(script, quantizer=quantizer)
    jit_passes.calibrate(calibrated, MODELS[name][1](0))
    filled = jit_passes.prepare(script, quantizer=quantizer)
    assert jit_passes.fill(filled, tmp_path / "model.profile.yaml") is filled
    states = dict(calibrated.named_buffers())
    assert sum("observer" in key for key in states) >= 3
    for key, state in filled.named_buffers():
        # A profile does not say which blocks have run; what no data reached there stays float.
        if not key.startswith("observer_reached_"):
            assert torch.equal(state, states[key]), key
    assert finish(filled) == finish(calibrated)


ODD = ("branch", "loop", "output", "write", "assign", "receives", "list", "state", "rnn", "lstm")
ODD_CASES = [
    pytest.param(case, frontend, id=f"{case.name}-{frontend}")
    for case in CASES
    for frontend in case.frontends
    if any(word in case.name.lower() for word in (*ODD, "nearest", "multihead"))
]


@pytest.mark.parametrize(("case", "frontend"), ODD_CASES)
def test_same_for_odd_models(case: Case, frontend: str) -> None:
    """Branches, loops, writes, state, recurrence: the reference byte by byte, and the hash."""
    script = case.build(frontend)
    copies = [[case.arguments(4, seed) for seed in range(2)] for _ in range(2)]
    torch.manual_seed(3)  # some toss a coin
    profile = jit_passes.profile(script, copies[0], method=case.method)
    filled = jit_passes.fill(jit_passes.prepare(script, method=case.method), profile)
    torch.manual_seed(3)
    calibrated = jit_passes.prepare(script, method=case.method)
    jit_passes.calibrate(calibrated, copies[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)
        assert saved(jit_passes.convert(filled)) == saved(jit_passes.convert(calibrated))
    loaded = torch.jit.load(io.BytesIO(saved(script)))
    assert hash_of(loaded, case.method) == profile.graph


@pytest.mark.parametrize("observer", [Histogram(), MinMax(), MovingAverageMinMax()], ids=str)
def test_weights_of_one_scale(observer: Observer) -> None:
    """Weights whose observers are those of activations are measured in the model."""
    spec = QuantizationSpec("int8", -127, 127, "per_tensor_symmetric", observer=observer)
    quantizer = TargetQuantizer(resolve_target("auto"), weight=spec)
    script, data = script_of("plain"), images(0, 3)
    filled = jit_passes.prepare(script, quantizer=quantizer)
    jit_passes.fill(filled, jit_passes.profile(script, data))
    calibrated = jit_passes.calibrate(jit_passes.prepare(script, quantizer=quantizer), data)
    assert finish(filled) == finish(calibrated)


class OneScale(Quantizer):
    """A linear whose weight has the parameters of its input."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node in graph.nodes:
            if node.kind == "aten::linear":
                x, weight = node.inputs[:2]
                spec = QuantizationSpec("int8", -127, 127, "per_tensor_symmetric")
                shared = SharedQuantizationSpec((x, node))
                annotations[node] = QuantizationAnnotation({x: spec, weight: shared})
        return annotations


def test_a_weight_of_the_scale_of_activations() -> None:
    """It is measured in the model too, and has no name of its own there."""
    script = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval())
    data = [torch.randn(2, 4, generator=torch.Generator().manual_seed(0)) / 9]  # weights are larger
    options = {"quantizer": OneScale(), "target": "reference"}
    filled = jit_passes.fill(
        jit_passes.prepare(script, **options), jit_passes.profile(script, data)
    )
    calibrated = jit_passes.calibrate(jit_passes.prepare(script, **options), data)
    assert finish(filled) == finish(calibrated)


def test_nothing_computed() -> None:
    """A model that returns its argument, and one without tensors."""

    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    class Number(nn.Module):
        def forward(self, x: int) -> int:
            return x

    profile = jit_passes.profile(torch.jit.script(Same().eval()), [torch.ones(3)])
    assert profile.values["x"].count == 3 and "1 values, 2048 bins" in repr(profile)
    assert not jit_passes.profile(torch.jit.script(Number().eval()), [(1,)]).values


def test_profile_changes_nothing() -> None:
    """Neither the model nor its state."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.mean([0, 2, 3]))
            return x * self.seen[:, None, None]

    script = torch.jit.script(Counter().eval())
    before = saved(script)
    profile = jit_passes.profile(script, images(0))
    assert saved(script) == before and not script.seen.any()
    assert profile.values["seen"].high > 0


def test_values() -> None:
    """Every float value with its range, count and ranks; nothing else."""
    profile = profile_of("plain")
    x = torch.cat([batch[0] for batch in images(0)])
    assert list(profile.values) == [
        *("x", "conv:conv2d", "relu", "again:conv2d", "add", "relu#1", "mean", "head:linear")
    ]
    value = profile.values["x"]
    assert (value.low, value.high) == (x.min().item(), x.max().item())
    assert (value.count, value.ranks) == (x.numel(), (4, 4))
    bins = torch.floor(x.double() / 2.0**value.exponent).long() - value.offset
    assert value.counts == tuple(torch.bincount(bins.flatten()).tolist())
    assert len(value.counts) > 1024 and value.counts[0] and value.counts[-1]
    assert profile.bins == 2048 and profile.version == jit_passes.__version__


def test_integers_are_left_out() -> None:
    """Tokens, comparisons, indices; floats between them are there."""
    names = profile_of("integers").values
    assert not {"tokens", "remainder", "gt", "argmax"} & set(names)
    assert {"embed:embedding", "linear:linear", "relu"} <= set(names)


def test_branches_and_loops() -> None:
    """A use in another block has an entry of its own; a branch never taken has no range."""
    values = profile_of("control").values
    n = sum(batch[0].numel() for batch in images(0))
    assert values["x"].count == n and values["x -> side:conv2d"].count == n // 2
    assert values["x -> side:conv2d#1"].count == n // 4 * (0 + 1 + 2 + 3)
    assert not values["never:conv2d"].reached and values["never:conv2d"].ranks is None
    assert any(".block0." in name for name in values)


def test_written_values() -> None:
    """Each use of one is another value."""
    values = profile_of("in_place").values
    uses = [v for name, v in values.items() if name.startswith("first:conv2d -> second:conv2d")]
    assert len(uses) == 3 and len({(v.low, v.high) for v in uses}) == 3
    assert values["first:conv2d"] == replace(uses[0], name="first:conv2d")


def test_infinity_has_no_range(tmp_path: Path) -> None:
    """It is told, and only what needs it fails."""
    profile = profile_of("transformer")
    assert [name for name, v in profile.values.items() if not v.finite] == ["masked_fill"]
    assert "not finite" in str(profile)
    profile.save(tmp_path / "p.yaml")
    assert Profile.load(tmp_path / "p.yaml") == profile
    broken = ValueProfile("up:linear", ranks=(3, 3), finite=False)
    profile = replace(profile, values={**profile.values, "up:linear": broken})
    prepared = jit_passes.prepare(script_of("transformer"))
    with pytest.raises(JitPassesError, match=r"'up:linear' held an infinity"):
        jit_passes.fill(prepared, profile)


def test_nan_is_named() -> None:
    """As in calibrating."""
    batch = images(0)[0][0].clone()
    batch[0, 0, 0, 0] = math.nan
    with pytest.raises(JitPassesError, match="batch 1: the value 'x' holds a NaN"):
        jit_passes.profile(script_of("plain"), [images(0)[0], (batch,)])


@pytest.mark.parametrize("name", MODELS)
def test_merge(name: str) -> None:
    """Any parts in any order give the profile of everything."""
    script, data = script_of(name), MODELS[name][1](1)
    whole = jit_passes.profile(script, data, bins=256)
    parts = [jit_passes.profile(script, [batch], bins=256) for batch in data]
    for order in itertools.permutations(parts):
        assert Profile.merge(*order) == whole
    sent = pickle.loads(pickle.dumps(parts))  # by workers
    assert (sent[0] + sent[1]) + (sent[2] + sent[3]) == whole
    assert parts[0] + (parts[1] + parts[2]) != whole
    assert parts[0].merge(*parts[1:]) == whole
    assert parts[0].merge(parts[1:]) == Profile.merge(parts) == whole


@pytest.mark.parametrize("seed", range(30))
def test_merge_property(seed: int) -> None:
    """Values of all magnitudes, signs and numbers of bins, empty parts too: as if seen at once."""
    chance = random.Random(seed)
    bins = chance.choice([2, 3, 17, 256, 2048])

    def draw() -> Tensor:
        size = chance.choice([0, 1, 5, 300])
        x = torch.randn(size, generator=torch.Generator().manual_seed(chance.randrange(1 << 30)))
        return (x + chance.choice([0, 1, -30])) * 10.0 ** chance.randint(-38, 36)

    def state_of(*parts: Tensor) -> ValueProfile:
        found = State.new(bins)
        for part in parts:
            torch.ops.jit_passes.observe_profile(part, found.range, found.histogram, "v", "")
        return ValueProfile.of("v", found)

    parts = [draw() for _ in range(4)]
    whole = Profile("g", bins, {"v": state_of(*parts)})
    alone = [Profile("g", bins, {"v": state_of(part)}) for part in parts]
    chance.shuffle(alone)
    assert Profile.merge(*alone) == whole
    assert alone[0] + (alone[1] + (alone[2] + alone[3])) == whole
    fewer = chance.randint(2, bins)
    expected = State.new(fewer)
    for part in parts:
        torch.ops.jit_passes.observe_histogram(part, expected.range, expected.histogram, "v", "")
    found = whole.values["v"].with_bins(fewer)
    if whole.values["v"].reached:
        assert torch.equal(found.range, expected.range)
    assert torch.equal(found.histogram, expected.histogram)


def test_merge_refusals() -> None:
    """Nothing, other graphs, bins or weights."""
    profile = profile_of("plain", weights=True)
    with pytest.raises(JitPassesError, match="nothing to merge"):
        Profile.merge()
    with pytest.raises(JitPassesError, match="takes profiles, not str"):
        profile.merge("other.yaml")
    with pytest.raises(
        JitPassesError, match=r"profile 1 is of another graph.*values missing: conv:conv2d"
    ):
        profile + profile_of("transformer")
    with pytest.raises(JitPassesError, match="has 64 bins and the first one 2048"):
        profile + profile_of("plain", bins=64)
    other = replace(profile.values["conv:conv2d[1]"], low=-9.0)
    changed = replace(profile, values={**profile.values, "conv:conv2d[1]": other})
    with pytest.raises(JitPassesError, match=r"the weight 'conv:conv2d\[1\]' is not the same"):
        profile + changed
    assert (profile + profile).values["conv:conv2d[1]"] == profile.values["conv:conv2d[1]"]


def test_merge_op_checks() -> None:
    """Buffers that do not fit are an error, never a write outside of them."""
    merge = torch.ops.jit_passes.merge_histogram
    row = torch.tensor([0.0, 1.0, 1, 1, -6, 0], dtype=torch.float64)
    counts = torch.tensor([1] * 64 + [0] * 64 + [7])
    with pytest.raises(RuntimeError, match="outside of its range"):
        merge(row, counts, *vars(State.new(64)).values())
    row[4] = 3
    with pytest.raises(RuntimeError, match="cannot be split"):
        merge(row, torch.tensor([4]), *vars(State.new(64)).values())


def test_weights() -> None:
    """On request; one histogram for the tensor."""
    assert not any(v.weight for v in profile_of("plain").values.values())
    weights = {n: v for n, v in profile_of("plain", weights=True).values.items() if v.weight}
    assert {"head:linear[1]", "head:linear[2]", "conv:conv2d[1]"} <= set(weights)
    weight = script_of("plain").head.weight
    found = weights["head:linear[1]"]
    assert (found.low, found.high) == (weight.min().item(), weight.max().item())
    assert found.count == weight.numel()


# --- names and hashes


def hash_of(script: torch.jit.ScriptModule, method: str = "forward") -> str:
    """Of the normalized graph."""
    return Sites.of(normalize(script._c, method).module, method).hash


@pytest.mark.parametrize("name", MODELS)
def test_hash(name: str, tmp_path: Path) -> None:
    """The same scripted again, loaded, cloned, prepared, trained further; in another process."""
    script = script_of(name)
    expected = hash_of(script)
    assert len(expected) == 16 and int(expected, 16) >= 0
    torch.jit.save(script, tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    assert hash_of(script_of(name)) == hash_of(loaded) == hash_of(copy.deepcopy(script)) == expected
    prepared = jit_passes.prepare(loaded)
    sites = Sites.of(prepared._c, "forward")
    normalized = Sites.of(normalize(script._c).module, "forward")
    assert sites.hash == expected
    assert set(sites.names.values()) == set(normalized.names.values())
    for parameter in script.parameters():
        parameter.data.mul_(1.5)
    assert hash_of(script) == expected
    if name == "control":
        code = (
            "import sys, torch, jit_passes\n"
            "batch = (torch.zeros(1, 3, 4, 4), 1)\n"
            "print(jit_passes.profile(torch.jit.load(sys.argv[1]), [batch]).graph)\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "model.pt")]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == expected


def test_hash_tells_graphs_apart() -> None:
    """By operators, numbers and shapes, in blocks too."""

    class Net(nn.Module):
        def __init__(self, channels: int, factor: float, deep: float) -> None:
            super().__init__()
            self.conv, self.factor, self.deep = nn.Conv2d(3, channels, 1), factor, deep

        def forward(self, x: Tensor) -> Tensor:
            if x.size(0) > 1:
                x = x * self.deep
            return self.conv(x) * self.factor

    nets = [Net(4, 2.0, 1.0), Net(5, 2.0, 1.0), Net(4, 2.0 + 1e-15, 1.0), Net(4, 2.0, 3.0)]
    hashes = [hash_of(torch.jit.script(net.eval())) for net in nets]
    assert len(set(hashes)) == 4


def test_names_that_collide() -> None:
    """An argument may be called as an operator, or as an attribute that is written."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("x", torch.ones(3))
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor, relu: Tensor) -> Tensor:
            self.x.add_(1.0)
            return torch.relu(self.linear(relu + x)) + self.x

    script = torch.jit.script(Net().eval())
    data = [(torch.randn(2, 3), torch.full((2, 3), 7.0))]
    values = jit_passes.profile(script, data).values
    assert values["relu#1"].high == 7.0 != values["relu"].high
    assert values["x"].low < 0 and values["x#1"].low == 1.0
    loaded = torch.jit.load(io.BytesIO(saved(script)))
    assert jit_passes.profile(loaded, data).values == values


def test_another_graph() -> None:
    """An error that says what differs, or as much as fits, with a warning."""
    profile = profile_of("plain")
    prepared = jit_passes.prepare(script_of("in_place"))
    state = {key: value.clone() for key, value in prepared.named_buffers()}
    with pytest.raises(JitPassesError) as error:
        jit_passes.fill(prepared, profile)
    text = str(error.value)
    assert profile.graph in text and "missing: first:conv2d" in text and "its own: conv:con" in text
    assert all(torch.equal(value, state[key]) for key, value in prepared.named_buffers())
    with pytest.warns(JitPassesWarning, match="the profile has no first:conv2d"):
        jit_passes.fill(prepared, profile, partial=True)
    with pytest.warns(JitPassesWarning, match="never reached first:conv2d, second:conv2d"):
        lowered = jit_passes.lower(jit_passes.convert(prepared))
    assert len(jit_passes.coverage(lowered).int8) < 2
    assert lowered(*images(0)[0]).isfinite().all()


def test_another_graph_of_the_same_names() -> None:
    """That operators or numbers differ is said."""
    profile = replace(profile_of("plain"), graph="0" * 16)
    with pytest.raises(JitPassesError, match="names are the same, operators or constants are not"):
        jit_passes.fill(jit_passes.prepare(script_of("plain")), profile)
    jit_passes.fill(jit_passes.prepare(script_of("plain")), profile, partial=True)


def test_moving_average() -> None:
    """Cannot be had from a profile."""
    prepared = jit_passes.prepare(script_of("plain"), quantizer=observe_with(MovingAverageMinMax()))
    with pytest.raises(JitPassesError, match=r"observer of 'x'.*moving average.*MinMax"):
        jit_passes.fill(prepared, profile_of("plain"))


def test_more_bins_than_profiled() -> None:
    """An error with the number to profile with."""
    prepared = jit_passes.prepare(script_of("plain"))
    with pytest.raises(JitPassesError, match=r"'x' has 2048 bins.*profile with bins=2048"):
        jit_passes.fill(prepared, profile_of("plain", bins=1024))


def test_fill_again_and_calibrate_on() -> None:
    """Filling forgets what was there; calibrating adds to it."""
    script, data = script_of("plain"), images(0)
    prepared = jit_passes.prepare(script)
    jit_passes.calibrate(prepared, images(5))
    jit_passes.fill(prepared, jit_passes.profile(script, data[:2]))
    jit_passes.calibrate(prepared, data[2:])
    expected = jit_passes.calibrate(jit_passes.prepare(script), data)
    assert finish(prepared) == finish(expected)


def test_wrong_arguments() -> None:
    """Models at the wrong stage, bins, data."""
    script = script_of("plain")
    with pytest.raises(JitPassesError, match="prepared already: start from the float model"):
        jit_passes.profile(jit_passes.prepare(script), images(0))
    with pytest.raises(JitPassesError, match="a prepared module is needed"):
        jit_passes.fill(script, profile_of("plain"))
    for bins in (1, True, 2.0, 1 << 21):
        with pytest.raises(JitPassesError, match="bins is a whole number from 2"):
            jit_passes.profile(script, images(0), bins=bins)  # type: ignore[arg-type]
    with pytest.raises(JitPassesError, match="empty"):
        jit_passes.profile(script, [])


def test_other_method_and_input_fn() -> None:
    """As in the other stages."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

        @torch.jit.export
        def encode(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    script = torch.jit.script(Net().eval())
    data = [(torch.randn(3), 1)]
    pick: Callable[[Batch], object] = lambda batch: batch[0]  # noqa: E731
    profile = jit_passes.profile(script, data, method="encode", input_fn=pick)
    assert list(profile.values) == ["x", "relu"]


# --- the file


@pytest.mark.parametrize("name", MODELS)
def test_file_round_trip(name: str, tmp_path: Path) -> None:
    """Exact, and the same text again."""
    profile = profile_of(name, weights=True)
    path, again = tmp_path / "a.yaml", tmp_path / "b" / "a.yaml"
    again.parent.mkdir()
    profile.save(path)
    loaded = Profile.load(path)
    loaded.save(again)
    assert loaded == profile and loaded.version == profile.version
    assert list(loaded.values.items()) == list(profile.values.items())
    assert path.read_bytes() == again.read_bytes()
    assert yaml.safe_load(path.read_text())["graph"] == profile.graph


@pytest.mark.parametrize("x", [1e-45, -1e-45, 0.1, -3.4028234663852886e38, 1 / 3, 1e16, 1e-5, 0.0])
def test_numbers_are_exact(x: float, tmp_path: Path) -> None:
    """Any float32, in both forms."""
    x = torch.tensor(x).item()
    state = State.new(2048)
    values = torch.tensor([x, x, 0.0])
    torch.ops.jit_passes.observe_histogram(values, state.range, state.histogram, "v", "")
    value = ValueProfile.of("no: 'name' %3A\u00e4#", state)
    profile = Profile("0" * 15 + "1", 2048, {value.name: value}, "1")
    profile.save(tmp_path / "p.yaml")
    assert Profile.load(tmp_path / "p.yaml") == profile
    profile.to_glow(tmp_path / "g.yaml")
    found = Profile.from_glow(tmp_path / "g.yaml")
    assert found.graph == profile.graph and list(found.values) == [value.name]
    glow = found.values[value.name]
    assert (glow.low, glow.high, glow.count) == (value.low, value.high, 3)


def test_edited_range(tmp_path: Path) -> None:
    """By hand, narrower and wider: calibration goes by it; a number without a point is one."""
    path = tmp_path / "p.yaml"
    script = script_of("plain")
    profile_of("plain").save(path)
    before = Profile.load(path).values["relu"]
    text = path.read_text()
    for high, written in ((0.75, "0.75"), (0.1, "1e-1"), (100.0, "100"), (1e-20, "1.0e-20")):
        start, end = text.split("- name: relu\n")
        end = end.replace(f"max: {before.high}", f"max: {written}", 1)
        path.write_text(start + "- name: relu\n" + end)
        value = Profile.load(path).values["relu"]
        assert (value.low, value.high) == (0.0, high)
        state = value.with_bins(2048)
        assert state.range[:2].tolist() == [0.0, high] and int(state.histogram.sum()) == value.count
        for observer in (Histogram(), MinMax(), Entropy("glow")):
            prepared = jit_passes.prepare(script, quantizer=observe_with(observer))
            reference = jit_passes.convert(jit_passes.fill(prepared, path))
            scale = next(
                node.inputs[1].constant
                for node in jit_passes.GraphView.of(reference).nodes
                if node.kind == "jit_passes::quantize"
                and node.inputs[0].producer is not None
                and node.inputs[0].producer.kind == "aten::relu"
            )
            assert 0 < scale <= max(high / 255 * 1.000001, 2.0**-23)  # the least scale there is
            if isinstance(observer, MinMax) and high > 1e-10:
                assert scale == pytest.approx(high / 255, rel=1e-6)


def test_clipped_counts() -> None:
    """What lies outside an edited range counts at its ends, or spreads into finer bins."""
    value = ValueProfile("v", 0.0, 3.5, (1, 1), 0, 0, (10, 20, 30, 40))
    assert replace(value, high=2.5).clipped().counts == (10, 20, 70)
    assert replace(value, low=1.5, high=2.5).clipped().counts == (30, 70)
    assert replace(value, low=1.5, high=2.5).clipped().offset == 1
    assert (
        replace(value, low=8.0, high=9.0).clipped()
        == replace(value, low=8.0, high=9.0, offset=8, counts=(100,))
        or sum(replace(value, low=8.0, high=9.0).clipped().counts) == 100
    )
    state = replace(value, high=1.0).with_bins(1024)
    assert int(state.histogram.sum()) == 100 and state.range[:2].tolist() == [0.0, 1.0]


def test_spread() -> None:
    """Even within a bin; the total stays."""
    assert spread([4, 0, 8], [0.0, 1.0, 2.0, 4.0], [0.0, 0.5, 1.0, 3.0, 4.0]) == [2, 2, 4, 4]
    assert spread([5], [1.0, 1.0], [0.0, 2.0]) == [5]
    assert sum(spread([1, 1, 1], [0, 1, 2, 3], [i / 7 for i in range(22)])) == 3


def test_text() -> None:
    """A table with a line for each value."""
    lines = str(profile_of("control")).splitlines()
    assert lines[0].startswith("graph ") and "2048 bins" in lines[0]
    assert lines[1].split() == ["value", "min", "max", "count"]
    assert any(line.startswith("x ") and "432" in line and "█" in line for line in lines)
    assert any("never:conv2d" in line and "never reached" in line for line in lines)


BASE = """\
jit_passes: 0.1.0
form: 1
graph: 0123456789abcdef
bins: 8
values:
- name: good
  min: 0.0
  max: 3.5
  ranks: [1, 2]
  count: 10
  exponent: 0
  offset: 0
  histogram: 1 2 3 4
"""


def test_written_by_hand(tmp_path: Path) -> None:
    """The form in full; counts as a list, and values without a range, may be there too."""
    path = tmp_path / "p.yaml"
    path.write_text(BASE + "- {name: other}\n- {name: range, min: -1, max: 2}\n")
    profile = Profile.load(path)
    assert profile.values["good"] == ValueProfile("good", 0.0, 3.5, (1, 2), 0, 0, (1, 2, 3, 4))
    assert not profile.values["other"].reached
    path.write_text(BASE.replace("1 2 3 4", "[1, 2, 3, 4]"))
    assert Profile.load(path).values["good"] == profile.values["good"]
    with pytest.raises(JitPassesError, match="'range' has a range but no histogram"):
        profile.values["range"].with_bins(8)


BAD = {
    "no_yaml": ("bins: 8", "bins: [8", "not YAML"),
    "tabs": ("form: 1", "form:\t1\n\t- x", "not YAML"),
    "a_list": (BASE, "- 1\n", r":1:\d+: a profile is a mapping, not a list"),
    "empty": (BASE, "", "one document is expected, got 0"),
    "glow": (BASE, "---\na: 1\n---\nb: 2\n---\n- c\n", "Profile.from_glow"),
    "unknown_key": ("form: 1", "form: 1\nshape: 2", r":3:\d+: a profile has no key 'shape'"),
    "missing_key": ("bins: 8\n", "", r":1:\d+: the key 'bins' is missing"),
    "other_form": ("form: 1", "form: 2", r":2:\d+: the form is 2"),
    "twice": (
        "  max: 3.5",
        "  max: 3.5\n  max: 4.5",
        r":9:\d+: the key 'max' is there twice",
    ),
    "min_above_max": ("min: 0.0", "min: 4", r":7:\d+: min is 4.0 and max is 3.5.*value 'good'"),
    "nan": ("min: 0.0", "min: .nan", r":7:\d+: min is a finite number .* not nan.*value 'good'"),
    "infinite": ("max: 3.5", "max: .inf", r":8:\d+: max is a finite number.*value 'good'"),
    "beyond_float32": ("max: 3.5", "max: 1.0e+39", r":8:\d+: max is a finite number.*value 'good'"),
    "text": ("max: 3.5", "max: big", r":8:\d+: max is a finite number.* not 'big'.*value 'good'"),
    "flag": ("max: 3.5", "max: true", r":8:\d+: max is a finite number.*value 'good'"),
    "negative": ("1 2 3 4", "1 -2 7 4", r":13:\d+: counts are whole numbers .* '-2'.*value 'good'"),
    "fraction": ("1 2 3 4", "1 2 3.5 4", r":13:\d+: counts are whole.*value 'good'"),
    "huge_count": ("1 2 3 4", "1 2 3 " + "9" * 5000, r":13:\d+: counts are whole.*value 'good'"),
    "overflow": ("count: 10", "count: " + "9" * 5000, r":10:\d+: .* is no int"),
    "sum": ("count: 10", "count: 11", r":10:\d+: the count is 11, .* up to 10.*value 'good'"),
    "too_many": ("1 2 3 4", "1 " * 9, r":13:\d+: 9 bins are too many.*value 'good'"),
    "ranks": ("[1, 2]", "[2, 1]", r":9:\d+: ranks are.*value 'good'"),
    "no_exponent": ("  exponent: 0\n", "", r":6:\d+: the key 'exponent' is missing.*value 'good'"),
    "no_max": ("  max: 3.5\n", "", r":6:\d+: the key 'max' is missing.*value 'good'"),
    "exponent": (
        "exponent: 0",
        "exponent: 1000000000",
        r":11:\d+: exponent is a whole.*value 'good'",
    ),
    "no_name": ("name: good", "name: [1]", r":6:\d+: name is text, not a list.*value '\[1\]'"),
    "same_name": ("- name", "- {name: good}\n- name", "value 'good' is there twice"),
    "python": ("0.1.0", "!!python/object/apply:os.system [exit]", "only plain data is read"),
    "python_name": ("good", "!!python/name:os.system", "only plain data is read"),
    "recursive": ("[1, 2]", "&a [*a]", r":9:\d+: the alias in it"),
    "deep": ("[1, 2]", "[" * 100_000, "nested too deeply"),
    "bytes": ("good", "\x00", "not YAML"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, tmp_path: Path) -> None:
    """Path, line and name of the value; nothing is executed."""
    old, new, message = BAD[case]
    path = tmp_path / "p.yaml"
    assert old in BASE
    path.write_text(BASE.replace(old, new, 1))
    with pytest.raises(JitPassesError, match=message) as error:
        Profile.load(path)
    assert str(path) in str(error.value) and len(str(error.value)) < 600


def test_random_damage(tmp_path: Path) -> None:
    """Whatever a file holds, it loads or is a JitPassesError, and what loads can be filled."""
    chance, path = random.Random(0), tmp_path / "p.yaml"
    for _ in range(300):
        text = list(BASE)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(text))
            text[place : place + chance.randint(0, 3)] = chance.choice("0123456789-.[]{}:&*! \nae")
        path.write_text("".join(text))
        try:
            profile = Profile.load(path)
        except JitPassesError:
            continue
        for value in profile.values.values():
            if value.counts:
                assert int(value.with_bins(4).histogram.sum()) == value.count
        assert str(profile)


# --- Glow's form


def test_glow_round_trip(tmp_path: Path) -> None:
    """Names, ranges, totals and the hash; the form as Glow writes it."""
    profile, path = profile_of("in_place", weights=True), tmp_path / "glow.yaml"
    profile.to_glow(path)
    head, graph, values = yaml.safe_load_all(path.read_text())
    assert head == {"GlowToolsVersion": jit_passes.__version__}
    assert graph == {"GraphPreLowerHash": int(profile.graph, 16)}
    assert all(list(v) == ["NodeOutputName", "Min", "Max", "Histogram"] for v in values)
    assert all(v["NodeOutputName"].endswith(":0") and len(v["Histogram"]) == 2000 for v in values)
    back = Profile.from_glow(path)
    assert back.graph == profile.graph and back.bins == 2048
    seen = {name: v for name, v in profile.values.items() if v.reached and not v.weight}
    assert list(back.values) == list(seen)
    for name, value in seen.items():
        found = back.values[name]
        assert (found.low, found.high, found.count) == (value.low, value.high, value.count)
        # Bin by bin, the cumulative sums are off by what a bin of either form can hold.
        assert found.exponent == value.exponent
    prepared = jit_passes.fill(jit_passes.prepare(script_of("in_place")), back)
    assert len(finish(prepared)[1]) > 1000


def test_glow_counts(tmp_path: Path) -> None:
    """Each of Glow's bins has what ours have of its part of the range."""
    value = ValueProfile("v", 0.5, 4.0, (1, 1), 0, 0, (8, 16, 16, 16, 4))
    Profile("f", 8, {"v": value}).to_glow(tmp_path / "g.yaml", bins=7)
    *_, values = yaml.safe_load_all((tmp_path / "g.yaml").read_text())
    assert values[0]["Histogram"] == [8, 8, 8, 8, 8, 8, 12]
    back = Profile.from_glow(tmp_path / "g.yaml", bins=8).values["v"]
    assert sum(back.counts) == 60 and (back.low, back.high) == (0.5, 4.0)


def test_glow_files_of_others(tmp_path: Path) -> None:
    """Lower-case keys, other results than the first, counts as floats."""
    path = tmp_path / "g.yaml"
    path.write_text(
        "---\nGlowToolsVersion: 'abc'\n...\n---\nGraphPreLowerHash: 0xFF\n...\n---\n"
        "- nodeOutputName: 'pool:1'\n  min: -1\n  max: 3\n  histogram: [ 1, 1e+06, 2.5e+3 ]\n...\n"
    )
    profile = Profile.from_glow(path)
    assert (profile.version, profile.graph) == ("abc", "00000000000000ff")
    value = profile.values["pool.1"]
    assert (value.low, value.high, value.count, value.ranks) == (-1.0, 3.0, 1002501, None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Min: 0", "Min: 5", r":6:\d+: min is 5.0 and max is 1.0.*value 'a:0'"),
        ("[1, 2]", "[1, -2]", r":8:\d+: counts are whole.*value 'a:0'"),
        ("[1, 2]", "[1, .nan]", r":8:\d+: counts are whole.*value 'a:0'"),
        ("  Max: 1\n", "", r":5:\d+: the key 'Max' is missing.*value 'a:0'"),
        ("0x1", "hash", r":3:\d+: the hash is a whole number"),
        ("'v'", "!!python/name:os.system", "only plain data"),
        ("---\nGraphPre", "GraphPre", "three YAML documents"),
        ("Min", "Minimum", "a value has no key 'Minimum'"),
    ],
)
def test_bad_glow_files(old: str, new: str, message: str, tmp_path: Path) -> None:
    """Path, line and name."""
    text = (
        "GlowToolsVersion: 'v'\n---\nGraphPreLowerHash: 0x1\n---\n"
        "- NodeOutputName: 'a:0'\n  Min: 0\n  Max: 1\n  Histogram: [1, 2]\n"
    )
    path = tmp_path / "g.yaml"
    path.write_text(text)
    assert Profile.from_glow(path).values["a"].count == 3
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(JitPassesError, match=message) as error:
        Profile.from_glow(path)
    assert str(path) in str(error.value)


# Files that were edited, and other weights


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 1)
        self.conv2 = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(torch.relu(self.conv1(x)))


def named(seed: int = 0) -> torch.jit.ScriptModule:
    torch.manual_seed(seed)
    return torch.jit.script(Named().eval())


def test_a_misspelt_name_is_an_error(tmp_path: Path) -> None:
    """It says the line, and the name that was meant."""
    path = tmp_path / "edited.yaml"
    jit_passes.profile(named(), [torch.randn(2, 2, 4, 4)]).save(path)
    text = path.read_text()
    path.write_text(text.replace("name: conv2:conv2d", "name: conv2:convd"))
    line = 1 + text.splitlines().index("- name: conv2:conv2d")
    prepared = jit_passes.prepare(named(), target="reference")
    message = f"edited.yaml:{line}:.*'conv2:convd'.*did you mean 'conv2:conv2d'"
    for profile in (path, Profile.load(path)):
        with pytest.raises(JitPassesError, match=message):
            jit_passes.fill(prepared, profile)
        with pytest.raises(JitPassesError, match=message):
            jit_passes.quantize_script(named(), profile=profile, target="reference")


def test_a_profile_of_other_weights_warns(tmp_path: Path) -> None:
    data = [torch.randn(2, 2, 4, 4)]
    one, other = (jit_passes.profile(named(seed), data) for seed in (0, 1))
    assert one.graph == other.graph and one.weights != other.weights
    with pytest.raises(JitPassesError, match="2 different sets of weights"):
        one + other
    assert (one + one).weights == one.weights
    other.save(tmp_path / "other.yaml")
    loaded = Profile.load(tmp_path / "other.yaml")
    assert loaded.weights == other.weights
    with pytest.warns(JitPassesWarning, match=f"other weights, {other.weights}, than this one"):
        jit_passes.fill(jit_passes.prepare(named(), target="reference"), loaded)
    lines = (tmp_path / "other.yaml").read_text().splitlines(keepends=True)
    (tmp_path / "older.yaml").write_text("".join(x for x in lines if "weights:" not in x))
    older = Profile.load(tmp_path / "older.yaml")
    assert older.weights == "" and (older + one).weights == one.weights
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)
        for profile in (one, older):  # whose weights are not known
            jit_passes.fill(jit_passes.prepare(named(), target="reference"), profile)
        loaded_model = io.BytesIO(saved(named()))  # weights are known again from a file
        prepared = jit_passes.prepare(torch.jit.load(loaded_model), target="reference")
        jit_passes.fill(prepared, one)
