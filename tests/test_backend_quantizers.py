"""Quantizers of backends, told layer by layer what to do otherwise."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import jit_passes
from jit_passes import _C, JitPassesError, JitPassesWarning
from jit_passes.graph.view import GraphView, NodeView
from jit_passes.observers import KLJ, Histogram, MinMax, Observer, ObserverState
from jit_passes.passes.subject import wrap
from jit_passes.quantizer import (
    Annotations,
    BackendQuantizer,
    Configuration,
    DerivedQuantizationSpec,
    LayerOptions,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    Rule,
    Selector,
    TensorOptions,
    bias_qparams,
    choose_qparams,
    from_nni,
)
from jit_passes.stages.module import REPORT, Report
from jit_passes.stages.normalize import normalize
from jit_passes.targets import PowerOfTwoQuantizer, QnnpackQuantizer, Reference, X86Quantizer
from jit_passes.testing.check import random_modules

ENGINES = torch.backends.quantized.supported_engines
CODES = (torch.uint8, torch.int8, torch.int16, torch.int32)
FLOAT = TensorOptions(dtype="float")
Row = tuple[float, int, int, int, torch.dtype]


def images(*shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*(shape or (2, 3, 8, 8)), generator=generator) for _ in range(4)]


def seeded(model: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model().eval()


def reference_of(
    model: nn.Module, quantizer: Quantizer, data: list[Tensor], **options: Any
) -> torch.jit.ScriptModule:
    prepared = jit_passes.prepare(torch.jit.script(model), quantizer=quantizer, **options)
    return jit_passes.convert(jit_passes.calibrate(prepared, data))


def results(module: torch.jit.ScriptModule) -> dict[str, list[Row]]:
    """Scale, zero point, range and dtype of each quantize, by the float value it goes back to."""
    found: dict[str, list[Row]] = {}
    for node in GraphView.of(module).nodes:
        if node.kind == "jit_passes::quantize":
            value, *grid = node.inputs
            while value.producer and value.producer.kind == "jit_passes::dequantize":
                quantize = value.producer.inputs[0].producer
                assert quantize is not None
                value = quantize.inputs[0]
            scale, zero_point, low, high, code = (operand.constant for operand in grid)
            found.setdefault(value.name, []).append((scale, zero_point, low, high, CODES[code]))
    return found


def weights(module: torch.jit.ScriptModule) -> dict[str, tuple[Tensor, Any]]:
    """Codes and scale of the weights and biases that are stored as integers."""
    found = {}
    for node in GraphView.of(module).nodes:
        for place, value in zip(("weight", "bias"), node.inputs[1:3], strict=False):
            maker = value.producer
            if maker and maker.kind.startswith("jit_passes::dequantize"):
                codes, scale = maker.inputs[0].constant, maker.inputs[1].constant
                if isinstance(codes, Tensor):
                    found[f"{node.module}.{place}"] = codes, scale
    return found


def reload(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return torch.jit.load(io.BytesIO(buffer.getvalue()))


def is_power_of_two(scale: float) -> bool:
    return math.frexp(scale)[0] == 0.5


class Everything(nn.Module):
    """Residual addition, cat, maximum, pools, sigmoid and tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, padding=1)
        self.d = nn.Conv2d(3, 4, 3, padding=1)
        self.e = nn.Conv2d(8, 4, 1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.c(x).relu(), self.d(x)
        total = a + b
        z = self.e(torch.cat([torch.maximum(total, b), a], 1)).tanh()
        z = torch.nn.functional.avg_pool2d(self.pool(z), 2)
        return self.fc(z.mean([2, 3])).sigmoid()


# ---------------------------------------------------------------------------- the three of them


@pytest.mark.parametrize("bits", [4, 8, 12])
def test_every_scale_is_a_power_of_two(bits: int) -> None:
    """In the saved files too, of activations, weights and biases; all zero points are 0."""
    model, x = seeded(Everything), images()[0]
    found = reload(reference_of(model, PowerOfTwoQuantizer(bits), images()))
    seen = 0
    for module in (found, reload(jit_passes.lower(found))):
        for node in GraphView.of(module).nodes:
            if node.kind in ("jit_passes::quantize", "jit_passes::dequantize"):
                scale, zero_point = node.inputs[1].constant, node.inputs[2].constant
                assert is_power_of_two(scale)
                assert zero_point == 0
                seen += 1
        assert torch.equal(module(x), found(x))
    assert seen > 40
    ranges = {row[2:4] for rows in results(found).values() for row in rows}
    assert ranges == {(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)}
    assert (found(x) - model(x)).abs().max() < (0.2 if bits == 4 else 0.01)


def test_what_is_joined_has_one_scale() -> None:
    """Operands of add, maximum and cat, and the results of the last two; pools keep theirs."""
    rows = results(reference_of(seeded(Everything), PowerOfTwoQuantizer(), images()))
    joined = {rows[name][0][0] for name in ("relu", "d:conv2d", "add", "maximum", "cat")}
    pooled = {rows[name][0][0] for name in ("tanh", "pool:max_pool2d", "avg_pool2d", "mean")}
    assert len(joined) == len(pooled) == 1
    assert pooled != joined


def check_lowered(model: nn.Module, found: torch.jit.ScriptModule) -> None:
    """The lowered file holds PyTorch's own operators on quint8, and computes the same."""
    lowered = reload(jit_passes.lower(found))
    nodes = GraphView.of(lowered).nodes
    assert not any(node.kind.startswith("jit_passes::") for node in nodes)
    quantized = [node for node in nodes if node.kind == "aten::quantize_per_tensor"]
    assert {node.inputs[3].constant for node in quantized} == {13}  # quint8
    for x in images():
        assert (lowered(x) - found(x)).abs().max() < 0.005
        assert (lowered(x) - model(x)).abs().max() < 0.02


@pytest.mark.skipif("x86" not in ENGINES, reason="this build of PyTorch has no engine x86")
def test_x86() -> None:
    """uint8 without a fixed zero point; weights of int8 with a scale for each channel."""
    model, quantizer = seeded(Everything), X86Quantizer()
    found = reference_of(model, quantizer, images())
    rows = [row for rows in results(found).values() for row in rows]
    assert {row[2:] for row in rows} == {
        (0, 127 if quantizer.target.reduce_range else 255, torch.uint8)
    }
    assert any(row[1] not in (0, 128) for row in rows)
    stored = weights(found)
    for name in ("c", "d", "e", "fc"):
        codes, scale = stored[f"{name}.weight"]
        assert codes.dtype == torch.int8
        assert scale.shape == (len(codes),)
    check_lowered(model, found)


@pytest.mark.skipif("qnnpack" not in ENGINES, reason="this build of PyTorch has no engine qnnpack")
def test_qnnpack(monkeypatch: pytest.MonkeyPatch) -> None:
    """uint8 with zero point 128, and one scale for each tensor."""
    model = seeded(Everything)
    found = reference_of(model, QnnpackQuantizer(), images())
    rows = [row for rows in results(found).values() for row in rows]
    assert {row[1:] for row in rows} == {(128, 0, 255, torch.uint8)}
    for name, (codes, scale) in weights(found).items():
        assert isinstance(scale, float)
        if name.endswith("weight"):
            assert codes.dtype == torch.int8
            assert codes.min() >= -127
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")
    check_lowered(model, found)


def test_uint8_stays_uint8() -> None:
    """Unsigned weights are stored unsigned."""
    unsigned = LayerOptions(weight=TensorOptions(dtype="uint8", scheme="affine"))
    quantizer = Reference().quantizer().set_global(unsigned)
    found = reload(reference_of(seeded(Everything), quantizer, images(), target="reference"))
    stored = [
        node.inputs[0].constant
        for node in GraphView.of(found).nodes
        if node.kind == "jit_passes::dequantize_per_channel"
    ]
    codes = [tensor for tensor in stored if tensor.dtype != torch.int32]  # biases
    assert len(codes) == 4
    assert all(code.dtype == torch.uint8 and code.max() > 127 for code in codes)


# ---------------------------------------------------------------------------- integers


class Adds(nn.Module):
    """Convolutions, a relu, and an addition."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3)
        self.d = nn.Conv2d(3, 4, 3)
        self.e = nn.Conv2d(4, 5, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.e(self.c(x).relu() + self.d(x))


def exponent_of(values: Tensor, bits: int) -> int:
    """The smallest power of two with which nothing is clipped."""
    high = float(values.detach().max()) / (2 ** (bits - 1) - 1)
    low = float(values.detach().min()) / -(2 ** (bits - 1))
    return math.ceil(math.log2(max(high, low)))


def saturate(codes: Any, bits: int) -> Any:
    return np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype(np.int64)


def to_codes(values: Tensor, exponent: int, bits: int) -> Any:
    return saturate(np.round(values.detach().double().numpy() / 2.0**exponent), bits)


def shift(codes: Any, by: int, bits: int) -> Any:
    """Divide integers by 2**by, halves to even, and saturate."""
    if by <= 0:
        return saturate(codes << -by, bits)
    floor, rest, half = codes >> by, codes & ((1 << by) - 1), 1 << (by - 1)
    return saturate(floor + ((rest > half) | ((rest == half) & (floor & 1 == 1))), bits)


def integer_conv(x: Any, weight: Any, bias: Any, stride: int) -> Any:
    rows, columns = ((size - 3) // stride + 1 for size in x.shape[2:])
    out = np.zeros((len(x), len(weight), rows, columns), dtype=np.int64)
    for i in range(rows):
        for j in range(columns):
            patch = x[:, :, i * stride : i * stride + 3, j * stride : j * stride + 3]
            out[:, :, i, j] = np.einsum("bcij,ocij->bo", patch, weight) + bias
    return out


@pytest.mark.parametrize("bits", [4, 8])
def test_integer_arithmetic(bits: int) -> None:
    """The reference computes, code by code, what integers and shifts do."""
    model, data = seeded(Adds), images(2, 3, 9, 9)
    measured = TensorOptions(calibration=MinMax())
    quantizer = PowerOfTwoQuantizer(bits, bits)
    quantizer.set_global(LayerOptions(input=measured, output=measured))
    found = reference_of(model, quantizer, data)
    lowered = jit_passes.lower(found)

    with torch.no_grad():
        x = torch.cat(data)
        c, d = model.c(x).relu(), model.d(x)
        seen = {"x": x, "operands": torch.cat([c, d]), "sum": c + d, "last": model.e(c + d)}
    at = {name: exponent_of(values, bits) for name, values in seen.items()}
    layers, stored = {}, weights(found)
    for name, source in (("c", "x"), ("d", "x"), ("e", "sum")):
        layer = getattr(model, name)
        exponent = exponent_of(layer.weight, bits)
        weight, sums = to_codes(layer.weight, exponent, bits), exponent + at[source]
        bias = np.round(layer.bias.detach().double().numpy() / 2.0**sums).astype(np.int64)
        layers[name] = weight, bias, sums
        for place, codes, scale in (("weight", weight, exponent), ("bias", bias, sums)):
            assert np.array_equal(stored[f"{name}.{place}"][0].numpy(), codes)
            assert stored[f"{name}.{place}"][1] == 2.0**scale

    for batch in data:
        joined = []
        for name in ("c", "d"):
            weight, bias, exponent = layers[name]
            sums = integer_conv(to_codes(batch, at["x"], bits), weight, bias, 1)
            sums = np.maximum(sums, 0) if name == "c" else sums
            joined.append(shift(sums, at["operands"] - exponent, bits))
        total = shift(joined[0] + joined[1], at["sum"] - at["operands"], bits)
        weight, bias, exponent = layers["e"]
        expected = shift(integer_conv(total, weight, bias, 2), at["last"] - exponent, bits)
        for module in (found, lowered):
            codes = module(batch).detach().double().numpy() / 2.0 ** at["last"]
            assert np.array_equal(codes, expected)


# ---------------------------------------------------------------------------- layer by layer


class Layers(nn.Module):
    """Convolutions of one type, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.twice = nn.Conv2d(4, 4, 1)
        self.last = nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.last(self.twice(self.twice(self.first(x)))))


