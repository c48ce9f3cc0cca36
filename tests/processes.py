"""Processes that compute what this one has computed, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parent


def run_python(*arguments: str | Path, cwd: Path) -> str:
    """Run Python with as many threads as this process has, and return what it writes.

    Sums of floats have other last bits on other numbers of threads.
    """
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_fresh(manifest: Path) -> None:
    """Run the modules of a manifest in a process that knows torch alone; see fresh.py."""
    run_python(TESTS / "fresh.py", manifest, cwd=TESTS)
