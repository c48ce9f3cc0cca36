"""Quantizing convolutions and linears slot by slot, against the formula in double."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jit_passes import _C, JitPassesError, Pipeline, quantize_slots
from jit_passes.fake_quantizers import MovingAverage
from jit_passes.graph.view import GraphView
from jit_passes.observers import MovingAverageMinMax
from jit_passes.passes.subject import wrap
from jit_passes.quantizer import (
    RECIPES,
    SLOTS,
    Annotations,
    QuantizationAnnotation,
    SlotQuantizer,
    TensorOptions,
    resolve,
)
from jit_passes.quantizers.slot_quantizer import SLOT
from jit_passes.training.insertions import Insertions
from jit_passes.training.quantize_slots import SPLIT
from tests.folders import ROOT

Model = torch.jit.ScriptModule


def planned(graph: GraphView, annotations: Annotations) -> dict[str, Any]:
    """Options of the pass for models without batch norms."""
    insertions = Insertions(graph, lambda path: torch.empty(0), MovingAverage())
    insertions.add_all(resolve(graph, annotations))
    return dict(insertions.options()["insert_fake_quantize"])


def slot_of(
    bits: int = 8, signed: bool = True, scheme: str = "symmetric", granularity: str = "per_tensor",
    rounding: str = "half_even", averaging_constant: float = 0.01,
) -> TensorOptions:  # fmt: skip
    """Options of a slot, all of them given."""
    return TensorOptions(
        bits=bits, signed=signed, scheme=scheme, channelwise=granularity == "per_channel",
        rounding=rounding, calibration=MovingAverageMinMax(averaging_constant),
    )  # fmt: skip


def batch(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 8)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2), (2, 4, 4, 5, 3)),
    "no_bias": (lambda: nn.Conv2d(4, 6, 3, bias=False), (2, 4, 9, 8)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2), (2, 4, 9, 8)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding="same"), (2, 4, 9, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5, 4)),
    "transposed_groups": (lambda: nn.ConvTranspose1d(4, 6, 3, groups=2), (2, 4, 5)),
    "unbatched": (lambda: nn.Conv2d(4, 6, 3), (4, 9, 8)),
    "linear": (lambda: nn.Linear(4, 6), (9, 4)),
    "linear_no_bias": (lambda: nn.Linear(4, 6, bias=False), (9, 4)),
    "linear_of_rows": (lambda: nn.Linear(4, 6), (2, 5, 3, 4)),
    "linear_of_one": (lambda: nn.Linear(40, 60), (40,)),
}


def make(name: str, how: str, tmp_path: Path) -> tuple[nn.Module, Model, Tensor]:
    """The eager layer, what quantize_slots gets, and an input."""
    build, shape = CONVOLUTIONS[name]
    torch.manual_seed(1)
    eager = build()
    x = batch(*shape)
    if how == "traced":
        return eager, torch.jit.trace(eager, x), x
    model = torch.jit.script(eager)
    if how == "loaded":
        model.save(str(tmp_path / "model.pt"))
        model = torch.jit.load(str(tmp_path / "model.pt"))
    return eager, model, x


def plain(eager: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """The layer without its bias, of these operands."""
    if isinstance(eager, nn.Linear):
        return x @ weight.T
    bare = type(eager)(
        eager.in_channels, eager.out_channels, eager.kernel_size, eager.stride, eager.padding,
        groups=eager.groups, bias=False, dilation=eager.dilation,
        **({"output_padding": eager.output_padding} if eager.transposed else {}),
    ).double()  # fmt: skip
    bare.weight.data = weight
    with torch.no_grad():
        return bare(x)


def quantized(x: Tensor, slot: TensorOptions | None, axis: int) -> Tensor:
    """The formulas of QuantizationSpec in double, for the range of x itself; by channels."""
    if slot is None:
        return x
    if slot.channelwise:
        whole = replace(slot, channelwise=False)
        return torch.stack([quantized(row, whole, 0) for row in x.unbind(axis)], axis)
    low = 0 if slot.signed is False else -(2 ** (slot.bits - 1))
    high = low + 2**slot.bits - 1
    smallest, largest = min(0.0, x.min().item()), max(0.0, x.max().item())
    zero = 0.0
    if slot.scheme == "power_of_two":
        scale = 2.0**-40
        while smallest < scale * low - 1e-12 or largest > scale * high + 1e-12:
            scale *= 2
    elif slot.scheme == "symmetric":
        scale, zero = 2 * max(-smallest, largest) / (high - low), (high + low + 1) // 2
    else:
        scale = torch.tensor((largest - smallest) / (high - low)).item()
        zero = low - round(smallest / scale)
    # In float32 as the kernel does it: a symmetric scale has its largest value on a tie.
    steps = (x.float() * (1 / torch.tensor(scale))).double()
    return (steps.round().add(zero).clamp(low, high) - zero) * scale


def output_axis(eager: nn.Module) -> int:
    """The axis of a weight that holds the channels of the result."""
    return int(getattr(eager, "transposed", False))


def reference(eager: nn.Module, x: Tensor, slots: dict[str, TensorOptions]) -> Tensor:
    """q_sum(q_correlation(q_weight(w) * q_input(x)) + q_bias(b)) in double."""
    dims = eager.weight.dim() - 2
    axis = -(dims + 1)
    weight = quantized(eager.weight.detach().double(), slots.get("weight"), output_axis(eager))
    y = plain(eager, quantized(x.double(), slots.get("input"), axis), weight)
    y = quantized(y, slots.get("correlation"), axis)
    if eager.bias is not None:
        bias = quantized(eager.bias.detach().double(), slots.get("bias"), 0)
        y = y + bias.reshape(-1, *[1] * dims)
    return quantized(y, slots.get("sum"), axis)


def assert_close_to(y: Tensor, expected: Tensor, slots: dict[str, TensorOptions]) -> None:
    """Asserts float32 rounding where no code flipped, and at most one step where one did.

    A correlation in float32 may land on the other side of a tie: one step of `correlation` or
    `sum`, in less than one value of a hundred. Symmetric scales put the largest value of each
    channel on a tie; and where one at the end of a range flips, the range of the next slot and so
    its scale moves by a part of that step, unless it is a power of two.
    """
    powers = all(slot.scheme == "power_of_two" for slot in slots.values())
    few = 0.01 if powers else 0.25
    apart = (y.double() - expected).abs()
    tight = 2e-6 * expected.abs().max()
    step = tight
    for name in ("correlation", "sum"):
        if name in slots:
            step = step + 2.01 * expected.abs().max() / 2 ** (slots[name].bits - 1)
    assert (apart <= step).all()
    assert (apart > tight).float().mean() <= few
    assert expected.abs().max() > 0.1


RECIPE = dict(RECIPES["graffitist"])


@pytest.mark.parametrize("how", ["scripted", "traced", "loaded"])
@pytest.mark.parametrize("slot", [*SLOTS, "all"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_formula(name: str, slot: str, how: str, tmp_path: Path) -> None:
    """Each slot alone, and q8(q16(sum q8(w) * q8(x)) + q16(b))."""
    eager, model, x = make(name, how, tmp_path)
    slots = RECIPE if slot == "all" else {slot: RECIPE[slot]}
    if slot == "bias" and eager.bias is None:
        return
    result = quantize_slots(model, **({"recipe": "graffitist"} if slot == "all" else slots))
    result.train()
    assert_close_to(result(x).detach(), reference(eager, x, slots), slots)
    expected = {f"{s}_range" for s in slots if s != "bias" or eager.bias is not None}
    assert {key for key in result.state_dict() if "range" in key} == expected


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("scheme", ["symmetric", "affine", "power_of_two"])
@pytest.mark.parametrize(
    "name", ["conv2d", "no_bias", "groups", "transposed_groups", "unbatched", "linear_of_rows"]
)
def test_schemes(name: str, scheme: str, granularity: str, tmp_path: Path) -> None:
    """All slots with other schemes, numbers of bits and channels; ranges have the right shape."""
    eager, model, x = make(name, "scripted", tmp_path)
    bits = {"input": 6, "weight": 5, "correlation": 16, "bias": 12, "sum": 9}
    slots = {
        s: slot_of(b, scheme=scheme, granularity=granularity, averaging_constant=1.0)
        for s, b in bits.items()
    }
    result = quantize_slots(model, **slots)
    result.train()
    expected, axis = reference(eager, x, slots), 1 - eager.weight.dim()
    assert_close_to(result(x).detach(), expected, slots)
    if granularity == "per_channel":
        channels, inside = expected.shape[axis], eager.weight.shape[output_axis(eager)]
        assert result.input_range.shape == (2, x.shape[axis])
        assert result.weight_range.shape == (2, inside)
        assert result.sum_range.shape == result.correlation_range.shape == (2, channels)


class Net(nn.Module):
    """Batch norm, writes in place, a convolution that is called twice, one without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True))
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        z = self.shared(y).relu_()
        z = self.shared(z + y)
        z.mul_(0.5)
        return self.head(z).mean([2, 3])


