"""Levels of x86 instructions: the one that kernels are made for, and results that do not differ."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import _C
from jit_passes.targets import X86, resolve_target
from tests.folders import ROOT
from tests.processes import run_code

LEVELS = ("plain", "avx2", "avx_vnni", "avx512_vnni", "amx_int8")


@pytest.fixture(autouse=True)
def level_of_before() -> Iterator[None]:
    before = _C.x86_level()
    yield
    _C.set_x86_level(before)


class Net(nn.Module):
    """Convolutions of all kinds, a sum, tables and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, 2, padding=1)
        self.each = nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.groups = nn.Conv2d(24, 40, 3, padding=1, groups=4)
        self.point = nn.Conv2d(40, 40, 1)
        self.gate = nn.Conv2d(40, 40, 1)
        self.up = nn.ConvTranspose2d(40, 17, 3, 2)
        self.head = nn.Linear(17, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.each(F.relu(self.first(x))))
        x = F.max_pool2d(self.groups(x), 3, 2)
        x = F.relu(self.point(x) + x)
        x = x * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(x, 1)))
        return self.head(F.relu(self.up(x)).mean((2, 3)))


class Encoder(nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(72), nn.Linear(72, 216), nn.Linear(72, 72)
        self.up, self.down = nn.Linear(72, 150), nn.Linear(150, 72)

    def forward(self, x: Tensor) -> Tensor:
        parts = [
            p.unflatten(2, (3, 24)).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, 2)
        ]
        scores = torch.softmax(parts[0] @ parts[1].transpose(-2, -1) * 24**-0.5, -1)
        x = x + self.out((scores @ parts[2]).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


CASES = {
    "convolutions": (Net, (2, 3, 41, 37), "static"),
    "transformer": (Encoder, (2, 19, 72), "static"),
    "dynamic convolutions": (Net, (2, 3, 41, 37), "dynamic"),
    "dynamic transformer": (Encoder, (2, 19, 72), "dynamic"),
}


@pytest.mark.parametrize("case", CASES)
def test_levels_give_the_same_bits(case: str) -> None:
    """Of whole models, which are saved at one level and loaded at another."""
    make, shape, mode = CASES[case]
    torch.manual_seed(0)
    model = torch.jit.script(make().eval())
    batches = [torch.randn(shape) for _ in range(3)]
    _C.set_x86_level("plain")
    quantized = jit_passes.quantize_script(
        model, batches if mode == "static" else None, mode=mode, target=X86(), progress=False
    )
    assert "jit_passes.Plan" in str(quantized.inlined_graph)
    found = [quantized(x) for x in batches]
    assert found[0].std() > 0
    for level in _C.x86_levels():
        _C.set_x86_level(level)
        file = io.BytesIO()
        torch.jit.save(quantized, file)
        file.seek(0)
        quantized = torch.jit.load(file)
        for x, wanted in zip(batches, found, strict=True):
            assert torch.equal(quantized(x), wanted), level


def in_new_process(level: str, code: str) -> subprocess.CompletedProcess[str]:
    return run_code(
        f"from jit_passes import _C\n{code}",
        cwd=ROOT,
        environment={"JIT_PASSES_X86_LEVEL": level, "PYTHONPATH": str(ROOT)},
    )


def test_the_best_level_is_taken() -> None:
    levels = _C.x86_levels()
    assert levels[0] == "plain" and levels == [name for name in LEVELS if name in levels]
    assert in_new_process("", "print(_C.x86_level())").stdout.strip() == levels[-1]


def test_the_environment_lowers_it() -> None:
    for level in _C.x86_levels():
        assert in_new_process(level, "print(_C.x86_level())").stdout.strip() == level


def test_an_unknown_level() -> None:
    message = (
        r"JIT_PASSES_X86_LEVEL\) is one of plain, avx2, avx_vnni, avx512_vnni, amx_int8, not 'avx9'"
    )
    with pytest.raises(ValueError, match=message):
        _C.set_x86_level("avx9")
    run = in_new_process("avx9", "print(_C.x86_level())")
    assert run.returncode == 1 and "not 'avx9'" in run.stderr


@pytest.mark.skipif(len(_C.x86_levels()) == len(LEVELS), reason="the processor has all levels")
def test_a_level_that_the_processor_lacks() -> None:
    lacking = next(name for name in LEVELS if name not in _C.x86_levels())
    with pytest.raises(ValueError, match="does not have the instructions"):
        _C.set_x86_level(lacking)


@pytest.mark.parametrize("level", LEVELS)
def test_auto(level: str) -> None:
    if level not in _C.x86_levels():
        pytest.skip(f"no {level} here")
    _C.set_x86_level(level)
    fast = LEVELS.index(level) >= LEVELS.index("avx_vnni")
    assert resolve_target("auto").name == ("x86" if fast else "stock")
