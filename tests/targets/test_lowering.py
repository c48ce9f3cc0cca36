"""Every fused operator against the reference model: at most one quantization step apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.targets import Stock
from tests.advice import even_kernels
from tests.compare import sqnr
from tests.operators import Apply, Pair, quantize_operator

pytestmark = pytest.mark.filterwarnings("ignore:nothing was quantized")

# Where both sides compute the same real number, rounding can differ by one step at a tie.
ONE_STEP = 1.0 + 1e-3


def assert_one_step(pair: Pair, fused: str, *inputs: Tensor) -> None:
    assert fused in pair.kinds(), f"{fused} is not in {sorted(pair.kinds())}"
    assert not any(kind.startswith("jit_passes::") for kind in pair.kinds())
    with torch.no_grad():
        expected, found = pair.reference(*inputs), pair.lowered(*inputs)
    assert expected.shape == found.shape
    steps = (expected - found).abs().max().item() / pair.scale
    assert steps <= ONE_STEP, f"{steps:.3f} steps apart"
    assert expected.abs().max() > 3 * pair.scale, "a test of zeros shows nothing"


def relative(case: dict[str, int]) -> str:
    return "-".join(f"{key}{value}" for key, value in case.items())


CONVOLUTIONS = [
    {"dims": 1, "kernel": 3, "stride": 2, "padding": 1},
    {"dims": 1, "kernel": 5, "groups": 16},
    {"dims": 2, "kernel": 1},
    {"dims": 2, "kernel": 3, "padding": 1},
    {"dims": 2, "kernel": 3, "stride": 2, "padding": 1, "groups": 4},
    {"dims": 2, "kernel": 3, "padding": 2, "dilation": 2},
    {"dims": 2, "kernel": 3, "padding": 1, "groups": 16},
    {"dims": 2, "kernel": 5, "padding": 2, "groups": 16},
    {"dims": 2, "kernel": 3, "bias": 0},
    {"dims": 3, "kernel": 3, "padding": 1},
]
ENGINES = [
    e
    for e in ("x86", "fbgemm", "onednn", "qnnpack")
    if e in torch.backends.quantized.supported_engines
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clip", ["none", "relu", "relu6", "hardtanh"])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=relative)
def test_convolution(case: dict[str, int], clip: str, engine: str) -> None:
    torch.manual_seed(0)
    options = dict(case)
    dims, kernel = options.pop("dims"), options.pop("kernel")
    options["bias"] = bool(options.pop("bias", 1))
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](16, 32, kernel, **options)
    clips = {"none": nn.Identity(), "relu": nn.ReLU(), "relu6": nn.ReLU6()}
    model = nn.Sequential(conv, clips.get(clip, nn.Hardtanh(-0.4, 0.5)))
    x = torch.randn(3, 16, *[9] * dims)
    pair = quantize_operator(model, x, engine=engine)
    fused = f"quantized::conv{max(dims, 2)}d"  # in one dimension as in two, of height 1
    assert_one_step(pair, fused, x)
    clamps = [node for node in pair.lowered.graph.nodes() if node.kind() == "aten::clamp"]
    # Codes of 7 bits are clamped where they are made: those of the input and those of the result.
    assert len(clamps) == (2 if Stock(engine=engine).reduce_range else 0), "the clip costs nothing"
    assert "aten::relu" not in pair.kinds()
    assert_one_step(pair, fused, torch.randn(1, 16, *[7] * dims))


@pytest.mark.skipif("x86" not in ENGINES, reason="no engine x86")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dims", "channels", "out", "groups"),
    [
        (1, 130, 130, 130),
        (2, 116, 116, 116),
        (2, 104, 208, 104),
        (2, 240, 360, 120),
        (3, 120, 120, 120),
    ],
)
def test_many_groups(dims: int, channels: int, out: int, groups: int, bias: bool) -> None:
    """The engine x86 gets convolutions of at most 100 groups, which together are the one."""
    torch.manual_seed(0)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    convolution = kind(channels, out, 7, padding=3, stride=2, groups=groups, bias=bias)
    x = torch.randn(2, channels, *[9] * dims)
    pair = quantize_operator(nn.Sequential(convolution, nn.ReLU()), x, engine="x86")
    assert_one_step(pair, f"quantized::conv{max(dims, 2)}d", x)
    assert not pair.kinds() & {"aten::conv1d", "aten::conv2d", "aten::conv3d"}
    packed = [pair.lowered._c.getattr(f"packed_{i}") for i in range(2)]
    sizes = [p.unpack()[0].shape[0] * groups // out for p in packed]
    assert sum(sizes) == groups and max(sizes) <= 100


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dims", [2, 3])
def test_remainders_of_groups(dims: int, engine: str) -> None:
    """FBGEMM takes 8 groups of 2 channels together, or 4 of 4, and is wrong for a remainder.

    The kernel writes beyond its memory too, so the test does not show its result.
    """
    kind = (nn.Conv2d, nn.Conv3d)[dims - 2]
    for channels, groups, window, fits in (
        (16, 8, 3, True), (24, 12, 3, False), (24, 12, 5, True), (6, 3, 3, True),
        (16, 4, 3, True), (24, 6, 3, False), (4, 1, 3, True),
    ):  # fmt: skip
        torch.manual_seed(0)
        convolution = kind(channels, channels, window, padding=1, groups=groups)
        x = torch.randn(2, channels, *[6] * dims)
        model = torch.jit.script(nn.Sequential(convolution).eval())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lowered = jit_passes.quantize_script(model, [x], target=Stock(engine=engine))
        (row,) = jit_passes.coverage(lowered)
        assert (row.dtype == "int8") == fits, row
        assert fits or "FBGEMM is wrong" in row.reason
        with torch.no_grad():
            wanted, found = model(x), lowered(x)
        assert sqnr(wanted, found) > 30 if fits else torch.equal(wanted, found)


@even_kernels
def test_padding_of_three_axes_stays_float() -> None:
    """PyTorch cannot pad what its int8 Conv3d gives: 'same' with even windows is such a pad."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(4, 8, 3), nn.ReLU(), nn.Conv3d(8, 4, 2, padding="same")).eval()
    x = torch.randn(2, 4, 6, 6, 6)
    script = torch.jit.script(model)
    lowered = jit_passes.quantize_script(script, [x], target="stock", progress=False)
    kinds = {node.kind() for node in lowered.graph.nodes()}
    assert {"aten::constant_pad_nd", "quantized::conv3d"} <= kinds
    with torch.no_grad():
        assert (lowered(x) - model(x)).abs().max() < 0.05


