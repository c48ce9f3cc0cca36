"""Tars of samples give the batches that the samples give, whatever members they are cut into."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from jit_passes import JitPassesError
from jit_passes.command_line.tars import about_batches, batches_of_tar, check_tar
from jit_passes.profile import profile
from tests.command_line.running import Net, Run, run_fixture  # noqa: F401  fixtures

Parts = Sequence[tuple[str, dict[str, np.ndarray] | np.ndarray | bytes]]


def bytes_of(part: dict[str, np.ndarray] | np.ndarray | bytes) -> bytes:
    if isinstance(part, bytes):
        return part
    buffer = io.BytesIO()
    if isinstance(part, dict):
        np.savez(buffer, **part)
    else:
        np.save(buffer, part)
    return buffer.getvalue()


def write_tar(path: Path, parts: Parts) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, part in parts:
            content = bytes_of(part)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def cut(x: np.ndarray, ends: Sequence[int]) -> list[np.ndarray]:
    return [x[begin:end] for begin, end in pairwise((0, *ends))]


@pytest.fixture(name="model")
def model_fixture(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.pt"
    torch.jit.script(Net().eval()).save(path)
    return path


@pytest.mark.parametrize("ends", [range(1, 12), (11,), (3, 4, 11), (8, 11)])
@pytest.mark.parametrize("size", [1, 4, 11, 20])
def test_batches(ends: Sequence[int], size: int, tmp_path: Path) -> None:
    """Of one sample a member, all in one, and between; a number goes with all of them."""
    x = samples(11)
    y, flag = np.arange(11), np.array(True)
    several = [
        (f"{i}.npz", {"x": a, "y": b, "flag": flag})
        for i, (a, b) in enumerate(zip(cut(x, ends), cut(y, ends), strict=True))
    ]
    found = list(batches_of_tar(write_tar(tmp_path / "a.tar", several), size))
    for batch, wanted, numbers in zip(
        found, torch.from_numpy(x).split(size), torch.from_numpy(y).split(size), strict=True
    ):
        assert torch.equal(batch["x"], wanted) and torch.equal(batch["y"], numbers)
        assert batch["flag"] is True
    unnamed = [(f"{i}.npy", a) for i, a in enumerate(cut(x, ends))]
    found = list(batches_of_tar(write_tar(tmp_path / "b.tar", unnamed), size))
    assert all(
        torch.equal(batch[0], wanted)
        for batch, wanted in zip(found, torch.from_numpy(x).split(size), strict=True)
    )


def test_shards_of_a_folder(model: Path, run: Run, tmp_path: Path) -> None:
    """Profiles of the tars' shards, merged, are the profile of all batches."""
    folder, x = tmp_path / "data", samples(23)
    folder.mkdir()
    batches = []
    for number, part in enumerate(cut(x, (9, 10, 16, 23))):
        members = [(f"{i}.npz", {"images": row[None]}) for i, row in enumerate(part)]
        labels = [(f"{i}.cls", b"3") for i in range(len(part))]
        write_tar(
            folder / f"{number}.tar",
            [m for pair in zip(members, labels, strict=True) for m in pair],
        )
        batches += [{"images": torch.from_numpy(p)} for p in np.split(part, range(4, len(part), 4))]
    words = ["profile", model, "--data", folder, "--batch-size", 4, "--no-progress"]
    for k in range(1, 6):  # the last one has no tar
        assert run(*words, "--shard", f"{k}/5", "-o", tmp_path / f"part{k}.yaml").code == 0
    assert run("merge", *tmp_path.glob("part*.yaml"), "-o", tmp_path / "all.yaml").code == 0
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    profile(torch.jit.load(model), batches, progress=False).save(wanted / "all.yaml")
    assert (tmp_path / "all.yaml").read_bytes() == (wanted / "all.yaml").read_bytes()


def test_shards_of_one_tar(model: Path, run: Run, tmp_path: Path) -> None:
    """Each takes batches, and the number of them is known."""
    x = samples(11)
    tar = write_tar(tmp_path / "x.tar", [(f"{i}.npy", row[None]) for i, row in enumerate(x)])
    words = ["profile", model, "--data", tar, "--batch-size", 2, "--no-progress"]
    for k in (1, 2):
        assert run(*words, "--shard", f"{k}/2", "-o", tmp_path / f"part{k}.yaml").code == 0
    assert (
        run(
            "merge", tmp_path / "part2.yaml", tmp_path / "part1.yaml", "-o", tmp_path / "a.yaml"
        ).code
        == 0
    )
    made = (tmp_path / "a.yaml").read_bytes()
    assert run(*words, "-o", tmp_path / "a.yaml").code == 0
    assert (tmp_path / "a.yaml").read_bytes() == made


