"""Files for other engines: what is read back means the same numbers."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import Encoding, Encodings, JitPassesError, JitPassesWarning
from jit_passes.export import (
    FORMATS,
    Layer,
    aimet,
    from_aimet,
    from_nni,
    from_tensorrt,
    load_aimet,
    load_nni,
    save_nni,
    to_aimet,
    to_nni,
    to_tensorrt,
)
from tests.advice import traced_branches
from tests.folders import ROOT

GOLDEN = struct.unpack(">f", bytes.fromhex("3c010a14"))[0]  # 0.0078759...

INT8 = Encoding("x", "activation", 8, -128, 127, True, (GOLDEN,), (0,))
NARROW = Encoding("conv.weight", "parameter", 8, -127, 127, True, (0.03125,), (0,))
CHANNELS = Encoding("conv.weight", "parameter", 8, -127, 127, True, (0.5, 0.1, 3.0), (0, 0, 0), 0)
COLUMNS = Encoding("up.weight", "parameter", 4, -8, 7, True, (0.5, 0.25), (0, 0), 1)
UINT8 = Encoding("relu", "activation", 8, 0, 255, False, (0.02,), (0,))
AFFINE = Encoding("add", "activation", 8, 0, 255, False, (0.0173,), (133,))
SIGNED = Encoding("mul", "activation", 8, -128, 127, False, (0.0173,), (-5,))
FOUR = Encoding("sigmoid", "activation", 4, 0, 15, False, (0.1,), (3,))
SIXTEEN = Encoding("mean", "activation", 16, -32768, 32767, True, (1e-3,), (0,))
BIAS = Encoding(
    *("conv.bias", "parameter", 32, -(2**31) + 1, 2**31 - 1, True), (1e-5, 2e-5, 1e-4), (0, 0, 0), 0
)


def in_float32(encoding: Encoding) -> Encoding:
    scales = torch.tensor(encoding.scale, dtype=torch.float32)
    return replace(encoding, scale=tuple(scales.tolist()))


ACTIVATIONS = [in_float32(e) for e in (INT8, UINT8, AFFINE, SIGNED, FOUR, SIXTEEN)]
WEIGHTS = [in_float32(e) for e in (NARROW, CHANNELS, COLUMNS)]
ONE_LAYER = Encodings(
    tuple(map(in_float32, (AFFINE, CHANNELS, BIAS, UINT8))),
    (Layer("conv", "conv2d", *map(in_float32, (AFFINE, CHANNELS, BIAS, UINT8))),),
)
WEIGHT_ONLY = Encodings((NARROW,), (Layer("conv", "conv2d", weight=NARROW),))


def values(encoding: Encoding) -> Tensor:
    """The real numbers of all codes, in order: [channels, codes]."""
    codes = torch.arange(encoding.quant_min, encoding.quant_max + 1, dtype=torch.float32)
    zero_points = torch.tensor(encoding.zero_point, dtype=torch.float32).unsqueeze(1)
    return (codes - zero_points) * torch.tensor(encoding.scale).unsqueeze(1)


def assert_same_numbers(found: Encoding, expected: Encoding) -> None:
    assert torch.equal(values(found), values(expected))
    assert (found.bits, found.ch_axis) == (expected.bits, expected.ch_axis)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.Conv2d(4, 6, 1, bias=False), nn.ReLU())
        self.up = nn.ConvTranspose2d(6, 4, 2)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.block(torch.relu(self.norm(self.conv(x)))))
        return self.fc((x + 1.5 * x).mean((2, 3)))


def reference(target: Any, config: Any = None) -> tuple[torch.jit.ScriptModule, nn.Module]:
    torch.manual_seed(0)
    net = Net().eval()
    prepared = jit_passes.prepare(torch.jit.script(net), target=target, config=config)
    jit_passes.calibrate(prepared, [torch.randn(2, 3, 8, 8) for _ in range(3)])
    return jit_passes.convert(prepared), net


@pytest.mark.parametrize("target", ["reference", "stock"])
def test_reference_model(target: str) -> None:
    """Scales are those of the graph, and the encoding of a weight gives its codes, to the bit."""
    model, net = reference(target)
    encodings = jit_passes.encodings_of(model)
    nodes = jit_passes.GraphView.of(model).nodes
    quantized = [n for n in nodes if n.kind == "jit_passes::quantize"]
    for node in quantized:
        encoding = encodings[node.inputs[0].name]
        scale, zero_point, low, high = (value.constant for value in node.inputs[1:5])
        assert (encoding.scale, encoding.zero_point) == ((scale,), (zero_point,))
        assert (encoding.quant_min, encoding.quant_max) == (low, high)
    assert len(encodings.activations) == len(quantized) > 4

    # Batch norm is folded into the first one; the others' weights are the modules' own.
    checked = 0
    for layer, module in (("block.0", net.block[0]), ("up", net.up), ("fc", net.fc)):
        encoding = encodings[f"{layer}.weight"]
        assert encoding.kind == "parameter" and encoding == encodings.layer(layer).weight
        node = next(n for n in nodes if n.module == layer and n.kind.startswith("aten::"))
        dequantize = node.inputs[1].producer
        codes = dequantize.inputs[0].constant
        shape = [1] * codes.dim()
        if encoding.ch_axis is not None:
            shape[encoding.ch_axis] = -1
        scale = torch.tensor(encoding.scale, dtype=torch.float32).reshape(shape)
        zero_point = torch.tensor(encoding.zero_point).reshape(shape)
        found = (torch.round(module.weight.detach() * (1 / scale)) + zero_point).clamp(
            encoding.quant_min, encoding.quant_max
        )
        assert torch.equal(found, codes.float())
        checked += found.unique().numel() > 10
    assert checked == 3


@pytest.mark.parametrize("bits", [3, 8])
def test_weights_that_are_clipped(bits: int) -> None:
    """Quantizing to the encoding clips what calibration clips."""
    weight = {"bits": bits, "scheme": "symmetric", "range": [-0.2, 0.2], "channelwise": False}
    model, net = reference("reference", {"version": 1, "global": {"weight": weight}})
    encoding = jit_passes.encodings_of(model)["block.0.weight"]
    node = next(n for n in jit_passes.GraphView.of(model).nodes if n.name == "block.0:conv2d")
    codes = node.inputs[1].producer.inputs[0].constant
    scaled = torch.round(net.block[0].weight.detach() * (1 / torch.tensor(encoding.scale[0])))
    found = scaled.clamp(encoding.quant_min, encoding.quant_max)
    assert torch.equal(found, codes.float())
    assert not torch.equal(found, scaled)


class Twice(nn.Module):
    """One value that is quantized in two ways, and one module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 2, 1)
        self.second = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.first(self.second(x))


