"""Channels between layers, scaled to like size: the function stays, and ranges become alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError
from jit_passes.command_line import main as command
from jit_passes.graph.view import NodeView
from jit_passes.stages.batch_norms import batch_norms
from tests.compare import sqnr

WILD = 0.02, 50.0  # between these, channels are drawn apart


def wild(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return the model in double, with channels of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1:
            sizes = torch.rand(len(weight), generator=generator) * 5 - 2.5
            weight.data *= sizes.exp().reshape(-1, *[1] * (weight.dim() - 1))
    return model.eval().double()


def layers(model: torch.jit.ScriptModule) -> dict[str, NodeView]:
    graph = jit_passes.normalized_graph(model)
    return {node.module: node for node in graph.nodes if node.traits.weighted is not None}


def weight_of(node: NodeView) -> Tensor:
    weight: Tensor = node.operand("weight").constant
    return weight.detach()


def images(seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 4, 12, 12, generator=generator, dtype=torch.float64) for _ in range(2)]


class Chain(nn.Module):
    """A convolution, a depthwise one and a pointwise one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.depthwise(self.first(x).relu()).relu())


class Between(nn.Module):
    """Pads, pools, resizing, leaky relu, a transposed convolution with groups, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3)
        self.second = nn.Conv2d(8, 8, 3, groups=2)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.gate = nn.Linear(6, 6)
        self.last = nn.Linear(6 * 4, 3)
        self.slopes = nn.PReLU(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(F.leaky_relu(self.first(x), 0.1), [1, 0, 0, 1])
        x = F.max_pool2d(F.pad(x, [1, 1, 1, 1], mode="reflect"), 2)
        x = F.interpolate(self.slopes(self.second(x)), scale_factor=2.0, mode="nearest")
        x = self.up(F.avg_pool2d(x, 2)).relu()
        x = x * self.gate(x.mean([2, 3])).sigmoid().unsqueeze(2).unsqueeze(3)
        return self.last(F.adaptive_avg_pool2d(x, 2).flatten(1))


class Joined(nn.Module):
    """A stem, two blocks with residual sums, and a concatenation of both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3)
        self.inner = nn.ModuleList(nn.Conv2d(8, 6, 3, padding=1) for _ in range(2))
        self.outer = nn.ModuleList(nn.Conv2d(6, 8, 3, padding=1) for _ in range(2))
        self.side = nn.Conv2d(8, 7, 1)
        self.last = nn.Conv2d(15, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for inner, outer in zip(self.inner, self.outer):  # noqa: B905  scripted
            x = (x + outer(inner(x).relu())).relu()
        return self.last(torch.cat([self.side(x).relu(), x], 1))


CHANGED = {
    Chain: {"first", "depthwise"},
    Between: {"first", "second", "up"},
    Joined: {"stem", "inner.0", "inner.1", "outer.0", "outer.1", "side"},
}


@pytest.mark.parametrize("by", ["weights", "activations", None])
@pytest.mark.parametrize("net", list(CHANGED))
def test_the_function_stays(net: type[nn.Module], by: str | None) -> None:
    """In double, to 1e-12 of the largest number; and all layers that can be scaled are."""
    torch.manual_seed(0)
    model = torch.jit.trace(wild(net()), images()[0])
    before = {name: weight_of(node) for name, node in layers(model).items()}
    equalized = jit_passes.equalize(model, images() if by else None, by=by)
    after = {name: weight_of(node) for name, node in layers(equalized).items()}
    columns = {name for name in before if not torch.equal(before[name], after[name])}
    changed = {name for name in columns if rows_differ(before[name], after[name], name)}
    assert changed == CHANGED[net]
    for x in (*images(), images(5)[0]):
        expected = model(x)
        assert (equalized(x) - expected).abs().max() < 1e-12 * expected.abs().max()


def rows_differ(before: Tensor, after: Tensor, name: str) -> bool:
    """Whether outputs were scaled: not only each input by one factor for all outputs."""
    ratio = after / before
    axis = 1 if name == "up" else 0
    own = ratio.movedim(axis, 0).flatten(1)
    return bool(((own / own[:1] - 1).abs() > 1e-9).any()) or ratio.shape[1] == 1


def test_two_layers_by_the_closed_form() -> None:
    """Nagel et al. 2019, equation 11: s = sqrt(r1 r2) / r2, and both ranges are sqrt(r1 r2)."""
    torch.manual_seed(0)
    model = wild(nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 5, 3)))
    scripted = torch.jit.script(model)
    one, two = (weight_of(node) for node in layers(scripted).values())
    r1, r2 = one.abs().flatten(1).amax(1), two.abs().transpose(0, 1).flatten(1).amax(1)
    s = (r1 * r2).sqrt() / r2
    equalized = jit_passes.equalize(scripted)
    new_one, new_two = (weight_of(node) for node in layers(equalized).values())
    torch.testing.assert_close(new_one, one / s.reshape(-1, 1, 1, 1), rtol=1e-12, atol=0)
    torch.testing.assert_close(new_two, two * s.reshape(1, -1, 1, 1), rtol=1e-12, atol=0)
    assert s.max() / s.min() > 5


