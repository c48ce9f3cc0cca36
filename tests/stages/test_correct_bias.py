"""Biases that take back the mean error of results."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphView, JitPassesError, JitPassesWarning
from jit_passes.command_line import main as command
from jit_passes.stages.batch_norms import batch_norms
from jit_passes.stages.batches import Sample
from jit_passes.stages.recording import Recorder, copy_of
from tests.compare import sqnr

LAYERS = ("first:conv2d", "middle:conv2d", "up:conv_transpose2d", "last:linear")
# Coarse weights, and inputs so fine that a step of the bias is small beside the mean errors.
BITS = {"version": 1, "global": {"bits": 12, "weight": {"bits": 3}}}
COARSE = {"version": 1, "global": {"weight": {"bits": 3}}}  # for targets with inputs of 8 bits


class Net(nn.Module):
    """Convolutions with padding and groups, a transposed one, and a linear, without one bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.middle = nn.Conv2d(8, 6, 3, groups=2)
        self.up = nn.ConvTranspose2d(6, 5, 2, stride=2)
        self.last = nn.Linear(5, 7, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.norm(self.first(x)).relu()).relu()
        return self.last(self.up(x).relu().mean([2, 3]))


def net() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    model = Net()
    model.norm.weight.data.uniform_(0.5, 2)
    model.norm.bias.data.uniform_(-1, 1)
    with torch.no_grad():
        for x in data(20):
            model(x)
    return torch.jit.script(model.eval())


def data(count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5 + i, 4, 9, 9, generator=generator) for i in range(count)]


def calibrated(model: Any, target: str = "reference") -> torch.jit.ScriptModule:
    prepared = jit_passes.prepare(model, target=target, config=BITS)
    return jit_passes.calibrate(prepared, data(), progress=False)


def results(model: torch.jit.ScriptModule, batches: list[Tensor]) -> dict[str, Tensor]:
    """Return the mean of each channel of each layer's result."""
    nodes = {n.index: n for n in GraphView.of(model).nodes if n.traits.weighted is not None}
    recorder = Recorder(copy_of(model, "forward"), "forward", list(nodes))
    rows: dict[str, list[Tensor]] = {}
    for batch in batches:
        for index, (value,) in recorder.run(((batch,), {}))[1].items():
            axis = -1 if "linear" in nodes[index].kind else 1
            rows.setdefault(nodes[index].name, []).append(
                value.movedim(axis, 0).flatten(1).double()
            )
    return {name: torch.cat(parts, 1).mean(1) for name, parts in rows.items()}


