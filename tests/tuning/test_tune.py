"""Configurations that are found, against exhaustive search and bisecting by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.configuration.file import read_configuration
from jit_passes.quantizer import LayerOptions, TensorOptions
from jit_passes.testing import random_modules
from jit_passes.tuning.metric import sqnr_metric
from jit_passes.tuning.variants import IN_FLOAT, Variants
from tests.command_line.running import Run, run_fixture  # noqa: F401  fixtures
from tests.compare import sqnr
from tests.planted import PLANTED, Planted

STATIC_HEAD = {"module": "head", "mode": "static"}


def variants_of(case: Planted) -> Variants:
    return Variants(
        case.model(), case.data(), None, quantizer=None, target="reference", config=case.config,
        mode=None, method="forward", input_fn=None, resume=None, progress=False,
    )  # fmt: skip


def tuned_of(case: Planted, **options: Any) -> jit_passes.Tuned:
    how = {"target": "reference", "config": case.config, "budget": case.budget, **options}
    return jit_passes.tune(case.model(), case.data(), **how)


def output_sqnr(case: Planted, config: Any) -> float:
    """The SQNR of what `quantize_script` makes of the data itself."""
    model, data = case.model(), case.data()
    quantized = jit_passes.quantize_script(model, data, config=config, target="reference")
    with torch.no_grad():
        expected, found = (torch.cat([m(x) for x in data]) for m in (model, quantized))
    return sqnr(expected, found)


def by_hand(names: list[str], holds: Callable[[frozenset[str]], bool]) -> int:
    """How many variants a person tries who bisects, again and again, for the next bad layer.

    With the layers found so far in float: the shortest beginning of the net that is enough in float
    ends in another bad one.
    """
    tried: set[frozenset[str]] = set()

    def tries(candidate: frozenset[str]) -> bool:
        tried.add(candidate)
        return holds(candidate)

    found: frozenset[str] = frozenset()
    while not tries(found):
        low, high = 0, len(names)
        while high - low > 1:
            middle = (low + high) // 2
            enough = tries(found | frozenset(names[:middle]))
            low, high = (low, middle) if enough else (middle, high)
        found |= {names[high - 1]}
    return len(tried)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_layers_are_found(name: str) -> None:
    """The bad layers, no fewer do, the loss is in the budget, and few models were measured."""
    case = PLANTED[name]
    tuned = tuned_of(case, alternatives=())
    chosen = {layer.name for layer in tuned.layers}
    assert chosen == case.bad
    assert tuned.quantized < case.budget <= tuned.score
    assert all(layer.without < case.budget for layer in tuned.layers)
    assert all(layer.options == IN_FLOAT for layer in tuned.layers)
    # The text is a configuration, with which the data give what was measured.
    assert output_sqnr(case, str(tuned)) == pytest.approx(tuned.score, abs=1e-6)

    variants = variants_of(case)
    names = [layer.name for layer in variants.layers]

    def holds(in_float: frozenset[str]) -> bool:
        return variants.score(dict.fromkeys(in_float, IN_FLOAT)) >= case.budget

    # Exhaustive: no smaller set of layers is enough.
    smaller = [set_ for k in range(len(case.bad)) for set_ in itertools.combinations(names, k)]
    assert not any(holds(frozenset(set_)) for set_ in smaller)
    # Fewer are measured than by bisecting, the comparison counted too; exhaustive are all subsets.
    assert tuned.evaluations <= case.evaluations
    assert case.evaluations + 1 < by_hand(names, holds) < 2 ** len(names)


@pytest.mark.parametrize("name", PLANTED)
def test_alternatives_to_float(name: str) -> None:
    """An option cheaper than float is taken where it is enough; the result is measured."""
    case = PLANTED[name]
    tuned = tuned_of(case)
    assert {layer.name for layer in tuned.layers} <= case.bad
    assert tuned.score >= case.budget
    assert output_sqnr(case, str(tuned)) == pytest.approx(tuned.score, abs=1e-6)


def test_more_bits() -> None:
    """A layer of 2 bits gets 8, not float: of the alternatives, the first that is enough."""
    case = PLANTED["2 bits"]
    tuned = tuned_of(case)
    (layer,) = tuned.layers
    assert layer.options.keep_float is None and layer.options.weight.bits == 8
    eight = LayerOptions(weight=TensorOptions(bits=8))
    assert (
        tuned_of(case, alternatives=(LayerOptions(mode="weight_only"), eight)).layers[0].options
        == eight
    )
    rules = read_configuration(str(tuned)).rules
    assert [rule.options.weight.bits for rule in rules] == [2, 8]  # the caller's, then ours


def test_ranges_by_more_than_a_profile_has() -> None:
    """`output_error` reads inputs channel by channel, so each model sees the data again."""
    case = PLANTED["scaled channel"]
    config = {"version": 1, "global": {"weight": {"calibration": "output_error"}}}
    how: dict[str, Any] = {"target": "reference", "budget": case.budget, "alternatives": ()}
    tuned = jit_passes.tune(case.model(), case.data(), config=config, progress=False, **how)
    assert {layer.name for layer in tuned.layers} == case.bad
    assert output_sqnr(case, str(tuned)) == pytest.approx(tuned.score, abs=1e-6)


def test_text() -> None:
    """YAML with the measured loss of each layer, that reads as the configuration it is."""
    case = PLANTED["scaled channel"]
    tuned = tuned_of(case, alternatives=())
    lines = str(tuned).splitlines()
    begin = f"# SQNR of the output: {tuned.score:.1f} dB, at least 30.0 dB asked for; "
    assert lines[0].startswith(begin)
    assert f"2 of {tuned.of} layers changed" in lines[1]
    for layer in tuned.layers:
        (at,) = (i for i, line in enumerate(lines) if f"value: {layer.name}" in line
                 or f"- {layer.name}" in line)  # fmt: skip
        comment = next(line for line in reversed(lines[:at]) if line.startswith("# "))
        assert f"as the others: {layer.without:.1f} dB" in comment
        assert layer.operator in comment and " of planted.py:" in comment
    assert read_configuration(str(tuned)) == tuned.configuration


def test_deterministic_and_resumed(tmp_path: Path) -> None:
    """Each run gives equal text; a file of scores makes the second run measure nothing."""
    case, file = PLANTED["attention"], tmp_path / "scores.jsonl"
    first, again = tuned_of(case, resume=file), tuned_of(case)
    assert str(first) == str(again)
    resumed = tuned_of(case, resume=file)
    assert resumed.evaluations == 0 and resumed.layers == first.layers
    # Without the last scores: those alone are measured again.
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:-2]))
    assert tuned_of(case, resume=file).evaluations == 2


def test_a_budget_that_all_int8_keeps() -> None:
    """Nothing is otherwise, and one model was measured."""
    tuned = tuned_of(PLANTED["scaled channel"], budget=1)
    assert tuned.layers == () and tuned.evaluations == 1
    assert tuned.configuration.rules == () and tuned.score == tuned.quantized >= 1


def test_own_metric_and_labels() -> None:
    """A budget is a loss then: how much the metric may be below that of the float model."""
    case = PLANTED["2 bits"]
    model, x = case.model(), torch.cat(case.data())
    with torch.no_grad():
        expected = model(x)

    def agreement(candidate: torch.jit.ScriptModule) -> Tensor:
        with torch.no_grad():
            return 1 - (candidate(x) - expected).abs().max()

    how: dict[str, Any] = {"config": case.config, "target": "reference"}
    tuned = jit_passes.tune(model, case.data(), agreement, budget=0.2, **how)
    assert tuned.of_float == 1 and tuned.least == pytest.approx(0.8)
    assert tuned.quantized < 0.8 <= tuned.score
    assert [layer.name for layer in tuned.layers] == ["body.4.0:conv2d"]


def test_many_bad_layers() -> None:
    """Half of the layers are bad, in no order: all of them are found, none else."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleList([nn.Linear(16, 16) for _ in range(12)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.body:
                x = x + torch.relu(layer(x))
            return x

    bad = (1, 2, 5, 7, 8, 11)
    config = {"version": 1, "rules": [
        {"module": [f"body.{i}" for i in bad], "weight": {"bits": 3}}
    ]}  # fmt: skip
    torch.manual_seed(0)
    model, data = torch.jit.script(Wide().eval()), [torch.randn(16, 16)]
    how: dict[str, Any] = {"config": config, "target": "reference"}
    good = jit_passes.quantize_script(model, data, target="reference")
    with torch.no_grad():
        budget = sqnr(model(data[0]), good(data[0])) - 1.5
    tuned = jit_passes.tune(model, data, budget=budget, **how)
    assert [layer.name for layer in tuned.layers] == [f"body.{i}:linear" for i in bad]
    assert all(layer.options.weight.bits == 8 for layer in tuned.layers)


