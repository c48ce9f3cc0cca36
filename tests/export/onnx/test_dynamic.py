"""Scales that are chosen as the model runs, and weights in groups, in files of ONNX."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import jit_passes
from jit_passes import JitPassesError, export_onnx
from tests.engines import quantized
from tests.processor import needs_vnni

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.usefixtures("translations_once")

EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}  # products in float32


def compute(path: Path, x: Tensor, **entries: str) -> tuple[Counter[str], Tensor]:
    """Return the operators of the optimized graph, and its result."""
    options, optimized = runtime.SessionOptions(), path.with_name("optimized.onnx")
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.optimized_model_filepath = str(optimized)
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    [result] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return Counter(node.op_type for node in onnx.load(optimized).graph.node), torch.tensor(result)


class Network(nn.Module):
    """Convolutions with and without a bias, and linears of three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, (3, 2), padding="same", dilation=(1, 2), groups=4, bias=False)
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return self.b(nn.functional.gelu(self.a(y.flatten(-2).transpose(-1, -2))))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@needs_vnni
def test_dynamic_operators_are_on_integers(tmp_path: Path) -> None:
    """A sum of products of codes is exact, so results differ by the rounding of float32."""
    x, path = draw(2, 3, 8, 8), tmp_path / "model.onnx"
    model = quantized(Network(), [x], "onnxruntime", mode="dynamic")
    export_onnx(model, path, x, ({0: Dim("batch", min=2, max=64)},))
    for given in (x, draw(5, 3, 8, 8, seed=1) + 1, torch.zeros(2, 3, 8, 8)):
        kinds, found = compute(path, given)
        assert kinds["DynamicQuantizeMatMul"] == kinds["ConvInteger"] == 2
        assert not kinds["Conv"] and not kinds["MatMul"] and not kinds["Gemm"]
        torch.testing.assert_close(found, model(given), rtol=1e-5, atol=1e-6)
    names = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert {"first.weight", "a.weight", "b.weight_scale"} <= names


@needs_vnni
def test_one_image_and_one_row(tmp_path: Path) -> None:
    x, path = draw(3, 8, 8), tmp_path / "model.onnx"
    model = quantized(Network(), [x], "onnxruntime", mode="dynamic")
    export_onnx(model, path, x)
    kinds, found = compute(path, x)
    assert kinds["ConvInteger"] == 2
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-6)
    linear = quantized(nn.Linear(16, 8), [draw(16)], "onnxruntime", mode="dynamic")
    export_onnx(linear, path, draw(16))
    kinds, found = compute(path, draw(16))
    assert kinds["DynamicQuantizeMatMul"] == 1
    torch.testing.assert_close(found, linear(draw(16)), rtol=1e-5, atol=1e-6)


