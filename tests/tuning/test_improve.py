"""Recipes that are found, step by step, and replayed."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.errors import JitPassesError
from jit_passes.quantizer import Configuration, StageOptions, read_configuration
from tests.command_line.running import Run, run_fixture  # noqa: F401  fixtures
from tests.compare import sqnr
from tests.planted import PLANTED

CASE = PLANTED["scaled channel"]  # equalization takes it from 26 to 37 dB
ONE_SCALE = {"version": 1, "global": {"weight": {"channelwise": False}}}
HOW: dict[str, Any] = {"target": "reference", "progress": False}


def batches(seed: int = 0, count: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(count)]


@pytest.fixture(scope="module", name="everything")
def everything_fixture() -> jit_passes.Improved:
    """All steps on the model of `CASE`."""
    return jit_passes.improve(CASE.model(), batches(), **HOW)


def on(model: torch.jit.ScriptModule, other: torch.jit.ScriptModule, data: list[Tensor]) -> float:
    """The SQNR of another model's results."""
    with torch.no_grad():
        wanted, found = (torch.cat([m(x) for x in data]) for m in (model, other))
    return sqnr(wanted, found)


def test_equalization_is_found(everything: jit_passes.Improved) -> None:
    """Scores are those of the batches held back; the recipe makes the model, of all batches."""
    model, data, improved = CASE.model(), batches(), everything
    held = [data[3], data[7]]
    calibrating = [x for number, x in enumerate(data) if number not in (3, 7)]
    plain = jit_passes.quantize_script(model, calibrating, **HOW)
    assert improved.quantized == pytest.approx(on(model, plain, held), abs=1e-6)
    measured = jit_passes.quantize_script(model, calibrating, config=str(improved), **HOW)
    assert improved.score == pytest.approx(on(model, measured, held), abs=1e-6)
    assert improved.score > improved.quantized + 10  # 26 and 37 dB
    replayed = jit_passes.quantize_script(model, data, config=str(improved), **HOW)
    assert on(improved.model, replayed, data) == math.inf
    assert on(model, improved.model, held) > improved.quantized
    assert improved.calibrating == 6 and improved.held_back == 2 and improved.batches == 8
    assert improved.summary.endswith("\nmeasured with 6 of 8 batches; the model has all")
    assert improved.is_complete and improved.least is None
    kept = [step.name for step in improved.steps if step.kept]
    assert any(name.startswith("equalize") for name in kept)
    known = jit_passes.provenance(improved.model)
    assert known is not None and "equalize" in known


def test_each_kept_step_lowers_the_loss() -> None:
    """Steps of one kind begin at one score, and the best of them is where the next ones begin.

    In the end, each is left out again where the score without it is as good.
    """
    improved = jit_passes.improve(CASE.model(), batches(3), config=ONE_SCALE, **HOW)
    score = improved.quantized
    tools = [step for step in improved.steps if not step.name.startswith("without ")]
    for _, group in itertools.groupby(tools, lambda step: step.name.partition(":")[0]):
        steps = list(group)
        assert {step.before for step in steps} == {score}
        taken = [step for step in steps if step.kept or step.why.endswith("later")]
        best = max(step.after for step in steps)
        assert len(taken) == (best > score + 0.1)
        if taken:
            assert taken[0].after == best
            score = best
    named = {step.name: step for step in improved.steps}
    trials = [step for step in improved.steps if step.name.startswith("without ")]
    for step in trials:
        assert step.before == score and (step.why == "left out") == (step.after >= score)
        before = named[step.name.removeprefix("without ")]
        assert before.kept == (step.after < score)
        assert before.kept or before.why == "left out later"
        score = max(score, step.after)
    assert {step.why for step in trials} == {"left out", ""}
    assert score == improved.score
    shown = improved.table()
    assert [row[0] for row in shown[1:]] == [step.name for step in improved.steps]
    assert improved.seconds >= sum(step.seconds for step in improved.steps)


