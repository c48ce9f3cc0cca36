"""Rewriting where memory is written to: it computes the same, or is refused."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes import RewriteRule, rewrite
from jit_passes.passes.rewrite import RewriteResult

NEG_NEG = RewriteRule(
    "neg_neg",
    """graph(%x):
  %a = aten::neg(%x)
  %b = aten::neg(%a)
  return (%b)""",
    "graph(%x):\n  return (%x)",
)
RELU_RELU = RewriteRule(
    "relu_relu",
    """graph(%x):
  %a = aten::relu(%x)
  %b = aten::relu(%a)
  return (%b)""",
    """graph(%x):
  %a = aten::relu(%x)
  return (%a)""",
)
TIMES_ONE = RewriteRule(
    "times_one",
    """graph(%x):
  %one : int = prim::Constant[value=1]()
  %a = aten::mul(%x, %one)
  return (%a)""",
    "graph(%x):\n  return (%x)",
)
TRANSPOSE_TWICE = RewriteRule(
    "transpose_twice",
    """graph(%x, %i, %j):
  %a = aten::transpose(%x, %i, %j)
  %b = aten::transpose(%a, %i, %j)
  return (%b)""",
    "graph(%x, %i, %j):\n  return (%x)",
)
RELU_TO_FUNCTIONAL = RewriteRule(
    "relu_to_functional",
    """graph(%x):
  %a = aten::relu_(%x)
  return (%a)""",
    """graph(%x):
  %a = aten::relu(%x)
  return (%a)""",
)
RELU_OF_NEG = RewriteRule(
    "relu_of_neg",
    """graph(%x):
  %a = aten::neg(%x)
  %b = aten::relu_(%a)
  return (%b)""",
    """graph(%x):
  %zero : int = prim::Constant[value=0]()
  %a = aten::clamp_max(%x, %zero)
  %b = aten::neg(%a)
  return (%b)""",
)
SIBLINGS = RewriteRule(
    "siblings",
    """graph(%x):
  %a = aten::relu(%x)
  %b = aten::neg(%x)
  return (%a, %b)""",
    """graph(%x):
  %zero : int = prim::Constant[value=0]()
  %b = aten::neg(%x)
  %a = aten::clamp_min(%x, %zero)
  return (%a, %b)""",
)
ADD_OF_NEG = RewriteRule(
    "add_of_neg",
    """graph(%x, %y):
  %one : int = prim::Constant[value=1]()
  %a = aten::neg(%y)
  %b = aten::add(%x, %a, %one)
  return (%b)""",
    """graph(%x, %y):
  %one : int = prim::Constant[value=1]()
  %b = aten::sub(%x, %y, %one)
  return (%b)""",
)
SELF_ADD = RewriteRule(
    "add_relu_to_itself",
    """graph(%x):
  %one : int = prim::Constant[value=1]()
  %a = aten::relu(%x)
  %b = aten::add(%a, %x, %one)
  return (%b)""",
    """graph(%x):
  %one : int = prim::Constant[value=1]()
  %a = aten::relu(%x)
  %b = aten::add(%x, %a, %one)
  return (%b)""",
)
IN_PLACE = RewriteRule(
    "relu_in_place",
    """graph(%x):
  %a = aten::relu(%x)
  return (%a)""",
    """graph(%x):
  %a = aten::relu_(%x)
  return (%a)""",
)
RULES = [
    NEG_NEG,
    RELU_RELU,
    TIMES_ONE,
    TRANSPOSE_TWICE,
    RELU_TO_FUNCTIONAL,
    RELU_OF_NEG,
    SIBLINGS,
    ADD_OF_NEG,
    SELF_ADD,
]


class WrittenBetween(nn.Module):
    """The operand is written to between the matched operators."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        y.add_(1)
        return a + y


class WrittenThroughView(nn.Module):
    """The same, through a view."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        y[0].mul_(3)
        return a + y


class WrittenThroughList(nn.Module):
    """The same, through an element of a list."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = [y, x]
        a = torch.relu(y)
        parts[0].mul_(3)
        return a + y


class WrittenThroughAppended(nn.Module):
    """The same, where the list got it later."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = [x]
        parts.append(y)
        a = torch.relu(y)
        parts[1].mul_(3)
        return a + y


class WrittenThroughCopiedList(nn.Module):
    """The same, through a copy of the list, which holds the same tensors."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = list([y, x])  # noqa: C410  the copy is the point
        a = torch.relu(y)
        parts[0].mul_(3)
        return a + y


