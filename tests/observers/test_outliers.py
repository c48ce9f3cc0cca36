"""Calibration data with single numbers that are far off all others: a warning names them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.quantizer import Annotations
from jit_passes.stages.channels import SPREAD
from tests.annotating import INT8, UINT8, Given, Net, Nodes, annotation
from tests.processor import VNNI


def images(*sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, size, size, generator=generator) for size in sizes]


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()


def in_form(model: nn.Module, form: str, x: Tensor) -> torch.jit.ScriptModule:
    return torch.jit.trace(model, x) if form == "traced" else torch.jit.script(model)


@pytest.mark.parametrize("form", ["scripted", "traced"])
@pytest.mark.parametrize("target", ["x86", "stock", "reference"])
def test_value_batch_and_magnitudes(target: str, form: str) -> None:
    """The input itself; what follows is as far off, and one warning is enough."""
    data = images(16, 16, 16, 16)
    data[2][1, 2, 3, 4] = -1e30
    model = in_form(convolutions(), form, data[0])
    others = max(float(x.abs()[x.abs() < 10].max()) for x in data[:3])
    with pytest.warns(jit_passes.JitPassesWarning) as told:
        jit_passes.quantize_script(model, data, target=target)
    (message,) = (str(w.message) for w in told if w.category is jit_passes.JitPassesWarning)
    assert message.startswith(
        "calibration batch 2: the largest magnitude of 'input -> 0:conv2d' is 1e+30, and the next "
        f"one {others:.3g}, "
    )


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("calibration", ["histogram", "min_max", "mean_squared_error"])
def test_any_batch_and_observer(calibration: str, batch: int) -> None:
    data = images(16, 16, 16, 16)
    data[batch][0, 0, 0, 0] = 1e6
    rules = {"input": {"calibration": calibration}, "output": {"calibration": calibration}}
    config = {"version": 1, "global": rules}
    with pytest.warns(jit_passes.JitPassesWarning, match=f"batch {batch}: .* is 1e[+]06, and"):
        jit_passes.quantize_script(
            torch.jit.script(convolutions()), data, target="reference", config=config
        )


def test_a_profile() -> None:
    data = images(16, 16, 16, 16)
    data[2][1, 2, 3, 4] = -1e30
    with pytest.warns(jit_passes.JitPassesWarning) as told:
        jit_passes.profile(torch.jit.script(convolutions()), data)
    (message,) = (str(w.message) for w in told if w.category is jit_passes.JitPassesWarning)
    assert message.startswith("profiled batch 2: the largest magnitude of 'input' is 1e+30, and ")


class Inside(nn.Module):
    """A value that the model itself makes large in one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(torch.cat([y[:, :1] / x[:, :1], y[:, 1:]], 1))


def test_inside_of_the_model() -> None:
    torch.manual_seed(0)
    model = torch.jit.script(Inside().eval())
    data = [torch.rand(32, 8) + 0.5 for _ in range(3)]
    data[1][5, 0] = 1e-12
    with pytest.warns(jit_passes.JitPassesWarning, match="batch 1: .* of 'div' is 2[.]14e[+]11"):
        jit_passes.quantize_script(model, data, target="reference", mode="static")


@pytest.mark.parametrize("share", [False, True])
def test_values_of_one_range(share: bool) -> None:
    """Of values that share a range, the message names the first one, whichever has the outlier."""

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        first, second, add = nodes["c1:conv2d"], nodes["c2:conv2d"], nodes["add"]
        annotations[add] = annotation({first: UINT8, second: UINT8}, INT8)
        if share:
            annotations.share((first, add), (second, add))

    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        model.c2.weight *= 1e-3
        model.c2.weight[0, 0, 0, 0] = 1e3
    data = images(12, 12, 12)
    for x in data:
        x[:, 0] = 0
    data[1][0, 0, 5, 5] = 1e3
    prepared = jit_passes.prepare(
        torch.jit.script(model), quantizer=Given(annotate), target="reference"
    )
    name = "c1:conv2d -> add" if share else "c2:conv2d -> add"
    with pytest.warns(jit_passes.JitPassesWarning, match=f"batch 1: .* of '{name}' is 1e[+]06"):
        jit_passes.calibrate(prepared, data)


