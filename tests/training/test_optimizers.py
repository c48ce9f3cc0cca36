"""An optimizer that was built before the model was prepared is noticed, once, and no other."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import nn

import jit_passes
from jit_passes.training import optimizers
from jit_passes.training.optimizers import watch


class Prepared(nn.Module):
    """A module with two weights and a scale, as preparing makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def prepared(script: bool = False) -> nn.Module:
    module = torch.jit.script(Prepared()) if script else Prepared()
    parameters = dict(module.named_parameters())
    scale = parameters.pop("scale")
    watch(module, parameters.values(), [scale])
    return module


def sgd(module: nn.Module, *names: str) -> torch.optim.Optimizer:
    parameters = [p for n, p in module.named_parameters() if any(x in n for x in names)]
    return torch.optim.SGD(parameters, lr=0.1)


def steps(module: nn.Module, count: int, *used: torch.optim.Optimizer) -> None:
    for _ in range(count):
        module(torch.ones(1, 2)).sum().backward()
        for optimizer in used:
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture(autouse=True)
def forget() -> None:
    gc.collect()
    optimizers._watched.clear()


@pytest.mark.parametrize("script", [False, True])
def test_warns_at_the_second_step_and_once(script: bool) -> None:
    module = prepared(script)
    optimizer = sgd(module, "layer")
    steps(module, 1, optimizer)
    with pytest.warns(jit_passes.JitPassesWarning, match="knows 2 weights") as caught:
        steps(module, 1, optimizer)
    assert "none of its 1 quantization parameter," in str(caught[0].message)
    assert "add_param_group" in str(caught[0].message)
    assert caught[0].filename == __file__
    steps(module, 5, optimizer)  # warnings are errors in these tests


@pytest.mark.parametrize("script", [False, True])
def test_one_optimizer_for_all(script: bool) -> None:
    module = prepared(script)
    steps(module, 4, sgd(module, "layer", "scale"))
    assert not optimizers._watched  # it is known by now, and costs nothing


@pytest.mark.parametrize("order", [("layer", "scale"), ("scale", "layer")])
def test_two_optimizers(order: tuple[str, str]) -> None:
    module = prepared()
    steps(module, 4, *(sgd(module, name) for name in order))


def test_group_added_after_the_first_step() -> None:
    module = prepared()
    optimizer = sgd(module, "layer")
    steps(module, 1, optimizer)
    optimizer.add_param_group({"params": [module.scale]})
    steps(module, 3, optimizer)


def test_frozen_parameters() -> None:
    """Nothing is said as long as they do not train; afterwards it is."""
    module = prepared()
    optimizer = sgd(module, "layer")
    module.scale.requires_grad_(False)
    steps(module, 4, optimizer)
    module.scale.requires_grad_(True)
    steps(module, 1, optimizer)
    with pytest.warns(jit_passes.JitPassesWarning):
        steps(module, 1, optimizer)


def test_some_weights_suffice() -> None:
    module = prepared()
    optimizer = sgd(module, "bias")
    with pytest.warns(jit_passes.JitPassesWarning, match="knows 1 weight "):
        steps(module, 2, optimizer)


def test_other_optimizers() -> None:
    module, other = prepared(), Prepared()
    steps(other, 4, sgd(other, "layer"))
    assert id(module) in optimizers._watched


def test_two_optimizers_for_the_weights() -> None:
    """Each has stepped once when the one for the scale does."""
    module = prepared()
    steps(module, 3, sgd(module, "weight"), sgd(module, "bias"), sgd(module, "scale"))


@pytest.mark.parametrize("script", [False, True])
def test_modules_that_are_gone(script: bool) -> None:
    module = prepared(script)
    optimizer = sgd(module, "layer")
    assert len(optimizers._watched) == 1
    del module
    gc.collect()
    assert not optimizers._watched
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.step()


def test_one_hook() -> None:
    prepared()
    hook = optimizers._hook
    prepared()
    assert optimizers._hook is hook
