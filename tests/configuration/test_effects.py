"""Rules of a configuration that change nothing, or ask for what the target cannot do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning
from jit_passes.quantizer import LayerOptions, TensorOptions
from jit_passes.targets import Reference


class Rules(nn.Module):
    """An embedding, a bilinear layer, a sum and a clip."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.pair = nn.Bilinear(8, 8, 8)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.table(x)
        y = self.pair(y, y)
        return self.b(torch.relu(self.a(y)) + self.a(y))


IDLE: list[tuple[dict[str, Any], str]] = [
    ({"op": "bilinear", "bits": 8},
     "'pair:bilinear' (aten::bilinear) stays in float: the target has no quantized form of it"),
    ({"op": "add", "weight": {"bits": 4}}, "'add' (aten::add) has no weight to quantize"),
    ({"op": "relu", "input": {"bits": 4}}, "'relu' (aten::relu) has no input to quantize"),
    ({"module": "b", "bias": {"bits": 8}}, "'b:linear' (aten::linear) has no bias to quantize"),
    ({"module": "b", "input": {"dtype": "float"}},
     "'b:linear' (aten::linear) reads integers of 'add', so its input is not in float: say dtype "
     "float for the output of 'add', or keep_float"),
]  # fmt: skip
USED: list[dict[str, Any]] = [
    {"op": "add", "output": {"bits": 8}},
    {"op": "relu", "output": {"calibration": "entropy"}},
    {"module": "[ab]", "bias": {"bits": 8}},
    {"op": "*", "bits": 8},
    {"op": "embedding", "keep_float": True},
    {"op": "embedding", "weight": {"bits": 4}},
    {"op": "embedding", "weight": {"dtype": "float"}},
]


@pytest.fixture(scope="module")
def rules_model() -> torch.jit.ScriptModule:
    return torch.jit.script(Rules().eval())


@pytest.mark.parametrize(("rule", "message"), IDLE, ids=[str(rule) for rule, _ in IDLE])
def test_rules_that_change_nothing(
    rules_model: torch.jit.ScriptModule, tmp_path: Any, rule: dict[str, Any], message: str
) -> None:
    """A warning says which, where it was written, and why; under strict it is an error."""
    file = tmp_path / "layers.yaml"
    file.write_text("version: 1\nrules:\n  - " + json.dumps(rule) + "\n")
    for config, place in (
        (str(file), "layers.yaml:3:5"),
        ({"version": 1, "rules": [rule]}, "rule"),
    ):
        with pytest.warns(JitPassesWarning, match="without any effect") as caught:
            jit_passes.prepare(rules_model, target="reference", mode="static", config=config)
        text = str(caught[0].message)
        assert place in text and message in text, text
    keep = [{"op": kind, "keep_float": True} for kind in ("embedding", "bilinear")]
    with pytest.raises(
        JitPassesError, match="strict: the configuration has 1 rule without any effect"
    ):
        jit_passes.prepare(
            rules_model, target="reference", mode="static", strict=True,
            config={"version": 1, "rules": [*keep, rule]},
        )  # fmt: skip


@pytest.mark.parametrize("rule", USED, ids=str)
def test_rules_that_change_something(
    rules_model: torch.jit.ScriptModule, rule: dict[str, Any]
) -> None:
    """One operator that it holds for is enough; what is to be float is float. No warning."""
    config = {"version": 1, "rules": [rule]}
    jit_passes.prepare(rules_model, target="reference", mode="static", config=config)


def test_rules_of_python_that_change_nothing(rules_model: torch.jit.ScriptModule) -> None:
    """Rules by `set_op`, `set_module_name` and `set_value` are in the messages too."""
    four = TensorOptions(bits=4)
    layer = LayerOptions(weight=four)
    for quantizer, message in (
        (Reference().quantizer().set_op("bilinear", layer), "op 'bilinear'"),
        (Reference().quantizer().set_module_name("pair", layer), "module 'pair'"),
        (Reference().quantizer().set_value("table:embedding", four), "no operator quantizes"),
    ):
        with pytest.warns(JitPassesWarning, match="without any effect") as caught:
            jit_passes.prepare(rules_model, quantizer=quantizer)
        assert message in str(caught[0].message)


