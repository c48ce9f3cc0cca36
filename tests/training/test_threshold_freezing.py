"""Freezing thresholds one by one, against a slow statement of the rule."""

from __future__ import annotations

import copy
import io
import math
import random
from collections.abc import Callable

import pytest
import torch
from torch.nn import Parameter

import jit_passes
from jit_passes.training.freezing import ThresholdFreezer

Gradients = list[dict[str, list[float]]]


def thresholds(values: dict[str, list[float]]) -> dict[str, Parameter]:
    return {name: Parameter(torch.tensor(row, dtype=torch.float64)) for name, row in values.items()}


def by_the_rule(
    values: dict[str, list[float]],
    gradients: Gradients,
    rate: float,
    start: int,
    interval: int,
    momentum: float,
) -> list[tuple[int, str]]:
    """Gradient descent with the rule, number by number: (step, what is frozen then)."""
    values = copy.deepcopy(values)
    averages = copy.deepcopy(values)
    history: Gradients = []
    frozen: list[tuple[int, str]] = []
    for step, gradient in enumerate(gradients, 1):
        moving = [name for name in values if name not in [name for _, name in frozen]]
        for name in moving:
            for i, slope in enumerate(gradient[name]):
                values[name][i] -= rate * slope
                averages[name][i] += (1 - momentum) * (values[name][i] - averages[name][i])
        if step > start:
            history.append(gradient)
        if step <= start or (step - start) % interval:
            continue
        means = {}
        for name in moving:
            channels = range(len(values[name]))
            sums = [abs(sum(past[name][i] for past in history)) for i in channels]
            means[name] = sum(sums) / len(sums) / interval
        history = []
        for name in sorted(moving, key=lambda name: means[name]):
            pairs = zip(values[name], averages[name], strict=True)
            if all(math.ceil(value) == math.ceil(average) for value, average in pairs):
                frozen.append((step, name))
                break
    return frozen


def train(
    freezer: ThresholdFreezer,
    parameters: dict[str, Parameter],
    gradients: Gradients,
    optimizer: torch.optim.Optimizer,
    first: int = 1,
) -> list[tuple[int, str]]:
    frozen = []
    for step, gradient in enumerate(gradients, first):
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                parameter.grad = torch.tensor(gradient[name], dtype=parameter.dtype)
        optimizer.step()
        if (name := freezer.step()) is not None:
            frozen.append((step, name))
        optimizer.zero_grad()
    return frozen


def drawn(seed: int, steps: int) -> tuple[dict[str, list[float]], Gradients]:
    """Thresholds that wander around whole numbers, some with several channels."""
    generator = random.Random(seed)
    sizes = {"a": 1, "b": 1, "c": 3, "d": 1, "e": 2}
    values = {n: [generator.uniform(-3, 3) for _ in range(k)] for n, k in sizes.items()}
    drift = {n: generator.uniform(-0.3, 0.3) for n in sizes}
    gradients = [
        {n: [drift[n] + generator.gauss(0, 1) for _ in range(k)] for n, k in sizes.items()}
        for _ in range(steps)
    ]
    return values, gradients


@pytest.mark.parametrize("seed", range(8))
def test_rule(seed: int) -> None:
    values, gradients = drawn(seed, 90)
    expected = by_the_rule(values, gradients, 0.1, start=20, interval=7, momentum=0.9)
    parameters = thresholds(values)
    freezer = ThresholdFreezer(parameters.items(), start_step=20, interval=7, momentum=0.9)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    assert train(freezer, parameters, gradients, optimizer) == expected
    assert len(expected) >= 3 and freezer.frozen == tuple(name for _, name in expected)
    assert all(parameters[name].requires_grad != (name in freezer.frozen) for name in parameters)
    assert str(len(expected)) in repr(freezer)


def test_order_by_hand() -> None:
    """The calmest first; the one that has crossed a whole number since waits."""
    parameters = thresholds({"loud": [0.5], "calm": [0.5], "crossed": [0.9]})
    freezer = ThresholdFreezer(parameters.items(), start_step=2, interval=2, momentum=0.99)
    found = []
    for step in range(8):
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                # Before the start the calm one is the loudest, which does not count.
                size = {"loud": 2.0, "calm": 1.0 if step >= 2 else 9.0, "crossed": 0.1}[name]
                parameter.grad = torch.tensor([size], dtype=torch.float64)
        if step == 0:
            parameters["crossed"].data += 0.2
        found.append(freezer.step())
    assert found == [None, None, None, "calm", None, "loud", None, None]
    assert parameters["crossed"].requires_grad


def test_one_without_gradients_waits() -> None:
    parameters = thresholds({"unreached": [0.5], "reached": [0.5]})
    freezer = ThresholdFreezer(parameters.items(), start_step=0, interval=1)
    parameters["reached"].grad = torch.ones(1, dtype=torch.float64)
    assert freezer.step() == "reached"
    assert freezer.step() is None


def test_infinite_gradients_do_not_count() -> None:
    parameters = thresholds({"a": [0.5], "b": [0.5]})
    freezer = ThresholdFreezer(parameters.items(), start_step=0, interval=2)
    for gradients in ((math.inf, math.nan), (1.0, 2.0)):
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        frozen = freezer.step()
    assert frozen == "a"


