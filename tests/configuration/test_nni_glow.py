"""Readers of other tools' forms: NNI's and Glow's."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch

from jit_passes import JitPassesError
from jit_passes.configuration.glow import GLOW_KINDS
from jit_passes.graph.view import GraphView
from jit_passes.quantizer import (
    Configuration,
    LayerOptions,
    Rule,
    Selector,
    TensorOptions,
    from_glow_kinds,
    from_glow_node_precision,
    from_nni,
    read_configuration,
    write_configuration,
)
from tests.configuration.configurations import FLOAT, keep, node_of, options
from tests.configuration.configurations import model_graph as model_graph

# NNI


def nni(*rules: Rule) -> Configuration:
    """A configuration that quantizes nothing but by rules."""
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
