"""C++ programs that run saved files, without Python.

Tutorial 7 builds a library with a pass of its own, and `test_tutorials.py` runs it.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils import cpp_extension

import jit_passes

SOURCES = Path(__file__).parent
SHAPE = (3, 9, 9)  # of a sample

# `make soak` asks for 100,000 calls.
CALLS = int(os.environ.get("JIT_PASSES_CALLS", "2000"))
# cmake and ninja of the environment that runs the tests come first.
TOOLS = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="compiles with g++")
one_build = pytest.mark.xdist_group("cpp")  # each process would compile the programs anew
needs_cmake = pytest.mark.skipif(
    torch.version.cuda is not None
    and not Path(cpp_extension.CUDA_HOME or "", "include", "cuda.h").is_file(),
    reason="PyTorch's CMake package asks for the CUDA toolkit that this PyTorch was built with",
)


class Net(nn.Module):
    """Convolutions, a sum, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.stem(x))
        y = torch.relu(y + self.body(y))
        return self.head(y.mean([2, 3]))


def quantized(target: str) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    script = torch.jit.script(Net().eval())
    return jit_passes.quantize_script(script, [ramp(2)], target=target, progress=False)


def ramp(batch: int) -> Tensor:
    return torch.linspace(-2, 2, batch * math.prod(SHAPE)).reshape(batch, *SHAPE)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of tests/cpp/CMakeLists.txt, built against the installed torch."""
    folder = tmp_path_factory.mktemp("programs")
    configured = [
        *("cmake", "-S", str(SOURCES), "-B", str(folder)),
        f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
        f"-DJIT_PASSES_LIBRARY={jit_passes.runtime_path()}",
    ]
    for command in (configured, ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=TOOLS)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


def run_calls(program: Path, file: Path, threads: int, calls: int) -> tuple[Tensor, str]:
    """The results for batches of 1 to 4, and what the program says of its memory."""
    command = [str(program), str(file), str(threads), str(calls), *map(str, SHAPE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.tensor([float(line) for line in done.stdout.split()]), done.stderr


def expected_of(model: torch.jit.ScriptModule) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(ramp(batch)).flatten() for batch in range(1, 5)])


@one_build
@needs_cmake
def test_file_runs_in_a_cpp_program(programs: Path, tmp_path: Path) -> None:
    """A program that knows PyTorch alone computes the bits that Python computes."""
    lowered = quantized("stock")
    assert jit_passes.coverage(lowered)[0].dtype == "int8"
    file = tmp_path / "int8.pt"
    torch.jit.save(lowered, str(file))
    needed = subprocess.run(
        ["ldd", str(programs / "run_stock")], capture_output=True, text=True, check=True
    ).stdout
    assert "libtorch_cpu" in needed
    assert "jit_passes" not in needed
    found, _ = run_calls(programs / "run_stock", file, threads=1, calls=8)
    assert torch.equal(found, expected_of(torch.jit.load(str(file))))


@one_build
@needs_cmake
def test_plans_run_in_threads_of_a_cpp_program(programs: Path, tmp_path: Path) -> None:
    """Each thread and batch gives the bits of Python; memory does not grow with calls."""
    lowered = quantized("x86")
    assert {row.dtype for row in jit_passes.coverage(lowered)} == {"int8"}
    file = tmp_path / "x86.pt"
    torch.jit.save(lowered, str(file))
    found, said = run_calls(programs / "run_x86", file, threads=8, calls=CALLS)
    assert torch.equal(found, expected_of(lowered))
    early, late = map(float, re.findall(r"([0-9.]+) MB resident", said))
    assert late < early + 10


def test_headers_come_with_the_package() -> None:
    """Folders of the package come first, then PyTorch's."""
    first, *rest = jit_passes.include_paths()
    assert (Path(first) / "jit_passes" / "registry.h").exists()
    assert rest == cpp_extension.include_paths()