def test_looking_changes_nothing() -> None:
    """The batch runs once more for the message; observers and the model's own counters do not."""
    data = images(16, 16)
    data[1][0, 0, 0, 0] = 1e4
    config = {"version": 1, "global": {"input": {"calibration": "min_max"}}}
    prepared = jit_passes.prepare(
        torch.jit.script(convolutions()), target="reference", config=config
    )
    with pytest.warns(jit_passes.JitPassesWarning, match="batch 1"):
        jit_passes.calibrate(prepared, data)
    ranges = [b for n, b in prepared.named_buffers() if n.endswith("_range") and b.dim() == 1]
    assert (float(ranges[0][0]), float(ranges[0][1])) == (
        float(min(x.min() for x in data)),
        float(max(x.max() for x in data)),
    )


def test_no_warning_without_reason() -> None:
    """Batches of growing size, values that are mostly 0, and a few large values in each batch."""
    torch.manual_seed(0)
    growing = [2.0**k * x for k, x in enumerate(images(16, 16, 16))]
    sparse = [torch.relu(x - 2) for x in images(16, 16)]
    tails = [x**3 for x in images(16, 16)]
    for data in (growing, sparse, tails):
        with warnings.catch_warnings():
            warnings.simplefilter("error", jit_passes.JitPassesWarning)
            jit_passes.quantize_script(torch.jit.script(convolutions()), data, target="reference")


class Depthwise(nn.Module):
    """A separable convolution whose channels can be scaled without another result."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3)
        self.depthwise = nn.Conv2d(channels, channels, 3, groups=channels)
        self.pointwise = nn.Conv2d(channels, 8, 1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.depthwise(torch.relu(self.first(x))))
        return self.last(torch.relu(self.pointwise(y)))

    @torch.no_grad()
    def scale(self, factors: Tensor, behind: str) -> None:
        self.first.weight.mul_(factors.view(-1, 1, 1, 1))
        self.first.bias.mul_(factors)
        if behind == "depthwise":
            self.depthwise.weight.div_(factors.view(-1, 1, 1, 1))
        else:
            self.depthwise.bias.mul_(factors)
            self.pointwise.weight.div_(factors.view(1, -1, 1, 1))


@pytest.mark.parametrize("form", ["scripted", "traced"])
@pytest.mark.parametrize(
    ("target", "mode"),
    [
        ("x86", "auto"),
        ("x86", "dynamic"),
        ("stock", "auto"),
        ("reference", "auto"),
        ("reference", "dynamic"),
    ],
)
@pytest.mark.parametrize("behind", ["depthwise", "pointwise"])
def test_channels_that_are_far_apart(behind: str, target: str, mode: str, form: str) -> None:
    """Factors of 1 to 32 leave the network as it is, and coverage says where they do harm."""
    if (behind, target) == ("depthwise", "stock") and not VNNI:
        pytest.skip("without VNNI, depthwise convolutions of this window stay in float")
    torch.manual_seed(0)
    model, data = Depthwise().eval(), images(16, 16)
    before = model(data[0])
    factors = 2.0 ** torch.linspace(0, 5, 16)[torch.randperm(16)]
    model.scale(factors, behind)
    assert torch.allclose(model(data[0]), before, rtol=1e-4, atol=1e-5)
    quantized = jit_passes.quantize_script(
        in_form(model, form, data[0]), data, target=target, mode=mode
    )
    rows = jit_passes.coverage(quantized)
    int8 = [row for row in rows if row.dtype == "int8"]
    (remarked,) = (row for row in int8 if row.remark)
    assert remarked.name == f"{behind}:conv2d"
    assert "channels of its input differ in range by 2^" in remarked.explanation
    found = float(remarked.remark.partition("2^")[2].partition(",")[0])
    assert 4 <= found <= 6


def test_channels_of_ordinary_layers() -> None:
    """Random weights, dead channels, and weights alone: nothing to say."""
    torch.manual_seed(0)
    model, data = Depthwise().eval(), images(16, 16)
    with torch.no_grad():
        model.first.weight[3], model.pointwise.weight[:, 5] = 1e-9, 1e-9
    for mode in ("static", "dynamic"):
        rows = jit_passes.coverage(
            jit_passes.quantize_script(torch.jit.script(model), data, target="reference", mode=mode)
        )
        assert [row.dtype for row in rows] == ["int8"] * 4
        assert not any("channels of its input" in row.remark for row in rows)
    model.scale(torch.linspace(1, 4 * SPREAD, 16), "pointwise")
    alone = jit_passes.quantize_script(
        torch.jit.script(model), target="reference", mode="weight_only"
    )
    assert not any(row.remark for row in jit_passes.coverage(alone))
