"""Programs in C that call CMSIS-NN give the codes of the lowered model.

The environment variable `CMSIS_NN` names a folder with its sources. Without it functions stand in
that compute what CMSIS-NN documents, in plain loops.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.export.c.cmsis_kernels import MACRO
from jit_passes.targets import FixedPoint
from tests.command_line.running import Run, run_fixture  # noqa: F401
from tests.export.c.test_c import FLAGS, SANITIZE
from tests.targets.fixed_point.test_fixed_point import Residual

SIGNED = {"version": 1, "global": {"input": {"signed": True}, "output": {"signed": True}}}
ROUNDINGS = ("half_up", "double_round")
# Headers with functions that compute as CMSIS-NN documents.
STANDING_IN = Path(__file__).parent / "cmsis_nn"


class Layers(nn.Module):
    """All that programs call of CMSIS-NN, with functions between, and a join of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, (3, 5), stride=2, padding=(1, 2))
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.b = nn.Conv2d(8, 8, 1, bias=False)
        self.twice = nn.Conv2d(8, 16, 3, groups=8, dilation=(1, 2))
        self.halves = nn.Conv2d(16, 6, 1, groups=2, bias=False)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.last = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.a(x))
        z = torch.relu(self.b(self.deep(y))) + y
        z = self.pool(z * torch.sigmoid(y))
        z = self.halves(nn.functional.hardswish(self.twice(z)))
        return self.last(torch.cat([z, x[:, :, :3, :3]], 1)[..., 0, 0]), z


class Rows(nn.Module):
    """Convolutions in one dimension, a map of one channel, and linears of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(3, 4, 3, padding=2, dilation=2), nn.Conv1d(4, 1, 3, stride=2)
        self.c, self.d = nn.Linear(13, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.c(self.b(torch.relu(self.a(x.flatten(2)[..., :28]))))
        return self.d(torch.relu(y)) * y


class Products(nn.Module):
    """Products of matrices: attention of two heads, of one matrix with itself, and a row."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(26, 8) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.flatten(1, 2)[:, :7]
        q, k, v = (f(rows).reshape(2, 7, 2, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = torch.softmax(q @ k.transpose(2, 3) * 0.5, -1) @ v
        square = self.q(rows)[:, :, :7]
        return y, square @ square + square[:, :1] @ square


def images(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 20, 26, generator=generator) for _ in range(count)]


def lowered(module: Callable[[], nn.Module], rounding: str, config: Any = SIGNED) -> Any:
    torch.manual_seed(0)
    traced = torch.jit.trace(module().eval(), images(1)[0])
    target = FixedPoint(rounding=rounding)
    return jit_passes.quantize_script(traced, images(4), target=target, config=config)


@cache
def library(once: bool, folder: Path) -> list[str]:
    """Return what a program is compiled with: CMSIS-NN's functions, or those that stand in."""
    macro = [f"-D{MACRO}"] if once else []
    sources = os.environ.get("CMSIS_NN")
    if not sources:
        return [*macro, "-isystem", str(STANDING_IN)]
    include = ["-isystem", str(Path(sources) / "Include")]
    floats = ("_f16.c", "_f32.c", "_flt.c")
    files = [str(p) for p in Path(sources).glob("Source/*/*.c") if not p.name.endswith(floats)]
    folder.mkdir()
    subprocess.run(["gcc", "-O1", *macro, *include, "-c", *files], cwd=folder, check=True)
    return [*macro, *include, *(str(path) for path in folder.glob("*.o"))]


def check(folder: Path, rounding: str, objects: Path) -> str:
    """Check that gcc gives the codes, and return the source."""
    own = library(rounding == "half_up", objects / rounding)
    command = ["gcc", *FLAGS, *SANITIZE, "main.c", "model.c", *own, "-o", "program"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    done = subprocess.run(["./program"], cwd=folder, capture_output=True, text=True, check=False)
    assert re.fullmatch(r"0 of [1-9]\d+ codes differ\n", done.stdout), done.stdout + done.stderr
    return (folder / "model.c").read_text()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("module", [Layers, Rows, Products])
def test_gcc_gives_the_codes(
    module: type[nn.Module], rounding: str, tmp_path: Path, objects: Path
) -> None:
    model = lowered(module, rounding)
    jit_passes.export_c(model, tmp_path, images(1)[0], images(3)[1:], kernels="cmsis")
    text = check(tmp_path, rounding, objects)
    run = text.rpartition("void model_run")[2]
    called = {line.strip().partition("(")[0] for line in run.splitlines() if "cmsis_" in line}
    expected = {"cmsis_convolve", "cmsis_fully_connected", "cmsis_multiply"}
    if module is Products:
        expected = {"cmsis_fully_connected", "cmsis_matmul"}
        assert run.count("cmsis_matmul(") == 4 and "    matmul" not in run
    if module is Layers:
        expected |= {"cmsis_depthwise", "cmsis_max_pool"}
        expected |= {"cmsis_add"} if rounding == "double_round" else set()
    assert called == expected
    assert "conv2d_s8" not in run and "linear_s8" not in run
    # The order changes for the input, the pooled result, and the join; and not between.
    assert run.count(", channels last'") <= (3 if module is Layers else 2)


def test_program_without_the_macro(tmp_path: Path, objects: Path) -> None:
    """CMSIS-NN rounds as it is compiled, so another way of it is an error of the compiler."""
    jit_passes.export_c(lowered(Residual, "half_up"), tmp_path, images(1)[0], kernels="cmsis")
    own = ["-fsyntax-only", "-isystem", str(STANDING_IN)]
    command = ["gcc", *FLAGS, *own, "model.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"the model rounds once: compile the program and CMSIS-NN with -D{MACRO}" in done.stderr


def test_refusals(tmp_path: Path) -> None:
    x, folder = images(1)[0], tmp_path / "folder"
    with pytest.raises(JitPassesError, match="has 'half_even': quantize with target=FixedPoint"):
        jit_passes.export_c(lowered(Residual, "half_even"), folder, x, kernels="cmsis")
    unsigned = lowered(Residual, "half_up", config=None)
    with pytest.raises(JitPassesError, match="no operator has the arithmetic of CMSIS-NN, which"):
        jit_passes.export_c(unsigned, folder, x, kernels="cmsis")
    with pytest.raises(JitPassesError, match="kernels is one of plain, cmsis, not 'cmsiss'"):
        jit_passes.export_c(unsigned, folder, x, kernels="cmsiss")
    assert not folder.exists()


def test_command_line(run: Run, tmp_path: Path, objects: Path) -> None:
    model, samples, folder = (tmp_path / name for name in ("model.pt", "data.pt", "folder"))
    torch.jit.save(lowered(Residual, "double_round"), model)
    torch.save(images(1)[0], samples)
    given = ("export", model, "--data", samples, "-o", folder, "--kernels", "cmsis")
    done = run(*given, "--to", "c")
    assert done.code == 0, done.err
    assert "cmsis_add(" in check(folder, "double_round", objects)
    done = run(*given, "--to", "vectors")
    assert done.code == 2 and "--kernels is of programs in C: give --to c" in done.err
