"""Running the command, in this process or in one of its own, and files for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jit_passes.command_line import main
from tests.folders import ROOT
from tests.processes import Running, start_script

# How messages tell a program in Python what to do. A model is made in Python, so that may be said.
PYTHON = re.compile(
    r"jit_passes\.[a-z_]+|lambda|\b(?:True|False|None)\b|pass (?:batches|data|a metric|one of)|"
    r"\b(?:target|method|mode|config|data|smooth|partial|bins|names|input_fn|profile)=|"
    r"\bcall (?!of)(?!model\.float)"
)


class Net(nn.Module):
    """Two arguments, of which one has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor, factor: float = 1.0) -> Tensor:
        return self.head(torch.relu(self.conv(images)).mean([2, 3]) * factor)


@dataclass(frozen=True)
class Outcome:
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture(name="run")
def run_fixture(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process. Its messages are for people who have not called Python."""

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        done = Outcome(code, *capfd.readouterr())
        if "--debug" not in arguments:  # which shows lines of code
            found = PYTHON.search(done.err.partition("PyTorch says")[0])
            assert found is None, done.err
        return done

    return run


def command(*arguments: object) -> list[str]:
    """The command line of a process of its own."""
    return [sys.executable, "-m", "jit_passes", *map(str, arguments)]


COMMAND = """
import signal

# Background jobs of shells, and what they start, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
from jit_passes.command_line import run

run()
"""


def start_command(folder: Path, *arguments: str | Path | int) -> Running:
    """Start the command as its installed script does, in a process that begins with torch.

    Args:
        folder: it runs there, and the script is written there.
        arguments: those of the command.
    """
    script = folder / "jit-passes"
    script.write_text(COMMAND)
    environment = {"PYTHONPATH": str(ROOT)}
    return start_script(script, *map(str, arguments), cwd=folder, environment=environment)


def run_process(*arguments: object, **options: Any) -> Outcome:
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, cwd=ROOT, **options
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def images(count: int = 12) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def saved(path: Path, model: nn.Module | None = None) -> Path:
    """The file of a model without its source."""
    torch.manual_seed(0)
    torch.jit.save(torch.jit.script((model or Net()).eval()), path)
    return path


@pytest.fixture(name="model")
def model_fixture(tmp_path: Path) -> Path:
    return saved(tmp_path / "model.pt")
