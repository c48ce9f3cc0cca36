"""The order of rewriting: overlaps, refusals, cycles and long chains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jit_passes import _C, PassError, RewriteRule, rewrite
from tests.rewriting.rules import RELU_RELU, gelu, kinds, relus, unary


@pytest.mark.parametrize("count", [3, 4, 5])
def test_overlaps_are_deterministic(count: int) -> None:
    """Two runs give the same text, and a run on the result changes nothing."""
    first, second = RELU_RELU.apply(relus(count)), RELU_RELU.apply(relus(count))
    assert first.after == second.after and str(first) == str(second)
    assert len(first.rewritten) == count - 1 and kinds(first.module) == ["aten::relu"]
    again = RELU_RELU.apply(first.module)
    assert not again.matches and again.diff() == ""
    to_gelu = RewriteRule("two_to_one", RELU_RELU.pattern, gelu)
    texts = {to_gelu.apply(relus(count)).after for _ in range(3)}
    assert len(texts) == 1
    assert kinds(to_gelu.apply(relus(count)).module).count("aten::gelu") == count // 2


def test_refusals_are_in_order() -> None:
    """Of several rules at one node too, the same in each run."""
    rules = [
        RewriteRule(
            f"no_{i}",
            "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)",
            gelu,
            check=lambda m: False,
        )
        for i in range(20)
    ]
    rules = [
        RewriteRule(rule.name, rule.pattern, "graph(%x):\n  return (%x)", check=rule.check)
        for rule in rules
    ]
    result = rewrite(relus(3), rules)
    assert [m.rule for m in result.refused] == [rule.name for rule in rules] * 3


def test_earlier_rules_come_first() -> None:
    """At one operator the first rule that matches wins."""
    to_sin, to_cos = (
        RewriteRule(
            name,
            "graph(%x):\n  %y = aten::tanh(%x)\n  return (%y)",
            f"graph(%x):\n  %y = aten::{name}(%x)\n  return (%y)",
        )
        for name in ("sin", "cos")
    )
    module = torch.jit.script(nn.Sequential(nn.Tanh()))
    assert kinds(rewrite(module, [to_sin, to_cos]).module) == ["aten::sin"]
    assert kinds(rewrite(module, [to_cos, to_sin]).module) == ["aten::cos"]


@pytest.mark.parametrize("inplace", [False, True])
def test_cycles(inplace: bool) -> None:
    """Are named, and the module is as it was."""
    rules = [
        unary("a", "aten::sin", "aten::cos"),
        unary("b", "aten::cos", "aten::tan"),
        unary("c", "aten::tan", "aten::sin"),
    ]
    module = type("Made", (torch.jit.ScriptModule,), {})()
    module.define("def forward(self, x: Tensor) -> Tensor:\n    return torch.sin(x)\n")
    before = str(module.graph)
    with pytest.raises(
        PassError, match=r"'(a|b|c)' -> '(a|b|c)' -> '(a|b|c)' -> '(a|b|c)'"
    ) as caught:
        rewrite(module, rules, inplace=inplace)
    assert "without end" in str(caught.value)
    assert str(module.graph) == before
    two = [unary("a", "aten::sin", "aten::cos"), unary("b", "aten::cos", "aten::sin")]
    with pytest.raises(PassError, match=r"('a' -> 'b' -> 'a'|'b' -> 'a' -> 'b')"):
        rewrite(module, two)


def test_growing_rules() -> None:
    """A rule that makes its own pattern anew."""
    rule = RewriteRule(
        "grow",
        "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)",
        "graph(%x):\n  %y = aten::relu(%x)\n  %z = aten::relu(%y)\n  return (%z)",
    )
    with pytest.raises(PassError, match=r"'grow' -> 'grow'"):
        rule.apply(relus(2))


def test_long_chains() -> None:
    """Thousands of rewrites, each of the last one's result, are no cycle, and take no stack."""
    result = RELU_RELU.apply(relus(5000))
    assert len(result.rewritten) == 4999 and kinds(result.module) == ["aten::relu"]


def test_very_long_chains() -> None:
    """A hundred thousand."""
    lines = ["graph(%v0 : Tensor):"]
    lines += [f"  %v{i + 1} : Tensor = aten::relu(%v{i})" for i in range(100_000)]
    graph = torch._C.parse_ir("\n".join([*lines, "  return (%v100000)"]))
    assert len(_C.apply_rules(graph, "", [RELU_RELU.compile()])) == 99_999
    assert str(graph).count("aten::relu") == 1
