"""Quantizers of backends, told layer by layer what to do otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning
from jit_passes.graph.view import GraphView
from jit_passes.observers import MinMax
from jit_passes.quantizer import (
    BackendQuantizer,
    Configuration,
    LayerOptions,
    QuantizationSpec,
    Rule,
    Selector,
    TensorOptions,
)
from jit_passes.stages.module import Report
from jit_passes.stages.normalize import normalize
from jit_passes.targets import PowerOfTwoQuantizer, Reference, X86Quantizer
from jit_passes.testing.check import random_modules
from tests.quantizing import (
    ALL,
    FC,
    FIRST,
    FLOAT,
    LAST,
    TWICE,
    Adds,
    ByHand,
    Layers,
    grid,
    images,
    is_power_of_two,
    ranges,
    reference_of,
    results,
    seeded,
    weight,
)


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
    """The last word holds, one layer before all; modules of one type, used twice; None."""
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


def test_a_value_and_its_readers() -> None:
    """An option of a value holds where it is read too, whichever options all inputs have."""
    quantizer = Reference().quantizer()
    quantizer.set_global(LayerOptions(input=TensorOptions(calibration=MinMax())))
    quantizer.set_value(TWICE[0], TensorOptions(range=(0.0, 51.0)))
    rows = results(reference_of(seeded(Layers), quantizer, images(), target="reference"))
    assert rows[TWICE[0]] == [(pytest.approx(0.2), 0, 0, 255, torch.uint8)]


@pytest.mark.parametrize("target", ["stock", "x86", "reference"])
def test_a_given_scale_of_weights(target: str) -> None:
    """Around zero it is symmetric, as kernels want it; a bias has the accumulator's 32 bits."""
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval())
    data = [torch.randn(16, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    weight_options = {"scale": 0.004, "zero_point": 0}
    config = {"version": 1, "global": {"weight": weight_options, "bias": {"dtype": "int32"}}}
    int8 = jit_passes.quantize_script(model, data, target=target, config=config)
    assert len(jit_passes.coverage(int8).int8) == 2
    torch.testing.assert_close(int8(data[0]), model(data[0]), rtol=0, atol=0.05)


def test_options_of_another_type() -> None:
    with pytest.raises(ValueError, match="a dict is for configure"):
        X86Quantizer().set_global({"weight": {"bits": 4}})  # type: ignore[arg-type]


def test_configured_is_a_copy() -> None:
    """`config` of prepare does not change the quantizer, and comes after what it was told."""
    quantizer = Reference().quantizer().set_module_name("first", weight(3))
    config = {"version": 1, "rules": [{"op": "*", "weight": {"bits": 4}}]}
    assert bits_of(quantizer.configured(config)) == FOURS
    assert bits_of(quantizer) == ALL | {FIRST: 3}
    script = torch.jit.script(seeded(Layers))
    with pytest.raises(JitPassesError, match="a backend's quantizer does, and ByHand is none"):
        jit_passes.prepare(script, quantizer=ByHand(), config={"version": 1})


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.matmul(self.fc(x), x.transpose(0, 1)[:, :4]))


def test_strict() -> None:
    """Operators that would stay in float are an error that lists them, unless asked for."""
    script = torch.jit.script(seeded(Products))
    with pytest.raises(JitPassesError) as error:
        jit_passes.prepare(script, target="stock", strict=True)
    assert "strict: 1 operator would stay in float" in str(error.value)
    assert "\n  matmul: the target 'stock' has no int8 form of it" in str(error.value)
    assert "keep_float: true" in str(error.value)
    kept = {"version": 1, "rules": [{"op": "matmul", "keep_float": True}]}
    jit_passes.prepare(script, target="stock", config=kept, strict=True)
    jit_passes.prepare(script, target="reference", strict=True)


class Rare(nn.Module):
    """A linear in a branch that data may not take."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if bool(x.sum() > 1e6):
            y = self.rare(y)
        return y


def test_strict_about_what_data_rule_out() -> None:
    """An operator that data never reach would stay in float; a model without any has nothing."""
    model, data = torch.jit.script(Rare().eval()), [torch.randn(3, 4)]
    how: dict[str, Any] = {"target": "reference", "mode": "static"}
    with pytest.warns(JitPassesWarning, match="data never reached rare:linear"):
        jit_passes.quantize_script(model, data, **how)
    with (
        pytest.warns(JitPassesWarning, match="never reached"),
        pytest.raises(JitPassesError, match=r"strict: 1 operator would stay in float:\n  rare:lin"),
    ):
        jit_passes.quantize_script(model, data, strict=True, **how)
    nothing = torch.jit.script(nn.ReLU().eval())
    words = "no operator with weights, and no matrix product"
    with pytest.warns(JitPassesWarning, match=f"nothing was quantized: the model has {words}"):
        jit_passes.quantize_script(nothing, data, **how)
    with pytest.raises(JitPassesError, match=f"strict: the model has {words}"):
        jit_passes.quantize_script(nothing, data, strict=True, **how)


def test_input_and_weight_in_float() -> None:
    """With both in float the operator is float, and called so; strict takes it for wanted."""
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
    """Any options of random modules can be followed, and a layer left in float stays in float."""
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