class Resized(nn.Module):
    """Volumes resized to a size, which may be their own, or by factors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(4, 4, 3, padding=1), nn.Conv3d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(self.first(x), size=x.shape[2:])
        return self.last(F.interpolate(y, scale_factor=2.0))


@pytest.mark.parametrize("form", [torch.jit.script, torch.jit.trace], ids=["script", "trace"])
def test_volumes_that_stay_as_large(form: Any) -> None:
    """PyTorch 2.13 gives what memory holds for quantized ones, channels last."""
    torch.manual_seed(0)
    net, x = Resized().eval(), torch.randn(2, 4, 3, 5, 4)
    model = form(net) if form is torch.jit.script else form(net, x)  # torch.compile wraps trace
    lowered = jit_passes.quantize_script(model, [x], target="stock", progress=False)
    with torch.no_grad():
        for _ in range(3):
            assert (lowered(x) - net(x)).norm() < 0.05 * net(x).norm()


class Volumes(nn.Module):
    """An input, and its sum with what a layer of three spatial axes gives, padded."""

    def __init__(self, padding: list[int]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(4, 4, 3, padding=1), nn.Conv3d(4, 2, 1)
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, self.padding)
        return self.last(F.pad(x + F.relu(self.first(x)), self.padding))


@pytest.mark.parametrize("padding", [[0, 1], [0, 1, 0, 1], [1, 0, 0, 1, 2, 0]], ids=str)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("form", [torch.jit.script, torch.jit.trace], ids=["script", "trace"])
def test_padding_of_volumes(form: Any, last: bool, padding: list[int]) -> None:
    """In however many axes: PyTorch does not pad their quantized tensors, channels last."""
    torch.manual_seed(0)
    model, x = Volumes(padding).eval(), torch.randn(2, 4, 6, 5, 7)
    x = x.contiguous(memory_format=torch.channels_last_3d) if last else x
    script = form(model) if form is torch.jit.script else form(model, x)
    lowered = jit_passes.quantize_script(script, [x], target="stock", progress=False)
    kinds = {node.kind() for node in lowered.graph.nodes()}
    assert {"aten::pad", "quantized::conv3d"} <= kinds
    with torch.no_grad():
        assert sqnr(model(x), lowered(x)) > 30


@pytest.mark.parametrize("target", ["stock", "x86"])
@pytest.mark.parametrize("padding", [[0, 0, 0, 2, 0, 1], [1, 1, 0, 2, 1, 0]], ids=str)
def test_padding_of_images_in_three_axes(padding: list[int], target: str) -> None:
    """With channels last, as window attention has them, it stays on integers."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3)
            self.last = nn.Linear(8 + padding[0] + padding[1], 4)
            self.padding = padding

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.pad(F.relu(self.first(x)).permute(0, 2, 3, 1), self.padding))

    torch.manual_seed(0)
    model, x = Padded().eval(), torch.randn(2, 3, 7, 9)
    script = torch.jit.trace(model, x)
    lowered = jit_passes.quantize_script(script, [x], target=target, mode="static", progress=False)
    kinds = [node.kind() for node in lowered.inlined_graph.nodes()]
    assert kinds.count("aten::quantize_per_tensor") == (target == "stock")
    with torch.no_grad():
        assert sqnr(model(x), lowered(x)) > 30