def test_values_quantized_in_several_ways() -> None:
    torch.manual_seed(0)
    rule = {"module": "second", "input": {"bits": 4}}
    prepared = jit_passes.prepare(
        torch.jit.script(Twice().eval()),
        target="reference",
        config={"version": 1, "rules": [rule]},
    )
    jit_passes.calibrate(prepared, [torch.randn(2, 2, 4, 4)])
    encodings = jit_passes.encodings_of(jit_passes.convert(prepared))
    assert encodings.layer("first").input.bits == 8
    assert encodings.layer("second").input.bits == 4
    names = [encoding.name for encoding in encodings if encoding.name.startswith("x")]
    assert sorted(names) == ["x", "x -> second:conv2d"]
    calls = [layer for layer in encodings.layers if layer.name == "first"]
    assert len(calls) == 2 and calls[0].weight == calls[1].weight
    assert "first.bias#1" in encodings  # in steps of the other input
    with pytest.raises(JitPassesError, match="'first' is called twice"):
        jit_passes.export_calibration(encodings)


def test_layers_of_a_reference_model() -> None:
    model, _ = reference("reference")
    encodings = jit_passes.encodings_of(model)
    assert [(layer.name, layer.kind) for layer in encodings.layers] == [
        ("conv", "conv2d"),
        ("block.0", "conv2d"),
        ("up", "conv_transpose2d"),
        ("fc", "linear"),
    ]
    conv, block = encodings.layer("conv"), encodings.layer("block.0")
    assert conv.input.name == "x" and conv.output.name == "relu"
    assert block.input is conv.output and block.output.name == "block.1:relu"
    assert block.bias is None and conv.bias.bits == 32 and conv.bias.dtype == "int32"
    assert encodings.layer("up").weight.ch_axis == 1


def test_weights_of_four_bits() -> None:
    config = {"version": 1, "global": {"weight": {"bits": 4}}}
    model, _ = reference("reference", config)
    encoding = jit_passes.encodings_of(model)["fc.weight"]
    assert (encoding.bits, encoding.dtype) == (4, "int8")
    assert encoding.quant_max == 7 and encoding.quant_min in (-8, -7)


def asked_for(model: torch.jit.ScriptModule, path: Path) -> None:
    """Exports have the 8 bits of a weight, and of a table's result, few codes of which occur."""
    encodings = jit_passes.encodings_of(model)
    weight, bias = encodings["0.weight"], encodings["0.bias"]
    assert (weight.bits, weight.quant_min, weight.quant_max) == (8, -127, 127)
    assert (bias.bits, bias.quant_min, bias.quant_max) == (32, -(2**31) + 1, 2**31 - 1)
    table = encodings.layer("2").input
    assert (table.bits, table.quant_min, table.quant_max) == (8, 0, 255)
    written = {entry["name"]: entry["bw"] for entry in to_aimet(encodings)["param_encodings"]}
    assert (written["0.weight"], written["0.bias"]) == (8, 32)
    for version in ("2.5", "3.0"):
        assert_same_numbers(from_nni(to_nni(encodings, version)).layer("0").weight, weight)
    assert from_tensorrt(to_tensorrt(encodings))
    encodings.save(path)
    assert Encodings.load(path) == encodings


