"""Engines of ONNX files compute on integers what the capabilities of their targets promise."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import export_onnx
from jit_passes.report.conformance.onnx_runtime import FLOATS, INTEGERS
from jit_passes.stages.module import Report
from tests.compare import leaves
from tests.engines import Between, Network, apart, data, promised, quantized

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.usefixtures("translations_once")


def fused(model: Any, x: Tensor, folder: Path) -> tuple[Counter[str], Tensor]:
    """Return the operators of ONNX Runtime's optimized graph, and its result."""
    path, optimized = folder / "model.onnx", folder / "optimized.onnx"
    export_onnx(model, path, x)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.optimized_model_filepath = str(optimized)
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    [result] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return Counter(node.op_type for node in onnx.load(optimized).graph.node), torch.tensor(result)


def test_onnx_runtime_keeps_what_coverage_promises(tmp_path: Path) -> None:
    batches = data(4, 3, 16, 16)
    model = quantized(Network(), batches, "onnxruntime")
    kinds, found = fused(model, batches[0], tmp_path)
    assert sum(kinds[kind] for kind in INTEGERS) == promised(model) == 11
    assert not any(kinds[kind] for kind in FLOATS)
    others = ("QLinearAdd", "QLinearConcat", "QLinearSoftmax", "QLinearGlobalAveragePool")
    assert all(kinds[kind] == 1 for kind in others)
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01


@pytest.mark.parametrize(
    ("function", "scheme"), [(nn.ReLU(), "symmetric"), (nn.ReLU6(), "power_of_two")]
)
def test_onnx_runtime_leaves_in_float_what_coverage_says(
    function: nn.Module, scheme: str, tmp_path: Path
) -> None:
    """A clip beyond which there are codes keeps the convolution from being fused."""
    batches = data(2, 4, 8, 8)
    rule = {"module": "first", "output": {"scheme": scheme}}
    config = {"version": 1, "rules": [rule]}
    with pytest.warns(jit_passes.JitPassesWarning, match="at which its"):
        model = quantized(Between(function), batches, "onnxruntime", config=config)
    kinds, found = fused(model, batches[0], tmp_path)
    floats = sum(kinds[kind] for kind in FLOATS)
    assert (promised(model), kinds["QLinearConv"], floats) == (1, 1, 1)
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01


@pytest.mark.parametrize(("high", "integers"), [(6.0, 2), (7.0, 1)])
def test_a_range_beyond_a_clip_keeps_a_convolution_in_float(
    high: float, integers: int, tmp_path: Path
) -> None:
    """Coverage says so, and a warning."""
    batches = data(2, 4, 8, 8)
    rule = {"module": "first", "output": {"range": [0, high]}}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        config = {"version": 1, "rules": [rule]}
        model = quantized(Between(nn.ReLU6()), batches, "onnxruntime", config=config)
    kinds, found = fused(model, batches[0], tmp_path)
    assert promised(model) == kinds["QLinearConv"] == integers
    told = ["reaches beyond its clamp" in str(each.message) for each in said]
    assert told.count(True) == 2 - integers
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01