BAD: dict[str, tuple[Parts, str]] = {
    "no samples": ([("a.txt", b"text")], r"bad.tar: no member of this tar is samples"),
    "no array": ([("a.npz", b"text")], r"bad.tar: a.npz: this is no file of the form .npz"),
    "objects": (
        [("a.npy", np.array([{}], dtype=object))],
        r"bad.tar: a.npy: this is no file of the form .npy",
    ),
    "other names": (
        [("a.npz", {"x": np.zeros((1, 2))}), ("b.npz", {"y": np.zeros((1, 2))})],
        r"bad.tar: b.npz: it holds y, and the first member x",
    ),
    "other sizes": (
        [("a.npy", np.zeros((1, 2))), ("b.npy", np.zeros((1, 3)))],
        r"bad.tar: b.npy: a sample of '0' is float32\[3\], and of the first member float32\[2\]",
    ),
    "other numbers": (
        [(f"{n}.npz", {"x": np.zeros(1), "f": np.array(f)}) for n, f in (("a", 2.0), ("b", 3.0))],
        r"bad.tar: b.npz: 'f' is 3.0, and in the first member 2.0",
    ),
    "empty": ([("a.npy", np.zeros((0, 2)))], r"bad.tar: a.npy: there are no samples in it"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_members(case: str, tmp_path: Path) -> None:
    parts, wanted = BAD[case]
    with pytest.raises(JitPassesError, match=wanted):
        list(batches_of_tar(write_tar(tmp_path / "bad.tar", parts), 4))


def test_a_tar_that_is_cut(model: Path, run: Run, tmp_path: Path) -> None:
    """The command finds a cut tar before it reads any other, also one cut between two members."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.tar", "b.tar"):
        write_tar(folder / name, [(f"{i}.npy", row[None]) for i, row in enumerate(samples(4))])
    whole = (folder / "b.tar").read_bytes()
    for size in (300, 1024, 1024 + 3072 - 512, 0):
        (folder / "b.tar").write_bytes(whole[:size])
        told = run("profile", model, "--data", folder, "-o", tmp_path / "x.yaml")
        assert told.code == 3 and "b.tar: a tar ends with two blocks of zeros" in told.err, size
        assert not (tmp_path / "x.yaml").exists()
    (folder / "b.tar").write_bytes(b"x" * 2048 + bytes(1024))
    check_tar(folder / "b.tar")
    told = run("profile", model, "--data", folder, "-o", tmp_path / "x.yaml")
    assert told.code == 3 and "b.tar: this tar cannot be read" in told.err
    assert not (tmp_path / "x.yaml").exists()


def test_zeros_at_the_end_of_a_member(tmp_path: Path) -> None:
    """A tar that is cut behind them ends like a whole one, which its last batch shows."""
    x = np.zeros((1, 512), np.float32)
    tar = write_tar(tmp_path / "x.tar", [(f"{i}.npy", x) for i in range(4)])
    (tmp_path / "x.tar").write_bytes(tar.read_bytes()[: 2 * (512 + 2048 + 512)])
    check_tar(tar)
    with pytest.raises(JitPassesError, match=r"x.tar: a tar ends with two blocks of zeros"):
        list(batches_of_tar(tar, 4))


def test_tars_behind_each_other(tmp_path: Path) -> None:
    parts = [("0.npy", samples(1))]
    whole = write_tar(tmp_path / "x.tar", parts).read_bytes()
    (tmp_path / "x.tar").write_bytes(whole + whole)
    with pytest.raises(JitPassesError, match=r"x.tar: another tar is behind the end"):
        list(batches_of_tar(tmp_path / "x.tar", 4))


def test_other_files_are_named(model: Path, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_tar(folder / "a.tar", [("0.npy", samples(2))])
    (folder / "b.tar.gz").write_bytes(b"x")
    told = run("profile", model, "--data", folder, "-o", tmp_path / "x.yaml")
    assert told.code == 0 and "1 file of other forms passed over: b.tar.gz" in told.err


def test_memory_does_not_grow(tmp_path: Path) -> None:
    """Five times as many members take as much memory."""
    peaks = []
    for count in (200, 1000):
        x = np.zeros((count, 1, 64), np.float32)
        tar = write_tar(
            tmp_path / f"{count}.tar", [(f"{i:06}.npy", row) for i, row in enumerate(x)]
        )
        del x
        tracemalloc.start()
        assert sum(len(batch[0]) for batch in batches_of_tar(tar, 16)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_the_number_of_batches(tmp_path: Path) -> None:
    """Exact where there are few, and within some percent of many."""
    rows = [(f"{i:06}.npy", row[None]) for i, row in enumerate(samples(600))]
    assert about_batches(write_tar(tmp_path / "a.tar", rows[:7]), 2) == 4
    assert abs(about_batches(write_tar(tmp_path / "b.tar", rows), 2) - 300) <= 6
