"""Engines as targets: what stays in float in each, and where each has quantize and dequantize."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.command_line.running import Run, run_fixture  # noqa: F401
from tests.engines import Between, Block, apart, data, promised, quantized


def reasons(model: nn.Module, target: str, config: Any = None) -> list[str]:
    """Return why operators would stay in float, which `inspect` says without data."""
    if config is not None:
        config = {"version": 1, "global": config}
    scripted = torch.jit.script(model.eval())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jit_passes.JitPassesWarning)  # of the same reasons
        found = jit_passes.inspect(scripted, target=target, config=config, mode="static")
    return [row.reason for row in found if row.dtype != "int8"]


SIGNED = {"scheme": "power_of_two", "dtype": "int8"}
POWER, SYMMETRIC = {"scheme": "power_of_two"}, {"scheme": "symmetric"}
FLOAT = {"dtype": "float"}


@pytest.mark.parametrize(
    ("function", "target", "config", "reason"),
    [
        (nn.ReLU(), "onnxruntime", {"output": SYMMETRIC}, "below the 0 at which its relu"),
        (nn.ReLU6(), "onnxruntime", {"output": POWER}, "beyond the 6 at which its clamp"),
        (nn.ReLU(), "onnxruntime", {"output": POWER}, None),
        (nn.ReLU(), "openvino", {"input": SIGNED, "output": SIGNED}, None),
        (nn.ReLU(), "onnxruntime", {"input": SIGNED}, "int8 stays in float there"),
        (nn.ReLU(), "inductor", {"output": SIGNED}, "its convolutions do not take int8"),
        (nn.ReLU(), "onnxruntime", {"output": FLOAT}, "its result is to stay in float"),
        (nn.ReLU(), "openvino", {"output": FLOAT}, None),
        (nn.Tanh(), "tensorrt", {"input": {"scheme": "affine"}}, "per_tensor_affine, and"),
        (nn.Tanh(), "xnnpack", {"output": {"dtype": "uint8"}}, r"uint8 \[0, 255\], and"),
        (nn.Tanh(), "inductor", {"weight": {"channelwise": False}}, "per_tensor_symmetric, and"),
        (nn.ConvTranspose2d(4, 4, 2), "onnxruntime", None, "no int8 form"),
        (nn.ConvTranspose2d(4, 4, 2), "tensorrt", None, None),
    ],
)
def test_what_stays_in_float(
    function: nn.Module, target: str, config: Any, reason: str | None
) -> None:
    found = reasons(Between(function), target, config)
    assert bool(found) == bool(reason), found
    assert reason is None or any(re.search(reason, why) for why in found), found


def quantizes(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if "quantize_per_tensor" in node.name]


class Residual(nn.Module):
    """Two branches that are joined, next to a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.one, self.two = Block(8), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(self.one(x))
        return torch.cat([self.two(y), y], 1)


@pytest.mark.parametrize(
    ("target", "rounded"),  # whether a convolution's result is, in front of the sum
    [("onnxruntime", True), ("openvino", False), ("inductor", False), ("tensorrt", False),
     ("xnnpack", True), ("qonnx", True)],
)  # fmt: skip
def test_placement_and_grids(target: str, rounded: bool) -> None:
    batches = data(2, 8, 8, 8)
    model = quantized(Residual(), batches, target)
    program = jit_passes.to_exported_program(model, batches[0])
    [total] = [node for node in program.graph.nodes if node.name == "add"]
    kinds = ["dequantize" in operand.name for operand in total.args[:2]]
    assert kinds == [True, rounded]
    grids = {node.args[2:] for node in quantizes(program)}
    signed = target in ("tensorrt", "xnnpack", "qonnx")
    assert {grid[1:] for grid in grids} == {
        (-128, 127, torch.int8) if signed else (0, 255, torch.uint8)
    }
    assert ({grid[0] for grid in grids} == {0}) == (target in ("tensorrt", "qonnx"))
    biases = {name for name in program.state_dict if name.endswith("bias")}
    dtypes = {program.state_dict[name].dtype for name in biases}
    assert dtypes == {torch.int32 if target == "onnxruntime" else torch.float32}
    [joined] = [node for node in program.graph.nodes if node.name == "cat"]
    scales = {operand.args[1] for operand in joined.args[0]}
    shares = target in ("inductor", "xnnpack")
    assert (len(scales) == 1) == shares
    found = program.module()(batches[0])
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01


@pytest.mark.parametrize("target", ["openvino", "inductor", "tensorrt"])
def test_only_what_is_read_on_integers_is_rounded(target: str) -> None:
    """A layer norm, and the caller, read floats; a gelu reads the sums of products."""
    network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))
    network.append(nn.Linear(8, 4))
    batches = data(3, 8)
    rounded = ["input", "1:gelu", "3:layer_norm"]
    model = quantized(network, batches, target)
    assert [value.name for value in jit_passes.encodings_of(model).activations] == rounded
    assert promised(model) == 3
    config = {"version": 1, "rules": [{"module": "2", "output": {"bits": 8}}]}
    asked = quantized(network, batches, target, config=config)
    names = [value.name for value in jit_passes.encodings_of(asked).activations]
    assert names == [*rounded[:2], "2:linear", rounded[2]]


def test_one_command_quantizes_and_exports(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    model, out = tmp_path / "model.pt", tmp_path / "model.onnx"
    torch.jit.script(Residual().eval()).save(str(model))
    torch.save(torch.cat(data(2, 8, 8, 8)), tmp_path / "calib.pt")
    config = tmp_path / "layers.yaml"
    config.write_text("version: 1\nrules:\n- {module: two, keep_float: true}\n")
    given = ("--data", tmp_path / "calib.pt", "--config", config, "-o", out)
    done = run("export", model, "--to", "onnx", "--engine", "onnxruntime", *given, "--json")
    assert done.code == 0 and done.json["output"] == str(out)
    floats = [row["name"] for row in done.json["operators"] if row["dtype"] == "float"]
    assert floats == ["two:conv2d"]
    kinds = [node.op_type for node in onnx.load(out).graph.node]
    assert kinds.count("QuantizeLinear") > 4
    for words, *arguments in (
        ("--engine: 'x86' reads no files", "--engine", "x86"),
        ("--engine none: there is none of that name: there are 'inductor',", "--engine", "none"),
        (
            "--engine openvin: there is none of that name: did you mean 'openvino'?\n",
            "--engine",
            "openvin",
        ),
        ("is an opset, 21 for example, not 'old'", "--version", "old"),
        ("give --engine too", "--mode", "static"),
    ):
        done = run("export", model, "--to", "onnx", *given[:2], *arguments, "-o", tmp_path / "no")
        assert done.code == 2 and words in done.err and not (tmp_path / "no").exists()
        assert "none" not in arguments or "'stock'" not in done.err  # which writes no files
