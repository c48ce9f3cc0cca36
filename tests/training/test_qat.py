"""Models prepared for training: what they consist of, and what becomes of them."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphView, JitPassesError, JitPassesWarning
from jit_passes.quantizer import (
    Annotations,
    ComposableQuantizer,
    DerivedQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    bias_qparams,
)
from jit_passes.targets import PowerOfTwoQuantizer, X86Quantizer
from jit_passes.training.parameters import (
    model_parameters,
    named_quantization_parameters,
    quantization_parameters,
)
from jit_passes.training.prepare import prepare_qat
from tests.advice import traced_branches
from tests.qat_nets import (
    METHODS,
    ORIGINS,
    Model,
    Net,
    Plain,
    Shared,
    Twice,
    batch,
    batches,
    compiled,
    makes_scales_positive,
    nodes_of,
    parameter_of,
    quantizations,
    reloaded,
    seeded,
    sgd,
    state_of,
    steps_apart,
    train,
    trained,
)

pytestmark = makes_scales_positive

IMAGES = (4, 3, 8, 8)
ADDED = re.compile(r"(weight|input|output)(_\d+)?_(scale|offset|log2_threshold|range)(_\d+)?$")
SWITCHES = {"scale_corrections", "observer_enabled", "fake_quantize_enabled", "statistics_frozen"}


def is_added(name: str) -> bool:
    """Whether a name is one of those that preparing adds."""
    return name in SWITCHES or ADDED.search(name) is not None


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("method", METHODS)
def test_state_is_the_models_own(origin: str, method: str) -> None:
    """Names, order and tensors of parameters and buffers; what comes on top has names by slot."""
    model = compiled(seeded(Net), batch(*IMAGES), origin)
    prepared = prepare_qat(model, fake_quantizer=method, target="stock")
    for kind in ("named_parameters", "named_buffers"):
        before, after = (dict(getattr(m, kind)()) for m in (model, prepared))
        assert [name for name in after if not is_added(name)] == list(before)
        for name, value in before.items():
            assert after[name].data_ptr() == value.data_ptr(), name
            assert after[name].requires_grad == value.requires_grad
    new = {name for name in prepared.state_dict() if name not in model.state_dict()}
    end = {"tqt": "log2_threshold", "moving_average": "range"}.get(method, "scale")
    layers = {f"{layer}.weight_{end}" for layer in ("conv1", "conv2", "fc")}
    assert {name for name in new if "weight_" in name} == layers
    assert {"conv1.input_" + end, "conv1.output_" + end, "fc.output_" + end} <= new
    assert all(is_added(name) for name in new)
    trains = {n: p.requires_grad for n, p in prepared.named_parameters() if n in new}
    assert all(trains.values())
    assert set(trains) == {n for n in new if n.endswith(("scale", "threshold", "offset"))}
    state = prepared.state_dict()
    channels = (2, 8) if method == "moving_average" else (8,)
    assert state[f"conv1.weight_{end}"].shape == channels
    assert state[f"conv1.input_{end}"].shape == ((2,) if method == "moving_average" else (1,))


@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_partitioned(method: str) -> None:
    model = compiled(seeded(Net), batch(*IMAGES))
    prepared = prepare_qat(model, fake_quantizer=method)
    own, added = model_parameters(prepared), quantization_parameters(prepared)
    names = {id(p): name for name, p in prepared.named_parameters()}
    assert [names[id(p)] for p in own] == [name for name, _ in model.named_parameters()]
    assert len(own) + len(added) == len(names)
    assert not {id(p) for p in own} & {id(p) for p in added}
    assert (not added) == (method == "moving_average")
    assert [n for n, _ in named_quantization_parameters(prepared)] == [names[id(p)] for p in added]

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = prepared

    assert [n for n, _ in named_quantization_parameters(Holder())] == [
        f"inner.{names[id(p)]}" for p in added
    ]


@pytest.mark.parametrize("origin", ORIGINS)
def test_the_callers_model_is_not_touched(origin: str) -> None:
    """Graph, mode and numbers; and it still computes what it did, while both share weights."""
    x = batch(*IMAGES)
    model = compiled(seeded(Net), x, origin)
    graph, mode, state = str(model.graph), model.training, state_of(model)
    prepared = prepare_qat(model)
    assert (str(model.graph), model.training) == (graph, mode)
    assert list(model.state_dict()) == list(state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert prepared.training == mode
    before = model.eval()(x)
    train(prepared.train(), batches(1, *IMAGES))
    assert not model.training
    assert not torch.equal(model(x), before), "they share their weights"


@pytest.mark.parametrize("method", METHODS)
def test_state_dict_loads_both_ways(method: str) -> None:
    model = compiled(seeded(Net), batch(*IMAGES))
    prepared = prepare_qat(compiled(seeded(Net, seed=2), batch(*IMAGES)), fake_quantizer=method)
    added = {name for name in prepared.state_dict() if is_added(name)}
    missing, unexpected = prepared.load_state_dict(model.state_dict(), strict=False)
    assert (set(missing), unexpected) == (added, [])
    train(prepared.train(), batches(2, *IMAGES))
    missing, unexpected = model.load_state_dict(prepared.state_dict(), strict=False)
    assert (missing, set(unexpected)) == ([], added)
    fresh = prepare_qat(model, fake_quantizer=method).eval()
    fresh.load_state_dict(prepared.state_dict())
    x = batch(*IMAGES, seed=5)
    assert torch.equal(fresh(x), prepared.eval()(x))


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("method", METHODS)
def test_converted_computes_what_was_trained(origin: str, method: str) -> None:
    """Reference and int8 are within two steps of the trained model in eval mode.

    A tie that rounds the other way is one step of a layer, and the layers behind pass it on.
    """
    x = batch(*IMAGES, seed=9)
    prepared = prepare_qat(compiled(seeded(Net), x, origin), fake_quantizer=method)
    train(prepared.train(), batches(3, *IMAGES))
    prepared.eval()
    expected = prepared(x)
    assert expected.abs().max() > 0.05
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    for model in (reference, lowered):
        assert steps_apart(expected, model(x)) <= 2.01
    assert all(row.dtype == "int8" for row in jit_passes.coverage(lowered))
    assert nodes_of(reference, "jit_passes::quantize")
    assert not nodes_of(lowered, "aten::conv2d")


@pytest.mark.parametrize("make", [Shared, Twice])
@pytest.mark.parametrize("method", METHODS)
def test_shared_modules_and_tied_weights(make: type[nn.Module], method: str) -> None:
    shape = (2, 4, 6, 6)
    prepared = trained(make, *shape, fake_quantizer=method)
    names = [name for name, _ in prepared.named_parameters() if not is_added(name)]
    assert names == [name for name, _ in compiled(seeded(make), batch(*shape)).named_parameters()]
    x = batch(*shape, seed=4)
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    expected = prepared(x)
    assert steps_apart(expected, reference(x)) <= 2.01
    assert steps_apart(expected, lowered(x)) <= 2.01


@torch.jit.interface
class Layer(nn.Module):
    """A layer of whatever class."""

    def forward(self, input: Tensor) -> Tensor:
        pass


class Inner(nn.Module):
    """Has a member of that interface, as the one that has it."""

    __annotations__ = {"layer": Layer}  # not as a string, which the compiler does not take

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, input: Tensor) -> Tensor:
        return torch.relu(self.layer.forward(input))


class ByInterface(nn.Module):
    """Calls members of an interface, one of them twice, and elements of a list by their index."""

    __annotations__ = {"inner": Layer}

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)])

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = self.layers[x.size(0) % 2]
        return self.inner.forward(layer.forward(self.inner.forward(x)))


@pytest.mark.parametrize("method", METHODS)
def test_members_of_an_interface(method: str) -> None:
    """Members of an interface train as members of their class do, and keep their names."""
    shape = (2, 4, 6, 6)
    model = torch.jit.script(seeded(ByInterface))
    own = [name for name, _ in model.named_parameters()]
    prepared = prepare_qat(model, fake_quantizer=method)
    names = [name for name, _ in prepared.named_parameters() if not is_added(name)]
    assert names == own
    assert any(name.startswith("inner.layer.weight_") for name in prepared.state_dict())
    data = [*batches(2, *shape), *batches(2, 3, *shape[1:])]
    train(prepared.train(), data, sgd(prepared, 1e-3))
    prepared.eval()
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    assert not jit_passes.coverage(lowered).float
    for x in (batch(*shape, seed=4), batch(3, *shape[1:], seed=5)):
        expected = prepared(x)
        assert steps_apart(expected, reference(x)) <= 2.01
        assert steps_apart(expected, lowered(x)) <= 2.01


class Forks(nn.Module):
    """A layer that is forked, by its interface."""

    __annotations__ = {"side": Layer}

    def __init__(self) -> None:
        super().__init__()
        self.side, self.own = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.side.forward, x)
        return torch.relu(self.own(x)) + torch.jit.wait(future)


def test_forked_layers() -> None:
    """Forked layers run in place, and are quantized, in training as afterwards."""
    shape = (2, 4, 6, 6)
    prepared = prepare_qat(torch.jit.script(seeded(Forks)))
    assert [row.name for row in jit_passes.coverage(prepared).int8] == ["side:conv2d", "own:conv2d"]
    train(prepared.train(), batches(2, *shape), sgd(prepared, 1e-3))
    x = batch(*shape, seed=4)
    lowered = jit_passes.lower(jit_passes.convert(prepared.eval()))
    assert steps_apart(prepared(x), lowered(x)) <= 2.01


class Exchanges(nn.Module):
    """Puts another layer in the place of one."""

    __annotations__ = {"now": Layer, "then": Layer}

    def __init__(self) -> None:
        super().__init__()
        self.now, self.then = nn.Linear(4, 4), Inner()

    def forward(self, x: Tensor) -> Tensor:
        y = self.now.forward(x)
        self.now = self.then
        return y


def test_modules_that_are_exchanged() -> None:
    """The error names the line, and says what can be called."""
    with pytest.raises(JitPassesError, match=r"decides as it runs.*test_qat\.py:\d+.*ModuleList"):
        prepare_qat(torch.jit.script(Exchanges()))


class TwoNorms(nn.Module):
    """One convolution, called twice, each time with a batch norm of its own; and without."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.first = nn.BatchNorm2d(4)
        self.second = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.first(self.conv(x)), self.second(self.conv(-x)), self.conv(2 * x)


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_has_a_grid_for_each_batch_norm(method: str) -> None:
    """Integers will see it times another factor each time."""
    eager = seeded(TwoNorms)
    eager.second.weight.data.mul_(20)
    x = batch(2, 4, 6, 6)
    prepared = prepare_qat(compiled(eager, x), fake_quantizer=method)
    weights = [n for n in prepared.state_dict() if n.startswith("conv.weight_")]
    assert len(weights) == 3
    prepared.train()
    for x in batches(2, 2, 4, 6, 6):
        prepared(x)
    prepared.eval()
    reference = jit_passes.convert(prepared)
    for expected, found in zip(prepared(x), reference(x), strict=True):
        assert steps_apart(expected, found) <= 1.01


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bias", [False, True])
def test_biases_are_derived(method: str, bias: bool) -> None:
    """Biases have no parameters of their own, and end as integers of input times weight scale."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, bias=bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x)

    prepared = trained(Small, *IMAGES, fake_quantizer=method)
    assert len(nodes_of(prepared, "jit_passes::train_bias")) == bias
    assert not [name for name in prepared.state_dict() if "bias_" in name]
    reference = jit_passes.convert(prepared)
    stored = [t for t in constants(reference) if t.dtype == torch.int32]
    assert len(stored) == bias


def constants(model: Model) -> list[Tensor]:
    """The tensors in its graph and its attributes."""
    found = [node.output().toIValue() for node in nodes_of(model, "prim::Constant")]
    return [t for t in (*found, *model.state_dict().values()) if isinstance(t, Tensor)]


def grids(model: Model) -> dict[str, tuple[int, int]]:
    """The codes of each place that trains, by its name."""
    result = {}
    for node in quantizations(model):
        operands = {i.debugName(): i for i in node.inputs()}
        text = str(node)
        assert text
        schema = torch._C._get_schema(node.kind(), "")
        by_name = {a.name: v for a, v in zip(schema.arguments, node.inputs(), strict=True)}
        assert operands
        low, high = (by_name[n].toIValue() for n in ("quant_min", "quant_max"))
        result[by_name["name"].toIValue()] = (low, high)
    return result


def bits_of(model: Model) -> dict[str, int]:
    """How many bits the values have."""
    return {
        name: (high - low + 1).bit_length() - ((high - low + 1) & (high - low) == 0)
        for name, (low, high) in grids(model).items()
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12, 16])
def test_bits(method: str, bits: int) -> None:
    """Of weights and of what they meet; the reference model has codes of these."""
    prepared = trained(Plain(), *IMAGES, fake_quantizer=method, bits=bits)
    found = bits_of(prepared)
    assert {n for n, b in found.items() if b == bits} >= {
        "conv.weight -> conv:conv2d",
        "fc.weight -> fc:linear",
    }
    reference = jit_passes.convert(prepared)
    top = 2 ** (bits - 1)
    weights = [t for t in constants(reference) if t.dim() in (2, 4) and not t.is_floating_point()]
    assert len(weights) == 2
    for weight in weights:
        assert -top <= weight.min() and weight.max() <= top - 1
        assert weight.unique().numel() > 2 or bits == 2
    x = batch(*IMAGES, seed=3)
    assert steps_apart(prepared(x), reference(x)) <= 1.01


def test_bits_by_slot_and_layer() -> None:
    x = batch(*IMAGES)
    prepared = prepare_qat(compiled(seeded(Net), x), bits={"weight": 4, "input": 6})
    found = bits_of(prepared)
    assert found["conv1.weight -> conv1:conv2d"] == found["conv2.weight -> conv2:conv2d"] == 4
    assert found["x -> conv1:conv2d"] == 6
    prepared = prepare_qat(compiled(seeded(Net), x), bits=4, first_last_bits=8)
    found = bits_of(prepared)
    assert found["conv1.weight -> conv1:conv2d"] == found["fc.weight -> fc:linear"] == 8
    assert found["conv2.weight -> conv2:conv2d"] == 4
    config = {"version": 1, "rules": [{"module": "conv2", "weight": {"bits": 3}}]}
    prepared = prepare_qat(compiled(seeded(Net), x), config=config, bits=5)
    assert bits_of(prepared)["conv2.weight -> conv2:conv2d"] == 3
    assert bits_of(prepared)["conv1.weight -> conv1:conv2d"] == 5


class Joined(nn.Module):
    """A sum and a concatenation whose operands share parameters, and a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 4, 3, padding=1)
        self.right = nn.Conv2d(3, 4, 3, padding=1)
        self.gate = nn.Conv2d(8, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.left(x), self.right(x)], 1)
        return self.last(torch.sigmoid(self.gate(torch.relu(both))))


