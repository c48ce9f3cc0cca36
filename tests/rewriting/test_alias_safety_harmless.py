"""Rewriting next to writes that do no harm: it is not refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes import RewriteRule, rewrite
from tests.rewriting.alias_rules import (
    IN_PLACE,
    RELU_OF_NEG,
    RELU_TO_FUNCTIONAL,
    assert_same,
    scripted,
)
from tests.rewriting.rules import NEG_NEG, RELU_RELU


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
    """Nobody else reads the value that is written to."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(torch.neg(x))


class FreshTargetThenView(nn.Module):
    """A write to a fresh tensor; a view of the result is read, and written to."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu_(x + 1).view(-1)
        z.add_(1)
        return z


class FreshTargetInLoop(nn.Module):
    """A write to a tensor that is new in each iteration."""

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
    """Writes that do not matter are rewritten."""
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