@pytest.mark.parametrize("budget", [-1, math.nan, "30", None, True])
def test_bad_budgets(budget: Any) -> None:
    with pytest.raises(jit_passes.JitPassesError, match=r"a budget is a number from 0 on"):
        tuned_of(PLANTED["2 bits"], budget=budget)


def test_a_metric_that_bears_no_quantization() -> None:
    """Then all layers are in float; the mean needs no rule, it has no integers to work on."""
    case = PLANTED["scaled channel"]
    model = case.model()

    def agrees(candidate: torch.jit.ScriptModule) -> float:
        return float(jit_passes.provenance(candidate) is None)

    tuned = jit_passes.tune(model, case.data(), agrees, budget=0.5, target="reference")
    rows = jit_passes.inspect(model, target="reference")
    layers = [row.name for row in rows if row.dtype == "int8" and not row.part_of]
    assert [layer.name for layer in tuned.layers] == [n for n in layers if n != "mean"]
    assert tuned.of == len(layers) and tuned.score == 1
    assert {layer.without for layer in tuned.layers} == {0}


def test_command(run: Run, tmp_path: Path) -> None:
    """Quantize with what was written, and the budget is kept."""
    case = PLANTED["scaled channel"]
    model, data, config, out = (
        tmp_path / name for name in ("model.pt", "data.npz", "layers.yaml", "int8.pt")
    )
    torch.jit.save(case.model(), model)
    np.savez(data, x=torch.cat(case.data()).numpy())
    how = ("--data", data, "--target", "stock", "--batch-size", 4)
    done = run("tune", model, *how, "--budget", 30, "-o", config)
    assert done.code == 0, done.err
    assert "layers changed" in done.out and str(config) in done.out
    assert run("quantize", model, *how, "--config", config, "-o", out).code == 0
    compared = run("compare", model, out, "--data", data, "--min-sqnr", 30)
    assert compared.code == 0, compared.err
    shown = run("tune", model, *how, "--budget", 30)
    assert shown.out.rstrip() == config.read_text().rstrip()
    record = run("tune", model, *how, "--budget", 30, "--json", "--float-only").json
    assert record["score"] >= 30 and read_configuration(record["configuration"]).rules
    assert {layer["name"] for layer in record["layers"]} <= case.bad
    assert run("tune", model, *how).code == 2
    assert run("tune", model, *how, "--budget", 30, "-o", model).code == 3