@pytest.mark.parametrize("method", METHODS)
def test_groups_share_a_parameter(method: str) -> None:
    """One for all operands of a concatenation, read at each; none where the range is fixed."""
    config = {"version": 1, "rules": [
        {"op": "sigmoid", "output": {"scale": 1 / 256, "zero_point": 0}}]}  # fmt: skip
    prepared = trained(Joined, *IMAGES, fake_quantizer=method, target="reference", config=config)
    assert nodes_of(prepared, "jit_passes::train_fixed")
    x = batch(*IMAGES, seed=3)
    reference = jit_passes.convert(prepared)
    assert steps_apart(prepared(x), reference(x)) <= 2.01
    states = [list(node.inputs())[1].debugName() for node in quantizations(prepared)]
    names = [n for n in prepared.state_dict() if ADDED.search(n)]
    offsets = sum(n.endswith("_offset") for n in names)
    assert len(set(states)) == len(names) - offsets


class Exported(nn.Module):
    """Two methods; forward goes on in float."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(2 * x))


def test_another_method() -> None:
    x = batch(*IMAGES)
    model = compiled(seeded(Exported), x)
    prepared = prepare_qat(model, method="encode")
    assert torch.equal(prepared(x), model(x))
    for x in batches(2, *IMAGES):
        prepared.encode(x).square().mean().backward()
    assert parameter_of(prepared, "conv.weight_scale").grad is not None
    prepared.eval()
    assert [n for n, _ in named_quantization_parameters(prepared)]
    reference = jit_passes.convert(prepared)
    assert (reference.encode(x) - prepared.encode(x)).abs().max() < 0.1
    assert not torch.equal(prepared.encode(x), model.eval().encode(x))


class Branch(nn.Module):
    """A branch that training may never reach."""

    def __init__(self) -> None:
        super().__init__()
        self.often = nn.Conv2d(3, 4, 3)
        self.rarely = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 1e6:
            return self.rarely(x)
        return self.often(x)


@pytest.mark.parametrize("method", METHODS)
def test_a_branch_that_was_never_reached_stays_float(method: str) -> None:
    prepared = trained(Branch, *IMAGES, fake_quantizer=method)
    with pytest.warns(JitPassesWarning, match="data never reached.*rarely"):
        reference = jit_passes.convert(prepared)
    rows = {row.name: row.dtype for row in jit_passes.coverage(reference)}
    assert rows == {"often:conv2d": "int8", "rarely:conv2d": "float"}
    far = batch(*IMAGES) + 1e6
    model = compiled(seeded(Branch), far)
    model.load_state_dict(prepared.state_dict(), strict=False)
    assert torch.allclose(reference(far), model(far))


class OnlyBranch(nn.Module):
    """All that could be quantized stands in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.rarely = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 1e6:
            return self.rarely(x)
        return x


