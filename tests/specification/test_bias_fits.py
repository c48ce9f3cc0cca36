"""Biases fit their integers, however small the weights or inputs beside them are."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.view import GraphView
from jit_passes.specification.bias import fitting_scales
from jit_passes.specification.parameters import QParams
from tests.compare import sqnr
from tests.processor import VNNI
from tests.seeds import seeds

TARGETS = ("x86", "stock", "reference")
LARGEST = 2**31 - 1
ROOM = LARGEST / 2 * (1 + 2**-20)  # half of all codes; scales are rounded to float32
DRAWN = seeds(12, few=4)


class Gate(nn.Module):
    """A sigmoid in front, and a batch norm behind whose gamma is 0 in one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.c = nn.Conv2d(8, 8, 1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        with torch.no_grad():
            self.bn.weight[2], self.bn.bias[2] = 0.0, 3.0
            self.bn.running_mean.normal_(0, 0.1)
            self.bn.running_var.uniform_(0.05, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.c(torch.sigmoid(self.a(x))))


class Dead(nn.Module):
    """A relu that the data leave at 0, and a convolution that is used with live inputs too."""

    def __init__(self) -> None:
        super().__init__()
        self.dead, self.live = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
        self.last = nn.Conv2d(8, 8, 3)
        with torch.no_grad():
            self.dead.bias.fill_(-100)
            self.last.bias.normal_(0, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.dead(x).relu()) + self.last(self.live(x).relu())


def pruned_linear(size: float) -> nn.Module:
    model = nn.Sequential(nn.Sigmoid(), nn.Linear(8, 6))
    with torch.no_grad():
        model[1].weight[3] = size * torch.randn(8)
        model[1].bias[3] = -5
    return model


def channel_of_transposed() -> nn.Module:
    model = nn.Sequential(nn.Sigmoid(), nn.ConvTranspose2d(4, 6, 3, groups=2))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.normal_(0, 5)
    return model


IMAGES = (2, 3, 8, 8)
CASES = {
    "gamma of 0": (Gate, IMAGES),
    "dead input, shared weight": (Dead, IMAGES),
    "weights of 0": (lambda: pruned_linear(0.0), (64, 8)),
    "tiny weights": (lambda: pruned_linear(1e-6), (64, 8)),
    "transposed in groups": (channel_of_transposed, (2, 4, 5, 5)),
}


def biases(reference: torch.jit.ScriptModule) -> list[Tensor]:
    """The codes of all biases that are stored as integers."""
    return [
        node.inputs[0].constant
        for node in GraphView.of(reference).nodes
        if node.kind.startswith("jit_passes::dequantize")
        and isinstance(node.inputs[0].constant, Tensor)
        and node.inputs[0].constant.dtype == torch.int32
    ]


def worst_channel(expected: Tensor, found: Tensor) -> float:
    """The largest error, against the range; or against the numbers, if all are equal."""
    with torch.no_grad():
        size = float(expected.max() - expected.min()) or float(expected.abs().max()) or 1.0
        return float((expected - found).abs().max()) / size


@pytest.mark.parametrize("scripted", [True, False], ids=["scripted", "traced"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_no_channel_is_lost(name: str, target: str, scripted: bool) -> None:
    make, shape = CASES[name]
    torch.manual_seed(0)
    float_model = make().eval()
    data = [torch.randn(shape) for _ in range(4)]
    model = torch.jit.script(float_model) if scripted else torch.jit.trace(float_model, data[0])
    quantized = jit_passes.quantize_script(model, data, target=target, mode="static")
    expected, found = model(data[0]), quantized(data[0])
    assert sqnr(expected, found) > 30
    assert worst_channel(expected, found) < 0.02  # five steps of 8 bits
    if target == "reference":
        assert all(int(codes.abs().max()) <= ROOM for codes in biases(quantized))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["moving_average", "lsq", "lsq_plus", "tqt"])
def test_training(method: str, target: str) -> None:
    """The model that trains, and what it becomes, have the bias; the two agree to a step."""
    data = [torch.randn(IMAGES) for _ in range(4)]
    model = torch.jit.script(Gate().eval())
    expected = model(data[0])
    qat = jit_passes.prepare_qat(model, fake_quantizer=method, target=target).train()
    jit_passes.freeze_statistics(qat)
    for batch in data:
        qat(batch)
    qat.eval()
    converted = jit_passes.convert(qat)
    assert worst_channel(expected, qat(data[0])) < 0.04
    assert worst_channel(qat(data[0]), jit_passes.lower(converted)(data[0])) < 0.01
    assert all(int(codes.abs().max()) <= ROOM for codes in biases(converted))
    rows = jit_passes.parity(qat, converted, data).rows
    assert len(rows) > 4 and all((row.own_steps or 0) <= 1 for row in rows)


@pytest.mark.parametrize("target", TARGETS)
def test_from_a_profile(target: str) -> None:
    data = [torch.randn(IMAGES) for _ in range(4)]
    for make in (Gate, Dead):
        model = torch.jit.script(make().eval())
        profile = jit_passes.profile(model, data, target=target)
        quantized = jit_passes.quantize_script(model, profile=profile, target=target)
        assert worst_channel(model(data[0]), quantized(data[0])) < 0.02


def test_coverage_names_the_channels() -> None:
    data = [torch.randn(IMAGES) for _ in range(4)]
    for target in TARGETS:
        quantized = jit_passes.quantize_script(torch.jit.script(Gate().eval()), data, target=target)
        remarks = {row.name: row.remark for row in jit_passes.coverage(quantized)}
        raised = "its bias has raised the scale of 1 of 8 channels of its weight (2)"
        assert remarks["c:conv2d"] == raised and "bias" not in remarks["a:conv2d"]


FIXED = {"scale": 1e-9, "zero_point": 0}


def test_fixed_scales_warn() -> None:
    """Scales that somebody fixed stay as they are; a bias that they cut off is a warning."""
    model = torch.jit.script(pruned_linear(0.0).eval())
    config = {"version": 1, "rules": [{"op": "linear", "weight": FIXED, "input": FIXED}]}
    data = [torch.randn(16, 8)]
    with pytest.warns(jit_passes.JitPassesWarning, match=r"'1\.bias -> 1:linear' are cut off"):
        jit_passes.quantize_script(model, data, target="reference", mode="static", config=config)


def test_one_fixed_scale() -> None:
    """Where one of the two is fixed, the other is raised."""
    data = [torch.randn(16, 8)]
    for operand in ("weight", "input"):
        model = torch.jit.script(pruned_linear(0.0).eval())
        config = {"version": 1, "rules": [{"op": "linear", operand: FIXED}]}
        quantized = jit_passes.quantize_script(
            model, data, target="reference", mode="static", config=config
        )
        (codes,) = biases(quantized)
        assert 0 < int(codes.abs().max()) <= ROOM


@pytest.mark.parametrize("scales", [0.5, torch.tensor([0.5, 1e-9, 0.25], dtype=torch.float64)])
@pytest.mark.parametrize("of_input", [1.0, 1e-12])
def test_scales_are_the_least_that_fit(of_input: float, scales: Any) -> None:
    """A bias that fits changes nothing; else scales grow as far as it asks, and no further."""
    axis = 0 if isinstance(scales, Tensor) else None
    weight, inputs = (
        QParams(scale, 0, on, -127, 127, "int8") for scale, on in ((scales, axis), (of_input, None))
    )
    bias = torch.tensor([1e6, -3.0, 0.0])
    raised = fitting_scales(bias, LARGEST // 2, inputs, weight, (True, True))
    step = torch.as_tensor(raised[0] * raised[1], dtype=torch.float64)
    codes = bias.double().abs() / step
    assert float(codes.max()) <= LARGEST // 2 * (1 + 1e-9)
    assert raised[0] >= of_input and bool((torch.as_tensor(raised[1] - scales) >= 0).all())
    changed = raised[0] > of_input or bool((torch.as_tensor(raised[1] - scales) > 0).any())
    own = torch.as_tensor(of_input * scales, dtype=torch.float64)
    assert changed == bool((bias.double().abs() > own * (LARGEST // 2)).any())
    if changed:
        assert float(codes.max()) > LARGEST // 2 * (1 - 1e-9)


def draw(random_: random.Random) -> tuple[nn.Module, Tensor]:
    """A net of two or three layers in which channels and inputs are dead, pruned or tiny."""
    flat = random_.random() < 0.4
    width = random_.choice([4, 6])
    layers: list[nn.Module] = []

    def layer() -> nn.Module:
        if flat:
            return nn.Linear(width, width)
        kind = random_.choice(["conv", "depthwise", "transposed"])
        if kind == "transposed":
            return nn.ConvTranspose2d(width, width, 2)
        groups = width if kind == "depthwise" else 1
        return nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=random_.random() < 0.7)

    for _ in range(random_.choice([2, 3])):
        made = layer()
        axis = int(getattr(made, "transposed", False))
        with torch.no_grad():
            for channel in range(width):
                size = random_.choice([1, 1, 1, 0, 1e-4, 1e-8, 1e-20])
                made.weight.select(axis, channel).mul_(size)
            if made.bias is not None:
                made.bias.mul_(10 ** random_.uniform(-2, 3))
        layers.append(made)
        if not flat and random_.random() < 0.5:
            norm = nn.BatchNorm2d(width)
            with torch.no_grad():
                norm.weight.mul_(torch.tensor(random_.choices([1, 0, 1e-9], k=width)))
                norm.bias.normal_(0, 10 ** random_.uniform(-2, 2))
            layers.append(norm)
        layers.append(random_.choice([nn.ReLU(), nn.Sigmoid(), nn.Identity(), nn.Hardtanh()]))
    shape = (16, width) if flat else (2, width, 6, 6)
    return nn.Sequential(*layers).eval(), torch.randn(shape) * 10 ** random_.uniform(-6, 2)


def drawn(seed: int) -> tuple[torch.jit.ScriptModule, Tensor, random.Random]:
    """Return a net in one of both forms, its input, and the generator for what else is drawn."""
    random_ = random.Random(seed)
    torch.manual_seed(seed)
    model, x = draw(random_)
    script = torch.jit.script(model) if seed % 2 else torch.jit.trace(model, x)
    return script, x, random_


@pytest.mark.filterwarnings("ignore:nothing was quantized")  # stock has no dynamic convolutions
@pytest.mark.parametrize("seed", DRAWN)
def test_drawn(seed: int) -> None:
    """No code of a bias at an end, in any mode, on any target; and no number is lost."""
    script, x, random_ = drawn(seed)
    options: dict[str, Any] = {} if random_.random() < 0.7 else {"weight": {"channelwise": False}}
    config = {"version": 1, "global": options}
    for mode in ("static", "auto", "dynamic", "weight_only"):
        reference = jit_passes.quantize_script(
            script, [x], target="reference", mode=mode, config=config
        )
        assert all(int(codes.abs().max()) <= ROOM for codes in biases(reference))
        expected = reference(x)
        if mode == "static":  # against float with biases in float, where nothing can be cut off
            floats = {"version": 1, "global": {**options, "bias": {"dtype": "float"}}}
            other = jit_passes.quantize_script(script, [x], target="reference", config=floats)
            assert worst_channel(other(x), expected) < 0.02
        for target in ("x86", "stock"):
            found = jit_passes.quantize_script(script, [x], target=target, mode=mode, config=config)
            most = 0.06 if target == "x86" or VNNI else 0.2  # else activations have 7 bits
            assert worst_channel(expected, found(x)) < most  # a bias that is cut off costs 1


@pytest.mark.parametrize("seed", DRAWN)
def test_drawn_from_a_profile_and_in_training(seed: int) -> None:
    script, x, _ = drawn(seed)
    profile = jit_passes.profile(script, [x])
    quantized = jit_passes.quantize_script(script, profile=profile, target="reference")
    assert all(int(codes.abs().max()) <= ROOM for codes in biases(quantized))
    for method in ("moving_average", "lsq", "tqt"):
        qat = jit_passes.prepare_qat(script, fake_quantizer=method, target="reference").train()
        jit_passes.freeze_statistics(qat)
        qat(x)
        converted = jit_passes.convert(qat.eval())
        assert all(int(codes.abs().max()) <= ROOM for codes in biases(converted)), method
