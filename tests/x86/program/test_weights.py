"""Weights of plans: held once, packed, and as a file has them when one is written."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.plans import Grid, Weighted, plan_of, reference, traced
from tests.x86.program.test_state import restored

# Each way of packing: a layer and the sizes of its input.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(67, 45), (3, 67)),
    "1x1": (lambda: nn.Conv2d(40, 50, 1), (2, 40, 5, 7)),
    "3x3": (lambda: nn.Conv2d(17, 33, 3, padding=1), (1, 17, 9, 6)),
    "few channels": (lambda: nn.Conv2d(3, 8, 7, 2, 3), (2, 3, 15, 13)),
    "dilated": (lambda: nn.Conv2d(6, 10, 3, padding=2, dilation=2), (1, 6, 9, 9)),
    "merged groups": (lambda: nn.Conv2d(16, 16, 3, groups=8), (1, 16, 6, 6)),
    "large groups": (lambda: nn.Conv2d(80, 96, 3, groups=2), (1, 80, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(37, 37, 3, padding=1, groups=37), (1, 37, 8, 8)),
    "wide depthwise": (lambda: nn.Conv2d(70, 70, 5, 2, 2, groups=70), (1, 70, 11, 11)),
    "one axis": (lambda: nn.Conv1d(9, 12, 5, padding=2), (2, 9, 20)),
    "one channel": (lambda: nn.Conv1d(21, 21, 7, padding=3, groups=21), (2, 21, 30)),
    "three axes": (lambda: nn.Conv3d(5, 7, 3, padding=1), (1, 5, 4, 6, 5)),
    "many taps": (lambda: nn.Conv2d(2, 3, 40), (1, 2, 41, 40)),
}


def tensors(plan: Any) -> list[Tensor]:
    return [tensor for _, _, own in plan.__getstate__()[0][2] for tensor in own]


@pytest.mark.parametrize("name", LAYERS)
def test_the_state_is_the_same_after_packing(name: str) -> None:
    torch.manual_seed(0)
    make, sizes = LAYERS[name]
    model = nn.Sequential(Grid(0.02, 130), Weighted(make()), Grid(0.1, 120))
    codes = model[1].codes
    x = torch.randn(sizes)
    plan = plan_of(traced(model, x))
    before = tensors(plan)
    assert any(torch.equal(t.flatten(), codes.flatten()) for t in before)
    (expected,) = plan.run([x])
    after = tensors(plan)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(codes, model[1].codes)  # those of the region are not the plan's
    assert torch.equal(plan.run([x])[0], expected)  # released once more
    assert torch.equal(restored(plan.__getstate__()[0]).run([x])[0], expected)


class Twice(nn.Module):
    """One layer for two values, of which one lies between other channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.layer = nn.Conv2d(16, 16, 3, padding=1)
        self.gate = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.relu(self.stem(x)).chunk(2, 1)
        y = self.layer(self.layer(a)) + self.gate(b)
        return self.gate(y + self.layer(y.mean((2, 3), keepdim=True)))


def test_shared_layers_and_sums_that_broadcast() -> None:
    torch.manual_seed(0)
    x, small = torch.randn(2, 3, 8, 8), torch.randn(1, 3, 1, 1)
    quantized = reference(Twice(), [x, small])
    plan = plan_of(quantized)
    before = tensors(plan)
    for batch in (x, small, x, torch.randn(1, 3, 5, 4)):
        (result,) = plan.run([batch])
        assert torch.equal(result, restored(plan.__getstate__()[0]).run([batch])[0])
        assert all(torch.equal(a, b) for a, b in zip(before, tensors(plan), strict=True))


def test_inference_mode() -> None:
    """Tensors that were made in it cannot be written to by operators outside."""
    torch.manual_seed(0)
    model = nn.Sequential(Grid(0.02, 130), Weighted(nn.Conv2d(6, 9, 3)), Grid(0.1, 120))
    x = torch.randn(1, 6, 7, 7)
    with torch.inference_mode():
        plan = plan_of(traced(model, x))
        (expected,) = plan.run([x])
    again = restored(plan.__getstate__()[0])
    assert torch.equal(again.run([x])[0], expected)


