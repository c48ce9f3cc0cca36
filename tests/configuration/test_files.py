"""Configurations in files: what is written is read again, and damage is told by line."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jit_passes import JitPassesError
from jit_passes.configuration.file import TENSOR_KEYS
from jit_passes.configuration.stages import STAGE_KEYS
from jit_passes.graph.view import GraphView
from jit_passes.observers import KLJ, Entropy, Observer, Percentile
from jit_passes.quantizer import (
    Configuration,
    LayerOptions,
    Rule,
    Selector,
    StageOptions,
    TensorOptions,
    read_configuration,
    write_configuration,
)
from tests.configuration.configurations import FLOAT, METHODS, keep, options, rule
from tests.configuration.configurations import model_graph as model_graph
from tests.folders import ROOT

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
        stages=StageOptions(0.25, "auto", "gptq", "fast"),
    )  # fmt: skip
    assert read_configuration(write_configuration(odd)) == odd
    text = write_configuration(Configuration(stages=StageOptions(smooth="none")))
    assert text == "version: 1\nstages:\n  smooth: none\n"


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
    assert "tests.configuration.test_files:test_observers_of_the_callers_own" in text
    assert read_configuration(text) == mine


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
    "stages": ("version: 1\nstages: gptq\n", "2:9: stages is a mapping, not 'gptq'"),
    "stage": (
        "version: 1\nstages: {equalise: weights}\n",
        "2:10: stages has no key 'equalise': .*'equalize'",
    ),
    "equalize": (
        "version: 1\nstages:\n  equalize: weight\n",
        "3:13: equalize is one of auto, activations, weights, not 'weight': did you mean 'weights'",
    ),
    "smooth": (
        "version: 1\nstages: {smooth: 1.5}\n",
        '2:18: smooth is "auto", "search", a number from 0 to 1, or None, not 1.5',
    ),
    "stage null": (
        "version: 1\nstages: {weight_rounding: }\n",
        "2:27: weight_rounding has no value",
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
        "2:8: the alias in it stands for the part that holds it",
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


def test_the_document_has_every_key_and_its_examples_can_be_read() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for key in (
        *TENSOR_KEYS,
        "module",
        "module_regex",
        "module_type",
        "op",
        "value",
        "keep_float",
        "mode",
        *STAGE_KEYS,
    ):
        assert f"`{key}`" in text, key
    for name in METHODS:
        assert f"`{name}`" in text, name
    blocks = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    assert blocks
    for block in blocks:
        assert "version" not in block or read_configuration(block)
