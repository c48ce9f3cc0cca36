"""Convolutions that PyTorch's kernels compute wrongly: they stay float on the target stock."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import jit_passes
from jit_passes.targets import Stock
from jit_passes.targets.stock_convolutions import ConvolutionShape, kernels_reason
from tests.codes import ROUNDS_STEPS
from tests.compare import sqnr
from tests.folders import TESTS
from tests.processor import needs_vnni
from tests.targets.test_lowering import ENGINES
from tests.targets.torch_convolutions import Case

pytestmark = pytest.mark.filterwarnings("ignore:nothing was quantized")


# The rules are for oneDNN without AMX; with AMX it is wrong for more small inputs: docs/limits.md.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}


def errors(
    engine: str, cases: list[Case], variables: Mapping[str, str] = WITHOUT_AMX
) -> tuple[list[int], int]:
    """Return the errors of PyTorch's kernels in steps, and how their process ended."""
    command = [
        sys.executable,
        str(TESTS / "targets" / "torch_convolutions.py"),
        engine,
        json.dumps(cases),
    ]
    environment = os.environ | variables
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return [int(line) for line in done.stdout.split()], done.returncode


# Sizes of the input and the weight, stride, padding, dilation, groups, zero point of the input.
REFUSED: dict[str, list[Case]] = {
    "these strides": [
        ([2, 8, 5, 1], [64, 1, 3, 3], [1, 2], [1, 1], [1, 1], 8, 0),
        ([2, 1, 1, 3], [32, 1, 3, 7], [1, 3], [2, 3], [1, 1], 1, 0),
    ],
    "padding in depth": [
        ([2, 4, 1, 3, 3], [32, 1, 3, 3, 3], [1] * 3, [1] * 3, [1] * 3, 4, 0),
        ([2, 8, 1, 3, 3], [16, 1, 3, 3, 3], [1] * 3, [1] * 3, [1] * 3, 8, 0),
        ([2, 1, 1, 5, 5], [8, 1, 3, 3, 3], [1] * 3, [1] * 3, [1] * 3, 1, 0),
    ],
    "padding alone": [
        ([4, 16, 1, 3], [16, 1, 1, 2], [1, 1], [3, 0], [1, 1], 16, 37),
        ([8, 1, 2, 1], [16, 1, 2, 2], [1, 1], [4, 1], [4, 2], 1, 100),
        ([2, 4, 1, 1], [1, 4, 2, 2], [1, 1], [8, 1], [8, 2], 1, 37),
    ],
}
"""Shapes that PyTorch's oneDNN computes wrongly, by the end of the reason."""

ENDS: dict[str, tuple[str, Case]] = {
    "x86": ("padding alone", ([8, 1, 1], [2, 1, 1], [3], [2], [2], 1, 0)),
    "onednn": ("padding alone", ([8, 1, 1], [2, 1, 1], [3], [2], [2], 1, 0)),
    "fbgemm": (
        "small inputs",
        ([1, 8, 1, 5, 6], [8, 1, 5, 5, 5], [1] * 3, [2] * 3, [1] * 3, 8, 0),
    ),
}
"""Shapes for which an engine ends the process."""

# The oneDNN of torch 2.15 computes the shape rightly; its fbgemm still ends the process.
MENDED: set[str] = {"x86", "onednn"} if ROUNDS_STEPS else set()


@needs_vnni
@pytest.mark.parametrize("engine", [e for e in ("x86", "onednn") if e in ENGINES])
@pytest.mark.parametrize("reason", REFUSED)
def test_refused_shapes_are_wrong_in_pytorch(reason: str, engine: str) -> None:
    """A failure says that PyTorch's kernels have changed: try whether the rule can go."""
    found, code = errors(engine, REFUSED[reason])
    assert code == 0 and len(found) == len(REFUSED[reason]) and min(found) > 3, found


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="a processor without AMX")
def test_outputs_of_width_one_are_wrong_with_amx() -> None:
    """A failure says that PyTorch's kernels have changed: try whether the row of limits can go."""
    narrow: list[Case] = [
        ([4, 8, 5, 3], [32, 2, 7, 3], [1, 3], [3, 0], [1, 1], 4, 64),
        ([2, 32, 8, 3], [16, 4, 3, 5], [2, 2], [2, 1], [1, 1], 8, 64),
    ]
    found, code = errors("onednn", narrow, {})
    assert code == 0 and min(found) > 3, found
    wide: list[Case] = [([*size[:-1], 6], *options) for size, *options in narrow]  # type: ignore[misc]
    found, code = errors("onednn", wide, {})
    assert code == 0 and max(found) <= 1, found


@needs_vnni
@pytest.mark.parametrize("engine", [e for e in ENDS if e in ENGINES])
def test_refused_shapes_end_the_process(engine: str) -> None:
    """A failure says that PyTorch's kernels have changed: try whether the rule can go."""
    found, code = errors(engine, [ENDS[engine][1]] * 50)
    if engine in MENDED:
        assert code == 0 and found == [0] * 50
    else:
        assert code < 0 and len(found) < 50


