"""Configurations: options, selection, files, and the readers of other tools' forms."""

from __future__ import annotations

import fnmatch
import itertools
import os
import random
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from jit_passes import JitPassesError
from jit_passes.configuration.file import TENSOR_KEYS
from jit_passes.configuration.glow import GLOW_KINDS
from jit_passes.errors import nearest
from jit_passes.graph.view import GraphView, NodeView, ValueView
from jit_passes.observers import (
    KLJ,
    Entropy,
    Fixed,
    Histogram,
    MinMax,
    Observer,
    Percentile,
    methods,
    observer_of,
    parameters_of,
)
from jit_passes.quantizer import (
    Configuration,
    FixedQParamsQuantizationSpec,
    LayerOptions,
    QuantizationSpec,
    Rule,
    Selector,
    TensorOptions,
    from_glow_kinds,
    from_glow_node_precision,
    from_nni,
    read_configuration,
    write_configuration,
)
from jit_passes.stages.normalize import normalize

ACTIVATION = QuantizationSpec()
WEIGHT = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())
FLOAT = TensorOptions(dtype="float")
METHODS = {
    name: kind for name, kind in methods().items() if kind.__module__.startswith("jit_passes.")
}


class Block(nn.Module):
    """A residual block whose relu is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv1(x))
        return self.relu(y + x)


class Model(nn.Module):
    """Two blocks of one type, a module used twice, an operator at the top, an unpacked list."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(Block(), Block())
        self.shared = nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.stem(x))
        x = self.shared(torch.sigmoid(self.shared(x)))
        a, b = x.chunk(2, 1)
        return self.fc(torch.cat([b, a], 1).mean([2, 3]))


@pytest.fixture(scope="module")
def graph() -> GraphView:
    """The normalized graph of the model."""
    return GraphView.of(normalize(torch.jit.script(Model().eval())._c).module)


def node_of(graph: GraphView, name: str) -> NodeView:
    """The node of that name."""
    return next(node for node in graph.nodes if node.name == name)


def value_of(graph: GraphView, name: str) -> ValueView:
    """The value of that name."""
    made = [value for node in graph.nodes for value in node.outputs]
    return next(value for value in (*graph.inputs, *made) if value.name == name)


def kept(graph: GraphView, *rules: Rule) -> list[str]:
    """Names of the operators that rules keep in float."""
    resolved = Configuration(rules=rules).resolve(graph)
    return [node.name for node in graph.nodes if resolved.of(node).keep_float]


def keep(**selector: Any) -> Rule:
    """A rule that keeps in float."""
    return Rule(Selector(**selector), LayerOptions(keep_float=True))