class Rounds(nn.Module):
    """A convolution whose result has another grid than its input, the range of all rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        step = 0
        while step < 3:
            x = torch.relu(self.conv(x))
            step += 1
        return x


def test_a_value_quantized_twice_in_a_row_keeps_both_roundings(tmp_path: Path) -> None:
    """ONNX Runtime merges two pairs of quantize and dequantize, unless a clip is between them."""
    batches = data(2, 4, 8, 8)
    model = quantized(Rounds(), batches, "onnxruntime")
    kinds, found = fused(model, batches[0], tmp_path)
    written = Counter(node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node)
    assert kinds["QLinearConv"] == 3 and not any(kinds[kind] for kind in FLOATS)
    assert written["Clip"] == 2 and not kinds["Clip"]
    assert found.std() > 0 and apart(found, model, batches[0]) < 0.01


@pytest.mark.parametrize("function", [nn.ConstantPad2d((0, 1, 2, 1), 0.0), nn.ReflectionPad2d(1)])
def test_onnx_runtime_pads_between_convolutions(function: nn.Module, tmp_path: Path) -> None:
    """The file has channels last there, and the padding moves with its axes."""
    batches = data(2, 4, 8, 8)
    model = quantized(Between(function), batches, "onnxruntime")
    kinds, found = fused(model, batches[0], tmp_path)
    assert kinds["QLinearConv"] == 2 and found.shape == model(batches[0]).shape
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.mean((2, 3), keepdim=True)


class Rearranged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.pixel_shuffle(torch.cat([x, x, x, x], 1), 2).repeat(1, 1, 2, 1)
        return nn.functional.pad(y[:, :1].expand(-1, 4, -1, -1), [-1, 1, 0, -1])


FUNCTIONS = {
    "relu": (nn.ReLU(), {}),
    "relu6": (nn.ReLU6(), {}),
    "hardtanh": (nn.Hardtanh(-1.0, 1.0), {"Clip": 1}),
    "sigmoid": (nn.Sigmoid(), {"QLinearSigmoid": 1}),
    "leaky_relu": (nn.LeakyReLU(0.1), {"QLinearLeakyRelu": 1}),
    "gate": (Gate(), {"QLinearSigmoid": 1, "QLinearMul": 1}),
    "silu": (nn.SiLU(), {"QLinearSigmoid": 1, "QLinearMul": 1}),
    "mean": (Mean(), {"QLinearGlobalAveragePool": 1, "QLinearMul": 1}),
    "softmax": (nn.Softmax(1), {"QLinearSoftmax": 1}),
    "average": (nn.AvgPool2d(2), {"QLinearAveragePool": 1}),
    "average of a part": (nn.AvgPool2d(2, divisor_override=3), {}),
    "gelu": (nn.GELU(), {}),
    "rearranged": (Rearranged(), {}),
    "transposed": (nn.ConvTranspose2d(4, 4, 2), {"ConvTranspose": 1}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    function, expected = FUNCTIONS[name]
    batches = data(2, 4, 8, 8)
    model = quantized(Between(function), batches, "onnxruntime")
    kinds, found = fused(model, batches[0], tmp_path)
    assert kinds["QLinearConv"] == promised(model) == 2 and not kinds["Conv"], kinds
    assert {kind: kinds[kind] for kind in expected} == expected, kinds
    assert found.std() > 0 and apart(found, model, batches[0]) < 2.01


def executed(model: Any, x: Tensor, path: Path) -> tuple[list[tuple[str, str]], Tensor]:
    """Return types and precisions of the layers that OpenVINO runs, and the result."""
    openvino = pytest.importorskip("openvino")
    export_onnx(model, path, x)
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(str(path), "CPU", options)
    layers = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    [result] = compiled([x.numpy()]).values()
    names = ("layerType", "runtimePrecision")
    kinds = [tuple(layer[name].astype(str) for name in names) for layer in layers]
    return kinds, torch.tensor(result)


def test_openvino_keeps_what_coverage_promises(tmp_path: Path) -> None:
    batches = data(4, 3, 16, 16)
    model = quantized(Network(), batches, "openvino")
    layers, found = executed(model, batches[0], tmp_path / "model.onnx")
    own = [precision for kind, precision in layers if kind in ("Convolution", "FullyConnected")]
    assert len(own) == promised(model) == 9 and {*own} <= {"u8", "i8"}
    assert [row.kind for row in Report.read(model).operators if row.dtype == "float"] == [
        "matmul"
    ] * 2
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01


@pytest.mark.parametrize(
    "function", [nn.Hardswish(), nn.SiLU(), nn.GELU()], ids=lambda f: f._get_name()
)
def test_openvino_computes_functions_within_a_convolution(
    function: nn.Module, tmp_path: Path
) -> None:
    batches = data(2, 4, 8, 8)
    model = quantized(Between(function), batches, "openvino")
    layers, found = executed(model, batches[0], tmp_path / "model.onnx")
    functions = {kind for kind, _ in layers} - {"Const", "Input", "Output", "Reorder", "Reshape"}
    assert functions == {"Convolution", "Subgraph"}  # which quantizes and dequantizes
    names = [value.name for value in jit_passes.encodings_of(model).activations]
    assert names == ["x", f"function:{function._get_name().lower()}"]
    assert found.std() > 0 and apart(found, model, batches[0]) < 1.01


def test_openvino_averages_windows_that_overlap(tmp_path: Path) -> None:
    """As `torch.onnx` writes them, in a hundred operators, the convolution is computed wrongly."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Conv2d(2, 1, 7, padding=3)).eval()
    x = torch.randn(2, 2, 32, 32, generator=torch.Generator().manual_seed(0))
    _, found = executed(torch.jit.script(network), x, tmp_path / "model.onnx")
    torch.testing.assert_close(found, network(x).detach(), rtol=1e-5, atol=1e-6)


