"""Activations that a model spells out: one operator of a plan, however they are written."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from tests.compare import sqnr
from tests.plans import plans_in
from tests.processor import needs_vnni

WIDTH = 32


def gelu_new(x: Tensor) -> Tensor:
    """As GPT-2 and ALBERT of Hugging Face have it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3.0))))


def gelu_fast(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_erf(x: Tensor) -> Tensor:
    """As the first BERT for PyTorch has it."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def swish_exp(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def hard_swish(x: Tensor) -> Tensor:
    """As the first MobileNetV3 for PyTorch has it."""
    return x * F.relu6(x + 3.0) / 6.0


def hard_sigmoid(x: Tensor) -> Tensor:
    return F.hardtanh(x + 3, 0.0, 6.0) * (1 / 6)


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


KINDS: dict[Callable[[Tensor], Tensor], str] = {
    gelu_new: "gelu",
    gelu_fast: "gelu",
    gelu_erf: "gelu",
    swish: "silu",
    swish_exp: "silu",
    hard_swish: "hardswish",
    hard_sigmoid: "hardsigmoid",
    mish: "mish",
}
named = pytest.mark.parametrize("function", KINDS, ids=lambda f: f.__name__)


class Net(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.function = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), function

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.function(self.up(x)))


def traced(function: Callable[[Tensor], Tensor]) -> tuple[nn.Module, torch.jit.ScriptModule]:
    torch.manual_seed(0)
    model = Net(function).eval()
    with torch.no_grad():
        return model, torch.jit.trace(model, torch.randn(2, WIDTH))  # type: ignore[no-untyped-call]


@named
def test_values(function: Callable[[Tensor], Tensor]) -> None:
    """Against the function itself in double precision: a few roundings of float32."""
    _, script = traced(function)
    frozen = torch.jit.freeze(script)
    result = jit_passes.run_pass("gather_operators", frozen)
    kinds = [node.kind() for node in result.graph.nodes() if "aten::" in node.kind()]
    assert kinds == ["aten::linear", f"aten::{KINDS[function]}", "aten::linear"]
    x = torch.linspace(-9, 9, 64 * WIDTH).reshape(64, WIDTH)
    torch.testing.assert_close(result(x), frozen(x), rtol=1e-5, atol=2e-5)


@needs_vnni
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@named
def test_one_plan(function: Callable[[Tensor], Tensor], mode: str) -> None:
    """On integers in the mode static, as one table; in float32 in the mode dynamic."""
    model, script = traced(function)
    data = [torch.randn(16, WIDTH) for _ in range(4)] if mode == "static" else None
    quantized = jit_passes.quantize_script(script, data, target="x86", mode=mode, progress=False)
    assert len(plans_in(quantized)) == 1
    assert not [node for node in quantized.graph.nodes() if "aten::" in node.kind()]
    x = torch.randn(16, WIDTH)
    with torch.no_grad():
        assert sqnr(model(x), quantized(x)) > 24


def test_nested() -> None:
    """Activations that read the results of others."""
    _, script = traced(lambda x: gelu_new(hard_swish(swish(x))))
    result = jit_passes.run_pass("gather_operators", torch.jit.freeze(script))
    kinds = [node.kind() for node in result.graph.nodes() if "aten::" in node.kind()]
    assert kinds[1:-1] == ["aten::silu", "aten::hardswish", "aten::gelu"]


def test_what_is_kept_for_others() -> None:
    """A value in between that something else reads stays."""
    _, script = traced(lambda x: (gate := torch.sigmoid(x)) * x + gate)
    result = jit_passes.run_pass("gather_operators", torch.jit.freeze(script))
    kinds = [node.kind() for node in result.graph.nodes() if "aten::" in node.kind()]
    assert sorted(kinds[1:-1]) == ["aten::add", "aten::sigmoid", "aten::silu"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.sigmoid(1.702 * x),
        lambda x: x[..., ::2].repeat(1, 2) * torch.sigmoid(x),
        lambda x: (0.2 * x + 0.5).clamp(0, 1) * x,
        lambda x: 0.5 * x * (1 + torch.tanh(x)),
    ],
)
def test_others_stay(function: Callable[[Tensor], Tensor]) -> None:
    _, script = traced(function)
    frozen = torch.jit.freeze(script)
    result = jit_passes.run_pass("gather_operators", frozen)
    before, after = ([node.kind() for node in m.graph.nodes()] for m in (frozen, result))
    assert after == before
