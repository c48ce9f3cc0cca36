"""Places: how a quantized value is known from annotation to a lowered file."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import _C, JitPassesError
from jit_passes.graph.view import GraphView, NodeView
from jit_passes.passes.subject import wrap
from jit_passes.profile.probes import Probes
from jit_passes.quantizer import (
    Annotations,
    DerivedQuantizationSpec,
    Place,
    QParams,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    derivation,
)
from jit_passes.specification import derivation as derivations
from jit_passes.stages.module import Report, by_position
from jit_passes.stages.normalize import normalize
from jit_passes.stages.prepare import request
from jit_passes.training.parameters import quantization_names
from tests.processes import run_code

X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))

MINE = torch.library.Library("mine", "DEF")
MINE.define("watch(Tensor x, Tensor(a!) range, float by, str name, str spec) -> ()")
MINE.define(
    "halve(Tensor x, Tensor(a!) step, Tensor(b!) count, int times=1, *, str name, str spec) -> "
    "Tensor"
)
MINE.define("halve.plain(Tensor x) -> Tensor")


@torch.library.impl(MINE, "watch", "CPU")
def _watch(x: Tensor, range: Tensor, by: float, name: str, spec: str) -> None:
    range[0], range[1] = by * x.min(), by * x.max()


@torch.library.impl(MINE, "halve", "CompositeImplicitAutograd")
def _halve(
    x: Tensor, step: Tensor, count: Tensor, times: int = 1, *, name: str, spec: str
) -> Tensor:
    return x * 0.5**times


def script(model: nn.Module) -> torch.jit.ScriptModule:
    """The module in eval mode, scripted."""
    return torch.jit.script(model.eval())


def text(id: int) -> str:
    """A place's text."""
    return Place(id, f"value {id}", "input", QuantizationSpec(), id).to_text()


def normalized() -> tuple[Any, NodeView]:
    """A relu in canonical form, and its node."""
    module = normalize(script(nn.Sequential(nn.ReLU()))._c).module
    return module, GraphView.of(module, "forward").nodes[0]


def inserted(name: str, op: str, operands: dict[str, Any], states: Sequence[Any] = ()) -> Any:
    """The relu's operand, looked at by an operator."""
    module, relu = normalized()
    uses = [(relu.index, 0)]
    place = request(relu.inputs[0].id, uses, relu.index, op, operands)
    options = {"places": (place,), "states": tuple(states)}
    return _C.run_pass(name, module, "forward", options)[0]


# ---------------------------------------------------------------------------- operators of users


def test_an_observer_of_another_package() -> None:
    """Its schema says that it stands at a place; its buffer is its own, and goes with it."""
    state = ("seen", None, torch.zeros(2), False)
    operands = {"range": ("state", 0), "by": 2.0, "name": "x", "spec": text(5)}
    module = inserted("insert_observers", "mine::watch", operands, [state])
    wrap(module)(X)
    ((_, op, found),) = _C.places(module, "forward")
    assert op == "mine::watch" and found["by"] == 2.0 and found["x"] is None
    assert torch.equal(found["range"], torch.stack([2 * X.min(), 2 * X.max()]))
    assert Place.from_text(found["spec"]).id == 5
    assert _C.check_invariant("no_observers", module, "forward") is not None
    parameters = QParams(0.5, 3, None, 0, 255, "uint8").as_options()
    converted, *_ = _C.run_pass(
        "insert_quantize_dequantize", module, "forward", {"parameters": {5: parameters}}
    )
    kinds = [node.kind for node in GraphView.of(converted, "forward").nodes]
    assert "jit_passes::quantize" in kinds and "mine::watch" not in kinds
    assert _C.place_ids(converted, "forward") == {
        "jit_passes::quantize": [5],
        "jit_passes::dequantize": [5],
    }