# Options of one tensor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 1}, "bits is a whole number from 2 to 16, not 1"),
        ({"bits": 17}, "from 2 to 16, not 17"),
        ({"bits": True}, "bits is a whole number from 2 to 16, not True"),
        ({"bits": 8.0}, "whole number"),
        ({"bits": "8"}, "not '8'"),
        ({"dtype": "int9"}, "dtype is one of uint8, int8, int16, int32, float, not 'int9'.*'int8'"),
        ({"dtype": torch.int8}, "dtype is one of"),
        ({"scheme": "symetric"}, "did you mean 'symmetric'"),
        ({"scheme": "per_tensor_affine"}, "scheme is one of"),
        ({"channelwise": 1}, "channelwise is True or False, not 1"),
        ({"calibration": "entropy"}, "observer_of"),
        ({"scale": 0.0}, "scale is above 0"),
        ({"scale": -1.0}, "scale is above 0"),
        ({"scale": float("nan")}, "scale is finite"),
        ({"scale": float("inf")}, "scale is finite"),
        ({"scale": 10**400}, "scale is finite"),
        ({"scale": "1"}, "scale is made of numbers"),
        ({"scale": 1.0, "zero_point": 0.5}, "zero_point is a whole number"),
        ({"zero_point": 3}, "give a scale too"),
        ({"range": (1.0, -1.0)}, "low <= high"),
        ({"range": (1.0,)}, "two numbers"),
        ({"range": 4}, "two numbers"),
        ({"range": (0.0, float("inf"))}, "range is finite"),
        ({"range": (None, 1)}, "made of numbers"),
        ({"range": (0, 1), "scale": 1.0}, "exclude each other"),
        ({"range": (0, 1), "calibration": MinMax()}, "exclude each other"),
        ({"scale": 1.0, "calibration": MinMax()}, "exclude each other"),
        ({"scale": 1.0, "scheme": "affine"}, "exclude each other"),
        ({"scale": 1.0, "channelwise": True}, "exclude each other"),
        ({"bits": 9, "dtype": "int8"}, "bits is 9, and int8 has 8"),
        ({"bits": 9, "dtype": "uint8"}, "bits is 9, and uint8 has 8"),
        ({"bits": 8, "dtype": "float"}, "bits has no meaning"),
        ({"range": (0, 1), "dtype": "float"}, "range has no meaning"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorOptions(**options)


def test_options_are_completed() -> None:
    assert TensorOptions(scale=1).zero_point == 0
    assert TensorOptions(scale=1) == TensorOptions(scale=1.0, zero_point=0)
    assert TensorOptions(range=[-1, 1]) == TensorOptions(range=(-1.0, 1.0))  # type: ignore[arg-type]
    for dtype, bits in [("int8", 8), ("uint8", 8), ("int16", 16), ("int32", 16)]:
        assert TensorOptions(bits=bits, dtype=dtype).bits == bits
    assert tuple(o.name for o in fields(TensorOptions) if o.compare) == TENSOR_KEYS
    with pytest.raises(ValueError, match="weight is TensorOptions"):
        LayerOptions(weight=8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep_float is True or False"):
        LayerOptions(keep_float=1)  # type: ignore[arg-type]


def options(**given: Any) -> TensorOptions:
    """Short for the class."""
    return TensorOptions(**given)


@pytest.mark.parametrize(
    ("first", "later", "both"),
    [
        ({"bits": 4}, {"scheme": "affine"}, {"bits": 4, "scheme": "affine"}),
        ({"bits": 4}, {"bits": 6}, {"bits": 6}),
        ({"bits": 4}, {}, {"bits": 4}),
        ({"scale": 2.0, "zero_point": 3}, {"range": (0, 1)}, {"range": (0, 1)}),
        ({"range": (0, 1), "bits": 4}, {"scale": 2.0}, {"scale": 2.0, "bits": 4}),
        ({"scale": 2.0, "zero_point": 3}, {"scale": 1.0}, {"scale": 1.0, "zero_point": 0}),
        ({"range": (0, 1)}, {"calibration": KLJ()}, {"calibration": KLJ()}),
        ({"scale": 1.0}, {"calibration": KLJ()}, {"calibration": KLJ()}),
        ({"calibration": KLJ()}, {"range": (0, 1)}, {"range": (0, 1)}),
        ({"calibration": KLJ()}, {"scale": 1.0}, {"scale": 1.0}),
        ({"scheme": "affine", "channelwise": True}, {"scale": 1.0}, {"scale": 1.0}),
        ({"scale": 1.0}, {"scheme": "affine"}, {"scheme": "affine"}),
        ({"scale": 1.0}, {"channelwise": True}, {"channelwise": True}),
        ({"bits": 4, "range": (0, 1)}, {"dtype": "float"}, {"dtype": "float"}),
        ({"dtype": "float"}, {"bits": 4}, {"bits": 4}),
        ({"dtype": "float"}, {}, {"dtype": "float"}),
        ({"dtype": "int8"}, {"bits": 4}, {"dtype": "int8", "bits": 4}),
        ({"dtype": "int8"}, {"bits": 12}, {"dtype": "int16", "bits": 12}),
        ({"dtype": "uint8"}, {"bits": 12}, {"bits": 12}),
        ({"bits": 12}, {"dtype": "int8"}, {"dtype": "int8"}),
    ],
    ids=str,
)
def test_later_options_win(
    first: dict[str, Any], later: dict[str, Any], both: dict[str, Any]
) -> None:
    assert options(**first).updated(options(**later)) == options(**both)


def test_any_update_of_any_options_is_valid() -> None:
    single = [
        *({"bits": b} for b in (2, 8, 16)),
        *({"dtype": d} for d in ("uint8", "int8", "int16", "int32", "float")),
        {"scheme": "affine"}, {"channelwise": True}, {"calibration": MinMax()},
        {"scale": 1.0}, {"scale": 1.0, "zero_point": 5}, {"range": (0, 1)},
    ]  # fmt: skip
    for three in itertools.product(single, repeat=3):
        result = TensorOptions()
        for one in three:
            result = result.updated(options(**one))
        last = options(**three[-1]).given()
        assert {name: result.given().get(name) for name in last} == last


SPEC = QuantizationSpec


@pytest.mark.parametrize(
    ("spec", "given", "expected"),
    [
        (ACTIVATION, {}, ACTIVATION),
        (ACTIVATION, {"bits": 8}, ACTIVATION),
        (ACTIVATION, {"bits": 4}, SPEC("uint8", 0, 15)),
        (ACTIVATION, {"bits": 12}, SPEC("int32", 0, 4095)),
        (ACTIVATION, {"dtype": "int8"}, SPEC("int8", -128, 127)),
        (ACTIVATION, {"dtype": "int16"}, SPEC("int16", -(2**15), 2**15 - 1)),
        (ACTIVATION, {"dtype": "int32", "bits": 16}, SPEC("int32", -(2**15), 2**15 - 1)),
        (ACTIVATION, {"dtype": "int32", "bits": 4}, SPEC("int32", -8, 7)),
        (ACTIVATION, {"scheme": "symmetric"}, SPEC(qscheme="per_tensor_symmetric")),
        (ACTIVATION, {"scheme": "power_of_two"}, SPEC(qscheme="per_tensor_power_of_two")),
        (
            ACTIVATION,
            {"scheme": "symmetric_with_uint8"},
            SPEC(qscheme="per_tensor_symmetric_with_uint8"),
        ),
        (ACTIVATION, {"channelwise": True}, SPEC(qscheme="per_channel_affine", ch_axis=1)),
        (ACTIVATION, {"channelwise": False}, ACTIVATION),
        (ACTIVATION, {"calibration": KLJ()}, SPEC(observer=KLJ())),
        (ACTIVATION, {"range": (-1, 6)}, SPEC(observer=Fixed(-1.0, 6.0))),
        # 7 bits stay 7 bits when only the sign changes: kernels may need it.
        (SPEC(quant_max=127), {"dtype": "int8"}, SPEC("int8", -64, 63)),
        (SPEC(quant_max=127), {"bits": 7}, SPEC(quant_max=127)),
        (SPEC(quant_max=127), {"bits": 8}, SPEC(quant_max=255)),
        (SPEC.of_bits(12, signed=False), {"dtype": "uint8"}, SPEC()),
        (WEIGHT, {"bits": 8}, WEIGHT),
        (WEIGHT, {"bits": 4}, replace(WEIGHT, quant_min=-7, quant_max=7)),
        (WEIGHT, {"bits": 2}, replace(WEIGHT, quant_min=-1, quant_max=1)),
        (
            WEIGHT,
            {"bits": 16},
            replace(WEIGHT, dtype="int16", quant_min=-(2**15) + 1, quant_max=2**15 - 1),
        ),
        (WEIGHT, {"dtype": "uint8"}, replace(WEIGHT, dtype="uint8", quant_min=0, quant_max=255)),
        (WEIGHT, {"scheme": "affine"}, replace(WEIGHT, qscheme="per_channel_affine")),
        (
            WEIGHT,
            {"channelwise": False},
            replace(WEIGHT, qscheme="per_tensor_symmetric", ch_axis=None),
        ),
        (WEIGHT, {"channelwise": True}, WEIGHT),
        (
            SPEC("int8", -126, 125, "per_tensor_symmetric"),
            {"bits": 8},
            SPEC("int8", -126, 125, "per_tensor_symmetric"),
        ),
        (
            SPEC("int8", -128, 127, rounding="floor", range_form="glow"),
            {"bits": 5},
            SPEC("int8", -16, 15, rounding="floor", range_form="glow"),
        ),
    ],
)
def test_apply(spec: QuantizationSpec, given: dict[str, Any], expected: QuantizationSpec) -> None:
    assert options(**given).apply(spec, ch_axis=1) == expected


def test_apply_of_every_scheme_to_every_width() -> None:
    schemes = ("affine", "symmetric", "symmetric_with_uint8", "power_of_two")
    for scheme, bits, channelwise in itertools.product(schemes, range(2, 17), (False, True)):
        for base in (ACTIVATION, WEIGHT):
            given = options(scheme=scheme, bits=bits, channelwise=channelwise)
            spec = given.apply(base, 0)
            assert isinstance(spec, QuantizationSpec)
            assert spec.qscheme == f"per_{'channel' if channelwise else 'tensor'}_{scheme}"
            assert (spec.quant_max - spec.quant_min).bit_length() == bits
            assert (spec.quant_min < 0) == (base.quant_min < 0)


def test_apply_of_what_is_known_beforehand() -> None:
    assert FLOAT.apply(ACTIVATION) is None
    fixed = FixedQParamsQuantizationSpec
    assert options(scale=0.5).apply(ACTIVATION) == fixed(0.5, 0)
    assert options(scale=0.5, zero_point=7, bits=4).apply(ACTIVATION) == fixed(
        0.5, 7, "uint8", 0, 15
    )
    assert options(scale=0.5).apply(WEIGHT) == fixed(0.5, 0, "int8", -127, 127)


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        (ACTIVATION, {"channelwise": True}, "a.yaml:3:1: channelwise needs a tensor with channels"),
        (
            ACTIVATION,
            {"scale": 1.0, "zero_point": 300},
            "one of the codes 0 to 255, not 300; .*uint8",
        ),
        (WEIGHT, {"scale": 1.0, "zero_point": -128}, "one of the codes -127 to 127"),
        (SPEC(rounding="floor"), {"scale": 1.0}, "cannot round as floor"),
        (
            SPEC("int8", 3, 5),
            {"scheme": "power_of_two"},
            "a.yaml:3:1: .*does not hold 0.*; without these options it is int8",
        ),
    ],
    ids=str,
)
def test_apply_says_what_does_not_fit(
    spec: QuantizationSpec, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(JitPassesError, match=message):
        options(**given).apply(spec, None, "a.yaml:3:1")


# Calibration methods


def test_every_observer_has_a_method() -> None:
    assert len(METHODS) == 11
    for name, kind in METHODS.items():
        assert parameters_of(kind()) == (name, {}) and observer_of(name) == kind()
    assert observer_of("kl_j") == KLJ()
    assert observer_of("percentile", percentile=99, bins=64) == Percentile(99.0, bins=64)
    assert parameters_of(Entropy("glow")) == ("entropy", {"form": "glow"})
    assert parameters_of(Histogram()) == ("histogram", {})


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        ("entrpy", {}, "no calibration method 'entrpy': did you mean 'entropy'"),
        ("xyz", {}, "there are .*'entropy', 'fixed', .*'min_max'"),
        ("entropy", {"frm": "glow"}, "entropy has no parameter 'frm': did you mean 'form'"),
        ("min_max", {"bins": 3}, "min_max has no parameter 'bins': it has none"),
        ("entropy", {"form": "intel"}, "form is one of nvidia, glow"),
        ("entropy", {"bins": "many"}, "bins of entropy is a whole number, not 'many'"),
        ("entropy", {"bins": True}, "whole number"),
        ("percentile", {"percentile": "99"}, "is a number"),
        ("entropy", {"form": 3}, "form of entropy is text"),
        ("percentile", {"percentile": 20}, r"in \(50, 100\]"),
        ("fixed", {"low": 3.0, "high": 1.0}, "not a finite range"),
    ],
    ids=str,
)
def test_methods_that_are_none(method: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        observer_of(method, **parameters)


def test_nearest() -> None:
    assert nearest("CONV", ["conv", "add"]) == "did you mean 'conv'?"
    assert nearest("x", []) == "there are none"
    assert nearest("xyz", "abcdefg", 2) == "there are 'a', 'b' and 5 more"


# Selection


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({"module": "stem"}, ["stem:conv2d"]),
        ({"module": "layer1.*.conv1"}, ["layer1.0.conv1:conv2d", "layer1.1.conv1:conv2d"]),
        ({"module": "layer1.?"}, ["layer1.0:add", "layer1.1:add"]),
        ({"module": "layer1.[!1]"}, ["layer1.0:add"]),
        ({"module": ("stem", "fc")}, ["stem:conv2d", "fc:linear"]),
        ({"module": ""}, ["sigmoid", "chunk", "cat", "mean"]),
        ({"module": "shared"}, ["shared:conv2d", "shared:conv2d#1"]),
        ({"module_regex": r"layer1\.\d"}, ["layer1.0:add", "layer1.1:add"]),
        ({"module_regex": "s.*"}, ["stem:conv2d", "shared:conv2d", "shared:conv2d#1"]),
        ({"module_type": "Block"}, ["layer1.0:add", "layer1.1:add"]),
        ({"module_type": "Lin*"}, ["fc:linear"]),
        ({"op": "sigmoid"}, ["sigmoid"]),
        ({"op": "aten::a*"}, ["layer1.0:add", "layer1.1:add"]),
        ({"op": ("sigmoid", "tanh")}, ["sigmoid"]),
        ({"op": "conv2d", "module": "layer1.0.*"}, ["layer1.0.conv1:conv2d"]),
        ({"module_type": "ReLU", "module": "layer1.0*"},
         ["layer1.0.relu:relu", "layer1.0.relu:relu#1"]),
        ({"value": "layer1.0.relu:relu#1"}, ["layer1.0.relu:relu#1"]),
        ({"value": "shared:*"}, ["shared:conv2d", "shared:conv2d#1"]),
    ],
    ids=str,
)  # fmt: skip
def test_selected_operators(graph: GraphView, selector: dict[str, Any], names: list[str]) -> None:
    assert kept(graph, keep(**selector)) == names