def errors(prepared: torch.jit.ScriptModule, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    found = results(jit_passes.convert(prepared), data())
    return {name: (found[name] - wanted[name]).abs() for name in wanted}


def steps(reference: torch.jit.ScriptModule) -> dict[str, Tensor]:
    """Return the step of each bias."""
    found = {}
    for node in GraphView.of(reference).nodes:
        made = node.operand("bias").producer if node.traits.weighted is not None else None
        if made is not None and made.kind.startswith("jit_passes::dequantize"):
            found[node.name] = made.inputs[1].constant
    return found


def test_sequential_leaves_no_mean_error() -> None:
    """Of layers with a bias, below the rounding of the bias: half a step, and float32's."""
    prepared = calibrated(net())
    wanted = results(prepared, data())
    before = errors(prepared, wanted)
    corrected = jit_passes.correct_bias(prepared, data(), rounds=10, progress=False)
    after = errors(corrected, wanted)
    known = steps(jit_passes.convert(corrected))
    assert set(known) == set(LAYERS[:3])
    for name, step in known.items():
        noise = 2.0**-18 * wanted[name].abs().max()
        assert (after[name] <= step / 2 + noise).all()
        assert before[name].max() > 20 * after[name].max()
    assert errors(prepared, wanted)["middle:conv2d"].equal(before["middle:conv2d"])  # not touched


def test_one_batch_needs_one_round() -> None:
    """Results are corrected while they are computed, so layers behind see corrected ones."""
    torch.manual_seed(0)
    prepared = calibrated(net())
    batch = data()[:1]
    wanted = results(prepared, batch)
    corrected = jit_passes.convert(jit_passes.correct_bias(prepared, batch, rounds=1))
    found = results(corrected, batch)
    plain = results(jit_passes.convert(prepared), batch)
    for name, step in steps(corrected).items():
        # A step of the layers in front moves results a little, too.
        left, was = (found[name] - wanted[name]).abs(), (plain[name] - wanted[name]).abs()
        assert left.max() < was.max() / 20 and left.max() < 20 * step.max() + 1e-5


def test_fast_is_the_mean_of_what_weights_lose() -> None:
    """Layer by layer on inputs of the float model, in double, padding included."""
    model = net()
    prepared = calibrated(model)
    corrected = jit_passes.correct_bias(prepared, data(), how="fast")
    one, other = (weights(jit_passes.convert(m)) for m in (prepared, corrected))
    rounded, eager = {name: w for name, (w, _) in one.items()}, eager_of(model)
    inputs: dict[str, list[Tensor]] = {}
    for name in ("middle", "up"):
        getattr(eager, name).register_forward_pre_hook(
            lambda _, args, name=name: inputs.setdefault(name, []).append(args[0].double())
        )
    for x in data():
        eager(x)
    for name in inputs:
        weight, bias = floats(eager)[name]
        layer = getattr(eager, name)
        lost = weight.double() - rounded[name].double()
        function = nn.functional.conv_transpose2d if name == "up" else nn.functional.conv2d
        options = {"stride": layer.stride, "padding": layer.padding, "groups": layer.groups}
        rows = [function(x, lost, None, **options).movedim(1, 0).flatten(1) for x in inputs[name]]
        expected = torch.cat(rows, 1).mean(1)
        found = other[name][1].double() - bias.double()
        step = next(s for full, s in steps(jit_passes.convert(corrected)).items() if name in full)
        assert (found - expected).abs().max() <= step.max() / 2 + 1e-5 * expected.abs().max() + 1e-6
        assert expected.abs().max() > 20 * step.max()


def test_fast_leaves_shifts_that_do_not_hold() -> None:
    """Inputs of the first layer have the mean 0, so their means over batches are noise."""
    corrected = jit_passes.correct_bias(calibrated(net()), data(), how="fast")
    remarks = {row.name: row.remark for row in jit_passes.coverage(jit_passes.convert(corrected))}
    assert "leaves its bias: its shift differs too much" in remarks["first:conv2d"]
    assert "has changed its bias by up to" in remarks["middle:conv2d"]
    whole = [torch.cat(data())]  # one batch has nothing to check
    corrected = jit_passes.correct_bias(calibrated(net()), whole, how="fast")
    remarks = {row.name: row.remark for row in jit_passes.coverage(jit_passes.convert(corrected))}
    assert "has changed its bias by up to" in remarks["first:conv2d"]


class OfLengthOne(nn.Module):
    """Rows of zeros, as padding is, stay zeros: a bias would make them rows of length 1."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.key, self.last = nn.Linear(16, 8, bias=bias), nn.Linear(8, 4, bias=not bias)
        if bias:
            nn.init.zeros_(self.key.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.normalize(self.key(x), dim=-1).sum(1))


def test_a_fast_correction_that_does_harm_is_left_out() -> None:
    torch.manual_seed(0)
    model = torch.jit.script(OfLengthOne().eval())
    batches = [torch.rand(8, 6, 16) for _ in range(4)]
    for batch in batches:
        batch[:, 3:] = 0
    how = {"target": "reference", "mode": "dynamic", "progress": False}
    plain = jit_passes.quantize_script(model, batches, bias_correction=None, **how)
    with pytest.warns(JitPassesWarning, match="fast bias correction does not suit the model"):
        made = jit_passes.quantize_script(model, batches, bias_correction="fast", **how)
    with torch.no_grad():
        assert torch.equal(made(batches[0]), plain(batches[0]))
    biased = torch.jit.script(OfLengthOne(bias=True).eval())
    plain = jit_passes.quantize_script(biased, batches, bias_correction=None, **how)
    made = jit_passes.quantize_script(biased, batches, **how)  # by default, without a word
    assert "bias_correction" not in (jit_passes.provenance(made) or {})
    with torch.no_grad():
        assert torch.equal(made(batches[0]), plain(batches[0]))


@pytest.mark.parametrize("target", ["reference", "x86"])
def test_by_default(target: str) -> None:
    """With four batches, as `fast` does; layers without a bias get none, and rows no remark."""
    model, batches = net(), data(4)
    how: dict[str, Any] = {"target": target, "config": COARSE, "progress": False}
    made = jit_passes.quantize_script(model, batches, weight_rounding=None, **how)
    prepared = jit_passes.prepare(model, target=target, config=COARSE)
    prepared = jit_passes.calibrate(prepared, batches, progress=False)
    corrected = jit_passes.correct_bias(prepared, batches, how="fast")
    plain, wanted = (jit_passes.lower(jit_passes.convert(m)) for m in (prepared, corrected))
    with torch.no_grad():
        x = torch.cat(batches)
        assert torch.equal(made(x), wanted(x)) and not torch.equal(made(x), plain(x))
    known = jit_passes.provenance(made)
    assert known is not None and known["bias_correction"] == "auto"
    assert not any("bias correction" in row.remark for row in jit_passes.coverage(made))
    for few, options in ((batches[:3], how), (batches, {**how, "bias_correction": None})):
        made = jit_passes.quantize_script(model, few, **options)
        assert "bias_correction" not in (jit_passes.provenance(made) or {})


def test_by_default_of_any_data() -> None:
    """A generator gives the model that a list gives; a configuration and stages may say none."""
    model, batches = net(), data(9)
    how: dict[str, Any] = {"target": "reference", "progress": False}
    made = jit_passes.quantize_script(model, batches, config=BITS, **how)
    other = jit_passes.quantize_script(model, iter(batches), config=BITS, **how)
    none = {**BITS, "stages": {"bias_correction": "none"}}
    plain = jit_passes.quantize_script(model, batches, config=none, **how)
    with torch.no_grad():
        assert torch.equal(made(batches[0]), other(batches[0]))
        assert not torch.equal(made(batches[0]), plain(batches[0]))


def test_a_sample() -> None:
    """Each batch has an equal chance: 2,000 samples, within 3.5 standard deviations of a share."""
    counts = torch.zeros(12)
    for seed in range(2000):
        sample = Sample(4)
        sample._random.seed(seed)
        for number in range(12):
            sample.look(((number,), {}))
        kept = [args[0] for args, _ in sample.kept]
        assert len(set(kept)) == 4 and sample.seen == 12
        counts[kept] += 1
    deviation = (1 / 3 * 2 / 3 / 2000) ** 0.5
    assert (counts / 2000 - 1 / 3).abs().max() < 3.5 * deviation


def eager_of(model: torch.jit.ScriptModule) -> Net:
    eager = Net().eval()
    eager.load_state_dict(model.state_dict())
    return eager


def floats(eager: Net) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weight and bias of each convolution, the batch norm folded."""
    norm = eager.norm
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    first = eager.first.weight * factor.reshape(-1, 1, 1, 1)
    return {
        "first": (first.detach(), (norm.bias - norm.running_mean * factor).detach()),
        "middle": (eager.middle.weight.detach(), eager.middle.bias.detach()),
        "up": (eager.up.weight.detach(), eager.up.bias.detach()),
    }


def weights(reference: torch.jit.ScriptModule) -> dict[str, tuple[Tensor, Tensor]]:
    """Return what the integers of weight and bias stand for."""
    found = {}
    for node in GraphView.of(reference).nodes:
        if node.traits.weighted is not None and node.kind != "aten::linear":
            pair = []
            for operand in ("weight", "bias"):
                made = node.operand(operand).producer
                assert made is not None
                op = getattr(torch.ops.jit_passes, made.kind.removeprefix("jit_passes::"))
                pair.append(op(*(value.constant for value in made.inputs)))
            found[node.module] = (pair[0], pair[1])
    return found


def test_statistics_by_batch_norms() -> None:
    """The layer behind a batch norm and a relu alone; E[x] is that of a normal cut off at 0."""
    model = net()
    prepared = calibrated(model)
    corrected = jit_passes.correct_bias(prepared)
    one, other = (weights(jit_passes.convert(m)) for m in (prepared, corrected))
    assert torch.equal(one["first"][1], other["first"][1])
    assert torch.equal(one["up"][1], other["up"][1])
    mean = batch_norms(model)["first:conv2d"].clipped_mean(0.0)
    lost = floats(eager_of(model))["middle"][0].double() - one["middle"][0].double()
    spread = mean.reshape(2, 4).repeat_interleave(3, 0).reshape(6, 4, 1, 1)
    expected = (lost * spread).sum((1, 2, 3))
    step = steps(jit_passes.convert(corrected))["middle:conv2d"]
    found = other["middle"][1].double() - one["middle"][1].double()
    assert (found - expected).abs().max() <= 1.01 * step.max()
    assert expected.abs().max() > 20 * step.max()
    # The correction is right about the mean error on data, as far as the data are normal.
    wanted = results(prepared, data())["middle:conv2d"]
    errors = [
        (results(jit_passes.convert(m), data())["middle:conv2d"] - wanted).square().mean()
        for m in (prepared, corrected)
    ]
    assert errors[1] < errors[0] / 2


def test_files_and_copies() -> None:
    """A corrected model can be saved and converted elsewhere; its observers are as they were."""
    prepared = calibrated(net())
    corrected = jit_passes.correct_bias(prepared, data(), how="fast")
    buffer = io.BytesIO()
    torch.jit.save(corrected, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    x = data()[0]
    assert torch.equal(jit_passes.convert(loaded)(x), jit_passes.convert(corrected)(x))
    for name, buffer_of in prepared.named_buffers():
        assert torch.equal(buffer_of, dict(corrected.named_buffers())[name]), name


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
@pytest.mark.parametrize("how", ["sequential", "fast", "statistics"])
def test_in_one_call(how: str, target: str) -> None:
    """Layers without a bias get one; the report says what was done."""
    model = net()
    made = jit_passes.quantize_script(
        model, data(), target=target, bias_correction=how, progress=False
    )
    rows = {row.name: row for row in jit_passes.coverage(made)}
    assert all(row.dtype == "int8" for row in rows.values())
    changed = {name for name, row in rows.items() if f"bias correction ({how})" in row.remark}
    assert changed == ({"middle:conv2d"} if how == "statistics" else set(LAYERS))
    known = jit_passes.provenance(made)
    assert known is not None and known["bias_correction"] == how
    plain = jit_passes.quantize_script(model, data(), target=target, progress=False)
    x = data()[1]
    assert not torch.equal(made(x), plain(x))
    assert (made(x) - model(x)).abs().max() < 0.1 * model(x).abs().max()


def test_errors() -> None:
    prepared = calibrated(net())
    with pytest.raises(JitPassesError, match="how='fast' needs data"):
        jit_passes.correct_bias(prepared, how="fast")
    with pytest.raises(JitPassesError, match="how is one of"):
        jit_passes.correct_bias(prepared, data(), how="slow")
    with pytest.raises(JitPassesError, match="rounds is a whole number above 0"):
        jit_passes.correct_bias(prepared, data(), rounds=0)
    gc.collect()
    with pytest.raises(JitPassesError, match="the float model is gone"):
        jit_passes.correct_bias(prepared)
    with pytest.raises(JitPassesError, match="prepared module is needed"):
        jit_passes.correct_bias(net(), data())
    with pytest.raises(JitPassesError, match="the float model, a ScriptModule, not Net"):
        jit_passes.correct_bias(prepared, how="statistics", model=Net())
    other = torch.jit.script(nn.Linear(4, 4).eval())
    with pytest.warns(JitPassesWarning, match="no quantized layer has .* a batch norm"):
        jit_passes.correct_bias(prepared, how="statistics", model=other)
    with pytest.raises(JitPassesError, match=r"batch 1 of the data does not run\. .* 4 channels"):
        jit_passes.correct_bias(prepared, [*data(1), torch.zeros(2, 3, 9, 9)])
    with pytest.raises(JitPassesError, match="needs calibration data"):
        jit_passes.quantize_script(net(), bias_correction="fast")


def test_the_command(tmp_path: Path) -> None:
    torch.jit.save(net(), tmp_path / "float.pt")
    np.savez(tmp_path / "data.npz", x=torch.cat(data()).numpy())
    (tmp_path / "bits.yaml").write_text(yaml.safe_dump(BITS))
    given: list[Any] = ["quantize", tmp_path / "float.pt", "-o", tmp_path / "int8.pt"]
    given += ["--config", tmp_path / "bits.yaml", "--target", "reference"]
    given += ["--data", tmp_path / "data.npz", "--correct-bias", "fast"]
    assert command([*map(str, given)]) == 0
    made = jit_passes.provenance(torch.jit.load(tmp_path / "int8.pt"))
    assert made is not None and made["bias_correction"] == "fast"
    given = [*given[:-2], "--batch-size", 4]
    for words, known in (((), "auto"), (("--correct-bias", "none"), None)):
        assert command([*map(str, (*given, *words))]) == 0
        made = jit_passes.provenance(torch.jit.load(tmp_path / "int8.pt"))
        assert made is not None and made.get("bias_correction") == known


def test_deep_models_gain() -> None:
    """Of forty layers: corrected all at once, each takes back again the errors of all in front."""
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 1)]
    for _ in range(40):
        conv = nn.Conv2d(8, 8, 3, padding=1)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        nn.init.normal_(conv.bias, 0, 0.3)
        layers += [conv, nn.ReLU()]
    model = torch.jit.script(nn.Sequential(*layers).eval())
    generators = (torch.Generator().manual_seed(i) for i in range(6))
    batches = [torch.randn(4, 3, 8, 8, generator=generator) for generator in generators]
    prepared = jit_passes.prepare(model, target="reference", mode="static")
    prepared = jit_passes.calibrate(prepared, batches)
    corrected = jit_passes.correct_bias(prepared, batches, how="sequential")
    before, after = (jit_passes.convert(m) for m in (prepared, corrected))
    with torch.no_grad():
        x = torch.cat(batches)
        wanted = model(x)
        errors = [float((wanted - other(x)).square().mean()) for other in (before, after)]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_layers_behind_which_nothing_is_quantized(mode: str) -> None:
    """Corrections are inserted behind the last operator of a block, too."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval())
    batches = [torch.randn(40, 16, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    config = {"version": 1, "global": {"weight": {"bits": 3}}}
    prepared = jit_passes.prepare(model, target="reference", mode=mode, config=config)
    before = jit_passes.convert(prepared)
    after = jit_passes.convert(jit_passes.correct_bias(prepared, batches))
    x = torch.cat(batches)
    with torch.no_grad():
        errors = [(other(x) - model(x)).mean(0).abs().max() for other in (before, after)]
    assert errors[1] < errors[0] / 20


def test_a_sequential_correction_that_does_harm_is_left_out() -> None:
    """Where no layer behind can take back what a bias does."""
    torch.manual_seed(0)
    model = torch.jit.script(OfLengthOne(bias=True).eval())
    batches = [torch.rand(8, 6, 16) for _ in range(4)]
    for batch in batches:
        batch[:, 3:] = 0
    prepared = jit_passes.prepare(model, target="reference", mode="dynamic")
    with pytest.warns(JitPassesWarning, match="sequential bias correction does not suit the model"):
        corrected = jit_passes.correct_bias(prepared, batches)
    before, after = jit_passes.convert(prepared), jit_passes.convert(corrected)
    with torch.no_grad():
        assert torch.equal(before(batches[0]), after(batches[0]))
    known = jit_passes.provenance(after)
    assert known is not None and "bias_correction" not in known


def test_sequential_compares_a_batch_with_itself() -> None:
    """Means of batches differ by more than the errors do; a single round is enough."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), *(nn.Conv2d(16, 16, 3) for _ in range(7))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    net = nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU())))
    batches = [torch.rand(4, 3, 24, 24) * size for size in (0.1, 1, 0.3, 2)]
    fine = {"version": 1, "global": {"bits": 12, "weight": {"bits": 8}}}
    prepared = jit_passes.prepare(torch.jit.script(net.eval()), target="reference", config=fine)
    prepared = jit_passes.calibrate(prepared, batches, progress=False)
    plain = jit_passes.convert(prepared)
    for rounds in (1, 2):
        made = jit_passes.convert(jit_passes.correct_bias(prepared, batches, rounds=rounds))
        with torch.no_grad():
            x = torch.cat(batches)
            before, after = ((m(x) - net(x)).square().mean() for m in (plain, made))
        assert after < 0.7 * before


