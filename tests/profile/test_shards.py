"""Profiles of parts of the data, by commands and in Python, equal the one of all data."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning, Profile
from jit_passes.profile import profile
from tests.command_line.running import Run, run_fixture  # noqa: F401  fixtures


class Branches(nn.Module):
    """Two branches, integers among the values, and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x))
        if bool(x.mean() > 0):
            y = y + torch.sigmoid(self.conv(y[:, :3]))
        best = y.argmax(1, keepdim=True) + 1
        return self.head((y * best).mean((2, 3)))


def model() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.script(Branches().eval())


def samples() -> Tensor:
    return torch.randn(21, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def text_of(made: Profile, folder: Path) -> bytes:
    made.save(folder / "same.yaml")
    return (folder / "same.yaml").read_bytes()


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_any_order_byte_for_byte(count: int, tmp_path: Path) -> None:
    """Shards of unequal size, one of them empty."""
    batches = list(samples().split(3))  # seven
    script = model()
    parts = [
        profile(script, batches[k::count], shard=(k + 1, count), progress=False)
        for k in range(count)
    ]
    assert all(part.shards == (f"{k}/{count}",) for k, part in enumerate(parts, 1) if count > 1)
    random.Random(count).shuffle(parts)
    merged = Profile.merge(parts)
    assert merged.shards == () and merged.missing == []
    assert text_of(merged, tmp_path) == text_of(profile(script, batches, progress=False), tmp_path)


def test_some_shards(tmp_path: Path) -> None:
    """A file knows its shards, and each counts once."""
    script, batches = model(), samples().split(7)
    parts = [profile(script, [b], shard=(k, 3)) for k, b in enumerate(batches, 1)]
    two = parts[2] + parts[0]
    two.save(tmp_path / "two.yaml")
    assert Profile.load(tmp_path / "two.yaml").missing == two.missing == ["2/3"]
    with pytest.raises(JitPassesError, match="the shard 1/3 is there twice"):
        two.merge(parts[0])
    with pytest.raises(JitPassesError, match=r"of shards of \[3, 4\]: split data once"):
        two.merge(profile(script, [batches[0]], shard=(2, 4)))
    with pytest.raises(JitPassesError, match=r"\(3, 8\), not \(4, 3\)"):
        profile(script, [batches[0]], shard=(4, 3))
    with pytest.raises(JitPassesError, match="a shard is written 3/8, not '4/3'"):
        text = (tmp_path / "two.yaml").read_text()
        (tmp_path / "two.yaml").write_text(text.replace("1/3", "4/3"))
        Profile.load(tmp_path / "two.yaml")


@pytest.mark.parametrize("form", ["file", "folder", "batches", "images"])
def test_commands(form: str, run: Run, tmp_path: Path) -> None:
    """Batches of a file, files of a folder, batches as they were saved, and pictures."""
    torch.jit.save(model(), str(tmp_path / "model.pt"))
    x = samples()
    data = tmp_path / {"file": "calib.npz", "batches": "calib.pt"}.get(form, "calib")
    if form == "file":
        np.savez(data, x=x.numpy())
    elif form == "batches":
        torch.save(list(x.split(2)), data)
    elif form == "images":
        data.mkdir()
        for i, picture in enumerate(x):
            pixels = (picture.sigmoid() * 255).byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(data / f"{i:02}.png")
    else:
        data.mkdir()
        for i, part in enumerate(x.split(4)):
            np.save(data / f"{i}.npy", part.numpy())
    words = ["profile", tmp_path / "model.pt", "--data", data, "--batch-size", 4, "--no-progress"]
    if form == "images":
        words += ["--image-size", 6, "--mean", "0.5", "--std", "0.2"]
    assert run(*words, "-o", tmp_path / "one.yaml").code == 0
    names = []
    for k in range(1, 8):
        names.append(tmp_path / f"part{k}.yaml")
        assert run(*words, "--shard", f"{k}/7", "-o", names[-1]).code == 0
    (tmp_path / "merged").mkdir()
    merged = tmp_path / "merged" / "one.yaml"
    assert run("merge", *reversed(names), "-o", merged).code == 0
    assert merged.read_bytes() == (tmp_path / "one.yaml").read_bytes()
    told = run("merge", *names[:5], "-o", tmp_path / "some.yaml")
    assert told.code == 3 and "shards are missing: 6/7, 7/7" in told.err
    assert run("merge", "--partial", *names[:5], "-o", tmp_path / "some.yaml").code == 0
    told = run("merge", tmp_path / "some.yaml", *names[4:], "-o", tmp_path / "all.yaml")
    assert told.code == 3 and "part5.yaml: the shard 5/7 is there twice" in told.err
    told = run("merge", names[0], tmp_path / "merged" / ".." / names[0].name, "-o", tmp_path / "x")
    assert told.code == 3 and "part1.yaml is given twice" in told.err
    other = names[3].read_text()
    names[3].write_text(re.sub("^jit_passes: .*$", "jit_passes: 0.0.7", other, flags=re.M))
    told = run("merge", *names, "-o", tmp_path / "all.yaml")
    assert told.code == 3 and "part4.yaml: profile 1 was made by version 0.0.7" in told.err
    names[3].write_text(re.sub("^graph: .*$", f"graph: {'0' * 16}", other, flags=re.M))
    told = run("merge", *names, "-o", tmp_path / "all.yaml")
    assert told.code == 3 and "part4.yaml: profile 1 is of another graph" in told.err
    names[3].unlink()
    told = run("merge", *names, "-o", tmp_path / "all.yaml")
    assert told.code == 3 and "part4.yaml" in told.err
    names[3].write_text(other)
    assert not (tmp_path / "all.yaml").exists()
    names[2].write_bytes(names[2].read_bytes()[:-200])
    told = run("merge", *names, "-o", tmp_path / "all.yaml")
    assert told.code == 3 and "part3.yaml" in told.err


def test_more_shards_than_files(run: Run, tmp_path: Path) -> None:
    torch.jit.save(model(), str(tmp_path / "model.pt"))
    np.save(tmp_path / "calib.npy", samples()[:2].numpy())
    words = ["profile", tmp_path / "model.pt", "--data", tmp_path / "calib.npy", "--shard"]
    assert run(*words, "3/3", "-o", tmp_path / "empty.yaml").code == 0
    assert not any(v.reached for v in Profile.load(tmp_path / "empty.yaml").values.values())
    told = run(*words, "0/3", "-o", tmp_path / "empty.yaml")
    assert told.code == 2 and "'0/3' is no shard" in told.err


def test_a_profile_of_shards_quantizes() -> None:
    """The merged one gives the integers that all data give."""
    script, batches = model(), list(samples().split(3))
    parts = (profile(script, batches[k::4], shard=(k + 1, 4)) for k in range(4))
    options = {"target": "reference", "mode": "static", "bias_correction": None}
    one = jit_passes.quantize_script(script, profile=Profile.merge(parts), **options)
    other = jit_passes.quantize_script(script, batches, **options)
    with torch.no_grad():
        assert all(torch.equal(one(x), other(x)) for x in batches)


def test_a_profile_of_some_shards_warns() -> None:
    part = profile(model(), [samples()], shard=(2, 3))
    with pytest.warns(JitPassesWarning, match="lacks the shards 1/3, 3/3 of the data"):
        jit_passes.quantize_script(model(), profile=part, target="reference", mode="static")
