"""Scales for groups of a weight's inputs: codes, specifications, and models of the reference.

Codes and values are checked number by number against exact arithmetic, and errors against the
closed form of quantization noise.
"""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning
from jit_passes.graph.view import GraphView, NodeView
from jit_passes.observers import Fixed, MinMax, PairSums
from jit_passes.quantizer import QuantizationSpec, TensorOptions
from jit_passes.report.cost import file_size
from jit_passes.stages.seen import needs_data
from jit_passes.targets import Reference, Stock
from tests.codes import code_of
from tests.compare import sqnr

quantize = torch.ops.jit_passes.quantize_per_channel
dequantize = torch.ops.jit_passes.dequantize_per_channel
FLOAT = {"dtype": "float"}


def alone(**weight: Any) -> dict[str, Any]:
    """Return a configuration that quantizes weights and nothing else."""
    return {"version": 1, "global": {"weight": weight, "input": FLOAT, "output": FLOAT}}


def reference_of(model: nn.Module, config: Any, target: Any = "reference") -> Any:
    scripted = torch.jit.script(model.eval())
    return jit_passes.convert(jit_passes.prepare(scripted, target=target, config=config))


def dequantizes(model: torch.jit.ScriptModule) -> list[NodeView]:
    nodes = GraphView.of(model).nodes
    return [node for node in nodes if node.kind.startswith("jit_passes::dequantize")]


# ------------------------------------------------------------------------------------- operators


def group_of(index: tuple[int, ...], axis: int, size: int) -> tuple[int, int]:
    """Return the channel and the group that an element belongs to."""
    return index[axis], index[1 - axis] // size


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [((3, 8), 0, 4), ((8, 3), 1, 2), ((4, 6, 3, 2), 0, 3), ((6, 4, 3), 1, 2), ((2, 5), 0, 5)],
)
def test_codes_of_groups(shape: tuple[int, ...], axis: int, size: int, dtype: torch.dtype) -> None:
    """Each element has the code and the value that its own group's grid gives."""
    generator = torch.Generator().manual_seed(len(shape) + axis)
    x = 3 * torch.randn(shape, generator=generator)
    grid = (shape[axis], shape[1 - axis] // size)
    scales = torch.rand(grid, generator=generator).double() + 0.02
    zero_points = torch.randint(0, 9, grid, generator=generator)
    low, high = (0, 20) if dtype == torch.uint8 else (-20, 20)
    found = quantize(x, scales, zero_points, axis, low, high, dtype)
    back = dequantize(found, scales, zero_points, axis)
    assert found.dtype == dtype and found.shape == back.shape == x.shape
    for index in np.ndindex(*shape):
        at = group_of(index, axis, size)
        scale, zero = scales[at].item(), int(zero_points[at])
        code = min(max(code_of(x[index].item(), scale, zero, fused=False), low), high)
        assert found[index].item() == code
        assert back[index].item() == np.float32(code - zero) * np.float32(scale)
    assert found.unique().numel() > 3


def test_one_group_is_a_channel() -> None:
    """To the bit; an axis below 0 counts from the end."""
    x = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    scales, zero_points = torch.rand(6).double() + 0.1, torch.arange(6)
    channels = quantize(x, scales, zero_points, 0, -8, 7, torch.int8)
    groups = quantize(x, scales[:, None], zero_points[:, None], -2, -8, 7, torch.int8)
    assert torch.equal(channels, groups)
    back = dequantize(channels, scales, zero_points, 0)
    assert torch.equal(back, dequantize(channels, scales[:, None], zero_points[:, None], -2))


@pytest.mark.parametrize(
    ("shape", "grid", "axis", "message"),
    [
        ((4, 6), (4, 4), 0, "do not cut a tensor"),
        ((4, 6), (3, 2), 0, "each of the 4 channels"),
        ((4, 6, 2), (2, 2), 2, "do not cut a tensor"),
        ((4,), (4, 1), 0, "do not cut a tensor"),
        ((4, 6), (4, 2, 1), 0, "do not cut a tensor"),
        ((4, 0), (4, 0), 0, "do not cut a tensor"),
    ],
)
def test_groups_that_cannot_be(
    shape: tuple[int, ...], grid: tuple[int, ...], axis: int, message: str
) -> None:
    scales, zero_points = torch.ones(grid).double(), torch.zeros(grid).long()
    with pytest.raises(RuntimeError, match=message):
        quantize(torch.ones(shape), scales, zero_points, axis, -8, 7, torch.int8)
    with pytest.raises(RuntimeError, match=message):
        dequantize(torch.ones(shape).char(), scales, zero_points, axis)


# --------------------------------------------------------------------------------------- options


def test_options_of_groups() -> None:
    """group_size and channelwise replace each other; the group stays when other options change."""
    four = TensorOptions(bits=4, group_size=32)
    spec = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())
    found = four.apply(spec)
    assert isinstance(found, QuantizationSpec)
    assert (found.group_size, found.ch_axis, found.quant_max) == (32, 0, 7)
    assert TensorOptions(scheme="affine").apply(found).group_size == 32  # type: ignore[union-attr]
    assert four.updated(TensorOptions(channelwise=True)).group_size is None
    per_tensor = four.updated(TensorOptions(channelwise=False)).apply(found)
    assert isinstance(per_tensor, QuantizationSpec)
    assert (per_tensor.qscheme, per_tensor.group_size) == ("per_tensor_symmetric", None)
    whole = TensorOptions(channelwise=False).updated(four)
    assert (whole.channelwise, whole.group_size) == (None, 32)
    both = TensorOptions(channelwise=True, group_size=8).apply(spec)
    assert isinstance(both, QuantizationSpec) and both.group_size == 8