class Sums1d(nn.Module):
    """Parts of audio networks: convolutions, sums, norms that do not fold, a clip."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8)
        self.one, self.two = nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 8, 5, padding=2)
        self.kept = nn.Conv1d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = F.relu(self.one(x) + x)
        x = F.hardswish(self.two(x)) + self.norm(x)
        return self.kept(x)


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_of_1d_convolutions(engine: str) -> None:
    """All of it runs in two dimensions: one axis is added in front, and taken away at the end."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, 20)
    pair = quantize_operator(Sums1d(), x, engine=engine)
    kinds = [node.kind() for node in pair.lowered.graph.nodes()]
    assert kinds.count("aten::unsqueeze") == kinds.count("aten::squeeze") == 1
    assert kinds.count("quantized::conv2d") == 4 and "quantized::conv1d" not in kinds
    assert {"quantized::add", "quantized::batch_norm", "quantized::hardswish"} <= set(kinds)
    with torch.no_grad():
        expected, found = pair.reference(x), pair.lowered(x)
    assert expected.stride() == found.stride()
    # One step of each operand of the last convolution, which adds 8 of them.
    assert (expected - found).abs().max() <= 4 * pair.scale


@pytest.mark.skipif("fbgemm" not in ENGINES, reason="no engine fbgemm")
def test_float_1d_convolution_between_integers() -> None:
    """FBGEMM has no kernel for it, and the float one gets channels last, its fast layout."""
    torch.manual_seed(0)
    depthwise = nn.Conv1d(16, 16, 9, padding=4, groups=16)
    model = nn.Sequential(nn.Conv1d(4, 16, 1), depthwise, nn.Conv1d(16, 4, 1)).eval()
    script, x = torch.jit.script(model), torch.randn(3, 4, 20)
    target = Stock(engine="fbgemm")
    lowered = jit_passes.quantize_script(script, [x], target=target, progress=False)
    assert [row.dtype for row in jit_passes.coverage(lowered)] == ["int8", "float", "int8"]
    kinds = [node.kind() for node in lowered.graph.nodes()]
    assert "aten::conv1d" not in kinds and kinds.count("aten::conv2d") == 1
    assert kinds.count("aten::unsqueeze") == kinds.count("aten::squeeze") == 1
    with torch.no_grad():
        assert sqnr(script(x), lowered(x)) > 30