@pytest.mark.parametrize("trained", [False, True])
def test_codes_that_do_not_occur(trained: bool, tmp_path: Path) -> None:
    """An 8-bit weight whose codes end at 6 has 8 bits, at each stage and from files."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))
    net[0].weight.data = torch.arange(16.0).reshape(4, 4) % 7
    x = 0.01 * torch.randn(8, 4)  # so the sigmoid is about 1/2
    scripted = torch.jit.script(net)
    if trained:
        model = jit_passes.prepare_qat(scripted, target="reference", bits=8)
        model(x)
        model.eval()
        dict(model.named_parameters())["0.weight_scale"].data.fill_(1.0)
    else:
        config = {"version": 1, "global": {"weight": {"range": [-127, 127]}}}
        model = jit_passes.prepare(scripted.eval(), target="reference", config=config)
        jit_passes.calibrate(model, [x])
    converted = jit_passes.convert(model)
    codes = next(
        node.inputs[0].constant
        for node in jit_passes.GraphView.of(converted).nodes
        if "dequantize" in node.kind and isinstance(node.inputs[0].constant, Tensor)
    )
    assert int(codes.max()) == 6 and int(codes.min()) == 0
    for stage in (model, converted, jit_passes.lower(converted)):
        asked_for(stage, tmp_path / "encodings.json")
        stage.save(tmp_path / "model.pt")
        asked_for(torch.jit.load(tmp_path / "model.pt"), tmp_path / "encodings.json")


def test_codes_of_an_older_report() -> None:
    model, _ = reference("reference")
    report = json.loads(model.jit_passes_report)
    del report["codes"]
    model._c.setattr("jit_passes_report", json.dumps(report))
    with pytest.raises(JitPassesError, match="convert the prepared model again"):
        jit_passes.encodings_of(model)


def test_lowered_for_the_reference() -> None:
    """The pass that lowers for it says the same; a table has the scale of what it replaces."""
    model, _ = reference("reference")
    expected = jit_passes.encodings_of(model)
    assert jit_passes.encodings_of(jit_passes.lower(model)) == expected
    tables = jit_passes.encodings_of(_sigmoid("reference"))
    encoding = tables["1:sigmoid"]
    assert (encoding.scale, encoding.zero_point, encoding.kind) == ((1 / 256,), (0,), "activation")
    assert (encoding.quant_min, encoding.quant_max) == (0, 255)
    assert tables.layer("2").input == encoding


def _sigmoid(target: str) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4)).eval()
    data = [torch.randn(8, 4) for _ in range(3)]
    model = jit_passes.quantize_script(torch.jit.script(net), data, target=target, progress=False)
    assert "lookup_table" in str(model.graph)
    return model


def test_reference_model_that_was_saved(tmp_path: Path) -> None:
    model, _ = reference("reference")
    model.save(tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    assert jit_passes.encodings_of(loaded) == jit_passes.encodings_of(model)


def test_json(tmp_path: Path) -> None:
    model, _ = reference("reference")
    for encodings in (jit_passes.encodings_of(model), ONE_LAYER, WEIGHT_ONLY, Encodings()):
        encodings.save(tmp_path / "encodings.json")
        assert Encodings.load(tmp_path / "encodings.json") == encodings


def test_lookups_and_table() -> None:
    assert ONE_LAYER["relu"].dtype == "uint8" and "relu" in ONE_LAYER and "none" not in ONE_LAYER
    assert list(ONE_LAYER) == list(ONE_LAYER.encodings) and len(ONE_LAYER) == 4
    assert ONE_LAYER["relu"].min == (0.0,)
    assert ONE_LAYER["relu"].max == (255 * ONE_LAYER["relu"].scale[0],)
    assert CHANNELS.min == (-63.5, -127 * 0.1, -381.0)
    lines = str(ONE_LAYER).splitlines()
    assert lines[0].split() == ["value", "kind", "bits", "codes", "scale", "zero", "point"]
    assert lines[2].split()[:4] == ["conv.weight", "parameter", "8", "[-127,"]
    with pytest.raises(JitPassesError, match="did you mean 'relu'"):
        ONE_LAYER["relo"]
    with pytest.raises(JitPassesError, match="did you mean 'conv'"):
        ONE_LAYER.layer("convo")


# NNI


@pytest.mark.parametrize("version", ["2.5", "3.0"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda e: e.name)
@pytest.mark.parametrize("weight", WEIGHTS, ids=["narrow", "channels", "columns"])
def test_nni(version: str, activation: Encoding, weight: Encoding, tmp_path: Path) -> None:
    layer = Layer("conv", "conv2d", input=activation, weight=weight)
    encodings = Encodings((activation, weight), (layer,))
    config = save_nni(encodings, tmp_path / "calibration", version)
    assert torch.load(tmp_path / "calibration", weights_only=True).keys() == config.keys()
    read = load_nni(tmp_path / "calibration")
    found = read.layer("conv")
    # These forms keep the codes, not only the numbers.
    assert replace(found.input, name=activation.name) == activation
    assert replace(found.weight, name=weight.name) == weight
    assert found.output is None and read.parameters == (found.weight,)


@pytest.mark.parametrize(
    "activation", [e for e in ACTIVATIONS if e.bits < 16], ids=lambda e: e.name
)
def test_nni_2_0(activation: Encoding) -> None:
    encodings = Encodings((activation,), (Layer("conv", "conv2d", output=activation),))
    assert_same_numbers(from_nni(to_nni(encodings, "2.0"))["conv._output_0"], activation)


def test_nni_literal() -> None:
    step = Encoding("x", "activation", 8, -127, 127, True, (0.5,), (0,))
    weight = Encoding("conv.weight", "parameter", 8, -127, 127, True, (0.25,), (0,))
    output = Encoding("y", "activation", 8, 0, 255, False, (0.5,), (10,))
    encodings = Encodings(
        (step, weight, output), (Layer("conv", "conv2d", step, weight, None, output),)
    )
    assert to_nni(encodings, "2.0") == {
        "conv": {
            "weight_bit": 8,
            "tracked_min_input": -63.5,
            "tracked_max_input": 63.5,
            "activation_bit": 8,
            "tracked_min_activation": -5.0,
            "tracked_max_activation": 122.5,
        }
    }
    assert to_nni(encodings) == {
        "conv": {
            "weight_bits": 8,
            "tracked_min_weight": -31.75,
            "tracked_max_weight": 31.75,
            "tracked_qmin_weight": -127,
            "tracked_qmax_weight": 127,
            "weight_scale": torch.tensor(0.25),
            "weight_zero_point": torch.tensor(0.0),
            "input_bits": 8,
            "tracked_min_input": -63.5,
            "tracked_max_input": 63.5,
            "tracked_qmin_input": -127,
            "tracked_qmax_input": 127,
            "output_bits": 8,
            "tracked_min_output": -5.0,
            "tracked_max_output": 122.5,
            "tracked_qmin_output": 0,
            "tracked_qmax_output": 255,
        }
    }
    assert to_nni(encodings, "3.0")["conv"]["_output_0"] == {
        "scale": torch.tensor(0.5),
        "zero_point": torch.tensor(10.0),
        "quant_dtype": "uint8",
        "quant_scheme": "affine",
        "quant_bits": 8,
        "tracked_max": torch.tensor(122.5),
        "tracked_min": torch.tensor(-5.0),
    }


@pytest.mark.parametrize("version", ["2.0", "2.5", "3.0"])
def test_nni_weight_only(version: str) -> None:
    """NNI's own quantizers make no entry for such a layer, and then look for it."""
    config = to_nni(WEIGHT_ONLY, version)
    assert config["conv"].get("weight_bit", 8) == 8
    found = from_nni(config).layer("conv")
    if version != "2.0":  # which has the bits only
        assert_same_numbers(found.weight, NARROW)
    assert found.input is found.output is None