def test_recipe_is_a_configuration(tmp_path: Path) -> None:
    """Options of the caller stay and are not tried otherwise; the file reads as the recipe."""
    config = {"version": 1, "stages": {"equalize": "weights"}, "global": {"weight": {"bits": 4}}}
    improved = jit_passes.improve(CASE.model(), batches(), config=config, **HOW)
    found = improved.configuration
    assert found.stages.equalize == "weights" and found.everywhere.weight.bits == 4
    assert not any(step.name.startswith("equalize") for step in improved.steps)
    improved.save(tmp_path / "recipe.yaml")
    assert read_configuration(tmp_path / "recipe.yaml") == found
    text = (tmp_path / "recipe.yaml").read_text()
    assert text.startswith(f"# SQNR of the output on batches held back: {improved.score:.1f} dB; ")
    for step in improved.steps:
        assert any(step.name in line for line in text.splitlines() if line.startswith("# "))


def test_budget(everything: jit_passes.Improved) -> None:
    """No step begins once it is kept; where steps are not enough, single layers change."""
    model, data = CASE.model(), batches()
    nothing = jit_passes.improve(model, data, budget=everything.quantized - 1, **HOW)
    assert nothing.steps == () and nothing.score == nothing.quantized == everything.quantized
    some = jit_passes.improve(model, data, budget=everything.quantized + 10, **HOW)
    assert some.score >= some.least == everything.quantized + 10
    assert len(some.steps) < len(everything.steps)
    more = jit_passes.improve(model, data, budget=everything.score + 8, **HOW)
    assert more.score >= more.least > everything.score
    assert more.steps[-1].name.startswith("layers changed: ") and more.steps[-1].kept
    assert more.configuration.rules
    replayed = jit_passes.quantize_script(model, data, config=str(more), **HOW)
    assert on(more.model, replayed, data) == math.inf


def test_tune_begins_where_it_ends() -> None:
    """The stages of a recipe are a part of all variants."""
    model, data = CASE.model(), batches()
    recipe = Configuration(stages=StageOptions(equalize="weights", weight_rounding="gptq"))
    tuned = jit_passes.tune(model, data, budget=0, config=recipe, target="reference")
    int8 = jit_passes.quantize_script(model, data, config=recipe, **HOW)
    assert tuned.quantized == pytest.approx(on(model, int8, data), abs=1e-6)
    assert tuned.configuration.stages == recipe.stages


def test_own_metric() -> None:
    """All data calibrate, and the budget is a loss."""
    model, data = CASE.model(), batches()
    other = batches(1)

    def agreement(quantized: torch.jit.ScriptModule) -> float:
        with torch.no_grad():
            pairs = [(model(x).argmax(1), quantized(x).argmax(1)) for x in other]
        return float(torch.cat([a == b for a, b in pairs]).float().mean())

    two = {"version": 1, "global": {"weight": {"bits": 2}}}
    improved = jit_passes.improve(model, data, agreement, config=two, **HOW)
    assert improved.calibrating == 8 and improved.of_float == 1.0
    assert improved.score == agreement(improved.model) > improved.quantized
    assert agreement(improved.model) == max(step.after or 0.0 for step in improved.steps)
    enough = jit_passes.improve(model, data, agreement, budget=0.0, **HOW)
    assert enough.score == enough.least == 1.0 and enough.steps == ()
    assert improved.metric == "agreement" and improved.unit == ""


def test_held_back_data() -> None:
    model, data = CASE.model(), batches()
    improved = jit_passes.improve(model, data, held_back=batches(1), budget=0, **HOW)
    assert improved.calibrating == 8
    assert improved.score == pytest.approx(on(model, improved.model, batches(1)), abs=1e-6)
    two = jit_passes.improve(model, iter(data[:2]), budget=0, **HOW)
    assert two.calibrating == 1
    one = jit_passes.quantize_script(model, data[:1], config=two.configuration, **HOW)
    assert two.score == pytest.approx(on(model, one, data[1:2]), abs=1e-6)


def test_batches_held_back_that_harm_calibration() -> None:
    """The model is the measured one where it would miss the budget with all batches."""
    model, data, budget = CASE.model(), batches(), 48.9
    improved = jit_passes.improve(model, data, budget=budget, **HOW)
    held, recipe = [data[3], data[7]], improved.configuration
    of_all = jit_passes.quantize_script(model, data, config=recipe, **HOW)
    assert on(model, of_all, held) < budget <= improved.score
    assert improved.score == pytest.approx(on(model, improved.model, held), abs=1e-6)
    assert improved.batches == improved.calibrating == 6
    text = "measured with 6 of 8 batches; the model has these alone: "
    assert improved.summary.endswith(f"\n{text}with all of them the budget is missed")


