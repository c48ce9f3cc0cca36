"""Inputs that are quantized as the model runs: reference, lowerings, and several modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.graph.view import GraphView
from jit_passes.quantizer import (
    Annotations,
    BackendQuantizer,
    LayerOptions,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)
from jit_passes.targets import Reference, Stock
from tests.codes import codes_of
from tests.compare import leaves
from tests.outlying import WORDS, outlying
from tests.processes import run_fresh
from tests.processor import VNNI, bits_here, needs_vnni
from tests.quantizing import seeded

AVAILABLE = torch.backends.quantized.supported_engines
ENGINES = [e for e in ("x86", "fbgemm", "onednn", "qnnpack") if e in AVAILABLE]
TOLERANCE = 2e-6  # of the largest result: sums of products are rounded to float32 in another order
# A number on the border of two codes may then get the other one in the next operator.
BEHIND_OTHERS = 0.02


class Net(nn.Module):
    """Linears that read one value, one with a relu, one without a bias, and a constant matrix."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = nn.Linear(width, 20)
        self.second = nn.Linear(width, 20, bias=False)
        self.last = nn.Linear(20, 7)
        self.matrix = nn.Parameter(torch.randn(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., 5]."""
        hidden = torch.relu(self.first(x)) + self.second(x)
        return torch.matmul(self.last(hidden), self.matrix)


class Parallel(nn.Module):
    """None of these reads what another has computed: nothing is rounded another way behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 20), nn.Linear(12, 20, bias=False)])
        self.matrix = nn.Parameter(torch.randn(12, 20))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., 20]."""
        total = torch.matmul(x, self.matrix)
        for layer in self.layers:
            total = total + torch.relu(layer(x))
        return total


class Mixed(nn.Module):
    """A convolution, and linears behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, 4]."""
        pooled = torch.relu(self.conv(x)).mean([2, 3])
        return self.head(torch.relu(self.body(pooled)))


def script(model: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.script(model.eval())


def reference_of(model: nn.Module, target: Any = "reference", **options: Any) -> Any:
    return jit_passes.convert(jit_passes.prepare(script(model), target=target, **options))


def close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.shape == wanted.shape
    if wanted.numel():
        found, wanted = found.detach(), wanted.detach()
        error = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max()
        assert float(error) <= tolerance


def kinds(model: torch.jit.ScriptModule, start: str = "") -> list[str]:
    return [node.kind for node in GraphView.of(model).nodes if node.kind.startswith(start)]


def by_hand(x: Tensor, layer: nn.Linear, tokenwise: bool, symmetric: bool) -> Tensor:
    """A linear in the mode dynamic, in double, one number at a time where it is chosen."""

    def codes(row: Tensor) -> tuple[Tensor, float, int]:
        low, high = min(float(row.min()), 0.0), max(float(row.max()), 0.0)
        span = 2 * max(-low, high) if symmetric else high - low
        scale = float(torch.tensor(span / 255, dtype=torch.float32))
        zero = 128 if symmetric else -round(low / scale)
        inverse = float(1 / torch.tensor(scale, dtype=torch.float32))  # as kernels multiply by it
        return codes_of(row, inverse, zero).double().clamp(0, 255), scale, zero

    weight = layer.weight.detach().double()
    steps = (weight.abs().amax(1) * 2 / 254).float().double()
    integers = (weight / steps[:, None]).round().clamp(-127, 127)
    rows = x.reshape(-1, x.shape[-1])
    found = []
    for row in rows if tokenwise else [rows]:
        q, scale, zero = codes(row)
        found.append(torch.atleast_2d((q - zero) @ integers.T * scale * steps))
    total = torch.cat(found) + layer.bias.detach().double()
    return total.reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize("tokenwise", [False, True])
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_the_reference_by_hand(tokenwise: bool, scheme: str) -> None:
    layer = seeded(lambda: nn.Linear(33, 10))
    options = {"input": {"tokenwise": tokenwise, "scheme": scheme}}
    config = {"version": 1, "global": {"mode": "dynamic", **options}}
    reference = reference_of(layer, config=config)
    x = 3 * torch.randn(4, 6, 33) + 0.5
    assert isinstance(layer, nn.Linear)
    close(reference(x), by_hand(x, layer, tokenwise, scheme == "symmetric"))


KERNELS = [
    pytest.param(engine, reduced, marks=() if reduced or engine == "qnnpack" else needs_vnni)
    for engine in ENGINES
    for reduced in ((False,) if engine == "qnnpack" else (False, True))  # which it ignores
]


@pytest.mark.parametrize(("engine", "reduce_range"), KERNELS)
def test_lowered_computes_the_reference(engine: str, reduce_range: bool) -> None:
    """Shapes of 1 to 4 axes, of no batch and of none at all, and numbers of any size."""
    target = Stock(engine=engine, reduce_range=reduce_range)
    reference = reference_of(seeded(Parallel), target, mode="dynamic")
    lowered = jit_passes.lower(reference)
    assert len(kinds(lowered, "quantized::linear")) == 3
    assert not kinds(lowered, "aten::linear") and not kinds(lowered, "jit_passes::")
    generator = torch.Generator().manual_seed(1)
    shapes = [(12,), (1, 12), (9, 12), (0, 12), (3, 5, 12), (2, 3, 4, 12)]
    for shape in shapes:
        for size in (1.0, 1e-3, 1e4):
            x = size * torch.randn(shape, generator=generator) + size
            close(lowered(x), reference(x))


def test_a_relu_is_fused() -> None:
    lowered = jit_passes.quantize_script(script(seeded(Net)), mode="dynamic", target="stock")
    fused = kinds(lowered, "quantized::")
    assert fused.count("quantized::linear_relu_dynamic") == 1
    assert fused.count("quantized::linear_dynamic") == 3
    assert "aten::relu" not in kinds(lowered)


@pytest.mark.parametrize("reduce_range", [False, True])
def test_as_pytorch_computes(reduce_range: bool) -> None:
    """To the bit what PyTorch's operator gives for the same integers."""
    layer = seeded(lambda: nn.Linear(12, 20))
    assert isinstance(layer, nn.Linear)
    target = Stock(engine=torch.backends.quantized.engine, reduce_range=reduce_range)
    ours = jit_passes.quantize_script(script(layer), mode="dynamic", target=target)
    weight = layer.weight.detach()
    scales = (weight.abs().amax(1).double() * 2 / 254).float().double()
    integers = torch.quantize_per_channel(weight, scales, torch.zeros(20).long(), 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(integers, layer.bias.detach())
    for rows in (1, 7, 64):
        x = torch.randn(rows, 12) + 0.3
        assert torch.equal(ours(x), torch.ops.quantized.linear_dynamic(x, packed, reduce_range))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
def test_as_good_as_quantize_dynamic() -> None:
    """Nearer to float than PyTorch's own workflow: it has 7 bits, and weights per tensor."""
    model = seeded(lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7)))
    rows = seeded(lambda: nn.Linear(12, 20))
    with torch.no_grad():
        rows.weight.mul_(torch.logspace(0, -2, 20)[:, None])  # one scale is too coarse for most
        rows.bias.zero_()
    x = torch.randn(200, 12)
    # With 7 bits here too, and rows of one size, nothing but the luck of rounding is between them.
    for net, share in ((rows, 0.1), (model, 0.5 if VNNI else 1.05)):
        theirs = torch.ao.quantization.quantize_dynamic(nn.Sequential(net))
        ours = jit_passes.quantize_script(script(net), mode="dynamic", target="stock")
        with torch.no_grad():
            wanted = net(x)
            size = wanted.square().mean(0)
            errors = [float(((f(x) - wanted).square() / size).mean()) for f in (ours, theirs)]
        assert errors[0] < share * errors[1]