def bits_of(quantizer: BackendQuantizer) -> dict[str, int]:
    """Bits of the weight of each operator that is quantized."""
    script = torch.jit.script(seeded(Layers))
    annotations = quantizer.annotate(GraphView.of(normalize(script._c, "forward").module))
    found = {}
    for node in annotations:
        spec = annotations[node].input_qspec_map[node.inputs[1]]
        assert isinstance(spec, QuantizationSpec)
        found[node.name] = (spec.quant_max - spec.quant_min).bit_length()
    return found


def weight(bits: int) -> LayerOptions:
    return LayerOptions(weight=TensorOptions(bits=bits))


FIRST, LAST, FC = "first:conv2d", "last:conv2d", "fc:linear"
TWICE = ("twice:conv2d", "twice:conv2d#1")
ALL = dict.fromkeys((FIRST, *TWICE, LAST, FC), 8)
FOURS = dict.fromkeys(ALL, 4)
ONE_USE = Configuration(rules=(Rule(Selector(value=TWICE[1]), weight(4)),))


def without(*names: str) -> dict[str, int]:
    return {name: bits for name, bits in ALL.items() if name not in names}


Say = Callable[[BackendQuantizer], BackendQuantizer]
RULES: list[tuple[Say, dict[str, int]]] = [
    (lambda q: q, ALL),
    (lambda q: q.set_global(weight(4)), FOURS),
    (lambda q: q.set_global(weight(5)).set_global(weight(4)), FOURS),
    (lambda q: q.set_module_name("first", weight(4)), ALL | {FIRST: 4}),
    (lambda q: q.set_module_type("Conv2d", weight(4)), FOURS | {FC: 8}),
    (
        lambda q: q.set_module_type("Conv2d", weight(4)).set_module_name("last", weight(3)),
        FOURS | {FC: 8, LAST: 3},
    ),
    (
        lambda q: q.set_module_name("last", weight(3)).set_module_type("Conv2d", weight(4)),
        FOURS | {FC: 8},
    ),
    (lambda q: q.set_module_name("last", weight(3)).set_global(weight(4)), FOURS | {LAST: 3}),
    (lambda q: q.set_module_name("twice", weight(4)), ALL | dict.fromkeys(TWICE, 4)),
    (lambda q: q.configure(ONE_USE), ALL | {TWICE[1]: 4}),
    (lambda q: q.set_op("linear", weight(4)), ALL | {FC: 4}),
    (lambda q: q.set_module_name("last", None), without(LAST)),
    (lambda q: q.set_module_type("Conv2d", None), {FC: 8}),
    (lambda q: q.set_op("linear", None), without(FC)),
    (lambda q: q.skip(value=TWICE[0]), without(TWICE[0])),
    (lambda q: q.skip(module="t*", op="conv2d"), without(*TWICE)),
    (lambda q: q.skip(op="*").set_module_name("fc", LayerOptions(keep_float=False)), {FC: 8}),
    (lambda q: q.set_module_name("fc", weight(4)).set_module_name("fc", None), without(FC)),
]