@pytest.mark.parametrize("method", METHODS)
def test_nothing_but_a_branch_that_was_never_reached(method: str) -> None:
    """The message names the values, and says that batches must take the branch."""
    prepared = prepare_qat(torch.jit.script(OnlyBranch()), fake_quantizer=method)
    prepared.train()(batch(*IMAGES))
    with pytest.raises(
        jit_passes.JitPassesError, match=r"no batch .* came by 'x -> rarely.*take them"
    ):
        jit_passes.convert(prepared)


def custom_annotation(graph: Any) -> Any:
    """Weight and input of the first convolution only."""
    annotations = Annotations()
    node = next(n for n in graph.nodes if n.kind == "aten::conv2d")
    activation = QuantizationSpec("uint8", 0, 255, "per_tensor_affine")
    weight = QuantizationSpec("int8", -127, 127, "per_tensor_symmetric")
    annotations[node] = QuantizationAnnotation(
        input_qspec_map={node.inputs[0]: activation, node.inputs[1]: weight}
    )
    return annotations


class Custom(Quantizer):
    """Annotates one convolution by hand."""

    def annotate(self, graph: Any) -> Any:
        return custom_annotation(graph)

    def validate(self, annotations: Any) -> None:
        """Nothing to check."""


class Whole(Quantizer):
    """Annotates all convolutions and linears: operands, bias and result."""

    def annotate(self, graph: Any) -> Any:
        annotations = Annotations()
        activation = QuantizationSpec("uint8")
        weight = QuantizationSpec("int8", -127, 127, "per_tensor_symmetric")
        for node in graph.nodes:
            if node.kind not in ("aten::conv2d", "aten::linear"):
                continue
            x, w, bias = node.inputs[:3]
            operands: dict[Any, Any] = {x: activation, w: weight}
            if isinstance(bias.constant, Tensor):
                operands[bias] = DerivedQuantizationSpec(
                    ((x, node), (w, node)), bias_qparams, "int32", qscheme="per_tensor_symmetric"
                )
            annotations[node] = QuantizationAnnotation(operands, output_qspec=activation)
        return annotations


