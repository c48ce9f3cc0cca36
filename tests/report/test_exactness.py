"""Where `exactness` says that engines must agree, they do; and each of its conditions is needed."""

from __future__ import annotations

import importlib.util
import random
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError, conformance, exactness
from jit_passes.targets import FixedPoint
from tests.seeds import seeds

ENGINES = ["fixed_point", "onnxruntime", "onnxruntime_optimized"]
CONFIG: dict[str, Any] = {
    "version": 1,
    "global": {
        "weight": {"scheme": "power_of_two", "bits": 7, "channelwise": False},
        "input": {"scheme": "power_of_two"},
        "output": {"scheme": "power_of_two"},
    },
}


class Drawn(nn.Module):
    """Residuals, depthwise convolutions, pools and linear layers, drawn at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        width = draw.choice((4, 8))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        kinds = [draw.choice(("residual", "depthwise", "max", "average")) for _ in range(3)]
        self.blocks = nn.ModuleList(_Block(kind, width) for kind in kinds)
        self.hidden, self.head = nn.Linear(width, 8), nn.Linear(8, 5)
        for layer in (self.hidden, self.head):  # neither gives zeros alone
            nn.init.constant_(layer.bias, 0.25)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return F.relu(self.head(F.relu(self.hidden(x.mean([2, 3])))))


class _Block(nn.Module):
    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        groups = width if kind == "depthwise" else 1
        self.kind, self.conv = kind, nn.Conv2d(width, width, 3, padding=1, groups=groups)
        nn.init.constant_(self.conv.bias, 0.25)  # no layer gives zeros alone

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x))
        if self.kind == "residual":
            return x + y
        if self.kind == "max":
            return F.max_pool2d(y, 2)
        return F.avg_pool2d(y, 2) if self.kind == "average" else y


def data(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(2, 3, 16, 16, generator=generator) for _ in range(3)]


def quantized(module: nn.Module, target: Any, config: Any = None, seed: int = 0) -> Any:
    prepared = jit_passes.prepare(torch.jit.script(module.eval()), target=target, config=config)
    jit_passes.calibrate(prepared, data(seed))
    return jit_passes.convert(prepared)


# Compiling C and exporting take seconds: few nets by default, all 100 in `make fuzz`.
NETS = seeds(100, few=3)


@pytest.mark.parametrize("seed", NETS)
def test_engines_agree_where_they_must(seed: int) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = quantized(Drawn(seed), "onnxruntime", CONFIG, seed)
    told = exactness(model, data(0)[0])
    assert told.exact and told.exact_in_pairs and told.values > 6, told
    engines = ["c"] * (shutil.which("cc") is not None)
    engines += ["openvino"] * (importlib.util.find_spec("openvino") is not None)
    found = conformance(model, data(seed + 1000), [*ENGINES, *engines])
    assert found.equal and not found.missing, found
    shown = {row.name for row in found.rows if row.engine == "onnxruntime_optimized"}
    assert len(shown) == told.values + 1, found.unseen
    assert not told.doubts and "must agree" in str(told)


def in_slots(module: nn.Module) -> torch.jit.ScriptModule:
    """Return a reference model whose convolutions are rounded twice."""
    target = FixedPoint("shift")
    scripted = torch.jit.script(module)
    trained = jit_passes.quantize_slots(scripted, recipe="graffitist", target=target).train()
    for x in data(0):
        trained(x)
    return jit_passes.convert(trained.eval())


def test_five_slots() -> None:
    """A correlation of 16 bits and its bias are rounded apart, and engines agree on them."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, padding="same"), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2)
    reference = in_slots(nn.Sequential(*layers))
    x = data(5)[0]
    told = exactness(reference, x)
    assert told.exact and {doubt.condition for doubt in told.doubts} <= {"pairs"}, told
    found = conformance(reference, [x], ENGINES)
    assert found.equal and not found.missing, found
    seen = {row.operator for row in found.rows if row.engine == "onnxruntime_optimized"}
    assert {"jit_passes::correlation", "jit_passes::add_bias"} <= seen


class Product(nn.Module):
    """A product of two parts of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(x).flatten(2).chunk(2, 1)
        return torch.bmm(a, b.transpose(1, 2))


def test_products_of_matrices() -> None:
    """Sums of 196 products are float32; of a size that is not known, who can say."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    reference = quantized(Product(), FixedPoint("shift"))
    x = data(5)[0]
    told = exactness(reference, x)
    assert told.exact and told.values == 3, told
    assert conformance(reference, [x], ENGINES).equal
    (doubt,) = (doubt for doubt in exactness(reference).doubts if doubt.condition != "pairs")
    assert (doubt.operator, doubt.condition) == ("aten::bmm", "sum")


def test_the_bound_of_a_bias_in_slots() -> None:
    """A bias whose steps are far from those of the correlation leaves float32."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 2, 1)
    with torch.no_grad():
        conv.bias.copy_(torch.tensor([2.0**12, 2.0**-9]))
    told = exactness(in_slots(nn.Sequential(conv)), data(0)[0])
    assert ("0:add_bias", "sum") in {(doubt.name, doubt.condition) for doubt in told.doubts}, told


def conditions(module: nn.Module, target: Any = None, config: Any = None) -> dict[str, str]:
    """Return the doubts on a module by value."""
    model = quantized(module, target or FixedPoint("shift"), config)
    return {d.name: d.condition for d in exactness(model, data(0)[0]).doubts}


class Means(nn.Module):
    """Pools and means of 9, 4 and 256 places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.conv(x)
        return F.avg_pool2d(y, 3), F.avg_pool2d(y, 2), y.mean([2, 3])


def test_counts() -> None:
    found = conditions(Means())
    assert {name: why for name, why in found.items() if why != "pairs"} == {"avg_pool2d": "count"}
    without = exactness(quantized(Means(), FixedPoint("shift")))
    assert ("mean", "count") in {(d.name, d.condition) for d in without.doubts}


class Deep(nn.Module):
    """The sums of a linear layer, each weight of which is the largest code."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc = nn.Linear(size, 2, bias=False)
        with torch.no_grad():
            self.fc.weight.fill_(127 / 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)[:, :1].repeat(1, self.fc.in_features))


@pytest.mark.parametrize(("size", "fits"), [(1032, True), (1033, False)])
def test_the_bound_of_a_sum(size: int, fits: bool) -> None:
    """1032 * 127 * 128 = 16,776,192 is below 2^24; one weight more is not."""
    model = quantized(Deep(size), FixedPoint("shift"))
    sums = [doubt for doubt in exactness(model).doubts if doubt.condition == "sum"]
    assert [doubt.name for doubt in sums] == [] if fits else ["fc:linear"], sums
    assert fits or f"{size * 127 * 128}" in sums[0].reason


def test_scales_and_floats() -> None:
    """Affine scales are no powers of two; a function is computed in float."""

    class Function(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(torch.sigmoid(self.conv(x)))

    affine = quantized(Function(), "onnxruntime")
    told = exactness(affine)
    assert {d.condition for d in told.doubts} >= {"scale", "function"} and not told.exact
    assert all("test_exactness.py" in d.source for d in told.doubts if d.operator)
    assert "engines may differ" in str(told) and told.as_data()["exact"] is False
    with pytest.raises(JitPassesError, match="convert"):
        exactness(torch.jit.script(Function().eval()))