def test_calls_while_a_file_is_written() -> None:
    torch.manual_seed(0)
    layers = [Weighted(nn.Conv2d(24, 24, 3, padding=1)) for _ in range(6)]
    model = nn.Sequential(Grid(0.02, 130), *(m for w in layers for m in (w, Grid(0.5, 128))))
    inputs = [torch.randn(1, 24, 4 + i % 7, 5) for i in range(60)]
    plan = plan_of(traced(model, inputs[0]))
    before = tensors(plan)
    expected = [plan_of(traced(model, inputs[0])).run([x])[0] for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(plan.run, [x]) for x in inputs]
        states = [pool.submit(tensors, plan) for _ in range(20)]
        assert all(torch.equal(r.result()[0], e) for r, e in zip(results, expected, strict=True))
        for state in states:
            assert all(torch.equal(a, b) for a, b in zip(before, state.result(), strict=True))


RESIDENT = """
import sys
import torch
import jit_passes

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

torch.set_num_threads(1)
x = torch.randn(1, 4096)
torch.jit.load(sys.argv[1] + "/small.pt")(x[:, :16])
before = resident()
model = torch.jit.load(sys.argv[1] + "/large.pt")
model(x)
print(resident() - before)
"""


class Rows(nn.Module):
    """Sums that broadcast where there is more than one row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1024, 1024) for _ in range(5)])

    def forward(self, x: Tensor) -> Tensor:
        row = self.layers[0](x[:1])
        for layer in self.layers[1:]:
            x = layer(x) + row
        return x


OF_SIZES = """
before = resident()
torch.set_num_threads(1)
model = torch.jit.load(sys.argv[1] + "/rows.pt")
for rows in range(1, 10):
    model(torch.randn(rows, 1024))
print(resident() - before)
"""

memory = pytest.mark.skipif(
    not sys.platform.startswith("linux") or "JIT_PASSES_SANITIZE" in os.environ,
    reason="memory is read from /proc, and sanitizers take some of their own",
)


@memory
def test_weights_are_held_once_for_all_sizes(tmp_path: Any) -> None:
    """Whether sums broadcast or not: 5 MB of weights, and not once more for each size."""
    torch.manual_seed(0)
    x = torch.randn(3, 1024)
    with torch.no_grad():
        model = torch.jit.trace(Rows().eval(), x)
    lowered = jit_passes.quantize_script(model, [x, -x], target="x86")
    lowered.save(str(tmp_path / "rows.pt"))
    torch.jit.save(torch.jit.script(nn.Linear(16, 16)), str(tmp_path / "small.pt"))
    torch.jit.save(torch.jit.script(nn.Identity()), str(tmp_path / "large.pt"))
    run = [sys.executable, "-c", RESIDENT + OF_SIZES, str(tmp_path)]
    printed = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert int(printed.split()[-1]) < 3 * 5 * 1024 * 1024
    for rows in (1, 4):
        got, expected = lowered(x[:rows]), model(x[:rows])
        assert (got - expected).square().sum() < expected.square().sum() / 100


@memory
def test_weights_are_held_once(tmp_path: Any) -> None:
    """64 MB of weights take their size, and what else a call needs."""
    for name, sizes in (("small", [16, 16]), ("large", [4096] * 5)):
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        x = torch.randn(2, sizes[0])
        model = torch.jit.trace(nn.Sequential(*layers).eval(), x)
        jit_passes.quantize_script(model, [x], target="x86").save(str(tmp_path / f"{name}.pt"))
    run = [sys.executable, "-c", RESIDENT, str(tmp_path)]
    grown = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    weights = 4 * 4096 * 4096
    assert weights <= grown < 1.1 * weights
