"""Rewriting of programs drawn at random that write to memory."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

import torch
from torch import Tensor

from jit_passes import rewrite
from jit_passes.passes.rewrite import RewriteResult
from tests.rewriting.alias_rules import RULES
from tests.seeds import seeds

UNARY: list[Callable[[str], str]] = [
    lambda a: f"torch.relu({a})",
    lambda a: f"torch.relu({a})",
    lambda a: f"torch.neg({a})",
    lambda a: f"torch.neg({a})",
    lambda a: f"{a} * 1",
    lambda a: f"torch.transpose({a}, 0, 1)",
    lambda a: f"torch.transpose({a}, 0, 1)",
    lambda a: f"torch.relu_({a})",
    lambda a: f"torch.neg_({a})",
    lambda a: f"{a}.add_(1)",
    lambda a: f"{a}.clone()",
    lambda a: f"{a}.view_as({a})",
    lambda a: f"torch.dropout({a}, 0.5, False)",
    lambda a: f"{a}.contiguous()",
]
BINARY: list[Callable[[str, str], str]] = [
    lambda a, b: f"{a} + {b}",
    lambda a, b: f"{a} + torch.relu({a})",
    lambda a, b: f"torch.relu({a}) + {a}",
    lambda a, b: f"{a}.add_({b})",
    lambda a, b: f"[{a}, {b}][0]",
    lambda a, b: f"({a}, {b})[1]",
]


def program(seed: int) -> str:
    """Lines of random operators over two arguments, some of them in a branch or a loop."""
    choose = random.Random(seed)
    lines, names = [], ["x", "y"]
    indent, left = "    ", 0
    outer = names

    def recent() -> str:
        return choose.choice(names[-3:]) if choose.random() < 0.7 else choose.choice(names)

    for i in range(choose.randint(6, 14)):
        if left == 0 and indent != "    ":
            indent, names = "    ", outer
        if left == 0 and choose.random() < 0.12:
            lines.append(
                "    if x.size(0) > 2:" if choose.random() < 0.5 else "    for _ in range(2):"
            )
            indent, left, outer, names = "        ", choose.randint(2, 4), names, list(names)
        left = max(left - 1, 0)
        if choose.random() < 0.7:
            text = choose.choice(UNARY)(recent())
        else:
            text = choose.choice(BINARY)(recent(), recent())
        target = choose.choice(outer) if indent != "    " and choose.random() < 0.5 else f"v{i}"
        lines.append(f"{indent}{target} = {text}")
        if target not in names:
            names.append(target)
    results = sorted({choose.choice(outer) for _ in range(3)} | {outer[-1]})
    returned = f"[{', '.join(results)}]"
    return "\n".join(
        ["def f(x: Tensor, y: Tensor) -> List[Tensor]:", *lines, f"    return {returned}", ""]
    )


def compiled(source: str) -> torch.jit.ScriptModule:
    """A module whose forward is the program."""
    module = type("Made", (torch.jit.ScriptModule,), {})()
    module.define(source.replace("def f(", "def forward(self, "))
    return module


def outcome(module: torch.jit.ScriptModule) -> list[Tensor]:
    """Return its result, and its arguments afterwards."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 3, generator=generator), torch.randn(3, 3, generator=generator)
    with torch.no_grad():
        out = module(x, y)
    return [*(o.clone() for o in out), x, y]


def test_random_programs() -> None:
    """All that is rewritten computes the same, the arguments' final contents included."""
    ran = rewritten = refused = 0
    drawn = seeds(500, few=200)
    for seed in drawn:
        source = program(seed)
        module = compiled(source)
        rules = random.Random(seed).sample(RULES, 5)
        result: RewriteResult = rewrite(module, rules)
        rewritten += len(result.rewritten)
        refused += len(result.refused)
        try:
            expected = outcome(module)
        except RuntimeError:  # it writes to memory that it reads from in another order
            continue
        ran += 1
        for left, right in zip(expected, outcome(result.module), strict=True):
            assert torch.equal(left, right), f"seed {seed}\n{source}\n{result}\n{result.after}"
    found = ran, rewritten, refused
    least = 0.8 * len(drawn), 0.3 * len(drawn), 0.2 * len(drawn)
    assert all(map(operator.gt, found, least)), found
