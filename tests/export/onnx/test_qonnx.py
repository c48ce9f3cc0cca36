"""Files of QONNX: the numbers of the reference model, by ONNX's own evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from jit_passes import JitPassesError, export_onnx
from jit_passes.export.onnx.qonnx import bits_of
from tests.command_line.running import Run, run_fixture  # noqa: F401
from tests.engines import Network, apart, data, quantized

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
reference = pytest.importorskip("onnx.reference")
op_run = pytest.importorskip("onnx.reference.op_run")

pytestmark = pytest.mark.usefixtures("translations_once")

DATA = data(2, 3, 16, 16)


class Quant(op_run.OpRun):  # type: ignore[misc]
    """The operator by its formula, in double precision."""

    op_domain = "qonnx.custom_op.general"

    def _run(
        self, x: Any, scale: Any, zeropt: Any, bitwidth: Any, *, signed: int, narrow: int,
        rounding_mode: str,
    ) -> tuple[Any]:  # fmt: skip
        assert rounding_mode == "ROUND"
        half = 2.0 ** (bitwidth - 1)
        low, high = (-half + narrow, half - 1) if signed else (0, 2 * half - 1 - narrow)
        codes = np.clip(np.round(x.astype("float64") / scale + zeropt), low, high)
        return (((codes - zeropt) * scale).astype("float32"),)


def bits(weight: int, activation: int) -> dict[str, Any]:
    tensors = {"input": {"bits": activation}, "output": {"bits": activation}}
    return {"version": 1, "global": {"weight": {"bits": weight}, **tensors}}


def run(path: Path, x: Tensor) -> Tensor:
    session = reference.ReferenceEvaluator(str(path), new_ops=[Quant])
    [found] = session.run(None, {session.input_names[0]: x.numpy()})
    return torch.from_numpy(found)


def quants(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return bits, signed and narrow of the operators that round, by name of their value."""
    graph = onnx.load(path).graph
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    found = {}
    for node in graph.node:
        assert "QuantizeLinear" not in node.op_type
        if node.op_type == "Quant":
            options = {each.name: each.i for each in node.attribute}
            width = int(constants[node.input[3]])
            found[node.output[0]] = (width, options["signed"], options["narrow"])
    return found


@pytest.mark.parametrize(("weight", "activation"), [(3, 6)])
def test_numbers(weight: int, activation: int, tmp_path: Path) -> None:
    """Of convolutions, sums, pools and products, to one step where sums are at a tie."""
    model = quantized(Network(), DATA, "qonnx", config=bits(weight, activation))
    path = tmp_path / "model.onnx"
    export_onnx(model, path, DATA[0])
    found, expected = run(path, DATA[1]), model(DATA[1])
    assert expected.std() > 0.1
    assert apart(found, model, DATA[1]) < 1.01
    assert (found == expected).float().mean() > 0.8
    kinds = quants(path)
    assert kinds["image:quantized"] == (activation, 1, 0)
    assert kinds["head.weight:quantized"] == (weight, 1, 1)
    onnx.checker.check_model(str(path), full_check=True)


def test_other_forms(tmp_path: Path) -> None:
    """A model for QONNX in standard operators, and any reference model with `Quant`."""
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    model = quantized(nn.Sequential(nn.Linear(8, 4)), data(2, 8), "qonnx", config=bits(4, 4))
    [x, *_] = data(2, 8)
    export_onnx(model, path, x, form="qdq")
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert (kinds.count("QuantizeLinear"), kinds.count("Clip")) == (2, 2)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [found] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert apart(torch.from_numpy(found), model, x) < 1.01

    [x, *_] = batches = data(16, 8)
    affine = quantized(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), batches, "reference")
    export_onnx(affine, path, x, form="qonnx")
    found = quants(path)
    assert (found["input:quantized"], found["0.bias:quantized"]) == ((8, 0, 0), (32, 1, 1))
    assert affine(x).std() > 0 and apart(run(path, x), affine, x) < 1.01


def test_what_has_no_form(tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", data(2, 32)
    linear = nn.Sequential(nn.Linear(32, 4))
    dynamic = quantized(linear, x, "onnxruntime", mode="dynamic")
    groups = {"version": 1, "global": {"weight": {"bits": 4, "group_size": 16}}}
    alone = quantized(linear, x, "onnxruntime", mode="weight_only", config=groups)
    for model in (dynamic, alone):
        with pytest.raises(JitPassesError, match=r"QONNX has no form of .*form='qdq'"):
            export_onnx(model, path, x[0], form="qonnx")
    model = quantized(linear, x, "qonnx")
    with pytest.raises(JitPassesError, match="form is one of qdq, qonnx, not 'quant'"):
        export_onnx(model, path, x[0], form="quant")
    assert not path.exists()


def test_codes() -> None:
    """The documentation of `Quant` lists its ranges of codes; another range is an error."""
    for bits in range(2, 9):
        half = 2 ** (bits - 1)
        assert bits_of(-half, half - 1, "x") == (bits, True, False)
        assert bits_of(1 - half, half - 1, "x") == (bits, True, True)
        assert bits_of(0, 2 * half - 1, "x") == (bits, False, False)
    assert bits_of(0, 254, "x") == (8, False, True)
    with pytest.raises(JitPassesError, match="'x' has codes from -100 to 100"):
        bits_of(-100, 100, "x")


def test_command(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "model.pt", tmp_path / "model.onnx"
    torch.jit.script(nn.Sequential(nn.Linear(8, 4)).eval()).save(str(path))
    np.save(tmp_path / "x.npy", data(4, 8)[0].numpy())
    how = ("--engine", "qonnx", "--data", tmp_path / "x.npy", "-o", out)
    done = run("export", path, "--to", "onnx", *how)
    assert (done.code, done.out.endswith("the model, for qonnx\n")) == (0, True), done.err
    assert len(quants(out)) == 3
