"""From slots that trained to the reference model and to targets, against the formula in double."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning, quantize_slots
from jit_passes.graph.view import GraphView
from jit_passes.quantizer import TensorOptions
from jit_passes.targets import Reference, Stock
from tests.processor import BITS, REDUCED
from tests.qat_nets import makes_scales_positive
from tests.training.test_slots import (
    CONVOLUTIONS,
    RECIPE,
    Functional,
    Model,
    Net,
    X,
    assert_close_to,
    batch,
    make,
    reference,
)

PER_CHANNEL = TensorOptions(channelwise=True)
NARROW = {
    "input": TensorOptions(bits=6, scheme="affine"),
    "weight": TensorOptions(bits=4, channelwise=True),
    "correlation": TensorOptions(bits=12, channelwise=True),
    "bias": TensorOptions(bits=10),
    "sum": TensorOptions(bits=7, signed=False, scheme="affine", channelwise=True),
}
ROUNDED = {
    "input": TensorOptions(rounding="half_away"),
    "weight": TensorOptions(bits=5, rounding="floor", channelwise=True),
    "correlation": TensorOptions(bits=14, rounding="ceil", scheme="affine", channelwise=True),
    "bias": TensorOptions(bits=16, rounding="toward_zero"),
    "sum": TensorOptions(rounding="half_up", scheme="affine"),
}
WAYS: dict[str, dict[str, Any]] = {
    "graffitist": {"recipe": "graffitist"},
    "graffitist_4": {"recipe": "graffitist", "input": 4, "weight": 4, "correlation": 9, "sum": 4},
    "narrow": NARROW,
    "rounded": ROUNDED,
    "weights": {"weight": 3},
    "fixed": {
        "input": TensorOptions(scale=1 / 16, zero_point=3),
        "weight": TensorOptions(range=(-1.0, 1.0)),
        "sum": TensorOptions(dtype="int16"),
    },
    "tqt": {"recipe": "graffitist", "fake_quantizer": "tqt"},
    "lsq": {"input": 4, "weight": PER_CHANNEL, "bias": 16, "sum": 8, "fake_quantizer": "lsq"},
}


def trained(model: Model, *batches: Tensor, **slots: Any) -> Model:
    """A model whose slots have taken a step for each batch, in eval mode."""
    result = quantize_slots(model, **slots).train()
    optimizer = torch.optim.SGD(result.parameters(), 0.01)
    for x in batches:
        optimizer.zero_grad()
        result(x).square().mean().backward()
        optimizer.step()
    return result.eval()


def kinds_of(model: Model) -> list[str]:
    """The operators of a model's graph."""
    return [node.kind for node in GraphView.of(model._c, "forward").nodes]


@makes_scales_positive
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_reference_is_what_trained(name: str, way: str, tmp_path: Path) -> None:
    """To the bit, for every kind of convolution; the reference model for itself is the same."""
    _, model, x = make(name, "scripted", tmp_path)
    result = trained(model, x, 0.7 * x, **WAYS[way])
    converted = jit_passes.convert(result)
    expected = result(x)
    assert torch.equal(converted(x), expected)
    assert torch.equal(jit_passes.lower(converted)(x), expected)
    assert not any(
        "fake_quantize_moving" in kind or "train" in kind for kind in kinds_of(converted)
    )
    assert jit_passes.parity(result, converted, [x, 2 * x]).equal
    assert [row.dtype for row in jit_passes.coverage(converted)] == ["int8"]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_reference_is_the_formula(name: str, tmp_path: Path) -> None:
    """q8(q16(sum q8(w) * q8(x)) + q16(b)) in double, and of integers only."""
    eager, model, x = make(name, "scripted", tmp_path)
    result = quantize_slots(model, recipe="graffitist")
    result.train()(x)
    converted = jit_passes.convert(result)
    assert_close_to(converted(x).detach(), reference(eager, x, RECIPE), RECIPE)
    graph = GraphView.of(converted._c, "forward")
    read = [n.inputs[0] for n in graph.nodes if n.kind == "jit_passes::dequantize"]
    constants = [value.constant.dtype for value in read if value.is_constant]
    with_bias = eager.bias is not None
    assert constants == [torch.int8, torch.int16][: 1 + with_bias]
    assert kinds_of(converted).count("jit_passes::quantize") == 3  # input, correlation, sum


