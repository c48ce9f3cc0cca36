"""Profiles in files: round trips, damage, and Glow's form."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

import jit_passes
from jit_passes import JitPassesError, Profile, ValueProfile
from jit_passes.observers import Entropy, Histogram, MinMax
from jit_passes.profile.value import State, spread
from tests.profile.profiles import MODELS, finish, observe_with, profile_of, script_of

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
    """Numbers outside an edited range count at its ends, or spread into finer bins."""
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


def test_files_that_are_cut(tmp_path: Path) -> None:
    """Wherever that is: between two values, within one, behind the last key of one."""
    path = tmp_path / "p.yaml"
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval()
    made = jit_passes.profile(torch.jit.script(net), [torch.ones(4, 3)])
    made.save(path)
    text = path.read_text()
    assert Profile.load(path) == made and len(made.values) == 3
    lines = text.splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        with pytest.raises(JitPassesError):
            Profile.load(path)


def test_random_damage(tmp_path: Path) -> None:
    """A damaged file loads or gives a JitPassesError, and a profile that loads can be filled."""
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