@pytest.mark.parametrize("number", range(len(RULES)))
def test_rules(number: int) -> None:
    """What is said last holds, one layer before all; modules of one type, used twice; None."""
    say, expected = RULES[number]
    assert bits_of(say(Reference().quantizer())) == expected


def test_nothing_matches() -> None:
    """A rule that matches nothing is an error with what is like it."""
    cases: list[tuple[Say, str]] = [
        (lambda q: q.set_module_name("frist", weight(4)), "'frist' matches nothing.*'first'"),
        (lambda q: q.set_module_type("Conv3d", weight(4)), "'Conv3d' matches nothing"),
        (lambda q: q.set_op("conv1d", None), "'conv1d' matches nothing"),
        (lambda q: q.set_value("y", TensorOptions(bits=4)), "'y' matches nothing"),
        (lambda q: q.skip(module="fourth"), "'fourth' matches nothing"),
    ]
    script = torch.jit.script(seeded(Layers))
    for say, message in cases:
        with pytest.raises(JitPassesError, match=message):
            jit_passes.prepare(script, quantizer=say(Reference().quantizer()), target="reference")


def test_set_value() -> None:
    """A value has its options wherever it is quantized: as an input, and as a result."""
    quantizer = Reference().quantizer()
    quantizer.set_value("x", TensorOptions(range=(-2.0, 2.0), dtype="int8", scheme="symmetric"))
    quantizer.set_value(TWICE[0], TensorOptions(scale=0.5, zero_point=3))
    rows = results(reference_of(seeded(Layers), quantizer, images(), target="reference"))
    assert rows["x"] == [(pytest.approx(4 / 255), 0, -128, 127, torch.int8)]
    assert rows[TWICE[0]] == [(0.5, 3, 0, 255, torch.uint8)]
    assert rows[TWICE[1]][0][0] != 0.5