@pytest.mark.parametrize("engine", ENGINES)
def test_refused_shapes_stay_float(engine: str) -> None:
    """On each engine, since the file may be loaded under another."""
    cases = [(reason, case) for reason, cases in REFUSED.items() for case in cases]
    for reason, case in [*cases, *ENDS.values()]:
        model, x = network(case)
        kept = jit_passes.quantize_script(model, [x], target=Stock(engine=engine), progress=False)
        (row,) = jit_passes.coverage(kept)
        assert row.dtype == "float" and row.reason.endswith(reason), row
        with torch.no_grad():
            assert torch.equal(kept(x), model(x))


def network(case: Case) -> tuple[torch.jit.ScriptModule, torch.Tensor]:
    """Return a scripted convolution of a case, and an input."""
    size, (out, _, *window), stride, padding, dilation, groups, _ = case
    torch.manual_seed(0)
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(window) - 1]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    layer = kind(size[1], out, window, **options)
    return torch.jit.script(nn.Sequential(layer).eval()), torch.rand(size)


def drawn(choose: random.Random) -> Case | None:
    """Return a shape on a small input, or None if its window does not fit."""
    axes = range(choose.choice((1, 2, 2, 3, 3)))
    window = [choose.choice((1, 2, 3, 5, 7)) for _ in axes]
    padding = [choose.randrange(4) for _ in axes]
    stride = [choose.choice((1, 1, 2, 3)) for _ in axes]
    dilation = [choose.choice((1, 1, 1, 2)) for _ in axes]
    lengths = [choose.choice((1, 1, 2, 3, 5, 8)) for _ in axes]
    groups, channels = choose.choice((1, 1, 2, 3, 4, 8, 16)), choose.choice((1, 1, 2, 4, 8))
    out = groups * choose.choice((1, 2, 3, 8))
    for length, k, p, d in zip(lengths, window, padding, dilation, strict=True):
        if length + 2 * p <= d * (k - 1):
            return None
    size = [choose.choice((1, 2, 4)), groups * channels, *lengths]
    zero_point = choose.choice((0, 37, 64))
    return size, [out, channels, *window], stride, padding, dilation, groups, zero_point


@pytest.mark.parametrize("engine", ENGINES)
def test_other_shapes_are_right_in_pytorch(engine: str) -> None:
    """300 drawn shapes that no rule refuses: off by a step of rounding at most."""
    choose = random.Random(0)
    cases: list[Case] = []
    while len(cases) < 300:
        case = drawn(choose)
        if case is not None and kernels_reason(ConvolutionShape(*case[1:6])) is None:
            cases.append(case)
    found, code = errors(engine, cases)
    wrong = [case for case, error in zip(cases, found, strict=False) if error > 1]
    assert (code, len(found), wrong) == (0, 300, [])


USUAL: list[Case] = [
    ([1, 3, 32, 32], [8, 3, 7, 7], [2, 2], [3, 3], [1, 1], 1, 0),
    ([1, 1, 28, 28], [8, 1, 3, 3], [1, 1], [1, 1], [1, 1], 1, 0),
    ([1, 1, 28, 28], [8, 1, 5, 5], [2, 2], [2, 2], [1, 1], 1, 0),
    ([1, 1, 8, 64], [8, 1, 1, 32], [1, 1], [0, 16], [1, 1], 1, 0),
    ([1, 16, 14, 14], [16, 1, 3, 3], [2, 2], [1, 1], [1, 1], 16, 0),
    ([1, 16, 14, 14], [16, 1, 7, 7], [1, 1], [3, 3], [1, 1], 16, 0),
    ([1, 16, 14, 14], [32, 1, 3, 3], [1, 1], [1, 1], [1, 1], 16, 0),
    ([1, 32, 14, 14], [32, 4, 3, 3], [2, 2], [1, 1], [1, 1], 8, 0),
    ([1, 8, 14, 14], [8, 8, 3, 3], [1, 1], [12, 12], [12, 12], 1, 0),
    ([1, 8, 64], [8, 8, 2], [1], [4], [4], 1, 0),
    ([1, 8, 64], [8, 8, 3], [1], [16], [8], 1, 0),
    ([1, 3, 8, 16, 16], [8, 3, 3, 3, 3], [1, 2, 2], [1, 1, 1], [1] * 3, 1, 0),
    ([1, 8, 8, 8, 8], [8, 1, 3, 3, 3], [1] * 3, [1] * 3, [1] * 3, 8, 0),
    ([1, 8, 8, 8, 8], [8, 1, 5, 1, 1], [1] * 3, [2, 0, 0], [1] * 3, 8, 0),
]
"""Layers of classifiers, of text and audio, of segmentation and video."""


@pytest.mark.skipif("x86" not in ENGINES, reason="no engine x86")
@needs_vnni
@pytest.mark.parametrize("case", USUAL, ids=str)
def test_usual_layers_are_int8(case: Case) -> None:
    model, x = network(case)
    lowered = jit_passes.quantize_script(model, [x], target=Stock(engine="x86"), progress=False)
    (row,) = jit_passes.coverage(lowered)
    assert row.dtype == "int8", row
    with torch.no_grad():
        assert sqnr(model(x), lowered(x)) > 30