@pytest.fixture
def net() -> Model:
    """In training mode, as scripting leaves it."""
    torch.manual_seed(0)
    return torch.jit.script(Net())


X = batch(4, 3, 8, 8)
SHARED = {f"shared.{s}_range{n}" for s in SLOTS for n in ("", "_1")}


def test_state(net: Model) -> None:
    """Parameters and buffers are the original's own; ranges come on top, in their submodules."""
    result = quantize_slots(net, recipe="graffitist")
    ours, theirs = dict(result.named_parameters()), dict(net.named_parameters())
    assert list(ours) == list(theirs) and all(ours[name] is theirs[name] for name in ours)
    new = {key for key in result.state_dict() if key not in net.state_dict()}
    stem = {f"stem.0.{s}_range" for s in SLOTS}
    head = {f"head.{s}_range" for s in SLOTS if s != "bias"}
    assert new == SHARED | stem | head | {
        "observer_enabled",
        "fake_quantize_enabled",
        "statistics_frozen",
    }
    assert [n for n, _ in result.named_buffers() if n in net.state_dict()] == [
        n for n, _ in net.named_buffers()
    ]


def test_original_is_untouched(net: Model) -> None:
    """Graph, keys, mode; it still runs in float."""
    graph, keys = str(net.inlined_graph), list(net.state_dict())
    net.eval()
    before = net(X)
    quantize_slots(net, recipe="graffitist")
    assert str(net.inlined_graph) == graph and list(net.state_dict()) == keys
    assert torch.equal(net(X), before) and not net.training


