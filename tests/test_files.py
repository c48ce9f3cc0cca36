"""Files that are written: as a whole or not at all, and the same each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Run, run_fixture  # noqa: F401  fixtures
from torch import nn

import jit_passes
from jit_passes import files
from jit_passes.export import encodings_of, save_nni

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


@pytest.mark.parametrize("error", FAILURES, ids=["full", "interrupted"])
@pytest.mark.parametrize(
    "name", ["report", "tuned", "profile", "glow", "encodings", "nni", "tensorrt"]
)
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