class WrittenThroughDict(nn.Module):
    """The same, through the values of a dict."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = {"y": y}
        a = torch.relu(y)
        for part in parts.values():
            part.mul_(3)
        return a + y


class WrittenThroughTuple(nn.Module):
    """The same, through a tuple."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = (y, (x, y))
        a = torch.relu(y)
        parts[1][1].mul_(3)
        return a + y


class WrittenThroughDropout(nn.Module):
    """The same, through dropout, which in eval mode returns its operand."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = torch.dropout(y, 0.5, False)
        a = torch.relu(y)
        z.mul_(3)
        return (a + y) * z


class WrittenThroughAttribute(nn.Module):
    """The same, through an attribute that it was assigned to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        self.kept = y
        a = torch.relu(y)
        self.kept.mul_(3)
        return a + y


class WrittenThroughTied(nn.Module):
    """Two attributes share a tensor; one is read, the other written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.ones(4, 4))
        self.register_buffer("second", self.first)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.first)
        self.second.add_(x)
        first = self.first
        return a.neg() + first


class WrittenInBranch(nn.Module):
    """The same, in a branch."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        if x.size(0) > 2:
            y.mul_(3)
        return a + y


class WrittenInLoop(nn.Module):
    """The same, in a loop."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        for _ in range(x.size(0)):
            y.mul_(3)
        return a + y


class WrittenByTheFirstUser(nn.Module):
    """The first user of a result writes to the operand, before the second result is computed."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        y.add_(a)
        return torch.neg(y)


class WrittenWhereTheFirstUserIs(nn.Module):
    """The same, in a branch."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        if x.size(0) > 2:
            y.add_(a)
        return torch.neg(y)


class ResultWritten(nn.Module):
    """The result would be the operand, and is written to."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = torch.neg(torch.neg(y))
        z.add_(1)
        return z + y


class OperandWrittenLater(nn.Module):
    """The result would be the operand, which is written to."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = torch.neg(torch.neg(y))
        y.add_(1)
        return z * y


class ResultWrittenThroughView(nn.Module):
    """The result would be the operand, and a view of it is written to."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = torch.neg(torch.neg(y))
        z.view(-1).add_(1)
        return z + y


class ResultWrittenInLoop(nn.Module):
    """The same, in a loop: the write of one iteration reaches the next."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        out = torch.zeros_like(x)
        for i in range(3):
            out = out + torch.neg(torch.neg(y))
            y.add_(i)
        return out


class ResultInAttribute(nn.Module):
    """The result would be the argument, and an attribute keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.kept.add_(1)
        self.kept = torch.neg(torch.neg(y))
        self.kept.add_(1)
        return y + self.kept


class ArgumentWritten(nn.Module):
    """What the pattern writes to is the caller's."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(x) + 1


class SeenAfterwards(nn.Module):
    """What the pattern writes to is read afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = torch.relu_(y)
        return z + y


class SeenThroughView(nn.Module):
    """A view of what the pattern writes to is read afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        v = y.view(-1)
        z = torch.relu_(y)
        return z + v.sum()


class SeenInTheNextIteration(nn.Module):
    """What the pattern writes to is read again in the next iteration."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x)
        out = torch.zeros_like(x)
        for _ in range(3):
            out = out + torch.neg_(y)
        return out


NEG_TO_FUNCTIONAL = RewriteRule(
    "neg_to_functional",
    "graph(%x):\n  %a = aten::neg_(%x)\n  return (%a)",
    "graph(%x):\n  %a = aten::neg(%x)\n  return (%a)",
)