def test_resumed(tmp_path: Path) -> None:
    """Scores in the file are not measured again; the same recipe and model come of them."""
    model, data, file = CASE.model(), batches(), tmp_path / "scores.jsonl"
    calls: list[str] = []

    def closeness(quantized: torch.jit.ScriptModule) -> float:
        calls.append("")
        return -float(sum((model(x) - quantized(x)).square().sum() for x in data))

    first = jit_passes.improve(model, data, closeness, resume=file, **HOW)
    measured = len(calls)
    lines = file.read_text().splitlines(keepends=True)
    again = jit_passes.improve(model, data, closeness, resume=file, **HOW)
    assert len(calls) == measured + 1  # of the float model
    assert str(again) == str(first) and on(first.model, again.model, data) == math.inf
    file.write_text("".join(lines[:4]))
    interrupted = jit_passes.improve(model, data, closeness, resume=file, **HOW)
    assert len(calls) == 2 * measured + 1 - 3 and str(interrupted) == str(first)
    with pytest.raises(JitPassesError, match="scores of another run: data"):
        jit_passes.improve(model, batches(5), closeness, resume=file, **HOW)


def test_time() -> None:
    """No step begins after it; the result says so."""
    improved = jit_passes.improve(CASE.model(), batches(), time=0, **HOW)
    assert improved.steps == () and not improved.is_complete
    assert improved.score == improved.quantized
    assert "the time was over before all were tried" in str(improved)
    with pytest.warns(jit_passes.JitPassesWarning, match="misses the budget"):
        layers = jit_passes.improve(CASE.model(), batches(), time=0, budget=99, **HOW)
    assert layers.steps == () and not layers.is_complete


class Steps(nn.Module):
    """Layer norms whose largest channel is far larger than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        with torch.no_grad():
            self.norm.weight[3] = 40.0
            self.up.weight[:, 3] /= 40.0

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = self.down(torch.relu(self.up(self.norm(x))))
        return y, {"mean": y.mean(1)}


def test_smoothing_and_results_of_any_structure(everything: jit_passes.Improved) -> None:
    """Strengths are tried where there are layer norms; the outputs are a tuple with a dict."""
    torch.manual_seed(0)
    model = torch.jit.trace(Steps().eval(), torch.randn(4, 16), strict=False)
    data = [torch.randn(16, 16, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    improved = jit_passes.improve(model, data, mode="static", **HOW)
    tried = [step.name for step in improved.steps]
    assert [n for n in tried if n.startswith("smooth")] == [
        "smooth: 0.25", "smooth: 0.5", "smooth: 0.75", "smooth: search", "smooth: none",
    ]  # fmt: skip
    without = {step.name: step.after for step in improved.steps}["smooth: none"]
    assert without is not None and without < improved.score - 6
    assert "smooth" not in " ".join(step.name for step in everything.steps)


def test_caller_is_not_touched() -> None:
    model, data = CASE.model(), batches()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    copies = [x.clone() for x in data]
    jit_passes.improve(model, data, **HOW)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(x, y) for x, y in zip(data, copies, strict=True))


class Counting(nn.Module):
    """Counts its calls, and its result depends on the batches before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.last(torch.relu(self.first(x + self.mean)))


@pytest.mark.parametrize("metric", [True, False])
def test_state_and_mode_stay(metric: bool) -> None:
    """Calls of the models do not change them, nor does a metric that trains afterwards."""
    torch.manual_seed(0)
    model = torch.jit.script(Counting().eval())
    data = [torch.randn(6, 8) for _ in range(4)]

    def closeness(quantized: torch.jit.ScriptModule) -> float:
        score = -float(sum(quantized(x).square().sum() for x in data))
        quantized.train()
        return score

    measure = closeness if metric else None
    improved = jit_passes.improve(model, data, measure, **HOW)
    jit_passes.sensitivity(model, data, measure, **HOW)
    jit_passes.tune(model, data, measure, budget=1e9 if metric else 10, **HOW)
    for each in (model, improved.model):
        assert int(each.calls) == 0 and not each.mean.any() and not each.training


