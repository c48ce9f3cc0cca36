"""Limits of each target that docs/limits.md names, where no other test shows them.

A test fails where a limit is gone or has become worse: the page is to change with it.
"""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.graph.view import GraphView
from jit_passes.report.cost import file_size
from jit_passes.targets import Stock
from tests.compare import sqnr
from tests.folders import ROOT
from tests.plans import plans_in
from tests.processes import run_python
from tests.processor import needs_vnni

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, and that nothing was quantized
AVAILABLE = torch.backends.quantized.supported_engines
ENGINES = [e for e in ("x86", "fbgemm", "onednn", "qnnpack") if e in AVAILABLE]
TARGETS = ("stock", "x86", "reference")
Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def script(model: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.script(model.eval())


def quantize(model: Any, data: Any = None, **options: Any) -> torch.jit.ScriptModule:
    """Quantize a module, scripted unless it is already, without a progress bar."""
    scripted = model if isinstance(model, torch.jit.ScriptModule) else script(model)
    return jit_passes.quantize_script(scripted, data, progress=False, **options)


def dtypes(model: torch.jit.ScriptModule) -> list[str]:
    return [row.dtype for row in jit_passes.coverage(model)]


def kinds(model: torch.jit.ScriptModule) -> list[str]:
    return [node.kind for node in GraphView.of(model).nodes]


class Around(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Function, dims: int) -> None:
        super().__init__()
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.first, self.last = convolution(4, 8, 1), convolution(8, 4, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def interpolated(mode: str, **options: Any) -> Function:
    more = options or {"scale_factor": 2.0}
    return lambda y: F.interpolate(y, mode=mode, **more)


FLOAT, INSIDE = True, False
GAINS, SHIFT = torch.linspace(0.5, 1.5, 8), torch.linspace(-1, 1, 8)
# The number of spatial axes, the function, and whether it is in float on stock and on x86.
OPERATORS: dict[str, tuple[int, Function, bool, bool]] = {
    "sum": (2, lambda y: y + torch.sigmoid(y), INSIDE, INSIDE),
    "product": (2, lambda y: y * torch.sigmoid(y), INSIDE, INSIDE),
    "number": (2, lambda y: y * 0.5 + 1, FLOAT, INSIDE),
    "alpha": (2, lambda y: torch.add(y, torch.tanh(y), alpha=2), FLOAT, INSIDE),
    "constant": (2, lambda y: y + GAINS[:, None, None], FLOAT, INSIDE),
    "difference": (2, lambda y: y - torch.tanh(y), FLOAT, INSIDE),
    "quotient": (2, lambda y: y / (y.abs() + 1), FLOAT, INSIDE),
    "maximum": (2, lambda y: torch.maximum(y, torch.tanh(y)), FLOAT, FLOAT),
    "matmul": (2, lambda y: y @ y.transpose(2, 3), FLOAT, INSIDE),
    "attention": (2, lambda y: F.scaled_dot_product_attention(y, y, y), FLOAT, INSIDE),
    "gelu": (2, F.gelu, FLOAT, INSIDE),
    "silu": (2, F.silu, FLOAT, INSIDE),
    "exp": (2, torch.exp, FLOAT, INSIDE),
    "power": (2, lambda y: (y.abs() + 0.1).pow(0.75), FLOAT, INSIDE),
    "prelu": (2, lambda y: F.prelu(y, GAINS), FLOAT, INSIDE),
    "clamp": (2, lambda y: F.max_pool2d(y, 2).clamp(-0.3, 0.5), INSIDE, INSIDE),
    "layer norm": (2, lambda y: F.layer_norm(y, [8], GAINS, SHIFT), INSIDE, INSIDE),
    "layer norm of images": (2, lambda y: F.layer_norm(y, [8, 8]), INSIDE, INSIDE),
    "group norm": (2, lambda y: F.group_norm(y, 2, GAINS, SHIFT), FLOAT, INSIDE),
    "group norm without weights": (2, lambda y: F.group_norm(y, 2), FLOAT, INSIDE),
    "instance norm": (2, lambda y: F.instance_norm(y), FLOAT, INSIDE),
    "average of a line": (1, lambda y: F.avg_pool1d(y, 2), FLOAT, INSIDE),
    "average of a volume": (3, lambda y: F.avg_pool3d(y, 2), INSIDE, INSIDE),
    "sum of a window": (2, lambda y: F.avg_pool2d(y, 2, divisor_override=1), FLOAT, INSIDE),
    "adaptive average": (2, lambda y: F.adaptive_avg_pool2d(y, 2), FLOAT, INSIDE),
    "mean": (2, lambda y: y.mean([2, 3], keepdim=True), FLOAT, INSIDE),
    "largest of a line": (1, lambda y: F.max_pool1d(y, 2), INSIDE, INSIDE),
    "largest of a volume": (3, lambda y: F.max_pool3d(y, 2), FLOAT, INSIDE),
    "adaptive largest": (2, lambda y: F.adaptive_max_pool2d(y, 2), FLOAT, INSIDE),
    "nearest of a line": (1, interpolated("nearest"), FLOAT, INSIDE),
    "nearest of an image": (2, interpolated("nearest"), INSIDE, INSIDE),
    "nearest of a volume": (3, interpolated("nearest"), INSIDE, INSIDE),
    "nearest by size": (3, interpolated("nearest", size=[9] * 3), FLOAT, INSIDE),
    "nearest-exact": (2, interpolated("nearest-exact"), FLOAT, INSIDE),
    "linear of a line": (1, interpolated("linear"), FLOAT, INSIDE),
    "bilinear": (2, interpolated("bilinear"), FLOAT, INSIDE),
    "trilinear": (3, interpolated("trilinear"), FLOAT, INSIDE),
    "bicubic": (2, interpolated("bicubic"), FLOAT, INSIDE),
    "zeros around a volume": (3, lambda y: F.pad(y, [1, 1]), FLOAT, INSIDE),
    "zeros around an image": (2, lambda y: F.pad(y, [1, 1]), INSIDE, INSIDE),
    "ones around an image": (2, lambda y: F.pad(y, [1, 1], value=1.0), FLOAT, FLOAT),
    "reflection": (2, lambda y: F.pad(y, [1] * 4, mode="reflect"), FLOAT, INSIDE),
    "flip": (2, lambda y: y.flip(3), INSIDE, INSIDE),
    "repeat": (2, lambda y: y.repeat(1, 1, 2, 1), INSIDE, INSIDE),
    "tile": (2, lambda y: y.tile([1, 1, 2, 1]), FLOAT, INSIDE),
    "repeat_interleave": (2, lambda y: y.repeat_interleave(2, 3), FLOAT, INSIDE),
    "where": (2, lambda y: torch.where(y > 0, y, y * 0.1), FLOAT, INSIDE),
    "sum of truths": (2, lambda y: y / (y > 9).sum(1, keepdim=True).add(1), FLOAT, FLOAT),
    "log softmax": (2, lambda y: F.log_softmax(y, 1), FLOAT, INSIDE),
    "cumsum": (2, lambda y: y.cumsum(2), FLOAT, INSIDE),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_between_convolutions(name: str) -> None:
    """In float, values are quantized once more, or a plan ends and another one begins."""
    dims, function, on_stock, on_x86 = OPERATORS[name]
    model = Around(function, dims).eval()
    x = torch.randn(2, 4, *[8] * dims)
    traced = torch.jit.trace(model, x)
    stock, x86 = (quantize(traced, [x], target=t, mode="static") for t in ("stock", "x86"))
    assert kinds(stock).count("aten::quantize_per_tensor") == 1 + on_stock
    assert len(plans_in(x86)) == 1 + on_x86
    with torch.no_grad():
        assert min(sqnr(model(x), found(x)) for found in (stock, x86)) > 25


@pytest.mark.parametrize(
    "norm",
    [
        nn.InstanceNorm2d(8),
        nn.InstanceNorm2d(8, affine=True),
        nn.GroupNorm(2, 8),
        nn.LayerNorm([8, 8]),
        nn.LayerNorm([8, 8, 8]),
    ],
    ids=["instance", "affine", "group", "planes", "images"],
)
def test_norms_of_scripts(norm: nn.Module) -> None:
    """Their checks read sizes, which a plan gives without the values."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1, 0.3)
    model, x = Around(norm, 2).eval(), torch.randn(2, 4, 8, 8)
    lowered = quantize(model, [x], target="x86", mode="static")
    (plan,) = plans_in(lowered)
    with torch.no_grad():
        assert sqnr(model(x), lowered(x)) > 30
        if not isinstance(norm, nn.GroupNorm):  # which takes the channels of one image for images
            assert lowered(x[0]).shape == model(x[0]).shape
            assert sqnr(model(x[0]), lowered(x[0])) > 30
    results = [result for result in plan.run([x]) if any(result.stride())]
    assert len(results) == 1, "the others are one number each"


@pytest.mark.parametrize("name", ["constant", "attention", "bilinear", "nearest of a line"])
def test_operators_of_the_reference(name: str) -> None:
    dims, function, _, _ = OPERATORS[name]
    x = torch.randn(2, 4, *[8] * dims)
    traced = torch.jit.trace(Around(function, dims).eval(), x)
    inspection = jit_passes.inspect(traced, target="reference", mode="static")
    assert [row.dtype for row in inspection].count("int8") == 2  # the convolutions


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bij,jk->bik", x, self.matrix) + torch.matmul(x, self.matrix)


@pytest.mark.parametrize("target", TARGETS)
def test_products_with_a_constant(target: str) -> None:
    found = quantize(Einsum(), [torch.randn(3, 5, 8)], target=target, mode="static")
    rows = {row.kind: row.dtype for row in jit_passes.coverage(found)}
    assert rows == {"einsum": "float", "linear": "int8"}


@pytest.mark.parametrize(("bits", "width"), [(4, 32), (8, 24), (8, 32)])
def test_weights_alone_are_decoded_once(bits: int, width: int) -> None:
    """PyTorch folds the decoding into a constant, unless it has a kernel for the codes."""
    model = nn.Sequential(nn.Linear(width, 8)).eval()
    config = {"version": 1, "global": {"weight": {"bits": bits}}}
    lowered = quantize(model, mode="weight_only", target="stock", config=config)
    with torch.no_grad():
        for _ in range(3):
            lowered(torch.randn(2, width))
    executed = str(torch.jit.last_executed_optimized_graph())
    assert "aten::mul(" not in executed and "aten::bitwise" not in executed
    assert ("aten::_weight_int8pack_mm" in executed) == ((bits, width) == (8, 32))


@pytest.mark.parametrize(
    ("mode", "weight", "in_bytes"),
    [
        ("dynamic", {"group_size": 128}, 0.5),
        ("weight_only", {"group_size": 128}, 0.5),
        ("weight_only", {}, 0.5),
        ("dynamic", {}, 1),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_files_of_narrow_weights(
    mode: str, weight: dict[str, int], in_bytes: float, target: str
) -> None:
    """Codes and scales are most of a file; the rest, code and reports, is below 30 kB."""
    width = 512
    config = {"version": 1, "global": {"mode": mode, "weight": {"bits": 4, **weight}}}
    lowered = quantize(nn.Linear(width, width).eval(), target=target, config=config)
    codes = width * width * (1 if target == "reference" else in_bytes)
    scales = width * (width // weight["group_size"] if weight else 1)
    each = 16 if target == "reference" else 4  # float64 and a zero point in 64 bits
    assert 0 < file_size(lowered) - codes < scales * each + 4 * width + 30_000


class Upsampled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(4, 12, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(12, 4, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(torch.relu(self.down(x)), output_size=x.shape[2:]) + x


def test_output_sizes_of_a_script() -> None:
    """A trace has numbers there."""
    model, x = Upsampled().eval(), torch.randn(2, 4, 8, 8)
    for target in TARGETS:
        scripted = quantize(model, [x], target=target, mode="static")
        traced = quantize(torch.jit.trace(model, x), [x], target=target, mode="static")
        assert dtypes(traced) == ["int8", "int8"]
        assert dtypes(scripted) == ["int8", "int8" if target == "reference" else "float"]


# Windows, channels, strides, paddings and dilations of depthwise convolutions.
FAST = ((2, 3, 16, 1, 1, 1), (2, 5, 16, 2, 2, 1), (3, 3, 8, 2, 1, 1))
SLOW = (
    (2, 7, 16, 1, 3, 1),
    (2, 3, 12, 1, 1, 1),
    (2, 3, 16, 3, 1, 1),
    (2, 3, 16, 1, 0, 1),
    (2, 3, 16, 1, 2, 2),
    (3, 5, 8, 1, 1, 1),
    (1, 3, 16, 1, 1, 1),
)


@pytest.mark.skipif("fbgemm" not in ENGINES, reason="no engine fbgemm")
@pytest.mark.parametrize("case", [*FAST, *SLOW], ids=str)
def test_depthwise_shapes_of_fbgemm(case: tuple[int, ...]) -> None:
    dims, window, channels, stride, padding, dilation = case
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    layer = kind(channels, channels, window, stride, padding, dilation, channels)
    inspection = jit_passes.inspect(script(nn.Sequential(layer)), target=Stock("fbgemm"))
    (row,) = inspection
    assert row.dtype == ("int8" if case in FAST else "float")
    assert case in FAST or "slower than float" in row.reason


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("groups", [1, 2])
def test_scales_of_transposed_convolutions(groups: int, target: str) -> None:
    """On stock one; else one for each channel, if there are no groups."""
    model = script(nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=groups)))
    prepared = jit_passes.prepare(model, target=target, mode="static")
    calibrated = jit_passes.calibrate(prepared, [torch.randn(2, 4, 6, 6)], progress=False)
    scales = [
        torch.as_tensor(node.inputs[1].constant).numel()
        for node in GraphView.of(jit_passes.convert(calibrated)).nodes
        if node.kind.startswith("jit_passes::dequantize")
        and isinstance(node.inputs[0].constant, Tensor)
        and node.inputs[0].constant.dim() == 4
    ]
    assert scales == [1 if target == "stock" or groups > 1 else 6]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_axes_of_plans(mode: str) -> None:
    model = nn.Sequential(nn.Linear(6, 4)).eval()
    lowered = quantize(model, [torch.randn(2, 3, 6)], target="x86", mode=mode)
    most = 5 if mode == "static" else 6
    fits, beyond = (torch.randn(*[2] * (axes - 1), 6) for axes in (most, most + 1))
    with torch.no_grad():
        assert sqnr(model(fits), lowered(fits)) > 25
        with pytest.raises(RuntimeError, match=f"takes {most} axes at most"):
            lowered(beyond)


def test_nan_in_static_places() -> None:
    """NaN has the lowest code; on stock it has another one."""
    model = nn.Sequential(nn.Linear(4, 8)).eval()
    data = [torch.linspace(-1, 1, 64).reshape(16, 4)]
    low, nan = torch.zeros(1, 4), torch.zeros(1, 4)
    low[0, 1], nan[0, 1] = -1e9, torch.nan
    for target in TARGETS:
        lowered = quantize(model, data, target=target, mode="static")
        with torch.no_grad():
            assert bool(lowered(nan).isfinite().all())
            assert torch.equal(lowered(nan), lowered(low)) == (target != "stock")


@pytest.mark.parametrize("engine", ENGINES)
def test_nan_in_dynamic_places(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `isolate_nan`, a NaN behind large numbers spoils other rows; or there is an error."""
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    model = nn.Sequential(nn.Linear(16, 8))
    lowered = quantize(model, mode="dynamic", target=Stock(engine, isolate_nan=False))
    x = torch.randn(6, 16)
    x[0] *= 20
    x[5] = torch.nan
    others = [0, 1, 2, 3, 4]
    if engine == "qnnpack":
        with pytest.raises(RuntimeError, match="min should be less than or equal to max"):
            lowered(x)
    else:
        found = lowered(x)
        assert bool(found[5].isfinite().all()) and sqnr(model(x)[others], found[others]) < 10
    x[5] = torch.inf
    if engine == "qnnpack":
        with pytest.raises(RuntimeError, match="requantization scale: inf"):
            lowered(x)
    else:
        assert not sqnr(model(x)[others], lowered(x)[others]) > 5


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_in_three_axes(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    lowered = quantize(nn.Sequential(nn.Linear(6, 4)), mode="dynamic", target=Stock(engine))
    wanted = [0, 4] if engine == "onednn" else [2, 0, 4]
    assert list(lowered(torch.zeros(2, 0, 6)).shape) == wanted


class Averaged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).mean(1))


def test_a_mean_of_nothing() -> None:
    x = torch.randn(2, 3, 6)
    for target in TARGETS:
        lowered = quantize(Averaged(), mode="dynamic", target=target)
        assert lowered(x).isfinite().all()
        if target == "x86":
            with pytest.raises(RuntimeError, match="goes over no values"):
                lowered(x[:, :0])
        else:
            assert lowered(x[:, :0]).isnan().all()


@pytest.mark.parametrize("engine", ENGINES)
def test_windows_beyond_the_input(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's kernels take them: with strides the result counts zeros behind the rim.

    The process ends with strides and qnnpack.
    """
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    x = torch.randn(2, 3, 2, 2)
    for stride in (1,) if engine == "qnnpack" else (1, 2):
        model = script(nn.Sequential(nn.Conv2d(3, 4, 3, stride)))
        lowered = quantize(model, [torch.randn(2, 3, 8, 8)], target=Stock(engine))
        with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
            model(x)
        if stride == 2:
            assert torch.equal(lowered(x), lowered(F.pad(x, (0, 1, 0, 1))))
        elif engine in ("fbgemm", "qnnpack"):
            with pytest.raises(RuntimeError, match="each dimension of output tensor"):
                lowered(x)
        else:
            assert list(lowered(x).shape) == [2, 4, 0, 0]
    for target in ("x86", "reference"):
        lowered = quantize(model, [torch.randn(2, 3, 8, 8)], target=target)
        with pytest.raises(RuntimeError, match=r"window larger|Kernel size can't be greater"):
            lowered(x)


class Cell(nn.Module):
    """A cell whose state is an argument; of an LSTM both states are."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        y: Tensor = self.cell(x, state)
        return y


class LongCell(Cell):
    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        y: Tensor = self.cell(x, (state, state))[0]
        return y


CELLS = [(Cell, nn.GRUCell), (Cell, nn.RNNCell), (LongCell, nn.LSTMCell)]


@pytest.mark.parametrize(("net", "cell"), CELLS, ids=[cell.__name__ for _, cell in CELLS])
@pytest.mark.parametrize("target", TARGETS)
def test_states_of_one_sample(target: str, net: Any, cell: Any) -> None:
    """Kernels count one state, or one input, for all samples; the float model raises an error."""
    model = script(net(cell(8, 6)))
    lowered = quantize(model, [(torch.randn(2, 8), torch.randn(2, 6))], target=target)
    for rows in ((2, 1), (1, 2)):
        x, state = (torch.randn(n, width) for n, width in zip(rows, (8, 6), strict=True))
        for found in (model, lowered) if target == "reference" else (model,):
            with pytest.raises(RuntimeError, match="doesn't match hidden0 batch size"):
                found(x, state)
        if target != "reference":
            assert torch.equal(lowered(x, state), lowered(x.expand(2, 8), state.expand(2, 6)))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(10, 8, mode="sum"), nn.Linear(8, 4)

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.bags(rows, offsets))


@pytest.mark.parametrize("target", TARGETS)
def test_bags_behind_the_first_row(target: str) -> None:
    rows, offsets = torch.tensor([1, 2, 3]), torch.tensor([0, 1])
    model = script(Bags())
    lowered = quantize(model, [(rows, offsets)], target=target)
    for found in (model, lowered) if target == "reference" else (model,):
        with pytest.raises(RuntimeError, match="offsets"):
            found(rows, offsets + 1)
    if target != "reference":
        assert torch.equal(lowered(rows, offsets + 1), lowered(rows[1:], offsets))


@pytest.mark.parametrize("target", TARGETS)
def test_other_floats(target: str) -> None:
    """A cast of the model changes nothing; PyTorch's kernels take no other floats."""
    x = torch.randn(4, 6)
    lowered = quantize(nn.Sequential(nn.Linear(6, 4)), [x], target=target)
    wanted = lowered(x)
    for dtype in (torch.float16, torch.float64):
        lowered = lowered.to(dtype)
        assert lowered(x).dtype == torch.float32 and torch.equal(lowered(x), wanted)
        if target == "stock":
            with pytest.raises(RuntimeError, match="only works on Float Tensor"):
                lowered(x.to(dtype))
        else:
            assert torch.equal(lowered(x.to(dtype)), lowered(x.to(dtype).float()))


def test_files_of_plans_need_the_package(tmp_path: Path) -> None:
    """PyTorch's error without it is the one that docs/faq.md explains."""
    lowered = quantize(nn.Sequential(nn.Linear(6, 4)), [torch.randn(4, 6)], target="x86")
    torch.jit.save(lowered, tmp_path / "int8.pt")
    program = """import torch
try:
    torch.jit.load("int8.pt")
except RuntimeError as error:
    print(error)
"""
    told = re.search("Unknown type name '.*Plan'", run_python("-c", program, cwd=tmp_path))
    assert told is not None and told[0] in (ROOT / "docs" / "faq.md").read_text()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


@needs_vnni
@pytest.mark.parametrize("target", TARGETS)
def test_small_numbers(target: str) -> None:
    """Kernels of PyTorch have steps of 6.1e-5 at least, and layers of `x86` that are like them."""
    linear = nn.Sequential(nn.Linear(16, 8, bias=False)).eval()
    recurrent = Recurrent().eval()
    x = torch.rand(5, 3, 16)
    for model, limited in ((linear, ("stock",)), (recurrent, ("stock", "x86"))):
        lowered = quantize(model, mode="dynamic", target=target)
        with torch.no_grad():
            found = {size: sqnr(model(size * x), lowered(size * x)) for size in (1.0, 0.016, 1e-3)}
            assert min(found[1.0], found[0.016]) > 37
            if target in limited:
                assert 15 < found[1e-3] < 37 and not lowered(3e-5 * x).any()
            else:
                assert found[1e-3] > 37 and sqnr(model(3e-5 * x), lowered(3e-5 * x)) > 37


@pytest.mark.skipif("qnnpack" not in ENGINES, reason="no engine qnnpack")
def test_windows_of_one_of_qnnpack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")
    model, x = Around(lambda y: F.max_pool2d(y, 1, 2), 2).eval(), torch.randn(2, 4, 8, 8)
    traced = torch.jit.trace(model, x)
    lowered = quantize(traced, [x], target=Stock("qnnpack"), mode="static")
    with torch.no_grad(), pytest.raises(RuntimeError, match="failed to create"):
        lowered(x)


class Normed(nn.Module):
    def __init__(self, flat: str) -> None:
        super().__init__()
        self.linear, self.norm, self.flat = nn.Linear(12, 6), nn.BatchNorm1d(6), flat

    def forward(self, x: Tensor) -> Tensor:
        if self.flat == "flatten":
            x = torch.flatten(x, 1)
        elif self.flat == "view":
            x = x.view(-1, 12)
        return self.norm(self.linear(x))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("flat", ["flatten", "view", "as it is"])
def test_batch_norms_behind_linears(flat: str, target: str) -> None:
    prepared = jit_passes.prepare(script(Normed(flat)), target=target, mode="static")
    assert ("aten::batch_norm" in kinds(prepared)) == (flat == "as it is")


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other, self.last = (nn.Conv2d(4, 4, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.one(y) if bool(x.mean() > 0) else self.other(y)
        return self.last(z)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.each(x) * 4.0
        return self.last(x)


def test_results_of_branches_and_loops() -> None:
    """Each block gives floats, and the next operator quantizes them."""
    x = torch.randn(2, 4, 8, 8)
    branch = quantize(Branch(), [x.abs(), -x.abs()], target="stock", mode="static")
    assert dtypes(branch) == ["int8"] * 4
    assert kinds(branch).count("aten::dequantize") == 3  # of two branches, and of the result
    loop = quantize(Loop(), [x], target="reference", mode="static")
    grids = [node for node in GraphView.of(loop).nodes if node.kind == "jit_passes::quantize"]
    assert all(isinstance(node.inputs[1].constant, float) for node in grids)


class Written(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        z = torch.exp(y) + 1
        y.add_(1)
        return z + y


def test_rules_that_read_what_is_written_later() -> None:
    def pattern(x: Tensor) -> Tensor:
        return torch.exp(x) + 1

    def replacement(x: Tensor) -> Tensor:
        return torch.exp(x) * torch.cos(x) + torch.exp(x) * (1 - torch.cos(x)) + 1

    model, x = torch.jit.script(Written()), torch.randn(5, requires_grad=True)
    changed = jit_passes.RewriteRule("other", pattern, replacement).apply(model).module
    torch.testing.assert_close(changed(x), model(x))
    model(x).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed(x).sum().backward()


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.task, self.last = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        futures: list[torch.jit.Future[Tensor]] = []
        for i in range(2):
            futures.append(torch.jit.fork(self.task, x * float(i)))
        return self.last(torch.jit.wait(futures[0]) + torch.jit.wait(futures[1]))


@pytest.mark.parametrize("target", TARGETS)
def test_tasks_in_a_list(target: str) -> None:
    lowered = quantize(Tasks(), [torch.randn(2, 4, 8, 8)], target=target, mode="static")
    assert [row.name for row in jit_passes.coverage(lowered)] == ["last:conv2d"]
    assert "prim::fork" in kinds(lowered)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 100), nn.Linear(100, 100)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.first(x))
        return self.last(y), y


@pytest.mark.parametrize("target", TARGETS)
def test_results_are_codes(target: str) -> None:
    """In the mode static, unless a rule or the target says otherwise of the layer."""
    x = torch.randn(64, 16)
    rule = {"version": 1, "rules": [{"module": "last", "keep_float": True}]}
    for options, most in (
        ({"mode": "static"}, (6400 if target == "x86" else 256, 256)),
        ({"mode": "static", "config": rule}, (6400, 256)),
        ({"mode": "dynamic"}, (6400, 6400)),
    ):
        results = quantize(Two(), [x], target=target, **options)(x)
        for found, limit in zip(results, most, strict=True):
            assert (found.unique().numel() <= 256) == (limit == 256)


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_what_compare_sees(mode: str) -> None:
    layers = (nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    model, data = script(nn.Sequential(*layers)), [torch.randn(5, 8)]
    seen = {}
    for target in TARGETS:
        found = jit_passes.compare(model, quantize(model, data, target=target, mode=mode), data)
        seen[target] = {row.name for row in found.rows} & {"0:linear", "2:linear", "4:linear"}
    assert seen["reference"] == {"0:linear", "2:linear", "4:linear"}
    assert seen["x86"] <= {"4:linear"}
    assert seen["stock"] == (seen["reference"] if mode == "static" else set())


@pytest.mark.parametrize("target", TARGETS)
def test_files_hold_paths(target: str) -> None:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(quantize(Two(), [torch.randn(4, 16)], target=target), buffer)
    with zipfile.ZipFile(buffer) as file:
        assert any(__file__.encode() in file.read(name) for name in file.namelist())
