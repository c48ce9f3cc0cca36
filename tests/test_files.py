"""Files that are written: as a whole or not at all, and the same each time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jit_passes
from jit_passes import JitPassesError, files
from jit_passes.export import encodings_of, load_aimet, load_nni, save_nni
from jit_passes.quantizer import read_configuration
from tests.command_line.running import Run, run_fixture  # noqa: F401  fixtures

FAILURES: list[BaseException] = [OSError(28, "No space left on device"), KeyboardInterrupt()]


@pytest.fixture(scope="module")
def writers() -> dict[str, Callable[[Path], Any]]:
    """All that writes a file, in Python."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval())
    data = [torch.randn(8, 4)]
    reference = jit_passes.quantize_script(model, data, target="reference")
    found = jit_passes.profile(model, data)
    tuned = jit_passes.tune(model, data, budget=90, target="reference")
    encodings = encodings_of(reference)
    return {
        "report": lambda path: jit_passes.report(model, reference, data, path),
        "tuned": tuned.save,
        "profile": found.save,
        "glow": found.to_glow,
        "encodings": encodings.save,
        "nni": lambda path: save_nni(encodings, path),
        "tensorrt": lambda path: jit_passes.export_calibration(encodings, path, "tensorrt"),
    }


WRITERS = ["report", "tuned", "profile", "glow", "encodings", "nni", "tensorrt"]


@pytest.mark.parametrize("name", WRITERS)
def test_where_no_file_can_be(
    name: str, writers: dict[str, Callable[[Path], Any]], tmp_path: Path
) -> None:
    """The message is about the file that was named, and the error is of both classes."""
    missing = tmp_path / "none" / "file"
    for path, words in (
        (missing, f"{missing} cannot be written: there is no folder {missing.parent}"),
        (tmp_path, f"{tmp_path} is a folder: name a file in it"),
        (tmp_path / ("a" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(JitPassesError, match=re.escape(words)) as caught:
            writers[name](path)
        assert isinstance(caught.value, OSError)
    with pytest.raises(JitPassesError, match=r"a path is text or a pathlib\.Path, not 3"):
        writers[name](3)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


READERS: dict[str, Callable[[Path], Any]] = {
    "profile": jit_passes.Profile.load,
    "glow": jit_passes.Profile.from_glow,
    "encodings": jit_passes.Encodings.load,
    "nni": load_nni,
    "aimet": load_aimet,
    "configuration": read_configuration,
}


@pytest.mark.parametrize("name", READERS)
def test_what_cannot_be_read(name: str, tmp_path: Path) -> None:
    """No file, a folder, and files of something else."""
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(JitPassesError, match=re.escape(str(path))) as caught:
            READERS[name](path)
        assert isinstance(caught.value, OSError)
    path = tmp_path / "file.yaml"
    for content in (b"", b"\x80\x02}", b"PK\x03\x04\xff\xfe", b"\xff\xfe\0", b"[1, 2", b"3", b"{}"):
        path.write_bytes(content)
        with pytest.raises(JitPassesError, match=re.escape("file.yaml")):
            READERS[name](path)


def test_a_file_of_nni_that_was_cut_off(
    writers: dict[str, Callable[[Path], Any]], tmp_path: Path
) -> None:
    """Anywhere: torch.load has errors of many classes."""
    path = tmp_path / "file.pt"
    writers["nni"](path)
    whole = path.read_bytes()
    assert load_nni(path).encodings
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(JitPassesError, match=r"file\.pt is no file of torch\.save .* cut off"):
            load_nni(path)


def test_data_in_place_of_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "calib.npz"
    np.savez(path, x=np.zeros((2, 4), np.float32))
    model = torch.jit.script(nn.Linear(4, 4).eval())
    words = r"calib\.npz: this is a zip archive, as \.npz .* samples are data, not a profile"
    with pytest.raises(JitPassesError, match=words):
        jit_passes.quantize_script(model, profile=path)


@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")  # of what a form cannot say
@pytest.mark.parametrize("error", FAILURES, ids=["full", "interrupted"])
@pytest.mark.parametrize("name", WRITERS)
def test_the_old_file_stays(
    name: str, error: BaseException, writers: dict[str, Callable[[Path], Any]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where the last part of the new one cannot be written, and nothing of it is left."""
    out = tmp_path / "file"
    out.write_text("old")

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", fail)
        with pytest.raises(type(error)):
            writers[name](out)
    assert out.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["file"]
    writers[name](out)
    assert out.read_bytes() != b"old" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_profiles_of_the_command_are_the_same_each_time(run: Run, tmp_path: Path) -> None:
    """Their first line has the name of the file, not of what stood there while it was written."""
    model, data, out = (tmp_path / name for name in ("model.pt", "x.npy", "ranges.yaml"))
    torch.jit.save(torch.jit.script(nn.Linear(4, 4).eval()), model)
    np.save(data, torch.randn(8, 4).numpy())
    texts = []
    for _ in range(2):
        assert run("profile", model, "--data", data, "-o", out).code == 0
        texts.append(out.read_text())
    assert texts[0] == texts[1] and "ranges.yaml" in texts[0].splitlines()[0]
    assert ".part" not in texts[0]