def test_globs_are_about_the_whole_name_and_its_case(graph: GraphView) -> None:
    for pattern in ("Stem", "ste", "tem", "layer1", "layer1.0.conv"):
        with pytest.raises(JitPassesError, match="matches nothing"):
            kept(graph, keep(module=pattern))
    with pytest.raises(JitPassesError):
        kept(graph, keep(module_regex="layer1"))


def test_in_place_operators_go_by_the_name_of_the_other() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2)
            return x

    view = GraphView.of(normalize(torch.jit.script(InPlace().eval())._c).module)
    assert kept(view, keep(op="mul")) == ["mul"]
    assert kept(view, keep(op="aten::mul_")) == ["mul"]


def test_later_rules_win(graph: GraphView) -> None:
    four, six = LayerOptions(weight=options(bits=4)), LayerOptions(weight=options(bits=6))
    conv, first = Selector(op="conv2d"), Selector(module="layer1.0.*")
    everywhere = LayerOptions(weight=options(scheme="affine"), keep_float=False)
    for rules, expected in [
        ((Rule(conv, four), Rule(first, six)), 6),
        ((Rule(first, six), Rule(conv, four)), 4),
    ]:
        resolved = Configuration(everywhere, rules).resolve(graph)
        node = node_of(graph, "layer1.0.conv1:conv2d")
        assert resolved.of(node).weight == options(bits=expected, scheme="affine")
        assert resolved.of(node_of(graph, "stem:conv2d")).weight.bits == 4
        assert resolved.of(node_of(graph, "fc:linear")) == everywhere


def test_two_modules_of_one_type_and_a_module_used_twice(graph: GraphView) -> None:
    rules = (
        Rule(Selector(module="layer1.1.conv1"), LayerOptions(weight=options(bits=4))),
        Rule(Selector(value="shared:conv2d#1"), LayerOptions(output=options(bits=5))),
    )
    resolved = Configuration(rules=rules).resolve(graph)
    bits = {
        node.name: (resolved.of(node).weight.bits, resolved.of(node).output.bits)
        for node in graph.nodes
        if node.kind == "aten::conv2d"
    }
    assert bits == {
        "stem:conv2d": (None, None),
        "layer1.0.conv1:conv2d": (None, None),
        "layer1.1.conv1:conv2d": (4, None),
        "shared:conv2d": (None, None),
        "shared:conv2d#1": (None, 5),
    }