@pytest.mark.parametrize("way", ["graffitist", "narrow", "rounded", "tqt"])
def test_network(way: str, tmp_path: Path) -> None:
    """Batch norm, writes in place, one called twice; also from files; every stage takes it."""
    torch.manual_seed(0)
    result = trained(torch.jit.script(Net()), X, 2 * X, X, **WAYS[way])
    converted = jit_passes.convert(result)
    expected = result(X)
    assert torch.equal(converted(X), expected)
    files = []
    for number, model in enumerate((result, converted)):
        model.save(str(tmp_path / f"{number}.pt"))
        files.append(torch.jit.load(str(tmp_path / f"{number}.pt")))
    assert torch.equal(jit_passes.convert(files[0])(X), expected)
    assert torch.equal(jit_passes.lower(files[1])(X), expected)
    assert jit_passes.parity(*files, [X, batch(2, 3, 8, 8, seed=9)]).equal
    assert len(jit_passes.coverage(files[1]).int8) == 4
    assert jit_passes.parity(result, converted, [X]).unmatched == ()


@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")  # of what a form cannot say
def test_export(tmp_path: Path) -> None:
    """Encodings have all slots; what is stripped of them is the float model, for plain PyTorch."""
    torch.manual_seed(0)
    result = trained(torch.jit.script(Net()), X, X, recipe="graffitist")
    encodings = jit_passes.encodings_of(jit_passes.convert(result))
    assert len(encodings) == 4 * 5 - 1 - 2  # one has no bias; the one called twice has one weight
    first = encodings.layers[0]
    assert (first.name, first.kind, len(encodings.layers)) == ("stem.0", "conv2d", 4)
    found = {slot: getattr(first, slot).bits for slot in ("input", "weight", "bias", "output")}
    assert found == {"input": 8, "weight": 8, "bias": 16, "output": 8}
    assert encodings.layers[-1].output.bits == 8  # of the sum; the correlation has 16
    assert encodings["stem.0:correlation"].bits == 16
    assert encodings["stem.0:correlation"].scale[0] == 2.0 ** round(
        torch.tensor(encodings["stem.0:correlation"].scale[0]).log2().item()
    )
    stripped, same = jit_passes.strip(result)
    assert [e.name for e in same] == [e.name for e in encodings]
    assert not any(kind.startswith("jit_passes::") for kind in kinds_of(stripped))
    jit_passes.disable_fake_quantize(result)
    torch.testing.assert_close(stripped(X), result(X), rtol=1e-5, atol=1e-6)
    chain = trained(torch.jit.script(Chain()), X, recipe="graffitist")
    jit_passes.export_calibration(chain, tmp_path / "nni.pt", format="nni")
    file = torch.load(tmp_path / "nni.pt", weights_only=True)
    assert set(file) == {"first", "second", "last"} and file["last"]["weight_bits"] == 8