def test_a_triple_has_one_range() -> None:
    """With a depthwise layer: r1 / s12 = r2 s12 / s23 = r3 s23, all (r1 r2 r3)^(1/3)."""
    torch.manual_seed(0)
    model = wild(Chain())
    for layer in (model.first, model.depthwise):
        layer.bias.data.zero_()
    scripted = torch.jit.script(model)
    found = []
    for made in (scripted, jit_passes.equalize(scripted, rounds=100)):
        first, depthwise, last = (weight_of(node) for node in layers(made).values())
        ranges = [first.abs().flatten(1).amax(1), depthwise.abs().flatten(1).amax(1)]
        found.append([*ranges, last.abs().flatten(1).amax(0)])
    wanted = (found[0][0] * found[0][1] * found[0][2]) ** (1 / 3)
    for ranges in found[1]:
        torch.testing.assert_close(ranges, wanted, rtol=1e-3, atol=0)


def test_activations_by_the_equation() -> None:
    """s = max|X|^a / max|W2|^(1 - a), as smoothing has it."""
    torch.manual_seed(0)
    model = wild(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 3)))
    data = images()
    largest = torch.stack([model[1](model[0](x)).abs().amax((0, 2, 3)) for x in data]).amax(0)
    columns = model[2].weight.abs().amax((0, 2, 3))
    made = layers(jit_passes.equalize(torch.jit.script(model), data, strength=0.7))
    expected = model[0].weight / (largest**0.7 / columns**0.3).reshape(-1, 1, 1, 1)
    torch.testing.assert_close(weight_of(made["0"]), expected.detach(), rtol=1e-12, atol=0)