def test_values(graph: GraphView) -> None:
    rules = (
        Rule(Selector(value="*"), options(bits=6)),
        Rule(Selector(value="x"), options(range=(0, 1))),
        Rule(Selector(value="*:add", module="layer1.1"), options(dtype="float")),
    )
    resolved = Configuration(rules=rules).resolve(graph)
    found = {
        name: resolved.of_value(value_of(graph, name))
        for name in ("x", "layer1.0:add", "layer1.1:add", "ListUnpack.1", "fc.weight")
    }
    assert found == {
        "x": options(bits=6, range=(0, 1)),
        "layer1.0:add": options(bits=6),
        "layer1.1:add": FLOAT,
        "ListUnpack.1": options(bits=6),
        "fc.weight": TensorOptions(),
    }
    assert resolved.of(node_of(graph, "layer1.1:add")) == LayerOptions()


def test_last_rule_says_where(graph: GraphView) -> None:
    text = """\
version: 1
global: {keep_float: false}
rules:
  - {op: conv2d, keep_float: true}
  - {module: stem, weight: {bits: 4}}
  - {module: shared, keep_float: false}
"""
    resolved = read_configuration(text).resolve(graph)
    places = [
        resolved.last_rule(node_of(graph, name))
        for name in ("stem:conv2d", "shared:conv2d", "fc:linear")
    ]
    assert places == ["configuration:4:5", "configuration:6:5", "configuration:2:1"]
    assert Configuration().resolve(graph).last_rule(node_of(graph, "sigmoid")) == ""
    python = Configuration(rules=(keep(op="sigmoid"),)).resolve(graph)
    assert python.last_rule(node_of(graph, "sigmoid")) == "rule 1 (op 'sigmoid')"


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (
            {"module": "layer1.0.conv2"},
            "module 'layer1.0.conv2' matches nothing: .*'layer1.0.conv1'",
        ),
        ({"module": "layr1.*.conv1"}, "did you mean 'layer1.[01].conv1'"),
        ({"module": "layer1"}, r"write 'layer1\.\*' for the modules in it"),
        ({"module": ("stem", "fcc")}, "module 'fcc' matches nothing: did you mean 'fc'"),
        (
            {"module_regex": "stem+x"},
            r"module_regex 'stem\+x' matches nothing: did you mean 'stem'",
        ),
        ({"module_type": "conv2d"}, "did you mean 'Conv2d'"),
        ({"op": "conv_2d"}, "op 'conv_2d' matches nothing: did you mean 'conv2d'"),
        ({"op": "aten::sigmod"}, "did you mean 'aten::sigmoid'"),
        ({"op": "prim::ListConstruct"}, "what is in prim:: is not quantized"),
        ({"op": ("tanh", "exp")}, "op 'tanh' matches nothing"),
        (
            {"value": "layer1.0:ad"},
            "value 'layer1.0:ad' matches nothing: did you mean 'layer1.0:add'",
        ),
        ({"value": "fc.weight"}, "matches nothing"),
        (
            {"op": "sigmoid", "module": "stem"},
            "each matches something, but nothing matches them all",
        ),
    ],
    ids=str,
)
def test_rules_that_match_nothing(graph: GraphView, selector: dict[str, Any], message: str) -> None:
    rule = replace(keep(**selector), where="layers.yaml:12:5")
    with pytest.raises(JitPassesError, match=f"layers.yaml:12:5: .*{message}"):
        Configuration(rules=(rule,)).resolve(graph)
    Configuration(rules=(replace(rule, allow_unmatched=True),)).resolve(graph)
    Configuration(rules=(rule,), allow_unmatched=True).resolve(graph)


def test_all_rules_that_match_nothing_are_named(graph: GraphView) -> None:
    rules = (keep(op="tanh"), keep(op="sigmoid"), keep(value="y"))
    with pytest.raises(JitPassesError) as error:
        Configuration(rules=rules).resolve(graph)
    lines = str(error.value).splitlines()
    assert lines[0].startswith("rule 1 (op 'tanh'): ")
    assert lines[1].startswith("rule 3 (value 'y'): ")
    assert "allow_unmatched" in lines[2]