def test_bad_batches_have_their_numbers() -> None:
    """Held-back batches are counted too; a NaN in one is named, not hidden."""
    model = CASE.model()
    for number in (2, 3, 4, 7):
        data = batches()
        data[number] = torch.randn(4, 5, 8, 8)
        with pytest.raises(JitPassesError, match=f"^batch {number} does not run\\. "):
            jit_passes.improve(model, data, **HOW)
    data = batches()
    data[3][0, 0, 0, 0] = torch.nan
    text = "with all of them it cannot be made: batch 3 of the data holds a NaN"
    with pytest.warns(jit_passes.JitPassesWarning, match=f"with 6 of 8 batches: {text}"):
        improved = jit_passes.improve(model, data, **HOW)
    assert improved.batches == 6 and f"these alone: {text}" in improved.summary


def test_warnings() -> None:
    """Of the result, and of a missed budget."""
    model, data = CASE.model(), batches()
    with pytest.warns(jit_passes.JitPassesWarning, match="misses the budget: .*at least 99.0 dB"):
        jit_passes.quantize_script(model, data, improve=True, budget=99, time=0, **HOW)
    half = torch.jit.script(nn.Sequential(nn.Linear(8, 8)).half().eval())
    with pytest.warns(jit_passes.JitPassesWarning, match="float16"):
        jit_passes.improve(half, [torch.randn(4, 8).half() for _ in range(2)], **HOW)


def test_command(run: Run, tmp_path: Path) -> None:
    """The recipe and the model; quantize makes an equal model with the recipe."""
    model, data = tmp_path / "model.pt", batches()
    torch.jit.save(CASE.model(), str(model))
    np.save(tmp_path / "all.npy", torch.cat(data).numpy())
    out, recipe, again = tmp_path / "int8.pt", tmp_path / "recipe.yaml", tmp_path / "again.pt"
    how = ("--target", "reference", "--batch-size", 4)
    done = run(
        "improve", model, "--data", tmp_path / "all.npy", *how, "-o", out, "--recipe", recipe
    )
    assert done.code == 0, done.err
    assert "equalize: weights" in done.out and str(recipe) in done.out
    done = run(
        "quantize", model, "--data", tmp_path / "all.npy", *how, "--config", recipe, "-o", again
    )
    assert done.code == 0, done.err
    first, second = torch.jit.load(str(out)), torch.jit.load(str(again))
    assert on(first, second, data) == math.inf
    done = run(
        "improve", model, "--data", tmp_path / "all.npy", *how, "--time", 0, "--json", "-o", out
    )
    record = json.loads(done.out)
    assert record["is_complete"] is False and record["steps"] == []
    assert record["output"] == str(out)
    assert read_configuration(record["configuration"]).stages == StageOptions()
    assert run("improve", model, "-o", out).code == 2
    few = run("improve", model, "--data", tmp_path / "all.npy", "-o", out)
    assert few.code == 3 and "a smaller --batch-size" in few.err
    over = run("improve", model, "--data", tmp_path / "all.npy", "-o", out, "--recipe", model)
    assert over.code == 3
    twice = run("improve", model, "--data", tmp_path / "all.npy", "-o", "x.pt", "--recipe", "x.pt")
    assert twice.code == 3 and "or another result, which is never overwritten" in twice.err


def test_bad_options() -> None:
    model, data = CASE.model(), batches(count=2)
    with pytest.raises(JitPassesError, match="there is one batch in all: pass two or more"):
        jit_passes.improve(model, data[:1], **HOW)
    with pytest.raises(JitPassesError, match="a budget is a number from 0 on"):
        jit_passes.improve(model, data, budget=-1, **HOW)
    with pytest.raises(JitPassesError, match="time is a number of seconds from 0 on, not 'long'"):
        jit_passes.improve(model, data, time="long", **HOW)
    with pytest.raises(JitPassesError, match="held_back is an iterable of batches"):
        jit_passes.improve(model, data, held_back=data[0], **HOW)
    with pytest.raises(JitPassesError, match="the data is empty"):
        jit_passes.improve(model, [], **HOW)
    with pytest.raises(JitPassesError, match="has no method 'typo'"):
        jit_passes.improve(model, data, method="typo", **HOW)
    with pytest.raises(JitPassesError, match="returns a number, larger is better, not str"):
        jit_passes.improve(model, data, lambda _: "0.5", **HOW)
    with pytest.raises(
        JitPassesError, match=r"weight_rounding is one of auto, none, gptq, .*, not 'near"
    ):
        jit_passes.quantize_script(model, data, weight_rounding="nearest", **HOW)
    with pytest.raises(JitPassesError, match="equalize is one of auto, activations, weights, not"):
        jit_passes.quantize_script(model, data, equalize="foo", **HOW)