class Residual(nn.Module):
    """A convolution added to its input, which is read again afterwards."""

    def __init__(self, first: bool, relu: bool) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(16, 4, 1)
        self.first, self.relu = first, relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv(x) + x if self.first else x + self.conv(x)
        return self.last(torch.cat([F.relu(y) if self.relu else y, x], 1))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_convolution_and_sum(first: bool, relu: bool) -> None:
    """The engine onednn adds before it rounds, and the tensor that it adds stays as it was."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    script = torch.jit.script(Residual(first, relu).eval())
    target = Stock(engine="onednn", fuse_sums=True)
    prepared = jit_passes.prepare(script, target=target)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x], progress=False))
    with pytest.warns(jit_passes.JitPassesWarning, match=r"quantized\.engine = 'onednn'"):
        pair = Pair(reference, jit_passes.lower(reference))
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "onednn"
    try:
        assert pair.kinds() >= {"quantized::conv2d_add", "quantized::cat"}
        assert "quantized::add" not in pair.kinds() and "aten::add" not in pair.kinds()
        with torch.no_grad():
            expected, found = pair.reference(x), pair.lowered(x)
        # One step of each of the operands of the last convolution, which adds 16 of them.
        assert (expected - found).abs().max() <= 3 * pair.scale
    finally:
        torch.backends.quantized.engine = before


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "window,channels",
    [
        (window, channels)
        for window in ((3, 1, 1, 0), (3, 2, 1, 1), (2, 2, 0, 0), (4, 2, 1, 0))
        for channels in ((8, 12, 1), (8, 12, 4), (16, 24, 1), (32, 8, 1))
        if window[0] != 2 or channels[1] % 8 != 0  # see test_transposed_convolution_of_window_2
    ],
    ids=str,
)
def test_transposed_convolution(
    dims: int, window: tuple[int, int, int, int], channels: tuple[int, int, int], engine: str
) -> None:
    torch.manual_seed(0)
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    model = nn.Sequential(kinds[dims - 1](*channels[:2], *window, channels[2]))
    x = torch.randn(2, channels[0], *[6] * dims)
    # Refused: results of onednn are wrong for 8 channels into 12, those of qnnpack in 3 dimensions.
    if engine == "onednn" or (engine == "qnnpack" and dims == 3):
        script = torch.jit.script(model.eval())
        data = [x]
        with pytest.warns(jit_passes.JitPassesWarning, match="nothing was quantized"):
            kept = jit_passes.quantize_script(script, data, target=Stock(engine=engine))
        assert torch.equal(kept(x), script(x))
        assert engine in jit_passes.coverage(kept)[0].reason
        return
    pair = quantize_operator(model, x, engine=engine)
    assert_one_step(pair, f"quantized::conv_transpose{dims}d", x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("channels", [(8, 8), (8, 16), (64, 32)], ids=str)
def test_transposed_convolution_of_window_2(channels: tuple[int, int], engine: str) -> None:
    """PyTorch's kernels are wrong for it: it stays float, and says so."""
    torch.manual_seed(0)
    script = torch.jit.script(nn.Sequential(nn.ConvTranspose2d(*channels, 2, 2)).eval())
    x = torch.randn(1, channels[0], 4, 4)
    with pytest.warns(jit_passes.JitPassesWarning, match="nothing was quantized"):
        kept = jit_passes.quantize_script(script, [x], target=Stock(engine=engine))
    assert torch.equal(kept(x), script(x))
    assert "FBGEMM is wrong" in jit_passes.coverage(kept)[0].reason


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", [(5, 20), (2, 3, 20), (2, 3, 4, 20)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape: tuple[int, ...], bias: bool, engine: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    pair = quantize_operator(nn.Sequential(nn.Linear(20, 30, bias), nn.ReLU()), x, engine=engine)
    assert_one_step(pair, "quantized::linear", x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_sums_that_int32_does_not_hold(mode: str, engine: str) -> None:
    """255 times 127 times 140,000 is more than it holds; weights of both signs add up to less."""
    torch.manual_seed(0)
    x = 0.8 + 0.2 * torch.rand(2, 140_000)
    for weights, dtype in ((torch.ones(1, 140_000), "float"), (torch.randn(1, 140_000), "int8")):
        layer = nn.Linear(140_000, 1)
        layer.weight = nn.Parameter(weights)
        model = torch.jit.script(nn.Sequential(layer).eval())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target = Stock(engine=engine)
            lowered = jit_passes.quantize_script(model, [x], target=target, mode=mode)
        assert [row.dtype for row in jit_passes.coverage(lowered)] == [dtype]
        with torch.no_grad():
            # Products of a sum of both signs cancel, and their errors do not.
            bound = 1e-6 if dtype == "float" else 0.02
            error = (lowered(x) - model(x)).abs().max()
            assert error <= bound * weights.abs().sum()


UNARY = {
    "hardswish": (F.hardswish, "quantized::hardswish"),
    "hardsigmoid": (F.hardsigmoid, "aten::hardsigmoid"),
    "sigmoid": (torch.sigmoid, "quantized::sigmoid"),
    "tanh": (torch.tanh, "aten::tanh"),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), "quantized::leaky_relu"),
    "elu": (lambda x: F.elu(x, 0.8), "quantized::elu"),
    "softmax": (lambda x: F.softmax(x, 1), "quantized::softmax"),
    "softmax_last": (lambda x: F.softmax(x, -1), "quantized::softmax"),
    "layer_norm": (lambda x: F.layer_norm(x, [10]), "quantized::layer_norm"),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), "aten::clamp"),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), "aten::avg_pool2d"),
    "avg_pool2d_ceil": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
        "aten::avg_pool2d",
    ),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), "aten::adaptive_avg_pool2d"),
    "global_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), "aten::adaptive_avg_pool2d"),
    "mean": (lambda x: x.mean([2, 3]), "aten::mean"),
    "mean_keepdim": (lambda x: x.mean([1], True), "aten::mean"),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    function, fused = UNARY[name]
    x = (2 * torch.randn(3, 8, 10, 10)).contiguous(memory_format=layout)
    pair = quantize_operator(Apply(function), x, reduce_range=False)  # it adds no products
    kinds = [node.kind() for node in pair.lowered.graph.nodes()]
    assert kinds.count("aten::dequantize") == 1, "some have one name on integers and in float"
    assert_one_step(pair, fused, x)
    assert_one_step(pair, fused, x[:1])