class Block(nn.Module):
    """Two linears between which a residual and a norm stay in float, as in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(48, 96), nn.Linear(96, 48, bias=False)
        self.norm = nn.LayerNorm(48)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return self.norm(x + torch.relu(x))


def test_sizes_that_do_not_divide() -> None:
    """The layer stays in float with a warning, or is an error where all is to be quantized."""
    message = r"up:linear: .* in groups of 32, and has 48 inputs .axis 1 of .96, 48.*24 say"
    with pytest.warns(JitPassesWarning, match=message):
        model = reference_of(Block(), alone(bits=4, group_size=32))
    assert [node.inputs[1].shape for node in dequantizes(model)] == [(48, 3)]
    script = torch.jit.script(Block().eval())
    with pytest.raises(JitPassesError, match="has 48 inputs"):
        jit_passes.quantize_script(script, config=alone(bits=4, group_size=32), strict=True)
    config = alone(bits=4, group_size=32)
    config["rules"] = [{"module": "up", "weight": {"channelwise": True}}]
    model = reference_of(Block(), config)
    assert [node.inputs[1].shape for node in dequantizes(model)] == [(96,), (48, 3)]


@pytest.mark.parametrize(
    ("inputs", "size", "target", "divisor"),
    [(48, 32, "stock", 24), (96, 64, "x86", 32), (48, 32, "x86", None), (31, 16, "stock", None)],
)
def test_advice_for_sizes_that_do_not_divide(
    inputs: int, size: int, target: str, divisor: int | None
) -> None:
    """A reason names a divisor that the target has, and a scale for each channel: both work."""
    model = torch.jit.script(nn.Linear(inputs, 8).eval())

    def row(**weight: Any) -> Any:
        weight = {"bits": 4, **weight}
        config = {"version": 1, "global": {"mode": "dynamic", "weight": weight}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitPassesWarning)
            lowered = jit_passes.quantize_script(model, target=target, config=config)
        (found,) = jit_passes.coverage(lowered)
        return found

    advice = f": give it a divisor, {divisor} say" if divisor else ""
    reason = row(group_size=size).reason
    assert f"which are no multiple{advice}; channelwise: true gives it one scale" in reason
    assert row(channelwise=True).dtype == "int8"
    assert divisor is None or row(group_size=divisor).dtype == "int8"


def test_weights_alone_behind_integers() -> None:
    """The mode cannot be had there, and says so; behind what is in float it can."""
    model = torch.jit.script(torch.nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).eval())
    x = torch.randn(8, 16)
    rules = [{"module": "1", "mode": "weight_only"}]
    config = {"version": 1, "rules": rules}
    for target in ("reference", "stock"):
        with pytest.warns(JitPassesWarning, match="'1:linear' .* reads integers of '0:linear'"):
            jit_passes.quantize_script(model, [x], target=target, config=config)
        both = {"version": 1, "rules": [*rules, {"module": "0", "mode": "weight_only"}]}
        quantized = jit_passes.quantize_script(model, target=target, config=both)
        assert {row.mode for row in jit_passes.coverage(quantized)} == {"weight_only"}


def test_values_without_groups() -> None:
    """An activation has no groups, for any observer."""
    config = {"version": 1, "global": {"input": {"group_size": 32}}}
    with pytest.raises(JitPassesError, match="'up:linear': group_size needs a tensor"):
        reference_of(Block(), config)
    spec = QuantizationSpec("uint8", qscheme="per_channel_affine", ch_axis=1, group_size=4)
    quantizer = jit_passes.quantizer.BackendQuantizer(Reference(), activation=spec)
    with pytest.raises(JitPassesError, match="groups are for constant weights"):
        jit_passes.prepare(torch.jit.script(Block().eval()), quantizer=quantizer)


# ---------------------------------------------------------------------------------------- models


def oracle(
    weight: np.ndarray[Any, Any], size: int, low: int, high: int, affine: bool
) -> np.ndarray[Any, Any]:
    """Return a matrix rounded group by group, in double."""
    result = np.empty_like(weight)
    for row in range(weight.shape[0]):
        for start in range(0, weight.shape[1], size):
            part = weight[row, start : start + size]
            least, most = min(part.min(), 0.0), max(part.max(), 0.0)
            if affine:
                scale = (most - least) / (high - low)
                zero = low - round(least / scale)
            else:
                scale, zero = 2 * max(-least, most) / (high - low), (low + high + 1) // 2
            codes = np.clip(np.rint(part / scale) + zero, low, high)
            result[row, start : start + size] = (codes - zero) * scale
    return result


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
@pytest.mark.parametrize(("bits", "size"), [(4, 8), (4, 48), (8, 16), (3, 12)])
def test_model_of_groups(bits: int, size: int, scheme: str) -> None:
    """Weights are what a loop in double makes of them; nothing else changes, and no data is asked.

    Codes next to a tie may be the other one in float32: one step of 1e-3 of the weights at most.
    """
    model = Block().eval()
    prepared = jit_passes.prepare(
        torch.jit.script(model), target="reference",
        config=alone(bits=bits, group_size=size, scheme=scheme),
    )  # fmt: skip
    assert not needs_data(prepared)
    reference = jit_passes.convert(prepared)
    low, high = -(2 ** (bits - 1)) + (scheme == "symmetric"), 2 ** (bits - 1) - 1
    if scheme == "affine":
        low += 1  # the backend's codes are [-127, 127]
    expected = Block().eval()
    expected.load_state_dict(model.state_dict())
    for name in ("up", "down"):
        layer = getattr(expected, name)
        rounded = oracle(
            layer.weight.detach().double().numpy(), size, low, high, scheme == "affine"
        )
        layer.weight.data = torch.from_numpy(rounded).float()
    for node, name in zip(dequantizes(reference), ("up", "down"), strict=True):
        operands = [value.constant for value in node.inputs]
        found, wanted = dequantize(*operands), getattr(expected, name).weight
        far = (found - wanted).abs() > 1e-5
        assert far.float().mean() < 1e-3
        assert operands[0].dtype == torch.int8 and operands[1].dim() == 2
    x = torch.randn(5, 7, 48, generator=torch.Generator().manual_seed(1))
    assert sqnr(expected(x), reference(x)) > 60
    assert "2 of 2 operators quantized" in str(jit_passes.coverage(reference))
    assert {row.bits for row in jit_passes.coverage(reference)} == {f"w{bits}g{size} only"}


def noise_of_groups(size: int, steps: int) -> float:
    """Return the SQNR in dB of normal numbers rounded in groups, each up to its largest.

    A group's step is max|x| / steps; its noise step**2 / 12, but for the largest, which is exact.
    E[max**2] is the integral of 1 - erf(sqrt(t / 2))**size over t.
    """
    t = np.linspace(0, 60, 600_001)
    largest = np.trapezoid(1 - np.vectorize(math.erf)(np.sqrt(t / 2)) ** size, t)
    return -10 * math.log10(largest / steps**2 / 12 * (size - 1) / size)


@pytest.mark.parametrize(("size", "bits"), [(16, 4), (32, 4), (128, 4), (32, 8), (1024, 4)])
def test_noise_of_groups(size: int, bits: int) -> None:
    """Normal weights lose what the closed form says, within 0.1 dB: 4 bits gain by groups."""
    torch.manual_seed(0)
    layer = nn.Linear(1024, 512)
    layer.weight.data.normal_()
    options = {"bits": bits, "group_size": size}
    reference = reference_of(layer, alone(**options))
    (node,) = dequantizes(reference)
    found = dequantize(*(value.constant for value in node.inputs))
    expected = noise_of_groups(size, 2 ** (bits - 1) - 1)
    assert abs(sqnr(layer.weight, found) - expected) < 0.1


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_in_groups(transposed: bool) -> None:
    """Groups lie along the input channels, which is axis 0 of a transposed convolution."""
    torch.manual_seed(0)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = kind(8, 6, 3)
    reference = reference_of(model, alone(bits=4, group_size=4))
    (node,) = dequantizes(reference)
    codes, scales, zeros, axis = (value.constant for value in node.inputs)
    assert (axis, list(scales.shape)) == (int(transposed), [6, 2])
    weight = model.weight.detach().transpose(0, 1) if transposed else model.weight.detach()
    largest = weight.reshape(6, 2, 4 * 9).abs().amax(2)
    assert torch.allclose(scales, largest.double() / 7, rtol=1e-6)
    assert not zeros.any() and (codes.abs().amax((2, 3)).amax(1 - axis) == 7).all()


@pytest.mark.parametrize("observer", [MinMax(), PairSums(), Fixed(-0.2, 0.1)], ids=str)
def test_calibrations_of_groups(observer: Any) -> None:
    """Each method that knows channels takes a group for one."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 4)
    spec = {"bits": 8, "group_size": 8, "calibration": observer}
    (node,) = dequantizes(reference_of(layer, alone(**spec)))
    parts = layer.weight.detach().double().reshape(4, 2, 8)
    pairs = parts.reshape(4, 2, 4, 2)
    most = parts.abs().amax(2)
    if isinstance(observer, PairSums):
        sums = torch.maximum(pairs.clamp_min(0).sum(3).amax(2), -pairs.clamp_max(0).sum(3).amin(2))
        most = torch.maximum(most, sums)
    elif isinstance(observer, Fixed):
        most = torch.full((4, 2), 0.2).double()
    assert torch.allclose(node.inputs[1].constant, most / 127, rtol=1e-6)


