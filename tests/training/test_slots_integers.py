"""Whole models that train in slots for integers alone: all other operators too are on integers."""

from __future__ import annotations

import copy
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphView, JitPassesError, JitPassesWarning, quantize_slots
from jit_passes.targets import FixedPoint
from tests.export.c.test_c import check
from tests.integer_oracle import Oracle
from tests.targets.fixed_point.test_fixed_point import ROUNDED, Watch, tabled
from tests.training.test_slots import RECIPE, assert_close_to, quantized

Model = torch.jit.ScriptModule
SHIFT = FixedPoint("shift")


def ends(rounding: str) -> list[str]:
    """Return the operators that quantize the input, and dequantize the last codes."""
    return ["mul", "nan_to_num", *ROUNDED[rounding], "clamp", "_to_copy", "mul"]


class Block(nn.Module):
    """A residual block of two convolutions, whose shortcut may be a convolution."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            norm = nn.BatchNorm2d(outside, affine=False)
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride), norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    """Stem, pool, two blocks, mean and linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(True))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 8, 2))
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.mean(self.blocks(self.pool(self.stem(x)))), 1))


class Inverted(nn.Module):
    """An inverted residual of MobileNetV2, and whether to add is an attribute."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.adds = inside == outside
        self.layers = nn.Sequential(
            nn.Conv2d(inside, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6(inplace=True),
            nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12), nn.ReLU6(),
            nn.Conv2d(12, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


class MobileNet(nn.Module):
    """Three inverted residuals, one without a sum, and a classifier with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Inverted(3, 4), Inverted(4, 4), Inverted(4, 4))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.blocks(x).mean([2, 3]))


class UNet(nn.Module):
    """A level: pool, nearest neighbours, and a concatenation with the operand of the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(6, 4, 1))
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.head(torch.cat((x, self.up(self.deep(F.max_pool2d(x, 2)))), 1))


class Mixed(nn.Module):
    """A layer and a sum read the input; functions, parts, products, a layer without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.plain = nn.Conv2d(3, 4, 1, bias=False)
        self.shared = nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.plain(self.first(x) + x))
        y = y + self.norm(self.shared(y))
        y = self.norm(self.shared(F.hardswish(y)))
        a, b = y[:, :2], y[:, 2:]
        c = F.avg_pool2d(y, 2).sigmoid()
        return torch.cat([b.flatten(1), (a * b).flatten(1), c.flatten(1)], 1)


class Head(nn.Module):
    """Batch norms behind linears that read matrices, with and without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.fc1, self.bn1 = nn.Linear(36, 8, bias=False), nn.BatchNorm1d(8)
        self.fc2, self.bn2 = nn.Linear(8, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(F.relu(self.conv(x)), 1)
        return self.bn2(self.fc2(F.relu(self.bn1(self.fc1(x)))))


class Dense(nn.Module):
    """Two layers of a DenseNet: batch norms ahead of convolutions, and behind a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(6, affine=False)])
        self.convs = nn.ModuleList([nn.Conv2d(n, 2, 3, padding=1, bias=False) for n in (4, 6)])
        self.last, self.fc, self.score = nn.BatchNorm2d(8), nn.Linear(8, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=False):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return self.score(self.fc(F.relu(self.last(x)).mean([2, 3])))


class Normal(nn.Module):
    """A linear whose weight has a norm of its own, and rows with a batch norm in front."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.rows = nn.Conv2d(3, 3, 1), nn.Conv1d(3, 4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.direction, self.length = nn.Parameter(torch.randn(5, 24)), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(F.relu(self.rows(self.norm(self.stem(x).mean(2)))), 1)
        weight = self.direction * self.length.reshape(5, 1)
        return F.linear(x, weight)


NETS: dict[str, Callable[[], nn.Module]] = {
    "dense": Dense,
    "normal": Normal,
    "resnet": ResNet,
    "mobilenet": MobileNet,
    "unet": UNet,
    "mixed": Mixed,
    "head": Head,
}


def data(seed: int, count: int = 4) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def settled(net: nn.Module) -> nn.Module:
    """Give batch norms statistics and parameters as if they had trained."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                nn.init.normal_(module.bias, std=0.2)
    return net


def scripted(name: str) -> Model:
    torch.manual_seed(0)
    net = settled(NETS[name]())
    if name == "unet":  # scripts have sizes of upsampling as lists that they change
        return torch.jit.trace(net.eval(), data(0))
    return torch.jit.script(net)


