"""Rules on operators that commute: operands match in either order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes import _C, RewriteRule
from jit_passes.graph.traits import kinds as kinds_that
from tests.rewriting.rules import module_of, shape


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


def gate(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


GATE = RewriteRule("gate", gate, silu)


class Gate(nn.Module):
    """A product in one order."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Exchanged(nn.Module):
    """A product in the other one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * x


@pytest.mark.parametrize("net", [Gate(), Exchanged()], ids=lambda net: type(net).__name__)
@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_either_order(net: nn.Module, frontend: str) -> None:
    """The match has one name: that of the operator whose place the replacement takes."""
    x = shape(4, 5)
    module = torch.jit.trace(net, x) if frontend == "trace" else torch.jit.script(net)
    result = GATE.apply(module)
    assert [match.name for match in result.rewritten] == ["sigmoid"]
    assert [place.name for place in GATE.explain(module).places] == ["sigmoid"]
    assert torch.equal(result.module(x), F.silu(x))


def test_as_written() -> None:
    """With commutative=False; `explain` says where the order alone differs."""
    rule = RewriteRule("gate", gate, silu, commutative=False)
    module = module_of("return torch.sigmoid(x) * x")
    assert not rule.apply(module).matches
    (place,) = rule.explain(module).places
    assert "it has aten::sigmoid" not in place.reason and "where the pattern has" in place.reason
    assert place.reason.endswith("in the other order it matches: leave out commutative=False")
    other = module_of("return torch.tanh(x) * x")
    assert "other order" not in rule.explain(other).places[0].reason


def test_all_combinations() -> None:
    """Four operators that commute: each of the sixteen orders is the same pattern."""

    def pattern(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return (torch.sin(x) + torch.cos(y)) * torch.tanh(z) + torch.maximum(x, torch.neg(z))

    def replacement(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.addcmul(torch.sub(x, y), x, z, value=1.0)

    rule = RewriteRule("all", pattern, replacement)
    pairs = [
        ("torch.sin(x) + torch.cos(y)", "torch.cos(y) + torch.sin(x)"),
        ("({}) * torch.tanh(z)", "torch.tanh(z) * ({})"),
        ("torch.maximum(x, torch.neg(z))", "torch.maximum(torch.neg(z), x)"),
        ("{} + {}", "{1} + {0}"),
    ]
    x, y, z = shape(3, 4), shape(4), shape(3, 1)
    for inner, product, largest, outer in itertools.product(*pairs):
        text = outer.format(product.format(inner), largest)
        module = module_of(f"return {text}", "x: Tensor, y: Tensor, z: Tensor")
        result = rule.apply(module)
        assert len(result.rewritten) == 1, text
        assert torch.equal(result.module(x, y, z), torch.addcmul(x - y, x, z)), text


def test_an_order_that_a_later_operand_rules_out() -> None:
    """The sum matches both ways; that `x` is the sine's operand too decides which is right."""

    def pattern(x: Tensor, y: Tensor) -> Tensor:
        return (x + y) * torch.sin(x)

    def replacement(x: Tensor, y: Tensor) -> Tensor:
        return torch.sub(x, y)

    rule = RewriteRule("later", pattern, replacement)
    a, b = shape(3), shape(3) + 2
    for text in ("(a + b) * torch.sin(a)", "(b + a) * torch.sin(a)", "torch.sin(a) * (b + a)"):
        module = module_of(f"return {text}", "a: Tensor, b: Tensor")
        assert torch.equal(rule.apply(module).module(a, b), a - b), text
    module = module_of("return (a + b) * torch.sin(c)", "a: Tensor, b: Tensor, c: Tensor")
    assert not rule.apply(module).matches


