"""Rules as expressions: they are what IR text is, and say where they are wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from jit_passes import JitPassesError, Match, RewriteRule


class Norms(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = torch.max(x, 1, True)
        c = torch.nn.functional.gelu(a, approximate="tanh").mean([-1], True)
        d = torch.clamp(y, min=0.5) - 1.5e-3
        return torch.relu(c) + torch.sigmoid(c), b, d


EXPRESSIONS = {
    "calls": (
        "aten::mean(aten::gelu(%x, %how : str), [-1], True, None)",
        'aten::neg(aten::mean(aten::gelu(%x, "none"), [-1], True, None))',
        """graph(%x, %how : str):
  %last : int = prim::Constant[value=-1]()
  %axes : int[] = prim::ListConstruct(%last)
  %yes : bool = prim::Constant[value=1]()
  %none : NoneType = prim::Constant()
  %g = aten::gelu(%x, %how)
  %m = aten::mean(%g, %axes, %yes, %none)
  return (%m)""",
        """graph(%x):
  %how : str = prim::Constant[value="none"]()
  %g = aten::gelu(%x, %how)
  %axes : int[] = prim::Constant[value=[-1]]()
  %yes : bool = prim::Constant[value=1]()
  %none : NoneType = prim::Constant()
  %m = aten::mean(%g, %axes, %yes, %none)
  %n = aten::neg(%m)
  return (%n)""",
    ),
    "several_results": (
        "%a, %b = aten::max(%x, 1, True)  # both are read\n(%a, %b)",
        "%n = aten::neg(%x)\n%a, %b = aten::min(%n, 1, True)\n(aten::neg(%a), %b)",
        """graph(%x):
  %one : int = prim::Constant[value=1]()
  %yes : bool = prim::Constant[value=1]()
  %a : Tensor, %b : Tensor = aten::max(%x, %one, %yes)
  return (%a, %b)""",
        """graph(%x):
  %n = aten::neg(%x)
  %one : int = prim::Constant[value=1]()
  %yes : bool = prim::Constant[value=1]()
  %a : Tensor, %b : Tensor = aten::min(%n, %one, %yes)
  %c = aten::neg(%a)
  return (%c, %b)""",
    ),
    "numbers": (
        "aten::sub(aten::clamp(%x, 0.5, None), 0.0015, 1)",
        "aten::sub(aten::clamp(%x, 5e-1, None), 1.5e-3, -1)",
        """graph(%x):
  %half : float = prim::Constant[value=0.5]()
  %none : NoneType = prim::Constant()
  %small : float = prim::Constant[value=0.0015]()
  %one : int = prim::Constant[value=1]()
  %c = aten::clamp(%x, %half, %none)
  %s = aten::sub(%c, %small, %one)
  return (%s)""",
        """graph(%x):
  %half : float = prim::Constant[value=0.5]()
  %none : NoneType = prim::Constant()
  %c = aten::clamp(%x, %half, %none)
  %small : float = prim::Constant[value=0.0015]()
  %one : int = prim::Constant[value=-1]()
  %s = aten::sub(%c, %small, %one)
  return (%s)""",
    ),
    "shared": (
        "%s = aten::sigmoid(%x)\naten::add(aten::relu(%x), %s, 1)",
        "%n = aten::neg(%x)\naten::mul(%n, %n)",
        """graph(%x):
  %one : int = prim::Constant[value=1]()
  %s = aten::sigmoid(%x)
  %r = aten::relu(%x)
  %y = aten::add(%r, %s, %one)
  return (%y)""",
        "graph(%x):\n  %n = aten::neg(%x)\n  %y = aten::mul(%n, %n)\n  return (%y)",
    ),
    "an_input": (
        "aten::sigmoid(%x)",
        "%x",
        "graph(%x):\n  %y = aten::sigmoid(%x)\n  return (%y)",
        "graph(%x):\n  return (%x)",
    ),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_are_graphs(name: str) -> None:
    """Expressions rewrite as an equal rule in IR text does."""
    pattern, replacement, pattern_ir, replacement_ir = EXPRESSIONS[name]
    model = torch.jit.script(Norms())
    short = RewriteRule("mine", pattern, replacement, repeat=False).apply(model)
    long = RewriteRule("mine", pattern_ir, replacement_ir, repeat=False).apply(model)
    assert len(short.rewritten) == 1
    assert short.after == long.after != short.before


def test_types() -> None:
    """The type of an input stands where it is named first."""
    model = torch.jit.script(Norms())
    for kind, count in (("str", 1), ("int", 0), ("int[]?", 0), ("Tensor?", 0)):
        rule = RewriteRule("mine", f"aten::gelu(%x, %how : {kind})", "aten::relu(%x)")
        assert len(rule.apply(model).rewritten) == count


BAD = {
    "bracket": ("aten::relu(%x", "expected ',' or the closing bracket"),
    "more": ("aten::relu(%x) aten::neg(%x)", "expected the end at 'aten::neg"),
    "no_operator": ("%y = relu(%x)\n%y", "expected an operator such as aten::relu"),
    "text": ('aten::gelu(%x, "tanh)', "expected a text that ends"),
    "type": ("aten::relu(%x : Tensorr)", "expected a type at 'Tensorr"),
    "twice": ("%y = aten::relu(%x)\n%y = aten::neg(%y)\n%y", "%y is defined twice"),
    "unknown": ("aten::reluu(%x)", "no operator aten::reluu; there is .*aten::relu"),
    "results": ("%a, %b = aten::relu(%x)\n(%a, %b)", "2 results are taken of aten::relu"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_expressions(name: str) -> None:
    """An error says the expected input, and the place."""
    text, message = BAD[name]
    with pytest.raises(JitPassesError, match=f"rule 'mine': .*{message}"):
        RewriteRule("mine", text, "%x").compile()


class Writes(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.clamp(x, min=0)
        y.mul_(2)
        return y + torch.clamp(x * 3, min=0)


def test_checks_see_what_is_written() -> None:
    """By the names of inputs and results."""
    seen: list[frozenset[str]] = []

    def check(match: Match) -> bool | str:
        seen.append(match.written)
        return "y" not in match.written or "its result is written to"

    rule = RewriteRule(
        "mine", "%y = aten::clamp(%x, 0, None)\n%y", "aten::relu(%x)", check=check, repeat=False
    )
    result = rule.apply(torch.jit.script(Writes()))
    assert [match.refused for match in result.refused] == ["its result is written to"]
    assert len(result.rewritten) == 1
    assert {*seen} == {frozenset({"y"}), frozenset()}