def test_a_method_without_operators() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    view = GraphView.of(normalize(torch.jit.script(Same().eval())._c).module)
    with pytest.raises(JitPassesError, match="the method has no operators"):
        Configuration(rules=(keep(op="add"),)).resolve(view)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ({}, "a selector needs one of module, module_regex, module_type, op, value"),
        ({"module": 3}, "module is text, or several texts, not 3"),
        ({"module": ()}, "module is text"),
        ({"op": ""}, "op is a pattern, not empty text"),
        ({"module_regex": "layer(1"}, r"'layer\(1' is no regular expression: missing \)"),
        ({"module_regex": ("a", "b")}, r"join several with \|"),
    ],
    ids=str,
)
def test_selectors_that_cannot_be(selector: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Selector(**selector)


def test_rules_that_cannot_be() -> None:
    here = Selector(module="*")
    for options_ in (LayerOptions(), TensorOptions()):
        with pytest.raises(ValueError, match="changes nothing"):
            Rule(Selector(value="x"), options_)
    with pytest.raises(ValueError, match="need a selector with value"):
        Rule(here, options(bits=4))
    with pytest.raises(ValueError, match="selector is a Selector"):
        Rule("conv1", LayerOptions(keep_float=True))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="options are LayerOptions"):
        Rule(here, {"bits": 4})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rules are Rules"):
        Configuration(rules=(here,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="everywhere is LayerOptions"):
        Configuration(options(bits=4))  # type: ignore[arg-type]


# Files

EXAMPLE = """\
version: 1
global:
  bits: 8
  input: {scheme: affine, calibration: {method: entropy, form: glow}}
  weight: {scheme: symmetric, channelwise: true}
rules:
  - module: "layer1.*"
    keep_float: true
  - module_type: Linear
    weight: {bits: 4, calibration: kl_j}
    allow_unmatched: true
  - op: [sigmoid, tanh]
    output: {scale: 0.00390625, zero_point: 0}
  - value: "layer1.0:add"
    range: [-4, 4]
  - value: "layer1.1:add"
    keep_float: no
"""
SAME = Configuration(
    LayerOptions(
        input=options(bits=8, scheme="affine", calibration=Entropy("glow")),
        weight=options(bits=8, scheme="symmetric", channelwise=True),
        output=options(bits=8),
    ),
    (
        keep(module="layer1.*"),
        Rule(
            Selector(module_type="Linear"),
            LayerOptions(weight=options(bits=4, calibration=KLJ())),
            allow_unmatched=True,
        ),
        Rule(Selector(op=("sigmoid", "tanh")), LayerOptions(output=options(scale=1 / 256))),
        Rule(Selector(value="layer1.0:add"), options(range=(-4, 4))),
        Rule(Selector(value="layer1.1:add"), LayerOptions(keep_float=False)),
    ),
)
AS_DICT: dict[str, Any] = {
    "version": 1,
    "global": {
        "bits": 8,
        "input": {"scheme": "affine", "calibration": Entropy("glow")},
        "weight": {"scheme": "symmetric", "channelwise": True},
    },
    "rules": [
        {"module": "layer1.*", "keep_float": True},
        {
            "module_type": "Linear",
            "weight": {"bits": 4, "calibration": "klj"},
            "allow_unmatched": True,
        },
        {"op": ("sigmoid", "tanh"), "output": {"scale": 1 / 256}},
        {"value": "layer1.0:add", "range": (-4, 4)},
        {"value": "layer1.1:add", "keep_float": False},
    ],
}


def test_forms_are_equal(tmp_path: Path, graph: GraphView) -> None:
    file = tmp_path / "layers.yaml"
    file.write_text(EXAMPLE)
    forms = [read_configuration(form) for form in (EXAMPLE, file, str(file), AS_DICT)]
    assert all(form == SAME for form in forms)
    assert forms[1].rules[1].where == f"{file}:9:5"
    assert forms[3].rules[1].where == "configuration.rules[1]"
    assert len({str(form.resolve(graph).layers) for form in (*forms, SAME)}) == 1


def test_round_trip() -> None:
    assert read_configuration(write_configuration(SAME)) == SAME
    assert read_configuration(write_configuration(Configuration())) == Configuration()
    odd = Configuration(
        rules=(
            keep(module="0"),
            keep(module=("1.10", "no", "", "~", "é", "a: b", "- x", "2001-01-01")),
            keep(module_regex=r"layer\d+\.(?:a|b).*\"'#"),
            Rule(Selector(value="x"), options(scale=1e-7, zero_point=-3, dtype="int8")),
            Rule(Selector(value="y"), options(range=(-1e30, 1e-300))),
            Rule(Selector(value="z"), options(calibration=Percentile(99.9, bins=512))),
        ),
        allow_unmatched=True,
    )  # fmt: skip
    assert read_configuration(write_configuration(odd)) == odd


def random_options(draw: random.Random) -> TensorOptions:
    """Options from a series of random updates."""
    choices: list[dict[str, Any]] = [
        {"bits": draw.randint(2, 16)},
        {"dtype": draw.choice(["uint8", "int8", "int16", "int32", "float"])},
        {"scheme": draw.choice(["affine", "symmetric", "power_of_two"])},
        {"channelwise": draw.random() < 0.5},
        {"calibration": draw.choice([kind() for kind in METHODS.values()])},
        {"scale": draw.uniform(1e-9, 9), "zero_point": draw.randint(-9, 9)},
        {"range": (-draw.random(), draw.random())},
    ]
    result = TensorOptions()
    for choice in draw.choices(choices, k=3):
        result = result.updated(options(**choice))
    return result


def test_round_trip_of_random_configurations() -> None:
    draw = random.Random(0)
    for _ in range(40):
        layers = [
            LayerOptions(
                *(random_options(draw) for _ in range(4)), draw.choice([None, True, False])
            )
            for _ in range(3)
        ]
        rules = (
            Rule(Selector(module="a*", op=("b", "c")), layers[1], draw.random() < 0.5),
            Rule(Selector(module_type="T", module_regex="x|y"), layers[2]),
            Rule(Selector(value="v:*"), random_options(draw)),
        )
        configuration = Configuration(layers[0], rules, draw.random() < 0.5)
        assert read_configuration(write_configuration(configuration)) == configuration


def test_observers_of_the_callers_own_are_written_with_their_path() -> None:
    @dataclass(frozen=True)
    class Mine(Observer):
        op: ClassVar[str] = "observe_min_max"
        ends: tuple[float, ...] = (0.0, 1.0)

    mine = Configuration(LayerOptions(input=options(calibration=Mine((0.5, 2.0)))))
    text = write_configuration(mine)
    assert "test_configuration:test_observers_of_the_callers_own" in text
    assert read_configuration(text) == mine


def rule(text: str) -> str:
    """A file whose fourth line is the rule."""
    return f"version: 1\nglobal: {{}}\nrules:\n  - {text}\n"


MALFORMED = {
    "empty": ("\n", "1:1: the file is empty"),
    "comment": ("# nothing\n", "1:1: the file is empty"),
    "list": ("- a\n- b\n", "1:1: a configuration is a mapping, not a list"),
    "text": ("hello\nworld\n", "1:1: a configuration is a mapping, not 'hello world'"),
    "no version": ("global: {}\n", "1:1: the version of the format is missing: add 'version: 1'"),
    "version": ("version: 2\n", "1:10: version 1 of the format can be read, not 2"),
    "version text": ("version: '1'\n", "1:10: version 1"),
    "version true": ("version: yes\n", "1:10: version 1 of the format can be read, not True"),
    "top key": ("version: 1\nrule: []\n", "2:1: a configuration has no key 'rule': .*'rules'"),
    "rules": ("version: 1\nrules: {}\n", "2:8: rules is a list, not a mapping"),
    "global": ("version: 1\nglobal: 8\n", "2:9: global is a mapping, not 8"),
    "allow": (
        "version: 1\nallow_unmatched: maybe\n",
        "2:18: allow_unmatched is true or false, not 'm",
    ),
    "global key": (
        "version: 1\nglobal:\n  wieght: {}\n",
        "3:3: global has no key 'wieght': .*'weight'",
    ),
    "selector in global": ("version: 1\nglobal: {op: add}\n", "2:10: global has no key 'op'"),
    "tensor key in global": (
        "version: 1\nglobal: {scheme: affine}\n",
        "2:10: 'scheme' is an option of one tensor: put it under input, weight, output or bias",
    ),
    "twice": (
        "version: 1\nglobal: {}\nglobal: {}\n",
        "3:1: the key 'global' is there twice, first at configuration:2:1",
    ),
    "twice inside": (
        rule("{op: a, weight: {bits: 4, bits: 5}}"),
        "4:31: the key 'bits' is there twice",
    ),
    "rule": (rule("conv1"), "4:5: a rule is a mapping, not 'conv1'"),
    "null rule": (rule(""), "4:4: a rule is a mapping, not nothing"),
    "rule key": (
        rule("{modul: a, keep_float: true}"),
        "4:6: a rule has no key 'modul': did you mean 'module'",
    ),
    "no selector": (rule("keep_float: true"), "4:5: a selector needs one of"),
    "no option": (rule("module: a"), "4:5: the rule changes nothing"),
    "empty option": (rule("{module: a, weight: {}}"), "4:5: the rule changes nothing"),
    "selector list": (
        rule("{module: [], keep_float: true}"),
        "4:14: module is text or a list of texts, and",
    ),
    "selector mapping": (
        rule("{module: {a: b}, keep_float: true}"),
        "4:14: module is text, not a mapping",
    ),
    "selector null": (rule("{module: , keep_float: true}"), "4:14: module is text, not nothing"),
    "empty op": (rule("{op: '', keep_float: true}"), "4:10: op is a pattern"),
    "regex": (
        rule("{module_regex: '[', keep_float: true}"),
        r"4:20: module_regex '\[' is no regular expression",
    ),
    "keep": (rule("{op: a, keep_float: 1}"), "4:25: keep_float is true or false, not 1"),
    "tensor": (rule("{op: a, weight: 4}"), "4:21: weight is a mapping, not 4"),
    "tensor key": (
        rule("{op: a, weight: {bit: 4}}"),
        "4:22: weight has no key 'bit': did you mean 'bits'",
    ),
    "tensor option": (
        rule("{op: a, range: [0, 1]}"),
        "4:13: 'range' is an option of one tensor: put it under",
    ),
    "null option": (rule("{op: a, weight: {bits: }}"), "4:28: bits has no value"),
    "bits": (
        rule("{op: a, weight: {bits: 40}}"),
        "4:28: bits is a whole number from 2 to 16, not 40",
    ),
    "bits text": (rule("{op: a, weight: {bits: '4'}}"), "4:28: bits is a whole number"),
    "bits float": (rule("{op: a, weight: {bits: 4.0}}"), "4:28: bits is a whole number"),
    "bits of a layer": (rule("{op: a, bits: 40}"), "4:19: bits is a whole number"),
    "bits null": (rule("{op: a, bits: }"), "4:19: bits has no value"),
    "bits list": (
        rule("{op: a, bits: [4]}"),
        r"4:19: bits is a whole number from 2 to 16, not \[4\]",
    ),
    "dtype": (
        rule("{op: a, weight: {dtype: int7}}"),
        "4:29: dtype is one of .*did you mean 'int8'",
    ),
    "bits and dtype": (
        rule("{op: a, weight: {dtype: int8, bits: 9}}"),
        "4:41: bits is 9, and int8 has 8",
    ),
    "scheme": (rule("{op: a, weight: {scheme: afine}}"), "4:30: scheme is one of .*'affine'"),
    "channelwise": (
        rule("{op: a, weight: {channelwise: 1}}"),
        "4:35: channelwise is True or False",
    ),
    "scale": (rule("{op: a, output: {scale: -1.}}"), "4:29: scale is above 0"),
    "scale inf": (rule("{op: a, output: {scale: .inf}}"), "4:29: scale is finite"),
    "zero point": (
        rule("{op: a, output: {zero_point: 3}}"),
        "4:34: zero_point belongs to a fixed scale",
    ),
    "range": (rule("{op: a, output: {range: [2, 1]}}"), "4:29: range is .*low <= high"),
    "range text": (rule("{op: a, output: {range: 0..1}}"), "4:29: range is two numbers"),
    "range mapping": (rule("{op: a, output: {range: {low: 1}}}"), "4:29: range is two numbers"),
    "range and scale": (
        rule("{op: a, output: {range: [0, 1], scale: 1}}"),
        "4:44: .*exclude each other|4:29: .*exclude",
    ),
    "calibration": (
        rule("{op: a, input: {calibration: entrpy}}"),
        "4:34: no calibration method 'entrpy': .*'entropy'",
    ),
    "calibration type": (
        rule("{op: a, input: {calibration: 3}}"),
        "4:34: calibration is a method's name",
    ),
    "no method": (
        rule("{op: a, input: {calibration: {bins: 3}}}"),
        "4:34: calibration has no method",
    ),
    "method": (
        rule("{op: a, input: {calibration: {bins: 3, method: entrpy}}}"),
        "4:52: no calibration method",
    ),
    "parameter": (
        rule("{op: a, input: {calibration: {method: klj, bin: 3}}}"),
        "4:48: klj has no parameter 'bin'",
    ),
    "parameter value": (
        rule("{op: a, input: {calibration: {method: klj, bins: x}}}"),
        "4:48: bins of klj is a whole",
    ),
    "value key": (
        rule("{value: a, rnge: [0, 1]}"),
        "4:16: a rule for a value has no key 'rnge': did you mean 'range'",
    ),
    "value both": (
        rule("{value: a, range: [0, 1], keep_float: true}"),
        "4:16: 'range' is an option of one tensor",
    ),
    "value nothing": (rule("value: a"), "4:5: the rule changes nothing"),
    "merge": (rule("{<<: {op: a}, keep_float: true}"), "4:6: '<<' is not supported"),
    "tab": ("version: 1\nglobal:\n\tbits: 8\n", "3:1: this is not YAML: .*cannot start any token"),
    "bracket": ("version: 1\nrules: [\n", "3:1: this is not YAML"),
    "colon": (
        "version: 1\nrules:\n  - op: a: b\n",
        "3:10: this is not YAML: mapping values are not allowed",
    ),
    "documents": (
        "version: 1\n---\nversion: 1\n",
        "3:1: one document is expected",
    ),
    "many digits": (
        "version: 1\nglobal:\n  bits: 0x" + "f" * 6000 + "\n",
        "3:9: bits is a whole number from 2 to 16, not a number of very many digits",
    ),
    "control behind others": ("version: 1\n# \u00e9\u4e2d \x07\n", "2:6: this is not YAML"),
    "control": ("version: 1\n# \x07\n", "2:3: this is not YAML: control characters"),
    "alias": ("version: 1\nrules: *a\n", "2:8: this is not YAML: .*undefined alias"),
    "own alias": (
        "version: 1\nrules: &a [*a]\n",
        "2:8: the alias in it means what it is a part of",
    ),
    "python tag": (
        rule("!!python/object/apply:os.system ['touch x']"),
        "4:5: the tag 'python/object/apply:os.system' is not",
    ),
    "python name": (
        "version: !!python/name:os.system x\n",
        "1:10: the tag 'python/name:os.system' is not allowed",
    ),
    "own tag": ("version: !mine 1\n", "1:10: the tag '!mine' is not allowed"),
    "binary": ("version: !!binary aGVsbG8=\n", "1:10: the tag 'binary' is not allowed"),
    "tag of another": ("version: !!map 1\n", "1:10: "),
    "wrong int": ("version: !!int one\n", "1:10: 'one' is no int"),
    "deep": ("version: 1\nrules: " + "[" * 3000 + "]" * 3000 + "\n", "nested too deeply"),
    "key": ("version: 1\n[1, 2]: 3\n", "2:1: a key is text, not a list"),
}


@pytest.mark.parametrize(("text", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_files(text: str, message: str) -> None:
    place = r"configuration:" if message[0].isdigit() else ""
    with pytest.raises(JitPassesError, match=f"^{place}(?:{message})" if place else message):
        read_configuration(text)


def test_malicious_yaml_does_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"version: 1\nrules: !!python/object/apply:os.system ['touch {mark}']\n"
    with pytest.raises(JitPassesError, match="not allowed"):
        read_configuration(text)
    assert not mark.exists()
    # Nine levels of nine aliases: 387 million elements, if they were copied.
    levels = "".join(f"  - &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 10))
    with pytest.raises(JitPassesError, match="a rule is a mapping, not a list"):
        read_configuration(f"version: 1\nrules:\n  - &l0 [a]\n{levels}")


def test_damaged_files_are_errors_with_a_place_or_configurations() -> None:
    pieces = [
        "!!float ",
        "!!int ",
        "&a ",
        "*a ",
        "? ",
        "{",
        "]",
        "null",
        "1e400",
        ".nan",
        "\t",
        "|\n",
    ]
    for seed in range(300):
        draw, text = random.Random(seed), EXAMPLE
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice(["", *pieces]) + text[at + draw.randint(0, 8) :]
        try:
            read = read_configuration(text + "\n")
        except JitPassesError as error:
            assert str(error).startswith("configuration:"), text
        else:
            assert read_configuration(write_configuration(read)) == read, text


def test_what_yaml_takes_for_something_else() -> None:
    text = rule(
        "{module: [0, 1.10, no, 2001-01-01, on, 0x1], output: {scale: 1e-3, zero_point: 3}}"
    )
    read = read_configuration(text)
    assert read.rules[0].selector.module == ("0", "1.10", "no", "2001-01-01", "on", "0x1")
    assert read.rules[0].options == LayerOptions(output=options(scale=1e-3, zero_point=3))
    shared = read_configuration(
        "version: 1\nrules:\n  - {op: a, weight: &w {bits: 4}}\n  - {op: b, weight: *w}\n"
    )
    assert shared.rules[0].options == shared.rules[1].options
    assert read_configuration("version: 1\nrules:\nglobal:\n") == Configuration()
    percent = {"calibration": {"method": "percentile", "percentile": 99}}
    read = read_configuration({"version": 1, "global": {"input": percent}})
    assert read.everywhere.input.calibration == Percentile(99.0)


def test_bits_of_a_layer_are_those_of_input_weight_and_output() -> None:
    text = "version: 1\nglobal: {bits: 8, weight: {bits: 4}, output: {dtype: float}}\n"
    assert read_configuration(text).everywhere == LayerOptions(
        input=options(bits=8), weight=options(bits=4), output=FLOAT
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"version": 1, "rules": [{"op": "a", "weight": {"bits": 40}}]},
         r"configuration.rules\[0\].weight.bits: bits is a whole"),
        ({"version": 1, "global": {1: 2}}, "configuration.global: a key is text, not 1"),
        ({"version": 1, "rules": [{"module": 1.1, "keep_float": True}]},
         r"configuration.rules\[0\].module: module is text, not 1.1"),
        ({}, "configuration: the version"),
    ],
    ids=str,
)  # fmt: skip
def test_malformed_dicts(data: dict[Any, Any], message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        read_configuration(data)
    inside: dict[str, Any] = {"version": 1}
    inside["rules"] = [inside]
    with pytest.raises(JitPassesError, match="nested too deeply"):
        read_configuration(inside)
    number = {"version": 1, "rules": [{"module": 0, "keep_float": True}]}
    assert read_configuration(number).rules[0].selector.module == "0"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "layers.yaml").write_text(EXAMPLE)
    with pytest.raises(JitPassesError, match=r"No such file.*did you mean 'layers.yaml'"):
        read_configuration(tmp_path / "layer.yaml")
    with pytest.raises(JitPassesError, match="Is a directory"):
        read_configuration(tmp_path)
    (tmp_path / "latin.yml").write_bytes(b"version: 1 # \xe9\n")
    with pytest.raises(JitPassesError, match=r"latin.yml:1: .*not text in UTF-8(?!.*did you mean)"):
        read_configuration(str(tmp_path / "latin.yml"))
    with pytest.raises(JitPassesError, match="neither a path that ends in"):
        read_configuration("layers.txt")
    with pytest.raises(JitPassesError, match="a configuration is a path, YAML or a dict, not int"):
        read_configuration(3)  # type: ignore[arg-type]
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbf" + EXAMPLE.encode())
    assert read_configuration(tmp_path / "mark.txt") == SAME
    where = os.path.join(str(tmp_path), "bad.yaml")
    Path(where).write_text("version: 1\nrulez: []\n")
    with pytest.raises(JitPassesError) as error:
        read_configuration(where)
    assert str(error.value).startswith(f"{where}:2:1: ")


# NNI


def nni(*rules: Rule) -> Configuration:
    """What quantizes nothing but by rules."""
    return Configuration(LayerOptions(FLOAT, FLOAT, FLOAT, keep_float=True), rules)


def on(**tensors: TensorOptions) -> LayerOptions:
    """Options that quantize."""
    return LayerOptions(**tensors, keep_float=False)


def test_nni_of_version_2(graph: GraphView) -> None:
    config_list: list[dict[str, Any]] = [
        {"quant_types": ["weight", "input"], "quant_bits": {"weight": 4, "input": 8},
         "op_types": ["Conv2d", "Linear"], "quant_start_step": 0},
        {"quant_types": "output", "quant_bits": 8, "op_types": ["Linear"]},
        {"quant_types": ["weight"], "quant_bits": 6, "op_names": ["shared"]},
        {"exclude": True, "op_names": ["stem"]},
    ]  # fmt: skip
    read = from_nni(config_list)
    both = on(weight=options(bits=4), input=options(bits=8))
    assert read == nni(
        Rule(Selector(module_type=("Conv2d", "Linear")), both),
        Rule(Selector(module_type="Linear"), on(output=options(bits=8))),
        Rule(Selector(module="shared"), on(weight=options(bits=6))),
        keep(module="stem"),
    )
    assert read_configuration(write_configuration(read)) == read
    resolved = read.resolve(graph)
    assert resolved.of(node_of(graph, "layer1.0.conv1:conv2d")) == LayerOptions(
        options(bits=8), options(bits=4), FLOAT, keep_float=False
    )
    assert resolved.of(node_of(graph, "fc:linear")) == LayerOptions(
        options(bits=8), options(bits=4), options(bits=8), keep_float=False
    )
    assert resolved.of(node_of(graph, "shared:conv2d#1")).weight.bits == 6
    assert resolved.of(node_of(graph, "stem:conv2d")).keep_float
    assert resolved.of(node_of(graph, "sigmoid")).keep_float
    assert resolved.last_rule(node_of(graph, "stem:conv2d")) == "config_list[3]"


def test_nni_about_all_about_both_and_32_bits() -> None:
    one: dict[str, Any] = {"quant_types": ["weight"], "quant_bits": 8}
    assert from_nni([one]) == nni(Rule(Selector(module="*"), on(weight=options(bits=8))))
    selected = from_nni([{**one, "op_types": ["Conv2d"], "op_names": ["a[0]*"]}]).rules[0].selector
    assert selected == Selector(module="a[[]0][*]", module_type="Conv2d")
    assert from_nni([{**one, "quant_bits": 32}]) == nni(
        Rule(Selector(module="*"), on(weight=FLOAT))
    )
    assert from_nni([], allow_unmatched=True).allow_unmatched


def test_nni_of_version_3(graph: GraphView) -> None:
    read = from_nni(
        [
            {"op_types": ["Conv2d"], "target_names": ["_input_", "weight"], "quant_dtype": "int4",
             "target_settings": {"weight": {"granularity": "per_channel"}},
             "quant_scheme": "symmetric"},
            {"op_names_re": ["layer1"], "exclude_op_names_re": [r".*relu"], "op_names": ["fc"],
             "target_names": ["_output_0"], "quant_dtype": "uint8", "fuse_names": []},
        ]
    )  # fmt: skip
    four = options(bits=4, dtype="int8", scheme="symmetric")
    eight = options(bits=8, dtype="uint8")
    resolved = read.resolve(graph)
    assert resolved.of(node_of(graph, "stem:conv2d")) == LayerOptions(
        four, four.updated(options(channelwise=True)), FLOAT, keep_float=False
    )
    for name in ("layer1.0.conv1:conv2d", "layer1.1:add", "fc:linear"):
        assert resolved.of(node_of(graph, name)).output == eight
    assert resolved.of(node_of(graph, "layer1.0.relu:relu")).keep_float
    assert resolved.of(node_of(graph, "shared:conv2d")).output == FLOAT
    default = from_nni([{"op_names": ["a"], "target_names": ["weight"]}])
    assert default.rules[0].options == on(weight=options(bits=8, dtype="int8"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("Conv2d", r"config_list\[0\]: an entry is a mapping"),
        ({"quant_type": ["weight"]}, r"config_list\[0\].quant_type: .*did you mean 'quant_types'"),
        ({"quant_types": None, "quant_bits": 8}, "quant_types is text, not nothing"),
        ({"quant_types": ["weight"], "quant_bits": None}, "quant_bits has no number"),
        ({"quant_types": ["weight"], "quant_bits": "8"}, "bits is a whole number .* not '8'"),
        ({"target_names": ["weight"], "op_names_re": ["(?i)a"]}, "no regular expression"),
        ({"quant_bits": 8}, "quant_types is missing"),
        ({"quant_types": ["weight"]}, "quant_bits is missing"),
        ({"quant_types": ["wieght"], "quant_bits": 8}, "no quant_type 'wieght': .*'weight'"),
        ({"quant_types": ["weight"], "quant_bits": {"input": 8}}, "none for 'weight'"),
        ({"quant_types": ["weight"], "quant_bits": {"weight": 8, "input": 8}}, "does not list"),
        ({"quant_types": ["weight"], "quant_bits": 1}, r"\[0\].quant_bits: bits is a whole"),
        (
            {"quant_types": ["weight"], "quant_bits": 8, "quant_start_step": 7000},
            "schedule of training",
        ),
        ({"quant_types": ["weight"], "quant_bits": 8, "op_types": ["default"]}, "list the types"),
        ({"quant_types": ["weight"], "quant_bits": 8, "target_names": ["weight"]}, "has no key"),
        ({"target_names": ["wight"]}, "no target 'wight': did you mean 'weight'"),
        ({"quant_dtype": "int8"}, "target_names is missing"),
        ({"target_names": ["weight"], "quant_dtype": "float"}, "int or uint and a number of bits"),
        ({"target_names": ["weight"], "quant_dtype": "uint16"}, "8 bits at most"),
        ({"target_names": ["weight"], "quant_dtype": "int64"}, "from 2 to 16, not 64"),
        ({"target_names": ["weight"], "quant_scheme": "power"}, "affine or symmetric"),
        ({"target_names": ["weight"], "granularity": [4, 4]}, "default or per_channel, not a list"),
        ({"target_names": ["weight"], "op_names_re": ["("]}, "no regular expression"),
        ({"target_names": ["weight"], "exclude_op_types": ["Linear"]}, "not supported"),
        ({"target_settings": {"weight": {"bits": 8}}}, "a setting has no key 'bits'"),
    ],
    ids=str,
)
def test_malformed_nni(entry: Any, message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        from_nni([entry])


def test_nni_names_of_nothing(graph: GraphView) -> None:
    config_list = [{"quant_types": ["weight"], "quant_bits": 8, "op_names": ["stem", "stam"]}]
    with pytest.raises(JitPassesError, match=r"config_list\[0\]: module 'stam' .*'stem'"):
        from_nni(config_list).resolve(graph)
    from_nni(config_list, allow_unmatched=True).resolve(graph)


# Glow


def test_glow_node_precision(tmp_path: Path, graph: GraphView) -> None:
    file = tmp_path / "precision.yaml"
    file.write_text("FP16NodeInstanceNames: [sigmoid, 'shared:conv2d#1',\n  109]\n")
    read = from_glow_node_precision(file)
    assert read == from_glow_node_precision(
        {"FP16NodeInstanceNames": ["sigmoid", "shared:conv2d#1", 109]}
    )
    assert read == from_glow_node_precision(str(file))
    with pytest.raises(JitPassesError, match=r"precision.yaml:2:3: value '109' matches nothing"):
        read.resolve(graph)
    resolved = from_glow_node_precision(file, allow_unmatched=True).resolve(graph)
    names = [node.name for node in graph.nodes if resolved.of(node).keep_float]
    assert names == ["sigmoid", "shared:conv2d#1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FP32NodeInstanceNames: []", ":1:1: .*has no key 'FP32NodeInstanceNames': did you mean"),
        ("FP16NodeInstanceNames: sigmoid", ":1:24: FP16NodeInstanceNames is a list"),
        ("FP16NodeInstanceNames: [[a]]", ":1:25: a name is text, not a list"),
        ("FP16NodeInstanceNames: ['']", ":1:25: a name is the name of a result"),
        ("{}", ":1:1: the key FP16NodeInstanceNames is missing"),
    ],
)
def test_malformed_glow_node_precision(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "precision.yaml"
    file.write_text(text)
    with pytest.raises(JitPassesError, match=message):
        from_glow_node_precision(file)


def test_glow_kinds(graph: GraphView) -> None:
    resolved = from_glow_kinds("Add, FullyConnected").resolve(graph)
    names = [node.name for node in graph.nodes if resolved.of(node).keep_float]
    assert names == ["layer1.0:add", "layer1.1:add", "fc:linear"]
    assert resolved.last_rule(node_of(graph, "fc:linear")) == "Glow's kind 'FullyConnected'"
    with pytest.raises(JitPassesError, match="Glow's kind 'Div': op 'div' matches nothing"):
        from_glow_kinds("Add,Div").resolve(graph)
    from_glow_kinds("Add,Div", allow_unmatched=True).resolve(graph)
    with pytest.raises(
        JitPassesError, match="no kind of node 'add' in 'Div,add': did you mean 'Add"
    ):
        from_glow_kinds("Div,add")
    with pytest.raises(JitPassesError, match="no kind of node ''"):
        from_glow_kinds("Add,")


def test_glow_kinds_are_operators() -> None:
    """Every glob fits an operator that PyTorch has."""
    known = {schema.name for schema in torch._C._jit_get_all_schemas()}
    names = sorted(name.removeprefix("aten::") for name in known if name.startswith("aten::"))
    for kind, globs in GLOW_KINDS.items():
        for glob in globs:
            assert fnmatch.filter(names, glob) or glob == "local_response_norm", (kind, glob)


def test_the_document_has_every_key_and_its_examples_can_be_read() -> None:
    text = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text()
    for key in (*TENSOR_KEYS, "module", "module_regex", "module_type", "op", "value", "keep_float"):
        assert f"`{key}`" in text, key
    for name in METHODS:
        assert f"`{name}`" in text, name
    blocks = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    assert blocks
    for block in blocks:
        assert "version" not in block or read_configuration(block)
