"""Tools that look at models, and make files of them, where inputs are quantized as they run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.export import encodings_of
from jit_passes.targets import x86
from tests.processor import bits_here
from tests.quantizing import seeded
from tests.targets.test_dynamic import MIXED, Mixed, Net, close, kinds, script

TARGETS = ["reference", "stock", "x86"]


def images() -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(4)]


def reference(target: str = "reference") -> torch.jit.ScriptModule:
    prepared = jit_passes.prepare(script(seeded(Mixed)), config=MIXED, target=target)
    return jit_passes.convert(jit_passes.calibrate(prepared, images()))


def reloaded(model: torch.jit.ScriptModule) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(model, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


@pytest.mark.parametrize("target", TARGETS)
def test_regions_and_inspection_agree(target: str) -> None:
    """Only x86 has regions of dynamic operators; elsewhere the reason names the value."""
    model = reference(target)
    partition = jit_passes.partition(model, target)
    refused = {row.name: row.reason for row in partition.refused}
    inside = target == "x86"
    reason = None if inside else "its operand 'mean' is quantized as the model runs"
    assert refused.get("body:linear") == reason
    x = images()[0]
    assert torch.equal(partition.model(x), model(x))
    inspection = jit_passes.inspect(script(seeded(Mixed)), config=MIXED, target=target)
    rows = {row.name: row for row in inspection}
    region = 1 if inside else None
    assert (rows["body:linear"].mode, rows["body:linear"].region) == ("dynamic", region)
    assert (rows["conv:conv2d"].mode, rows["conv:conv2d"].region) == ("static", 1)
    if inside:  # an inspection names functions, too
        assert set(inspection.regions[0]) >= {"conv:conv2d", "body:linear", "head:linear"}
    where = ["region", "1,"] if inside else []
    bits = bits_here("w8a8") if target == "stock" else "w8a8"
    assert str(inspection).splitlines()[-1].split() == [
        "head:linear", "aten::linear", bits, *where, "dynamic",
    ]  # fmt: skip


class Tagger(nn.Module):
    """A recurrent layer and a linear, which read one value."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(16, 24), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        """Return [tokens, batch, 24]."""
        return self.rnn(x)[0] + self.head(x)


@pytest.fixture(params=[False, True], ids=["vnni", "without"])
def saturates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether PyTorch's kernels need inputs of 7 bits, as the target x86 sees it."""
    monkeypatch.setattr(x86, "needs_reduced_range", lambda engine: request.param)
    x86._capability.cache_clear()
    yield request.param
    x86._capability.cache_clear()


def test_plans_have_8_bits_on_every_processor(saturates: bool) -> None:
    """Their sums are exact; a layer that PyTorch computes has what its kernels can."""
    model = script(seeded(Tagger))
    converted = jit_passes.convert(jit_passes.prepare(model, target="x86", mode="dynamic"))
    lowered = jit_passes.lower(converted)
    for stage in (converted, lowered):
        bits = {row.kind: (row.bits, row.mode) for row in jit_passes.coverage(stage)}
        of_pytorch = "w8a7" if saturates else "w8a8"
        assert bits == {"gru": (of_pytorch, "dynamic"), "linear": ("w8a8", "dynamic")}
    if saturates:  # otherwise the processor may not be one for these kernels
        x = torch.randn(5, 3, 16)
        close(lowered(x), converted(x), 0.03)
    assert not kinds(lowered, "aten::linear")
    assert ("aten::quantized_gru" in kinds(lowered)) is saturates


@pytest.mark.parametrize("target", ["reference", "stock"])
def test_parity(target: str) -> None:
    """Values behind dynamic places are compared; these themselves have no grid to compare on."""
    training = torch.jit.script(seeded(Mixed).train())
    qat = jit_passes.prepare_qat(training, config=MIXED, target=target)
    optimizer = torch.optim.SGD(qat.parameters(), 1e-3)
    for batch in images():
        optimizer.zero_grad()
        qat(batch).square().mean().backward()
        optimizer.step()
    converted = jit_passes.convert(qat.eval())
    parity = jit_passes.parity(qat, converted, images()[:1])
    assert str(parity).splitlines()[-1] == "equal"
    names = {row.name for row in parity.rows}
    assert {"body.weight -> body:linear", "output"} <= names
    assert not any("mean -> body" in name for name in names)
    with torch.no_grad():
        close(jit_passes.lower(converted)(images()[0]), converted(images()[0]), 0.02)


def test_a_profile_is_for_static_places() -> None:
    """A profile fills the places that calibration would, and a dynamic model takes any."""
    model = script(seeded(Mixed))
    profile = jit_passes.profile(model, images())
    filled = jit_passes.quantize_script(model, profile=profile, config=MIXED, target="stock")
    calibrated = jit_passes.lower(reference("stock"))
    x = images()[0]
    assert torch.equal(filled(x), calibrated(x))
    net = script(seeded(Net))
    own = jit_passes.profile(net, [torch.randn(3, 12)])
    dynamic = jit_passes.quantize_script(net, profile=own, mode="dynamic", target="stock")
    plain = jit_passes.quantize_script(net, mode="dynamic", target="stock")
    y = torch.randn(5, 12)
    assert torch.equal(dynamic(y), plain(y))


