"""Patterns and replacements that are not valid: clear errors, never a crash."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jit_passes import JitPassesError, PassError, RewriteRule, rewrite
from tests.processes import run_code

GOOD = "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)"
SAME = "graph(%x):\n  return (%x)"


def apply(pattern: Any, replacement: Any = SAME, **more: Any) -> Any:
    """Apply to a relu."""
    rule = RewriteRule("mine", pattern, replacement, **more)
    return rule.apply(torch.jit.script(nn.Sequential(nn.ReLU())))


FUNCTIONS = {
    "lambda": (lambda x: torch.relu(x), "is a lambda, .* with def, def {what}"),
    "partial": (
        functools.partial(torch.relu),
        "function or IR text, not functools.partial.*def {what}",
    ),
    "builtin": (torch.relu, "function or IR text, not <built-in.*def {what}"),
    "module": (nn.ReLU(), "function or IR text, not ReLU.*def {what}"),
    "class": (nn.ReLU, "function or IR text, not <class.*def {what}"),
    "none": (None, "function or IR text, not None$"),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("what", ["pattern", "replacement"])
def test_what_does_not_compile(kind: str, what: str) -> None:
    """The message says what to write, in place of what PyTorch says of such a thing."""
    source, words = FUNCTIONS[kind]
    given = {"pattern": GOOD, "replacement": SAME, what: source}
    with pytest.raises(
        JitPassesError, match=f"rule 'mine': the {what} .*{words.format(what=what)}"
    ):
        apply(**given)


PATTERNS = {
    "nothing": ("", "return|graph|read|expected"),
    "garbage": ("what is this", "read|expected|graph"),
    "no_return": ("graph(%x):\n  %y = aten::relu(%x)\n", "return|read|expected"),
    "no_operator": ("graph(%x):\n  return (%x)", "at least one operator"),
    "no_result": ("graph(%x):\n  %y = aten::relu(%x)\n  return ()", "returns what it computes"),
    "unbalanced": ("graph(%x:\n  %y = aten::relu(%x)\n  return (%y)", "read|expected"),
    "missing_parenthesis": ("graph(%x):\n  %y = aten::relu(%x\n  return (%y)", "read|expected"),
    "undefined": ("graph(%x):\n  %y = aten::relu(%z)\n  return (%y)", "z"),
    "undefined_result": ("graph(%x):\n  %y = aten::relu(%x)\n  return (%z)", "z"),
    "defined_twice": (
        "graph(%x):\n  %y = aten::relu(%x)\n  %y = aten::neg(%x)\n  return (%y)",
        "%y is defined twice.*",
    ),
    "inputs_twice": ("graph(%x, %x):\n  %y = aten::relu(%x)\n  return (%y)", "%x is defined twice"),
    "unknown_operator": (
        "graph(%x):\n  %y = aten::reluu(%x)\n  return (%y)",
        "no operator aten::reluu; there is .*aten::relu",
    ),
    "unknown_namespace": (
        "graph(%x):\n  %y = nowhere::relu(%x)\n  return (%y)",
        "no operator nowhere::relu",
    ),
    "unknown_wildcard": (
        "graph(%x):\n  %y = match::a(%x)\n  return (%y)",
        "match::a.*no alternatives",
    ),
    "branch": (
        "graph(%x, %c : bool):\n  %y : Tensor = prim::If(%c)\n    block0():\n"
        "      %a = aten::relu(%x)\n      -> (%a)\n    block1():\n      -> (%x)\n  return (%y)",
        "prim::If.*cannot be part of a pattern",
    ),
    "apart": (
        "graph(%x, %z):\n  %y = aten::relu(%x)\n  %w = aten::relu(%z)\n  return (%y, %w)",
        "no connection",
    ),
    "dead": (
        "graph(%x):\n  %w = aten::neg(%x)\n  %y = aten::relu(%x)\n  return (%y)",
        "does not use the result of aten::neg",
    ),
    "returns_input": ("graph(%x):\n  %y = aten::relu(%x)\n  return (%y, %x)", "returns %x"),
    "returns_constant": (
        "graph(%x):\n  %c : int = prim::Constant[value=1]()\n"
        "  %y = aten::relu(%x)\n  return (%y, %c)",
        "returns %c, which none",
    ),
    "rest_first": (
        "graph(%rest, %x):\n  %y = aten::conv2d(%rest, %x)\n  return (%y)",
        "%rest.*can only be the last operand",
    ),
    "rest_returned": ("graph(%rest):\n  %y = aten::relu(%rest)\n  return (%rest)", "%rest"),
    "not_text": (3, "typed function or IR text, not 3"),
    "bad_constant": (
        "graph(%x):\n  %c : int = prim::Constant[value=]()\n"
        "  %y = aten::add(%x, %c, %c)\n  return (%y)",
        "read|expected|prim::Constant",
    ),
    "many_results": (
        "graph(%x):\n  %y, %z = aten::relu(%x)\n  return (%y, %z)",
        r"2 results are taken of aten::relu, which gives another number:\n  aten::relu\(Tensor",
    ),
    "many_results_of_types": (
        "graph(%x : Tensor, %d : int, %k : bool):\n"
        "  %a, %b, %c = aten::max(%x, %d, %k)\n  return (%a, %b, %c)",
        r"3 results are taken of aten::max, which gives another number:\n  aten::max",
    ),
    "bad_type": ("graph(%x : Tensorr):\n  %y = aten::relu(%x)\n  return (%y)", "Tensorr|type"),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str) -> None:
    """The rule's name and what is wrong."""
    pattern, message = PATTERNS[name]
    with pytest.raises(JitPassesError, match=message) as caught:
        apply(pattern)
    text = str(caught.value)
    assert "rule 'mine'" in text or "IR text, not" in text
    assert "INTERNAL ASSERT" not in text and "Exception raised from" not in text
    assert "_M_range_check" not in text and "::at" not in text.replace("aten::at", "")