class Detected(nn.Module):
    """The size of its first result depends on the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.last(torch.relu(self.first(x)))
        return y[y > 0], y


def test_results_whose_sizes_depend_on_numbers() -> None:
    torch.manual_seed(0)
    model = torch.jit.script(Detected().eval())
    batches = [torch.randn(64, 8) for _ in range(4)]
    config = {"version": 1, "global": {"weight": {"bits": 3}}}
    prepared = jit_passes.prepare(model, target="reference", mode="static", config=config)
    prepared = jit_passes.calibrate(prepared, batches)
    before = jit_passes.convert(prepared)
    with torch.no_grad():
        assert any(model(x)[0].shape != before(x)[0].shape for x in batches)
    after = jit_passes.convert(jit_passes.correct_bias(prepared, batches))
    x = torch.cat(batches)
    with torch.no_grad():
        errors = [(m(x)[1] - model(x)[1]).mean(0).abs().max() for m in (before, after)]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("how", ["fast", "sequential"])
def test_data_with_a_nan(how: str) -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval())
    batches = [torch.ones(2, 4), torch.full((2, 4), torch.nan)]
    with pytest.raises(JitPassesError, match="batch 1 of the data holds a NaN"):
        jit_passes.quantize_script(model, batches, mode="dynamic", bias_correction=how)
    made = jit_passes.quantize_script(model, 2 * batches, mode="dynamic")  # not by default
    assert "bias_correction" not in (jit_passes.provenance(made) or {})


class Written(nn.Module):
    """Writes into its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(3.0).mul_(0.5)
        return self.last(torch.relu(self.first(x)))


