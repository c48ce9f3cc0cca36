"""Engines agree, and where they part the report names the code."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, conformance
from jit_passes.report.conformance.float_results import FloatResults
from jit_passes.report.conformance.subject import Subject
from jit_passes.report.conformance.values import Grid
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS
from tests.command_line.running import Run, run_fixture  # noqa: F401
from tests.engines import quantized
from tests.integer_oracle import WHOLE

pytestmark = pytest.mark.usefixtures("translations_once")

compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
NAMES = ["x", "relu", "b:conv2d", "add", "mean", "head:linear"]


class Net(nn.Module):
    """A residual block, a mean of 2^k places and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        return self.head((x + self.b(x)).mean([2, 3]))


def data() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 8, 8, generator=generator) for _ in range(3)]


def reference(target: Any = None) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    target = target or FixedPoint("shift")
    prepared = jit_passes.prepare(torch.jit.script(Net().eval()), target=target)
    jit_passes.calibrate(prepared, data())
    return jit_passes.convert(prepared)


def codes(model: torch.jit.ScriptModule, x: Tensor) -> Tensor:
    """Return the codes of the input, by PyTorch's own operator."""
    value = jit_passes.encodings_of(model).activations[0]
    step = torch.fake_quantize_per_tensor_affine(x, value.scale[0], 0, -128, 127) / value.scale[0]
    return step.to(torch.int8)


@compiler
def test_engines_agree_on_powers_of_two() -> None:
    model = reference()
    found = conformance(model, data(), ["reference", "fixed_point", "c"])
    assert found.equal and found.engines == ("reference", "fixed_point", "c"), found
    values = {row.name: row.elements for row in found.rows if row.engine == "fixed_point"}
    assert [*values] == [*NAMES, "output"], values
    assert values["add"] == 3 * 2 * 4 * 8 * 8
    assert found.unseen["c"] == tuple(NAMES)