def test_siblings_in_either_order() -> None:
    """Nodes that only a user leads to: the difference and the scaled sum of two values."""

    def pattern(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sub(x, y), torch.sin(x) + y

    def replacement(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.mul(x, y), torch.div(x, y)

    rule = RewriteRule("pair", pattern, replacement)
    x, y = shape(3), shape(3) + 5
    for total in ("torch.sin(x) + y", "y + torch.sin(x)"):
        module = module_of(f"a = x - y\nb = {total}\nreturn a * b", "x: Tensor, y: Tensor")
        result = rule.apply(module)
        assert torch.equal(result.module(x, y), x * y * (x / y)), str(rule.explain(module))


NOT_COMMUTATIVE = [
    ("torch.add(torch.sin(x), x, alpha=2)", "torch.add(x, torch.sin(x), alpha=2)"),
    ("torch.sin(x) - x", "x - torch.sin(x)"),
    ("torch.sin(x) @ x", "x @ torch.sin(x)"),
    ("torch.sin(x) / x", "x / torch.sin(x)"),
    ("torch.sin(x) < x", "x < torch.sin(x)"),
]


@pytest.mark.parametrize(("text", "other"), NOT_COMMUTATIVE)
def test_operators_that_do_not_commute(text: str, other: str) -> None:
    """Among them additions that scale the second operand."""
    graph = str(module_of(f"return {text}").graph)
    found = {k: k in graph for k in ("aten::add(", "aten::sub(", "aten::matmul(", "aten::div(")}
    operator = next((k[:-1] for k, has in found.items() if has), "aten::lt")
    alpha = ", %alpha" * (operator in ("aten::add", "aten::sub"))
    rule = RewriteRule(
        "any",
        f"graph(%x{alpha}):\n  %y = aten::sin(%x)\n  %z = {operator}(%y, %x{alpha})\n  return (%z)",
        "graph(%x):\n  %y = aten::cos(%x)\n  return (%y)",
    )
    assert len(rule.apply(module_of(f"return {text}")).matches) == 1
    assert not rule.apply(module_of(f"return {other}")).matches


def test_the_table_of_operators_that_commute() -> None:
    """Each gives the same bits both ways, for tensors of the types that it takes."""
    tensors = {"float": [shape(64), shape(64) * 3 - 1], "int": [torch.arange(64) - 30] * 2}
    tensors["int"][1] = torch.arange(64).flip(0) % 7 - 3
    tensors["bool"] = [t > 0 for t in tensors["int"]]
    tried = set()
    for kind in kinds_that(lambda traits: traits.commutes):
        namespace, _, name = kind.partition("::")
        packet = getattr(torch.ops.aten, name, None)
        for a, b in tensors.values() if namespace == "aten" and packet is not None else ():
            try:
                found = packet(a, b)
            except (RuntimeError, NotImplementedError, TypeError):
                continue
            tried.add(kind)
            other = packet(b, a)
            assert torch.equal(found, other) if isinstance(found, Tensor) else found == other, kind
    assert len(tried) >= 17, tried


def test_lists_do_not_commute() -> None:
    """A sum of lists is one behind the other."""

    def pattern(x: Tensor, sizes: list[int]) -> Tensor:
        return x.reshape([2] + sizes)  # noqa: RUF005

    def replacement(x: Tensor, sizes: list[int]) -> Tensor:
        return torch.neg(x)

    rule = RewriteRule("lists", pattern, replacement)
    arguments = "x: Tensor, sizes: List[int]"
    assert rule.apply(module_of("return x.reshape([2] + sizes)", arguments)).rewritten
    assert not rule.apply(module_of("return x.reshape(sizes + [2])", arguments)).matches


def test_tensors_stand_first() -> None:
    """PyTorch has `x * 2` for `2 * x`: an input without a type in front is not matched with 2."""
    rule = RewriteRule(
        "scaled",
        "graph(%s, %x):\n  %r = aten::relu(%x)\n  %z = aten::mul(%s, %r)\n  return (%z)",
        "graph(%s, %x):\n  %z = aten::mul(%s, %x)\n  return (%z)",
    )
    assert not rule.apply(module_of("return torch.relu(x) * 2.0")).matches
    assert rule.apply(module_of("return torch.relu(x) * x.sin()")).rewritten


def test_a_check_that_refuses_one_order() -> None:
    """The other one is tried: names of inputs tell the difference."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x + self.shift, self.shift + x, x + x.sin()

    def pattern(x: Tensor, shift: Tensor) -> Tensor:
        return x + shift

    def replacement(x: Tensor, shift: Tensor) -> Tensor:
        return torch.sub(x, shift)

    def known(match: Any) -> bool | str:
        return "shift" in match.constants or "the shift is computed"

    rule = RewriteRule("shift", pattern, replacement, check=known)
    result = rule.apply(torch.jit.script(Net()))
    assert len(result.rewritten) == 2
    assert [match.refused for match in result.refused] == ["the shift is computed"]
    x = shape(3)
    first, second, third = result.module(x)
    assert torch.equal(first, x - 1) and torch.equal(second, x - 1)
    assert torch.equal(third, x + x.sin())


def chain(nodes: int, line: Callable[[int], str]) -> Any:
    """A graph of so many lines, each of which defines %v1, %v2, ..."""
    lines = [line(i) for i in range(nodes)]
    header = "graph(%v0 : Tensor, %w : Tensor):\n  %one : int = prim::Constant[value=1]()\n"
    return torch._C.parse_ir(header + "\n".join(lines) + f"\n  return (%v{nodes})")


def sums(nodes: int) -> Any:
    """Additions with two earlier results each: every order of every one looks right at first."""
    return chain(
        nodes, lambda i: f"  %v{i + 1} : Tensor = aten::add(%v{i}, %v{max(i - 1, 0)}, %one)"
    )


def test_rules_that_exchange_operands_end() -> None:
    """The result of such a rule is its pattern again, in the other order."""

    def pattern(x: Tensor) -> Tensor:
        return torch.relu(x) + x

    def replacement(x: Tensor) -> Tensor:
        return x + torch.relu(x)

    rule = RewriteRule("relu_behind", pattern, replacement)
    result = rule.apply(module_of("return (torch.relu(x) + x) * (x + torch.relu(x))"))
    assert len(result.rewritten) == 2
    sums = [line for line in result.after.splitlines() if "aten::add" in line]
    assert len(sums) == 2 and all("add(x, relu" in line for line in sums)


def deep(terms: int, leaf: str) -> RewriteRule:
    """A sum of so many terms, the innermost one of which is a function of the first."""
    lines = [f"  %s0 = aten::{leaf}(%x0)"]
    lines += [f"  %s{i + 1} = aten::add(%s{i}, %x{i}, %one)" for i in range(terms)]
    inputs = ", ".join(f"%x{i}" for i in range(terms))
    text = f"graph({inputs}):\n  %one : int = prim::Constant[value=1]()\n" + "\n".join(lines)
    return RewriteRule("deep", f"{text}\n  return (%s{terms})", f"graph({inputs}):\n  return (%x0)")


def seconds(graph: Any, rule: RewriteRule) -> float:
    compiled = rule.compile()
    start = time.perf_counter()
    assert not _C.apply_rules(graph, "", [compiled])
    return time.perf_counter() - start


def test_time_does_not_grow_with_the_number_of_orders() -> None:
    """2^20 orders at each of 10,000 nodes: the nodes above are compared once for each pair."""
    graph = sums(10_000)
    assert seconds(graph, deep(20, "sin")) < 20  # 0.5 s on an idle machine; all orders take weeks


def joined(count: int, part: str, first: str) -> tuple[str, str]:
    """Sum and product of each of several pairs in one list, as a statement, and its arguments.

    Which of a pair's values is x is open until both are known.
    """
    parts = [(part if i else first).format(i, i + 1) for i in range(count)]
    arguments = ", ".join(f"x{i}: Tensor, y{i}: Tensor" for i in range(count))
    return f"return torch.cat([{', '.join(parts)}])", arguments


def joined_rule(count: int) -> RewriteRule:
    body, arguments = joined(count, *2 * ["x{0} + y{0}, x{0} * y{0}"])
    pattern = torch.jit.CompilationUnit(f"def f({arguments}) -> Tensor:\n  {body}\n").f
    return RewriteRule("joined", pattern, silu_of_first)


def silu_of_first(x0: Tensor) -> Tensor:
    return F.silu(x0)


def test_pairs_that_do_not_depend_on_each_other() -> None:
    """All of them are the other way round, 2^20 orders in all."""
    module = module_of(*joined(20, *2 * ["y{0} + x{0}, x{0} * y{0}"]))
    assert len(joined_rule(20).apply(module).rewritten) == 1


def test_a_search_that_would_not_end_is_given_up() -> None:
    """The first pair fails, whatever the orders of the others are; `explain` says so."""
    wrong = "x{0} + y{0}, x{0} * y{0}", "x{0} + y{0}, x{0} * y{1}"
    module = module_of(*joined(20, *wrong))
    assert not joined_rule(20).apply(module).matches
    assert joined_rule(20).explain(module).places[0].reason == (
        "its operands can be exchanged in too many ways to try all"
    )
    few = module_of(*joined(3, *wrong))
    assert "matched before" in joined_rule(3).explain(few).places[0].reason
