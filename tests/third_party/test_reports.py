"""Reports on models in which operators, calibrations or training methods are somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import Comparison, JitPassesError
from tests.third_party.coarse_steps import CoarseSteps
from tests.third_party.core_range import CoreRange
from tests.third_party.lathe import Lathe

CORE_RANGE = {"method": CoreRange.name, "share": 0.95}
MINE = {
    "version": 1,
    "global": {"input": {"calibration": CORE_RANGE}, "output": {"calibration": CORE_RANGE}},
}
LATHES = [Lathe(), Lathe(convolves=False), Lathe("sigmoid_rows")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.sigmoid(self.first(x)))


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(2, 3, 8, 8, generator=generator) for _ in range(3)]


@pytest.fixture(params=[False, True], ids=["script", "trace"])
def model(request: pytest.FixtureRequest) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    net = Net().eval()
    made: Any = torch.jit.trace(net, batches()[0]) if request.param else torch.jit.script(net)
    return made


def reloaded(model: torch.jit.ScriptModule, folder: Path) -> torch.jit.ScriptModule:
    torch.jit.save(model, folder / "model.pt")
    return torch.jit.load(folder / "model.pt")


def as_numbers(found: Comparison) -> dict[str, tuple[float, float]]:
    return {row.name: (row.sqnr, row.own_sqnr) for row in found.rows}


@pytest.mark.parametrize("lathe", LATHES, ids=repr)
def test_codes_that_operators_pass_on(
    model: torch.jit.ScriptModule, lathe: Lathe, tmp_path: Path
) -> None:
    """The reference model computes the same numbers, so errors are equal but for ties."""
    data = batches()
    prepared = jit_passes.calibrate(jit_passes.prepare(model, target=lathe), data, progress=False)
    reference = jit_passes.convert(prepared)
    lowered = reloaded(jit_passes.lower(reference), tmp_path)
    kinds = {node.kind for node in jit_passes.GraphView.of(lowered).nodes}
    assert f"lathe::{lathe.operator}" in kinds
    assert ("lathe::conv2d" in kinds) == lathe.convolves
    found = jit_passes.compare(model, lowered, data, progress=False)
    wanted = as_numbers(jit_passes.compare(model, reference, data, progress=False))
    if lathe.operator == "sigmoid_rows":  # nothing says in which order its codes are
        assert found.unmatched == ("sigmoid",) and "in a form of its own" in str(found)
        del wanted["sigmoid"]
        wanted["second:conv2d"] = (wanted["second:conv2d"][0], found["second:conv2d"].own_sqnr)
    else:
        assert not found.unmatched
    assert list(as_numbers(found)) == list(wanted)
    for name, numbers in as_numbers(found).items():
        assert numbers == pytest.approx(wanted[name], abs=0.1), name
    jit_passes.report(model, lowered, data, tmp_path / "report.html", progress=False)
    assert "second:conv2d" in (tmp_path / "report.html").read_text()


def test_a_wrong_operator_is_found(model: torch.jit.ScriptModule) -> None:
    """Where codes are passed on, and where they are dequantized."""
    for convolves in (True, False):
        wrong = Lathe("sigmoid_plus_two", convolves)
        qat = jit_passes.prepare_qat(model, target=wrong).train()
        qat(batches()[0])
        lowered = jit_passes.lower(jit_passes.convert(qat.eval()))
        found = jit_passes.parity(qat, lowered, batches())
        assert found.first is not None and found.first.name == "sigmoid", str(found)
        assert found.first.own_steps == pytest.approx(2, abs=0.01)
        assert found["second:conv2d"].inherited or not found["second:conv2d"].different
        again = jit_passes.quantize_script(model, batches(), target=wrong, progress=False)
        rows = jit_passes.compare(model, again, batches(), progress=False)
        assert rows["sigmoid"].own_steps == pytest.approx(3, abs=0.6)  # and what rounding gives
        assert rows["second:conv2d"].own_sqnr > rows["second:conv2d"].sqnr + 3


@pytest.mark.parametrize("lathe", LATHES, ids=repr)
def test_layers_are_measured(model: torch.jit.ScriptModule, lathe: Lathe, tmp_path: Path) -> None:
    """With a calibration of somebody else's too; scores are those of the model that is meant."""
    data = batches()
    for config in (None, MINE):
        options = {"target": lathe, "config": config, "progress": False}
        quantized = jit_passes.quantize_script(model, data, **options)
        score = jit_passes.compare(model, quantized, data, progress=False).sqnr
        costs = jit_passes.sensitivity(model, data, **options)
        assert [row.name for row in costs.rows] == ["first:conv2d", "sigmoid", "second:conv2d"]
        assert costs.quantized == pytest.approx(score, abs=1e-6)
        assert costs["second:conv2d"].alone > score
        tuned = jit_passes.tune(model, data, budget=score + 1, **options)
        assert tuned.score >= score + 1 and tuned.layers
        tuned.save(tmp_path / "layers.yaml")
        again = jit_passes.quantize_script(
            model, data, target=lathe, config=tmp_path / "layers.yaml", progress=False
        )
        found = jit_passes.compare(model, again, data, progress=False)
        assert found.sqnr == pytest.approx(tuned.score, abs=1e-6)


@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")  # of what a form cannot say
@pytest.mark.parametrize("lathe", LATHES, ids=repr)
def test_a_method_and_an_operator_of_others(
    model: torch.jit.ScriptModule, lathe: Lathe, tmp_path: Path
) -> None:
    """Trained with one, lowered to the other: all that tells about such a model."""
    data = batches()
    method = CoarseSteps(1.5)
    qat = jit_passes.prepare_qat(model, fake_quantizer=method, bits=None, target=lathe).train()
    for x in data:
        qat(x)
    qat = reloaded(qat.eval(), tmp_path)
    lowered = jit_passes.lower(jit_passes.convert(qat))
    found = jit_passes.parity(qat, lowered, data)
    names = [row.name for row in found.rows if row.kind == "activation"]
    between = ["sigmoid"] if lathe.operator == "sigmoid" else []
    assert names == ["x", "first:conv2d", *between, "second:conv2d"]
    assert found.largest_steps <= 1, str(found)
    stripped, encodings = jit_passes.strip(qat)
    compared = jit_passes.compare(stripped, lowered, data, progress=False)
    assert 15 < compared.sqnr < 60
    jit_passes.report(stripped, lowered, data, tmp_path / "report.html", progress=False)
    assert "first:conv2d" in encodings and "sigmoid" in encodings
    for form in ("nni", "aimet", "tensorrt"):
        jit_passes.export_calibration(encodings, tmp_path / form, format=form)
    with pytest.raises(JitPassesError, match=r"got a lowered one"):
        jit_passes.encodings_of(lowered)
