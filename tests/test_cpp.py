"""C++ programs: one that runs a saved file, and a library with a pass of its own."""

from __future__ import annotations

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

SOURCES = Path(__file__).parent / "cpp"
LIBRARIES = Path(torch.__file__).parent / "lib"

# `make soak` asks for 100,000 calls.
CALLS = int(os.environ.get("JIT_PASSES_CALLS", "2000"))
# cmake and ninja of the environment that runs the tests come first.
TOOLS = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="compiles with g++")


def compile_with_torch(source: str, output: Path, *flags: str) -> None:
    """Run the compiler against the installed torch."""
    includes = [f"-I{path}" for path in jit_passes.include_paths()]
    command = [
        *(os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-w", *includes),
        *(str(SOURCES / source), "-o", str(output), f"-L{LIBRARIES}"),
        *("-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{LIBRARIES}", *flags),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


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


def test_file_runs_in_a_cpp_program(tmp_path: Path) -> None:
    """The same numbers as in Python, to the last bit."""
    torch.manual_seed(0)
    shape = (2, 3, 9, 9)
    x = torch.linspace(-2, 2, 2 * 3 * 9 * 9).reshape(shape)
    script = torch.jit.script(Net().eval())
    lowered = jit_passes.quantize_script(script, [x], target="stock", progress=False)
    assert jit_passes.coverage(lowered)[0].dtype == "int8"
    torch.jit.save(lowered, str(tmp_path / "int8.pt"))
    program = tmp_path / "run_model"
    compile_with_torch("run_model.cpp", program)
    command = [str(program), str(tmp_path / "int8.pt"), *map(str, shape)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = torch.tensor([float(line) for line in done.stdout.split()]).reshape(2, 5)
    with torch.no_grad():
        assert torch.equal(found, torch.jit.load(str(tmp_path / "int8.pt"))(x))


def build_run_threads(folder: Path) -> Path:
    """Build the program of tests/cpp/CMakeLists.txt, against the installed torch."""
    configured = [
        *("cmake", "-S", str(SOURCES), "-B", str(folder)),
        f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
        f"-DJIT_PASSES_LIBRARY={jit_passes.runtime_path()}",
    ]
    for command in (configured, ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=TOOLS)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "run_threads"


@pytest.mark.skipif(
    torch.version.cuda is not None
    and not Path(cpp_extension.CUDA_HOME or "", "include", "cuda.h").is_file(),
    reason="PyTorch's CMake package asks for the CUDA toolkit that this PyTorch was built with",
)
def test_plans_run_in_threads_of_a_cpp_program(tmp_path: Path) -> None:
    """The same bits as in Python, whatever thread and batch; memory does not grow with calls."""
    torch.manual_seed(0)
    shape = (3, 9, 9)
    script = torch.jit.script(Net().eval())
    data = [torch.linspace(-2, 2, 2 * 3 * 9 * 9).reshape(2, *shape)]
    lowered = jit_passes.quantize_script(script, data, target="x86", progress=False)
    assert {row.dtype for row in jit_passes.coverage(lowered)} == {"int8"}
    torch.jit.save(lowered, str(tmp_path / "x86.pt"))
    program = build_run_threads(tmp_path / "build")
    command = [str(program), str(tmp_path / "x86.pt"), "8", str(CALLS), *map(str, shape)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = torch.tensor([float(line) for line in done.stdout.split()])
    ramps = [torch.linspace(-2, 2, n * 3 * 9 * 9).reshape(n, *shape) for n in range(1, 5)]
    with torch.no_grad():
        expected = torch.cat([lowered(ramp).flatten() for ramp in ramps])
    assert torch.equal(found, expected)
    early, late = map(float, re.findall(r"([0-9.]+) MB resident", done.stderr))
    assert late < early + 10


# In a process of its own: passes cannot be taken back.
OWN_PASS = """
import sys, torch, jit_passes

assert "swap_tanh" not in jit_passes.passes
torch.ops.load_library(sys.argv[1])
assert jit_passes.passes["swap_tanh"].summary == "Turn tanh into sigmoid."
x = torch.randn(3)
script = torch.jit.script(torch.nn.Tanh().eval())
result = jit_passes.Pipeline("mine", ("freeze", "swap_tanh")).run(script._c)
assert torch.equal(result.module._get_method("forward")(x), torch.sigmoid(x))
assert torch.equal(script(x), torch.tanh(x))
"""


def test_pass_of_another_package(tmp_path: Path) -> None:
    """It is in the registry as soon as its library is loaded, and runs in a pipeline."""
    library = tmp_path / "libown_pass.so"
    compile_with_torch(
        "own_pass.cpp", library, "-shared", "-fPIC", "-DTORCH_API_INCLUDE_EXTENSION_H",
        jit_passes.library_path(),
    )  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-c", OWN_PASS, str(library)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=SOURCES.parent.parent
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_headers_come_with_the_package() -> None:
    """Those of the package first, then PyTorch's."""
    first, *rest = jit_passes.include_paths()
    assert (Path(first) / "jit_passes" / "registry.h").exists()
    assert rest == cpp_extension.include_paths()
