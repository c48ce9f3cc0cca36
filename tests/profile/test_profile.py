"""Profiles: quantizing with one is calibrating with its data; values, and merging."""

from __future__ import annotations

import io
import itertools
import math
import pickle
import random
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphView, JitPassesError, JitPassesWarning, Profile, ValueProfile
from jit_passes.observers import Entropy, Histogram, MinMax, MovingAverageMinMax, Observer
from jit_passes.profile.value import State
from jit_passes.quantizer import (
    Annotations,
    BackendQuantizer,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)
from jit_passes.targets import resolve_target
from tests.models import BASIC, Case
from tests.profile.profiles import (
    MODELS,
    anonymous,
    finish,
    hash_of,
    images,
    observe_with,
    profile_of,
    saved,
    script_of,
)
from tests.seeds import seeds


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
    for case in BASIC
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
        files = [saved(jit_passes.convert(anonymous(model))) for model in (filled, calibrated)]
    assert files[0] == files[1]
    loaded = torch.jit.load(io.BytesIO(saved(script)))
    assert hash_of(loaded, case.method) == profile.graph
    if "multihead" in case.name:  # a file spells lists of texts out, which stay so
        return
    # A file keeps no paths of modules, and spells lists of numbers out.
    prepared = jit_passes.prepare(script, method=case.method)
    again = jit_passes.fill(torch.jit.load(io.BytesIO(saved(prepared))), profile)
    states = dict(filled.named_buffers())
    for key, state in again.named_buffers():
        assert torch.equal(state, states[key]), key


@pytest.mark.parametrize("observer", [Histogram(), MinMax(), MovingAverageMinMax()], ids=str)
def test_weights_of_one_scale(observer: Observer) -> None:
    """Weights whose observers are those of activations are measured in the model."""
    spec = QuantizationSpec("int8", -127, 127, "per_tensor_symmetric", observer=observer)
    quantizer = BackendQuantizer(resolve_target("auto"), weight=spec)
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
    """The weight is measured in the model too, and has no name of its own there."""
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
    """A warning names the value, and only a stage that needs its range fails."""
    profile = profile_of("transformer")
    assert [name for name, v in profile.values.items() if not v.finite] == ["masked_fill"]
    assert "not finite" in str(profile)
    profile.save(tmp_path / "p.yaml")
    assert Profile.load(tmp_path / "p.yaml") == profile
    broken = ValueProfile("up:linear", ranks=(3, 3), finite=False)
    profile = replace(profile, values={**profile.values, "up:linear": broken})
    prepared = jit_passes.prepare(script_of("transformer"), mode="static")
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


@pytest.mark.parametrize("seed", seeds(30))
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
    with pytest.raises(
        JitPassesError, match=r"the weight 'conv:conv2d\[1\]' differs between the profiles"
    ):
        profile + changed
    assert (profile + profile).values["conv:conv2d[1]"] == profile.values["conv:conv2d[1]"]


def buffers_of(state: State) -> tuple[Tensor, Tensor]:
    assert state.histogram is not None
    return state.range, state.histogram


def test_merge_op_checks() -> None:
    """Buffers that do not fit are an error, never a write outside of them."""
    merge = torch.ops.jit_passes.merge_histogram
    row = torch.tensor([0.0, 1.0, 1, 1, -6, 0], dtype=torch.float64)
    counts = torch.tensor([1] * 64 + [0] * 64 + [7])
    with pytest.raises(RuntimeError, match="outside of its range"):
        merge(row, counts, *buffers_of(State.new(64)))
    row[4] = 3
    with pytest.raises(RuntimeError, match="cannot be split"):
        merge(row, torch.tensor([4]), *buffers_of(State.new(64)))


def test_weights() -> None:
    """On request; one histogram for the tensor."""
    assert not any(v.weight for v in profile_of("plain").values.values())
    weights = {n: v for n, v in profile_of("plain", weights=True).values.items() if v.weight}
    assert {"head:linear[1]", "head:linear[2]", "conv:conv2d[1]"} <= set(weights)
    weight = script_of("plain").head.weight
    found = weights["head:linear[1]"]
    assert (found.low, found.high) == (weight.min().item(), weight.max().item())
    assert found.count == weight.numel()