@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
def test_traced(name: str) -> None:
    """A trace in eval mode has the codes of the scripted model; dropout is off in it."""
    torch.manual_seed(0)
    net = settled(NETS[name]()).eval()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # scripts drop in training mode
    models = torch.jit.trace(net, data(0)), torch.jit.script(net)
    found = []
    for model in models:
        qat = quantize_slots(model, recipe="graffitist", target=SHIFT).train()
        with torch.no_grad():
            qat(data(0))
        found.append(jit_passes.lower(jit_passes.convert(qat.eval()))(data(1)))
    assert torch.equal(*found) and len(found[0].unique()) > 4


def trained(model: Model, target: FixedPoint = SHIFT, **options: Any) -> Model:
    """A model of a few steps, in eval mode."""
    qat = quantize_slots(model, target=target, **(options or {"recipe": "graffitist"})).train()
    optimizer = torch.optim.SGD(qat.parameters(), 0.01)
    for seed in range(3):
        optimizer.zero_grad()
        qat(data(seed)).square().mean().backward()
        optimizer.step()
    return qat.eval()


WAYS: dict[str, tuple[FixedPoint, dict[str, Any]]] = {
    "recipe": (SHIFT, {"recipe": "graffitist"}),
    "tqt": (SHIFT, {"recipe": "graffitist", "fake_quantizer": "tqt"}),
    "half_up": (FixedPoint("shift", "half_up"), {"recipe": "graffitist"}),
    "half_away": (
        FixedPoint("shift", "half_away"), {"recipe": "graffitist", "fake_quantizer": "tqt"},
    ),
    "truncate": (FixedPoint("shift", "truncate"), {"recipe": "graffitist"}),
    "truncate_tqt": (
        FixedPoint("shift", "truncate"), {"recipe": "graffitist", "fake_quantizer": "tqt"},
    ),
    "three": (SHIFT, {"input": 8, "weight": 8, "sum": 8}),
    "four": (SHIFT, {"input": 6, "weight": 5, "correlation": 14, "sum": 7}),
    "multiplier": (
        FixedPoint(), {"input": 8, "weight": 8, "correlation": 16, "bias": 16, "sum": 8},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETS)
def test_integers_alone(name: str, way: str, tmp_path: Path) -> None:
    """The oracle, TorchScript and C have equal codes; with powers of two the trained model too."""
    target, options = WAYS[way]
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)  # nothing stays in float
        qat = trained(scripted(name), target, **options)
        reference = jit_passes.convert(qat)
        lowered = jit_passes.lower(reference)
    x = data(9)
    found, expected = lowered(x), qat(x)
    assert torch.equal(found, Oracle(tabled(reference), target.rounding)(x))
    assert len(found.unique()) > 4
    assert torch.equal(reference(x), expected)
    if target.only_shift:
        assert torch.equal(found, expected)
        assert jit_passes.parity(qat, lowered, [x]).equal
        with Watch() as watch:
            lowered(x)
        assert watch.found == ends(target.rounding)
    if shutil.which("gcc"):
        jit_passes.export_c(lowered, tmp_path, x[:1], [x[1:2]])
        optimized = name == "mixed" or way == "recipe"  # each net and each way once
        check(tmp_path, found[:1].numel(), vectors=2, optimized=optimized)


def test_batch_norm_is_a_part_of_the_layer() -> None:
    """q8(q16(sum q8(w f) * q8(x)) + q16(shift)) in double, f = gamma / sqrt(var + eps)."""
    torch.manual_seed(1)
    net = settled(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)))
    qat = quantize_slots(torch.jit.script(net), recipe="graffitist", target=SHIFT).train()
    x = data(4)
    result = qat(x)
    conv, norm = (copy.deepcopy(part).double() for part in net)
    with torch.no_grad():
        factor = norm.weight / (norm.running_var + norm.eps).sqrt()
        shift = (conv.bias - norm.running_mean) * factor + norm.bias
        weight = conv.weight * factor[:, None, None, None]
        products = F.conv2d(
            quantized(x.double(), RECIPE["input"], -3), quantized(weight, RECIPE["weight"], 0)
        )
        total = quantized(products, RECIPE["correlation"], -3)
        total = total + quantized(shift, RECIPE["bias"], 0)[:, None, None]
        expected = quantized(total, RECIPE["sum"], -3)
    assert_close_to(result.detach(), expected, RECIPE)
    assert {key for key in qat.state_dict() if "_range" in key} == {
        f"0.{slot}_range" for slot in RECIPE
    }
    reference = jit_passes.convert(qat.eval())
    assert jit_passes.encodings_of(reference)["0.weight"].bits == 8


