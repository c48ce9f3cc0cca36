"""Costs of quantizing each layer, against models that are quantized and compared by hand."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.errors import without_folders
from jit_passes.quantizers.base import Quantizer
from jit_passes.targets import X86Quantizer
from tests.command_line.running import Run, run_fixture  # noqa: F401  fixtures
from tests.compare import sqnr
from tests.planted import PLANTED

SCALED = PLANTED["scaled channel"]


def by_hand(
    model: torch.jit.ScriptModule, data: list[Tensor], rules: list[Any], **how: Any
) -> float:
    """The SQNR of the outputs of a model that is quantized with rules, calibrated with the data."""
    config = {"version": 1, "rules": rules} if rules else None
    quantized = jit_passes.quantize_script(model, data, config=config, **how)
    with torch.no_grad():
        expected, found = (torch.cat([m(x) for x in data]) for m in (model, quantized))
    return sqnr(expected, found)


def in_float(*parts: str) -> dict[str, Any]:
    return {"value": list(parts), "keep_float": True}


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_against_models_made_by_hand(target: str) -> None:
    """Alone, left out, and all: each is what quantize_script gives with such rules, and data."""
    model, data = SCALED.model(), SCALED.data()
    names = ("expand:conv2d", "head:linear")
    found = jit_passes.sensitivity(model, data, target=target, layers=names)
    rows = jit_passes.inspect(model, target=target)
    parts: dict[str, list[str]] = {}
    for row in rows:
        if row.dtype == "int8":
            parts.setdefault(row.part_of or row.name, []).append(row.name)
    assert tuple(row.name for row in found.rows) == names
    close = {"abs": 1e-6}
    assert found.quantized == pytest.approx(by_hand(model, data, [], target=target), **close)
    for name in names:
        others = [part for other, names in parts.items() if other != name for part in names]
        alone = by_hand(model, data, [in_float(*others)], target=target)
        left_out = by_hand(model, data, [in_float(*parts[name])], target=target)
        assert found[name].alone == pytest.approx(alone, **close)
        assert found[name].left_out == pytest.approx(left_out, **close)
        assert found[name].gain == pytest.approx(left_out - found.quantized, **close)


class Outlying(nn.Module):
    """A layer norm with a large channel, which quantize_script smooths."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)
        with torch.no_grad():
            self.norm.weight[3] = 60

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.norm(x))))


def test_smoothed_models() -> None:
    """Variants are smoothed as what quantize_script makes, from one look at the data."""
    torch.manual_seed(0)
    model, data = torch.jit.script(Outlying().eval()), [torch.randn(8, 16)]
    how: dict[str, Any] = {"target": "reference", "mode": "static"}
    made = jit_passes.provenance(jit_passes.quantize_script(model, data, **how))
    assert made is not None and made["smoothed"] == ["norm:layer_norm"]
    found = jit_passes.sensitivity(model, data, **how)
    assert found.quantized == pytest.approx(by_hand(model, data, [], **how), abs=1e-6)
    left_out = by_hand(model, data, [in_float("second:linear")], **how)
    assert found["second:linear"].left_out == pytest.approx(left_out, abs=1e-6)


def test_planted_layer_costs_most() -> None:
    found = jit_passes.sensitivity(SCALED.model(), SCALED.data(), target="reference")
    assert {row.name for row in found.worst[:2]} == {"expand:conv2d", "depthwise:conv2d"}
    assert found.worst[1].alone < found.worst[2].alone - 10
    assert found.summary.splitlines()[1].startswith(f"costs most alone: {found.worst[0].name} (")
    assert found.worst[0].source in found.summary
    rows = jit_passes.inspect(SCALED.model(), target="reference")
    assert [row.name for row in found.rows] == [
        row.name for row in rows if row.dtype == "int8" and not row.part_of
    ]


def is_float(model: torch.jit.ScriptModule) -> bool:
    """Say whether a model, which is a copy in a metric, is the float one."""
    return jit_passes.provenance(model) is None