class Two(nn.Module):
    """A wide and a narrow layer."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 256)
        self.middle = nn.Linear(256, 16)
        self.narrow = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(torch.relu(self.middle(torch.relu(self.wide(x)))))


class Encoder(nn.Module):
    """Attention with a scale of its own, between linears."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x).unsqueeze(1), self.k(x).unsqueeze(1), self.v(x).unsqueeze(1)
        return self.head(F.scaled_dot_product_attention(q, k, v, scale=0.25).squeeze(1))


@pytest.mark.parametrize("config", [None, {"version": 1, "rules": [STATIC_HEAD]}])
@pytest.mark.parametrize("target", ["stock", "reference", "x86"])
def test_encoders(target: str, config: Any) -> None:
    """Where other layers are static, targets may write attention in other forms."""
    torch.manual_seed(0)
    model, data = torch.jit.script(Encoder().eval()), [torch.randn(4, 9, 32)]
    how: dict[str, Any] = {"target": target, "config": config}
    measure = sqnr_metric(model, "forward", {n: ((x,), {}) for n, x in enumerate(data)}).measure
    quantized = measure(jit_passes.quantize_script(model, data, **how))
    tuned = jit_passes.tune(model, data, budget=quantized + 1.5, **how)
    assert tuned.quantized == pytest.approx(quantized, abs=1e-6)
    assert tuned.layers and tuned.score >= quantized + 1.5
    again = jit_passes.quantize_script(model, data, target=target, config=str(tuned))
    assert measure(again) == pytest.approx(tuned.score, abs=1e-6)