def recursive(x: Tensor) -> Tensor:
    """Calls itself."""
    return recursive(x)


def with_list(x: Tensor) -> list[Tensor]:
    """Returns a list."""
    return [torch.relu(x)]


def prints(x: Tensor) -> Tensor:
    """Has a statement that is none of the language."""
    import os  # noqa: F401

    return torch.relu(x)


def branches(x: Tensor, flag: bool) -> Tensor:
    """Has a branch."""
    return torch.relu(x) if flag else x


def wrong_call(x: Tensor) -> Tensor:
    """Calls what there is not."""
    return torch.reluu(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (recursive, "recurs"),
        (prints, "does not compile"),
        (branches, "branches and loops are not matched"),
        (wrong_call, "does not compile.*reluu|reluu"),
        (lambda x: x, "pattern"),
        (torch.relu, "pattern"),
        (object(), "typed function or IR text"),
        (None, "typed function or IR text"),
    ],
)
def test_functions(function: Any, message: str) -> None:
    """As patterns and as replacements."""
    with pytest.raises(JitPassesError, match=message) as caught:
        apply(function)
    assert "INTERNAL ASSERT" not in str(caught.value)


def one(x: Tensor) -> Tensor:
    """One result."""
    return torch.relu(x)


ONE_OF_TWO = """
graph(%x):
  %d : int = prim::Constant[value=0]()
  %k : bool = prim::Constant[value=0]()
  %y = aten::max(%x, %d, %k)
  return (%y)"""


def test_fewer_results_than_the_operator_gives() -> None:
    """The node would take a value that another one left on the interpreter's stack."""
    with pytest.raises(PassError, match="its operator gives 2 results, and the node has 1"):
        apply(GOOD, ONE_OF_TWO)


