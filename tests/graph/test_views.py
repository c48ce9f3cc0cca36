"""Views of a graph as text."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jit_passes
from jit_passes import GraphView, JitPassesError, RewriteRule


def test_nodes_print_without_the_graph() -> None:
    """Neighbours hold each other: printing them would print everything, many times over."""
    module = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()))
    inlined = jit_passes.Pipeline("inline", ()).run(module).module
    conv, relu = (n for n in GraphView.of(inlined).nodes if n.kind.startswith("aten::"))
    assert repr(relu) == "<1:relu = aten::relu(<0:conv2d>)>"
    assert repr(conv).startswith("<0:conv2d = aten::conv2d(<input>, <0:GetAttr>, ")
    assert repr(conv).endswith("<[1, 1]>, <[0, 0]>, <[1, 1]>, <1>)>")


class Halves(nn.Module):
    """A number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5


def test_numbers_in_traces() -> None:
    """Numbers in traces are tensors without axes, and print as tensors."""
    traced = torch.jit.trace(Halves(), torch.ones(2))
    assert "mul = aten::mul(x, <Double[] 0.5>)" in jit_passes.format_graph(traced)


@pytest.mark.parametrize("call", ["apply", "explain"])
def test_eager_modules(call: str) -> None:
    """The message says how to get a ScriptModule."""

    def relu(x: torch.Tensor):
        return torch.relu(x)

    with pytest.raises(JitPassesError, match="this ReLU is an eager module"):
        getattr(RewriteRule("relu", relu, relu), call)(nn.ReLU())
    with pytest.raises(JitPassesError, match="this ReLU is an eager module"):
        jit_passes.run_pass("remove_dead_code", nn.ReLU())
