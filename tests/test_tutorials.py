"""The tutorials run from start to end, their assertions included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import run_script

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial(tutorial: Path, tmp_path: Path) -> None:
    """Run as a reader would, in a folder and a process of its own."""
    done = run_script(tutorial, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_tutorial_that_fails(tmp_path: Path) -> None:
    """Its status and its last words come back."""
    script = tmp_path / "failing.py"
    script.write_text("import torch\nprint(torch.ones(2))\nassert torch.ones(1) > 1, 'too small'\n")
    done = run_script(script, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "tensor([1., 1.])\n"
    assert done.stderr.endswith("AssertionError: too small\n") and str(script) in done.stderr


def test_there_are_tutorials() -> None:
    """A wrong folder would run none."""
    assert TUTORIALS