def test_nni_weight_without_bounds() -> None:
    """As NNI's quantizer for training writes it: zero points of 0 mean symmetric."""
    entry = {
        "weight_bits": 4,
        "weight_scale": torch.tensor([0.5]),
        "weight_zero_point": torch.tensor([0.0]),
    }
    found = from_nni({"conv": entry})["conv.weight"]
    assert (found.scale, found.quant_min, found.quant_max) == ((0.5,), -7, 7)
    entry["weight_zero_point"] = torch.tensor([3])
    found = from_nni({"conv": entry})["conv.weight"]
    assert (found.quant_min, found.quant_max, found.symmetric) == (0, 15, False)


def test_nni_shapes() -> None:
    """A weight's scales broadcast over it."""
    entry = to_nni(ONE_LAYER, "3.0")["conv"]
    assert entry["weight"]["scale"].shape == (3, 1, 1, 1)
    assert entry["bias"]["scale"].shape == (3,)
    found = from_nni({"conv": entry}).layer("conv").bias
    assert (found.quant_min, found.quant_max) == (BIAS.quant_min, BIAS.quant_max)
    up = Encodings((COLUMNS,), (Layer("up", "conv_transpose1d", weight=COLUMNS),))
    assert to_nni(up)["up"]["weight_scale"].shape == (1, 2, 1)


def test_nni_of_a_module_that_is_called_twice() -> None:
    layers = (Layer("conv", "conv2d", AFFINE), Layer("conv", "conv2d", UINT8))
    with pytest.raises(JitPassesError, match="'conv' is called twice"):
        to_nni(Encodings((AFFINE, UINT8), layers))
    assert to_nni(Encodings((AFFINE,), (layers[0], layers[0]))).keys() == {"conv"}


def test_nni_2_0_has_one_number_of_bits() -> None:
    layer = Layer("conv", "conv2d", input=FOUR, weight=NARROW)
    with pytest.raises(JitPassesError, match="a weight of 8 bits and an input of 4"):
        to_nni(Encodings((FOUR, NARROW), (layer,)), "2.0")


# TensorRT


def test_tensorrt_literal() -> None:
    narrow = replace(INT8, name="y", quant_min=-127)
    assert to_tensorrt(Encodings((INT8, narrow, NARROW))) == (
        "TRT-8601-EntropyCalibration2\nx: 3c010a14\ny: 3c010a14\n"
    )
    unit = Encoding("x", "activation", 8, 0, 254, False, (0.5,), (0,))  # 127 / 127
    text = to_tensorrt(Encodings((unit,)), version="8501", names={"x": "input.1"})
    assert text == "TRT-8501-EntropyCalibration2\ninput.1: 3f800000\n"


