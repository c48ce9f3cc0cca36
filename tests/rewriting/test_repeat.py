"""Rules that leave alone what they have made themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from jit_passes import PassError, RewriteRule, format_graph, rewrite

X = torch.tensor([0.3, -1.2])


class Net(nn.Module):
    """Two places, one of them in a branch."""

    def forward(self, x: Tensor, more: bool = True) -> Tensor:
        x = torch.neg(x)
        if more:
            x = torch.neg(x * 2)
        return x


def negation(x: Tensor):
    return torch.neg(x)


def negation_tanh(x: Tensor):
    return torch.tanh(torch.neg(x))


def tanh(x: Tensor):
    return torch.tanh(x)


def negation_of_tanh(x: Tensor):
    return torch.neg(torch.tanh(torch.abs(x)))


@pytest.fixture
def net() -> torch.jit.ScriptModule:
    """Scripted."""
    return torch.jit.script(Net())


def test_each_place_once(net: torch.jit.ScriptModule) -> None:
    """Each run adds one; without repeat=False there is no end."""
    once = RewriteRule("append_tanh", negation, negation_tanh, repeat=False)
    result = once.apply(net)
    assert len(result.rewritten) == 2 and not result.refused
    assert torch.equal(result.module(X), torch.tanh(-2 * torch.tanh(-X)))
    assert format_graph(once.apply(result.module).module).count("aten::tanh") == 4
    with pytest.raises(PassError, match="repeat=False"):
        RewriteRule("append_tanh", negation, negation_tanh).apply(net)


def test_through_another_rule(net: torch.jit.ScriptModule) -> None:
    """The result of a rule counts as its own when another rule has changed it."""
    rules = [
        RewriteRule("append_tanh", negation, negation_tanh, repeat=False),
        RewriteRule("negate_tanh", tanh, negation_of_tanh, repeat=False),
    ]
    result = rewrite(net, rules)
    assert [match.rule for match in result.rewritten].count("append_tanh") == 2
    assert [match.rule for match in result.rewritten].count("negate_tanh") == 2
    assert format_graph(result.module).count("aten::neg(") == 4