def test_one_choice_for_all_readers() -> None:
    """Operators that read one value share its parameters in the reference model."""
    reference = reference_of(seeded(Net), mode="dynamic")
    assert len(kinds(reference, "aten::linear")) == 4
    assert len(kinds(reference, "jit_passes::choose_qparams")) == 3
    prepared = jit_passes.prepare(script(seeded(Net)), mode="dynamic")
    assert len(kinds(prepared, "jit_passes::observe_nothing")) == 3
    x = torch.randn(5, 12)
    # Weights that are folded lie in memory otherwise, and some processors then add up otherwise.
    torch.testing.assert_close(prepared(x), seeded(Net)(x), rtol=0, atol=1e-6)


def test_no_data_is_asked_for() -> None:
    model = script(seeded(Net))
    x = torch.randn(16, 12)
    quantized = jit_passes.quantize_script(model, mode="dynamic")
    close(quantized(x), model(x), 0.03)
    with pytest.raises(JitPassesError, match="ranges come from calibration data"):
        jit_passes.quantize_script(model, mode="static")


def test_a_file_needs_torch_alone(tmp_path: Path) -> None:
    """For stock."""
    model, x = script(seeded(Net)), torch.randn(6, 12)
    lowered = jit_passes.quantize_script(model, mode="dynamic", target="stock")
    assert not jit_passes.coverage(lowered).needs_package
    assert "`import jit_passes`" not in str(jit_passes.coverage(lowered))
    file = str(tmp_path / "stock.pt")
    lowered.save(file)
    torch.save([{"file": file, "method": "forward", "args": (x,)}], tmp_path / "manifest.pt")
    run_fresh(tmp_path / "manifest.pt")
    ((loaded,), wanted) = torch.load(tmp_path / "outputs.pt"), list(leaves(lowered(x)))
    assert [name for name, _ in loaded] == [name for name, _ in wanted]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(loaded, wanted, strict=True))