def test_tensorrt_round_trip() -> None:
    found = from_tensorrt(to_tensorrt(Encodings((INT8, AFFINE, FOUR))))
    assert found["x"] == INT8
    for expected in (AFFINE, FOUR):
        limit = max(abs(expected.min[0]), abs(expected.max[0]))
        # The scale is rounded to float32.
        assert found[expected.name].max[0] == pytest.approx(limit, rel=2**-23)


def test_tensorrt_says_all_of_symmetric_int8() -> None:
    """As docs/exports.md has it."""
    tensor = {"dtype": "int8", "scheme": "symmetric"}
    config = {"version": 1, "global": {"input": tensor, "output": tensor}}
    model, _ = reference("reference", config)
    encodings = jit_passes.encodings_of(model)
    found = from_tensorrt(jit_passes.export_calibration(model, format="tensorrt"))
    assert found.encodings == encodings.activations


def test_tensorrt_refusals() -> None:
    with pytest.raises(JitPassesError, match="'mean' has 16 bits"):
        to_tensorrt(Encodings((SIXTEEN,)))
    channels = replace(CHANNELS, name="y", kind="activation")
    with pytest.raises(JitPassesError, match="a scale for each channel"):
        to_tensorrt(Encodings((channels,)))
    odd = Encodings((replace(INT8, name="a: b"),))
    with pytest.raises(JitPassesError, match="give it another one in names"):
        to_tensorrt(odd)
    assert "c: 3c010a14" in to_tensorrt(odd, names={"a: b": "c"})
    with pytest.raises(JitPassesError, match="would both be called 'relu'"):
        to_tensorrt(Encodings((INT8, UINT8)), names={"x": "relu"})
    with pytest.raises(JitPassesError, match="did you mean 'relu'"):
        to_tensorrt(Encodings((UINT8,)), names={"rleu": "y"})
    for version in ("8.6\n", "abc"):
        with pytest.raises(JitPassesError, match="version is like"):
            to_tensorrt(Encodings((UINT8,)), version=version)
    with pytest.raises(JitPassesError, match="would be empty: quantize it in the mode static"):
        to_tensorrt(Encodings())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1"),
        ("x: 3c010a14", "line 1"),
        ("TRT-8601-EntropyCalibration2\nx 3c010a14", "line 2: '<tensor>: <8 hex digits>'"),
        ("TRT-8601-EntropyCalibration2\nx: 3c010a14\nx: 3c010a14", "line 3: 'x' is there twice"),
        ("TRT-8601-EntropyCalibration2\nx: 7f800000", "finite and above 0"),
    ],
)
def test_tensorrt_files_that_are_none(text: str, message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        from_tensorrt(text)


# AIMET


@pytest.mark.parametrize("encoding", [*ACTIVATIONS, *WEIGHTS], ids=str)
def test_aimet(encoding: Encoding, tmp_path: Path) -> None:
    """Equal numbers; a grid without its smallest code becomes the full one."""
    encodings = Encodings((encoding,))
    path = tmp_path / "model.encodings"
    jit_passes.export_calibration(encodings, path, "aimet")
    found = load_aimet(path, axes={"up.weight": 1})[encoding.name]
    full = replace(encoding, quant_min=-128) if encoding.quant_min == -127 else encoding
    assert_same_numbers(found, full)
    assert (found.kind, found.symmetric) == (encoding.kind, encoding.symmetric)


def test_aimet_literal() -> None:
    data = to_aimet(
        Encodings((INT8, AFFINE, CHANNELS)), {"add": "/add/Add"}, {"quant_scheme": "min_max"}
    )
    assert data == {
        "version": "1.0.0",
        "activation_encodings": [
            {
                "name": "x",
                "dtype": "INT",
                "enc_type": "PER_TENSOR",
                "bw": 8,
                "is_sym": True,
                "scale": [GOLDEN],
                "offset": [-128],
            },
            {
                "name": "/add/Add",
                "dtype": "INT",
                "enc_type": "PER_TENSOR",
                "bw": 8,
                "is_sym": False,
                "scale": [0.0173],
                "offset": [-133],
            },
        ],
        "param_encodings": [
            {
                "name": "conv.weight",
                "dtype": "INT",
                "enc_type": "PER_CHANNEL",
                "bw": 8,
                "is_sym": True,
                "scale": [0.5, 0.1, 3.0],
                "offset": [-128, -128, -128],
            }
        ],
        "quantizer_args": {"quant_scheme": "min_max"},
    }
    assert_fits(data, AIMET_SCHEMA)
    assert_fits(json.loads(aimet.text_of(data)), AIMET_SCHEMA)


AIMET_ENTRY = {
    "type": "object",
    "required": ["name", "dtype", "enc_type", "bw", "is_sym", "scale", "offset"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "dtype": {"const": "INT"},
        "enc_type": {"enum": ["PER_TENSOR", "PER_CHANNEL"]},
        "bw": {"type": "integer", "minimum": 2, "maximum": 32},
        "is_sym": {"type": "boolean"},
        "scale": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "number", "exclusiveMinimum": 0},
        },
        "offset": {"type": "array", "minItems": 1, "items": {"type": "integer", "maximum": 0}},
    },
}
# The contents of AIMET 1.0.0 files, as JSON schema.
AIMET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["version", "activation_encodings", "param_encodings"],
    "properties": {
        "version": {"const": aimet.VERSION},
        "activation_encodings": {"type": "array", "items": AIMET_ENTRY},
        "param_encodings": {"type": "array", "items": AIMET_ENTRY},
        "quantizer_args": {"type": "object"},
    },
}


