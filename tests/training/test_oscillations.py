"""Weights that jump between codes: counted beside plain Python, damped, frozen, and told of."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.errors import JitPassesError
from tests.qat_nets import Net, Plain, Twice, batch

Model = torch.jit.ScriptModule


def model_of(net: type[nn.Module] = Plain, **options: Any) -> Model:
    torch.manual_seed(0)
    return jit_passes.prepare_qat(torch.jit.script(net()), **{"bits": 3, **options}).train()


class Slow:
    """One number of a weight, as the paper's equations say it."""

    def __init__(self, code: int) -> None:
        self.code, self.direction, self.frequency, self.average = code, 0, 0.0, float(code)
        self.frozen = False

    def step(self, code: int, momentum: float, above: float | None) -> None:
        if self.frozen:
            code = self.code
        change = (code > self.code) - (code < self.code)
        jump = 1.0 if change and change == -self.direction else 0.0
        self.frequency = momentum * jump + (1 - momentum) * self.frequency
        self.average = momentum * code + (1 - momentum) * self.average
        self.direction = change or self.direction
        self.code = code
        if above is not None and not self.frozen and self.frequency > above:
            self.frozen, self.code = True, round(self.average)


def codes_of(model: Model, name: str = "conv") -> list[int]:
    """The codes of a weight without a batch norm behind, number by number."""
    weight, scale = (getattr(getattr(model, name), key) for key in ("weight", "weight_scale"))
    steps = scale.double().reshape(-1, *[1] * (weight.dim() - 1))
    codes = (weight.double() / steps).clamp(-3, 3).round()
    return [int(code) for code in codes.flatten().tolist()]


@pytest.mark.parametrize("above", [None, 0.15])
def test_counts_equal_plain_python(above: float | None) -> None:
    """On a walk at random, and frozen ones stay where they mostly were while the scale moves."""
    model = model_of()
    oscillations = jit_passes.Oscillations(model, momentum=0.1, limit=0.05)
    slow = [Slow(code) for code in codes_of(model)]
    generator = torch.Generator().manual_seed(1)
    for step in range(60):
        with torch.no_grad():
            model.conv.weight += 0.08 * torch.randn(model.conv.weight.shape, generator=generator)
            model.conv.weight_scale *= 1.001
        limit = above if step > 20 else None
        for number, code in zip(slow, codes_of(model), strict=True):
            number.step(code, 0.1, limit)
        oscillations.step(limit)
        assert codes_of(model) == [number.code for number in slow]
    found = oscillations.state_dict()["weights"]["conv.weight"]
    for key in ("code", "direction", "frequency", "average", "frozen"):
        wanted = torch.tensor([getattr(number, key) for number in slow], dtype=torch.float64)
        tensor = found["codes" if key == "code" else key].flatten().double()
        assert torch.allclose(tensor, wanted, atol=1e-5), key
    count = oscillations.counts[0]
    assert count.name == "conv.weight" and count.numbers == len(slow)
    assert count.frozen == sum(number.frozen for number in slow)
    assert count.oscillating == sum(n.frequency > 0.05 and not n.frozen for n in slow)
    assert count.frozen > 10 if above is not None else count.oscillating > 10