def test_batch_norm_that_is_a_layer() -> None:
    """q8(q16(q8(f) * q8(x)) + q16(beta - mean f)) in double; gradients are near those of floats."""
    torch.manual_seed(1)
    net = settled(nn.Sequential(nn.BatchNorm2d(3)))
    x = data(4)
    traced = torch.jit.trace(net.eval(), x)
    qat = quantize_slots(traced, recipe="graffitist", target=SHIFT).train()
    result = qat(x)
    probe = torch.randn(result.shape)
    gamma, beta = torch.autograd.grad((result * probe).sum(), [*net.parameters()])
    norm = copy.deepcopy(net[0]).double()
    (norm(x.double()) * probe).sum().backward()
    for found, wanted in ((gamma, norm.weight.grad), (beta, norm.bias.grad)):
        assert (found - wanted).abs().max() <= 0.05 * wanted.abs().max()  # of 8 bits
    with torch.no_grad():
        factor = norm.weight / (norm.running_var + norm.eps).sqrt()
        weight = quantized(factor, RECIPE["weight"], 0)[:, None, None]
        products = quantized(x.double(), RECIPE["input"], -3) * weight
        total = quantized(products, RECIPE["correlation"], -3)
        shift = norm.bias - norm.running_mean * factor
        total = total + quantized(shift, RECIPE["bias"], 0)[:, None, None]
        expected = quantized(total, RECIPE["sum"], -3)
    assert_close_to(result.detach(), expected, RECIPE)
    assert_close_to(qat.double()(x.double()).detach(), expected, RECIPE)


class InFront(nn.Module):
    """A batch norm of the model's input, or of a reshaped one, that a convolution reads."""

    def __init__(self, reshapes: bool, pools: bool) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 6, 3)
        self.reshapes = reshapes
        self.between = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)) if pools else nn.Identity()
        # Nothing says of the passes' own batch norm that it writes to no other tensor.
        self.fc, self.last = nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        if self.reshapes:
            x = x.reshape(-1, 3, 8, 8)
        return self.last(self.fc(self.conv(self.between(self.norm(x))).mean((2, 3))))


@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("reshapes", [False, True])
@pytest.mark.parametrize("traces", [False, True])
def test_batch_norm_of_the_input(traces: bool, reshapes: bool, pools: bool) -> None:
    """The convolution or the pool that reads it says how many axes it has; nothing is in float."""
    torch.manual_seed(1)
    net = settled(InFront(reshapes, pools)).eval()
    model = torch.jit.trace(net, data(0)) if traces else torch.jit.script(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error", JitPassesWarning)
        qat = trained(model)
        lowered = jit_passes.lower(jit_passes.convert(qat))
    x = data(1)
    assert jit_passes.parity(qat, lowered, [x]).equal
    found = lowered(x)
    assert torch.equal(found, qat(x)) and len(found.unique()) > 4
    with Watch() as watch:
        lowered(x)
    # A script asks a view of the input how many axes it has.
    assert [name for name in watch.found if name != "view"] == ends("half_even")


class Optionals(nn.Module):
    """A batch norm of buffers that a script has as `Tensor?`."""

    __annotations__ = dict.fromkeys(("mean", "variance"), Optional[Tensor])  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, -0.2, 0.3]))
        self.register_buffer("variance", torch.tensor([0.5, 1.0, 2.0]))
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.batch_norm(x, self.mean, self.variance))


def test_statistics_that_may_be_none() -> None:
    torch.manual_seed(1)
    qat = trained(torch.jit.script(Optionals()))
    lowered, x = jit_passes.lower(jit_passes.convert(qat)), data(1)
    with Watch() as watch:
        found = lowered(x)
    assert torch.equal(found, qat(x)) and len(found.unique()) > 4
    assert watch.found == ends("half_even")


def test_batch_norms_train_with_statistics_that_stand_still() -> None:
    """With 16 bits gradients are close to those of the float model in eval mode."""
    torch.manual_seed(2)
    net = settled(ResNet())
    float_net = copy.deepcopy(net).eval()
    slots = dict.fromkeys(RECIPE, RECIPE["correlation"])
    wide = FixedPoint("shift", accumulator_bits=48)
    qat = quantize_slots(torch.jit.script(net), target=wide, **slots).train()
    before = {name: value.clone() for name, value in net.named_buffers()}
    qat(data(0))  # ranges begin
    x, probe = data(0), torch.randn(4, 5)
    qat.zero_grad()
    (qat(x) * probe).sum().backward()
    (float_net(x) * probe).sum().backward()
    found = dict(net.named_parameters())
    for name, parameter in float_net.named_parameters():
        largest = parameter.grad.abs().max()
        assert (found[name].grad - parameter.grad).abs().max() <= 0.02 * largest + 1e-5, name
        assert found[name].grad.any(), name
    statistics = [name for name in before if "running" in name]
    assert len(statistics) == 12
    assert all(torch.equal(dict(net.named_buffers())[name], before[name]) for name in statistics)