REPLACEMENTS = {
    "count": ("graph(%x):\n  return (%x, %x)", "pattern returns 1 values and the replacement 2"),
    "no_result": ("graph(%x):\n  return ()", "replacement 0"),
    "unknown_input": ("graph(%x, %w):\n  %y = aten::mul(%x, %w)\n  return (%y)", "takes w"),
    "unknown_rest": ("graph(%x, %rest):\n  %y = aten::conv2d(%x, %rest)\n  return (%y)", "%rest"),
    "rest_returned": ("graph(%rest):\n  return (%rest)", "%rest"),
    "unknown_operator": (
        "graph(%x):\n  %y = aten::geluu(%x)\n  return (%y)",
        "no operator aten::geluu",
    ),
    "unknown_wildcard": ("graph(%x):\n  %y = match::a(%x)\n  return (%y)", "match::a"),
    "undefined": ("graph(%x):\n  %y = aten::relu(%q)\n  return (%y)", "q"),
    "garbage": ("graph(", "read|expected"),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_replacements(name: str) -> None:
    """Found when the rule is made."""
    replacement, message = REPLACEMENTS[name]
    with pytest.raises(JitPassesError, match=message) as caught:
        RewriteRule("mine", GOOD, replacement).compile()
    text = str(caught.value)
    assert "rule 'mine'" in text and "INTERNAL ASSERT" not in text


def test_an_input_that_the_pattern_does_not_use() -> None:
    """Stands for nothing: the replacement cannot have it, unless compute gives it."""
    pattern = "graph(%x, %w):\n  %y = aten::relu(%x)\n  return (%y)"
    replacement = "graph(%x, %w):\n  %y = aten::mul(%x, %w)\n  return (%y)"
    with pytest.raises(JitPassesError, match="takes w, which the pattern does not use"):
        apply(pattern, replacement)
    assert apply(pattern, replacement, compute=lambda match: {"w": 2}).rewritten
    assert apply(GOOD, "graph(%x, %unused):\n  return (%x)").rewritten


def test_wildcards_of_the_replacement() -> None:
    """Must be one of the pattern's, and only one."""
    names = {"match::a": ["aten::relu", "aten::neg"], "match::b": ["aten::sin"]}
    twice = "graph(%x):\n  %y = match::a(%x)\n  %z = match::a(%y)\n  return (%z)"
    once = "graph(%x):\n  %y = match::{}(%x)\n  return (%y)"
    with pytest.raises(JitPassesError, match="could be any of them"):
        apply(twice, once.format("a"), alternatives=names)
    with pytest.raises(JitPassesError, match="match::b, and no operator of the pattern"):
        apply(once.format("a"), once.format("b"), alternatives=names)
    inner = (
        "graph(%x):\n  %c : bool = prim::Constant[value=1]()\n  %y : Tensor = prim::If(%c)\n"
        "    block0():\n      %a = match::a(%x)\n      -> (%a)\n"
        "    block1():\n      -> (%x)\n  return (%y)"
    )
    with pytest.raises(JitPassesError, match="cannot stand in a branch"):
        apply(once.format("a"), inner, alternatives=names)
    for bad in ({"relu": ["aten::relu"]}, {"match::a": ["relu"]}, {"match::a": 3}, 5):
        with pytest.raises(JitPassesError, match="rule 'mine'") as caught:
            apply(once.format("a"), SAME, alternatives=bad)
        assert "INTERNAL ASSERT" not in str(caught.value)


@pytest.mark.parametrize(
    "replacement",
    [
        "graph(%x):\n  %y = aten::conv2d(%x, %x)\n  return (%y)",
        "graph(%x):\n  %y = aten::add(%x, %x)\n  return (%y)",
        'graph(%x):\n  %c : str = prim::Constant[value="a"]()\n'
        "  %y = aten::softmax(%x, %c)\n  return (%y)",
    ],
)
def test_operands_that_do_not_fit(replacement: str) -> None:
    """Found where the rule is applied; the schema is in the message."""
    module = torch.jit.script(nn.Sequential(nn.ReLU()))
    before = str(module.inlined_graph)
    with pytest.raises(PassError, match=r"rule 'mine'.*does not take.*|'mine'") as caught:
        RewriteRule("mine", GOOD, replacement).apply(module, inplace=True)
    assert "INTERNAL ASSERT" not in str(caught.value) and "aten::" in str(caught.value)
    assert str(module.inlined_graph) == before


def raises(match: Any) -> Any:
    """A check that fails."""
    raise ZeroDivisionError("oh no")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"check": raises}, "oh no"),
        ({"check": lambda m: 3}, "returns True, False or a reason, not 3"),
        ({"check": lambda m, n: True}, "argument"),
        ({"check": 3}, "callable"),
    ],
)
def test_checks(more: Any, message: str) -> None:
    """Checks that raise or return nonsense."""
    with pytest.raises(PassError, match=message) as caught:
        apply(GOOD, **more)
    assert "'mine'" in str(caught.value)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (raises, "oh no"),
        (lambda m: 3, "compute returns a dict"),
        (lambda m: {}, "no value for 'w'"),
        (lambda m: {"w": object()}, "None, a bool, number"),
        (lambda m: {3: 4}, "mine"),
        (lambda m: {"w": "text"}, "mine"),
        (lambda m: {"w": [1, "a"]}, "mine"),
        (lambda m: {"w": {}}, "mine"),
    ],
)
def test_computations(compute: Any, message: str) -> None:
    """Functions that raise or return nonsense; the module is as it was."""
    module = torch.jit.script(nn.Sequential(nn.ReLU()))
    before = str(module.inlined_graph)
    rule = RewriteRule(
        "mine", GOOD, "graph(%x, %w):\n  %y = aten::mul(%x, %w)\n  return (%y)", compute=compute
    )
    with pytest.raises(PassError, match=message) as caught:
        rule.apply(module, inplace=True)
    assert "'mine'" in str(caught.value) and "INTERNAL ASSERT" not in str(caught.value)
    assert str(module.inlined_graph) == before and not list(module.buffers())


