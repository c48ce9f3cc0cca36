"""Rules of configurations: the operators and values that they select, and rules without any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jit_passes import JitPassesError
from jit_passes.graph.view import GraphView
from jit_passes.quantizer import (
    Configuration,
    LayerOptions,
    Rule,
    Selector,
    TensorOptions,
    read_configuration,
)
from jit_passes.stages.normalize import normalize
from tests.configuration.configurations import FLOAT, keep, kept, node_of, options, value_of
from tests.configuration.configurations import model_graph as model_graph

# The values of layer1.0, and of the modules in it.
BLOCK = ["layer1.0.conv1:conv2d", "layer1.0.relu:relu", "layer1.0:add", "layer1.0.relu:relu#1"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({"module": "stem"}, ["stem:conv2d"]),
        ({"module": "layer1.*.conv1"}, ["layer1.0.conv1:conv2d", "layer1.1.conv1:conv2d"]),
        ({"module": "layer1.0"}, BLOCK),
        ({"module": "layer1.[!1]"}, BLOCK),
        ({"module": "*.0"}, BLOCK),
        ({"module": "layer1"}, [*BLOCK, *(name.replace(".0", ".1") for name in BLOCK)]),
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
    for pattern in ("Stem", "ste", "tem", "layer", "layer1.0.conv", "0", "conv1"):
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
        ({"module": ("stem", "fcc")}, "module 'fcc' matches nothing: did you mean 'fc'"),
        (
            {"module_regex": "stem+x"},
            r"module_regex 'stem\+x' matches nothing: did you mean 'stem'",
        ),
        ({"module_type": "conv2d"}, "did you mean 'Conv2d'"),
        ({"op": "conv_2d"}, "op 'conv_2d' matches nothing: did you mean 'conv2d'"),
        ({"op": "aten::sigmod"}, "did you mean 'aten::sigmoid'"),
        ({"op": "prim::ListConstruct"}, "operators of prim:: are not quantized"),
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
