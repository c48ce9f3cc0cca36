"""Progress bars: they have the time left where they are asked for, and are quiet elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import Pipeline
from jit_passes.targets import Reference
from tests.folders import ROOT
from tests.planted import PLANTED

CASE = PLANTED["scaled channel"]
LEFT = re.compile(r"(\d+)/(\d+) \[\d\d:\d\d<\d\d:\d\d")  # done, of all, time so far and left
How = dict[str, Any]
STEPS: dict[str, Callable[..., Any]] = {
    "calibrate": lambda m, d, **how: jit_passes.calibrate(
        jit_passes.prepare(m, target="reference"), d, **how
    ),
    "profile": lambda m, d, **how: jit_passes.profile(m, d, **how),
    "sensitivity": lambda m, d, **how: jit_passes.sensitivity(m, d, target="reference", **how),
    "tune": lambda m, d, **how: jit_passes.tune(m, d, budget=30, target="reference", **how),
    "compare": lambda m, d, **how: jit_passes.compare(
        m, jit_passes.quantize_script(m, d, target="reference", progress=False), d, **how
    ),
    "correct": lambda m, d, **how: jit_passes.correct_bias(
        jit_passes.calibrate(jit_passes.prepare(m, target="reference"), d, progress=False), d, **how
    ),
    "convert": lambda m, d, **how: jit_passes.quantize_script(m, d, target="reference", **how),
}
BAR = {"profile": "calibrate"}


@pytest.mark.parametrize("name", STEPS)
def test_bars(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The last state of the bar is complete; one before it has the time left."""
    model, data = CASE.model(), CASE.data()
    for progress in (False, None):
        STEPS[name](model, data, progress=progress)
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err == ""
    STEPS[name](model, data, progress=True)
    bar = BAR.get(name, name)
    begins = rf"{bar}(, about \d+ s)?: "  # the estimate before the first layer
    states = re.split(r"[\r\n]", capsys.readouterr().err)
    states = [state for state in states if re.match(begins, state)]
    counts = [LEFT.search(state) for state in states]
    assert counts[-1] is not None, states
    assert 0 < int(counts[-1][1]) == int(counts[-1][2])
    assert ("about" in states[0]) == (name == "sensitivity")


class Once:
    """Batches of which an iterator can be made one time only, as of a stream."""

    def __init__(self, data: list[Tensor]) -> None:
        self.data, self.begun = data, 0

    def __iter__(self) -> Iterator[Tensor]:
        self.begun += 1
        return iter(self.data)


def test_data_are_begun_once() -> None:
    """A loader may start processes each time, or a stream be at its end."""
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4)).eval())
    for progress in (True, False):
        data = Once([torch.randn(3, 4) for _ in range(2)])
        prepared = jit_passes.prepare(model, target="reference")
        jit_passes.calibrate(prepared, data, progress=progress)
        made = jit_passes.provenance(prepared)
        assert made is not None and data.begun == 1 and made["batches"] == 2


def test_a_terminal(tmp_path: Path) -> None:
    """On one, a bar by default; none with --no-progress."""
    model = tmp_path / "model.pt"
    torch.jit.save(CASE.model(), model)
    shown = []
    for options in ((), ("--no-progress",)):
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        command = [sys.executable, "-m", "jit_passes", "quantize", str(model), "--random"]
        command += ["4x3x8x8", "-o", str(tmp_path / "int8.pt"), *options]
        with subprocess.Popen(
            command, stderr=other, stdout=subprocess.DEVNULL, cwd=ROOT
        ) as process:
            os.close(other)
            text = b""
            try:
                while part := os.read(main, 4096):
                    text += part
            except OSError:  # the other end is closed
                pass
            assert process.wait() == 0
        os.close(main)
        shown.append(text.decode())
    assert LEFT.search(shown[0]) and "calibrate" in shown[0]
    assert "calibrate" not in shown[1] and "warning" in shown[1]


@dataclass(frozen=True)
class Slow(Reference):
    """A target whose lowering takes longer than a moment."""

    name: ClassVar[str] = "slow_reference"
    seconds: float = 0.4

    def lowering(self) -> Pipeline:
        def wait(graph: jit_passes.GraphEditor) -> None:
            """Wait."""
            time.sleep(self.seconds)

        return Pipeline("lower_slowly", (wait, wait, *super().lowering().steps))


def test_lowering(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar of passes where that takes a moment, and none where it does not."""
    model, data = CASE.model(), CASE.data()
    for seconds in (0.0, 0.2):
        # A busy machine is slow as well.
        stage = sys.modules["jit_passes.stages.lower"]
        monkeypatch.setattr(stage, "MOMENT", 0.1 if seconds else 1e9)
        target = Slow(seconds=seconds)
        prepared = jit_passes.calibrate(jit_passes.prepare(model, target=target), data)
        reference = jit_passes.convert(prepared)
        for progress in (False, True):
            capsys.readouterr()
            jit_passes.lower(reference, target, progress=progress)
            shown = re.findall(r"lower: .*?(\d+)/(\d+) \[", capsys.readouterr().err)
            assert bool(shown) == (progress and seconds > 0)
    assert shown[-1] == (str(len(target.lowering().steps)),) * 2