def test_where() -> None:
    """Behind layers that are not chosen, batch norms train as ever, and operators stay in float."""
    model = scripted("resnet")
    qat = quantize_slots(model, recipe="graffitist", target=SHIFT, where="blocks.1").train()
    before = {name: value.clone() for name, value in qat.named_buffers()}
    qat(data(0))
    moved = {
        name
        for name, value in qat.named_buffers()
        if "running_mean" in name and not torch.equal(value, before[name])
    }
    assert moved == {f"{name}.running_mean" for name in ("stem.1", "blocks.0.bn1", "blocks.0.bn2")}
    kinds = [node.kind for node in GraphView.of(qat._c).nodes]
    assert kinds.count("aten::batch_norm") == 3
    rows = {row.name: row for row in jit_passes.coverage(qat)}
    assert rows["blocks.0.conv1:correlation"].reason == "its module was not chosen"
    assert rows["blocks.1.conv1:correlation"].precision == "w8a8"
    x = data(5)
    reference = jit_passes.convert(qat.eval())
    assert torch.equal(reference(x), qat(x))


def test_module_by_module() -> None:
    """A second call takes other modules; sums between both become integers too."""
    first = quantize_slots(
        scripted("resnet"), recipe="graffitist", target=SHIFT, where=["stem", "blocks"]
    )
    qat = trained(first, recipe="graffitist", where="fc")
    reference = jit_passes.convert(qat)
    lowered = jit_passes.lower(reference)
    x = data(6)
    assert torch.equal(lowered(x), qat(x))
    assert all(row.dtype == "int8" for row in jit_passes.coverage(lowered))
    with Watch() as watch:
        lowered(x)
    assert watch.found == ends("half_even")


def places(model: Model) -> list[str]:
    """Names of the values that are quantized."""
    kinds = "jit_passes::fake_quantize"
    nodes = [node for node in GraphView.of(model._c).nodes if node.kind.startswith(kinds)]
    return [str(node.operand("name").constant) for node in nodes]


def test_what_one_layer_reads_is_rounded_once() -> None:
    """A mean has the place of the linear behind it; a sum that others read has its own."""
    found = places(quantize_slots(scripted("resnet"), recipe="graffitist", target=SHIFT))
    others = [name for name in found if not re.search(r":(correlation|add_bias)(#\d+)? ", name)]
    # The pooled relu of the stem and the first sum have two readers each; the last one has a mean.
    assert others == ["stem.2:relu", "blocks.0.relu:relu#1", "blocks.1.relu:relu#1"]
    assert found.count("fc:correlation input") == 1


def test_activations_are_as_the_input_slot_says() -> None:
    """Other results have its bits; its fixed range is that of the layers' inputs alone."""
    four = jit_passes.quantizer.TensorOptions(bits=4, scheme="power_of_two", range=(-4.0, 3.5))
    model = scripted("resnet")
    qat = trained(model, input=four, weight=8, correlation=16, bias=16, sum=8)
    reference = jit_passes.convert(qat)
    found = {one.name: one for one in jit_passes.encodings_of(reference)}
    assert found["blocks.0.relu:relu#1"].bits == 4
    assert found["blocks.0.relu:relu#1"].scale[0] != 0.5
    assert found["stem.0:add_bias"].bits == 8
    x = data(7)
    assert torch.equal(jit_passes.lower(reference)(x), qat(x))


def test_bias_without_a_slot() -> None:
    """The bias is in steps of the sum of products, input scale * weight scale, int32."""
    qat = trained(scripted("resnet"), input=8, weight=8, sum=8)
    reference = jit_passes.convert(qat)
    found = {one.name: one for one in jit_passes.encodings_of(reference)}
    bias = found["fc.bias"]
    steps = found["flatten"].scale[0] * found["fc.weight"].scale[0]
    assert bias.scale[0] == steps and bias.bits == 32


