"""Rewriting where memory is written to: it computes the same, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from jit_passes import RewriteRule
from tests.rewriting.alias_rules import (
    IN_PLACE,
    RELU_TO_FUNCTIONAL,
    SELF_ADD,
    SIBLINGS,
    assert_same,
    scripted,
)
from tests.rewriting.rules import NEG_NEG


class WrittenBetween(nn.Module):
    """The operand is written to between the matched operators."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        y.add_(1)
        return a + y


class WrittenThroughView(nn.Module):
    """A write through a view."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        y[0].mul_(3)
        return a + y


class WrittenThroughList(nn.Module):
    """A write through an element of a list."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = [y, x]
        a = torch.relu(y)
        parts[0].mul_(3)
        return a + y


class WrittenThroughAppended(nn.Module):
    """A write through an element that the list got later."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = [x]
        parts.append(y)
        a = torch.relu(y)
        parts[1].mul_(3)
        return a + y


class WrittenThroughCopiedList(nn.Module):
    """A write through a copy of the list, which holds the tensors of the first."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = list([y, x])  # noqa: C410  the copy is the point
        a = torch.relu(y)
        parts[0].mul_(3)
        return a + y


class WrittenThroughDict(nn.Module):
    """A write through the values of a dict."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = {"y": y}
        a = torch.relu(y)
        for part in parts.values():
            part.mul_(3)
        return a + y


class WrittenThroughTuple(nn.Module):
    """A write through a tuple."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        parts = (y, (x, y))
        a = torch.relu(y)
        parts[1][1].mul_(3)
        return a + y


class WrittenThroughDropout(nn.Module):
    """A write through dropout, which in eval mode returns its operand."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = torch.dropout(y, 0.5, False)
        a = torch.relu(y)
        z.mul_(3)
        return (a + y) * z


class WrittenThroughAttribute(nn.Module):
    """A write through an attribute that the tensor was assigned to."""

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
    """A write in a branch."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        a = torch.relu(y)
        if x.size(0) > 2:
            y.mul_(3)
        return a + y


class WrittenInLoop(nn.Module):
    """A write in a loop."""

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
    """The first user writes to the operand in a branch."""

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
    """The result would be the operand, in a loop: a write of one iteration reaches the next."""

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
    """The pattern writes to the caller's tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(x) + 1


class SeenAfterwards(nn.Module):
    """The pattern writes to a value that is read afterwards."""

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
    """The pattern writes to a value that the next iteration reads."""

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


@pytest.mark.parametrize(
    ("kind", "rule"), HAZARDS, ids=lambda p: getattr(p, "__name__", "") or p.name
)
def test_hazards(kind: type[nn.Module], rule: RewriteRule) -> None:
    """A match is refused with a reason that names the operator, and all stays."""
    module = scripted(kind)
    result = rule.apply(module)
    assert not result.rewritten
    assert result.refused, "the hazard is not matched at all"
    reason = result.refused[0].refused
    assert "aten::" in reason or "prim::SetAttr" in reason
    assert "test_alias_safety.py:" in reason or "SetAttr" in reason or rule is IN_PLACE
    assert result.diff() == ""
    assert_same(scripted(kind), result.module)