class Clipped(nn.Sequential):
    """Two convolutions, the first one with a relu that is computed with it."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten())


REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"value": "1:relu", "bits": 4}, ("0:conv2d: its result is", "2:conv2d: its input is")),
    ({"op": "relu", "output": {"bits": 4}}, ("0:conv2d: its result is",)),
    ({"module": "2", "input": {"bits": 4}}, ("2:conv2d: its input is",)),
]


@pytest.mark.parametrize(("rule", "rows"), REFUSED, ids=[str(rule) for rule, _ in REFUSED])
@pytest.mark.parametrize("target", ["stock", "x86"])
def test_rules_that_ask_for_too_much(target: str, rule: dict[str, Any], rows: tuple[str]) -> None:
    """One warning names the operators that stay in float for it, the rule, and what to write.

    The warning does not say that the rule is without any effect.
    """
    model = torch.jit.script(Clipped().eval())
    config = {"version": 1, "rules": [rule]}
    with pytest.warns(JitPassesWarning) as caught:
        prepared = jit_passes.prepare(model, target=target, config=config)
    (text,) = [str(w.message) for w in caught if w.category is JitPassesWarning]
    head, *found, end = text.splitlines()
    outcome = "nothing is quantized" if len(rows) == 2 else "they stay in float"
    assert head == f"the target cannot quantize these as they are asked for, so {outcome}:"
    assert end == "ask for options that the target has, or say keep_float: true"
    ends = (" to be uint8 [0, 15], and the target has uint8 [0, ", " (configuration.rules[0])")
    assert len(found) == len(rows)
    for line, row in zip(found, rows, strict=True):
        assert line.startswith(f"  {row}{ends[0]}") and line.endswith(ends[1]), line
    assert len(jit_passes.coverage(prepared).float) == len(rows)
    with pytest.raises(JitPassesError, match=r"strict: .*\n.*configuration\.rules\[0\]"):
        jit_passes.prepare(model, target=target, config=config, strict=True)


@pytest.mark.parametrize("target", ["stock", "x86"])
def test_a_configuration_of_which_nothing_fits(target: str, tmp_path: Path) -> None:
    """One warning says so when the model is prepared; `convert` does not repeat it, from a file."""
    model, data = torch.jit.script(Clipped().eval()), [torch.randn(2, 3, 8, 8)]
    config = {"version": 1, "global": {"input": {"bits": 16}}}
    words = "so nothing is quantized:\n  0:conv2d: its input .*\n  2:conv2d: its input "
    with pytest.warns(JitPassesWarning, match=words) as caught:
        quantized = jit_passes.quantize_script(model, data, target=target, config=config)
    assert [w.category for w in caught].count(JitPassesWarning) == 1
    assert torch.equal(quantized(data[0]), model(data[0]))
    with pytest.warns(JitPassesWarning, match=words):
        prepared = jit_passes.prepare(model, target=target, config=config)
    prepared.save(tmp_path / "prepared.pt")
    loaded = torch.jit.load(tmp_path / "prepared.pt")
    assert not jit_passes.coverage(jit_passes.convert(loaded)).int8


def test_refused_options_of_other_operators_under_strict() -> None:
    """An error, as for a rule without any effect: somebody asked for it."""
    layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sigmoid(), nn.Conv2d(4, 4, 1)).eval()
    rule = {"op": "sigmoid", "output": {"bits": 4}}
    with pytest.raises(JitPassesError, match=r"strict: the target cannot .*\n  1:sigmoid: its"):
        jit_passes.prepare(
            torch.jit.script(layers), target="stock", strict=True,
            config={"version": 1, "rules": [rule]},
        )  # fmt: skip


@pytest.mark.parametrize(("value", "instead"), [("0:conv2d", "1:relu"), ("3:flatten", "2:conv2d")])
def test_values_that_others_are_quantized_for(value: str, instead: str) -> None:
    """A clip's stands for that of the convolution, and an original for what only moves it."""
    rules = [{"value": value, "calibration": "entropy"}]
    model, config = torch.jit.script(Clipped().eval()), {"version": 1, "rules": rules}
    with pytest.warns(JitPassesWarning, match="without any effect") as caught:
        jit_passes.prepare(model, target="reference", config=config)
    assert str(caught[0].message).endswith(
        f"'{value}'; '{instead}' is quantized in its place: write value: {instead}"
    )


EFFECTS: list[dict[str, Any]] = [
    {"op": "add", "mode": "dynamic"},
    {"op": "relu", "mode": "dynamic"},
    {"module": "b", "input": {"dtype": "float"}},
]


@pytest.mark.parametrize("rule", EFFECTS, ids=str)
@pytest.mark.parametrize("target", ["stock", "reference", "x86"])
def test_rules_that_are_said_to_change_nothing_change_nothing(
    rules_model: torch.jit.ScriptModule, target: str, rule: dict[str, Any]
) -> None:
    """The prepared graph is that without the rule."""
    plain = jit_passes.prepare(rules_model, target=target, mode="static")
    with pytest.warns(JitPassesWarning, match="without any effect"):
        prepared = jit_passes.prepare(
            rules_model, target=target, mode="static", config={"version": 1, "rules": [rule]}
        )
    assert jit_passes.format_graph(prepared) == jit_passes.format_graph(plain)