def assert_fits(data: Any, schema: dict[str, Any]) -> None:
    """The few words of JSON schema that `AIMET_SCHEMA` uses."""
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    types["number"] = (int, float)
    known = {"type", "required", "properties", "items", "const", "enum", "minLength", "minItems"}
    assert schema.keys() <= known | {"minimum", "maximum", "exclusiveMinimum"}
    if "type" in schema:
        assert isinstance(data, types[schema["type"]])
    assert data == schema.get("const", data)
    assert data in schema.get("enum", [data])
    if isinstance(data, int | float):
        assert schema.get("minimum", data) <= data <= schema.get("maximum", data)
        assert data > schema.get("exclusiveMinimum", data - 1)
    if isinstance(data, str | list):
        assert len(data) >= max(schema.get("minLength", 0), schema.get("minItems", 0))
    if isinstance(data, dict):
        assert set(schema.get("required", [])) <= data.keys()
        assert data.keys() <= schema.get("properties", data).keys()
        for key, value in data.items():
            assert_fits(value, schema.get("properties", {}).get(key, {}))
    for item in data if isinstance(data, list) else []:
        assert_fits(item, schema.get("items", {}))


# All of them


def test_export_of_a_reference_model(tmp_path: Path) -> None:
    model, _ = reference("reference")
    encodings = jit_passes.encodings_of(model)
    with pytest.warns(JitPassesWarning, match=r"leaves 1 of 7 activations \('add'\) in float"):
        config = jit_passes.export_calibration(model, tmp_path / "nni", version="3.0")
    for layer in encodings.layers:
        read = load_nni(tmp_path / "nni").layer(layer.name)
        assert_same_numbers(read.input, layer.input)
        assert_same_numbers(read.weight, layer.weight)
        assert_same_numbers(read.output, layer.output)
    assert config.keys() == {layer.name for layer in encodings.layers}

    with pytest.warns(JitPassesWarning, match=r"many codes for 7 of 7 activations \('x', 'relu', "):
        text = jit_passes.export_calibration(model, tmp_path / "cache", "tensorrt", version="8502")
    assert (tmp_path / "cache").read_text() == text
    assert len(from_tensorrt(text)) == len(encodings.activations)

    data = jit_passes.export_calibration(encodings, tmp_path / "aimet", "aimet")
    assert json.loads((tmp_path / "aimet").read_text()) == data
    assert_fits(data, AIMET_SCHEMA)
    for found in from_aimet(data).activations:
        assert_same_numbers(found, encodings[found.name])


def told(encodings: Encodings, format: str, **options: Any) -> list[str]:
    """The warnings of an export, up to the advice."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", JitPassesWarning)
        jit_passes.export_calibration(encodings, format=format, **options)
    return [str(warning.message).partition(";")[0] for warning in seen]


FEW = Encoding("few", "activation", 8, -127, 127, True, (0.1,), (0,))
SEVEN = Encoding("seven", "activation", 7, 0, 127, False, (0.1,), (3,))
COLUMN = Encoding("input", "activation", 8, -128, 127, True, (0.5, 0.25), (0, 0), 1)


def test_what_a_form_cannot_say() -> None:
    """Engines that would compute otherwise are told of, with the number of values; no others."""
    symmetric = Encodings((INT8, NARROW), (Layer("conv", "conv2d", INT8, NARROW),))
    assert [told(symmetric, form) for form in FORMATS] == [[], [], []]
    assert told(Encodings((INT8, UINT8, AFFINE, FOUR)), "tensorrt") == [
        "a calibration cache has neither zero points nor unsigned codes: TensorRT has up to half "
        "as many codes for 3 of 4 activations ('relu', 'add', 'sigmoid')",
        "TensorRT has 8 bits, and fewer were asked for 1 of 4 activations ('sigmoid')",
    ]
    layer = Layer("up", "conv_transpose1d", INT8, COLUMNS)
    assert told(Encodings((INT8, COLUMNS), (layer,)), "tensorrt") == [
        "TensorRT gives weights 8 bits, and others were asked for 1 of 1 parameter ('up.weight')"
    ]
    assert told(Encodings((INT8, FEW, SEVEN, COLUMNS)), "aimet") == [
        "AIMET's form has all codes that the bits allow: the engine clips 1 of 3 activations "
        "('few') later than this model",
        "converters take 4, 8, 16 and 32 bits, not 7 for 1 of 3 activations ('seven')",
    ]
    for version in ("2.0", "2.5", "3.0"):
        assert told(
            Encodings((AFFINE, *WEIGHT_ONLY), WEIGHT_ONLY.layers), "nni", version=version
        ) == [
            "NNI's form has operands and results of layers alone: NNI leaves 1 of 1 activation "
            "('add') in float",
            "NNI's own quantizers fail for layers with a quantized weight and no scale for the "
            "input, 'conv': quantize both, or none",
        ]
    columns = Encodings((COLUMN,), (Layer("conv", "conv1d", COLUMN),))
    assert to_nni(columns)["conv"]["tracked_max_input"].shape == (1, 2, 1)
    with pytest.raises(JitPassesError, match=r"'input' has a scale for each channel.*write 2\.5"):
        to_nni(columns, "2.0")


def test_scales_that_are_chosen_as_the_model_runs() -> None:
    """No form has them; that is said where the model is known."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    config = {"version": 1, "rules": [{"module": "2", "mode": "dynamic"}]}
    data = [torch.randn(8, 4)]
    model = jit_passes.quantize_script(
        torch.jit.script(net), data, target="reference", mode="static", config=config
    )
    match = r"as the model runs: the engine has 1 operator \('2:linear'\) in float"
    with pytest.warns(JitPassesWarning, match=match):
        jit_passes.export_calibration(model, format="aimet")