def ranges(model: Model) -> dict[str, Tensor]:
    """Copies of the ranges."""
    return {k: v.clone() for k, v in model.state_dict().items() if "_range" in k}


def test_ranges_move_in_training_mode_only(net: Model) -> None:
    """By averaging_constant; weights' ranges are those of the weights, in eval mode too."""
    result = quantize_slots(net, recipe="graffitist")
    with pytest.raises(RuntimeError, match=r"'stem\.0:correlation input' is known: run a batch"):
        result.eval()(X)
    result.train()(X)
    first = ranges(result)
    assert torch.equal(first["stem.0.input_range"], torch.stack([X.min(), X.max()]))
    result(2 * X)
    second = ranges(result)
    torch.testing.assert_close(second["stem.0.input_range"], 1.01 * first["stem.0.input_range"])
    assert all(
        (second[k] != first[k]).any() for k in first if "weight" not in k and "bias" not in k
    )
    result.eval()(5 * X)
    assert all(torch.equal(v, second[k]) for k, v in ranges(result).items())
    with torch.no_grad():
        result.head.weight.mul_(3)
    result(X)
    assert torch.equal(result.head.weight_range, 3 * second["head.weight_range"])


def test_scales_are_powers_of_two(net: Model) -> None:
    """Every quantized value times a power of two is a small whole number."""
    result = quantize_slots(net, recipe="graffitist")
    result(X)
    for name, (low, high) in ((k, v.tolist()) for k, v in ranges(result).items()):
        bits = RECIPE[name.split(".")[-1].split("_")[0]].bits
        top = 2 ** (bits - 1)
        scale = 2.0**-60
        while low < -top * scale or high > (top - 1) * scale:
            scale *= 2
        if name.startswith("stem.0.weight"):
            weight = result.stem._modules["0"].weight.detach()
            step = torch.ops.jit_passes.fake_quantize(
                weight, torch.tensor([scale]), torch.zeros(1), -top, top - 1
            )
            assert torch.equal((step / scale).round(), step / scale)
            assert (step - weight).abs().max() <= scale / 2