@pytest.mark.parametrize(
    "stages",
    [
        {"bias_correction": "sequential", "weight_rounding": None},
        {"weight_rounding": "gptq_sequential"},
        {},
    ],
)
def test_a_model_that_writes_into_its_argument(stages: dict[str, Any]) -> None:
    """All stages see the batches as they were, and so does the caller."""
    torch.manual_seed(0)
    model = torch.jit.script(Written().eval())
    batches = [torch.randn(16, 8) + 3 for _ in range(4)]
    given = [x.clone() for x in batches]
    made = jit_passes.quantize_script(model, given, target="reference", **stages)
    assert all(torch.equal(x, y) for x, y in zip(given, batches, strict=True))
    with torch.no_grad():
        wanted, found = (torch.cat([m(x.clone()) for x in batches]) for m in (model, made))
    assert sqnr(wanted, found) > 35  # below 26 with batches that calibration has changed


def test_batches_without_rows() -> None:
    """They add nothing to a mean."""
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval())
    batches = [torch.randn(8, 4) for _ in range(2)]
    prepared = jit_passes.prepare(model, target="reference", mode="static")
    prepared = jit_passes.calibrate(prepared, batches)
    x = torch.cat(batches)
    made, other = (
        jit_passes.convert(jit_passes.correct_bias(prepared, given, how="sequential"))
        for given in (batches, [batches[0], torch.zeros(0, 4), batches[1]])
    )
    assert torch.equal(made(x), other(x))


@pytest.mark.parametrize(
    "stages", [{"bias_correction": "sequential"}, {"weight_rounding": "adaround"}]
)
def test_another_default_type(stages: dict[str, str]) -> None:
    """The default type of the caller's program is of no account."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval())
    batches = [torch.randn(16, 8) for _ in range(4)]
    plain = jit_passes.quantize_script(model, batches, target="reference", config=COARSE, **stages)
    torch.set_default_dtype(torch.float64)
    try:
        made = jit_passes.quantize_script(
            model, batches, target="reference", config=COARSE, **stages
        )
    finally:
        torch.set_default_dtype(torch.float32)
    x = torch.cat(batches)
    assert torch.equal(made(x), plain(x))
