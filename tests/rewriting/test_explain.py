"""Explanations of the places where a rule does not match."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jit_passes import RewriteRule
from tests.rewriting.rules import NEG_NEG


def test_explain() -> None:
    """Near misses in order; each reason names the operator."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x: Tensor, flag: bool) -> Tensor:
            a = torch.relu(x)
            b = torch.relu(torch.sin(x))
            c = torch.relu(torch.mul(x, 3))
            d = torch.relu(torch.mul(self.first(x), 3))
            e = torch.relu(torch.mul(self.second(x), 2))
            y = torch.mul(self.third(x), 2)
            f = torch.relu(y) + y
            if flag:
                f = f + torch.relu(y)
            return a + b + c + d + e + f

    rule = RewriteRule(
        "fuse",
        """graph(%x, %w, %b):
  %two : int = prim::Constant[value=2]()
  %y = aten::linear(%x, %w, %b)
  %z = aten::mul(%y, %two)
  %o = aten::relu(%z)
  return (%o)""",
        "graph(%x):\n  return (%x)",
    )
    explanation = rule.explain(torch.jit.script(Net()))
    assert explanation.kind == "aten::relu" and len(explanation.places) == 7
    counts = [place.matched for place in explanation.places]
    assert counts == sorted(counts, reverse=True) and {p.size for p in explanation.places} == {3}
    reasons = {place.name: place.reason for place in explanation.places}
    assert (
        reasons["relu"].startswith("operand 0 of aten::relu")
        and "is an argument" in reasons["relu"]
    )
    assert (
        "it has aten::sin" in reasons["relu#1"] and "the pattern has aten::mul" in reasons["relu#1"]
    )
    assert "operand 0 of aten::mul" in reasons["relu#2"]
    assert "is 3, not 2" in reasons["relu#3"]
    assert reasons["second:linear"] == "" and "relu#4" not in reasons  # as its rewrite is called
    assert "is used by" in reasons["relu#5"]
    assert "stands in another block" in reasons["relu#6"]
    assert all(__file__ in reason or not reason for reason in reasons.values())
    text = str(explanation)
    assert "3 of 3, matches" in text and "second:linear" in text.splitlines()[0]
    nothing = rule.explain(torch.jit.script(nn.Sequential(nn.Tanh())))
    assert str(nothing) == "fuse: the graph has no aten::relu, which the pattern ends in"


def test_explain_says_what_checks_and_writes_refuse() -> None:
    """And types, operand counts, other operands and siblings that are missing."""

    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor, n: int) -> Tensor:
            z = x * y
            z.add_(1)
            a = torch.neg(torch.neg(z))
            a.mul_(2)
            return a + torch.cat([x, y, x]).sum() + z

    module = torch.jit.script(Net())
    assert "aten::mul_" in NEG_NEG.explain(module).places[0].reason
    checked = RewriteRule("neg", NEG_NEG.pattern, NEG_NEG.replacement, check=lambda m: "no")
    assert checked.explain(module).places[0].reason == "no"
    square = RewriteRule(
        "square", "graph(%x):\n  %y = aten::mul(%x, %x)\n  return (%y)", "graph(%x):\n  return (%x)"
    )
    assert "is not the %x matched before" in square.explain(module).places[0].reason
    pair = RewriteRule(
        "pair",
        "graph(%x, %y):\n  %l : Tensor[] = prim::ListConstruct(%x, %y)\n"
        "  %d : int = prim::Constant[value=0]()\n  %o = aten::cat(%l, %d)\n  return (%o)",
        "graph(%x):\n  return (%x)",
    )
    assert "has 3 operands where the pattern has 2" in pair.explain(module).places[0].reason
    siblings = RewriteRule(
        "siblings",
        "graph(%x, %y):\n  %b = aten::sin(%x)\n  %a = aten::mul(%x, %y)\n  return (%a, %b)",
        "graph(%x, %y):\n  return (%x, %y)",
    )
    assert "where the pattern has aten::sin" in siblings.explain(module).places[0].reason