def test_a_fake_quantizer_of_another_package() -> None:
    """The fake quantizer trains its operands that are parameters of the module."""
    states = [("step", None, torch.ones(1), True), ("count", None, torch.zeros(1), False)]
    operands = {"step": ("state", 0), "count": ("state", 1), "name": "x", "spec": text(3)}
    module = inserted("insert_fake_quantize", "mine::halve", operands, states)
    assert torch.equal(wrap(module)(X), torch.relu(X * 0.5))
    assert _C.state_paths(module, "forward") == ["step", "count"]
    assert quantization_names(wrap(module)) == {"step"}
    ((_, op, found),) = _C.places(module, "forward")
    assert op == "mine::halve" and found["times"] == 1
    copy = _C.clone(module, "forward")
    plain, *_ = _C.run_pass("insert_quantize_dequantize", copy, "forward", {"parameters": {}})
    assert torch.equal(wrap(plain)(X), torch.relu(X))


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("mine::nothing", {}, "no operator mine::nothing whose last argument is 'str spec'"),
    "no place": ("aten::relu", {}, "no operator aten::relu whose last argument"),
    "missing": ("mine::watch", {"by": 1.0, "name": "v"}, "'v' has no value for 'range' of mine::"),
    "extra": ("mine::watch", {"bye": 1.0, "name": "v"}, "'v' has a value for 'bye', which is no"),
    "value": ("mine::watch", {"x": 1.0, "name": "v"}, "'v' has a value for 'x', which is no"),
    "role": (
        "mine::watch",
        {"range": ("elsewhere",), "by": 1.0, "name": "v", "spec": ""},
        "no operand 'elsewhere'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_operands_that_do_not_fit(case: str) -> None:
    """The schema says what an operator takes, by name."""
    op, operands, message = WRONG[case]
    with pytest.raises(RuntimeError, match=message):
        inserted("insert_observers", op, operands)


def test_a_place_without_an_id() -> None:
    """As models of older versions have them."""
    state = ("seen", None, torch.zeros(2), False)
    operands = {"range": ("state", 0), "by": 2.0, "name": "x", "spec": '{"group": 1}'}
    module = inserted("insert_observers", "mine::watch", operands, [state])
    with pytest.raises(RuntimeError, match=r"no place with an id.*another version"):
        _C.run_pass("insert_quantize_dequantize", module, "forward", {"parameters": {}})


def test_a_model_of_an_older_version() -> None:
    """Any next stage refuses the model, and says what to do."""
    prepared = jit_passes.prepare(script(nn.Sequential(nn.Conv2d(4, 5, 3))))
    graph = prepared._c._get_method("forward").graph
    for node in graph.nodes():
        text = node.kind() == "prim::Constant" and node.hasAttribute("value")
        if text and node.kindOf("value") == "s" and node.s("value").startswith('{"id"'):
            node.s_("value", '{"group": 1, "spec": {"kind": "observed"}}')
    with pytest.raises(JitPassesError, match="another version of jit_passes"):
        jit_passes.convert(jit_passes.calibrate(prepared, [X], progress=False))


# ---------------------------------------------------------------------------- names mean nothing


class Counts(nn.Module):
    """Has buffers that are called as those of observers are, and writes to one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 5, 3)
        self.register_buffer("observer_count", torch.zeros(1))
        self.register_buffer("observer_0_range", torch.full((6,), 7.0))
        self.register_buffer("observer_none_range", torch.full((6,), 8.0))

    def forward(self, x: Tensor) -> Tensor:
        self.observer_count += 1
        y: Tensor = self.conv(x) + self.observer_count
        return y + self.observer_0_range[0] + self.observer_none_range[1]


def test_buffers_of_the_model_that_are_called_as_observers() -> None:
    """Calibration puts the model's own state back, whatever it is called."""
    model = script(Counts())
    prepared = jit_passes.prepare(model, target="reference")
    jit_passes.calibrate(prepared, [X, 2 * X, X], progress=False)
    assert prepared.observer_count.item() == 0
    converted = jit_passes.convert(prepared)
    assert converted.observer_count.item() == 0 and model.observer_count.item() == 0
    expected = model(X)
    assert (converted(X) - expected).abs().max() < 0.05 * expected.abs().max()
    assert model.observer_count.item() == converted.observer_count.item() == 1


def test_a_profile_knows_such_a_buffer() -> None:
    """The buffer is part of the graph's hash, as any buffer of the model is."""

    class Other(Counts):
        def forward(self, x: Tensor) -> Tensor:
            self.observer_count += 1
            y: Tensor = self.conv(x) + self.observer_0_range[0]
            return y + self.observer_0_range[0] + self.observer_none_range[1]

    own, other = (Probes.of(normalize(script(m)._c).module, "forward") for m in (Counts(), Other()))
    assert own.hash != other.hash
    model = script(Counts())
    prepared = jit_passes.prepare(model)
    assert Probes.of(prepared._c, "forward").hash == own.hash
    profile = jit_passes.profile(model, [X, X], progress=False)
    jit_passes.fill(prepared, profile)


# ---------------------------------------------------------------------------- constants

FLOAT = {"dtype": "float"}
WEIGHTS_ONLY = {"version": 1, "global": {"input": FLOAT, "output": FLOAT}}


def test_weights_alone_need_no_data() -> None:
    """Weights are measured when the model is prepared, and a batch changes nothing."""
    model = script(nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Conv2d(5, 3, 1)))
    options: dict[str, Any] = {"target": "reference", "config": WEIGHTS_ONLY}
    found = jit_passes.quantize_script(model, **options)
    with_data = jit_passes.quantize_script(model, [X], progress=False, **options)
    assert len(jit_passes.coverage(found).int8) == 2
    assert torch.equal(found(X), with_data(X)) and not torch.equal(found(X), model(X))
    weight = next(model.parameters())
    step = weight.abs().flatten(1).amax(1) / 127
    prepared = jit_passes.prepare(model, **options)
    constants = [operands for _, _, operands in _C.places(prepared._c, "forward")]
    assert torch.equal(constants[0]["range"][1].float(), weight.flatten(1).amax(1))
    assert (found(X) - model(X)).abs().max() < 40 * step.max() * X.abs().max()