MIXED = {"version": 1, "global": {"mode": "dynamic"},
         "rules": [{"op": "conv2d", "mode": "static"}]}  # fmt: skip


@pytest.mark.parametrize("target", ["stock", "x86", "reference"])
def test_modes_mix(target: str) -> None:
    """Convolutions with parameters from data, linears without, in one model."""
    model = script(seeded(Mixed))
    data = [torch.randn(4, 3, 8, 8) for _ in range(4)]
    with pytest.raises(JitPassesError, match="ranges come from calibration data"):
        jit_passes.quantize_script(model, config=MIXED, target=target)
    prepared = jit_passes.calibrate(jit_passes.prepare(model, config=MIXED, target=target), data)
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    rows = {row.name.split(":")[0]: row for row in jit_passes.coverage(lowered)}
    modes = {"conv": "static", "body": "dynamic", "head": "dynamic"}
    assert {name: row.mode for name, row in rows.items()} == modes
    bits = bits_here("w8a8") if target == "stock" else "w8a8"
    assert {row.bits for row in rows.values()} == {bits}
    x = data[0]
    close(reference(x), model(x), 0.05)
    close(lowered(x), reference(x), BEHIND_OTHERS)
    if target == "x86":
        assert not kinds(lowered, "aten::linear") and not kinds(lowered, "quantized::")
    elif target == "stock":
        names = kinds(lowered, "quantized::linear")
        assert names == ["quantized::linear_relu_dynamic", "quantized::linear_dynamic"]


def test_coverage_says_the_mode() -> None:
    model = script(seeded(Mixed))
    config = {"version": 1, "rules": [{"module": "body", "mode": "dynamic"},
                                      {"module": "head", "input": {"dtype": "float"}}]}  # fmt: skip
    prepared = jit_passes.prepare(model, config=config, target="reference")
    lines = str(jit_passes.coverage(prepared)).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["conv:conv2d", "conv2d", "w8a8", "static"],
        ["body:linear", "linear", "w8a8", "dynamic"],
        ["head:linear", "linear", "w8", "only", "weight_only"],
    ]


def test_what_a_target_cannot(recwarn: pytest.WarningsRecorder) -> None:
    """With a mode for all, others stay in float; what a rule asks for is told."""
    model = script(seeded(Mixed))
    lowered = jit_passes.quantize_script(model, mode="dynamic", target="stock")
    reasons = {row.name: row.reason for row in jit_passes.coverage(lowered)}
    assert reasons["conv:conv2d"] == "the target has no dynamic form of it"
    assert not any("cannot do" in str(w.message) for w in recwarn)
    config = {"version": 1, "rules": [{"op": "conv2d", "mode": "dynamic"}]}
    with pytest.warns(jit_passes.JitPassesWarning, match=r"conv:conv2d: .*no dynamic form of it"):
        jit_passes.prepare(model, config=config, target="stock")
    reference = reference_of(seeded(Mixed), mode="dynamic")
    x = torch.randn(2, 3, 8, 8)
    assert len(kinds(reference, "jit_passes::choose_qparams")) == 3
    close(reference(x), model(x), 0.05)


def test_the_dynamic_convolution_of_pytorch() -> None:
    """Its result has the grid of its input: 255 steps of that, beyond which it is cut off.

    So the target stock has none. One that PyTorch mends belongs into its capability.
    """
    x, weight = torch.full((1, 4, 1, 1), 1.0), torch.ones(1, 4, 1, 1)
    codes = torch.quantize_per_tensor(weight, 1 / 127, 0, torch.qint8)
    ones = [1, 1]
    packed = torch.ops.quantized.conv2d_prepack(codes, None, ones, [0, 0], ones, 1)
    found = torch.ops.quantized.conv2d_dynamic(x, packed, False)
    assert nn.functional.conv2d(x, weight).item() == 4 and abs(found.item() - 1) < 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "dynamik"}, "weight_only, not 'dynamik': did you mean 'dynamic'"),
        ({"mode": "dynamic", "config": {"version": 1, "rules": [{"op": "linear", "mode": 3}]}},
         "mode is one of auto, static, dynamic, weight_only, not '3'"),
        ({"config": {"version": 1, "rules": [
            {"op": "linear", "mode": "dynamic", "input": {"range": [0, 1]}}]}},
         "mode dynamic takes the range that the input has, so range has no meaning"),
        ({"config": {"version": 1, "rules": [
            {"op": "linear", "mode": "weight_only", "input": {"dtype": "int8"}}]}},
         "mode weight_only leaves all but the weight in float, so input has no meaning: drop it"),
        ({"config": {"version": 1, "global": {"input": {"tokenwise": True}}}},
         "tokenwise is for inputs in the mode dynamic"),
    ],
)  # fmt: skip
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        jit_passes.prepare(script(seeded(Net)), target="reference", **options)