class Sum(nn.Module):
    """A convolution's result is added to a value that a function of it may read once more."""

    def __init__(self, function: nn.Module, other: str = "stem") -> None:
        super().__init__()
        self.stem, self.one = (nn.Conv2d(4, 4, 1) for _ in range(2))
        self.two, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.function, self.other = function, other

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = self.two(torch.relu(self.one(x)))
        added = x
        if self.other == "average":
            added = nn.functional.adaptive_avg_pool2d(x, 1)
        if self.other == "convolution":
            added = self.head(torch.relu(x))
        y = self.function(added + y)
        if self.other == "read later":
            y = torch.cat([y, x], 1)[:, 2:6]
        return self.head(y)


@pytest.mark.parametrize("high", [None, 0.25], ids=("as calibrated", "of a narrow range"))
@pytest.mark.parametrize(
    "function", [nn.ReLU(), nn.ReLU6(), nn.Identity()], ids=lambda f: f._get_name()
)
def test_openvino_adds_within_a_convolution(
    function: nn.Module, high: float | None, tmp_path: Path
) -> None:
    """OpenVINO rounds nothing between the two, and saturates as the sum does."""
    batches = data(2, 4, 8, 8)
    names = {"ReLU": "function:relu", "ReLU6": "function:clamp", "Identity": "add"}
    rule = {"value": names[function._get_name()], "range": [-0.25, high]}
    config = {"version": 1, "rules": [rule] if high else []}
    model = quantized(Sum(function), batches, "openvino", config=config)
    layers, found = executed(model, batches[0], tmp_path / "model.onnx")
    kinds = Counter(kind for kind, _ in layers)
    assert (kinds["Convolution"], kinds["Subgraph"], kinds["Eltwise"]) == (4, 1, 0), kinds
    assert found.std() > 0 and apart(found, model, batches[0]) < 0.01


@pytest.mark.parametrize("other", ["average", "convolution", "read later", "in float"])
def test_openvino_is_not_asked_to_add_in_place_of_what_is_needed(
    other: str, tmp_path: Path
) -> None:
    """Of another shape, of a convolution too, and read behind the sum; or within one in float."""
    batches = data(2, 4, 8, 8)
    rules = [{"module": "two", "keep_float": True}] if other == "in float" else []
    config = {"version": 1, "rules": rules}
    model = quantized(Sum(nn.ReLU(), other), batches, "openvino", config=config)
    _, found = executed(model, batches[0], tmp_path / "model.onnx")
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    written = {node.output[0] for node in nodes if node.op_type == "QuantizeLinear"}
    values = jit_passes.encodings_of(model).activations
    assert written == {f"{value.name}:quantized" for value in values}
    # Of two convolutions OpenVINO adds within either, and rounds the other one.
    most = 2.01 if other == "convolution" else 0.01
    assert found.std() > 0 and apart(found, model, batches[0]) < most


class Twice(nn.Module):
    """A convolution called twice, one of whose results is doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)
        self.shared, self.other = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.stem(x))
        z = torch.add(y, self.shared(y), alpha=2)
        w = torch.relu(z - self.other(z))
        return self.head(w + z + self.shared(w))


class Chain(nn.Module):
    """Sums with convolutions one after the other, one of which was called before."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.a, self.b = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.c = nn.Conv2d(8, 8, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        p = torch.relu(self.a(x))
        q = torch.relu(self.b(p))
        y = x + self.a(p) + self.c(q)
        return self.head(torch.relu(y + self.b(p)))