@pytest.mark.parametrize("stop", [15, 31, 48])
def test_resumed_run_is_the_same(stop: int) -> None:
    values, gradients = drawn(3, 90)
    options = {"start_step": 20, "interval": 7, "momentum": 0.9}
    parameters = thresholds(values)
    whole = ThresholdFreezer(parameters.items(), **options)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    expected = train(whole, parameters, gradients, optimizer)

    first = thresholds(values)
    freezer = ThresholdFreezer(first.items(), **options)
    optimizer = torch.optim.SGD(first.values(), lr=0.1)
    found = train(freezer, first, gradients[:stop], optimizer)
    file = io.BytesIO()
    torch.save(freezer.state_dict(), file)
    file.seek(0)

    second = thresholds({name: p.tolist() for name, p in first.items()})
    resumed = ThresholdFreezer(second.items(), **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.frozen == freezer.frozen
    assert all(second[name].requires_grad == first[name].requires_grad for name in first)
    optimizer = torch.optim.SGD(second.values(), lr=0.1)
    found += train(resumed, second, gradients[stop:], optimizer, stop + 1)
    assert found == expected and len(expected) > 3
    for name in parameters:
        assert torch.equal(second[name], parameters[name])


def test_going_back_thaws() -> None:
    parameters = thresholds({"a": [0.5]})
    freezer = ThresholdFreezer(parameters.items(), start_step=0, interval=1)
    before = freezer.state_dict()
    parameters["a"].grad = torch.ones(1, dtype=torch.float64)
    assert freezer.step() == "a" and not parameters["a"].requires_grad
    freezer.load_state_dict(before)
    assert parameters["a"].requires_grad and freezer.frozen == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_optimizers_leave_frozen_ones(
    make: Callable[[list[Parameter]], torch.optim.Optimizer],
) -> None:
    """Momentum and weight decay would move them if their gradient were 0 and not None."""
    calm, loud = (Parameter(torch.tensor(0.5)) for _ in range(2))
    optimizer = make([calm, loud])
    freezer = ThresholdFreezer([("calm", calm), ("loud", loud)], start_step=3, interval=3)
    history = []
    for _ in range(8):
        (0.1 * calm + loud).backward()
        optimizer.step()
        freezer.step()
        optimizer.zero_grad()
        history.append((calm.item(), loud.item()))
    assert freezer.frozen == ("calm",)
    assert history[5][0] == history[6][0] == history[7][0] != history[4][0]
    assert len({moving for _, moving in history}) == 8


def test_script_modules_stop_training_them() -> None:
    """Also after the executor has made its plans for a threshold that trains."""

    class Quantized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(torch.tensor([0.3, -0.7]))
            self.threshold = Parameter(torch.tensor(0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            quantize = torch.ops.jit_passes.fake_quantize_tqt
            return quantize(self.weight, self.threshold, -8, 7, None) * x

    module = torch.jit.script(Quantized())
    named = [(n, p) for n, p in module.named_parameters() if "threshold" in n]
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    freezer = ThresholdFreezer(named, start_step=4, interval=2)
    history = []
    for _ in range(10):
        module(torch.ones(2)).pow(2).sum().backward()
        optimizer.step()
        freezer.step()
        optimizer.zero_grad()
        history.append((module.threshold.item(), module.weight[0].item()))
    assert freezer.frozen == ("threshold",)
    assert len({threshold for threshold, _ in history[5:]}) == 1
    assert len({threshold for threshold, _ in history[:6]}) == 6
    assert len({weight for _, weight in history}) == 10


def test_batch_size() -> None:
    parameters = thresholds({"a": [0.5]})
    freezer = ThresholdFreezer.for_batch_size(parameters.items(), 96)
    assert (freezer.start_step, freezer.interval, freezer.momentum) == (250, 50, 0.9999)


def test_errors() -> None:
    one = thresholds({"a": [0.5]})
    with pytest.raises(jit_passes.JitPassesError, match="no thresholds"):
        ThresholdFreezer([])
    with pytest.raises(jit_passes.JitPassesError, match="not a model: pass the thresholds"):
        ThresholdFreezer(torch.jit.script(torch.nn.Linear(2, 2)))
    with pytest.raises(jit_passes.JitPassesError, match="two thresholds are called 'a'"):
        ThresholdFreezer([*one.items(), *one.items()])
    with pytest.raises(jit_passes.JitPassesError, match="interval 1 or more"):
        ThresholdFreezer(one.items(), interval=0)
    with pytest.raises(jit_passes.JitPassesError, match="batch_size is 1 or more"):
        ThresholdFreezer.for_batch_size(one.items(), 0)
    freezer = ThresholdFreezer(one.items())
    other = ThresholdFreezer(thresholds({"b": [0.5]}).items()).state_dict()
    with pytest.raises(jit_passes.JitPassesError, match=r"has a threshold '[ab]'"):
        freezer.load_state_dict(other)
    wide = ThresholdFreezer(thresholds({"a": [0.5, 0.5]}).items()).state_dict()
    with pytest.raises(jit_passes.JitPassesError, match=r"shape \[1\], and \[2\]"):
        freezer.load_state_dict(wide)