class Chain(nn.Module):
    """Three convolutions that PyTorch's kernels know, one without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding="same")
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.last = nn.ConvTranspose2d(8, 8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.second(F.relu_(self.first(x))))
        return self.last(y)


@pytest.mark.parametrize("slots", [{}, {"bias": 16}], ids=["float_bias", "bias"])
@pytest.mark.parametrize("reduced", REDUCED)
def test_stock(reduced: bool, slots: dict[str, Any]) -> None:
    """Merged into PyTorch's operators; the file needs no package; at most a step of the sum."""
    torch.manual_seed(0)
    uint8 = TensorOptions(dtype="uint8", bits=7 if reduced else 8, scheme="affine")
    weight = TensorOptions(scheme="symmetric")
    target = Stock(reduce_range=reduced)
    given = {"input": uint8, "weight": weight, "sum": uint8, "target": target, **slots}
    result = trained(torch.jit.script(Chain()), X, X, **given)
    converted = jit_passes.convert(result)
    assert torch.equal(converted(X), result(X))
    lowered = jit_passes.lower(converted)
    kinds = kinds_of(lowered)
    assert kinds.count("quantized::conv2d") == 2
    assert kinds.count("quantized::conv_transpose2d") == 1
    assert not any(kind.startswith("jit_passes::") for kind in kinds)
    assert not any(row.reason for row in jit_passes.coverage(lowered))
    assert jit_passes.parity(result, lowered, [X], atol_steps=1).first is None
    saved = io.BytesIO()
    torch.jit.save(lowered, saved)
    assert b"jit_passes::" not in saved.getvalue()


def test_stock_by_default() -> None:
    """Numbers of bits alone: the rest is what the target has that is nearest."""
    result = trained(torch.jit.script(Chain()), X, input=BITS, weight=8, sum=BITS, target="stock")
    converted = jit_passes.convert(result)
    assert torch.equal(converted(X), result(X))
    assert kinds_of(jit_passes.lower(converted)).count("quantized::conv2d") == 2