def test_from_a_file(tmp_path: Path) -> None:
    """A model that was saved between two steps converts to the codes of the one that was not."""
    qat = trained(scripted("mobilenet"))
    qat.save(str(tmp_path / "qat.pt"))
    loaded = torch.jit.load(str(tmp_path / "qat.pt")).eval()
    x = data(8)
    found = jit_passes.lower(jit_passes.convert(loaded))(x)
    assert torch.equal(found, jit_passes.lower(jit_passes.convert(qat))(x))
    assert torch.equal(found, qat(x))


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "unet"])
def test_engines_agree(name: str) -> None:
    """With powers of two, on all values that they show; `exactness` says so ahead."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    reference = jit_passes.convert(trained(scripted(name)))
    engines = ["fixed_point", "onnxruntime", "onnxruntime_optimized"]
    found = jit_passes.conformance(reference, [data(11)], engines)
    assert found.equal and not found.missing, found
    told = jit_passes.exactness(reference, data(1))
    assert told.exact and told.values > 10


def test_engines_agree_where_codes_are_moved() -> None:
    """ONNX Runtime's optimization moves quantize over the flatten of a linear on three axes."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    reference = jit_passes.convert(trained(torch.jit.script(nn.Linear(8, 5))))
    found = jit_passes.conformance(reference, [data(12)[0]], ["onnxruntime_optimized"])
    assert found.equal and not found.missing, found


class Floating(nn.Module):
    """Batch norms without statistics, and a loop, after a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 1)
        norms = (nn.BatchNorm2d(3, track_running_stats=False) for _ in range(6))
        self.norms = nn.ModuleList(norms)
        self.convs = nn.ModuleList([nn.Conv2d(3, 3, 1) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=False):
            x = x + conv(F.relu(norm(x)))
        for _ in range(x.size(2)):
            x = self.stem(x)
        return x


def test_all_that_stays_in_float_is_told() -> None:
    """No report has batch norms and loops, so the warning leaves none of them out."""
    with pytest.warns(JitPassesWarning, match="stay in float") as caught:
        quantize_slots(torch.jit.script(Floating()), recipe="graffitist", target=SHIFT)
    (text,) = [str(w.message) for w in caught if w.category is JitPassesWarning]
    _, *rows, end = text.splitlines()
    reason = "it is neither a layer nor part of one: a layer needs running statistics, and 3"
    for number in range(6):
        assert any(row.startswith(f"  norms.{number}:batch_norm: {reason}") for row in rows)
    assert "  Loop: values leave loops as floats: trace the model" in rows
    assert len(rows) == 7
    assert end == "change the model or the slots, or leave modules out with `where`"


@pytest.mark.parametrize("where", ["*", "stem"])
def test_quantized_already(where: str) -> None:
    first = quantize_slots(scripted("resnet"), recipe="graffitist", target=SHIFT)
    with pytest.raises(JitPassesError, match=r"'stem.0:correlation' \(.*is quantized already: sta"):
        quantize_slots(first, recipe="graffitist", target=SHIFT, where=where)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_batch_norms_of_another_dtype(dtype: torch.dtype) -> None:
    """The weight that has the batch norm in it is of the weight's dtype, and is refused for it."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(dtype))
    name = str(dtype).removeprefix("torch.")
    message = f"weight is {name}, not float32: cast the model with model.float"
    with pytest.raises(JitPassesError, match=message):
        quantize_slots(model, recipe="graffitist", target=SHIFT)


def test_the_way_to_c_keeps_what_was_learnt(tmp_path: Path) -> None:
    """For a model that is not lowered yet, the message names the stages that are left."""
    qat = trained(scripted("mobilenet"))
    with pytest.raises(JitPassesError, match=r"call jit_passes.lower\(jit_passes.convert\(model"):
        jit_passes.export_c(qat, tmp_path, data(1)[:1])
    with pytest.raises(JitPassesError, match=r"call jit_passes.lower\(model\) first"):
        jit_passes.export_c(jit_passes.convert(qat), tmp_path, data(1)[:1])
    assert not list(tmp_path.iterdir())


class Several(nn.Module):
    """Results in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.conv(x)
        return {"x": x, "y": F.relu(x)}


class Decided(nn.Module):
    """A class next to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x)
        return x, x.argmax(1)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Several, "'DictConstruct'.*: results are a tensor or a tuple of tensors"),
        (Decided, r"'argmax' \(.*: it is a result of the model, and computed in float"),
    ],
)
@pytest.mark.filterwarnings("ignore:the target cannot")
def test_results_that_c_does_not_give(
    net: Callable[[], nn.Module], message: str, tmp_path: Path
) -> None:
    qat = quantize_slots(torch.jit.script(net()), recipe="graffitist", target=SHIFT).train()
    qat(data(0))
    lowered = jit_passes.lower(jit_passes.convert(qat.eval()))
    with pytest.raises(JitPassesError, match=message):
        jit_passes.export_c(lowered, tmp_path, data(1)[:1])