def test_calibrations_without_groups() -> None:
    """A histogram of the whole tensor knows no groups."""
    with pytest.raises(JitPassesError, match="finds one range for a whole tensor"):
        reference_of(Block(), alone(bits=4, group_size=48, calibration="entropy"))


def test_inputs_on_integers_beside_groups() -> None:
    """The bias stays float, as no accumulator has the scales of groups."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()
    config = {"version": 1, "global": {"weight": {"group_size": 8}}}
    prepared = jit_passes.prepare(torch.jit.script(model), target="reference", config=config)
    x = torch.randn(64, 16)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x]))
    assert [row.bits for row in jit_passes.coverage(reference)] == ["w8g8a8"]
    (linear,) = [node for node in GraphView.of(reference).nodes if node.kind == "aten::linear"]
    assert torch.equal(linear.inputs[2].constant, model[0].bias)
    assert sqnr(model(x), reference(x)) > 35


def test_targets_without_groups() -> None:
    """A layer that cannot be what was asked for stays in float, with the reason."""
    model = torch.jit.script(nn.Linear(32, 8).eval())
    config = {"version": 1, "global": {"mode": "static", "weight": {"group_size": 8}}}
    with pytest.warns(jit_passes.JitPassesWarning, match="in groups of 8, and the target has one"):
        prepared = jit_passes.prepare(model, target=Stock(), config=config)
    (row,) = jit_passes.coverage(prepared)
    assert row.dtype == "float" and "one scale for each channel" in row.reason


# ------------------------------------------------------------------------------------ embeddings


class Words(nn.Module):
    """An embedding, a bag of embeddings, and a linear whose weight is the table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.bag = nn.Embedding(40, 16), nn.EmbeddingBag(30, 16, mode="mean")
        self.head = nn.Linear(16, 40)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.table(ids) + self.bag(ids % 30, offsets))