def test_one_bad_rule_of_many() -> None:
    """Is named."""
    rules = [RewriteRule(f"good_{i}", GOOD, SAME) for i in range(3)]
    with pytest.raises(JitPassesError, match="rule 'bad'"):
        rewrite(
            torch.jit.script(nn.Sequential(nn.ReLU())),
            [*rules, RewriteRule("bad", "graph(%x):\n  return (%x)", SAME)],
        )


FUZZ = '''
import random, sys
import torch
from torch import nn
from jit_passes import JitPassesError, RewriteRule

TEXTS = [
    """graph(%x, %w : Tensor, %rest):
  %y = aten::conv2d(%x, %w, %rest)
  %z = match::activation(%y)
  return (%z)""",
    """graph(%x):
  %one : int = prim::Constant[value=1]()
  %l : int[] = prim::Constant[value=[1, 1]]()
  %a : Tensor, %b : Tensor = aten::max(%x, %one, %one)
  %y = aten::add(%a, %b, %one)
  return (%y, %a)""",
    """graph(%x, %c : bool):
  %y : Tensor = prim::If(%c)
    block0():
      %a : Tensor = aten::relu(%x)
      -> (%a)
    block1():
      -> (%x)
  return (%y)""",
    """graph(%x : Tensor, %n : int, %rest):
  %t : bool = prim::Constant[value=1]()
  %y : Tensor = prim::Loop(%n, %t, %x)
    block0(%i : int, %v : Tensor):
      %w : Tensor = aten::neg(%v)
      -> (%t, %w)
  %l : Tensor[] = prim::ListConstruct(%y, %x)
  %z : Tensor, %q : Tensor = prim::ListUnpack(%l)
  %g : Tensor = prim::GetAttr[name="weight"](%x)
  return (%z)""",
]
PIECES = ["%x", "%y", "%rest", "(", ")", ":", "\\\\n", " = ", "[", "]", "aten::relu", "prim::If",
          "prim::Constant", "return", "->", "block0", "Tensor", "int[]", "value=",
          "match::activation", "", ",", "graph", '"', "%1", "9" * 30, "prim::Param", "prim::Return",
          "Float(2, 3)", "...", "prim::SetAttr", "prim::TupleUnpack", "#", "{", "<Tensor>",
          "inf", "-", "\\u00e9", "\\\\x00"]
names = {"match::activation": ["aten::relu", "aten::relu_"]}
net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU())
module = torch.jit.script(net)
good = "graph(%x):\\n  %y = aten::relu(%x)\\n  return (%y)"
start, count = int(sys.argv[1]), int(sys.argv[2])
ok = 0
for seed in range(start, start + count):
    choose = random.Random(seed)
    text = choose.choice(TEXTS)
    for _ in range(choose.choice([0, 1, 1, 2, 3])):
        what, at = choose.random(), choose.randrange(len(text) + 1)
        if what < 0.25:
            text = text[:at] + choose.choice(PIECES) + text[at:]
        elif what < 0.5:
            text = text[:at] + text[at + choose.randint(1, 8):]
        elif what < 0.65:
            lines = text.split("\\n")
            choose.shuffle(lines)
            text = "\\n".join(lines)
        elif what < 0.8:
            lines = text.split("\\n")
            lines.insert(choose.randrange(len(lines)), choose.choice(lines))
            text = "\\n".join(lines)
        else:
            words = text.split(" ")
            words[choose.randrange(len(words))] = choose.choice(PIECES)
            text = " ".join(words)
    for pattern, replacement in ((text, "graph(%x):\\n  return (%x)"), (good, text)):
        print("SEED", seed, repr(pattern if pattern is text else replacement), flush=True)
        try:
            RewriteRule("fuzz", pattern, replacement, alternatives=names).apply(module)
            ok += 1
        except JitPassesError as error:
            if any(bad in str(error) for bad in ("INTERNAL ASSERT", "_M_range", "out_of_range")):
                sys.exit(f"seed {seed}: {error}\\n{text}")
print("DONE", ok)
'''


def test_random_mutations(tmp_path: Path) -> None:
    """Of valid texts, in a process of its own: a crash would show as its exit status."""
    found = run_code(FUZZ, "0", "2000", cwd=tmp_path)
    last = "\n".join(found.stdout.splitlines()[-2:])
    assert found.returncode == 0, f"{found.returncode}\n{last}\n{found.stderr[-2000:]}"
    assert last.split()[-2] == "DONE" and int(last.split()[-1]) > 100