def test_stages_that_are_left_out() -> None:
    """prepare and prepare_qat are one stage alone, and say so."""
    recipe = Configuration(stages=StageOptions(equalize="weights", bias_correction="fast"))
    for call in (jit_passes.prepare, jit_passes.prepare_qat):
        model = CASE.model()
        with pytest.warns(
            jit_passes.JitPassesWarning,
            match=f"equalize, bias_correction, are left out: {call.__name__} does none",
        ):
            call(model, config=recipe, target="reference")


def test_arguments_win_over_a_recipe() -> None:
    model, data = CASE.model(), batches(count=2)
    recipe = Configuration(stages=StageOptions(equalize="weights", bias_correction="fast"))
    int8 = jit_passes.quantize_script(model, data, config=recipe, equalize="activations", **HOW)
    known = jit_passes.provenance(int8)
    assert known is not None
    assert known["equalize"] == "activations" and known["bias_correction"] == "fast"


def test_quantize_script_improves(everything: jit_passes.Improved) -> None:
    """One call gives the model of `improve`, and its report has the recipe."""
    model, data, improved = CASE.model(), batches(), everything
    int8 = jit_passes.quantize_script(model, iter(data), improve=True, **HOW)
    assert on(improved.model, int8, data) == math.inf
    known = jit_passes.provenance(int8)
    assert known is not None and known == jit_passes.provenance(improved.model)
    replayed = jit_passes.quantize_script(model, data, config=known["configuration"], **HOW)
    assert on(improved.model, replayed, data) == math.inf
    assert known["improved"] == improved.account
    assert jit_passes.coverage(int8) == jit_passes.coverage(improved.model)


def test_quantize_script_improves_within_its_options() -> None:
    """Stages that the caller names hold; budget, time and inplace mean what they mean elsewhere."""
    model, data = CASE.model(), batches()
    how = {**HOW, "improve": True}
    int8 = jit_passes.quantize_script(
        model, data, equalize="weights", smooth=None, weight_rounding="gptq", budget=0, **how
    )
    known = jit_passes.provenance(int8)
    assert known is not None and "0 of 0 steps kept" in known["improved"]
    stages = read_configuration(known["configuration"]).stages
    assert stages == StageOptions("none", "weights", "gptq")
    late = jit_passes.quantize_script(model, data, time=0, inplace=True, **how)
    assert late is model
    known = jit_passes.provenance(model)
    assert known is not None and "the time was over" in known["improved"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 30}, "budget ends improve=True: pass that too, or leave budget out"),
        ({"time": 30}, "time ends improve=True: pass that too, or leave time out"),
        ({"improve": True, "calibration_data": None}, "tries steps on calibration data"),
        ({"improve": True, "profile": {}}, "tries steps on calibration data"),
        ({"improve": True, "methods": ["forward"]}, "improve=True is for one method"),
        ({"improve": True, "budget": -1}, "a budget is a number from 0 on"),
        ({"improve": True, "time": "long"}, "time is a number of seconds from 0 on, not 'long'"),
    ],
)
def test_quantize_script_refuses_to_improve(given: dict[str, Any], message: str) -> None:
    arguments = {"calibration_data": batches(count=2), **given, **HOW}
    with pytest.raises(JitPassesError, match=message):
        jit_passes.quantize_script(CASE.model(), **arguments)


class Product(nn.Module):
    """A matrix product of two activations, which PyTorch has no int8 operator for."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(self.fc(x), x.transpose(0, 1))


def test_strict() -> None:
    """An operator that would stay in float is refused, by both functions, before the first step."""
    torch.manual_seed(0)
    model, data = torch.jit.script(Product().eval()), [torch.randn(4, 4) for _ in range(2)]
    how: dict[str, Any] = {"target": "stock", "mode": "static", "time": 0, "progress": False}
    jit_passes.improve(model, data, **how)
    why = "strict: 1 operator would stay in float:\n  matmul"
    with pytest.raises(JitPassesError, match=why):
        jit_passes.improve(model, data, strict=True, **how)
    with pytest.raises(JitPassesError, match=why):
        jit_passes.quantize_script(model, data, strict=True, improve=True, **how)