class ReadAfterRelu(nn.Module):
    """relu's operand is read after it."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x)
        return torch.relu(y) * y


class ReadBeforeTheWrite(nn.Module):
    """A result of the pattern is read before the pattern writes to it."""

    def forward(self, x: Tensor) -> Tensor:
        a = torch.neg(x)
        before = torch.sin(a)
        b = torch.relu_(a)
        return a + before + b


BOTH_RESULTS = RewriteRule(
    "both_results",
    """graph(%x):
  %a = aten::neg(%x)
  %b = aten::relu_(%a)
  return (%a, %b)""",
    """graph(%x):
  %a = aten::neg(%x)
  %b = aten::relu(%a)
  return (%b, %b)""",
)


class ResultsShare(nn.Module):
    """One result is a view of the other and is written to."""

    def forward(self, x: Tensor) -> Tensor:
        a = torch.neg(x)
        b = a.transpose(0, 1)
        b.add_(1)
        return a * b


APART = RewriteRule(
    "apart",
    """graph(%x, %i, %j):
  %a = aten::neg(%x)
  %b = aten::transpose(%a, %i, %j)
  return (%a, %b)""",
    """graph(%x, %i, %j):
  %a = aten::neg(%x)
  %t = aten::transpose(%x, %i, %j)
  %b = aten::neg(%t)
  return (%a, %b)""",
)
HAZARDS: list[tuple[type[nn.Module], RewriteRule]] = [
    *(
        (kind, SELF_ADD)
        for kind in (
            WrittenBetween,
            WrittenThroughView,
            WrittenThroughList,
            WrittenThroughAppended,
            WrittenThroughCopiedList,
            WrittenThroughDict,
            WrittenThroughTuple,
            WrittenThroughDropout,
            WrittenThroughAttribute,
            WrittenInBranch,
            WrittenInLoop,
        )
    ),
    (
        WrittenThroughTied,
        RewriteRule(
            "neg_of_relu",
            """graph(%x):
  %a = aten::relu(%x)
  %b = aten::neg(%a)
  return (%b)""",
            """graph(%x):
  %a = aten::neg(%x)
  %zero : int = prim::Constant[value=0]()
  %b = aten::clamp_max(%a, %zero)
  return (%b)""",
        ),
    ),
    (WrittenByTheFirstUser, SIBLINGS),
    (WrittenWhereTheFirstUserIs, SIBLINGS),
    *(
        (kind, NEG_NEG)
        for kind in (
            ResultWritten,
            OperandWrittenLater,
            ResultWrittenThroughView,
            ResultWrittenInLoop,
            ResultInAttribute,
        )
    ),
    *((kind, RELU_TO_FUNCTIONAL) for kind in (ArgumentWritten, SeenAfterwards, SeenThroughView)),
    (SeenInTheNextIteration, NEG_TO_FUNCTIONAL),
    (ReadAfterRelu, IN_PLACE),
    (ReadBeforeTheWrite, BOTH_RESULTS),
    (ResultsShare, APART),
]


def run(module: torch.jit.ScriptModule) -> list[Tensor]:
    """Two calls: results, gradients, the argument afterwards and the buffers."""
    torch.manual_seed(0)
    module = copy.deepcopy(module)
    seen = []
    for _ in range(2):
        leaf = torch.randn(4, 4, requires_grad=True)
        given = leaf.clone()
        out = module(given)
        grad = None
        with contextlib.suppress(RuntimeError):  # some of these cannot be differentiated
            grad = torch.autograd.grad(out.sum(), leaf, allow_unused=True)[0]
        buffers = [b.detach().clone() for b in module.buffers()]
        for name, buffer in module.named_buffers():
            setattr(module, name, buffer.detach())
        seen += [out.detach(), given.detach(), *buffers, *([] if grad is None else [grad])]
    return seen


def assert_same(before: torch.jit.ScriptModule, after: torch.jit.ScriptModule) -> None:
    """To the bit: the rules compute with the same numbers."""
    expected, found = run(before), run(after)
    assert any(t.abs().sum() > 0 for t in expected)
    for left, right in zip(expected, found, strict=True):
        assert torch.equal(left, right)


def scripted(kind: type[nn.Module]) -> torch.jit.ScriptModule:
    """A module of its own."""
    return torch.jit.script(kind().eval())


@pytest.mark.parametrize(
    ("kind", "rule"), HAZARDS, ids=lambda p: getattr(p, "__name__", "") or p.name
)
def test_hazards(kind: type[nn.Module], rule: RewriteRule) -> None:
    """There is a match, it is refused with a reason that names the operator, all stays."""
    module = scripted(kind)
    result = rule.apply(module)
    assert not result.rewritten
    assert result.refused, "the hazard is not matched at all"
    reason = result.refused[0].refused
    assert "aten::" in reason or "prim::SetAttr" in reason
    assert "test_alias_safety.py:" in reason or "SetAttr" in reason or rule is IN_PLACE
    assert result.diff() == ""
    assert_same(scripted(kind), result.module)


class WrittenBefore(nn.Module):
    """Before the match nothing matters."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        y.mul_(2)
        return torch.neg(torch.neg(y))


class OtherWritten(nn.Module):
    """Something else is written to."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = x * 2
        a = torch.neg(y)
        z.add_(1)
        return torch.neg(a) + z


class WrittenAfterItsLastUse(nn.Module):
    """The operand is written to after the match, and the result shares nothing with it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = torch.relu(torch.relu(y))
        y.add_(1)
        return z * y


