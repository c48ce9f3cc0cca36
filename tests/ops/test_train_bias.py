"""Biases that train in steps of the accumulator, against the formula in double precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import jit_passes  # noqa: F401  registers the operator

LOW, HIGH = -(2**31) + 1, 2**31 - 1
# Rule, state and scale of a place.
PLACES = {
    "scale": ("scale", torch.tensor([0.037]), -8, 7, 0.037),
    "threshold": ("log2_threshold", torch.tensor([0.3]), -8, 7, 2 / 8),
    "range": ("per_tensor_affine", torch.tensor([-0.5, 1.0]), 0, 15, 1.5 / 15),
    "power": ("per_tensor_power_of_two", torch.tensor([-0.5, 1.0]), -8, 7, 0.25),
}


def train_bias(x: Tensor, first: str, second: str, enabled: bool = True) -> Tensor:
    """The operator with two places by name."""
    rule, state, low, high, _ = PLACES[first]
    other, weight, below, above, _ = PLACES[second]
    return torch.ops.jit_passes.train_bias(
        x, state, rule, low, high, weight, other, below, above, enabled, LOW, HIGH, "", ""
    )


@pytest.mark.parametrize("first", PLACES)
@pytest.mark.parametrize("second", PLACES)
def test_formula(first: str, second: str) -> None:
    """A whole number of steps, exactly; the gradient goes straight through."""
    torch.manual_seed(0)
    x = torch.randn(6, requires_grad=True)
    result = train_bias(x, first, second)
    step = torch.tensor(PLACES[first][4]) * torch.tensor(PLACES[second][4])
    codes = (x.detach().double() / step.double()).round()
    assert torch.equal(result.detach(), codes.float() * step) and not torch.equal(result, x)
    result.backward(torch.arange(6.0))
    assert torch.equal(x.grad, torch.arange(6.0))


@pytest.mark.parametrize(
    ("rule", "state"),
    [("scale", [math.inf]), ("log2_threshold", [math.inf]),
     ("per_tensor_affine", [math.inf, -math.inf])],
)  # fmt: skip
def test_unknown_scales(rule: str, state: list[float]) -> None:
    """Before the first batch a bias is what it is; so it is where quantization is off."""
    x = torch.randn(4)
    found = torch.ops.jit_passes.train_bias(
        x, torch.tensor(state), rule, -8, 7, torch.tensor([0.1]), "scale", -8, 7, True,
        LOW, HIGH, "", "",
    )  # fmt: skip
    assert torch.equal(found, x)
    off = train_bias(x, "scale", "scale", enabled=False)
    assert torch.equal(off, x) and off.data_ptr() != x.data_ptr()


def test_channels() -> None:
    """Each channel has steps of its own."""
    x, scales = torch.randn(5), torch.rand(5) + 0.1
    found = torch.ops.jit_passes.train_bias(
        x, torch.tensor([0.5]), "scale", 0, 255, scales, "scale", -127, 127, True,
        LOW, HIGH, "", "",
    )  # fmt: skip
    steps = 0.5 * scales.double()
    torch.testing.assert_close(found.double(), (x.double() / steps).round() * steps)