def test_activations_need_data() -> None:
    """Without, the message says what to pass."""
    model = script(nn.Sequential(nn.Conv2d(4, 5, 3)))
    with pytest.raises(JitPassesError, match="ranges come from calibration data"):
        jit_passes.quantize_script(model)
    with pytest.raises(JitPassesError, match="was not calibrated"):
        jit_passes.convert(jit_passes.prepare(model))


def test_a_weight_that_cannot_be_measured() -> None:
    """The error names the weight before any data is asked for."""
    net = nn.Sequential(nn.Conv2d(4, 5, 3))
    with torch.no_grad():
        next(net.parameters())[0, 0, 0, 0] = float("nan")
    with pytest.raises(JitPassesError, match=r"constant '.*weight.*' cannot.*a NaN or an infinity"):
        jit_passes.prepare(script(net), quantizer=Weights(), target="reference")


class Weights(Quantizer):
    """Quantizes the weight of a convolution, whatever it holds."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        node = next(node for node in graph.nodes if node.kind == "aten::conv2d")
        spec = QuantizationSpec("int8", -127, 127, "per_tensor_symmetric")
        annotations[node] = QuantizationAnnotation({node.inputs[1]: spec})
        return annotations


class Branch(nn.Module):
    """A convolution that only negative inputs reach."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.never = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.always(x)
        if bool(x.max() < 0):
            y = self.never(y)
        return y


def test_a_branch_without_data_stays_float() -> None:
    """Its weights are measured and yet not quantized; without activations they are."""
    model = script(Branch())
    with pytest.warns(jit_passes.JitPassesWarning, match="data never reached never:conv2d"):
        static = jit_passes.quantize_script(model, [X.abs()], progress=False, target="reference")
    assert [row.name for row in jit_passes.coverage(static).float] == ["never:conv2d"]
    weights = jit_passes.quantize_script(model, target="reference", config=WEIGHTS_ONLY)
    assert len(jit_passes.coverage(weights).int8) == 2


# ---------------------------------------------------------------------------- derivations