class FreshTarget(nn.Module):
    """What is written to is nobody else's."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(torch.neg(x))


class FreshTargetThenView(nn.Module):
    """The same, and the result is looked at through a view, and written to."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu_(x + 1).view(-1)
        z.add_(1)
        return z


class FreshTargetInLoop(nn.Module):
    """The same, new in each iteration."""

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            x = torch.relu_(x + i) * 2
        return x


class CopyIsWritten(nn.Module):
    """A copy of the operand is written to."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        z = torch.neg(torch.neg(x))
        y.add_(1)
        return z + y


class ResultWrittenNobodyElse(nn.Module):
    """The result becomes the operand and is written to, but nobody else has the operand."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.neg(torch.neg(x + 1))
        z.add_(1)
        return z


class Normalized(nn.Module):
    """Batch norm in training writes its statistics, which the rule has nothing to do with."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.relu(self.norm(x)))


FINE: list[tuple[type[nn.Module], RewriteRule]] = [
    (WrittenBefore, NEG_NEG),
    (OtherWritten, NEG_NEG),
    (WrittenAfterItsLastUse, RELU_RELU),
    (FreshTarget, RELU_OF_NEG),
    (FreshTarget, RELU_TO_FUNCTIONAL),
    (FreshTargetThenView, RELU_TO_FUNCTIONAL),
    (FreshTargetInLoop, RELU_TO_FUNCTIONAL),
    (CopyIsWritten, NEG_NEG),
    (ResultWrittenNobodyElse, NEG_NEG),
    (Normalized, RELU_RELU),
]


@pytest.mark.parametrize(("kind", "rule"), FINE, ids=lambda p: getattr(p, "__name__", "") or p.name)
def test_near_hazards(kind: type[nn.Module], rule: RewriteRule) -> None:
    """What does not matter is rewritten."""
    result = rule.apply(scripted(kind))
    assert len(result.rewritten) == 1 and not result.refused, str(result)
    assert_same(scripted(kind), result.module)


def test_batch_norm_that_trains_is_part_of_the_pattern() -> None:
    """In training it writes statistics that others see, which it does not in eval mode."""
    rule = RewriteRule(
        "relu_before_norm",
        """graph(%x, %rest):
  %y = aten::batch_norm(%x, %rest)
  %z = aten::relu_(%y)
  return (%z)""",
        """graph(%x, %rest):
  %y = aten::batch_norm(%x, %rest)
  %z = aten::relu(%y)
  return (%z)""",
    )

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu_(self.norm(x))

    training = rule.apply(torch.jit.script(Net()))
    assert not training.rewritten and "batch_norm" in training.refused[0].refused
    frozen = torch.jit.freeze(torch.jit.script(Net().eval()), optimize_numerics=False)
    assert len(rule.apply(frozen).rewritten) == 1


def test_batch_norm_in_the_replacement() -> None:
    """Whether it trains is known from the match, in a model that writes elsewhere too."""
    rule = RewriteRule(
        "norm_of_relu",
        """graph(%x, %rest):
  %y = aten::relu(%x)
  %z = aten::batch_norm(%y, %rest)
  return (%z)""",
        """graph(%x, %rest):
  %y = aten::sigmoid(%x)
  %z = aten::batch_norm(%y, %rest)
  return (%z)""",
    )

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("var", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            x = (x * 2).add_(1)
            y = torch.relu(x)
            return F.batch_norm(y, self.mean, self.var, training=self.training)

    frozen = torch.jit.freeze(torch.jit.script(Net().eval()), optimize_numerics=False)
    assert len(rule.apply(frozen).rewritten) == 1
    assert not rule.apply(torch.jit.script(Net())).rewritten


def test_rules_that_write_are_seen_by_others() -> None:
    """A replacement that writes, in a model that did not: later rules know of it."""
    module = torch.jit.script(FreshTarget())

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.sin(x)
            z = torch.neg(torch.neg(y))
            return torch.relu(z) + y

    del module
    module = torch.jit.script(Net())
    x = torch.randn(4, 4)
    result = rewrite(module, [IN_PLACE, NEG_NEG])
    assert torch.equal(module(x), result.module(x)), str(result)


# Random programs.

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
    """What it returns, and its arguments afterwards."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 3, generator=generator), torch.randn(3, 3, generator=generator)
    with torch.no_grad():
        out = module(x, y)
    return [*(o.clone() for o in out), x, y]


def test_random_programs() -> None:
    """All that is rewritten computes the same, the arguments' final contents included."""
    ran = rewritten = refused = 0
    for seed in range(500):
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
    assert ran > 400 and rewritten > 150 and refused > 100, (ran, rewritten, refused)