def test_errors_of_export() -> None:
    with pytest.raises(JitPassesError, match="no format 'onnx': formats are 'nni', 'tensorrt'"):
        jit_passes.export_calibration(ONE_LAYER, format="onnx")
    with pytest.raises(JitPassesError, match="did you mean 'version'"):
        jit_passes.export_calibration(ONE_LAYER, versoin="2.0")
    with pytest.raises(JitPassesError, match=r"no form '1\.0'"):
        jit_passes.export_calibration(ONE_LAYER, version="1.0")
    with pytest.raises(JitPassesError, match="got one that was not quantized"):
        jit_passes.export_calibration(torch.jit.script(Net().eval()))
    model, _ = reference("stock")
    with pytest.raises(JitPassesError, match="got a lowered one"):
        jit_passes.encodings_of(jit_passes.lower(model))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "weight"}, "kind is one of"),
        ({"name": ""}, "name is empty"),
        ({"bits": 1}, "from 2 to 32"),
        ({"bits": 4}, "does not fit 4 bits"),
        ({"quant_max": -128}, "not below"),
        ({"scale": (0.0,)}, "finite and above 0"),
        ({"scale": (1.0, 2.0)}, "2 scales and 1 zero points"),
        ({"scale": (1.0, 2.0), "zero_point": (0, 0)}, "ch_axis = None"),
        ({"zero_point": (200,)}, "not within"),
        ({"zero_point": (1,)}, "said to be symmetric"),
    ],
)
def test_encodings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(INT8, **changes)


def test_collections_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="two encodings are called 'x'"):
        Encodings((INT8, replace(UINT8, name="x")))
    with pytest.raises(ValueError, match="not among the encodings"):
        Encodings((), (Layer("conv", "conv2d", INT8),))


def change(key: str, value: Any) -> Callable[[Any], Any]:
    def apply(data: Any) -> Any:
        data["encodings"][1][key] = value
        return data

    return apply


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change("scale", "big"), r"encodings\[1\].scale: scale is a list"),
        (change("scale", ["big"]), r"encodings\[1\].scale\[0\]: a scale is a finite number"),
        (change("scale", [-1.0]), r"encodings\[1\]: 1 scales and 3 zero points"),
        (change("bits", 8.5), r"encodings\[1\].bits: bits is a whole number, not 8.5"),
        (change("dtype", 1), r"encodings\[1\].dtype: an encoding has no key 'dtype'"),
        (lambda data: {**data, "form": 2}, "form: the form is 2"),
        (lambda data: {"form": 1}, "the key 'encodings' is missing"),
        (lambda data: {**data, "layers": [{"name": "a"}]}, r"layers\[0\]: the key 'kind'"),
        (
            lambda data: {**data, "layers": [{"name": "a", "kind": "", "input": "relo"}]},
            r"layers\[0\].input: there is no 'relo': did you mean 'relu'",
        ),
        (lambda data: [], "is a mapping"),
    ],
)
def test_json_that_is_none(edit: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "encodings.json"
    ONE_LAYER.save(path)
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.raises(JitPassesError, match=rf"encodings\.json.*{message}"):
        Encodings.load(path)
    path.write_text("{")
    with pytest.raises(JitPassesError, match="this is not JSON"):
        Encodings.load(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"conv": 3}, "calibration.conv: an entry is a mapping"),
        ({"conv": {"input_bits": 8}}, "the key 'tracked_min_input' is missing"),
        ({"conv": {"_input_0": {"scale": 1.0}}}, "the key 'zero_point' is missing"),
        ({"conv": {"weight": {}, "wait": {}}}, "no key 'wait': "),
        (
            {"conv": {"input_bits": 8, "tracked_min_input": 1.0, "tracked_max_input": 1.0}},
            "which is empty",
        ),
        (
            {"conv": {"input_bits": "8", "tracked_min_input": 1.0, "tracked_max_input": 2.0}},
            "conv.input_bits: a number or a tensor is expected",
        ),
        ({"conv": {"weight_bits": 64, "weight_scale": 1.0}}, "bits are from 2 to 32"),
        ({"conv": {"weight_bits": 8.5, "weight_scale": 1.0}}, "a whole number is expected"),
        (
            {"conv": {"weight_bits": 8, "weight_scale": math.nan, "weight_zero_point": 0}},
            "finite numbers",
        ),
        (
            {"conv": {"weight_bits": 8, "weight_scale": torch.ones(2, 2), "weight_zero_point": 0}},
            r"numbers along one axis are expected, not a tensor of shape \[2, 2\]",
        ),
        (
            {"conv": {"weight_bits": 8, "weight_scale": torch.ones(2), "weight_zero_point": 0}},
            "weight: 2 scales and 1 zero points",
        ),
        (
            {"conv": {"weight": {**to_nni(WEIGHT_ONLY, "3.0")["conv"]["weight"], "scale": 0}}},
            "above 0",
        ),
    ],
)
def test_nni_files_that_are_none(config: Any, message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        from_nni(config)


def test_nni_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "calibration").write_text("{}")
    with pytest.raises(JitPassesError, match=r"no file of torch\.save"):
        load_nni(tmp_path / "calibration")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "FLOAT"}, "only INT is read"),
        ({"enc_type": "PER_BLOCK"}, "PER_TENSOR or PER_CHANNEL"),
        ({"offset": [1]}, "not within"),
        ({"offset": [-5], "is_sym": True}, "its offset is not"),
        ({"bw": 64}, "from 2 to 32"),
    ],
)
def test_aimet_files_that_are_none(changes: dict[str, Any], message: str) -> None:
    data = to_aimet(Encodings((UINT8,)))
    data["activation_encodings"][0].update(changes)
    with pytest.raises(JitPassesError, match=message):
        from_aimet(data)
    with pytest.raises(JitPassesError, match=r"version: the form 1\.0\.0 is expected"):
        from_aimet({**data, "version": "0.6.1"})


