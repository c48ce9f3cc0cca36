"""Root-mean-square norms, which models spell out, for the target x86."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr

WIDTH = 48


def spelled_out(x: Tensor, weight: Tensor) -> Tensor:
    """As Llama has it."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * h.to(torch.float32)


def of_t5(x: Tensor, weight: Tensor) -> Tensor:
    """The mean alone in float32."""
    return weight * (x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6))


def divided(x: Tensor, weight: Tensor) -> Tensor:
    """By a root, with a square that is a product."""
    return x / torch.sqrt((x * x).mean(-1, True) + 1e-6) * weight


def of_torch(x: Tensor, weight: Tensor) -> Tensor:
    """The operator."""
    return F.rms_norm(x, (WIDTH,), weight, 1e-6)


SPELLINGS = (spelled_out, of_t5, divided, of_torch)


class Norm(nn.Module):
    """A norm with a weight."""

    def __init__(self, spelling: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.spelling = nn.Parameter(torch.rand(WIDTH) + 0.5), spelling

    def forward(self, x: Tensor) -> Tensor:
        return self.spelling(x, self.weight)


class Block(nn.Module):
    """Two layers behind norms, each with a sum around it, as in a decoder without attention."""

    def __init__(self, spelling: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([Norm(spelling) for _ in range(3)])
        self.up = nn.ModuleList([nn.Linear(WIDTH, 80) for _ in range(2)])
        self.down = nn.ModuleList([nn.Linear(80, WIDTH) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.up, self.down, strict=False):
            x = x + down(F.gelu(up(norm(x))))
        return self.norms[2](x)


def plans_of(model: Any) -> int:
    """The number of plans that the model calls."""
    return sum(name.startswith("region_") for name, _ in model.named_children())


def scripted(module: nn.Module, how: str, x: Tensor) -> Any:
    with torch.no_grad():
        if how == "trace":
            return torch.jit.trace(module.eval(), x, check_trace=False)
    return torch.jit.script(module.eval())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_formula(spelling: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Against double precision, with six roundings to float32."""
    torch.manual_seed(0)
    x, net = torch.randn(5, 7, WIDTH) * 30, Norm(spelling)
    model = torch.jit.freeze(scripted(net, "trace", x))
    result = jit_passes.run_pass("gather_operators", model)
    assert [n.kind() for n in result.graph.nodes() if n.kind() == "aten::rms_norm"]
    assert "rsqrt" not in str(result.graph) and "aten::sqrt" not in str(result.graph)
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    exact = exact * net.weight.double()
    assert ((result(x) - exact).abs() <= 6 * 2**-24 * exact.abs()).all()


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_plan(spelling: Callable[[Tensor, Tensor], Tensor], mode: str) -> None:
    """Norms stand within a plan, in which PyTorch's order of adding up is another one."""
    torch.manual_seed(0)
    data = [torch.randn(2, 9, WIDTH) for _ in range(4)]
    model, given = scripted(Block(spelling), "trace", data[0]), data if mode == "static" else None
    result = jit_passes.quantize_script(model, given, mode=mode, target="x86", progress=False)
    assert plans_of(result) == 1
    # A cast of what comes in stays in front of the plan: it may be one of whole numbers.
    assert {node.kind() for node in result.graph.nodes() if "aten::" in node.kind()} <= {"aten::to"}
    reference = jit_passes.quantize_script(
        model, given, mode=mode, target="reference", progress=False
    )
    x = torch.randn(3, 5, WIDTH)
    assert sqnr(model(x), result(x)) > 36
    assert sqnr(reference(x), result(x)) > 36


def test_a_norm_of_rows_with_no_numbers() -> None:
    """Zeros stay zeros, and an empty batch is one."""
    model = scripted(Block(spelled_out), "trace", torch.randn(2, 9, WIDTH))
    result = jit_passes.quantize_script(model, mode="dynamic", target="x86", progress=False)
    assert result(torch.empty(0, 9, WIDTH)).shape == (0, 9, WIDTH)
    norm = scripted(
        nn.Sequential(Norm(spelled_out), nn.Linear(WIDTH, 4)), "trace", torch.ones(1, WIDTH)
    )
    result = jit_passes.quantize_script(norm, mode="dynamic", target="x86", progress=False)
    zeros = torch.zeros(3, WIDTH)
    assert torch.equal(result(zeros), norm(zeros))


def test_layers_that_return_tuples() -> None:
    """Traced calls pack results into tuples and unpack them; plans go on across these."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return F.gelu(self.linear(x)), x

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer() for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x, before = layer(x)
                x = x + before
            return x

    torch.manual_seed(0)
    data = [torch.randn(4, WIDTH) for _ in range(3)]
    model = scripted(Net(), "trace", data[0])
    result = jit_passes.quantize_script(model, data, mode="static", target="x86", progress=False)
    assert plans_of(result) == 1
    assert sqnr(model(data[0]), result(data[0])) > 33
