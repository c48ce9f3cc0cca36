"""The memory that quantizing and exporting take, in units of the model's file.

Each has a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.folders import ROOT

pytestmark = pytest.mark.xdist_group("memory")  # all read one fixture, which starts a process

CLEAR = Path("/proc/self/clear_refs")  # a 5 makes the peak begin anew
# Large blocks go back to the system as soon as they are freed. The allocator would keep some, now
# more and now fewer, and these would count as if they were used.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}


class Linears(nn.Module):
    """A stack of them, of 64 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(16))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Convolutions(nn.Module):
    """A stack of them, with or without batch norms, of 64 MiB."""

    def __init__(self, norms: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in range(28))
        norm = nn.BatchNorm2d if norms else nn.Identity
        self.norms = nn.ModuleList(norm(256) for _ in range(28))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return x


MODELS = {
    "linears": (Linears, (2, 1024)),
    "convolutions": (lambda: Convolutions(False), (1, 256, 4, 4)),
    "batch_norms": (lambda: Convolutions(True), (1, 256, 4, 4)),
}
# Reads cases, and prints for each, in a line, the peak while it quantizes, or exports to ONNX, and
# what is left behind, in bytes over what the process had before it loaded the model. Each case has
# a fork of its own, which begins with the imports; a small model brings libraries in ahead of it.
CHILD = """
import gc, json, os, sys, torch, jit_passes
def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024
def measure(path, shape, target, inplace):
    def work(model, data):
        if target == "onnx":
            return jit_passes.export_onnx(model, path + ".onnx", data[0])
        return jit_passes.quantize_script(model, data, target=target, inplace=inplace)
    small = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    small = torch.jit.script(small.eval())
    work(small, [torch.randn(2, 8)])
    gc.collect()
    before = status("VmRSS")
    model, data = torch.jit.load(path), [torch.randn(shape)]
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    result = work(model, data)
    print(json.dumps([status("VmHWM") - before, status("VmRSS") - before]), flush=True)
for case in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        try:
            measure(*case)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{case} failed")
"""


# The bounds of the peak, and of the rest where the float weights are freed. The model and its
# integers are 1.25 times the file, and libraries have buffers of their own. PyTorch's convolutions
# hold their integers twice.
BOUNDS = {
    ("linears", "x86"): (1.75, 0.45),
    ("convolutions", "x86"): (1.75, 0.45),
    ("linears", "stock"): (1.5, 0.45),
    ("convolutions", "stock"): (1.85, 0.8),
    ("linears", "reference"): (1.45, 0.45),
    # Their folded weights are copies, which are gone before integers are there twice.
    ("batch_norms", "x86"): (2.2, 0.5),
    ("batch_norms", "reference"): (2.2, 0.5),
}


Case = tuple[str, str]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Case, bool], list[float]]:
    """The peak of each case, and what is left, in units of the file; without and with `inplace`."""
    folder = tmp_path_factory.mktemp("memory")
    paths = {name: folder / f"{name}.pt" for name in MODELS}
    for name, (make, _) in MODELS.items():
        torch.jit.save(torch.jit.script(make().eval()), paths[name])
    cases = [(case, inplace) for case in BOUNDS for inplace in (False, True)]
    rows = rows_of(
        [(paths[name], MODELS[name][1], target, inplace) for (name, target), inplace in cases]
    )
    return dict(zip(cases, rows, strict=True))


def rows_of(arguments: list[tuple[Path, tuple[int, ...], str, bool]]) -> list[list[float]]:
    """Return what the child prints of its cases, in units of their files."""
    given = json.dumps(arguments, default=str)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, given],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **ALLOCATOR},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        [number / case[0].stat().st_size for number in row]
        for case, row in zip(arguments, rows, strict=True)
    ]


@pytest.mark.skipif(not CLEAR.exists(), reason="the system does not tell of peaks")
@pytest.mark.parametrize("case", BOUNDS, ids="-".join)
@pytest.mark.parametrize("inplace", [False, True])
def test_peak(measured: dict[tuple[Case, bool], list[float]], case: Case, inplace: bool) -> None:
    """Copies of float weights are freed, and garbage too; `inplace` frees the model's own."""
    peak, left = measured[case, inplace]
    most, most_left = BOUNDS[case]
    assert peak < most, f"{peak:.2f}"
    assert left < most_left + (not inplace), f"{left:.2f}"


@pytest.mark.skipif(not CLEAR.exists(), reason="the system does not tell of peaks")
def test_peak_of_a_file_of_onnx(tmp_path: Path) -> None:
    """Weights are not copied: protobuf alone has three copies to write a message."""
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    path = tmp_path / "linears.pt"
    make, shape = MODELS["linears"]
    torch.jit.save(torch.jit.script(make().eval()), path)
    [(peak, _)] = rows_of([(path, shape, "onnx", False)])
    assert peak < 1.3, f"{peak:.2f}"
    assert Path(f"{path}.onnx").stat().st_size > 0.99 * path.stat().st_size
