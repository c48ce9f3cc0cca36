"""The tutorials run from start to end, their assertions included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.documentation.trained_once import once
from tests.folders import ROOT
from tests.processes import run_script

TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the networks that several tutorials train."""
    return tmp_path_factory.mktemp("networks")


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial(tutorial: Path, networks: Path, tmp_path: Path) -> None:
    """Run as a reader would, in a folder and a process of its own."""
    script, environment = Path(__file__).with_name("trained_once.py"), {"PYTHONPATH": str(ROOT)}
    done = run_script(script, networks, tutorial, cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_network_that_trains_once(tmp_path: Path) -> None:
    """The second one gets the bits of the first, and what is drawn afterwards is equal too."""
    calls = []

    def train(model: nn.Module, data: tuple[Tensor, ...], *, rate: float) -> nn.Module:
        calls.append(rate)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * torch.randn(parameter.shape) * data[0].mean()
        return model.eval()

    def result(train: Callable[..., nn.Module], rate: float, data: Tensor) -> Tensor:
        torch.manual_seed(0)
        model = train(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), (data,), rate=rate)
        assert not model.training
        return torch.cat([model(torch.ones(1, 3)).flatten(), torch.randn(2)])

    ones, twos = torch.ones(2), 2 * torch.ones(2)
    kept = once(train, tmp_path)
    found = [result(kept, *case) for case in ((0.1, ones), (0.1, ones), (0.2, ones), (0.1, twos))]
    assert calls == [0.1, 0.2, 0.1]
    expected = [
        result(train, *case) for case in ((0.1, ones), (0.1, ones), (0.2, ones), (0.1, twos))
    ]
    assert all(map(torch.equal, found, expected))


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