class Kept(nn.Module):
    """Layers whose results others read, in ways that factors would change."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        kept = x
        if self.how == "returned":
            kept = y
        elif self.how == "sigmoid":
            y = y.sigmoid()
        elif self.how == "constant":
            y = y + 1.0
        elif self.how == "input":
            y = y + x
        elif self.how == "relu6":
            y = F.relu6(y)
        elif self.how == "written":
            y[:, 0] = 1.0
        elif self.how == "padded":
            y = F.pad(y, [1, 1], value=2.0)
        elif self.how == "channels":
            y = F.pad(y, [0, 0, 0, 0, 1, 0])[:, :4]
        elif self.how == "maximum":
            y = torch.maximum(y, x)
        elif self.how == "softmax":
            y = y.softmax(1)
        elif self.how == "rows":
            y = torch.cat([y, y], 2)
        return self.last(y), kept


HOWS = (
    "returned",
    "sigmoid",
    "constant",
    "input",
    "relu6",
    "written",
    "padded",
    "channels",
    "maximum",
    "softmax",
)


@pytest.mark.parametrize("how", HOWS)
def test_what_stays(how: str) -> None:
    """Nothing can be equalized, and no factor comes in where it would change the function."""
    torch.manual_seed(0)
    model = torch.jit.script(wild(Kept(how)))
    for data in (None, [100 * x for x in images()]):
        with pytest.raises(JitPassesError, match="nothing to equalize"):
            jit_passes.equalize(model, data)


def test_limits_that_data_do_not_reach() -> None:
    """Then they are relus, and the function stays on such data; else the reason is told."""
    torch.manual_seed(0)
    model = torch.jit.script(wild(Kept("relu6")))
    small = [x / 100 for x in images()]
    equalized = jit_passes.equalize(model, small)
    kinds = {node.kind for node in jit_passes.normalized_graph(equalized).nodes}
    assert "aten::relu" in kinds and not kinds & {"aten::relu6", "aten::hardtanh", "aten::clamp"}
    expected = model(small[0])[0]
    assert (equalized(small[0])[0] - expected).abs().max() < 1e-12 * expected.abs().max()
    model = torch.jit.script(wild(Kept("relu6")).float())
    made = jit_passes.quantize_script(
        model, [x.float() * 9 for x in images()], target="reference", equalize="auto"
    )
    (said,) = (row.remark for row in jit_passes.coverage(made) if row.name == "first:conv2d")
    assert "limits them at 6, and data reach" in said


class Digits(nn.Module):
    """Three convolutions, of which one channel can be made too large."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)
        )
        self.body[0].weight.data[3] *= factor
        self.body[0].bias.data[3] *= factor
        self.body[2].weight.data[:, 3] /= factor

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("equalize", ["weights", "activations"])
def test_a_channel_that_is_too_large(equalize: str) -> None:
    """100 times as large as it need be: repaired to within 0.5 dB of the model without."""
    found = {}
    data = [x.float() for x in images()]
    x = images(7)[0].float()
    for factor in (1.0, 100.0):
        torch.manual_seed(0)
        model = torch.jit.script(Digits(factor).eval())
        for option in (None, equalize):
            made = jit_passes.quantize_script(
                model, data, target="reference", equalize=option, progress=False
            )
            found[factor, option] = sqnr(model(x), made(x))
    assert found[100.0, None] < found[1.0, None] - 10
    assert found[100.0, equalize] > found[1.0, None] - 0.5
    assert found[1.0, equalize] > found[1.0, None] - 0.5


def test_a_dead_channel_keeps_its_bias_small() -> None:
    """Weights next to 0 are not scaled up together with a bias that is as large as others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 5, 1)).eval()
    model[0].weight.data[2] *= 1e-12
    scripted = torch.jit.script(model)
    equalized = jit_passes.equalize(scripted)
    bias = layers(equalized)["0"].operand("bias").constant
    assert bias.abs().max() < 10 * model[0].bias.abs().max()
    x = images()[0].float()
    torch.testing.assert_close(equalized(x), scripted(x), rtol=1e-5, atol=1e-6)


def absorbing(padding: int = 0) -> nn.Sequential:
    """A channel whose result is never near 0, in front of two layers."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3, padding=padding)
    )
    norm = model[1]
    norm.bias.data = torch.tensor([9.0, 0.1, 0, 4, -1, 7])
    norm.weight.data = torch.tensor([1.0, 1, 2, 0.5, 1, -1])
    with torch.no_grad():
        model.train()
        for seed in range(40):
            model(images(seed)[0].float())
    return model.eval().double()


def test_high_biases_are_absorbed() -> None:
    """By data the function stays on these, and the channel's range begins at 0."""
    model = absorbing()
    scripted = torch.jit.script(model)
    data = images()
    equalized = jit_passes.equalize(scripted, data, absorb=True)
    plain = jit_passes.equalize(scripted, data)
    least = torch.stack([model[2](model[1](model[0](x))).amin((0, 2, 3)) for x in data]).amin(0)
    assert (least > 1).sum() == 3
    for x in data:
        expected = scripted(x)
        assert (equalized(x) - expected).abs().max() < 1e-12 * expected.abs().max()
    one, other = (layers(m)["0"].operand("bias").constant for m in (plain, equalized))
    weights = [weight_of(layers(m)["0"]) for m in (scripted, plain)]
    factors = (weights[0] / weights[1]).flatten(1)[:, 0]
    torch.testing.assert_close((one - other) * factors, least, rtol=1e-9, atol=1e-12)