def test_x86() -> None:
    """Convolutions are in plans, and give the numbers that trained."""
    slots = {"input": 8, "weight": 8, "sum": 8, "target": "x86"}
    result = trained(torch.jit.script(Chain()), X, **slots)
    converted = jit_passes.convert(result)
    lowered = jit_passes.lower(converted)
    kinds = kinds_of(lowered)
    assert kinds.count("prim::CallMethod") == 1  # a relu_ is a relu
    assert not {"jit_passes::correlation", "jit_passes::add_bias", "aten::conv2d"} & {*kinds}
    assert torch.equal(lowered(X), result(X))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "correlation": (
        {"recipe": "graffitist"},
        "its correlation is quantized, and the",
    ),
    "no_sum": ({"input": BITS, "weight": 8}, "its sum is not quantized"),
    "bits": ({"input": 4, "weight": 8, "sum": 8}, r"its input is to be uint8 \[0, 15\], and the"),
    "rounding": (
        {"input": BITS, "weight": TensorOptions(rounding="floor"), "sum": BITS},
        "its weight is to be rounded floor, and the target has half_even",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stock_cannot(name: str) -> None:
    """Nothing is quantized, and the error has the reason."""
    slots, reason = REFUSED[name]
    model = torch.jit.script(Chain())
    with pytest.raises(JitPassesError, match=reason):
        quantize_slots(model, **slots, target="stock")


def test_some_are_refused() -> None:
    """Layers beyond the target are float in training and afterwards; the rest goes on."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = nn.Conv2d(3, 4, 3)
            self.gain = nn.Parameter(batch(4, 4, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.plain(x)
            return F.conv2d(y, self.gain * y.mean())

    slots = {"input": BITS, "weight": 8, "sum": BITS, "target": "stock"}
    with pytest.warns(JitPassesWarning, match="correlation: its weight is computed by the model"):
        result = trained(torch.jit.script(Both()), X, **slots)
    converted = jit_passes.convert(result)
    lowered = jit_passes.lower(converted)
    assert [row.dtype for row in jit_passes.coverage(lowered)] == ["int8", "float"]
    assert kinds_of(lowered).count("aten::conv2d") == 1
    torch.testing.assert_close(
        lowered(X), result(X), rtol=0, atol=0.02 * float(result(X).detach().abs().max())
    )


class Measured(nn.Module):
    """A weight that depends on the input: no two batches give it the same range."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(batch(4, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * x.mean())


def test_weights_of_the_input() -> None:
    """Are measured each time, which no constant scale can say: they stay float, with a reason."""
    result = trained(torch.jit.script(Measured()), X, input=8, weight=8)
    with pytest.warns(JitPassesWarning, match="nothing was quantized"):
        converted = jit_passes.convert(result)
    (row,) = jit_passes.coverage(converted)
    assert row.reason == "its weight is computed by the model, and measured each time"
    torch.testing.assert_close(converted(X), F.conv2d(X, result.weight * X.mean()))


def test_computed_weights() -> None:
    """Of parameters alone are constant in the end, and in a branch too."""
    result = trained(torch.jit.script(Functional()), X.clone(), input=8, weight=8)
    converted = jit_passes.convert(result)
    for deep in (True, False):
        assert torch.equal(converted(X.clone(), deep), result(X.clone(), deep))


def test_module_by_module() -> None:
    """Called again for other modules, places have numbers of their own, and all of them convert."""
    torch.manual_seed(0)
    first = quantize_slots(torch.jit.script(Net()), recipe="graffitist", where="stem.*")
    assert [row.precision for row in jit_passes.coverage(first)] == ["w8a8", *["float"] * 3]
    second = quantize_slots(first, input=4, weight=4, where="shared")
    rows = jit_passes.coverage(second)
    assert [row.precision for row in rows] == ["w8a8", "w4a4", "w4a4", "float"]
    assert rows[3].reason == "its module was not chosen"
    third = quantize_slots(second, correlation=12, sum=6, where="shared")
    assert [row.precision for row in jit_passes.coverage(third)] == [r.precision for r in rows]
    result = trained(third, X, weight=8, where="head")
    converted = jit_passes.convert(result)
    assert torch.equal(converted(X), result(X))
    bits = [encoding.bits for encoding in jit_passes.encodings_of(converted)]
    assert {4, 6, 8, 12, 16} <= set(bits)


def test_other_stages_do_not_come_back() -> None:
    """A model of prepare_qat has no slots, and one that was converted none that train."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    with pytest.raises(JitPassesError, match="the model is qat already"):
        quantize_slots(jit_passes.prepare_qat(model), weight=8)
    result = trained(model, X, weight=8)
    with pytest.raises(JitPassesError, match="the model is qat already"):
        jit_passes.prepare_qat(result)
    with pytest.raises(JitPassesError, match="the model is reference already"):
        quantize_slots(jit_passes.convert(result), bias=8)


def test_untrained() -> None:
    """Ranges of activations need a batch; weights alone need none."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3)))
    with pytest.raises(JitPassesError, match=r"has not trained.*0:correlation input"):
        jit_passes.convert(quantize_slots(model, input=8, weight=8))
    result = quantize_slots(model, weight=4).eval()
    assert torch.equal(jit_passes.convert(result)(X), result(X))


def test_switches() -> None:
    """Switches of prepare_qat work: statistics stand still, observers and quantization go off."""
    torch.manual_seed(0)
    result = quantize_slots(torch.jit.script(Net()), recipe="graffitist").train()
    result(X)
    jit_passes.freeze_statistics(result)
    jit_passes.disable_observers(result)
    before = {k: v.clone() for k, v in result.state_dict().items() if "num_batches" not in k}
    result(3 * X)
    assert all(torch.equal(result.state_dict()[key], value) for key, value in before.items())


def test_trained_thresholds() -> None:
    """TQT's are parameters of the convolutions' modules, found by the usual functions."""
    result = quantize_slots(torch.jit.script(Net()), recipe="graffitist", fake_quantizer="tqt")
    names = [name for name, _ in jit_passes.named_quantization_parameters(result)]
    assert "stem.0.correlation_log2_threshold" in names and "head.sum_log2_threshold" in names
    with pytest.raises(JitPassesError, match="power of two as scale, which LSQ does not train"):
        quantize_slots(torch.jit.script(Net()), recipe="graffitist", fake_quantizer="lsq")


ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "toward_zero": torch.trunc,
    "half_up": lambda v: torch.floor(v + 0.5),
    "half_away": lambda v: v.sign() * torch.floor(v.abs() + 0.5),
}


