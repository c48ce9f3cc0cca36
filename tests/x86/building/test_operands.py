"""Operands that plans do not take, or take in another form: the model keeps its results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.compare import sqnr
from tests.plans import plans_in


class Between(nn.Module):
    """A function between linear layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


class Result(Between):
    """A function whose value is the model's result."""

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x))


class Stacked(nn.Module):
    """Six axes, which only the convolution's window tells."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (
            nn.Conv3d(3, 4, 1),
            nn.Conv3d(3, 4, 1),
            nn.Conv3d(4, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        both = torch.stack([self.first(x), self.second(x)], 1)
        return self.last((both * both.softmax(1)).sum(1))


class Like(nn.Module):
    """Shapes of constants."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(4, 8)
        self.method = method
        self.register_buffer("other", torch.zeros(2, 6, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        if self.method == "expand_as":
            return self.last(y[..., :1].expand_as(self.other))
        return self.last(getattr(y, self.method)(self.other))


def quantized(
    model: nn.Module, x: Tensor, mode: str, script: bool = False
) -> torch.jit.ScriptModule:
    made = torch.jit.script(model) if script else torch.jit.trace(model, x)
    return jit_passes.quantize_script(made, [x], target="x86", mode=mode, progress=False)


@pytest.mark.parametrize("mode", ["static", "dynamic", "auto"])
@pytest.mark.parametrize("script", [True, False], ids=["script", "trace"])
def test_axes_behind_a_convolution(script: bool, mode: str) -> None:
    torch.manual_seed(0)
    model, x = Stacked().eval(), torch.randn(2, 3, 4, 5, 6)
    with torch.no_grad():
        assert sqnr(model(x), quantized(model, x, mode, script)(x)) > 25


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("method", ["view_as", "reshape_as", "expand_as"])
def test_shapes_of_constants(method: str, mode: str) -> None:
    torch.manual_seed(0)
    shape = (2, 6, 8) if method == "expand_as" else (2, 3, 8)
    model, x = Like(method).eval(), torch.randn(shape)
    found = quantized(model, x, mode)
    with torch.no_grad():
        assert sqnr(model(x), found(x)) > 25
    assert plans_in(found)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "truths": lambda x: torch.tanh(x > 0) * 2,
    "truths and numbers": lambda x: torch.exp(x > 0) * x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_truths(name: str) -> None:
    """Truths become float32 in functions; points in float64 do not tell the activation."""
    torch.manual_seed(0)
    model, x = Between(FUNCTIONS[name]).eval(), torch.randn(16, 8)
    found = quantized(model, x, "static")
    with torch.no_grad():
        assert sqnr(model(x), found(x)) > 25


def test_a_clip_at_nan() -> None:
    """All results are NaN."""
    model, x = Result(lambda x: x.clamp(float("nan"), 1.0)).eval(), torch.randn(4, 8)
    found = quantized(model, x, "dynamic")
    assert found(x).isnan().all() and model(x).isnan().all()


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("shape", [(), (1,)], ids=["no axis", "one axis"])
def test_ends_in_float64(shape: tuple[int, ...], mode: str) -> None:
    """A tensor without axes is a number; with one, its dtype is the result's."""
    torch.manual_seed(0)
    end = torch.zeros(shape, dtype=torch.float64)
    model, x = Result(lambda x: x.clamp(min=end)).eval(), torch.randn(4, 8)
    found = quantized(model, x, mode)
    with torch.no_grad():
        wanted = model(x)
        assert found(x).dtype == wanted.dtype
        assert sqnr(wanted, found(x)) > 25