class TwiceLinear(nn.Module):
    """A linear called twice, one of whose results is doubled."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
        self.shared = nn.Linear(8, 8, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.stem(x))
        z = torch.add(y, self.shared(y), alpha=2)
        return self.head(z + self.shared(z))


@pytest.mark.parametrize(
    ("make", "shape", "copied"),
    [
        pytest.param(Twice, (2, 4, 6, 6), ["shared"], id="a doubled result"),
        pytest.param(Chain, (2, 4, 6, 6), ["a"], id="a chain of sums"),
        pytest.param(partial(TwiceLinear, bias=True), (4, 6), [], id="linear"),
        pytest.param(partial(TwiceLinear, bias=False), (3, 5, 6), [], id="linear of tokens"),
    ],
)
def test_openvino_gets_a_weight_for_each_call_of_a_convolution(
    make: Any, shape: tuple[int, ...], copied: list[str], tmp_path: Path
) -> None:
    """OpenVINO multiplies a weight of several calls for one of them, and adds within none."""
    batches = data(*shape)
    torch.manual_seed(0)
    model, path = quantized(make(), batches, "openvino"), tmp_path / "model.onnx"
    _, found = executed(model, batches[0], path)
    names = {tensor.name for tensor in onnx.load(path).graph.initializer}
    copies = sorted(name for name in names if name.endswith(".weight#1"))
    assert copies == [f"{name}.weight#1" for name in copied]
    # OpenVINO adds in another order, so a code in front of the head may round the other way.
    assert found.std() > 0 and apart(found, model, batches[0]) < 1


class Behind(nn.Module):
    """A sum with a convolution of a function of the other operand, or of a part of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stem, self.a, self.head = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)
        self.b, self.kind = nn.Conv2d(8, 8, 3, padding=1), kind

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.stem(x))
        if self.kind == "activated":
            z = y + self.b(torch.relu(self.a(y)))
            z = z + self.b(torch.relu(z))
        elif self.kind == "gated":
            z = y * torch.sigmoid(self.a(y))
            z = z + self.b(torch.relu(z))
        elif self.kind == "of a part":
            z = torch.relu(y - self.a(y))
            z = z + y + self.b(z)
        else:
            z = self.a(y)
            z = torch.sigmoid(z) + self.b(torch.tanh(z))
        return self.head(z)


@pytest.mark.parametrize(
    ("kind", "pairs"), [("activated", 1), ("gated", 0), ("of a part", 0), ("of functions", 0)]
)
def test_openvino_is_not_asked_to_add_functions_of_one_value(
    kind: str, pairs: int, tmp_path: Path
) -> None:
    """With fixed sizes one kernel computes the functions, and the pair would be rounded."""
    batches = data(2, 4, 6, 6)
    torch.manual_seed(0)
    model = quantized(Behind(kind), batches, "openvino")
    _, found = executed(model, batches[0], tmp_path / "model.onnx")
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    written = {node.output[0] for node in nodes if node.op_type == "QuantizeLinear"}
    values = jit_passes.encodings_of(model).activations
    assert len(written - {f"{value.name}:quantized" for value in values}) == pairs
    assert found.std() > 0 and apart(found, model, batches[0]) < 0.01


def test_openvino_computes_behind_what_only_rearranges(tmp_path: Path) -> None:
    class Repeated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.repeat(1, 1, 2, 1)

    batches = data(2, 4, 8, 8)
    model = quantized(Between(Repeated()), batches, "openvino")
    layers, _ = executed(model, batches[0], tmp_path / "model.onnx")
    assert [kind for kind in layers if kind[0] == "Convolution"] == [("Convolution", "u8")] * 2


class Means(nn.Module):
    """Means and sums over tokens, of values that a layer reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        y = self.body(x)
        columns, half = y.transpose(1, 2), y.chunk(2, 2)[0]
        means = [y.mean(1), y.unsqueeze(3).mean([1, 2]), y.sum(1), half.mean(1), half.sum([1, 2])]
        means += [nn.functional.adaptive_avg_pool1d(columns, 1)]
        means += [nn.functional.avg_pool1d(columns, 7)]
        means += [nn.functional.max_pool1d(columns, 2).mean(2)]
        return self.head(y), means


def scaled(y: Tensor) -> Tensor:
    return (3.0 * y).sum(1)


def clipped(y: Tensor) -> Tensor:
    return y.clamp(min=0.0).sum(1)


def taken(y: Tensor) -> Tensor:
    return y.index_select(1, torch.tensor([0, 2])).mean(1)


def largest(y: Tensor) -> Tensor:
    return y.amax(2, keepdim=True).mean(1)


def summed(y: Tensor) -> Tensor:
    return torch.einsum("bnd->bd", y)


class Meant(nn.Module):
    """A mean or a sum, which a function gives, of a value that a layer reads too."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.body, self.head, self.function = nn.Linear(8, 16), nn.Linear(16, 4), function

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return self.head(y), self.function(y)


MEANS = [
    pytest.param(Means, 8, id="means"),
    *(
        pytest.param(lambda function=function: Meant(torch.jit.script(function)), 1, id=name)
        for name, function in (
            ("scaled", scaled),
            ("clipped", clipped),
            ("taken", taken),
            ("largest", largest),
            ("summed", summed),
        )
    ),
]