def test_a_file_of_onnx(tmp_path: Path, run: Run) -> None:
    """Weights of 7 bits: pairs of products do not saturate on any processor."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    config = {"version": 1, "global": {"weight": {"bits": 7}}}
    torch.manual_seed(0)
    scripted, batches = torch.jit.script(Net().eval()), data()
    model = jit_passes.quantize_script(scripted, batches, target="onnxruntime", config=config)
    path = tmp_path / "model.onnx"
    jit_passes.export_onnx(model, path, batches[0])
    found = jit_passes.check_onnx(path, model, batches)
    assert (dict(found.integers), dict(found.floats)) == ({"QGemm": 1, "QLinearConv": 2}, {})
    assert found.kept and found.promised == 3 and "2 QLinearConv" in str(found)
    for engine in ("onnxruntime", "onnxruntime_optimized"):
        rows = [row for row in found.codes.rows if row.engine == engine]
        assert [row.name for row in rows] == [*NAMES, "output"]
        assert all(row.largest <= 1 for row in rows)
    torch.save(torch.cat(batches), tmp_path / "x.pt")
    model.save(str(tmp_path / "reference.pt"))
    done = run("check", path, "--against", tmp_path / "reference.pt", "--data", tmp_path / "x.pt",
               "--batch-size", 2, "--json")  # fmt: skip
    assert done.json["integers"] == {"QGemm": 1, "QLinearConv": 2}
    assert done.code == (0 if found.codes.equal else 5)
    with pytest.raises(OSError, match="nothing"):
        jit_passes.check_onnx(tmp_path / "nothing.onnx", model, batches)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("bad.onnx", "empty.onnx", "reference.pt"):
        with pytest.raises(JitPassesError, match=f"{name} is not a file of ONNX$"):
            jit_passes.check_onnx(tmp_path / name, model, batches)
    with pytest.raises(JitPassesError, match=r"^engine is one of onnxruntime, .*'tensorrt'"):
        jit_passes.check_onnx(path, model, batches, engine="tensorrt")


def test_a_file_for_openvino(tmp_path: Path, run: Run) -> None:
    """OpenVINO runs the file, results are compared as floats, and its own layers are counted."""
    pytest.importorskip("openvino")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    batches, path = data(), tmp_path / "model.onnx"
    model = quantized(Net(), batches, "openvino")
    jit_passes.export_onnx(model, path, batches[0])
    found = jit_passes.check_onnx(path, model, batches)
    assert found.engine == found.target == "openvino" and not found.codes.rows
    assert (dict(found.integers), dict(found.floats)) == (
        {"Convolution": 2, "FullyConnected": 1},
        {},
    )
    assert found.equal and found.kept and found.promised == 3
    [result] = found.results
    most = max(float(model(x).abs().max()) for x in batches)
    assert (result.name, result.elements, result.unit) == ("output", 3 * 2 * 5, "")
    assert result.tolerance == pytest.approx(most / 100) and result.largest < most / 100
    assert "results in OpenVINO" in str(found) and found.as_data()["results"][0]["within"]

    # In ONNX Runtime the sum's convolution stays in float, as it is not rounded by itself.
    other = jit_passes.check_onnx(path, model, batches, engine="onnxruntime")
    assert not other.kept and other.floats and other.codes["onnxruntime"] is None

    torch.save(torch.cat(batches), tmp_path / "x.pt")
    model.save(str(tmp_path / "reference.pt"))
    given = (path, "--against", tmp_path / "reference.pt", "--data", tmp_path / "x.pt",
             "--batch-size", 2)  # fmt: skip
    done = run("check", *given, "--json")
    assert done.code == 0 and done.json["equal"] and done.json["integers"]["Convolution"] == 2
    assert run("check", *given, "--engine", "onnxruntime").code == 5
    scripted = torch.jit.script(Net().eval())
    scripted.save(str(tmp_path / "float.pt"))
    jit_passes.quantize_script(scripted, batches, target="x86").save(str(tmp_path / "x86.pt"))
    for name in ("float.pt", "x86.pt"):
        done = run("check", path, "--against", tmp_path / name, *given[3:])
        assert done.code == 3 and "--target openvino" in done.err  # as the file says

    # A file of a model with another weight.
    moved = Net()
    torch.manual_seed(0)
    moved.head.reset_parameters()
    jit_passes.export_onnx(quantized(moved, batches, "openvino"), path, batches[0])
    wrong = jit_passes.check_onnx(path, model, batches)
    assert not wrong.equal and wrong.kept and wrong.results[0].largest > 0.1 * most
    done = run("check", *given)
    assert done.code == 5 and "results differ" in done.err


def test_an_argument_that_has_other_names_in_openvino(tmp_path: Path) -> None:
    """The engine leaves the reshape out, and its result is another name of the argument."""
    pytest.importorskip("openvino")

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0])

    batches, path = [torch.randn(1, 5, 8)], tmp_path / "model.onnx"
    model = quantized(Tagger(), batches, "openvino")
    jit_passes.export_onnx(model, path, batches[0])
    assert jit_passes.check_onnx(path, model, batches, progress=False).equal


def test_results_on_a_grid_in_openvino(tmp_path: Path) -> None:
    """Results on a grid are compared in steps, of which one is allowed."""
    pytest.importorskip("openvino")
    pytest.importorskip("onnxscript")
    batches, path = data(), tmp_path / "model.onnx"
    model = quantized(Net(), batches, "onnxruntime")
    jit_passes.export_onnx(model, path, batches[0])
    found = jit_passes.check_onnx(path, model, batches, engine="openvino")
    [result] = found.results
    assert found.equal and result.unit == "steps" and result.largest < 1.001


def test_tolerances_of_results() -> None:
    """A step where there is a grid, else a hundredth of the largest number; NaN is never within."""
    grid = {"output.0": Grid(0.5, 3)}
    ours = {"output.0": torch.tensor([0.5, 8.0]), "output.1": torch.tensor([-2.0, 1.0])}

    def of(first: list[float], second: list[float]) -> list[tuple[float, bool]]:
        found = FloatResults(grid)
        found.add(ours, [torch.tensor(first), torch.tensor(second)])
        found.add(ours, [*ours.values()])
        return [(result.largest, result.within) for result in found.differences()]

    assert of([1.0, 8.0], [-2.0, 1.015625]) == [(1.0, True), (0.015625, True)]
    assert of([0.5, 7.0], [-2.03125, 1.0]) == [(2.0, False), (0.03125, False)]
    assert [within for _, within in of([math.nan, 8.0], [-2.0, math.inf])] == [False, False]
    with pytest.raises(JitPassesError, match="has 1 results, and the reference model 2"):
        FloatResults(grid).add(ours, [ours["output.0"]])
    with pytest.raises(JitPassesError, match=r"output.1 has shape \[1\] in the engine, and \[2\]"):
        FloatResults(grid).add(ours, [ours["output.0"], torch.zeros(1)])


def test_files_for_engines_that_are_not_run(tmp_path: Path) -> None:
    """The last line says so, and counts nothing; no engine here reads QONNX."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    batches, path = data(), tmp_path / "model.onnx"
    model = quantized(Net(), batches, "tensorrt")
    jit_passes.export_onnx(model, path, batches[0])
    found = jit_passes.check_onnx(path, model, batches)
    assert found.codes.engines == ("onnxruntime",) and found.equal and found.kept
    assert found.promised is None and not found.integers
    assert (
        str(found)
        .splitlines()[-1]
        .startswith("the file is for tensorrt, which is not run here: ONNX Runtime computes it")
    )
    model = quantized(Net(), batches, "qonnx")
    jit_passes.export_onnx(model, path, batches[0])
    with pytest.raises(JitPassesError, match=r"is QONNX, .* nothing is run; .*form='qdq'"):
        jit_passes.check_onnx(path, model, batches)
    jit_passes.export_onnx(model, path, batches[0], form="qdq")
    found = jit_passes.check_onnx(path, model, batches)
    assert found.equal and found.summary.startswith("the file is for qonnx, which is not run here")