def test_embeddings() -> None:
    """Tables are rounded row by row or group by group, and a shared one once."""
    model = Words().eval()
    inputs = (torch.randint(0, 40, (12,)), torch.arange(12))
    for options in ({"bits": 8}, {"bits": 4, "group_size": 8}):
        reference = reference_of(model, alone(**options))
        assert len(dequantizes(reference)) == 2
        text = "w4g8 only" if "group_size" in options else "w8 only"
        assert {row.kind: row.bits for row in jit_passes.coverage(reference)} == {
            "embedding": text, "embedding_bag": text, "linear": text,
        }  # fmt: skip
        expected = Words().eval()
        for table in (expected.table, expected.bag):
            width, top = options.get("group_size", 16), 2 ** (options["bits"] - 1) - 1
            rounded = oracle(table.weight.detach().double().numpy(), width, -top, top, False)
            table.weight.data = torch.from_numpy(rounded).float()
        assert sqnr(expected(*inputs), reference(*inputs)) > 60


def test_embeddings_of_which_nothing_is_said() -> None:
    """In the mode static they stay in float, and the report says how to quantize them.

    A table that is the weight of a linear is quantized with it: see the next test.
    """
    model = torch.jit.script(Words().eval())
    prepared = jit_passes.prepare(model, target="reference", mode="static")
    rows = {row.kind: row for row in jit_passes.coverage(prepared)}
    assert (rows["embedding"].bits, rows["embedding_bag"].dtype) == ("w8 only", "float")
    assert "mode: weight_only" in rows["embedding_bag"].reason
    config = {"version": 1, "rules": [{"op": "embedding", "input": {"bits": 4}}]}
    with pytest.warns(jit_passes.JitPassesWarning, match="has no input to quantize"):
        jit_passes.prepare(model, target="reference", config=config)