def test_kernels_have_one_formula() -> None:
    """Tokens, symmetric ranges and fewer bits are not in PyTorch's kernels: float, and said so."""
    model = script(seeded(Net))
    for option, message in (
        ({"tokenwise": True}, "per_token_affine, and the target has per_tensor_affine"),
        ({"scheme": "symmetric"}, "per_tensor_symmetric, and the target has per_tensor_affine"),
        ({"bits": 4}, r"uint8 \[0, 15\], and the target has uint8 \[0, 255\]"),
    ):
        config = {"version": 1, "global": {"mode": "dynamic", "input": option}}
        with pytest.warns(jit_passes.JitPassesWarning, match=message):
            prepared = jit_passes.prepare(model, config=config, target=Stock(reduce_range=False))
        assert not jit_passes.coverage(prepared).int8


def test_rules_without_effect() -> None:
    """A mode for what has no weights, and an output that stays in float."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + x

    for rule, message in (
        ({"op": "add", "mode": "dynamic"}, "has no weights, so it follows its neighbours"),
        ({"op": "linear", "output": {"bits": 4}}, "has no output to quantize"),
    ):
        config = {"version": 1, "global": {"mode": "dynamic"}, "rules": [rule]}
        with pytest.warns(jit_passes.JitPassesWarning, match=message):
            jit_passes.prepare(script(Sum()), config=config, target="reference")


def test_methods_of_a_quantizer() -> None:
    """Rules as calls, and a mode for all beside them."""
    quantizer = BackendQuantizer(Reference()).set_op("linear", LayerOptions(mode="dynamic"))
    prepared = jit_passes.prepare(script(seeded(Mixed)), quantizer=quantizer)
    assert [row.mode for row in jit_passes.coverage(prepared)] == ["static", "dynamic", "dynamic"]

    class Other(Quantizer):
        def annotate(self, graph: GraphView) -> Annotations:
            return Annotations()

    with pytest.raises(JitPassesError, match="a mode changes what a backend's quantizer does"):
        jit_passes.prepare(script(seeded(Mixed)), quantizer=Other(), mode="dynamic")


class Annotating(Quantizer):
    """Annotates the input of the only linear, and what else a function says."""

    def __init__(self, more: Any) -> None:
        self.more = more

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        (node,) = [node for node in graph.nodes if node.kind == "aten::linear"]
        spec = QuantizationSpec("int8", qscheme="per_token_symmetric", is_dynamic=True)
        operands = {node.inputs[0]: spec, **self.more(node, spec)}
        annotations[node] = QuantizationAnnotation(operands)
        return annotations


class Attend(nn.Module):
    """Attention without a mask, and a linear behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, tokens, 16]."""
        operator = nn.functional.scaled_dot_product_attention
        return self.out(operator(self.q(x), self.k(x), self.v(x)))


@pytest.mark.parametrize(
    "model", [Attend, lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)]
)
def test_attention_stays_fused(model: Any) -> None:
    """All linears become dynamic, and attention stays one operator in float, for stock."""
    layer = seeded(model)
    lowered = jit_passes.quantize_script(script(layer), mode="dynamic", target="stock")
    assert [row.mode for row in jit_passes.coverage(lowered).int8] == ["dynamic"] * 4
    assert len(kinds(lowered, "quantized::linear")) == 4
    assert kinds(lowered, "aten::scaled_dot_product_attention") and not kinds(lowered, "aten::soft")
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        close(lowered(x), layer(x), 0.03)


def test_annotations() -> None:
    """A quantizer of one's own says is_dynamic, as PyTorch's do."""
    layer = seeded(lambda: nn.Linear(8, 3))
    quantizer = Annotating(lambda node, spec: {})
    prepared = jit_passes.prepare(script(layer), quantizer=quantizer, target="reference")
    x = torch.randn(4, 8)
    scale = x.abs().amax(1, keepdim=True) * 2 / 255
    wanted = nn.functional.linear((x / scale).round().clamp(-128, 127) * scale, *layer.parameters())
    close(jit_passes.convert(prepared)(x), wanted)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda node, spec: {node.inputs[1]: spec}, "is a constant, and is_dynamic=True is for"),
        (lambda node, spec: {node.inputs[2]: SharedQuantizationSpec((node.inputs[0], node))},
         "is a constant, and is_dynamic=True is for"),
    ],
)  # fmt: skip
def test_refused_annotations(more: Any, message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        jit_passes.prepare(script(nn.Linear(8, 3)), quantizer=Annotating(more), target="reference")


def test_control_flow_and_writes() -> None:
    """In a branch, in a loop, and of a value that is written in between."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.other = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            for _ in range(3):
                y = self.other(y)
            y = self.layer(y) if bool(y.sum() > 0) else self.other(y) * 2
            z = y.clone()
            first = self.layer(z)
            z.add_(first)
            return self.layer(z)

    model = seeded(Model)
    reference = reference_of(model, "stock", mode="dynamic")
    lowered = jit_passes.lower(reference)
    assert not kinds(lowered, "aten::linear")
    for seed in range(8):
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(seed))
        close(lowered(x), reference(x), BEHIND_OTHERS)
        close(reference(x), model(x), 0.1)