class Counted:
    """Batches that count how often they are asked for."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches, self.times = batches, 0

    def __iter__(self) -> Iterator[Tensor]:
        self.times += 1  # when the first one is asked for
        yield from self.batches


def test_work_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    """One pass over the data, one for ranges; each variant is measured once; the log estimates."""
    data, seen = Counted(SCALED.data()), []

    def metric(model: torch.jit.ScriptModule) -> float:
        seen.append(model)
        with torch.no_grad():
            return -float((model(data.batches[0]) - expected).square().mean())

    model = SCALED.model()
    with torch.no_grad():
        expected = model(data.batches[0])
    with caplog.at_level(logging.INFO, "jit_passes"):
        found = jit_passes.sensitivity(model, data, metric, target="reference")
    assert data.times == 1
    assert sum("calibrate begins" in record.message for record in caplog.records) == 1
    assert found.evaluations <= 2 * len(found.rows) + 1
    assert len(seen) == found.evaluations + 1 and is_float(seen[0])
    estimate = [r.message for r in caplog.records if r.message.startswith("sensitivity: ")]
    assert re.fullmatch(
        r"sensitivity: \d+ layers, up to \d+ evaluations, about [\d.]+ s", *estimate
    )
    assert found.metric == "metric" and found.of_float == 0 and found.unit == ""
    assert found["depthwise:conv2d"].alone < 20 * found["stem:conv2d"].alone < 0


def test_layers_and_forms_of_data() -> None:
    """Some layers only; labels beside the inputs; a dict for JSON."""
    model, data = SCALED.model(), SCALED.data()
    labelled = [{"x": x, "label": 1} for x in data]
    some = jit_passes.sensitivity(
        model, labelled, layers=("*:linear", "stem*"), input_fn=lambda batch: {"x": batch["x"]}
    )
    whole = jit_passes.sensitivity(model, iter(data))
    assert [row.name for row in some.rows] == ["stem:conv2d", "head:linear"]
    assert all(row == whole[row.name] for row in some.rows)
    record = json.loads(json.dumps(some.to_dict(), allow_nan=False))
    assert record["of_float"] is None and record["layers"][0]["name"] == "stem:conv2d"
    assert record["layers"][1]["alone"] == some["head:linear"].alone
    lines = str(some).splitlines()
    assert lines[0].split()[:4] == ["layer", "operator", "bits", "alone"] and len(lines) == 5


def test_the_model_and_the_data_stay_as_they_are() -> None:
    """A model that writes into its input included."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = self.second(torch.relu(self.first(x)))
            x.zero_()
            return y

    torch.manual_seed(0)
    model, data = torch.jit.script(Writes().eval()), [torch.randn(4, 6)]
    given, graph = data[0].clone(), str(model.graph)
    found = jit_passes.sensitivity(model, data, target="reference")
    assert torch.equal(data[0], given) and str(model.graph) == graph
    assert 20 < found.quantized < math.inf


def test_modes_without_data() -> None:
    """Dynamic quantization needs no ranges: the metric has data of its own."""
    attention = PLANTED["attention"]
    model, x = attention.model(), attention.data()[0]
    with torch.no_grad():
        expected = model(x)

    def metric(candidate: torch.jit.ScriptModule) -> float:
        with torch.no_grad():
            return sqnr(expected, candidate(x)) if not is_float(candidate) else 100.0

    found = jit_passes.sensitivity(model, None, metric, mode="dynamic", target="reference")
    assert "head:linear" in [row.name for row in found.rows]
    assert found["head:linear"].alone > found.quantized > 0