class Cell(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Nested(nn.Module):
    """Functions in modules, which become tables, values of a loop, and one with two grids."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = Cell(3, 4), Cell(4, 4)
        self.step = nn.Conv2d(4, 4, 1)
        self.mix = nn.Conv2d(4, 4, 3)
        self.few = nn.Conv2d(4, 4, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = self.body(self.stem(image))
        for _ in range(int(image.size(1))):
            x = torch.relu(self.step(x)) + x
        x = torch.sigmoid(x)
        return self.mix(x) + self.few(x)


NESTED = {"version": 1, "rules": [{"module": "few", "input": {"bits": 4}}]}


@traced_branches
@pytest.mark.parametrize("trace", [False, True], ids=["script", "trace"])
def test_one_name_for_a_value(trace: bool, tmp_path: Path) -> None:
    """At all stages, from files, lowered, in all reports, and where the user gives names."""
    torch.manual_seed(0)
    data = [torch.randn(2, 3, 10, 10) for _ in range(3)]
    scripted = (
        torch.jit.trace(Nested().eval(), data[0]) if trace else torch.jit.script(Nested().eval())
    )

    def loaded(model: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
        torch.jit.save(model, tmp_path / "model.pt")
        return torch.jit.load(tmp_path / "model.pt")

    expected = None
    for model in (scripted, loaded(scripted)):
        options = {"target": "reference", "config": NESTED}
        prepared = jit_passes.prepare(model, **options)
        jit_passes.calibrate(prepared, data, progress=False)
        reference = jit_passes.convert(prepared)
        lowered = jit_passes.quantize_script(model, data, **options, progress=False)
        assert "lookup_table" in str(lowered.inlined_graph)
        stages = [prepared, reference, jit_passes.convert(loaded(prepared)), lowered]
        stages += [loaded(stage) for stage in stages]
        for found in map(jit_passes.encodings_of, stages):
            expected = found if expected is None else expected
            assert found == expected
        names = [e.name for e in expected.activations]
        assert {"image", "stem.act:silu", "sigmoid", "sigmoid -> few:conv2d"} <= set(names)
        assert ("Loop.block0.1" in names) is not trace
        for stage in (reference, lowered, loaded(lowered)):
            compared = jit_passes.compare(model, stage, data, progress=False)
            rows = [row.name for row in compared.rows if row.kind == "quantized"]
            assert sorted({*rows, *compared.unmatched}) == sorted(names)
        profiled = jit_passes.profile(model, data, progress=False, target="reference").values
        assert {name.partition(" -> ")[0] for name in names} <= profiled.keys()
        inspected = {row.name for row in jit_passes.inspect(model, **options)}
        assert {"stem.act:silu", "sigmoid"} <= inspected
        renamed = jit_passes.export_calibration(
            lowered, format="aimet", names={"stem.act:silu": "onnx_1", "sigmoid": "onnx_2"}
        )
        written = [entry["name"] for entry in renamed["activation_encodings"]]
        assert {"onnx_1", "onnx_2", "sigmoid -> few:conv2d"} <= set(written)
        qat = jit_passes.prepare_qat(model, **options).train()
        qat(data[0])
        converted = jit_passes.convert(qat.eval())
        for stage in (converted, loaded(jit_passes.lower(converted))):
            compared = jit_passes.parity(qat, stage, data)
            rows = [row.name for row in compared.rows if row.kind == "activation"]
            skipped = [name for name in compared.unmatched if "weight" not in name]
            assert sorted({*rows, *skipped}) == sorted(names)


def test_the_package_imports_without_sympy() -> None:
    """Exporters import it when they write: with it, importing the package takes twice as long."""
    code = "import sys, jit_passes; sys.exit('sympy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