class Tied(nn.Module):
    """A language model in small: the output's weight is the table of the words."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.table, self.fc = how, nn.Embedding(2000, 64), nn.Linear(64, 64)
        self.head = nn.Linear(64, 2000, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.relu(self.fc(self.table(ids)))
        return self.head(x) if self.how == "module" else x @ self.table.weight.t()


@pytest.mark.parametrize("target", ["x86", "stock", "reference"])
@pytest.mark.parametrize("mode", ["dynamic", "static"])
@pytest.mark.parametrize("how", ["module", "product"])
@pytest.mark.parametrize("form", ["script", "trace"])
def test_a_table_that_is_the_weight_of_a_linear(
    target: str, mode: str, how: str, form: str
) -> None:
    """Both readers get 8 bits: a float table beside the integers would outgrow the model.

    A kernel has the integers in an order of its own, so they may be there twice: half of the file.
    """
    torch.manual_seed(0)
    eager, ids = Tied(how).eval(), torch.randint(0, 2000, (4, 6))
    with torch.no_grad():
        model = torch.jit.script(eager) if form == "script" else torch.jit.trace(eager, ids)
        quantized = jit_passes.quantize_script(model, [ids], mode=mode, target=target)
        error, expected = quantized(ids) - eager(ids), eager(ids)
    row = next(row for row in jit_passes.coverage(quantized) if row.kind == "embedding")
    assert (row.bits, row.mode) == ("w8 only", "weight_only")
    assert re.search("its table is the weight of '.*linear'", row.why)
    share = file_size(quantized) / file_size(model)
    assert share < (0.35 if target == "reference" else 0.6), share
    assert expected.square().sum() > 10**3 * error.square().sum()  # 30 dB


def test_a_table_that_is_to_stay_in_float() -> None:
    """A rule for the embedding, or for the linear, has the last word."""
    model = torch.jit.script(Tied("module").eval())
    for module, stays in (("table", "table"), ("head", "table head")):
        config = {"version": 1, "rules": [{"module": module, "keep_float": True}]}
        prepared = jit_passes.prepare(model, target="reference", mode="dynamic", config=config)
        floats = [row.name.partition(":")[0] for row in jit_passes.coverage(prepared).float]
        assert floats == stays.split()


def test_embeddings_that_cannot_be() -> None:
    """A table that the model writes to, or one that is not finite."""
    model = Words().eval()
    model.table.weight.data[3, 3] = math.nan
    rows = {row.kind: row for row in jit_passes.coverage(reference_of(model, alone(bits=8)))}
    assert "NaN" in rows["embedding"].reason and rows["embedding_bag"].bits == "w8 only"
    limited = nn.Embedding(10, 8, max_norm=0.5).eval()  # scripting leaves the limit out
    traced = torch.jit.trace(limited, torch.arange(3), check_trace=False)
    prepared = jit_passes.prepare(traced, target="reference", config=alone(bits=8))
    (row,) = jit_passes.coverage(prepared)
    assert row.dtype == "float" and row.reason.startswith("its weight is computed by the model")