def test_configured_is_a_copy() -> None:
    """`config` of prepare does not change the quantizer, and comes after what it was told."""
    quantizer = Reference().quantizer().set_module_name("first", weight(3))
    config = {"version": 1, "rules": [{"op": "*", "weight": {"bits": 4}}]}
    assert bits_of(quantizer.configured(config)) == FOURS
    assert bits_of(quantizer) == ALL | {FIRST: 3}
    script = torch.jit.script(seeded(Layers))
    with pytest.raises(JitPassesError, match="a backend's quantizer does, and ByHand is none"):
        jit_passes.prepare(script, quantizer=ByHand(), config={"version": 1})


# ---------------------------------------------------------------------------- strict


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.matmul(self.fc(x), x.transpose(0, 1)[:, :4]))


def test_strict() -> None:
    """What would stay in float is an error that lists it, unless it was asked for."""
    script = torch.jit.script(seeded(Products))
    with pytest.raises(JitPassesError) as error:
        jit_passes.prepare(script, target="stock", strict=True)
    assert "strict: 1 operator would stay in float" in str(error.value)
    assert "\n  matmul: the target 'stock' has no int8 form of it" in str(error.value)
    assert "keep_float: true" in str(error.value)
    kept = {"version": 1, "rules": [{"op": "matmul", "keep_float": True}]}
    jit_passes.prepare(script, target="stock", config=kept, strict=True)
    jit_passes.prepare(script, target="reference", strict=True)