def test_powers_of_two_lose_what_is_below_zero() -> None:
    """In dtypes without a sign: the zero point is 0, and a warning says so."""
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4)).eval())
    config = {"version": 1, "global": {"input": {"scheme": "power_of_two"}}}
    prepared = jit_passes.prepare(model, target="x86", config=config)
    jit_passes.calibrate(prepared, [torch.randn(16, 8)])
    with pytest.warns(jit_passes.JitPassesWarning, match="values below 0 become 0 in uint8"):
        jit_passes.convert(prepared)


@pytest.mark.filterwarnings("ignore:a scale that is a power of two")
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rounding_without_training(rounding: str) -> None:
    """A calibrated model too: of weights codes, of activations what goes into the operator."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 4, bias=False)).eval())
    options = {
        "input": {"range": [-2, 2], "rounding": rounding, "scheme": "power_of_two"},
        "weight": {"scheme": "power_of_two", "rounding": rounding, "channelwise": False},
        "output": {"dtype": "float"},
    }
    x = torch.arange(-16, 16).reshape(4, 8) / 13
    config = {"version": 1, "global": options}
    prepared = jit_passes.prepare(model, target=Reference(), config=config)
    jit_passes.calibrate(prepared, [x])
    converted = jit_passes.convert(prepared)

    def rounded(value: Tensor, scale: float) -> Tensor:
        steps = (value.detach() / scale).double()
        codes = ROUNDINGS[rounding](steps)
        return codes.clamp(-128, 127) * scale

    weight = model.state_dict()["0.weight"]
    nodes = GraphView.of(converted._c, "forward").nodes
    scales = [n.inputs[1].constant for n in nodes if n.kind == "jit_passes::dequantize"]
    unsigned = next(n for n in nodes if n.kind == "jit_passes::quantize").inputs[3].constant == 0
    steps = rounded(x, scales[0]) if not unsigned else rounded(x, scales[0]).clamp_min(0)
    expected = steps @ rounded(weight, scales[1]).T
    torch.testing.assert_close(converted(x).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_axes_from_the_end(axis: int) -> None:
    """Are those from the beginning, for both operators."""
    x = batch(3, 4, 5)
    scales = torch.rand(x.shape[axis], dtype=torch.float64) + 0.01
    zeros = torch.arange(x.shape[axis])
    ops = torch.ops.jit_passes
    codes = [
        ops.quantize_per_channel(x, scales, zeros, a, -8, 7, torch.int8) for a in (axis, axis + 3)
    ]
    assert torch.equal(*codes)
    values = [ops.dequantize_per_channel(codes[0], scales, zeros, a) for a in (axis, axis + 3)]
    assert torch.equal(*values)
    with pytest.raises(RuntimeError, match="outside of a tensor with 3 dimensions"):
        ops.dequantize_per_channel(codes[0], scales, zeros, -4)


def test_options() -> None:
    """The new words: what they replace, and what they exclude."""
    base = TensorOptions(dtype="uint8", rounding="floor")
    assert base.updated(TensorOptions(signed=True)) == TensorOptions(signed=True, rounding="floor")
    assert base.updated(TensorOptions(scale=0.5)) == TensorOptions(dtype="uint8", scale=0.5)
    with pytest.raises(ValueError, match="signed and dtype exclude each other"):
        TensorOptions(dtype="int8", signed=False)
    with pytest.raises(ValueError, match="a fixed scale and rounding exclude each other"):
        TensorOptions(scale=0.5, rounding="floor")
    with pytest.raises(ValueError, match="signed is True or False, not 1"):
        TensorOptions(signed=1)  # type: ignore[arg-type]