def test_high_biases_by_batch_norms() -> None:
    """Without data c = max(0, beta - 3 gamma); behind padding nothing is absorbed."""
    scripted = torch.jit.script(absorbing())
    normal = batch_norms(scripted)["0:conv2d"]
    assert normal.deviation.tolist() == [1, 1, 2, 0.5, 1, 1]
    made = [layers(jit_passes.equalize(scripted, absorb=a)) for a in (False, True)]
    one, other = (found["0"].operand("bias").constant for found in made)
    factors = (weight_of(layers(scripted)["0"]) / weight_of(made[0]["0"])).flatten(1)[:, 0]
    expected = torch.tensor([6.0, 0, 0, 2.5, 0, 4]).double()
    torch.testing.assert_close((one - other) * factors, expected, rtol=1e-9, atol=1e-9)
    padded = torch.jit.script(absorbing(padding=1))
    one, other = (
        layers(jit_passes.equalize(padded, absorb=a))["0"].operand("bias").constant
        for a in (False, True)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize(("low", "high"), [(0.0, torch.inf), (0.0, 6.0), (-torch.inf, torch.inf)])
def test_the_mean_of_a_clipped_normal(low: float, high: float) -> None:
    """Against a sum over a fine grid of the density."""
    from jit_passes.stages.batch_norms import Normal

    mean, deviation = torch.tensor([-2.0, 0, 1, 5.5, 9]), torch.tensor([1.0, 2, 0.3, 1, 4])
    normal = Normal(mean.double(), deviation.double())
    t = torch.linspace(-12, 12, 200_001).double()
    density = torch.exp(-t.square() / 2)
    x = (normal.mean[:, None] + normal.deviation[:, None] * t).clamp(low, high)
    expected = (x * density).sum(1) / density.sum()
    torch.testing.assert_close(normal.clipped_mean(low, high), expected, rtol=1e-6, atol=1e-7)


def test_reports() -> None:
    """Coverage says what was done, provenance how, and compare leaves changed values out."""
    torch.manual_seed(0)
    model = torch.jit.script(wild(Joined()).float())
    data = [x.float() for x in images()]
    made = jit_passes.quantize_script(model, data, target="reference", equalize="auto")
    rows = {row.name: row.remark for row in jit_passes.coverage(made)}
    assert "channels of its result were divided by" in rows["stem:conv2d"]
    assert "channels of its result" not in rows["last:conv2d"]
    known = jit_passes.provenance(made)
    assert known is not None
    assert known["equalize"] == "activations" and known["equalized"] == 6
    assert "stem:conv2d" in known["scaled"] and "last:conv2d" not in known["scaled"]
    names = {row.name for row in jit_passes.compare(model, made, data).rows}
    assert "last:conv2d" in names and not names & set(known["scaled"])


def test_errors() -> None:
    model = torch.jit.script(wild(Chain()))
    with pytest.raises(JitPassesError, match="by='activations' needs data"):
        jit_passes.equalize(model, by="activations")
    with pytest.raises(JitPassesError, match="by is one of"):
        jit_passes.equalize(model, by="rows")
    with pytest.raises(JitPassesError, match="rounds is a whole number above 0, not 0"):
        jit_passes.equalize(model, rounds=0)
    with pytest.raises(
        JitPassesError, match="batch 0 of the data holds a NaN or an infinity, or gives"
    ):
        jit_passes.equalize(model, [images()[0] / 0])
    profile = jit_passes.profile(model, images(), progress=False)
    with pytest.raises(JitPassesError, match="equalize='auto' and a profile"):
        jit_passes.quantize_script(model, profile=profile, equalize="auto")


def test_the_command(tmp_path: Path) -> None:
    """`jit-passes quantize --equalize` gives the model of the function."""
    torch.manual_seed(0)
    model = torch.jit.script(wild(Chain()).float())
    torch.jit.save(model, tmp_path / "float.pt")
    data = torch.cat(images()).float()
    np.savez(tmp_path / "data.npz", x=data.numpy())
    given: list[Any] = ["quantize", tmp_path / "float.pt", "-o", tmp_path / "int8.pt"]
    given += ["--target", "reference", "--equalize"]
    assert command([*map(str, given), "activations"]) == 2
    assert command([*map(str, given), "weights", "--data", str(tmp_path / "data.npz")]) == 0
    made = jit_passes.provenance(torch.jit.load(tmp_path / "int8.pt"))
    assert made is not None and made["equalize"] == "weights"