def test_input_and_weight_in_float() -> None:
    """Who leaves both in float gets a float operator, called so; strict takes it for wanted."""
    quantizer = Reference().quantizer()
    quantizer.set_module_name("first", LayerOptions(input=FLOAT, weight=FLOAT))
    script = torch.jit.script(seeded(Layers))
    prepared = jit_passes.prepare(script, quantizer=quantizer, target="reference", strict=True)
    report = Report.read(prepared)
    assert report is not None
    floats = {row.name: row.reason for row in report.operators if row.dtype == "float"}
    assert floats == {FIRST: "its input and its weight are to stay in float"}


def test_more_than_the_target_can_do() -> None:
    """Without strict: a warning, and the reason in the coverage; with it, an error."""
    model = torch.jit.script(seeded(Layers))
    config = {"version": 1, "rules": [{"module": "last", "input": {"bits": 4}}]}
    with pytest.warns(JitPassesWarning, match="last:conv2d: its input is to be uint8"):
        int8 = jit_passes.quantize_script(model, images(), target="stock", config=config)
    floats = jit_passes.coverage(int8).float
    assert [row.name for row in floats] == [LAST]
    assert "its input is to be uint8 [0, 15], and the target has uint8" in floats[0].reason
    with pytest.raises(JitPassesError, match="last:conv2d: its input is to be"):
        jit_passes.prepare(model, target="stock", config=config, strict=True)


# ---------------------------------------------------------------------------- results and readers


def ranges(model: type[nn.Module], quantizer: BackendQuantizer) -> dict[str, list[tuple[int, int]]]:
    """The ranges of codes that each value is quantized to, one after another."""
    rows = results(reference_of(seeded(model), quantizer, images(), target="reference"))
    return {name: [(row[2], row[3]) for row in found] for name, found in rows.items()}


def grid(bits: int) -> tuple[int, int]:
    return 0, 2**bits - 1


def test_a_result_is_as_its_readers_want_it() -> None:
    """A result that nothing is said about takes the input options on which all readers agree."""
    quantizer = Reference().quantizer()
    quantizer.set_module_name("last", LayerOptions(input=TensorOptions(bits=5)))
    found = ranges(Layers, quantizer)
    assert (found[TWICE[0]], found[TWICE[1]]) == ([grid(8)], [grid(5)])
    quantizer.set_module_name("twice", LayerOptions(output=TensorOptions(bits=7)))
    found = ranges(Layers, quantizer)  # what is said of the result itself comes first
    assert (found[TWICE[0]], found[TWICE[1]]) == ([grid(7)], [grid(7), grid(5)])


class Fork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 1)
        self.d = nn.Conv2d(4, 4, 1)
        self.e = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.c(x)
        return self.d(y), self.e(y)


def test_readers_that_disagree() -> None:
    """The result is as the backend does it, and the reader that wants otherwise quantizes anew."""
    quantizer = Reference().quantizer()
    quantizer.set_module_name("d", LayerOptions(input=TensorOptions(bits=5)))
    assert ranges(Fork, quantizer)["c:conv2d"] == [grid(8), grid(5)]
    quantizer.set_module_name("e", LayerOptions(input=TensorOptions(bits=5)))
    assert ranges(Fork, quantizer)["c:conv2d"] == [grid(5)]


def test_operands_of_other_bits() -> None:
    """Operands that must be equal are quantized anew as the first one is."""
    quantizer = PowerOfTwoQuantizer()
    quantizer.set_module_name("c", LayerOptions(output=TensorOptions(bits=4)))
    rows = results(reference_of(seeded(Adds), quantizer, images()))
    assert [row[2:4] for row in rows["relu"]] == [(-8, 7)]
    assert [row[2:4] for row in rows["d:conv2d"]] == [(-128, 127), (-8, 7)]
    assert rows["d:conv2d"][1] == rows["relu"][0]
    quantizer = PowerOfTwoQuantizer()
    quantizer.set_op("add", LayerOptions(input=TensorOptions(bits=6)))
    rows = results(reference_of(seeded(Adds), quantizer, images()))
    assert rows["relu"] == rows["d:conv2d"]  # add alone reads them
    assert rows["relu"][0][2:4] == (-32, 31)


