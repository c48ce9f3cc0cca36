"""Quantizers of backends: scales, kernels and integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.view import GraphView
from jit_passes.observers import MinMax
from jit_passes.quantizer import LayerOptions, TensorOptions
from jit_passes.targets import PowerOfTwoQuantizer, QnnpackQuantizer, Reference, X86Quantizer
from tests.quantizing import (
    ENGINES,
    Adds,
    exponent_of,
    images,
    is_power_of_two,
    reference_of,
    reload,
    results,
    seeded,
    weights,
)


class Everything(nn.Module):
    """Residual addition, cat, maximum, pools, sigmoid and tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, padding=1)
        self.d = nn.Conv2d(3, 4, 3, padding=1)
        self.e = nn.Conv2d(8, 4, 1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.c(x).relu(), self.d(x)
        total = a + b
        z = self.e(torch.cat([torch.maximum(total, b), a], 1)).tanh()
        z = torch.nn.functional.avg_pool2d(self.pool(z), 2)
        return self.fc(z.mean([2, 3])).sigmoid()


@pytest.mark.parametrize("bits", [4, 8, 12])
def test_every_scale_is_a_power_of_two(bits: int) -> None:
    """In the saved files too, of activations, weights and biases; all zero points are 0."""
    model, x = seeded(Everything), images()[0]
    found = reload(reference_of(model, PowerOfTwoQuantizer(bits), images()))
    seen = 0
    for module in (found, reload(jit_passes.lower(found))):
        for node in GraphView.of(module).nodes:
            if node.kind in ("jit_passes::quantize", "jit_passes::dequantize"):
                scale, zero_point = node.inputs[1].constant, node.inputs[2].constant
                assert is_power_of_two(scale)
                assert zero_point == 0
                seen += 1
        assert torch.equal(module(x), found(x))
    assert seen > 40
    ranges = {row[2:4] for rows in results(found).values() for row in rows}
    assert ranges == {(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)}
    assert (found(x) - model(x)).abs().max() < (0.2 if bits == 4 else 0.01)


def test_what_is_joined_has_one_scale() -> None:
    """Operands of add, maximum and cat, and the results of the last two; pools keep theirs."""
    rows = results(reference_of(seeded(Everything), PowerOfTwoQuantizer(), images()))
    joined = {rows[name][0][0] for name in ("relu", "d:conv2d", "add", "maximum", "cat")}
    pooled = {rows[name][0][0] for name in ("tanh", "pool:max_pool2d", "avg_pool2d", "mean")}
    assert len(joined) == len(pooled) == 1
    assert pooled != joined


def check_lowered(model: nn.Module, found: torch.jit.ScriptModule) -> None:
    """The lowered file holds PyTorch's own operators on quint8, and computes the same."""
    lowered = reload(jit_passes.lower(found))
    nodes = GraphView.of(lowered).nodes
    assert not any(node.kind.startswith("jit_passes::") for node in nodes)
    quantized = [node for node in nodes if node.kind == "aten::quantize_per_tensor"]
    assert {node.inputs[3].constant for node in quantized} == {13}  # quint8
    for x in images():
        assert (lowered(x) - found(x)).abs().max() < 0.005
        assert (lowered(x) - model(x)).abs().max() < 0.02


@pytest.mark.skipif("x86" not in ENGINES, reason="this build of PyTorch has no engine x86")
def test_x86() -> None:
    """uint8 without a fixed zero point; weights of int8 with a scale for each channel."""
    model, quantizer = seeded(Everything), X86Quantizer()
    found = reference_of(model, quantizer, images())
    rows = [row for rows in results(found).values() for row in rows]
    assert {row[2:] for row in rows} == {
        (0, 127 if quantizer.target.reduce_range else 255, torch.uint8)
    }
    assert any(row[1] not in (0, 128) for row in rows)
    stored = weights(found)
    for name in ("c", "d", "e", "fc"):
        codes, scale = stored[f"{name}.weight"]
        assert codes.dtype == torch.int8
        assert scale.shape == (len(codes),)
    check_lowered(model, found)


@pytest.mark.skipif("qnnpack" not in ENGINES, reason="this build of PyTorch has no engine qnnpack")
def test_qnnpack(monkeypatch: pytest.MonkeyPatch) -> None:
    """uint8 with zero point 128, and one scale for each tensor."""
    model = seeded(Everything)
    found = reference_of(model, QnnpackQuantizer(), images())
    rows = [row for rows in results(found).values() for row in rows]
    assert {row[1:] for row in rows} == {(128, 0, 255, torch.uint8)}
    for name, (codes, scale) in weights(found).items():
        assert isinstance(scale, float)
        if name.endswith("weight"):
            assert codes.dtype == torch.int8
            assert codes.min() >= -127
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")
    check_lowered(model, found)


def test_uint8_stays_uint8() -> None:
    """Unsigned weights are stored unsigned."""
    unsigned = LayerOptions(weight=TensorOptions(dtype="uint8", scheme="affine"))
    quantizer = Reference().quantizer().set_global(unsigned)
    found = reload(reference_of(seeded(Everything), quantizer, images(), target="reference"))
    stored = [
        node.inputs[0].constant
        for node in GraphView.of(found).nodes
        if node.kind == "jit_passes::dequantize_per_channel"
    ]
    codes = [tensor for tensor in stored if tensor.dtype != torch.int32]  # biases
    assert len(codes) == 4
    assert all(code.dtype == torch.uint8 and code.max() > 127 for code in codes)


def saturate(codes: Any, bits: int) -> Any:
    return np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype(np.int64)


def to_codes(values: Tensor, exponent: int, bits: int) -> Any:
    return saturate(np.round(values.detach().double().numpy() / 2.0**exponent), bits)


def shift(codes: Any, by: int, bits: int) -> Any:
    """Divide integers by 2**by, halves to even, and saturate."""
    if by <= 0:
        return saturate(codes << -by, bits)
    floor, rest, half = codes >> by, codes & ((1 << by) - 1), 1 << (by - 1)
    return saturate(floor + ((rest > half) | ((rest == half) & (floor & 1 == 1))), bits)


def integer_conv(x: Any, weight: Any, bias: Any, stride: int) -> Any:
    rows, columns = ((size - 3) // stride + 1 for size in x.shape[2:])
    out = np.zeros((len(x), len(weight), rows, columns), dtype=np.int64)
    for i in range(rows):
        for j in range(columns):
            patch = x[:, :, i * stride : i * stride + 3, j * stride : j * stride + 3]
            out[:, :, i, j] = np.einsum("bcij,ocij->bo", patch, weight) + bias
    return out


@pytest.mark.parametrize("bits", [4, 8])
def test_integer_arithmetic(bits: int) -> None:
    """The reference computes, code by code, what integers and shifts do."""
    model, data = seeded(Adds), images(2, 3, 9, 9)
    measured = TensorOptions(calibration=MinMax())
    quantizer = PowerOfTwoQuantizer(bits, bits)
    quantizer.set_global(LayerOptions(input=measured, output=measured))
    found = reference_of(model, quantizer, data)
    lowered = jit_passes.lower(found)

    with torch.no_grad():
        x = torch.cat(data)
        c, d = model.c(x).relu(), model.d(x)
        seen = {"x": x, "operands": torch.cat([c, d]), "sum": c + d, "last": model.e(c + d)}
    at = {name: exponent_of(values, bits) for name, values in seen.items()}
    layers, stored = {}, weights(found)
    for name, source in (("c", "x"), ("d", "x"), ("e", "sum")):
        layer = getattr(model, name)
        exponent = exponent_of(layer.weight, bits)
        weight, sums = to_codes(layer.weight, exponent, bits), exponent + at[source]
        bias = np.round(layer.bias.detach().double().numpy() / 2.0**sums).astype(np.int64)
        layers[name] = weight, bias, sums
        for place, codes, scale in (("weight", weight, exponent), ("bias", bias, sums)):
            assert np.array_equal(stored[f"{name}.{place}"][0].numpy(), codes)
            assert stored[f"{name}.{place}"][1] == 2.0**scale

    for batch in data:
        joined = []
        for name in ("c", "d"):
            weight, bias, exponent = layers[name]
            sums = integer_conv(to_codes(batch, at["x"], bits), weight, bias, 1)
            sums = np.maximum(sums, 0) if name == "c" else sums
            joined.append(shift(sums, at["operands"] - exponent, bits))
        total = shift(joined[0] + joined[1], at["sum"] - at["operands"], bits)
        weight, bias, exponent = layers["e"]
        expected = shift(integer_conv(total, weight, bias, 2), at["last"] - exponent, bits)
        for module in (found, lowered):
            codes = module(batch).detach().double().numpy() / 2.0 ** at["last"]
            assert np.array_equal(codes, expected)