def test_gradients_reach_everything(net: Model) -> None:
    """Weights, biases and inputs; with 16 bits they are close to those of the float model.

    With powers of two, where nothing is clipped: a symmetric scale has its largest value half a
    step beyond the largest code, where it may get no gradient.
    """
    fine = slot_of(16, scheme="power_of_two", averaging_constant=1.0)
    result = quantize_slots(net, **dict.fromkeys(SLOTS, fine))
    x, same = X.clone().requires_grad_(), X.clone().requires_grad_()
    probe = batch(4, 4, seed=3)
    (result(x) * probe).sum().backward()
    found = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    (net(same) * probe).sum().backward()
    for name, parameter in net.named_parameters():
        scale = parameter.grad.abs().max()
        # 16 bits: steps of up to 6e-5 of the range, and a relu may let another value pass.
        assert (found[name] - parameter.grad).abs().max() <= 0.02 * scale + 1e-5, name
        assert name == "stem.0.bias" or found[name].any()  # batch norm takes that one away
    assert (x.grad - same.grad).abs().max() <= 0.02 * same.grad.abs().max()


def test_training(net: Model, tmp_path: Path) -> None:
    """A few steps lower the loss; a file written in the middle goes on to the same numbers."""
    result = quantize_slots(net, recipe="graffitist")
    target = torch.tensor([0, 1, 2, 3])

    def steps(model: Model, count: int) -> list[float]:
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        losses = []
        for _ in range(count):
            loss = F.cross_entropy(model(X), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    losses = steps(result, 10)
    result.save(str(tmp_path / "model.pt"))
    loaded = torch.jit.load(str(tmp_path / "model.pt"))
    assert list(loaded.state_dict()) == list(result.state_dict())
    assert steps(loaded, 5) == (more := steps(result, 5))
    assert more[-1] < 0.8 * losses[0]
    assert torch.equal(loaded.eval()(X), result.eval()(X))


def test_state_dict_round_trip(net: Model) -> None:
    """Into a fresh model, ranges included."""
    result = quantize_slots(net, recipe="graffitist")
    result(X)
    torch.manual_seed(5)
    other = quantize_slots(torch.jit.script(Net()), recipe="graffitist")
    other.load_state_dict(result.state_dict())
    assert torch.equal(other.eval()(X), result.eval()(X))


def test_eval_mode_model(net: Model) -> None:
    """A model in eval mode stays in it; train() switches everything."""
    result = quantize_slots(net.eval(), input=8)
    assert not result.training
    result.train()(X)
    assert (result.stem._modules["0"].input_range.abs() < 9).all()


def test_where(net: Model) -> None:
    """One pattern or several; what is not named is as it was."""
    result = quantize_slots(net, weight=8, where="stem.*")
    assert list(ranges(result)) == ["stem.0.weight_range"]
    result = quantize_slots(net, weight=8, where=["head", "s*.?"])
    assert set(ranges(result)) == {"stem.0.weight_range", "head.weight_range"}
    twice = quantize_slots(result, weight=4, where="shared")
    assert set(ranges(twice)) == set(ranges(result)) | {
        "shared.weight_range", "shared.weight_range_1"
    }  # fmt: skip
    twice = quantize_slots(result, bias=8, sum=8, where="stem.0")
    assert {"stem.0.bias_range", "stem.0.sum_range"} <= set(ranges(twice))


def test_recipe_with_other_slots(net: Model) -> None:
    """A number of bits changes the recipe's slot, options replace it."""
    slot = slot_of(4, signed=False, scheme="affine", rounding="floor", averaging_constant=0.5)
    result = quantize_slots(net, recipe="graffitist", weight=5, sum=slot, where="stem.0")
    nodes = [n for n in GraphView.of(result._c, "forward").nodes if "fake_quantize" in n.kind]
    found = {
        n.inputs[-2].constant.split()[-1]: [n.inputs[i].constant for i in (6, 8, 9, 10, 11, 12)]
        for n in nodes
    }
    assert found == {
        "input": [0.01, -128, 127, "per_tensor_power_of_two", None, "half_even"],
        "weight": [1.0, -16, 15, "per_tensor_power_of_two", None, "half_even"],
        "correlation": [0.01, -32768, 32767, "per_tensor_power_of_two", None, "half_even"],
        "bias": [1.0, -32768, 32767, "per_tensor_power_of_two", None, "half_even"],
        "sum": [0.5, 0, 15, "per_tensor_affine", None, "floor"],
    }
    assert {n.module for n in nodes} == {"stem.0"}
    assert all("test_slots.py" in n.source for n in nodes)


def test_frozen(net: Model) -> None:
    """Constant weights; the module is gone, and its path is in the buffer's name."""
    frozen = torch.jit.freeze(net.eval(), optimize_numerics=False)
    result = quantize_slots(frozen, recipe="graffitist", where="head")
    assert set(ranges(result)) == {f"head_{s}_range" for s in SLOTS if s != "bias"}
    assert (result(X) - net(X)).abs().max() < 0.05 * net(X).abs().max()


class Functional(nn.Module):
    """Convolutions of the root, the weight of one of which is computed, and one in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(batch(4, 3, 3, 3))
        self.gain = nn.Parameter(torch.ones(4, 1, 1, 1))

    def forward(self, x: Tensor, deep: bool = True) -> Tensor:
        y = F.conv2d(x, self.weight * self.gain)
        if deep:
            y = F.conv_transpose2d(y, self.weight, stride=2)
        x.add_(1)
        return y


def test_functional() -> None:
    """Ranges of the root get numbers; gradients go through what computes a weight."""
    model = torch.jit.script(Functional())
    result = quantize_slots(model, input=8, weight=8, where="")
    assert set(ranges(result)) == {
        "input_range", "input_range_1", "weight_range", "weight_range_1"
    }  # fmt: skip
    x = X.clone()
    result(x).sum().backward()
    assert torch.equal(x, X + 1) and model.gain.grad.any()
    assert torch.equal(result.input_range, torch.stack([X.min(), X.max()]))
    channels = slot_of(granularity="per_channel")
    found = ranges(quantize_slots(model, weight=channels))
    assert [tuple(r.shape) for r in found.values()] == [(2, 4), (2, 3)]  # one is transposed


class OfInput(nn.Module):
    """A convolution whose weight depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(batch(4, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * x.mean())


def test_channels_of_a_weight_that_is_not_known() -> None:
    with pytest.raises(JitPassesError, match=r"shape is not known.*per-tensor"):
        quantize_slots(torch.jit.script(OfInput()), weight=slot_of(granularity="per_channel"))


def test_other_method() -> None:
    """The result has that method only."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        @torch.jit.export
        def encode(self, x: Tensor) -> Tensor:
            return self.conv(x)

    result = quantize_slots(torch.jit.script(Encoder()), sum=8, method="encode")
    assert result.encode(X).shape == (4, 4, 6, 6)
    assert result.conv.sum_range[1] > 0


def test_without_slots_it_is_the_float_model(net: Model) -> None:
    """Splitting alone changes nothing but the rounding of one addition."""
    net.eval()
    module = SPLIT.run(_C.clone(net._c, "forward"), "forward").module
    kinds = [node.kind for node in GraphView.of(module, "forward").nodes]
    assert kinds.count("jit_passes::correlation") == 4
    names = [n.name for n in GraphView.of(module, "forward").nodes if n.kind.startswith("jit_p")]
    assert "shared:correlation#1" in names and "shared:add_bias" in names
    torch.testing.assert_close(wrap(module)(X), net(X), rtol=1e-5, atol=1e-6)


def test_insert_fake_quantize() -> None:
    """The pass by itself: what it changes, in front of a write in place, and that it says so."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(True)))
    split = Pipeline("split", tuple(step for step in SPLIT.steps if step != "replace_inplace"))
    module = split.run(_C.clone(model._c, "forward"), "forward").module
    before = str(module._get_method("forward").graph)
    options: dict[str, Any] = {"places": (), "states": ()}
    module, changed, _ = _C.run_pass("insert_fake_quantize", module, "forward", options)
    assert not changed and str(module._get_method("forward").graph) == before
    graph = GraphView.of(module, "forward", parameters=True)
    options = planned(graph, SlotQuantizer(RECIPE).annotate(graph))
    module, changed, _ = _C.run_pass("insert_fake_quantize", module, "forward", options)
    _C.lint(module, "forward")
    kinds = [node.kind for node in GraphView.of(module, "forward").nodes]
    assert changed and kinds.count("jit_passes::fake_quantize_moving_average") == 5
    relu = next(n for n in GraphView.of(module, "forward").nodes if n.kind == "aten::relu_")
    producer = relu.inputs[0].producer
    assert producer is not None and producer.kind == "jit_passes::fake_quantize_moving_average"


class Overwrites(nn.Module):
    """Reads its argument twice, and half of it is overwritten in between, or is not."""

    __constants__ = ("write",)

    def __init__(self, write: bool) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        half = x[:2]
        y = torch.sigmoid(x)
        if self.write:
            half.mul_(3)
        return y + torch.tanh(x)


@pytest.mark.parametrize("write", [True, False])
def test_written_values(write: bool) -> None:
    """One node for all uses; where they read something else, one for each, and its own range."""
    model = torch.jit.script(Overwrites(write))
    module = Pipeline("clean", ("propagate_constants",)).run(_C.clone(model._c, "forward")).module
    graph = GraphView.of(module, "forward")
    spec = slot_of(4, scheme="affine", averaging_constant=1.0).apply(SLOT, 0)
    annotations = Annotations()
    for node in graph.nodes:
        if node.kind in ("aten::sigmoid", "aten::tanh"):
            annotations[node] = QuantizationAnnotation({graph.inputs[0]: spec})
    options = planned(graph, annotations)
    module, _, _ = _C.run_pass("insert_fake_quantize", module, "forward", options)
    _C.lint(module, "forward")
    kinds = [node.kind for node in GraphView.of(module, "forward").nodes]
    assert kinds.count("jit_passes::fake_quantize_moving_average") == (2 if write else 1)
    result = wrap(module)
    x = X.clone()
    later = x.clone()
    later[:2] *= 3 if write else 1
    expected = torch.sigmoid(quantized(x.double(), slot_of(4, scheme="affine"), 0)) + torch.tanh(
        quantized(later.double(), slot_of(4, scheme="affine"), 0)
    )
    torch.testing.assert_close(result(x), expected.float(), rtol=0, atol=1e-6)
    assert torch.equal(x, later)
    assert torch.equal(result.input_range, torch.stack([X.min(), X.max()]))
    if write:
        assert torch.equal(result.input_range_1, torch.stack([later.min(), later.max()]))


def test_all_uses_of_a_view_that_is_written_to() -> None:
    """Writes into the quantized copy would not reach what it is a view of."""
    model = torch.jit.script(Overwrites(True))
    module = Pipeline("clean", ("propagate_constants",)).run(_C.clone(model._c, "forward")).module
    graph = GraphView.of(module, "forward")
    annotations = Annotations()
    view = next(node for node in graph.nodes if node.kind == "aten::slice")
    annotations[view] = QuantizationAnnotation(output_qspec=SLOT)
    options = planned(graph, annotations)
    with pytest.raises(RuntimeError, match="written to by an in-place operator: annotate its uses"):
        _C.run_pass("insert_fake_quantize", module, "forward", options)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "nothing": ({}, JitPassesError, "nothing is to be quantized: give input, weight"),
    "where": ({"weight": 8, "where": "sten.0"}, JitPassesError, "matches 'sten.0'.*'stem.0'"),
    "recipe": ({"recipe": "graphitist"}, JitPassesError, "one of graffitist, not 'graphitist'"),
    "recipes": ({"recipe": ["graffitist"]}, JitPassesError, r"one of graffitist, not \['gra"),
    "nowhere": ({"weight": 8, "where": []}, JitPassesError, r"where is a pattern .*, not \[\]"),
    "number": ({"weight": 8, "where": 3}, JitPassesError, "where is a pattern .*, not 3: '.' is"),
    "bits": ({"weight": 17}, ValueError, "from 2 to 16, not 17"),
    "few_bits": ({"weight": 1}, ValueError, "from 2 to 16, not 1"),
    "type": (
        {"weight": "8"},
        JitPassesError,
        "weight is a number of bits, TensorOptions or None, not a s",
    ),
    "method": ({"weight": 8, "method": "run"}, JitPassesError, "no method 'run'"),
    "slot": ({"wait": 8}, TypeError, "wait"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str, net: Model) -> None:
    """The message has the words that help."""
    arguments, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        quantize_slots(net, **arguments)


def test_bad_models(net: Model) -> None:
    """Eager, without layers, quantized already."""
    with pytest.raises(JitPassesError, match=r"an eager module: pass torch.jit.script"):
        quantize_slots(Net(), weight=8)
    with pytest.raises(JitPassesError, match="no convolution or linear that could be split"):
        quantize_slots(torch.jit.script(nn.ReLU()), weight=8)
    result = quantize_slots(net, recipe="graffitist")
    for slot in SLOTS:
        with pytest.raises(JitPassesError, match=f"'{slot}' of 'stem.0.* is quantized already"):
            quantize_slots(result, **{slot: 8}, where="stem.0")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 2.5}, "bits is a whole number from 2 to 16, not 2.5"),
        ({"scheme": "log"}, "scheme is one of affine, symmetric, .*power_of_two, not 'log'"),
        ({"rounding": "up"}, "rounding is one of half_even"),
        ({"averaging_constant": 0.0}, r"averaging_constant is in \(0, 1\], not 0"),
    ],
)
def test_bad_slots(fields: dict[str, Any], message: str) -> None:
    """Each field says what it takes."""
    with pytest.raises(ValueError, match=message):
        slot_of(**fields)