class Skip(nn.Module):
    """An input that is pooled, added, joined, and compared with a convolution's result."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(4, 4, 3, padding=1)
        self.e = nn.Conv2d(8, 4, 1)
        self.pool = nn.MaxPool2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.c(x)
        z = torch.maximum(self.pool(x), x + y)
        return self.e(torch.cat([x, torch.maximum(x, z)], 1))


@pytest.mark.parametrize("power_of_two", [True, False])
def test_operands_left_in_float(power_of_two: bool) -> None:
    """An input that is to stay in float does, where operands must be equal too; others share."""
    quantizer = PowerOfTwoQuantizer() if power_of_two else Reference().quantizer()
    quantizer.set_value("x", FLOAT)
    model, data = seeded(Skip), images(1, 4, 6, 6)
    found = reference_of(model, quantizer, data, target="reference")
    rows = results(found)
    assert "x" not in rows
    assert {"e:conv2d", "c:conv2d", "pool:max_pool2d"} <= set(rows)
    if power_of_two:
        assert rows["cat"] == rows["maximum#1"] == rows["maximum"] == rows["pool:max_pool2d"]
    assert (found(data[0]) - model(data[0])).abs().max() < 0.05


def draw_options(rng: random.Random) -> TensorOptions:
    return rng.choice(
        [
            FLOAT,
            TensorOptions(bits=rng.choice((4, 6, 8, 12))),
            TensorOptions(scheme="power_of_two"),
            TensorOptions(dtype=rng.choice(("int8", "int16"))),
            TensorOptions(range=(-1.0, 1.0)),
        ]
    )


def draw_rules(quantizer: BackendQuantizer, graph: GraphView, rng: random.Random) -> set[str]:
    """Say something about a few operators and values; return the values that stay in float."""
    operators = [node for node in graph.nodes if not node.kind.startswith("prim::")]
    made = [value for node in operators for value in node.outputs]
    values = [v for v in (*graph.inputs, *made) if v.is_tensor]
    floats = set()
    for node in rng.sample(operators, min(2, len(operators))):
        tensors = rng.sample(("input", "weight", "output"), 2)
        options = LayerOptions(**{name: draw_options(rng) for name in tensors})
        quantizer.set_module_name(node.module, rng.choice((options, None)))
    for value in rng.sample(values, min(2, len(values))):
        said = draw_options(rng)
        quantizer.set_value(value.name, said)
        (floats.add if said == FLOAT else floats.discard)(value.name)
    return floats


@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")
@pytest.mark.parametrize("make", [PowerOfTwoQuantizer, X86Quantizer, Reference().quantizer])
def test_random_rules(make: Callable[[], BackendQuantizer]) -> None:
    """Whatever is said of random modules can be done, and what is left in float stays so."""
    kept = scales = 0
    for drawn in random_modules(60, seed=11):
        model, rng = drawn.compile(training=False, dtype=torch.float32), random.Random(drawn.index)
        quantizer = make()
        floats = draw_rules(quantizer, GraphView.of(normalize(model._c, "forward").module), rng)
        target = quantizer.target or "reference"
        prepared = jit_passes.prepare(model, quantizer=quantizer, target=target)
        found = jit_passes.convert(jit_passes.calibrate(prepared, [drawn.arguments(torch.float32)]))
        rows = results(found)
        kept += len(floats)
        assert not floats & rows.keys(), drawn.name
        found_scales = [row[0] for of_value in rows.values() for row in of_value]
        if make is PowerOfTwoQuantizer:
            assert all(map(is_power_of_two, found_scales)), drawn.name
        scales += len(found_scales)
    assert kept > 10
    assert scales > 10


# ---------------------------------------------------------------------------- one net, all ways


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.conv(x))


class Six(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Sequential(*(Block() for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x)


YAML = """
version: 1
global:
  input: {dtype: int8, scheme: power_of_two, calibration: min_max}
  weight: {scheme: power_of_two, channelwise: false}
rules:
  - module: ["b.0.conv", "b.5.conv"]
    input: {bits: 8, dtype: uint8, scheme: affine, calibration: min_max}
    weight: {bits: 8, scheme: symmetric, channelwise: true}
  - module: b.2.conv
    keep_float: true
  - module: b.3.conv
    input: {dtype: uint8, scheme: affine, calibration: klj}
    weight: {bits: 4, scheme: symmetric, channelwise: true}