class Between(nn.Module):
    """Weights whose best values lie between two codes: of a regression on their own results."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@pytest.mark.parametrize("remedy", ["", "dampening", "freezing"])
def test_remedies(remedy: str) -> None:
    """Without one, numbers jump to the end; each remedy stops nearly all, and frozen ones stay."""
    model = model_of(Between, bits={"weight": 2})
    for parameter in jit_passes.quantization_parameters(model):
        parameter.requires_grad_(False)
    scale = model.fc.weight_scale
    target = scale.reshape(-1, 1) * (torch.rand(4, 4) - 0.5)
    optimizer = torch.optim.SGD([model.fc.weight], lr=0.02, momentum=0.9, weight_decay=1e-3)
    oscillations = jit_passes.Oscillations(model, momentum=0.05, limit=0.02)
    x = torch.eye(4)
    for step in range(160):
        loss = (model(x) - target.t()).square().sum()
        if remedy == "dampening":
            loss = loss + step / 40 * oscillations.dampening()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        oscillations.step(0.03 if remedy == "freezing" and step > 60 else None)
        if step == 150:
            before = codes_of(model, "fc")
    frozen = oscillations.state_dict()["weights"]["fc.weight"]["frozen"].flatten()
    moved = [a != b for a, b in zip(codes_of(model, "fc"), before, strict=True)]
    if not remedy:
        assert oscillations.share > 0.5 and any(moved)
    else:
        assert oscillations.share < 0.1
    assert (oscillations.frozen > 0.4) == (remedy == "freezing")
    assert not any(m for m, f in zip(moved, frozen.tolist(), strict=True) if f)


def test_dampening_is_the_squared_distance_from_codes() -> None:
    """With batch norms behind, in units of the weight; its gradient by autograd in double."""
    model = model_of(Net)
    for seed in range(3):
        model(batch(4, 3, 8, 8, seed=seed))
    oscillations = jit_passes.Oscillations(model)
    found = oscillations.dampening()
    found.backward()
    total = torch.zeros((), dtype=torch.float64)
    for conv, norm in ((model.conv1, model.bn1), (model.conv2, model.bn2), (model.fc, None)):
        weight = conv.weight.detach().double().requires_grad_()
        factor = torch.ones(len(weight), dtype=torch.float64)
        if norm is not None:
            factor = norm.weight.detach().double() / (norm.running_var.double() + 1e-5).sqrt()
        step = conv.weight_scale.detach().double() / factor
        step = step.reshape(-1, *[1] * (weight.dim() - 1))
        codes = (weight.detach() / step).round().clamp(-3, 3)
        inside = (weight.detach() / step).abs() < 3
        loss = ((weight - codes * step)[inside]).square().sum()
        loss.backward()
        total = total + loss.detach()
        assert torch.allclose(conv.weight.grad.double(), weight.grad, atol=1e-6)
        assert conv.weight.grad.abs().max() > 0
        assert conv.weight_scale.grad is None
    assert torch.allclose(found.detach().double(), total, rtol=1e-5)
    assert not oscillations.left_out and len(oscillations.counts) == 3


def test_frozen_ahead_of_a_moving_batch_norm() -> None:
    """Values are held as they were, however f moves; codes are, once statistics stand still."""
    model = model_of(Net, bits=3)
    scales = {"params": jit_passes.quantization_parameters(model), "lr": 0.002}
    optimizer = torch.optim.SGD([{"params": jit_passes.model_parameters(model)}, scales], lr=0.2)
    oscillations = jit_passes.Oscillations(model, momentum=0.2)
    y = torch.randint(5, (8,), generator=torch.Generator().manual_seed(0))
    held: Tensor | None = None
    for step in range(60):
        if step == 40:
            jit_passes.freeze_statistics(model)
        nn.functional.cross_entropy(model(batch(8, 3, 8, 8, seed=step)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        oscillations.step(0.05 if step < 30 else None)
        state = oscillations.state_dict()["weights"]["conv1.weight"]
        frozen = state["frozen"]
        if step == 30:
            held = model.conv1.weight.detach()[frozen].clone()
        if 30 < step < 40:
            assert torch.equal(model.conv1.weight.detach()[frozen], held)
        if step == 39:
            codes = state["codes"][frozen]
    assert torch.equal(state["codes"][frozen], codes) and codes.any()
    factor = model.bn1.weight.detach() / (model.bn1.running_var + 1e-5).sqrt()
    steps = (model.conv1.weight_scale.detach() / factor).reshape(-1, 1, 1, 1)
    wanted = (state["codes"] * steps)[frozen]
    assert torch.allclose(model.conv1.weight.detach()[frozen], wanted, rtol=1e-5)
    assert not torch.equal(wanted, held)  # the scales went on training


def test_a_parameter_of_two_places_is_not_frozen() -> None:
    model = model_of(Twice)
    oscillations = jit_passes.Oscillations(model, momentum=0.5)
    before = model.conv.weight.detach().clone()
    for sign in (1, -1, 1, -1):
        with torch.no_grad():
            model.conv.weight.copy_(before + sign)
        assert oscillations.step(0.0) == 0
    assert [count.name for count in oscillations.counts] == ["conv.weight", "tied.weight"]
    assert oscillations.share > 0.9 and oscillations.frozen == 0


def test_computed_weights_are_left_out() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.last = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(x)))

    model = jit_passes.prepare_qat(torch.jit.trace(Normed(), batch(2, 4)), bits=4)
    oscillations = jit_passes.Oscillations(model)
    assert [count.name for count in oscillations.counts] == ["first.weight"]
    assert len(oscillations.left_out) == 1 and "last" in oscillations.left_out[0]


def test_state() -> None:
    """A run that was interrupted goes on exactly; a state of another model changes nothing."""
    model = model_of()
    oscillations = jit_passes.Oscillations(model, momentum=0.2)

    def walk(watch: jit_passes.Oscillations, it: Model, seeds: range) -> None:
        for seed in seeds:
            with torch.no_grad():
                it.conv.weight += 0.1 * batch(*it.conv.weight.shape, seed=seed)
            watch.step(0.3)

    walk(oscillations, model, range(8))
    twin = copy.deepcopy(model)
    other = jit_passes.Oscillations(twin, momentum=0.2)
    other.load_state_dict(oscillations.state_dict())
    walk(oscillations, model, range(8, 14))
    walk(other, twin, range(8, 14))
    assert torch.equal(model.conv.weight, twin.conv.weight) and oscillations.frozen > 0
    assert other.counts == oscillations.counts and str(other) == str(oscillations)
    assert "after 14 steps" in repr(other) and "conv.weight" in other._repr_html_()
    with pytest.raises(JitPassesError, match="only the state has a quantized weight"):
        jit_passes.Oscillations(model_of(Net)).load_state_dict(oscillations.state_dict())
    state = oscillations.state_dict()
    state["weights"]["fc.weight"]["codes"] = torch.zeros(2, 2)
    with pytest.raises(JitPassesError, match=r"'fc.weight' has shape \[4, 6\], and \[2, 2\]"):
        other.load_state_dict(state)
    assert other.counts == oscillations.counts


def test_report_has_the_counts() -> None:
    """Of the model that trains, of the one it is converted to, and once however often written."""
    model = model_of()
    model(batch(2, 3, 8, 8))
    oscillations = jit_passes.Oscillations(model, momentum=0.5)
    before = model.conv.weight.detach().clone()
    for sign in (1, -1, 1):
        with torch.no_grad():
            model.conv.weight.copy_(before + sign)
        oscillations.step()
    oscillations.record()
    oscillations.record()
    for known in (model, jit_passes.convert(model)):
        rows = {row.name: row.explanation for row in jit_passes.coverage(known)}
        assert rows["conv:conv2d"] == "100.0 % of the weights oscillate, 0.0 % are frozen"
        assert rows["fc:linear"] == "0.0 % of the weights oscillate, 0.0 % are frozen"


def test_bad_options() -> None:
    model = model_of()
    with pytest.raises(JitPassesError, match=r"call jit_passes.prepare_qat\(model\) first"):
        jit_passes.Oscillations(torch.jit.script(Plain()))
    for options in ({"momentum": 0}, {"momentum": 1}, {"limit": -0.1}, {"limit": 1}):
        with pytest.raises(JitPassesError, match="momentum is above 0 and below 1"):
            jit_passes.Oscillations(model, **options)
    with pytest.raises(JitPassesError, match="freeze_above is a number from 0 on, not -1"):
        jit_passes.Oscillations(model).step(-1)
    with pytest.raises(JitPassesError, match="freeze_above is a number from 0 on, not 'much'"):
        jit_passes.Oscillations(model).step("much")