def test_bad_slot_names() -> None:
    """And that there must be one."""
    with pytest.raises(ValueError, match=r"slots are input, .* sum, not 'product'"):
        SlotQuantizer({"product": slot_of()})
    with pytest.raises(ValueError, match="none was given"):
        SlotQuantizer({})


def test_spec() -> None:
    """The narrowest type that holds the codes, and their ends."""
    given = [slot_of(bits, signed=signed) for bits in (8, 9) for signed in (True, False)]
    specs = [slot.apply(SLOT, 1) for slot in given]
    assert [(s.dtype, s.quant_min, s.quant_max) for s in specs] == [
        ("int8", -128, 127), ("uint8", 0, 255), ("int16", -256, 255), ("int32", 0, 511),
    ]  # fmt: skip
    assert slot_of().apply(SLOT, 1) == SLOT and SLOT.ch_axis is None
    spec = slot_of(granularity="per_channel", rounding="ceil").apply(SLOT, -3)
    assert (spec.ch_axis, spec.qscheme, spec.rounding) == (-3, "per_channel_symmetric", "ceil")


def test_digits() -> None:
    """A ResNet on real digits: 8 bits with powers of two, fine-tuned, within a point of float.

    The test half has 597 images, so one point is 6 of them.
    """
    sys.path.insert(0, str(ROOT / "tutorials"))
    try:
        import digits
    finally:
        sys.path.pop(0)
    data = digits.load_digits_tensors()
    torch.manual_seed(0)
    model = digits.train(digits.DigitsResNet(8), data, epochs=6, progress=False)
    in_float = digits.top1(model, data.test_x, data.test_y)
    scripted = torch.jit.script(model)
    tuned = quantize_slots(scripted, recipe="graffitist")
    digits.train(tuned, data, epochs=3, peak_rate=1e-3, progress=False)
    in_int8 = digits.top1(tuned, data.test_x, data.test_y)
    assert in_float > 95
    assert in_int8 > in_float - 1, (in_float, in_int8)