"""
ENDS = LayerOptions(
    input=TensorOptions(bits=8, dtype="uint8", scheme="affine", calibration=MinMax()),
    weight=TensorOptions(bits=8, scheme="symmetric", channelwise=True),
)
REST = LayerOptions(
    input=TensorOptions(dtype="int8", scheme="power_of_two", calibration=MinMax()),
    weight=TensorOptions(scheme="power_of_two", channelwise=False),
)
FOUR = LayerOptions(
    input=TensorOptions(dtype="uint8", scheme="affine", calibration=KLJ()),
    weight=TensorOptions(bits=4, scheme="symmetric", channelwise=True),
)

AFFINE = QuantizationSpec("uint8", observer=MinMax())
SHIFTED = QuantizationSpec("int8", qscheme="per_tensor_power_of_two", observer=MinMax())
KL = QuantizationSpec("uint8", observer=KLJ())
DEFAULT = QuantizationSpec("uint8", observer=Histogram())
WEIGHT_8 = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())
WEIGHT_4 = QuantizationSpec("int8", -7, 7, "per_channel_symmetric", 0, MinMax())
WEIGHT_SHIFTED = QuantizationSpec("int8", -127, 127, "per_tensor_power_of_two", observer=MinMax())
ACTIVATIONS = {
    "x": AFFINE,
    "b.0.relu:relu": SHIFTED,  # as block 1 wants it
    "b.1.relu:relu": DEFAULT,  # read in float
    "b.2.relu:relu": KL,
    "b.3.relu:relu": SHIFTED,
    "b.4.relu:relu": AFFINE,
    "b.5.relu:relu": DEFAULT,
}
WEIGHTS = {0: WEIGHT_8, 1: WEIGHT_SHIFTED, 3: WEIGHT_4, 4: WEIGHT_SHIFTED, 5: WEIGHT_8}


class ByHand(Quantizer):
    """The same, annotated operator by operator."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node in graph.nodes:
            if node.kind == "aten::conv2d" and int(node.module[2]) in WEIGHTS:
                self.annotate_block(annotations, node)
        return annotations

    def annotate_block(self, annotations: Annotations, conv: NodeView) -> None:
        (relu, _), spec = conv.output.uses[0], WEIGHTS[int(conv.module[2])]
        x, weight, bias = conv.inputs[:3]
        granularity = "per_tensor" if spec.ch_axis is None else "per_channel"
        of_bias = DerivedQuantizationSpec(
            ((x, conv), (weight, conv)), bias_qparams, "int32", -(2**31) + 1,
            qscheme=f"{granularity}_symmetric", ch_axis=spec.ch_axis,
        )  # fmt: skip
        operands = {x: ACTIVATIONS[x.name], weight: spec, bias: of_bias}
        annotations[conv] = QuantizationAnnotation(operands)
        annotations[relu] = QuantizationAnnotation({}, ACTIVATIONS[relu.output.name], part_of=conv)


def in_calls() -> BackendQuantizer:
    quantizer = Reference().quantizer().set_global(REST)
    for name in ("b.0.conv", "b.5.conv"):
        quantizer.set_module_name(name, ENDS)
    return quantizer.set_module_name("b.2.conv", None).set_module_name("b.3.conv", FOUR)


def in_objects() -> BackendQuantizer:
    rules = (
        Rule(Selector(module=("b.0.conv", "b.5.conv")), ENDS),
        Rule(Selector(module="b.2.conv"), LayerOptions(keep_float=True)),
        Rule(Selector(module="b.3.conv"), FOUR),
    )
    return Reference().quantizer().configure(Configuration(REST, rules))


def mixed(quantizer: Quantizer, **options: Any) -> torch.jit.ScriptModule:
    data = images(2, 4, 8, 8)
    return reference_of(seeded(Six), quantizer, data, target="reference", **options)


@pytest.fixture(scope="module")
def from_yaml(tmp_path_factory: pytest.TempPathFactory) -> torch.jit.ScriptModule:
    file: Path = tmp_path_factory.mktemp("mixed") / "layers.yaml"
    file.write_text(YAML)
    return mixed(Reference().quantizer(), config=file)


@pytest.fixture(scope="module")
def collected() -> dict[str, list[Tensor]]:
    """The float values at the inputs and results of the blocks, by hooks of eager PyTorch."""
    model, data = seeded(Six), images(2, 4, 8, 8)
    found: dict[str, list[Tensor]] = {"x": data}
    for number, block in enumerate(model.b):
        values = found.setdefault(f"b.{number}.relu:relu", [])
        block.register_forward_hook(lambda _, __, y, values=values: values.append(y))
    with torch.no_grad():
        for x in data:
            model(x)
    return found


def measure(observer: Observer, values: list[Tensor]) -> ObserverState:
    """What the observer's operator leaves in its buffers."""
    inf = float("inf")
    range_ = torch.tensor([inf, -inf, inf, -inf, 0, 0], dtype=torch.float64)
    if isinstance(observer, MinMax):
        for value in values:
            torch.ops.jit_passes.observe_min_max(value, range_, "", "")
        return ObserverState(range_, None)
    assert isinstance(observer, Histogram | KLJ)
    histogram = torch.zeros(observer.bins, dtype=torch.int64)
    for value in values:
        torch.ops.jit_passes.observe_histogram(value, range_, histogram, "", "")
    return ObserverState(range_, histogram)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mixed_activations(
    name: str, from_yaml: torch.jit.ScriptModule, collected: dict[str, list[Tensor]]
) -> None:
    """Range, scheme and calibration of each activation are those that its layers ask for."""
    spec, rows, values = ACTIVATIONS[name], results(from_yaml), collected[name]
    assert list(rows) == list(ACTIVATIONS)
    ((scale, zero_point, *codes),) = rows[name]
    expected = choose_qparams(spec, measure(spec.observer, values))
    assert (scale, zero_point) == (expected.scale, expected.zero_point)
    assert codes == [spec.quant_min, spec.quant_max, getattr(torch, spec.dtype)]
    if spec is AFFINE:
        observer = torch.ao.quantization.MinMaxObserver()
        for value in values:
            observer(value)
        assert (scale, zero_point) == tuple(map(float, observer.calculate_qparams()))
    elif spec is SHIFTED:
        exponent = exponent_of(torch.cat(values), 8)
        assert (scale, zero_point) == (2.0**exponent, 0)
    elif spec is KL:  # it is not what the extremes give
        assert scale != choose_qparams(AFFINE, measure(MinMax(), values)).scale