@needs_vnni
@pytest.mark.parametrize("channelwise", [True, False])
def test_weights_that_are_not_around_zero(channelwise: bool, tmp_path: Path) -> None:
    """A convolution with zero points stays in float, and its result is right."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(6, 4)
            for weight in (self.conv.weight, self.head.weight):
                nn.init.uniform_(weight, 0.1, 0.3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x))

    weight = {"scheme": "affine", "channelwise": channelwise}
    config = {"version": 1, "global": {"weight": weight}}
    x, path = draw(2, 3, 8, 8), tmp_path / "model.onnx"
    model = quantized(Shifted(), [x], "reference", mode="dynamic", config=config)
    export_onnx(model, path, x)
    kinds, found = compute(path, x)
    assert kinds["Conv"] == 1 and kinds["DynamicQuantizeMatMul"] + kinds["MatMulInteger"] == 1
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_weights_of_16_bits(tmp_path: Path) -> None:
    """ONNX multiplies integers of 8 bits alone: such a weight is decoded."""
    config = {"version": 1, "global": {"weight": {"bits": 16}}}
    x, path = draw(2, 3, 8, 8), tmp_path / "model.onnx"
    model = quantized(Network(), [x], "reference", mode="dynamic", config=config)
    export_onnx(model, path, x)
    kinds, found = compute(path, x)
    assert kinds["Conv"] + kinds["FusedConv"] == 2 and not kinds["DynamicQuantizeMatMul"]
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "symmetric"])
def test_other_chosen_scales_are_refused(dtype: str, tmp_path: Path) -> None:
    options = {"dtype": "int8"} if dtype == "int8" else {"scheme": "symmetric"}
    config = {"version": 1, "global": {"input": options, "output": {"dtype": "float"}}}
    x = draw(4, 16)
    model = quantized(nn.Linear(16, 8), [x], "reference", mode="dynamic", config=config)
    with pytest.raises(JitPassesError, match=r"it has uint8, affine.*target 'onnxruntime'"):
        export_onnx(model, tmp_path / "model.onnx", x)
    assert not list(tmp_path.iterdir())


class Wide(nn.Module):
    """A weight of more numbers than `torch.onnx` folds constants of."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 32), nn.Linear(32, 8320, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_groups(bits: int, tmp_path: Path) -> None:
    rule = {"op": "linear", "weight": {"bits": bits, "group_size": 16}}
    config: Any = {"version": 1, "rules": [rule]}
    x, path = draw(2, 5, 64), tmp_path / "model.onnx"
    model = quantized(Wide(), [x], "onnxruntime", mode="weight_only", config=config)
    export_onnx(model, path, x)
    types = {tensor.name: tensor.data_type for tensor in onnx.load(path).graph.initializer}
    expected = onnx.TensorProto.INT4 if bits == 4 else onnx.TensorProto.INT8
    assert types["a.weight"] == types["b.weight"] == expected
    kinds, found = compute(path, x, **EXACT)
    assert kinds["MatMulNBits"] == 2 and not kinds["MatMul"]
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
@pytest.mark.parametrize("bits", [4, 8])
def test_dynamic_inputs_of_groups(bits: int, scheme: str, tmp_path: Path) -> None:
    """As many rows as groups: where groups are taken for channels, sizes fit."""
    weight = {"bits": bits, "group_size": 16, "scheme": scheme}
    config: Any = {"version": 1, "global": {"weight": weight}}
    x, path = draw(4, 64), tmp_path / "model.onnx"
    model = quantized(
        nn.Linear(64, 32, bias=False), [x], "reference", mode="dynamic", config=config
    )
    export_onnx(model, path, x)
    found = compute(path, x, **EXACT)[1]
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


def test_weights_alone_with_a_scale_for_each_channel(tmp_path: Path) -> None:
    x, path = draw(2, 5, 64), tmp_path / "model.onnx"
    model = quantized(Wide(), [x], "onnxruntime", mode="weight_only")
    export_onnx(model, path, x)
    assert path.stat().st_size < 2 * sum(p.numel() for p in Wide().parameters())
    torch.testing.assert_close(compute(path, x)[1], model(x), rtol=1e-5, atol=1e-5)


@needs_vnni
def test_modes_are_mixed(tmp_path: Path) -> None:
    """The convolution is static, and the linears are dynamic."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.ReLU())
            self.norm, self.up = nn.LayerNorm(16), nn.Linear(16, 32)
            self.down = nn.Linear(32, 16)

        def forward(self, image: Tensor) -> Tensor:
            x = self.stem(image).flatten(2).transpose(1, 2)
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    x, path = draw(2, 3, 16, 16), tmp_path / "model.onnx"
    config = {"version": 1, "rules": [{"op": "linear", "mode": "dynamic"}]}
    model = quantized(Mixed(), [x], "onnxruntime", config=config)
    modes = [row.mode for row in jit_passes.coverage(model)]
    assert modes == ["static", "dynamic", "dynamic"]
    export_onnx(model, path, x)
    kinds, found = compute(path, x)
    assert (kinds["QLinearConv"], kinds["DynamicQuantizeMatMul"]) == (1, 2)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)
