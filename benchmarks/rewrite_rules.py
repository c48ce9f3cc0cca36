"""How long rewrite rules take: many rules on a large graph, and how time grows with the graph.

    python -m benchmarks.rewrite_rules

Graphs are chains of operators with one match in ten nodes. `writes` has an in-place operator in
front of each match, so that memory is followed too; in `users`, all matches use one value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import torch

from jit_passes import _C, RewriteRule

_UNARY = ("relu", "sigmoid", "tanh", "sin", "cos", "exp", "neg", "abs", "sqrt", "floor")
_PERIOD = 10  # nodes for each match
Graph = torch._C.Graph


def rules(count: int) -> list[RewriteRule]:
    """`neg(neg(x)) -> x`, and rules of three operators that do not match."""
    found = [
        RewriteRule(
            "neg_neg",
            "graph(%x):\n  %a = aten::neg(%x)\n  %b = aten::neg(%a)\n  return (%b)",
            "graph(%x):\n  return (%x)",
        )
    ]
    for number in range(count - 1):
        digits = [number // len(_UNARY) ** i % len(_UNARY) for i in range(3)]
        a, b, c = (_UNARY[digit] for digit in digits)
        found.append(
            RewriteRule(
                f"rule_{number}",
                f"graph(%x):\n  %a = aten::{a}(%x)\n  %b = aten::{b}(%a)\n"
                f"  %c = aten::{c}(%b)\n  %d = aten::erf(%c)\n  return (%d)",
                "graph(%x):\n  return (%x)",
            )
        )
    return found


def chain(nodes: int, in_place: bool = False) -> Graph:
    """A chain with a pair of neg in each period."""
    last = "relu_" if in_place else "relu"
    period = ("neg", "neg", "sin", "exp", "tanh", "abs", "cos", "sigmoid", "erf", last)
    lines = ["graph(%v0 : Tensor):"]
    for i in range(nodes):
        lines.append(f"  %v{i + 1} : Tensor = aten::{period[i % _PERIOD]}(%v{i})")
    return torch._C.parse_ir("\n".join([*lines, f"  return (%v{nodes})"]))


def writes(nodes: int) -> Graph:
    """The same with in-place operators."""
    return chain(nodes, in_place=True)


def users(nodes: int) -> Graph:
    """One value with a user in each period."""
    lines = [
        "graph(%x : Tensor):",
        "  %v : Tensor = aten::sin(%x)",
        "  %s0 : Tensor = aten::cos(%x)",
    ]
    lines.append("  %one : int = prim::Constant[value=1]()")
    for i in range(nodes // 3):
        lines.append(f"  %a{i} : Tensor = aten::neg(%v)")
        lines.append(f"  %b{i} : Tensor = aten::neg(%a{i})")
        lines.append(f"  %s{i + 1} : Tensor = aten::add(%s{i}, %b{i}, %one)")
    return torch._C.parse_ir("\n".join([*lines, f"  return (%s{nodes // 3})"]))


def seconds(graph: Graph, compiled: list[object]) -> tuple[float, int]:
    """Time and number of rewrites of one run."""
    start = perf_counter()
    records = _C.apply_rules_to_graph(graph, compiled)
    return perf_counter() - start, len(records)


def best(make: Callable[[int], Graph], nodes: int, compiled: list[object]) -> tuple[float, int]:
    """The fastest of three runs, each on a new graph."""
    return min(seconds(make(nodes), compiled) for _ in range(3))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", type=int, default=1000)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2500, 5000, 10000, 20000, 40000])
    arguments = parser.parse_args()
    start = perf_counter()
    compiled = [rule.compile() for rule in rules(arguments.rules)]
    print(f"{arguments.rules} rules compiled in {perf_counter() - start:.2f} s")
    print(f"{'graph':<8} {'nodes':>8} {'rewrites':>9} {'seconds':>9} {'us/node':>8}")
    for name, make in (("chain", chain), ("writes", writes), ("users", users)):
        for nodes in arguments.nodes:
            time, count = best(make, nodes, compiled)
            print(f"{name:<8} {nodes:8d} {count:9d} {time:9.3f} {1e6 * time / nodes:8.1f}")


if __name__ == "__main__":
    main()
