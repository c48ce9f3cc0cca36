"""Values that may be written to: elements of lists are told apart, and no write is missed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.view import GraphView
from tests.advice import traced_branches


class ListsApart(nn.Module):
    """Parts are written to; the list of weights, and what is stacked, hold others."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 2)
        a.add_(b)
        y = self.rnn(torch.cat([a, b], 2))[0]
        return torch.stack([y.relu(), y.neg()])


class Element(nn.Module):
    """An element of a list is written to, so either may be."""

    def forward(self, x: Tensor, i: int) -> Tensor:
        y, z, other = x.sigmoid(), x.tanh(), x.exp()
        held = [y, z]
        held[i].add_(1)
        return torch.stack([y, z, other])


class Appended(nn.Module):
    """A list that grows, also behind an element that is taken out of it."""

    def forward(self, x: Tensor) -> Tensor:
        y, z, other = x.sigmoid(), x.tanh(), x.exp()
        held = [y]
        held.append(z)
        for each in held:
            each.mul_(2)
        return torch.stack([y, z, other])


class InTuples(nn.Module):
    """A tuple in a dict, under a key that the caller gives."""

    def forward(self, x: Tensor, key: str) -> Tensor:
        y, z, other = x.sigmoid(), x.tanh(), x.exp()
        held = {"a": (y, z)}
        held[key][1].zero_()
        return torch.stack([y, z, other])


class Chosen(nn.Module):
    """A view in one branch, another value in the other."""

    def forward(self, x: Tensor, first: bool) -> Tensor:
        y, z, other = x.sigmoid(), x.tanh(), x.exp()
        w = y[0] if first else z[1]
        w.add_(1)
        return torch.stack([y, z, other])


def written(module: nn.Module) -> set[str]:
    """Return the kinds of nodes whose first result may be written to."""
    script = torch.jit.script(module.eval())
    model = jit_passes.prepare(script, mode="dynamic", target="reference")
    nodes = GraphView.of(model).nodes
    return {n.kind.removeprefix("aten::") for n in nodes if n.outputs and n.outputs[0].written}


@pytest.mark.parametrize("module", [Element, Appended, InTuples, Chosen])
def test_no_write_is_missed(module: type[nn.Module]) -> None:
    found = written(module())
    assert {"tanh"} <= found and "exp" not in found
    assert "sigmoid" in found or module is InTuples


@traced_branches
def test_lists_are_told_apart() -> None:
    found = written(ListsApart())
    assert not found & {"gru", "relu", "neg", "stack"}
    model = torch.jit.trace(ListsApart().eval(), torch.randn(5, 2, 16))
    for target in ("stock", "x86"):
        lowered = jit_passes.quantize_script(model, mode="dynamic", target=target)
        assert [(row.kind, row.dtype) for row in jit_passes.coverage(lowered)] == [("gru", "int8")]


class WrittenLater(nn.Module):
    """The operand of a linear is written to behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, i: int) -> Tensor:
        y = x.sigmoid()
        z = self.linear(y)
        y[i] = 1.0
        return z + y


def test_the_reason_names_the_write() -> None:
    """Of an operator whose input is quantized as the model runs, and may be another one by then."""
    model = torch.jit.script(WrittenLater().eval())
    prepared = jit_passes.prepare(model, mode="dynamic", target="x86")
    (refused,) = (
        r for r in jit_passes.partition(jit_passes.convert(prepared), "x86").refused
        if r.kind == "aten::linear"
    )  # fmt: skip
    assert refused.reason == "it reads or gives a value that is written in place"
    lowered = jit_passes.lower(jit_passes.convert(prepared))
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.allclose(lowered(x, 1), model(x, 1), atol=0.05)