@pytest.mark.parametrize("number", range(6))
def test_mixed_weights(number: int, from_yaml: torch.jit.ScriptModule) -> None:
    """Codes and scales of each weight, found in plain PyTorch; none in block 2."""
    stored, spec, name = weights(from_yaml), WEIGHTS.get(number), f"b.{number}.conv.weight"
    if spec is None:
        assert name not in stored
        return
    codes, scale = stored[name]
    weight = seeded(Six).get_parameter(name).detach()
    if spec.ch_axis is None:
        expected = 2.0 ** math.ceil(math.log2(float(weight.abs().max()) / 127))
        assert scale == expected
        scales = torch.tensor(expected)
    else:
        scales = weight.flatten(1).abs().amax(1) / spec.quant_max
        assert torch.equal(scale, scales.double())
        assert codes.abs().max() == spec.quant_max
        scales = scales[:, None, None, None]
    assert codes.dtype == torch.int8
    assert torch.equal(codes.float(), (weight / scales).round())


def file_of(module: torch.jit.ScriptModule) -> bytes:
    """The saved file, without the reasons why operators stayed float, which name the rule."""
    report = json.loads(getattr(module, REPORT))
    for row in report["operators"]:
        row["reason"] = ""
    report["plan"] = ""  # of somebody's own annotations, which do not say what ranks kernels take
    copy = wrap(_C.clone(module._c, "forward"))
    _C.set_string_attribute(copy._c, REPORT, json.dumps(report))
    buffer = io.BytesIO()
    torch.jit.save(copy, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("way", [in_calls, in_objects, ByHand])
def test_the_same_file_in_all_ways(
    way: Callable[[], Quantizer], from_yaml: torch.jit.ScriptModule
) -> None:
    """Python calls, objects, and somebody's own quantizer give the bytes that the file gives."""
    assert file_of(mixed(way())) == file_of(from_yaml)


def test_the_same_file_from_text(from_yaml: torch.jit.ScriptModule) -> None:
    """So does what a YAML parser makes of the file's text."""
    found = mixed(Reference().quantizer(), config=yaml.safe_load(YAML))
    assert file_of(found) == file_of(from_yaml)


def test_the_same_file_from_nni() -> None:
    """What NNI's lists can say, bits and exclusions, gives the file that YAML gives."""
    tensors = ["weight", "input", "output"]
    entries: list[dict[str, Any]] = [
        {"quant_types": tensors, "quant_bits": 8, "op_types": ["Conv2d"]},
        {"quant_types": ["weight"], "quant_bits": {"weight": 4}, "op_names": ["b.3.conv"]},
        {"exclude": True, "op_names": ["b.2.conv"]},
    ]
    eight = {name: {"bits": 8} for name in tensors}
    rules: list[dict[str, Any]] = [
        {"op": "*", "keep_float": True},
        {"module_type": "Conv2d", **eight, "keep_float": False},
        {"module": "b.3.conv", "weight": {"bits": 4}},
        {"module": "b.2.conv", "keep_float": True},
    ]
    found = mixed(Reference().quantizer(), config=from_nni(entries))
    stored = weights(found)
    assert stored["b.3.conv.weight"][0].abs().max() == 7
    assert "b.2.conv.weight" not in stored
    assert len(stored) == 10
    config = {"version": 1, "rules": rules}
    assert file_of(found) == file_of(mixed(Reference().quantizer(), config=config))


def test_inputs_and_weights_of_nni_on_kernels() -> None:
    """Results that NNI's list leaves out are quantized where the next operator reads them."""
    entry = {"quant_types": ["weight", "input"], "quant_bits": 8, "op_types": ["Conv2d", "Linear"]}
    script = torch.jit.script(seeded(Layers))
    int8 = jit_passes.quantize_script(script, images(), target="stock", config=from_nni([entry]))
    rows = {row.name: row.dtype for row in jit_passes.coverage(int8)}
    assert rows == dict.fromkeys(ALL, "int8") | {FC: "float"}  # nothing reads the last result