class Derives(Quantizer):
    """Quantizes a convolution; the weight's parameters come from the input's by a function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        node = next(node for node in graph.nodes if node.kind == "aten::conv2d")
        x, weight = node.inputs[:2]
        derived = DerivedQuantizationSpec(((x, node),), self.function, "int8")
        annotations[node] = QuantizationAnnotation({x: QuantizationSpec(), weight: derived})
        return annotations


def at_the_top(sources: Sequence[QParams]) -> tuple[float, int]:
    """Double the scale."""
    return 2 * float(sources[0].scale), 0


def closure(factor: float) -> Any:
    """A function as quantizers make them for each operator."""

    def scaled(sources: Sequence[QParams]) -> tuple[float, int]:
        return factor * float(sources[0].scale), 0

    return scaled


def derived_by(function: Any) -> torch.jit.ScriptModule:
    """A calibrated model that derives parameters with it."""
    torch.manual_seed(0)
    model = script(nn.Sequential(nn.Conv2d(4, 5, 3)))
    prepared = jit_passes.prepare(model, quantizer=Derives(function), target="reference")
    return jit_passes.calibrate(prepared, [X], progress=False)


def test_closures_live_with_their_models() -> None:
    """None is kept for ever, and two are told apart."""
    before = len(derivations._LOCAL)
    models = [derived_by(closure(factor)) for factor in (1.0, 2.0)]
    gc.collect()
    assert len(derivations._LOCAL) == before + 2
    first, second = (jit_passes.convert(model)(X) for model in models)
    assert not torch.equal(first, second)
    copy = wrap(_C.clone(models[0]._c, "forward"))
    assert torch.equal(jit_passes.convert(copy)(X), first)
    del models
    gc.collect()
    assert len(derivations._LOCAL) == before
    with pytest.raises(JitPassesError, match=r"'.*closure.<locals>.scaled', and it is made while"):
        jit_passes.convert(copy)


def test_functions_by_name(tmp_path: Path) -> None:
    """Marked ones are found by all that import them; others say in a new process what to do."""
    name = derivations.derivation_name(at_the_top)
    assert name.endswith(".at_the_top") and derivations.find_derivation(name) is at_the_top
    path = tmp_path / "prepared.pt"
    torch.jit.save(derived_by(at_the_top), str(path))
    code = "import jit_passes, torch; jit_passes.convert(torch.jit.load(r'{}'))"
    run = run_code(code.format(path), cwd=tmp_path)
    assert "at_the_top', and this process does not have it: mark it with" in run.stderr
    assert derivation(at_the_top) is at_the_top


# ---------------------------------------------------------------------------- ids in files


class Names(nn.Module):
    """Two modules with the same operators, so that a file, which has no paths, numbers them."""

    def __init__(self) -> None:
        super().__init__()
        block = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(3)]
        self.blocks = nn.Sequential(*block)
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(x)
        y = torch.cat([y, torch.sigmoid(y)], 1)[:, :4] + x
        last: Tensor = self.last(y)
        return last


@pytest.mark.parametrize("target", ["reference", "stock"])
def test_values_are_known_by_id(target: str, tmp_path: Path) -> None:
    """A converted or lowered model that comes from a file is compared as the one in memory is."""
    torch.manual_seed(0)
    qat = jit_passes.prepare_qat(torch.jit.script(Names()), target=target)
    qat(X).sum().backward()
    for model in (jit_passes.convert(qat), jit_passes.lower(jit_passes.convert(qat))):
        path = str(tmp_path / "model.pt")
        torch.jit.save(model, path)
        loaded = torch.jit.load(path)
        here, there = jit_passes.parity(qat, model, [X]), jit_passes.parity(qat, loaded, [X])
        packed = target == "stock" and "quantized::conv2d" in str(model.graph)
        assert str(here) == str(there)
        assert all("weight" in name or "bias" in name for name in here.unmatched)
        assert bool(here.unmatched) == packed
        assert here.largest_own_steps <= 1
        report = Report.read(loaded)
        assert report is not None
        nodes = GraphView.of(loaded, "forward")
        ids = set(by_position(nodes, report.places).values()) - {None}
        assert ids <= {Place.from_text(o["spec"]).id for _, _, o in _C.places(qat._c, "forward")}


def test_a_model_that_was_prepared_otherwise() -> None:
    """Ids of another plan are no ids of this one."""
    torch.manual_seed(0)
    first, second = (jit_passes.prepare_qat(torch.jit.script(Names()), bits=b) for b in (8, 4))
    for qat in (first, second):
        qat(X)
    with pytest.raises(JitPassesError, match="made from this trained model"):
        jit_passes.parity(first, jit_passes.convert(second), [X])


def test_a_converted_model_that_was_changed() -> None:
    """Positions are those of the graph that was converted."""
    model = jit_passes.quantize_script(
        script(nn.Sequential(nn.Conv2d(4, 5, 3))), [X], target="reference", progress=False
    )
    report = Report.read(model)
    assert report is not None
    wrong = {kind: [*ids, 7] for kind, ids in report.places.items()}
    with pytest.raises(JitPassesError, match="changed after it was converted"):
        by_position(GraphView.of(model, "forward"), wrong)