def test_results_in_float_have_no_codes() -> None:
    pytest.importorskip("openvino")
    model = quantized(Net(), data(), "openvino")
    with pytest.raises(JitPassesError, match=r"are floats, which have no codes: .*check_onnx"):
        conformance(model, data()[:1], ["openvino"])


class Functions(nn.Module):
    """Functions that become tables: one that two layers read, and one of codes that are pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.silu(self.a(x))
        x = nn.functional.gelu(nn.functional.max_pool2d(x + self.b(x), 2))
        return self.head(torch.tanh(x.transpose(2, 3)).mean([2, 3]))


def test_stock_of_a_model_with_lookup_tables() -> None:
    """A model for the target `reference` has tables of its functions, and 7 bits never saturate."""
    config = {"version": 1, "global": {"weight": {"bits": 7}}}
    torch.manual_seed(0)
    script = torch.jit.script(Functions().eval())
    model = jit_passes.quantize_script(script, data(), target="reference", config=config)
    tables = [node for node in model.graph.nodes() if node.kind() == "jit_passes::lookup_table"]
    assert len(tables) >= 2
    found = conformance(model, data(), ["stock"])
    rows = {row.name: row for row in found.rows}
    assert not found.missing and "output" in rows and len(rows) > 3
    assert all(row.largest <= 1 and row.different <= 0.02 * row.elements for row in found.rows)


class Rounds(nn.Module):
    """A convolution in a loop, which reads its result on another grid, and one behind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        step = 0
        while step < 3:
            x = torch.relu(self.conv(x))
            step += 1
        return self.head(x)


def test_codes_of_rounds_in_an_optimized_file(tmp_path: Path) -> None:
    """ONNX Runtime merges two roundings in a row, of the result of a round and of its operand."""
    pytest.importorskip("onnxruntime")
    model, path = quantized(Rounds(), data(), "onnxruntime"), tmp_path / "model.onnx"
    jit_passes.export_onnx(model, path, data()[0])
    found = jit_passes.check_onnx(path, model, data())
    assert {row.engine for row in found.codes.rows} == {"onnxruntime", "onnxruntime_optimized"}
    assert all(row.elements > 0 and row.largest <= 1 for row in found.codes.rows)
    assert all(row.different <= 0.01 * row.elements for row in found.codes.rows)
    assert dict(found.integers) == {"QLinearConv": 4} and not found.floats