def test_training() -> None:
    """Inputs are fake-quantized as each batch has them, weights train, and the result converts."""
    torch.manual_seed(0)
    model = script(seeded(Net)).train()
    qat = jit_passes.prepare_qat(model, mode="dynamic", target="stock")
    x, wanted = torch.randn(64, 12), torch.randn(64, 5)
    scales = jit_passes.quantization_parameters(qat)
    optimizer = torch.optim.Adam(
        [{"params": jit_passes.model_parameters(qat)}, {"params": scales, "lr": 1e-5}], 1e-2
    )
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (qat(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert not any("input_scale" in name for name, _ in qat.named_parameters())
    qat.eval()
    reference = jit_passes.convert(qat)
    close(reference(x), qat(x), 1e-5)
    close(jit_passes.lower(reference)(x), reference(x), BEHIND_OTHERS)


def encoder() -> tuple[nn.Module, list[Tensor], Tensor]:
    """Return an encoder, batches to calibrate with, and others."""
    model = outlying(100.0, 0.3)
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, WORDS, (4, 24), generator=generator) for _ in range(8)]
    return model, tokens, torch.randint(0, WORDS, (32, 24), generator=generator)


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({"mode": "static", "smooth": None}, 0.0, 0.95),
        ({"mode": "static"}, 0.999, 1.0),
        ({"mode": "dynamic", "smooth": None}, 0.993, 1.0),
        ({"mode": "dynamic"}, 0.999, 1.0),
        ({"mode": "dynamic", "target": "stock"}, 0.999, 1.0),
        ({"mode": "dynamic", "config": {"version": 1, "global": {"input": {"tokenwise": True}}}},
         0.998, 1.0),
    ],
)  # fmt: skip
def test_outlying_dimensions(options: dict[str, Any], least: float, most: float) -> None:
    """Few dimensions with large numbers spoil one range for all data, and not one for each value.

    The cosine to float of the worst of 32 sentences.
    """
    model, data, tokens = encoder()
    given = data if options["mode"] == "static" else None
    options = {"target": "reference", **options}
    quantized = jit_passes.quantize_script(script(model), given, **options)
    with torch.no_grad():
        cosines = nn.functional.cosine_similarity(quantized(tokens), model(tokens))
    assert least <= float(cosines.min()) <= most


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_behind_a_static_operator(target: str) -> None:
    """Both read the same dequantized value, and the operator is fused."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4)).eval()
    config = {"version": 1, "rules": [{"module": ["2", "3"], "mode": "dynamic"}]}
    x = torch.randn(64, 16)
    quantized = jit_passes.quantize_script(script(model), [x], target=target, config=config)
    assert [row.mode for row in jit_passes.coverage(quantized)] == ["static", "dynamic", "dynamic"]
    if target == "stock":
        assert str(quantized.inlined_graph).count("quantized::linear_dynamic") == 2
    with torch.no_grad():
        noise = (quantized(x) - model(x)).square().sum()
        assert 10 * torch.log10(model(x).square().sum() / noise) > 30


def test_codes_that_the_dtype_does_not_hold() -> None:
    q = torch.ops.jit_passes.quantize_dynamic
    one = torch.ones(())
    with pytest.raises(RuntimeError, match="does not fit"):
        q(torch.ones(3), one, one.int(), -128, 127, torch.uint8)