class Tagger(nn.Module):
    """Words to tags: a bag of characters and a recurrent layer, of several results each."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(30, 12, mode="mean")
        self.recurrent = nn.LSTM(12, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 5)

    def forward(self, words: Tensor) -> Tensor:
        shape = words.shape
        y = self.bag(words.reshape(-1, shape[2])).reshape(shape[0], shape[1], -1)
        return self.head(self.recurrent(y)[0])


@pytest.mark.parametrize("target", ["stock", "reference", "x86"])
def test_operators_of_several_results(target: str) -> None:
    """The operators have a name of their own, by which they are left out and tuned."""
    torch.manual_seed(0)
    model, data = torch.jit.script(Tagger().eval()), [torch.randint(0, 30, (3, 7, 4))]
    found = jit_passes.sensitivity(model, data, target=target)
    names = [row.name for row in found.rows]
    assert {"recurrent:lstm", "head:linear"} < set(names) and len(names) == 3
    for row in found.rows:
        others = [in_float(name) for name in names if name != row.name]
        assert row.alone == pytest.approx(by_hand(model, data, others, target=target), abs=1e-6)
        left_out = by_hand(model, data, [in_float(row.name)], target=target)
        assert row.left_out == pytest.approx(left_out, abs=1e-6)
    budget = max(row.left_out for row in found.rows) - 1e-3
    tuned = jit_passes.tune(model, data, budget=budget, alternatives=(), target=target)
    assert tuned.score >= budget > found.quantized
    rules = [in_float(layer.name) for layer in tuned.layers]
    assert by_hand(model, data, rules, target=target) == pytest.approx(tuned.score, abs=1e-6)


def test_resume(tmp_path: Path) -> None:
    """Scores from before an interruption are not measured again, and none is lost."""
    model, data, file = SCALED.model(), SCALED.data(), tmp_path / "scores.jsonl"
    left = 5

    def until_interrupted(candidate: torch.jit.ScriptModule) -> float:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        with torch.no_grad():
            return float(candidate(data[0]).sum())

    how: dict[str, Any] = {"target": "reference", "resume": file, "layers": ("*:conv2d",)}
    with pytest.raises(KeyboardInterrupt):
        jit_passes.sensitivity(model, data, until_interrupted, **how)
    kept = file.read_text()
    assert len(kept.splitlines()) == 5  # a header, and four of quantized models
    file.write_text(kept + '{"plan": "cut o')
    left = 1000
    resumed = jit_passes.sensitivity(model, data, until_interrupted, **how)
    assert resumed.evaluations == 2 * 6 + 1 - 4
    again = jit_passes.sensitivity(model, data, until_interrupted, **how)
    assert again.evaluations == 0 and again.rows == resumed.rows
    with pytest.raises(jit_passes.JitPassesError, match=r"of another run: metric"):
        jit_passes.sensitivity(model, data, **how)
    with pytest.raises(jit_passes.JitPassesError, match=r"of another run: data"):
        jit_passes.sensitivity(model, data[:1], until_interrupted, **how)
    sqnr_file = tmp_path / "sqnr.jsonl"
    dynamic: dict[str, Any] = {"target": "reference", "mode": "dynamic", "resume": sqnr_file}
    jit_passes.sensitivity(model, data, **dynamic)
    assert jit_passes.sensitivity(model, data, **dynamic).evaluations == 0
    with pytest.raises(jit_passes.JitPassesError, match=r"another run: data"):
        jit_passes.sensitivity(model, data[:1], **dynamic)
    for text in ("not\njson\n", '{"format": "other"}\n', "[]\n"):
        file.write_text(text)
        with pytest.raises(jit_passes.JitPassesError, match=r"is no file of scores: .*; name an"):
            jit_passes.sensitivity(model, data, until_interrupted, **how)


class NotOfABackend(Quantizer):
    """Annotates nothing."""

    def annotate(self, graph: Any) -> Any:
        raise AssertionError


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no data": ({"data": None}, r"outputs on data are compared: pass data"),
    "no batch": ({"data": []}, r"the data is empty"),
    "a tensor": ({"data": torch.zeros(4, 3, 8, 8)}, r"an iterable of batches, not one tensor"),
    "shape": ({"data": [torch.zeros(1, 5, 8, 8)]}, r"batch 0 does not run.*3 channels.*takes"),
    "ranges": (
        {"data": None, "metric": lambda m: 1.0, "mode": "static"},
        r"ranges come from calibration data, .*pass data",
    ),
    "metric": ({"metric": 3}, r"a metric is a function .*, not 3"),
    "metric fails": ({"metric": lambda m: m.nothing}, r"the metric '<lambda>' fails: .*nothing"),
    "no number": ({"metric": lambda m: "good"}, r"returns a number, larger is better, not str"),
    "nan": ({"metric": lambda m: math.nan}, r"gives nan for the float model"),
    "layers": ({"layers": "stem:conv"}, r"layers: 'stem:conv' fits none: did you mean 'stem:conv"),
    "nothing": ({"config": {"version": 1, "global": {"keep_float": True}}}, r"nothing of the mod"),
    "quantizer": ({"quantizer": NotOfABackend()}, r"NotOfABackend takes no options for single"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    options, message = BAD[name]
    given = {"data": SCALED.data(), "target": "reference", **options}
    with pytest.raises(jit_passes.JitPassesError, match=message):
        jit_passes.sensitivity(SCALED.model(), **given)


def test_a_metric_without_a_number_on_a_variant_is_the_worst() -> None:
    """A NaN of a quantized model does not stop the run."""
    model = SCALED.model()
    found = jit_passes.sensitivity(
        model,
        SCALED.data(),
        lambda candidate: 1.0 if is_float(candidate) else math.nan,
        layers="head*",
        quantizer=X86Quantizer(),
    )
    row = found["head:linear"]
    assert (found.quantized, row.alone, row.left_out, row.gain) == (*3 * (-math.inf,), 0)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    torch.jit.save(SCALED.model(), tmp_path / "model.pt")
    np.savez(tmp_path / "data.npz", x=torch.cat(SCALED.data()).numpy())
    (tmp_path / "metrics.py").write_text(
        "import torch\n\n"
        "def spread(model):\n    return float(model(torch.ones(1, 3, 8, 8)).std())\n"
    )
    return tmp_path


def test_command(run: Run, files: Path) -> None:
    """The table of the function; JSON; a metric from a file."""
    arguments = ("sensitivity", files / "model.pt", "--data", files / "data.npz")
    how = ("--target", "reference", "--batch-size", 4)
    done = run(*arguments, *how)
    assert done.code == 0, done.err
    loaded = torch.jit.load(files / "model.pt")
    expected = jit_passes.sensitivity(loaded, SCALED.data(), target="reference")
    assert done.out.rstrip() == without_folders(str(expected))
    own = run(
        *arguments, *how, "--metric", f"{files}/metrics.py:spread", "--layers", "h*", "--json"
    )
    assert own.code == 0, own.err
    assert own.json["metric"] == "spread" and len(own.json["layers"]) == 1
    for named, code in ((f"{files}/metrics.py:gone", 2), ("spread", 2), (f"{files}/no.py:f", 3)):
        failed = run(*arguments, "--metric", named)
        assert failed.code == code and "--metric" in failed.err and not failed.out
    assert run(*arguments[:2]).code == 2


def test_an_interrupted_command_goes_on(run: Run, files: Path) -> None:
    """Ctrl-C says where the scores are, and the same command measures the rest."""
    left, scores = files / "left.txt", files / "scores.jsonl"
    left.write_text("3")
    (files / "tired.py").write_text(
        "import pathlib\n\n"
        "def tired(model):\n"
        f"    file = pathlib.Path({str(left)!r})\n"
        "    left = int(file.read_text()) - 1\n"
        "    file.write_text(str(left))\n"
        "    if left < 0:\n"
        "        raise KeyboardInterrupt\n"
        "    return 1.0\n"
    )
    arguments = ("sensitivity", files / "model.pt", "--data", files / "data.npz", "--layers", "s*")
    how = ("--metric", f"{files}/tired.py:tired", "--resume", scores, "--target", "reference")
    done = run(*arguments, *how)
    assert done.code == 130 and not done.out
    assert f"{scores} has the scores so far" in done.err and "no result" in done.err
    left.write_text("99")
    again = run(*arguments, *how, "--json")
    assert again.code == 0 and again.json["evaluations"] == 1