class BehindRelu(Whole):
    """Does so behind a relu, where that alone reads the result, as engines compute both in one."""

    def annotate(self, graph: Any) -> Any:
        annotations = super().annotate(graph)
        for node, annotation in list(annotations.items()):
            users = [user for user, _ in node.output.uses]
            if [user.kind for user in users] == ["aten::relu"]:
                result = annotation.output_qspec
                annotations[node] = replace(annotation, output_qspec=None)
                annotations[users[0]] = QuantizationAnnotation({}, result, part_of=node)
        return annotations


def quantized_values(converted: Any) -> list[tuple[str, list[str]]]:
    """Values that are quantized or stored as integers, and their readers."""

    def text(value: Any) -> str:
        maker = value.producer
        return value.name if maker is None or maker.name else maker.kind

    return [
        (text(node.inputs[0]), sorted(f"{user.name}[{i}]" for user, i in node.output.uses))
        for node in GraphView.of(converted).nodes
        if node.kind.startswith(("jit_passes::quantize", "jit_passes::dequantize"))
    ]


@pytest.mark.parametrize(
    ("quantizer", "target", "method"),
    [
        (X86Quantizer(), "auto", "lsq"),
        (PowerOfTwoQuantizer(), "auto", "tqt"),
        (PowerOfTwoQuantizer(), "auto", "moving_average"),
        (Custom(), "reference", "lsq"),
        (Whole(), "reference", "lsq"),
        (Whole(), "reference", "moving_average"),
        (BehindRelu(), "reference", "tqt"),
        (ComposableQuantizer(X86Quantizer(reduce_range=False), Custom()), "auto", "lsq"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_quantizers(quantizer: Quantizer, target: str, method: str) -> None:
    """Objects instead of names: they annotate what they annotate in a model to calibrate."""
    x = batch(*IMAGES)
    model = compiled(seeded(Net), x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)  # two annotate the first convolution
        qat = prepare_qat(model, quantizer, target=target, fake_quantizer=method)
        calibrated = jit_passes.prepare(model.eval(), quantizer=quantizer, target=target)
    train(qat.train(), batches(2, *IMAGES))
    reference = jit_passes.convert(qat)
    report = jit_passes.parity(qat, reference, [x])
    assert report.equal, report
    jit_passes.calibrate(calibrated, [(x,)])
    ours, theirs = (quantized_values(m) for m in (reference, jit_passes.convert(calibrated)))
    assert ours == theirs and len(ours) > 2


def test_saved_model_is_the_same(tmp_path: Any) -> None:
    """To the bit, in both modes, and its operators say what to convert to."""
    prepared = trained(Net, *IMAGES)
    file = str(tmp_path / "qat.pt")
    prepared.save(file)
    loaded = torch.jit.load(file)
    x = batch(*IMAGES, seed=7)
    assert torch.equal(loaded(x), prepared(x))
    assert torch.equal(loaded.train()(x), prepared.train()(x))
    expected = [n for n, _ in named_quantization_parameters(prepared)]
    assert [n for n, _ in named_quantization_parameters(loaded)] == expected
    one, other = (jit_passes.convert(m.eval()) for m in (prepared, loaded))
    assert torch.equal(one(x), other(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)
        jit_passes.lower(other)
    assert reloaded(loaded)


@traced_branches
def test_attention_drops_out_in_training_alone() -> None:
    """Of a trace in training mode, which has the share of its attention as a number."""
    layer = nn.TransformerEncoderLayer(6, 1, 8, 0.2, batch_first=True).train()
    x = torch.randn(3, 6, 6)
    trained = prepare_qat(torch.jit.trace(layer, x, check_trace=False), target="reference")
    trained.train()
    trained(x).sum().backward()
    with torch.no_grad():
        assert not torch.equal(trained(x), trained(x))
        trained.eval()
        assert torch.equal(trained(x), trained(x))
        converted = jit_passes.convert(trained)
        assert torch.equal(converted(x), converted(x))
        assert "aten::scaled_dot_product_attention" in str(converted.inlined_graph)
