"""Rules and small models for tests of rewriting."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes import GraphView, Match, RewriteRule

ACTIVATION = {"match::activation": ["aten::relu", "aten::relu_", "aten::relu6"]}


def kinds(module: torch.jit.ScriptModule, method: str = "forward") -> list[str]:
    """Operators of the method, without constants and attributes."""
    skip = {"prim::Constant", "prim::GetAttr"}
    return [node.kind for node in GraphView.of(module, method).nodes if node.kind not in skip]


def shape(*sizes: int) -> Tensor:
    """A seeded tensor."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def unary(name: str, wanted: str, given: str) -> RewriteRule:
    """A rule that replaces one operator of one operand by another."""
    return RewriteRule(
        name,
        f"graph(%x):\n  %y = {wanted}(%x)\n  return (%y)",
        f"graph(%x):\n  %y = {given}(%x)\n  return (%y)",
    )


def scale_by_two(x: Tensor) -> Tensor:
    """A pattern as a function."""
    return torch.relu(x * 2)


def gelu(x: Tensor) -> Tensor:
    """A replacement as a function."""
    return F.gelu(x)


class Doubled(nn.Module):
    """The pattern of scale_by_two, twice, and once with 3."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * 2) + torch.relu(x.sin() * 2.0) + torch.relu(x * 3)


NEG_NEG = RewriteRule(
    "neg_neg",
    "graph(%x):\n  %a = aten::neg(%x)\n  %b = aten::neg(%a)\n  return (%b)",
    "graph(%x):\n  return (%x)",
)


def module_of(body: str, arguments: str = "x: Tensor") -> torch.jit.ScriptModule:
    """A module whose forward is this."""
    module = type("Made", (torch.jit.ScriptModule,), {})()
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    module.define(f"def forward(self, {arguments}):\n{lines}\n")
    return module


def relus(count: int) -> torch.jit.ScriptModule:
    """relu(relu(relu(...)))."""
    return module_of("x = torch.relu(x)\n" * count + "return x")


RELU_RELU = RewriteRule(
    "relu_relu",
    "graph(%x):\n  %a = aten::relu(%x)\n  %b = aten::relu(%a)\n  return (%b)",
    "graph(%x):\n  %a = aten::relu(%x)\n  return (%a)",
)


def once() -> Any:
    """A check that agrees to the first match only."""
    seen: list[Match] = []

    def check(match: Match) -> bool:
        seen.append(match)
        return len(seen) == 1

    return check