def test_scores_of_other_data(tmp_path: Path) -> None:
    """A file of scores is of its data, also where no ranges come from them."""
    torch.manual_seed(0)
    model, file = torch.jit.script(Encoder().eval()), tmp_path / "scores.jsonl"
    data = torch.randn(4, 9, 32)
    how: dict[str, Any] = {"mode": "dynamic", "target": "reference", "resume": file}
    jit_passes.sensitivity(model, [data], **how)
    jit_passes.sensitivity(model, [data.clone()], **how)
    with pytest.raises(jit_passes.JitPassesError, match="data"):
        jit_passes.sensitivity(model, [data + 1e-6], **how)


def test_size() -> None:
    """Of two layers of which one has to be in float: the more suspect, or that of fewer bytes."""
    torch.manual_seed(0)
    model, data = torch.jit.script(Two().eval()), [torch.randn(8, 64)]
    rules = [{"module": "wide", "weight": {"bits": 4}}, {"module": "narrow", "weight": {"bits": 6}}]

    def metric(candidate: torch.jit.ScriptModule) -> float:
        rows = {row.name: row.dtype == "float" for row in jit_passes.coverage(candidate)}
        either = rows["wide:linear"] or rows["narrow:linear"]
        return float(either and rows["middle:linear"])

    how: dict[str, Any] = {"config": {"version": 1, "rules": rules}, "alternatives": ()}
    for objective, name in (("layers", "wide:linear"), ("size", "narrow:linear")):
        tuned = jit_passes.tune(
            model, data, metric, budget=0, objective=objective, target="reference", **how
        )
        assert {layer.name for layer in tuned.layers} == {"middle:linear", name}


def test_cheapest_alternative() -> None:
    """For a small file, weights of 8 bits; the first alternative that is enough otherwise."""
    case = PLANTED["2 bits"]
    choices = (
        LayerOptions(output=TensorOptions(dtype="float"), weight=TensorOptions(bits=16)),
        LayerOptions(weight=TensorOptions(bits=8)),
    )
    first = tuned_of(case, alternatives=choices).layers[0]
    small = tuned_of(case, alternatives=choices, objective="size").layers[0]
    assert (first.options, small.options) == choices
    fast = tuned_of(case, alternatives=choices, objective="latency")
    assert fast.score >= case.budget and {layer.name for layer in fast.layers} <= case.bad


def test_bad_objectives() -> None:
    case = PLANTED["attention"]
    with pytest.raises(jit_passes.JitPassesError, match=r"objective is one of .* mean 'latency'"):
        tuned_of(case, objective="latencies")
    with pytest.raises(jit_passes.JitPassesError, match=r"latency is measured on data"):
        jit_passes.tune(
            case.model(), None, lambda model: 0.0, budget=1, mode="dynamic", objective="latency",
            target="reference",
        )  # fmt: skip


def test_random_modules() -> None:
    """On whatever graph: the budget is kept, and the text gives what was measured, with the data.

    Without any quantization left, the score is that of the float model itself.
    """
    tuned_modules = 0
    for drawn in random_modules(5, 5):
        arguments = drawn.arguments(torch.float32)
        model = torch.jit.script(drawn.module(training=False, dtype=torch.float32))
        how: dict[str, Any] = {"target": "reference"}
        if not any(row.dtype == "int8" for row in jit_passes.inspect(model, **how)):
            continue
        measure = sqnr_metric(model, "forward", {0: (arguments, {})}).measure
        budget = max(measure(jit_passes.quantize_script(model, [arguments], **how)), 0) + 8
        tuned = jit_passes.tune(model, [arguments], budget=budget, **how)
        assert tuned.score >= budget, drawn.source
        if not math.isfinite(tuned.score):
            continue
        again = jit_passes.quantize_script(model, [arguments], config=str(tuned), **how)
        assert measure(again) == pytest.approx(tuned.score, abs=1e-6), drawn.source
        tuned_modules += len(tuned.layers) > 0
    assert tuned_modules >= 2
