"""Callers rely on the same result for the same data, small files, every form of input."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import jit_passes
from jit_passes import _C
from jit_passes._extension import check_version
from jit_passes.targets import Stock
from tests.compare import sqnr
from tests.folders import ROOT
from tests.processor import bits_here

DATA = [torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(i)) for i in range(4)]
X = torch.randn(5, 3, 12, 12, generator=torch.Generator().manual_seed(9))


class Net(nn.Module):
    """Convolutions with batch norm, a residual, a head; wide enough for weights to matter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.body = nn.Conv2d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 256)

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        y = self.stem(x)
        y = torch.relu(y + self.body(y))
        return self.head(y.mean([2, 3])) * gain

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        """The stem alone."""
        return self.stem(x)


def make() -> torch.jit.ScriptModule:
    """The model, the same each time."""
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


@pytest.fixture
def model() -> torch.jit.ScriptModule:
    """The scripted model."""
    return make()


def quantize(model: Any, data: Any = DATA, **options: Any) -> torch.jit.ScriptModule:
    """quantize_script without a progress bar."""
    return jit_passes.quantize_script(model, data, progress=False, **options)


def contents(module: torch.jit.ScriptModule) -> tuple[str, list[Tensor]]:
    """Graph text and all tensors: constants of the graph, attributes, unpacked weights."""
    tensors = [node.output().toIValue() for node in module.graph.findAllNodes("prim::Constant")]
    for node in module.graph.findAllNodes("prim::GetAttr"):
        tensors += module._c.getattr(node.s("name")).unpack()
    text = re.sub(r"___torch_mangle_\d+\.", "", str(module.graph))
    return text, [t for t in tensors if isinstance(t, Tensor)]


def same(left: torch.jit.ScriptModule, right: torch.jit.ScriptModule, x: Tensor = X) -> None:
    """Asserts equal results, to the bit."""
    with torch.no_grad():
        assert torch.equal(left(x), right(x))


def test_deterministic() -> None:
    """Equal models and data give equal files."""
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        torch.jit.save(quantize(make()), file)
    assert files[0].getvalue() == files[1].getvalue()


def test_nothing_is_left_behind(model: torch.jit.ScriptModule) -> None:
    """Types and graphs go with the modules: the unit that scripting compiles into does not grow."""
    unit = torch.jit._state._python_cu
    before = len(unit.get_functions())
    quantize(model)
    assert len(unit.get_functions()) == before


def test_deterministic_across_processes(tmp_path: Path) -> None:
    """Two fresh processes write the same file."""
    program = (
        "import sys, torch; from tests.quantize import test_api as t; "
        "torch.jit.save(t.quantize(t.make()), sys.argv[1])"
    )
    files = [tmp_path / "a" / "model.pt", tmp_path / "b" / "model.pt"]
    for file in files:
        file.parent.mkdir()
        command = [sys.executable, "-W", "ignore", "-c", program, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-2000:]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_order_of_batches_does_not_matter(model: torch.jit.ScriptModule) -> None:
    """Nor how the data is cut, but for the last bit of float convolutions of other batch sizes.

    The codes of linears depend on the batch that is held back.
    """
    reference = quantize(model, weight_rounding=None)
    same(reference, quantize(model, DATA[::-1], weight_rounding=None))
    for data in ([torch.cat(DATA)], [row[None] for batch in DATA for row in batch]):
        with torch.no_grad():
            other = quantize(model, data, weight_rounding=None)
            torch.testing.assert_close(other(X), reference(X), atol=0.02, rtol=0)


@pytest.mark.parametrize("target", ["stock", "x86"])
def test_file_has_no_float_weights(
    model: torch.jit.ScriptModule, target: str, tmp_path: Path
) -> None:
    """About a quarter of the size."""
    paths = tmp_path / "float.pt", tmp_path / "int8.pt"
    torch.jit.save(model, str(paths[0]))
    torch.jit.save(quantize(model, target=target), str(paths[1]))
    weights = sum(p.numel() for p in model.parameters())
    assert paths[1].stat().st_size < weights * 1.1 + 40_000
    assert paths[1].stat().st_size < 0.45 * paths[0].stat().st_size