@pytest.mark.parametrize(("make", "count"), MEANS)
def test_openvino_averages_tokens_in_float(make: Any, count: int, tmp_path: Path) -> None:
    """Its kernels on integers average the tokens of the first sample alone."""
    batches = data(3, 7, 8)
    kinds = []
    for target in ("onnxruntime", "openvino"):
        model, path = quantized(make(), batches, target), tmp_path / f"{target}.onnx"
        export_onnx(model, path, batches[0])
        kinds.append([node.op_type for node in onnx.load(path).graph.node].count("Max"))
    assert kinds == [0, count]
    openvino = pytest.importorskip("openvino")
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    found = openvino.Core().compile_model(str(path), "CPU", options)([batches[0].numpy()])
    expectations = [value for _, value in leaves(model(batches[0]))]
    for result, expected in zip(found.to_tuple()[1:], expectations[1:], strict=True):
        assert expected.std() > 0
        torch.testing.assert_close(torch.tensor(result), expected, rtol=1e-5, atol=1e-5)


class Row(nn.Module):
    """A constant of each row, a function and a number, with a reduction of rows of three axes."""

    def __init__(self, reduce: str) -> None:
        super().__init__()
        self.head, self.reduce = nn.Linear(6, 4), reduce
        self.weight = nn.Parameter(torch.tensor([[1.0], [-2.0], [3.0], [0.5], [4.0], [-1.0]]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.reduce == "pool":
            y = nn.functional.adaptive_avg_pool1d(x, 1)
        elif self.reduce == "largest":
            y = x.amax(2, keepdim=True)
        else:
            y = torch.tanh(x.sum(-1, keepdim=True)) * 3.0
        y = y * self.weight + 1.0
        return self.head(y.flatten(1)), y


class Joined(nn.Module):
    """A row of a concatenation, which is quantized for a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cat([self.one(x), self.two(x)], -1)
        return self.head(y), y[1]


class Largest(nn.Module):
    """Reductions of a convolution's result, whose concatenation a linear reads."""

    def __init__(self, reductions: list[Any], dims: int = 1, features: int = 16) -> None:
        super().__init__()
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.body, self.head = convolution(4, 8, 3, padding=1), nn.Linear(features, 5)
        self.reductions = nn.ModuleList(Reduced(torch.jit.script(each)) for each in reductions)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.body(x))
        parts = []
        for reduction in self.reductions:
            parts.append(reduction(y))
        return self.head(torch.cat(parts, 1))


class Reduced(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def of_rows(y: Tensor) -> Tensor:
    return y.amax(2)


def smallest(y: Tensor) -> Tensor:
    return (-y).amin(2)


def average(y: Tensor) -> Tensor:
    return y.mean(2)


def of_volumes(y: Tensor) -> Tensor:
    return y.flatten(2).amax(2)


def of_places(y: Tensor) -> Tensor:
    return torch.tanh(y.amax([2, 3, 4])) * 3.0


class Attention(nn.Module):
    """Places weighted by the mean and the largest of their channels, as in CBAM."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.places = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(2, 1, 5, padding=2)
        self.head = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.body(x)) * x.mean(1, keepdim=True)
        read = torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)
        return self.head(y * torch.sigmoid(self.places(read)))


class Tokens(nn.Module):
    """The largest and the mean of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.gelu(self.body(x))
        return self.head(torch.cat([y.amax(1), y.mean(1)], 1))


class Scaled(nn.Module):
    """Rows of a convolution without a bias, whose scales are constants of each row."""

    def __init__(self, largest: bool) -> None:
        super().__init__()
        self.body, self.largest = nn.Conv1d(4, 8, 1, bias=False), largest

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.leaky_relu(self.body(x))
        return y.amax(2) if self.largest else y.sum(2)


@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [
        pytest.param(partial(Largest, [of_rows], 1, 8), (3, 4, 12), 1, id="rows"),
        pytest.param(partial(Largest, [of_rows], 1, 8), (1, 4, 12), 1, id="rows of one sample"),
        pytest.param(
            partial(Largest, [of_rows, smallest]), (3, 4, 12), 2, id="largest and smallest"
        ),
        pytest.param(partial(Largest, [of_rows, average]), (3, 4, 12), 1, id="largest and mean"),
        pytest.param(partial(Largest, [of_volumes], 2, 8), (2, 4, 5, 5), 1, id="images"),
        pytest.param(partial(Largest, [of_places], 3, 8), (2, 4, 3, 4, 3), 1, id="volumes"),
        pytest.param(Attention, (2, 4, 6, 6), 1, id="channels"),
        pytest.param(Tokens, (3, 5, 8), 1, id="tokens"),
        pytest.param(partial(Scaled, largest=False), (3, 4, 12), 1, id="sum of scaled rows"),
        pytest.param(partial(Scaled, largest=True), (3, 4, 12), 1, id="largest of scaled rows"),
    ],
)
def test_openvino_gets_a_max_between_a_reduction_and_what_it_computes_within(
    make: Any, shape: tuple[int, ...], count: int, tmp_path: Path
) -> None:
    """Quantized largest and smallest values have wrong codes otherwise, and scales wrong rows."""
    batches = data(*shape)
    torch.manual_seed(0)
    model, path = quantized(make(), batches, "openvino"), tmp_path / "model.onnx"
    [found] = written(model, batches[0], path)
    kinds = Counter(node.op_type for node in onnx.load(path).graph.node)
    expected = model(batches[0])
    assert kinds["Max"] == count and expected.std() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class Depthwise(nn.Module):
    """A convolution of groups and a depthwise one in three dimensions."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.groups = nn.Conv3d(2, 6, 3, padding=1, groups=2)
        self.function, self.depthwise = function, nn.Conv3d(6, 6, 2, dilation=2, groups=6)

    def forward(self, x: Tensor) -> Tensor:
        return self.depthwise(self.function(self.groups(x)))


def written(model: Any, x: Tensor, path: Path) -> list[Tensor]:
    """Return the results that OpenVINO gives of a model's file."""
    openvino = pytest.importorskip("openvino")
    export_onnx(model, path, x)
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    found = openvino.Core().compile_model(str(path), "CPU", options)([x.numpy()])
    return [torch.tensor(result) for result in found.to_tuple()]


@pytest.mark.parametrize(
    ("network", "shape", "count"),
    [
        pytest.param(Row("pool"), (3, 6, 5), {"Max": 1}, id="pool"),
        pytest.param(Row("largest"), (3, 6, 5), {"Max": 1}, id="largest"),
        pytest.param(Row("sum"), (3, 6, 5), {"Max": 1}, id="sum"),
        pytest.param(Row("sum"), (1, 6, 5), {"Max": 0}, id="one sample"),
        pytest.param(Joined(), (3, 8), {"Squeeze": 1}, id="part"),
    ],
)
def test_openvino_gets_forms_that_it_computes_rightly(
    network: nn.Module, shape: tuple[int, ...], count: dict[str, int], tmp_path: Path
) -> None:
    """OpenVINO takes wrong elements of the constants, and leaves an axis in the part."""
    batches = data(*shape)
    model, path = quantized(network, batches, "openvino"), tmp_path / "model.onnx"
    _, found = written(model, batches[0], path)
    _, expected = model(batches[0])
    kinds = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert {kind: kinds[kind] for kind in count} == count
    assert expected.std() > 0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


class Counts(nn.Module):
    """Whole numbers, reduced and computed with a constant of each row, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        counts = (x > 0).long()
        rows = torch.arange(6)
        return self.head(x), counts.sum(2) + rows, counts.amax(2) * rows


def test_openvino_reduces_whole_numbers_rightly(tmp_path: Path) -> None:
    batches = data(3, 6, 5)
    model = quantized(Counts(), batches, "openvino")
    _, *found = written(model, batches[0], tmp_path / "model.onnx")
    _, *expected = model(batches[0])
    assert len(found) == 2 and all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("function", "integers"), [(nn.Tanh(), 1), (nn.Identity(), 1), (nn.ReLU(), 2)]
)
def test_openvino_computes_depthwise_convolutions_of_negative_numbers_in_float(
    function: nn.Module, integers: int, tmp_path: Path
) -> None:
    """In three dimensions; its kernel takes no zero point."""
    batches = data(2, 2, 4, 4, 4)
    model = quantized(Depthwise(function), batches, "openvino")
    layers, found = executed(model, batches[0], tmp_path / "model.onnx")
    own = [precision for kind, precision in layers if kind == "Convolution"]
    assert sum(kind in ("u8", "i8") for kind in own) == promised(model) == integers
    torch.testing.assert_close(found, model(batches[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_openvino_decodes_weights_as_it_multiplies(bits: int, tmp_path: Path) -> None:
    rule = {"op": "linear", "weight": {"bits": bits, "group_size": 16}}
    config = {"version": 1, "rules": [rule]}
    [x] = data(4, 64, count=1)
    model = quantized(nn.Linear(64, 32), [x], "openvino", mode="weight_only", config=config)
    layers, found = executed(model, x, tmp_path / "model.onnx")
    assert [precision for kind, precision in layers if kind == "FullyConnected"] == [f"i{bits}"]
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
