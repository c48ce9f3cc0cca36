"""Models with a part that is quantized already: it stays as it is, the rest is quantized."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as eager

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning, RewriteRule
from tests.advice import traced_branches
from tests.compare import sqnr
from tests.qat_nets import batch, reloaded, seeded

Model = torch.jit.ScriptModule
X = [batch(4, 3, 8, 8, seed=i) for i in range(3)]
TARGETS = ("x86", "stock", "reference")


class Backbone(nn.Module):
    """The part."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = nn.Identity(), nn.Identity()
        self.conv, self.relu, self.fc = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(self.quant(x)))
        return self.dequant(self.fc(x.mean((2, 3))))


class Whole(nn.Module):
    """A part, and a head behind it."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.head = part, seeded(nn.Linear(6, 3), seed=3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.part(x)))


def backbone() -> nn.Module:
    return seeded(Backbone, seed=2).eval()


def scripted() -> Model:
    return torch.jit.script(backbone())


def by_quantize_jit() -> nn.Module:
    def run(model: Model, data: list[Tensor]) -> None:
        for x in data:
            model(x)

    options = {"": eager.default_qconfig}
    return eager.quantize_jit(scripted(), options, run, [X])


def by_eager_mode() -> nn.Module:
    model = backbone()
    model.quant, model.dequant = eager.QuantStub(), eager.DeQuantStub()
    model.qconfig = eager.get_default_qconfig("x86")
    eager.prepare(model, inplace=True)
    for x in X:
        model(x)
    return eager.convert(model)


def by_dynamic_jit() -> nn.Module:
    options = {"": eager.default_dynamic_qconfig}
    return eager.quantize_dynamic_jit(scripted(), options)


PARTS: dict[str, Callable[[], nn.Module]] = {
    **{t: lambda t=t: jit_passes.quantize_script(scripted(), X, target=t) for t in TARGETS},
    "x86_dynamic": lambda: jit_passes.quantize_script(scripted(), mode="dynamic", target="x86"),
    "stock_dynamic": lambda: jit_passes.quantize_script(scripted(), mode="dynamic", target="stock"),
    "quantize_jit": by_quantize_jit,
    "quantize_dynamic_jit": by_dynamic_jit,
    "eager_mode": by_eager_mode,
    "quantize_dynamic": lambda: eager.quantize_dynamic(backbone(), {nn.Linear}, torch.qint8),
}
OURS = ("x86", "stock", "reference", "x86_dynamic", "stock_dynamic")
OPERATORS = {"part.conv", "part.fc"}
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    traced_branches,
]


@cache
def part(name: str) -> nn.Module:
    return PARTS[name]()


def whole(name: str, form: str) -> Model:
    model = Whole(part(name)).eval()
    if form == "traced":
        return torch.jit.trace(model, X[0], check_trace=False)
    return reloaded(torch.jit.script(model)) if form == "loaded" else torch.jit.script(model)


def float_operators(name: str) -> int:
    """How many operators of the part are in float: dynamic quantization leaves convolutions."""
    return int(name in ("stock_dynamic", "quantize_dynamic_jit", "quantize_dynamic"))


@pytest.mark.parametrize("form", ["scripted", "traced", "loaded"])
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_rest_is_quantized(name: str, form: str, target: str) -> None:
    """The head alone adds an error: 30 dB and more, and none where all of it is kept."""
    model = whole(name, form)
    expected = model(X[0])
    with pytest.warns(JitPassesWarning, match="quantized already, and kept as it is: 'part"):
        made = jit_passes.quantize_script(model, X, target=target)
    assert torch.equal(model(X[0]), expected)
    assert not torch.equal(made(X[0]), expected)
    assert sqnr(expected, made(X[0])) > 30
    rows = {row.name.partition(":")[0]: row for row in jit_passes.coverage(made)}
    assert rows["head"].dtype == "int8" and rows["head"].why != "quantized already"
    if name in OURS:
        assert torch.equal(made.part(X[0]), part(name)(X[0]))
        assert {*rows} == {"head", *OPERATORS}
        floats = [row.name for row in rows.values() if row.dtype == "float"]
        assert len(floats) == float_operators(name)
    before = [row for row in rows.values() if row.why == "quantized already"]
    assert before and all(row.dtype == "int8" for row in before)
    assert "quantized already" in str(jit_passes.coverage(made))
    assert torch.equal(reloaded(made)(X[0]), made(X[0]))
    assert [*jit_passes.coverage(reloaded(made))] == [*jit_passes.coverage(made)]


@pytest.mark.parametrize("form", ["scripted", "traced"])
@pytest.mark.parametrize("name", PARTS)
def test_before_it_is_quantized(name: str, form: str) -> None:
    """Reports list the operators of the part, and say of the others what will become of them."""
    model = whole(name, form)
    for rows in (jit_passes.coverage(model), jit_passes.inspect(model)):
        known = {row.name.partition(":")[0]: row for row in rows if "linear" in row.kind}
        assert known["head"].why != "quantized already"
        kept = [row for row in rows if row.why == "quantized already"]
        assert len(kept) == 2 - float_operators(name)
        assert all(row.dtype == "int8" for row in kept)
    assert jit_passes.coverage(model).float[-1 if name not in OURS else 0].name == "head:linear"


@pytest.mark.parametrize("name", PARTS)
def test_the_rest_trains(name: str) -> None:
    """The head does, and the part is what it was: a model in eval mode and its int8 form agree."""
    model = whole(name, "scripted")
    with pytest.warns(JitPassesWarning, match="no gradient goes through it"):
        prepared = jit_passes.prepare_qat(model)
    names = [n for n, _ in prepared.named_parameters()]
    assert {"head.weight", "head.bias", "head.weight_scale"} <= {*names}
    prepared.train()(X[0]).square().mean().backward()
    assert all(p.grad is not None for n, p in prepared.named_parameters() if n.startswith("head"))
    assert not getattr(model, "training", False) and not getattr(model.part, "training", False)
    prepared.eval()
    reference = jit_passes.convert(prepared)
    expected = prepared(X[0])
    torch.testing.assert_close(reference(X[0]), expected, rtol=1e-5, atol=1e-5)
    step = float(expected.detach().unique().diff().min())
    assert (jit_passes.lower(reference)(X[0]) - expected).abs().max() <= 1.01 * step


@pytest.mark.parametrize("name", PARTS)
def test_where_nothing_is_left(name: str) -> None:
    """A wholly quantized model is refused, however deep it lies."""

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = part(name)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.inner(x))

    model = torch.jit.script(Wrapped().eval())
    if name in ("quantize_dynamic_jit", "quantize_dynamic"):  # their convolutions are left
        made = jit_passes.quantize_script(model, X)
        assert [row.name for row in jit_passes.coverage(made).float] == []
        return
    for quantize in (jit_passes.inspect, jit_passes.prepare):
        with pytest.raises(JitPassesError, match="quantized already: start from the float model"):
            quantize(model)
    assert jit_passes.coverage(model).int8


@pytest.mark.parametrize("name", ["x86", "stock", "reference", "quantize_jit", "eager_mode"])
def test_stages_and_tools(name: str) -> None:
    """Each stage and tool takes a model with a part, as it takes one without."""
    model = whole(name, "scripted")
    prepared = jit_passes.calibrate(jit_passes.prepare(model, target="x86"), X)
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    assert sqnr(model(X[0]), lowered(X[0])) > 30
    (region,) = jit_passes.partition(reference, "x86").regions
    assert region.operators == ("head:linear",)
    compared = jit_passes.compare(model, reference, X, progress=False)
    assert "head:linear" in {row.name for row in compared.rows}
    layers = jit_passes.sensitivity(model, X, target="x86", progress=False).rows
    assert "head:linear" in {row.name for row in layers}
    assert not any(row.name.startswith("part") for row in layers)
    profiled = jit_passes.quantize_script(model, profile=jit_passes.profile(model, X), target="x86")
    assert sqnr(lowered(X[0]), profiled(X[0])) > 60
    rule = RewriteRule(
        "tanh",
        "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)",
        "graph(%x):\n  %y = aten::tanh(%x)\n  return (%y)",
    )
    changed = rule.apply(model).module
    if name != "eager_mode":  # whose own relu is an operator of the graph like others
        torch.testing.assert_close(changed(X[0]), model.head(model.part(X[0]).tanh()))


class Beside(nn.Module):
    """Parts called twice, one behind a float layer, named as regions are."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.region_0, self.inner = one, nn.ModuleDict({"region_0": other})
        self.stem, self.head = nn.Conv2d(3, 3, 1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.region_0(torch.relu(self.stem(x))) + self.inner["region_0"](x)
        return self.head(y + self.region_0(x))


@pytest.mark.parametrize("target", TARGETS)
def test_several_parts(target: str) -> None:
    """Each keeps its name, and is what it was for each call."""
    model = torch.jit.script(seeded(Beside(part("x86"), part("stock")), seed=4).eval())
    made = jit_passes.quantize_script(model, X, target=target)
    assert sqnr(model(X[0]), made(X[0])) > 30
    names = {row.name for row in jit_passes.coverage(made)}
    for path in ("region_0", "inner.region_0"):
        assert {f"{path}.conv:conv2d", f"{path}.fc:linear"} <= names
    assert not jit_passes.coverage(made).float
    again = torch.jit.script(nn.Sequential(made, nn.Linear(3, 2)).eval())  # a part with parts
    whole = jit_passes.quantize_script(again, X, target=target)
    assert sqnr(again(X[0]), whole(X[0])) > 30


def test_parts_on_their_way() -> None:
    """The error names the part and the next step; coverage works all the same."""
    prepared = jit_passes.prepare(scripted())
    qat = jit_passes.prepare_qat(scripted())
    for made, stage, step in (
        (prepared, "prepared", "calibrate and convert"),
        (qat, "qat", "conv"),
    ):
        model = torch.jit.script(Whole(made).eval())
        with pytest.raises(JitPassesError, match=f"'part'.* is {stage} already: {step}"):
            jit_passes.quantize_script(model, X)
        assert jit_passes.coverage(model)


def test_a_part_that_was_not_lowered() -> None:
    """The part stays a reference model, and the warning says how to change that."""
    prepared = jit_passes.calibrate(jit_passes.prepare(scripted()), X)
    model = torch.jit.script(Whole(jit_passes.convert(prepared)).eval())
    with pytest.warns(JitPassesWarning, match="'part' computes in float: lower it first"):
        made = jit_passes.quantize_script(model, X)
    assert sqnr(model(X[0]), made(X[0])) > 30


@pytest.mark.parametrize("name", ["x86", "stock", "quantize_jit", "eager_mode"])
def test_frozen_by_torch(name: str) -> None:
    """Without modules, quantized operators stand in the graph, and stay too."""
    model = torch.jit.freeze(whole(name, "scripted"))
    expected = model(X[0])
    made = jit_passes.quantize_script(model, X, target="stock")
    assert sqnr(expected, made(X[0])) > 30
    assert any(row.kind == "linear" and row.dtype == "int8" for row in jit_passes.coverage(made))


def test_the_callers_part_is_its_own() -> None:
    """Nothing that is done with the result shows in the part."""
    model = whole("stock", "scripted")
    before = copy.deepcopy(part("stock").state_dict())
    made: Any = jit_passes.prepare_qat(model).train()
    assert made.part.training and not model.part.training
    assert part("stock").state_dict().keys() == before.keys()
