"""Programs in C99: gcc's results are the codes of the lowered model."""

from __future__ import annotations

import importlib
import re
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError
from jit_passes.export.c.arena import place_buffers
from jit_passes.export.c.reading import read_program
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS
from tests.command_line.running import Run, run_fixture  # noqa: F401
from tests.folders import ROOT
from tests.targets.fixed_point.test_fixed_point import (
    NARROW,
    WIDE,
    Everything,
    Flat,
    Residual,
    data,
    models,
    pyramid,
    slots,
)

FLAGS = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Werror", "-O1"]
SANITIZE = ["-fsanitize=undefined,address", "-fno-sanitize-recover=all"]


def compiled(
    folder: Path, name: str = "model", *, optimized: bool = True
) -> subprocess.CompletedProcess[str]:
    """Compile a program, and run its test vectors."""
    sources = ["main.c", f"{name}.c"]
    command = ["gcc", *FLAGS, *([] if optimized else ["-O0"]), *SANITIZE, *sources]
    command += ["-o", "program"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return subprocess.run(["./program"], cwd=folder, capture_output=True, text=True, check=False)


def check(folder: Path, codes: int, vectors: int = 1, *, optimized: bool = True) -> None:
    """Check that gcc gives the codes of results, for the given vectors and three of the edges.

    Without optimization gcc takes two thirds of the time, and warns of less.
    """
    count = codes * (vectors + 3)
    done = compiled(folder, optimized=optimized)
    assert (done.returncode, done.stdout) == (0, f"0 of {count} codes differ\n"), done.stderr
    text = (folder / "model.c").read_text()
    assert not re.search(r"\b(float|double|malloc)\b|#include <", text)


CASES: list[tuple[Callable[[], nn.Module], dict[str, Any], dict[str, Any]]] = [
    *((Everything, {"rounding": rounding}, {}) for rounding in (*ROUNDINGS, "double_round")),
    (Everything, {"multiplier_bits": 16, "rounding": "half_up"}, {}),
    (Everything, {"requantization": "shift"}, {}),
    (Everything, {"accumulator_bits": 16}, NARROW),
    (Everything, {"accumulator_bits": 48}, WIDE),
    (Residual, {"requantization": "shift", "rounding": "half_away"}, {}),
    (Flat, {}, {}),
]


@pytest.mark.parametrize(
    ("module", "options", "tensors"), CASES, ids=lambda part: getattr(part, "__name__", str(part))
)
def test_gcc_gives_the_codes(
    module: Callable[[], nn.Module], options: Any, tensors: Any, tmp_path: Path
) -> None:
    config = {"version": 1, "global": tensors}
    _, lowered = models(module, FixedPoint(**options), config=config)
    first, *others = data(3, seed=9)
    jit_passes.export_c(lowered, tmp_path, first, others)
    check(tmp_path, lowered(first).numel(), 3)


def test_slots(tmp_path: Path) -> None:
    _, lowered = slots("multiplier")
    x = data(1)[0]
    jit_passes.export_c(lowered, tmp_path, x)
    check(tmp_path, lowered(x).numel())
    assert "add_bias_s16_s8(" in (tmp_path / "model.c").read_text()


def test_codes_are_repeated(tmp_path: Path) -> None:
    _, lowered = pyramid()
    x = data(1)[0]
    jit_passes.export_c(lowered, tmp_path, x)
    check(tmp_path, lowered(x).numel())


def test_another_code_is_found(tmp_path: Path) -> None:
    _, lowered = models(Residual, FixedPoint())
    jit_passes.export_c(lowered, tmp_path, data(1)[0])
    vectors = tmp_path / "model_vectors.h"
    head, brace, rest = vectors.read_text().partition(
        "fc_linear_vectors[4][20] = {\n    {\n        "
    )
    code, comma, tail = rest.partition(",")
    vectors.write_text(f"{head}{brace}{(int(code) + 1) % 256}{comma}{tail}")
    done = compiled(tmp_path)
    assert done.returncode == 1
    assert f"[0]: {code}, expected {(int(code) + 1) % 256}" in done.stdout
    assert "1 of 80 codes differ" in done.stdout


class TwoResults(nn.Module):
    """Two inputs and three results, one of which is returned twice; names that C has not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.other = nn.Conv2d(3, 4, 3)

    def forward(self, int: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = self.layers(int)
        b = self.other(x)
        c = (a + b).flip(2).permute(0, 2, 3, 1).repeat(1, 1, 2, 1)
        return c, b, b


def test_several_inputs_and_results(tmp_path: Path) -> None:
    torch.manual_seed(0)
    scripted = torch.jit.script(TwoResults().eval())
    batches = list(zip(data(4), data(4, seed=1), strict=True))
    lowered = jit_passes.quantize_script(scripted, batches, target="fixed_point")
    jit_passes.export_c(lowered, tmp_path, batches[0])
    check(tmp_path, sum(result.numel() for result in lowered(*batches[0])))
    header = (tmp_path / "model.h").read_text()
    assert "const uint8_t *x_int, const uint8_t *x, uint8_t *" in header


@pytest.mark.parametrize("network", ["DigitsResNet", "DigitsMobileNet"])
def test_digits(network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena holds what is needed at one time: far less than all values together."""
    monkeypatch.syspath_prepend(str(ROOT / "tutorials"))
    digits = importlib.import_module("digits")
    images = digits.load_digits_tensors().test_x[:80]
    torch.manual_seed(0)
    scripted = torch.jit.script(getattr(digits, network)(4).eval())
    lowered = jit_passes.quantize_script(scripted, images.split(16), target="fixed_point")
    jit_passes.export_c(lowered, tmp_path, images[:1], images[1:4].split(1))
    check(tmp_path, 10, 4)
    program, _, _ = read_program(lowered, (images[:1],), "forward")
    values = [call.writes.size for call in program.calls if call.writes.role == "arena"]
    assert 0 < place_buffers(program).size <= sum(values) / 2


def test_command_line(run: Run, tmp_path: Path) -> None:
    _, lowered = models(Residual, FixedPoint())
    model, samples, folder = (tmp_path / name for name in ("model.pt", "data.pt", "folder"))
    torch.jit.save(lowered, model)
    torch.save(data(1)[0], samples)
    done = run("export", model, "--to", "c", "--data", samples, "-o", folder)
    assert done.code == 0 and "C99" in done.out, done.err
    check(folder, 5, 4)


class Joined(nn.Module):
    """Two tensors, and a number with a default."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(5, 6)

    def forward(self, x: Tensor, y: Tensor, step: int = 2) -> Tensor:
        return (self.one(x) + self.two(y))[:, ::step]


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")], ids="".join)
def test_command_line_with_arguments_by_name(
    run: Run, order: tuple[str, str], tmp_path: Path
) -> None:
    """The files of samples in the order of the model's arguments; a number is refused."""
    generator = torch.Generator().manual_seed(0)
    samples = {name: torch.randn(3, n, generator=generator) for name, n in (("x", 4), ("y", 5))}
    script = torch.jit.script(Joined().eval())
    lowered = jit_passes.quantize_script(script, [samples], target="fixed_point")
    model, named = tmp_path / "model.pt", tmp_path / "named.npz"
    torch.jit.save(lowered, model)
    lowered = torch.jit.load(model)  # which has other names of lines
    expected = {form: tmp_path / f"expected_{form}" for form in ("c", "vectors")}
    first, *others = zip(samples["x"].split(1), samples["y"].split(1), strict=True)
    jit_passes.export_c(lowered, expected["c"], first, others)
    jit_passes.export_vectors(lowered, [first, *others], expected["vectors"])
    arrays = {name: samples[name].numpy() for name in order}
    np.savez(named, **arrays)
    for form, folder in expected.items():
        done = run("export", model, "--to", form, "--data", named, "-o", tmp_path / form)
        assert done.code == 0, done.err
        files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        assert len(files) > 4
        for file in files:
            assert (tmp_path / form / file).read_bytes() == (folder / file).read_bytes(), file
    np.savez(named, **arrays, step=np.int64(3))
    for form in expected:
        done = run("export", model, "--to", form, "--data", named, "-o", tmp_path / "none")
        assert done.code == 3 and not (tmp_path / "none").exists()
        words = "takes tensors, and 'step' is of type int: leave out 'step', which has a default"
        assert words in done.err


class ReadAgain(nn.Module):
    """The input is joined with what a layer makes of it: its codes have two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.relu(self.conv(torch.cat([x], 1)))], 1)


def test_input_is_read_again(tmp_path: Path) -> None:
    _, lowered = models(ReadAgain, FixedPoint())
    x = data(1)[0]
    jit_passes.export_c(lowered, tmp_path, x)
    check(tmp_path, lowered(x).numel())


class ManyAxes(nn.Module):
    """A sum with an axis more than functions in C have."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        shape = [4, 2, 2, 6, 2, 6, 2]
        return self.a(x).reshape(shape) + self.b(x).reshape(shape)


def test_too_many_axes(tmp_path: Path) -> None:
    _, lowered = models(ManyAxes, FixedPoint())
    with pytest.raises(JitPassesError, match=r"'add' .*: it has 7 axes, and functions in C have 6"):
        jit_passes.export_c(lowered, tmp_path, data(1)[0])


class Decides(nn.Module):
    """Branches: by sizes, and by data where there are more than two samples."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] > 10:
            y = self.a(x)
        elif x.shape[0] <= 2:
            y = self.a(x.flip(2))
        else:
            y = self.b(x) if bool(x.sum() > 0) else self.a(x)
        return y


def test_branches(tmp_path: Path) -> None:
    """The program has what is taken for the sizes of the example."""
    script = torch.jit.script(Decides().eval())
    wide, small, many = torch.randn(2, 3, 12, 12), torch.randn(2, 3, 8, 8), torch.rand(4, 3, 8, 8)
    batches = [wide, small, many, -many]
    lowered = jit_passes.quantize_script(script, batches, target="fixed_point")
    for x, kernels in ((wide, {"conv2d"}), (small, {"conv2d", "copy"})):
        jit_passes.export_c(lowered, tmp_path / "folder", x)
        check(tmp_path / "folder", lowered(x).numel())
        program, _, _ = read_program(lowered, (x,), "forward")
        assert {call.kernel for call in program.calls} == kernels
    with pytest.raises(JitPassesError, match="it decides by its data, and C has no form for that"):
        jit_passes.export_c(lowered, tmp_path / "other", many)
    assert not (tmp_path / "other").exists()


class ChangesList(nn.Module):
    """A loop appends to a list, which is empty before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        sizes = [4]
        for number in range(x.shape[0]):
            sizes.append(number)
        return y.flatten(len(sizes) - 2)


def test_changed_list(tmp_path: Path) -> None:
    """A list that the model changes is not taken for what it is before."""
    scripted, x = torch.jit.script(ChangesList().eval()), torch.rand(2, 3, 4, 4)
    lowered = jit_passes.quantize_script(scripted, [x], target="fixed_point")
    with pytest.raises(JitPassesError, match=r"'len' \(.*\): the model changes the list 'Lis"):
        jit_passes.export_c(lowered, tmp_path / "folder", x)
    assert not (tmp_path / "folder").exists()


def test_refusals(tmp_path: Path) -> None:
    reference, lowered = models(Residual, "reference")
    with pytest.raises(JitPassesError, match="lowered for 'reference', and C is written"):
        jit_passes.export_c(lowered, tmp_path, data(1)[0])
    with pytest.raises(JitPassesError, match=r"target='fixed_point'\) first"):
        jit_passes.export_c(reference, tmp_path, data(1)[0])
    config = {"version": 1, "rules": [{"module": "fc", "keep_float": True}]}
    _, lowered = models(Residual, FixedPoint(), config=config)
    with pytest.raises(JitPassesError, match=r"'fc:linear' .* and computed in float"):
        jit_passes.export_c(lowered, tmp_path, data(1)[0])
    _, lowered = models(Residual, FixedPoint())
    with pytest.raises(JitPassesError, match=r"has the sizes .* and the example"):
        jit_passes.export_c(lowered, tmp_path, data(1)[0], [data(1)[0][:1]])
    with pytest.raises(JitPassesError, match="takes 1 input, and the example has 2"):
        jit_passes.export_c(lowered, tmp_path, (data(1)[0], data(1)[0]))
    with pytest.raises(JitPassesError, match="a name in C, not '4'"):
        jit_passes.export_c(lowered, tmp_path, data(1)[0], name="4")
    assert not list(tmp_path.iterdir())


class Scaled(nn.Module):
    """Steps in front of a layer that look like those of quantize."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv((x * 2.0 + 0.25).clamp(-1.0, 1.0))
        return y


class Whole(Scaled):
    """A cast to whole numbers in front of a layer."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x.to(torch.int32).to(torch.float32))
        return y


def test_steps_in_float_ahead_of_the_codes(tmp_path: Path) -> None:
    """The program takes codes of its input, so nothing in float may be between them."""
    rules = [{"op": op, "keep_float": True} for op in ("mul", "add", "clamp")]
    config = {"version": 1, "rules": rules}
    x = 10 * torch.rand(1, 3, 8, 8)
    clamp = "'mul' .* is computed in float, in front of 'clamp'"
    to = "'to.*' .* is computed in float"
    for net, told, given in ((Scaled, clamp, config), (Whole, to, None)):
        model = torch.jit.script(net().eval())
        with pytest.warns(jit_passes.JitPassesWarning, match="computed in float"):
            lowered = jit_passes.quantize_script(model, [x], target="fixed_point", config=given)
        with pytest.raises(JitPassesError, match=told):
            jit_passes.export_c(lowered, tmp_path, x)


class Slopes(nn.Module):
    """An operator without an integer form, and others that read its result."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.conv, self.prelu, self.layer = nn.Conv2d(3, 4, 3), nn.PReLU(4), layer

    def forward(self, x: Tensor) -> Tensor:
        x = self.prelu(self.conv(x)).flip(1)
        y: Tensor = self.layer(F.avg_pool2d(torch.cat([x, x], 1), 2))
        return y


@pytest.mark.parametrize(
    ("layer", "told"), [(nn.Conv2d(8, 3, 1), ""), (nn.Identity(), ", a result of the model")]
)
def test_first_operator_in_float_is_named(layer: nn.Module, told: str, tmp_path: Path) -> None:
    """The error names the cause and its reason, and the operator that needs codes."""
    x = torch.rand(1, 3, 8, 8)
    model = torch.jit.script(Slopes(layer).eval())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jit_passes.JitPassesWarning)
        lowered = jit_passes.quantize_script(model, [x], target="fixed_point")
    match = (
        rf"^'prelu:prelu' \(.*\): it is computed in float, in front of 'avg_pool2d'{told}: it has "
        "a slope for each channel"
    )
    with pytest.raises(JitPassesError, match=match):
        jit_passes.export_c(lowered, tmp_path, x)


def test_models_that_were_loaded_before_they_were_lowered(tmp_path: Path) -> None:
    """Files do not have which values are quantized: the report has."""
    batches = [torch.randn(2, 3, 8, 8)]
    float_model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval())
    prepared = jit_passes.prepare(float_model, target="fixed_point")
    jit_passes.calibrate(prepared, batches)
    reference = jit_passes.convert(prepared)
    reference.save(str(tmp_path / "reference.pt"))
    grids = []
    for model in (reference, torch.jit.load(str(tmp_path / "reference.pt"))):
        lowered = jit_passes.lower(model)
        program, _, _ = read_program(lowered, (batches[0],), "forward")
        grids.append([(b.scale, b.zero_point) for b in (*program.inputs, *program.outputs)])
    assert grids[0] == grids[1] and all(scale > 0 for scale, _ in grids[0])