def test_encodings_are_of_static_values() -> None:
    """A value whose grid is not known ahead has none; weights have theirs."""
    found = {encoding.name for encoding in encodings_of(reference())}
    assert {"x", "conv.weight", "body.weight"} <= found
    assert not any(name.startswith("body:linear") for name in found)


@pytest.mark.parametrize("stage", ["prepared", "qat", "reference", "lowered"])
def test_every_stage_can_be_saved(stage: str) -> None:
    """A file goes on where the model was."""
    x = torch.randn(6, 12)
    if stage == "qat":
        model = jit_passes.prepare_qat(script(seeded(Net)), mode="dynamic", target="stock").eval()
    else:
        model = jit_passes.prepare(script(seeded(Net)), mode="dynamic", target="stock")
    model = jit_passes.convert(model) if stage in ("reference", "lowered") else model
    model = jit_passes.lower(model) if stage == "lowered" else model
    loaded = reloaded(model)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
    assert [row.mode for row in jit_passes.coverage(loaded)] == ["dynamic"] * 4
    if stage in ("prepared", "qat"):
        assert len(kinds(jit_passes.convert(loaded), "jit_passes::choose_qparams")) == 3


class Branches(nn.Module):
    """A linear that data may never reach."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Conv2d(3, 4, 1)
        self.seldom = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, 4]."""
        y = self.always(x).mean([2, 3])
        if bool(y.sum() > 1e6):
            y = self.seldom(y)
        return y


@pytest.mark.parametrize("target", TARGETS)
def test_no_data_has_to_reach_it(target: str) -> None:
    """A dynamic operator in a branch that calibration has not taken is quantized as any other."""
    prepared = jit_passes.prepare(script(seeded(Branches)), config=MIXED, target=target)
    converted = jit_passes.convert(jit_passes.calibrate(prepared, images()))
    rows = {row.name: row for row in jit_passes.coverage(converted)}
    assert (rows["seldom:linear"].dtype, rows["seldom:linear"].mode) == ("int8", "dynamic")
    assert len(kinds(converted, "jit_passes::choose_qparams")) == 1


class Both(nn.Module):
    """A convolution, and linears in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.body, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(self.conv(x).mean([2, 3]))))


@pytest.mark.parametrize(
    ("target", "mode"), [("stock", "dynamic"), ("stock", "weight_only"), ("x86", "weight_only")]
)
def test_a_mode_of_all_is_for_those_that_can(
    target: str, mode: str, recwarn: pytest.WarningsRecorder
) -> None:
    """The others are in float; nobody asked for them by name, so there is no warning."""
    quantized = jit_passes.quantize_script(script(seeded(Both)), mode=mode, target=target)
    rows = {row.name: row for row in jit_passes.coverage(quantized)}
    assert rows["conv:conv2d"].dtype == "float"
    assert rows["conv:conv2d"].reason == f"the target has no {mode} form of it"
    assert rows["body:linear"].mode == rows["head:linear"].mode == mode
    assert not [w for w in recwarn if issubclass(w.category, jit_passes.JitPassesWarning)]
    asked = {"version": 1, "rules": [{"module": "conv", "mode": mode}]}
    with pytest.warns(jit_passes.JitPassesWarning, match="conv:conv2d"):
        jit_passes.quantize_script(script(seeded(Both)), mode=mode, target=target, config=asked)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_compare(mode: str) -> None:
    """Results of operators are compared where nothing else is; a planted bad one is found."""
    model, data = script(seeded(Both)), images()
    narrow = {"version": 1, "rules": [{"module": "body", "weight": {"bits": 2}}]}
    how: dict[str, Any] = {"mode": mode, "target": "reference"}
    found = jit_passes.compare(model, jit_passes.quantize_script(model, **how), data)
    assert {"conv:conv2d", "body:linear", "head:linear", "output"} <= {r.name for r in found.rows}
    assert all(row.own_sqnr > 20 for row in found.rows) and found.sqnr > 20
    bad = jit_passes.compare(model, jit_passes.quantize_script(model, config=narrow, **how), data)
    assert bad.worst[0].name == "body:linear" and bad.sqnr < found.sqnr - 10
    with torch.no_grad():
        expected = torch.cat([model(x) for x in data])
        result = torch.cat([jit_passes.quantize_script(model, **how)(x) for x in data])
    noise = (expected - result).double().square().sum()
    sqnr = 10 * float((expected.double().square().sum() / noise).log10())
    assert found["output"].sqnr == pytest.approx(sqnr, abs=1e-6)