def test_weights_and_biases(model: torch.jit.ScriptModule) -> None:
    """int8 per channel when lowered; int32 biases of scale input * weight in the reference."""
    prepared = jit_passes.prepare(model, target="stock")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, DATA, progress=False))
    _, tensors = contents(jit_passes.lower(reference))
    for tensor in tensors:  # but for vectors
        assert not tensor.is_floating_point() or tensor.numel() <= 256, tensor.shape
    weights = [t for t in tensors if t.is_quantized]
    assert sorted(tuple(w.shape) for w in weights) == [(64, 3, 3, 3), (64, 64, 3, 3), (256, 64)]
    for weight in weights:
        assert weight.dtype == torch.qint8
        assert weight.qscheme() in (
            torch.per_channel_affine,
            torch.per_channel_affine_float_qparams,
        )
        assert weight.q_per_channel_zero_points().eq(0).all()
        assert weight.int_repr().abs().amax() <= 127
    found = 0
    for node in reference.graph.nodes():
        if node.kind() not in ("aten::conv2d", "aten::linear"):
            continue
        x, weight, bias = (value.node() for value in list(node.inputs())[:3])
        assert weight.kind() == bias.kind() == "jit_passes::dequantize_per_channel"
        while x.kind() != "jit_passes::dequantize":
            x = x.inputsAt(0).node()
        assert bias.inputsAt(0).toIValue().dtype == torch.int32
        assert weight.inputsAt(0).toIValue().dtype == torch.int8
        scales = x.inputsAt(1).toIValue() * weight.inputsAt(1).toIValue().double()
        assert torch.allclose(bias.inputsAt(1).toIValue().double(), scales, rtol=1e-6, atol=0)
        found += 1
    assert found == 3


@pytest.mark.parametrize("batch", [1, 2, 7, 33])
def test_any_batch_size(model: torch.jit.ScriptModule, batch: int) -> None:
    """Each sample's result is what it is alone."""
    quantized = quantize(model)
    x = torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(batch))
    with torch.no_grad():
        together, alone = quantized(x), torch.cat([quantized(row[None]) for row in x])
    assert torch.allclose(together, alone, rtol=0, atol=1e-6)


def test_inplace(model: torch.jit.ScriptModule) -> None:
    """The caller's object becomes the int8 model; without it, it stays as it is."""
    with torch.no_grad():
        expected = model(X)
        quantized = quantize(model)
        assert torch.equal(model(X), expected)
        result = quantize(model, inplace=True)
        assert result is model
        assert not torch.equal(model(X), expected)
    same(model, quantized)
    assert len(jit_passes.coverage(model).int8) == 3