def test_onnx_runtime_agrees() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = conformance(reference(), data()[:1], ["onnxruntime"])
    assert found.equal and {row.name for row in found.rows} == {*NAMES, "output"}, found


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):  # noqa: SIM108, a branch of the graph
            x = self.a(x)
        else:
            x = self.b(x)
        return self.b(x)


def test_branches() -> None:
    """An ONNX file with branches has names that may be of several values: results are compared."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(2, 8, generator=generator) for _ in range(4)]
    batches[0], batches[1] = batches[0].abs(), -batches[1].abs()
    prepared = jit_passes.prepare(torch.jit.script(Branches().eval()), target=FixedPoint("shift"))
    jit_passes.calibrate(prepared, batches)
    found = conformance(jit_passes.convert(prepared), batches, ["fixed_point", "onnxruntime"])
    assert found.equal, found
    assert [row.name for row in found.rows if row.engine == "onnxruntime"] == ["output"]
    assert len([row for row in found.rows if row.engine == "fixed_point"]) > 3


class Repeated(nn.Module):
    """A layer in a loop whose rounds the data decide; its result is that of the last round."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(1 + int(x.sum() > 0)):
            x = self.a(x)
        return x.reshape(-1)


def test_a_result_of_a_loop() -> None:
    """Its grid is that of each round, though the loop begins with floats."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(2, 8, generator=generator) for _ in range(4)]
    batches[0], batches[1] = batches[0].abs(), -batches[1].abs()
    model = quantized(Repeated(), batches, "reference")

    value = jit_passes.encodings_of(model).activations[-1]

    def moved(x: Tensor) -> dict[str, Tensor]:
        codes = (model(x) / value.scale[0] + value.zero_point[0]).round().to(torch.int64)
        return {"output": codes + (x.sum() > 0)}

    found = conformance(model, batches, ["fixed_point", moved])
    rows = {row.engine: row for row in found.rows if row.name == "output"}
    assert rows["fixed_point"].elements == 64 and rows["fixed_point"].different == 0
    assert rows["moved"].different == 16 * sum(bool(x.sum() > 0) for x in batches) > 0
    # A loop may run no round, for all that the graph says, and then gives floats.
    told = [doubt for doubt in jit_passes.exactness(model).doubts if doubt.name == "output"]
    assert [doubt.condition for doubt in told] == ["rounding"]


def test_the_first_divergence() -> None:
    """An engine of one's own, one code of which is moved."""
    model = reference()
    batches = data()

    def moved(x: Tensor) -> dict[str, Tensor]:
        found = codes(model, x)
        if torch.equal(x, batches[1]):
            found[1, 2, 3, 4] += 7
        return {"x": found}

    found = conformance(model, batches, [moved, "fixed_point"])
    first = found["moved"]
    assert not found.equal and found["fixed_point"] is None and first is not None
    assert (first.name, first.batch, first.index) == ("x", 1, (1, 2, 3, 4))
    assert first.found - first.reference == 7
    [row] = [row for row in found.rows if row.engine == "moved"]
    assert (row.different, row.largest) == (1, 7)
    assert json.loads(found.to_json())["divergences"][0]["index"] == [1, 2, 3, 4]
    assert "moved: first at x" in str(found) and "moved" in found._repr_html_()
    with pytest.raises(JitPassesError, match="did not run"):
        found["other"]


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1)
        with torch.no_grad():
            self.conv.weight.fill_(1.0)
            self.conv.bias.fill_(0.0)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def test_the_sum_before_rounding() -> None:
    """Sums of exact halves: half to even in the reference, half up in an engine."""
    config = {
        "version": 1,
        "rules": [{"module": "conv", "output": {"bits": 4, "calibration": "min_max"}}],
    }
    batch = torch.arange(-64, 64).reshape(1, 1, 8, 16) / 64
    other = jit_passes.quantize_script(
        torch.jit.script(Halves().eval()),
        [batch],
        target=FixedPoint("shift", "half_up"),
        config=config,
    )
    prepared = jit_passes.prepare(
        torch.jit.script(Halves().eval()), target=FixedPoint("shift"), config=config
    )
    jit_passes.calibrate(prepared, [batch])
    model = jit_passes.convert(prepared)
    value = jit_passes.encodings_of(model).activations[-1]

    def kernel(x: Tensor) -> dict[str, Tensor]:
        return {value.name: (other(x) / value.scale[0]).round().to(torch.int64)}

    first = conformance(model, [batch], [kernel])["kernel"]
    assert first is not None and first.tie and first.operator == "aten::conv2d"
    assert first.steps is not None and first.steps % 1 == 0.5
    assert first.reference == round(first.steps)  # Python rounds halves to even
    assert first.found == first.reference + 1 == int(first.steps // 1) + 1
    assert "test_conformance.py" in first.source and "a tie" in str(first)


@compiler
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_engines_round_as_the_target(rounding: str) -> None:
    """Integers and C have the codes of a reference model that rounds so; floats would not."""
    model = reference(FixedPoint("shift", rounding))
    found = conformance(model, data(), ["fixed_point", "c"])
    assert found.equal and not found.missing, found
    told = jit_passes.exactness(model, data()[0])
    doubts = [doubt for doubt in told.doubts if doubt.condition == "rounding"]
    assert len(doubts) == (0 if rounding == "half_even" else len(NAMES))


@pytest.mark.parametrize("rounding", ROUNDINGS.values())
def test_rounding_of_a_model_for_any_engine(rounding: str) -> None:
    """Integers are rounded as all values of the model are, and each step says how."""
    tensor = {"scheme": "power_of_two", "dtype": "int8", "rounding": rounding}
    weight = {"scheme": "power_of_two", "channelwise": False}
    options = {"input": tensor, "output": tensor, "weight": weight}
    torch.manual_seed(0)
    prepared = jit_passes.prepare(
        torch.jit.script(Net().eval()), target="reference", config={"version": 1, "global": options}
    )
    jit_passes.calibrate(prepared, data())
    model = jit_passes.convert(prepared)

    found = conformance(model, data()[:1], ["fixed_point"])
    assert found.equal and not found.missing, found

    def kernel(x: Tensor) -> dict[str, Tensor]:
        return {"relu": torch.zeros(2, 4, 8, 8, dtype=torch.int64)}

    first = conformance(model, data()[:1], [kernel])["kernel"]
    assert first is not None and first.operator == "aten::conv2d" and first.steps is not None
    assert first.reference == WHOLE[rounding](first.steps)


@pytest.mark.parametrize("rounding", ["ceil", "toward_zero"])
def test_a_rounding_that_no_integers_have(rounding: str) -> None:
    """The message names the value, how it is rounded, and the roundings that there are."""
    config = {"version": 1, "global": {"output": {"rounding": rounding}}}
    script = torch.jit.script(Net().eval())
    model = jit_passes.quantize_script(script, data(), target="reference", config=config)
    has = "fixed_point has half_even, half_up, half_away, floor$"
    for engine in ("fixed_point", "c"):
        with pytest.raises(JitPassesError, match=rf"'relu' is rounded {rounding}, and {has}"):
            conformance(model, data()[:1], [engine])


def test_an_engine_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    model = reference()
    found = conformance(model, data()[:1], ["fixed_point", "c"])
    assert found.equal and "no C compiler" in found.missing["c"]
    assert "c: did not run: no C compiler" in str(found)
    with pytest.raises(JitPassesError, match="no engine runs: c: no C compiler"):
        conformance(model, data()[:1], ["c"])


def test_modes_without_static_grids() -> None:
    """There are no codes to compare, and the message says where to go."""
    model = jit_passes.quantize_script(
        torch.jit.script(nn.Linear(8, 4).eval()), mode="dynamic", target="reference"
    )
    with pytest.raises(
        JitPassesError, match=r"no value of the model has a static grid.*check_onnx"
    ):
        conformance(model, [torch.randn(2, 8)], ["onnxruntime"])


def test_an_engine_that_raises() -> None:
    def broken(x: Tensor) -> dict[str, Tensor]:
        raise IndexError(f"no tile of {len(x)}")

    found = conformance(reference(), data()[:1], ["fixed_point", broken])
    assert found.equal and found.missing["broken"] == "IndexError: no tile of 2"


def test_bad_input() -> None:
    model, batches = reference(), data()[:1]
    with pytest.raises(JitPassesError, match=r"an engine is one of reference, .*'onnx'"):
        conformance(model, batches, ["onnx"])
    with pytest.raises(JitPassesError, match="'c' twice"):
        conformance(model, batches, ["c", "c"])
    with pytest.raises(JitPassesError, match="list of names"):
        conformance(model, batches, "c")  # type: ignore[arg-type]
    with pytest.raises(JitPassesError, match="not 3"):
        conformance(model, batches, [3])  # type: ignore[list-item]
    with pytest.raises(JitPassesError, match="no quantized value of the model: it has x, relu"):
        conformance(model, batches, [lambda x: {"y": x}])
    with pytest.raises(JitPassesError, match=r"give codes, which are\s+integers"):
        conformance(model, batches, [lambda x: {"x": x}])
    with pytest.raises(JitPassesError, match=r"with shape \[2\]"):
        conformance(model, batches, [lambda x: {"x": torch.zeros(2, dtype=torch.int8)}])
    with pytest.raises(JitPassesError, match=r"gave NoneType: .* a mapping"):
        conformance(model, batches, [lambda x: None])
    with pytest.raises(JitPassesError, match="convert returns"):
        conformance(jit_passes.lower(model), batches)
    with pytest.raises(JitPassesError, match="convert"):
        conformance(torch.jit.script(Net().eval()), batches)


def test_in_a_shell(tmp_path: Path, run: Run) -> None:
    path, inputs = tmp_path / "reference.pt", tmp_path / "x.pt"
    model = reference()
    model.save(str(path))
    torch.save(torch.cat(data()), inputs)
    done = run("conformance", path, "--data", inputs, "--engines", "fixed_point", "--json")
    assert done.json["equal"] and done.json["engines"] == ["fixed_point"]
    assert run("conformance", path, "--data", inputs, "--engines", "nothing").code == 3
    assert run("conformance", path).code == 2


@pytest.mark.parametrize("rounding", [*ROUNDINGS, "double_round"])
def test_other_models_in_a_shell(rounding: str, tmp_path: Path, run: Run) -> None:
    """A float or a lowered model is refused; the advice makes a model that rounds as the target."""
    model, inputs, out = tmp_path / "m.pt", tmp_path / "x.pt", tmp_path / "out.pt"
    torch.manual_seed(0)
    torch.jit.script(Net().eval()).save(str(model))
    torch.save(torch.cat(data()), inputs)
    given = ("--data", inputs, "--engines", "fixed_point", "--json")
    done = run("conformance", model, *given)
    assert done.code == 3 and "`jit-passes quantize --target reference`" in done.err

    quantize = ("quantize", model, "--data", inputs, "-o", out, "--target")
    assert run(*quantize, f"fixed_point:rounding={rounding}").code == 0
    done = run("conformance", out, *given)
    assert done.code == 3 and "quantize with --target reference" in done.err
    advice = re.findall(r"`(global: .*)` in --config", done.err)
    assert len(advice) == (rounding not in ("half_even", "double_round"))
    config = tmp_path / "rounding.yaml"
    config.write_text("\n".join(["version: 1", *advice]))
    assert run(*quantize, "reference", "--config", config).code == 0
    assert run("conformance", out, *given).json["engines"] == ["fixed_point"]
    target = Subject.of(torch.jit.load(str(out)), "forward").fixed_point
    assert target.rounding == (rounding if rounding in ROUNDINGS else "half_even")