class Around(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


@pytest.fixture
def running(engine: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine, which this process runs too: some kernels ask for that."""
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    return engine


def conversions(model: nn.Module, x: Tensor, engine: str) -> int:
    """Return how many values a lowered model quantizes; its results are those of float."""
    script = torch.jit.trace(model.eval(), x)
    lowered = jit_passes.quantize_script(script, [x], target=Stock(engine=engine), mode="static")
    with torch.no_grad():
        assert sqnr(model(x), lowered(x)) > 30
    kinds = [node.kind() for node in lowered.graph.nodes()]
    return kinds.count("aten::quantize_per_tensor")


@pytest.mark.parametrize("engine", ENGINES)
def test_clamps_of_pooled_values(running: str) -> None:
    """On integers; QNNPACK has no clamp at one end, or between ends in the other order."""
    for low, high in ((-0.3, 0.5), (None, 0.3), (-0.3, None), (0.5, -0.5)):
        torch.manual_seed(0)
        model = Around(lambda y, low=low, high=high: F.max_pool2d(y, 2).clamp(low, high))
        both = None not in (low, high) and low < high
        wanted = 2 if running == "qnnpack" and not both else 1
        assert conversions(model, torch.randn(2, 4, 8, 8), running) == wanted, (low, high)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("low", [-0.3, None])
def test_kept_clamps(low: float | None, running: str) -> None:
    """Where a range is given, the convolution's integers do not saturate at the clamp."""
    torch.manual_seed(0)
    model, x = Around(lambda y: y.clamp(low, 0.4)).eval(), torch.randn(2, 4, 8, 8)
    config = {"version": 1, "rules": [{"value": "clamp", "range": [-2, 2]}]}
    target = Stock(engine=running)
    lowered = jit_passes.quantize_script(
        torch.jit.trace(model, x), [x], target=target, mode="static", config=config
    )
    with torch.no_grad():
        assert sqnr(model(x), lowered(x)) > 20


@pytest.mark.parametrize("engine", ENGINES)
def test_averages_with_a_divisor(running: str) -> None:
    """With 1 an average is a sum, far outside of the range that it would share."""
    for options, wanted in (
        ({}, 1), ({"divisor_override": 1}, 2), ({"divisor_override": 5}, 2),
        ({"divisor_override": 18}, 2 if running == "qnnpack" else 1),
        ({"padding": 1, "count_include_pad": False}, 2 if running == "qnnpack" else 1),
    ):  # fmt: skip
        torch.manual_seed(0)
        model = Around(lambda y, options=options: F.avg_pool2d(y, 3, 2, **options))
        assert conversions(model, torch.randn(2, 4, 9, 9), running) == wanted, options


@pytest.mark.parametrize("function", [nn.Tanh(), nn.Hardsigmoid()], ids=str)
def test_results_with_another_grid(function: nn.Module) -> None:
    """PyTorch's kernel has one scale and zero point, and the next layer may read 7 bits."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(16, 24), function, nn.Linear(24, 4)).eval())
    x, target = torch.randn(32, 16), Stock(reduce_range=True)
    prepared = jit_passes.prepare(model, target=target, mode="static")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x], progress=False))
    lowered = jit_passes.lower(reference)
    assert len(jit_passes.coverage(lowered).int8) == 2
    with torch.no_grad():
        assert sqnr(model(x), lowered(x)) > 30
        assert sqnr(reference(x), lowered(x)) > 40


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm(dims: int, relu: bool) -> None:
    torch.manual_seed(0)
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](6)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 6, *[5] * dims)
    model = nn.Sequential(norm, nn.ReLU() if relu else nn.Identity())
    assert_one_step(quantize_operator(model, x), "quantized::batch_norm", x)


BINARY = {
    "add": (lambda a, b: a + b, "quantized::add"),
    "add_relu": (lambda a, b: F.relu(a + b), "quantized::add"),
    "add_relu6": (lambda a, b: F.relu6(a + b), "quantized::add"),
    "mul": (lambda a, b: a * b, "quantized::mul"),
    "mul_relu": (lambda a, b: F.relu(a * b), "quantized::mul"),
    "cat": (lambda a, b: torch.cat([a, b], 1), "quantized::cat"),
    "cat_last": (lambda a, b: torch.cat([a, b, a], -1), "quantized::cat"),
    "cat_relu": (lambda a, b: F.relu(torch.cat([a, b], 1)), "quantized::cat_relu"),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    function, fused = BINARY[name]
    a = torch.randn(2, 6, 8, 8).contiguous(memory_format=layout)
    b = 3 * torch.randn(2, 6, 8, 8).contiguous(memory_format=layout)
    pair = quantize_operator(Apply(function), a, b)
    assert_one_step(pair, fused, a, b)


@pytest.mark.parametrize("operation", [torch.add, torch.mul])
@pytest.mark.parametrize("shape", [(2, 6, 1, 1), (6, 1, 1), (1, 1, 8, 8)], ids=str)
def test_broadcasting(operation: torch._ops.OpOverload, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 6, 8, 8), torch.randn(shape)
    pair = quantize_operator(Apply(operation), a, b)
    assert_one_step(pair, f"quantized::{operation.__name__}", a, b)
    a = a.contiguous(memory_format=torch.channels_last)
    assert_one_step(pair, f"quantized::{operation.__name__}", a, b)


MOVES = {
    "view": lambda x: x.view(x.size(0), -1, 4, 4),
    "reshape": lambda x: x.reshape(x.size(0), 4, -1, 4),
    "flatten_unflatten": lambda x: x.flatten(1).unflatten(1, (8, 4, 4)),
    "permute": lambda x: x.permute(0, 1, 3, 2),
    "transpose": lambda x: x.transpose(2, 3),
    "squeeze": lambda x: x.unsqueeze(2).squeeze(2),
    "slice": lambda x: x[:, 2:, ::2],
    "select": lambda x: x[:, :, 0].unsqueeze(3),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split([3, 5], 1)[1],
    "unbind": lambda x: x.unbind(2)[1].unsqueeze(2),
    "pad": lambda x: F.pad(x, [1, 2, 0, 1]),
    "upsample_nearest": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "shuffle_by_hand": lambda x: (
        x.view(x.size(0), 2, 4, 4, 4).transpose(1, 2).contiguous().view(x.size(0), -1, 4, 4)
    ),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "relu": F.relu,
    "expand": lambda x: x[:, :, :1].expand(-1, -1, 4, -1),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "flip": lambda x: x.flip(2),
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(),
}


class Between(nn.Module):
    """An operator between two convolutions of 8 channels."""

    def __init__(self, function, channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(channels, 4, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize("name", MOVES)
def test_data_movement_stays_in_integers(name: str) -> None:
    torch.manual_seed(0)
    function = MOVES[name]
    channels = function(torch.zeros(1, 8, 4, 4)).shape[1]
    model = Between(function, channels)
    x = torch.randn(3, 3, 4, 4)
    script = torch.jit.trace(model.eval(), x)
    prepared = jit_passes.prepare(script, target="stock")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x], progress=False))
    pair = Pair(reference, jit_passes.lower(reference))
    lowered = pair.lowered.graph
    dequantizes = [n for n in lowered.nodes() if n.kind() == "aten::dequantize"]
    assert len(dequantizes) == 1, "only at the end"
    quantizes = [n for n in lowered.nodes() if n.kind() == "aten::quantize_per_tensor"]
    assert len(quantizes) == 1, "only at the start"
    # Exact up to the first convolution's one step, which the second one may carry on.
    with torch.no_grad():
        expected, found = pair.reference(x), pair.lowered(x)
    assert (expected - found).abs().max() <= 2 * pair.scale


class Saturating(nn.Module):
    """Quantized results of all kinds, in front of what a large code would overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.linear = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        z = F.relu6(self.depthwise(self.second(y) + y))
        z = F.avg_pool2d(F.hardswish(torch.cat([z, y], 1)), 2)
        return self.linear(z.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_reduced_range_holds_beyond_calibration(engine: str) -> None:
    """7-bit codes stay 7-bit codes for inputs that are larger than those of calibration.

    Operators in a row that round ties by themselves are up to 3 steps apart at the end.
    """
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    target = Stock(engine, reduce_range=True)
    prepared = jit_passes.prepare(torch.jit.script(Saturating().eval()), target=target)
    jit_passes.calibrate(prepared, [x], progress=False)
    pair = Pair(jit_passes.convert(prepared), jit_passes.lower(jit_passes.convert(prepared)))
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        for factor in (1.0, 1.2, 2.0):
            expected, found = pair.reference(factor * x), pair.lowered(factor * x)
            assert (expected - found).abs().max().item() <= 3.01 * pair.scale
            for codes in codes_of(pair.lowered, factor * x):
                assert codes.max() <= 127
    finally:
        torch.backends.quantized.engine = before


def codes_of(lowered: torch.jit.ScriptModule, x: Tensor) -> list[Tensor]:
    """The operands of all quantized operators and of dequantize, recomputed one by one."""
    graph = lowered.graph.copy()
    wanted = {"quantized::conv2d", "quantized::add", "quantized::linear", "aten::dequantize"}
    values = {
        value.debugName(): value
        for node in graph.nodes()
        if node.kind() in wanted
        for value in node.inputs()
        if value.type().kind() == "TensorType"
    }
    while list(graph.outputs()):
        graph.eraseOutput(0)
    together = graph.appendNode(graph.create("prim::TupleConstruct", list(values.values()), 1))
    together.output().setType(torch._C.TupleType([value.type() for value in values.values()]))
    graph.registerOutput(together.output())
    found = torch._C._create_function_from_graph("codes", graph)(lowered._c, x)
    return [t.int_repr() for t in found if isinstance(t, Tensor) and t.is_quantized]