FORMS = {
    "tuples": ([(x,) for x in DATA], None),
    "more_arguments": ([(x, 1.0) for x in DATA], None),
    "dicts": ([{"x": x} for x in DATA], None),
    "generator": ((x for x in DATA), None),
    "loader": (DataLoader(torch.cat(DATA), batch_size=4), None),
    "labels": (
        DataLoader(TensorDataset(torch.cat(DATA), torch.zeros(16)), batch_size=4),
        lambda batch: batch[0],
    ),
    "records": ([{"image": x, "name": "a"} for x in DATA], lambda batch: {"x": batch["image"]}),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_data(model: torch.jit.ScriptModule, form: str) -> None:
    """However the batches come, the result is the same."""
    data, input_fn = FORMS[form]
    same(quantize(model), quantize(model, data, input_fn=input_fn))


@pytest.mark.parametrize("progress", [True, False, None])
def test_progress_bar(
    model: torch.jit.ScriptModule, progress: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """On when asked for; by default on terminals only, which this is not."""
    jit_passes.calibrate(jit_passes.prepare(model), DATA, progress=progress)
    captured = capsys.readouterr()
    assert ("calibrate" in captured.err) == bool(progress)
    assert captured.out == ""


def test_calibration_in_parts(model: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """In one go, in two, and with a file between them: equal observers, equal models."""

    def prepared(*parts: list[Tensor], file: bool = False) -> torch.jit.ScriptModule:
        module = jit_passes.prepare(model)
        for part in parts:
            assert jit_passes.calibrate(module, part, progress=False) is module
            if file:
                torch.jit.save(module, str(tmp_path / "half.pt"))
                module = torch.jit.load(str(tmp_path / "half.pt"))
        return module

    whole = prepared(DATA)
    for other in (prepared(DATA[:1], DATA[1:]), prepared(DATA[:3], DATA[3:], file=True)):
        left, right = (_C.places(m._c, "forward") for m in (whole, other))
        assert [row[1] for row in left] == [row[1] for row in right]
        for (_, _, ours), (_, _, theirs) in zip(left, right, strict=True):
            for name in ("name", "spec"):
                assert ours[name] == theirs[name]
            assert torch.equal(ours["range"], theirs["range"])
            if (counts := ours.get("histogram")) is not None:
                assert torch.equal(counts, theirs["histogram"])
        same(*(jit_passes.lower(jit_passes.convert(m)) for m in (whole, other)))


def test_coverage_at_every_stage(model: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """Operators and their names stay, from the float model to the file."""
    prepared = jit_passes.calibrate(jit_passes.prepare(model), DATA, progress=False)
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    torch.jit.save(lowered, str(tmp_path / "int8.pt"))
    loaded = torch.jit.load(str(tmp_path / "int8.pt"))
    before = jit_passes.coverage(model)
    names = [row.name for row in before]
    assert names == ["stem.0:conv2d", "body:conv2d", "head:linear"]
    assert [row.dtype for row in before] == ["float"] * 3
    assert {row.reason for row in before} == {"not quantized yet"}
    bits = bits_here("w8a8")
    for stage in (prepared, reference, lowered, loaded):
        table = jit_passes.coverage(stage)
        assert [row.name for row in table.int8] == names
        assert table.float == () and len(table) == 3
        assert str(table).startswith(
            f"3 of 3 operators quantized: 3 {bits}\nstem.0:conv2d  conv2d  {bits}"
        )


def test_traced_and_loaded(model: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """A trace, and a model from a file, become what the scripted model becomes."""
    quantized = quantize(model)
    torch.manual_seed(0)
    same(quantized, quantize(torch.jit.trace(Net().eval(), DATA[0])))
    torch.jit.save(model, str(tmp_path / "float.pt"))
    same(quantized, quantize(torch.jit.load(str(tmp_path / "float.pt"))))


def test_another_method(model: torch.jit.ScriptModule) -> None:
    """The result has that method, in int8, and no other."""
    quantized = quantize(model, method="encode")
    assert [row.name for row in jit_passes.coverage(quantized)] == ["stem.0:conv2d"]
    with torch.no_grad():
        expected, found = model.encode(X), quantized.encode(X)
    assert sqnr(expected, found) > 30
    assert quantized._c._has_method("encode") and not quantized._c._has_method("forward")


class Clipped(nn.Module):
    """A convolution whose relu6 is at work."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu6(self.conv(x))


def test_clip_holds_with_a_reduced_range() -> None:
    """With 7-bit activations too, nothing above 6 comes out of a relu6."""
    torch.manual_seed(0)
    script = torch.jit.script(Clipped().eval())
    quantized = quantize(script, [8 * X], target=Stock(reduce_range=True))
    for x in (8 * X, 80 * X):
        assert quantized(x).max() <= 6 * 1.02


def test_another_torch() -> None:
    """One sentence says what does not fit, and what to do."""
    check_version("2.13.0", "2.13.1+cpu")
    with pytest.raises(ImportError, match=r"compile it again.*compiled for 2\.13\.0"):
        check_version("2.13.0", "2.14.0")
