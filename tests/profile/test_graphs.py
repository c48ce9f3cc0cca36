"""Profiles and the graphs they fit: names, hashes, other observers, other weights."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning, Profile
from jit_passes.observers import MovingAverageMinMax
from jit_passes.profile.probes import Probes
from jit_passes.stages.normalize import normalize
from tests.profile.profiles import (
    MODELS,
    Batch,
    finish,
    hash_of,
    images,
    observe_with,
    profile_of,
    saved,
    script_of,
)


@pytest.mark.parametrize("name", MODELS)
def test_hash(name: str, tmp_path: Path) -> None:
    """The hash stays for a model scripted again, loaded, cloned, prepared, trained further."""
    script = script_of(name)
    expected = hash_of(script)
    assert len(expected) == 16 and int(expected, 16) >= 0
    torch.jit.save(script, tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    assert hash_of(script_of(name)) == hash_of(loaded) == hash_of(copy.deepcopy(script)) == expected
    prepared = jit_passes.prepare(loaded)
    probes = Probes.of(prepared._c, "forward")
    normalized = Probes.of(normalize(script._c).module, "forward")
    assert probes.hash == expected
    assert set(probes.names.values()) == set(normalized.names.values())
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


class Attends(nn.Module):
    """Attention, which "x86" writes as products and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


def test_forms_of_a_target() -> None:
    """Its own forms of operators have values of their own; the profile is of those."""
    torch.manual_seed(0)
    model = torch.jit.script(Attends().eval())
    data = [torch.randn(2, 5, 16) for _ in range(3)]
    how: dict[str, Any] = {"target": "x86", "mode": "static"}
    with pytest.raises(JitPassesError, match=r"another graph.*for this target \(`target=`\)"):
        jit_passes.quantize_script(model, profile=jit_passes.profile(model, data), **how)
    profile = jit_passes.profile(model, data, target="x86")
    found = jit_passes.quantize_script(model, profile=profile, **how)
    wanted = jit_passes.quantize_script(model, data, smooth=None, **how)
    with torch.no_grad():
        assert torch.equal(found(data[0]), wanted(data[0]))
    assert profile.graph == jit_passes.profile(model, data, target=jit_passes.targets.X86()).graph
    assert jit_passes.profile(model, data, target="stock").graph != profile.graph


def test_another_graph_of_the_same_names() -> None:
    """Other operators or numbers are told."""
    profile = replace(profile_of("plain"), graph="0" * 16)
    with pytest.raises(JitPassesError, match="names are equal, and operators or constants differ"):
        jit_passes.fill(jit_passes.prepare(script_of("plain")), profile)
    jit_passes.fill(jit_passes.prepare(script_of("plain")), profile, partial=True)


def test_moving_average() -> None:
    """Cannot be had from a profile."""
    prepared = jit_passes.prepare(script_of("plain"), quantizer=observe_with(MovingAverageMinMax()))
    with pytest.raises(JitPassesError, match=r"observer of 'x'.*moving average.*min_max"):
        jit_passes.fill(prepared, profile_of("plain"))


def test_more_bins_than_profiled() -> None:
    """An error with the number to profile with."""
    prepared = jit_passes.prepare(script_of("plain"))
    with pytest.raises(JitPassesError, match=r"'x' has 2048 bins.*profile with 2048 bins"):
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
    """The error says the line, and the name that was meant."""
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
