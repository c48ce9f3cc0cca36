"""Packages of AOTInductor: the numbers of the program, and errors that leave no file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning, export_aoti
from jit_passes.export import aoti
from tests.engines import data, quantized

pytestmark = pytest.mark.filterwarnings("ignore:torch .* has left Inductor's patterns")


class Net(nn.Module):
    """A convolution with relu, a mean, and a linear with a float result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x)).mean([2, 3]))


@pytest.fixture(scope="module", name="reference")
def reference_fixture() -> Any:
    return quantized(Net(), data(2, 3, 8, 8), "inductor")


def test_package_computes_what_the_program_does(reference: Any, tmp_path: Path) -> None:
    """On integers, for any number of samples, to one step: its kernels round once."""
    batches = data(5, 3, 8, 8, count=1)
    path, shapes = tmp_path / "model.pt2", ({0: Dim("batch", min=2, max=64)},)
    export_aoti(reference, path, data(2, 3, 8, 8)[0], shapes)
    program = jit_passes.to_exported_program(reference, data(2, 3, 8, 8)[0], shapes).module()
    package = torch._inductor.aoti_load_package(str(path))
    expected = program(*batches)
    step = jit_passes.encodings_of(reference).activations[-1].scale[0]
    torch.testing.assert_close(package(*batches), expected, rtol=0, atol=1.01 * step)
    assert expected.std() > step
    assert jit_passes.__version__ in package.get_metadata()["jit_passes"]
    with zipfile.ZipFile(path) as files:
        [source] = [name for name in files.namelist() if name.endswith(".wrapper.cpp")]
        code = files.read(source).decode()
    counts = [code.count(f"cpu__{kind}_pointwise_tensor(") for kind in ("qconv", "qlinear")]
    assert counts == ([1, 1] if aoti.has_int8_patterns() else [0, 0])
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]


def test_package_that_would_compute_wrongly(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package runs once, with its own checks switched on, ahead of being written."""
    name, seen = "AOTI_RUNTIME_CHECK_INPUTS", []

    def compiled(program: Any, *, package_path: str, **options: Any) -> None:
        Path(package_path).write_bytes(b"package")

    def loaded(path: str) -> Any:
        def run(*args: Any) -> None:
            seen.append(os.environ.get(name))
            raise RuntimeError("expected size 8==8, stride 1==256 at dim=1\nand so on")

        return run

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compiled)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", loaded)
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(JitPassesError, match=r"one input channel.*stride 1==256 at dim=1$"):
        export_aoti(reference, tmp_path / "model.pt2", data(2, 3, 8, 8)[0])
    assert (seen, os.environ.get(name)) == (["1"], None)
    assert not list(tmp_path.iterdir())


def test_missing_compiler(reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, str(tmp_path / "no_compiler")))
    with pytest.raises(JitPassesError, match=r"needs a C\+\+ compiler: install g\+\+.*CXX"):
        export_aoti(reference, tmp_path / "model.pt2", data(2, 3, 8, 8)[0])
    assert not list(tmp_path.iterdir())


def test_weights_that_overflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without VNNI, kernels of oneDNN add pairs of products in int16."""
    batches = data(2, 3, 8, 8)
    script = torch.jit.script(Net().eval())
    wide = jit_passes.quantize_script(script, batches, target="inductor", progress=False)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(aoti, "has_int8_patterns", lambda: True)
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, str(tmp_path / "no_compiler")))
    with (
        pytest.warns(jit_passes.JitPassesWarning, match="without VNNI.*bits: 7"),
        pytest.raises(JitPassesError),
    ):
        export_aoti(wide, tmp_path / "model.pt2", batches[0])


def test_a_torch_without_patterns_for_int8(
    reference: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(aoti, "has_int8_patterns", lambda: False)
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, str(tmp_path / "no_compiler")))
    with (
        pytest.warns(JitPassesWarning, match="left Inductor's patterns for int8 to torchao"),
        pytest.raises(JitPassesError),
    ):
        export_aoti(reference, tmp_path / "model.pt2", data(2, 3, 8, 8)[0])


class Counting(nn.Module):
    """A module that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


def test_state_that_changes(tmp_path: Path) -> None:
    """A package would lose it, and compute something else from the second call on."""
    model = torch.jit.script(Counting().eval())
    with pytest.raises(JitPassesError, match="changes its 'calls', and a package"):
        export_aoti(model, tmp_path / "model.pt2", torch.ones(3))
    assert not list(tmp_path.iterdir())
    assert float(model.calls) == 0


def test_other_models_and_paths(reference: Any, tmp_path: Path) -> None:
    x = data(2, 3, 8, 8)
    path = tmp_path / "model.pt2"
    for target, word in (("onnxruntime", "target='inductor'"), ("stock", "is a lowered one")):
        with pytest.raises(JitPassesError, match=word):
            export_aoti(quantized(Net(), x, target), path, x[0])
    with pytest.raises(JitPassesError, match=r"'\*\.pt2', not"):
        export_aoti(reference, tmp_path / "model.so", x[0])
    with pytest.raises(OSError, match="there is no folder"):
        export_aoti(reference, tmp_path / "nowhere" / "model.pt2", x[0])
    with pytest.raises(JitPassesError, match="training mode"):
        export_aoti(torch.jit.script(Net()), path, x[0])
    assert not list(tmp_path.iterdir())
