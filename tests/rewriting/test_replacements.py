"""Replacements by rewrite rules: computed values, and several results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes import Match, RewriteRule
from tests.rewriting.rules import gelu, shape

# Computed values


class Layers(nn.Module):
    """Two layers of one class, one of them called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(torch.relu(self.second(torch.relu(self.first(x)))))


def scaled(value: Any) -> RewriteRule:
    """A rule that multiplies the result of a linear layer by what compute gives."""
    return RewriteRule(
        "scale",
        "graph(%x, %w, %b):\n  %y = aten::linear(%x, %w, %b)\n  %z = aten::relu(%y)\n  return (%z)",
        """graph(%x, %w, %b, %scale):
  %y = aten::linear(%x, %w, %b)
  %s = aten::mul(%y, %scale)
  %z = aten::relu(%s)
  return (%z)""",
        compute=lambda match: {"scale": value(match) if callable(value) else value},
    )


def test_computed_parameters(tmp_path: Path) -> None:
    """Of the layer that the match stands in; they train, and survive a file."""
    torch.manual_seed(0)
    module = torch.jit.script(Layers())
    names = list(module.state_dict())
    rule = scaled(lambda match: nn.Parameter(match.constants["w"].detach().mean() + 2))
    result = rule.apply(module)
    added = sorted(set(result.module.state_dict()) - set(names))
    assert added == ["first.scale", "second.scale"]
    assert list(module.state_dict()) == names
    parameters = dict(result.module.named_parameters())
    assert all(parameters[name].requires_grad for name in added)
    assert float(parameters["first.scale"].detach()) == pytest.approx(
        2 + float(module.first.weight.mean().detach())
    )
    before = float(parameters["first.scale"].detach())
    optimizer = torch.optim.SGD(result.module.parameters(), lr=0.1)
    result.module(shape(5, 3)).square().sum().backward()
    optimizer.step()
    assert float(result.module.state_dict()["first.scale"]) != before
    torch.jit.save(result.module, str(tmp_path / "scaled.pt"))
    loaded = torch.jit.load(str(tmp_path / "scaled.pt"))
    assert torch.equal(loaded(shape(5, 3)), result.module(shape(5, 3)))
    assert set(dict(loaded.named_parameters())) == set(parameters)


def test_computed_buffers_and_collisions() -> None:
    """A tensor is a buffer; a taken name gets a number, for each of two matches in a layer."""

    class Taken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(F.linear(x, self.layer.weight, self.layer.bias))
            return torch.relu(F.linear(y, self.layer.weight, self.layer.bias)) * self.scale

    result = scaled(lambda match: torch.tensor(2.0)).apply(torch.jit.script(Taken()))
    assert {n for n, _ in result.module.named_buffers()} == {"scale", "scale_1", "scale_2"}
    assert {n for n, _ in result.module.named_parameters()} == {"layer.weight", "layer.bias"}


def test_a_module_that_is_called_twice() -> None:
    """Each match gets a value of its own, in the one module."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    module = torch.jit.script(Net())
    result = scaled(lambda match: torch.tensor(2.0)).apply(module)
    assert sorted(n for n, _ in result.module.named_buffers()) == [
        "layer.0.scale",
        "layer.0.scale_1",
    ]
    w, b, x = (
        module.layer.state_dict()["0.weight"],
        module.layer.state_dict()["0.bias"],
        shape(2, 3),
    )
    expected = torch.relu(F.linear(torch.relu(F.linear(x, w, b) * 2), w, b) * 2)
    torch.testing.assert_close(result.module(x), expected)


@pytest.mark.parametrize("value", [2, 2.5])
def test_computed_numbers(value: float) -> None:
    """Become constants."""
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    result = scaled(value).apply(module)
    x = shape(2, 3)
    linear = F.linear(x, module.state_dict()["0.weight"], module.state_dict()["0.bias"])
    torch.testing.assert_close(result.module(x), torch.relu(linear * value))
    assert list(result.module.state_dict()) == list(module.state_dict())


def test_computed_lists_strings_and_none() -> None:
    """All of them become constants too."""
    rule = RewriteRule(
        "to_gelu",
        "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)",
        """graph(%x, %how, %dims, %dtype):
  %no : bool = prim::Constant[value=0]()
  %y = aten::gelu(%x, %how)
  %z = aten::sum(%y, %dims, %no, %dtype)
  return (%z)""",
        compute=lambda match: {"how": "tanh", "dims": [0, 1], "dtype": None},
    )
    result = rule.apply(torch.jit.script(nn.Sequential(nn.ReLU())))
    x = shape(2, 3)
    assert torch.equal(result.module(x), F.gelu(x, approximate="tanh").sum((0, 1)))


# Several results


def test_siblings() -> None:
    """Two operators of one operand."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.tanh()
            return torch.exp(torch.sin(y)) + torch.cos(y)

    def pattern(x: Tensor):
        return torch.sin(x), torch.cos(x)

    def replacement(x: Tensor):
        return torch.cos(x), torch.sin(x)

    # Swapped for good: nothing is left that a second rewrite could swap back.
    def once(match: Match) -> bool:
        return match.kind == "aten::sin" and not done.append(1) and len(done) == 1

    done: list[int] = []
    result = RewriteRule("swap", pattern, replacement, check=once).apply(torch.jit.script(Net()))
    assert len(result.rewritten) == 1
    y = shape(3, 3).tanh()
    assert torch.equal(result.module(shape(3, 3)), torch.exp(torch.cos(y)) + torch.sin(y))


def test_intermediates_that_others_use() -> None:
    """A value in between is a result where the pattern returns it, and in the way where not."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.sin(x)
            early = y + 1
            return torch.neg(y) * early

    def alone(x: Tensor):
        return torch.neg(torch.sin(x))

    def both(x: Tensor):
        y = torch.sin(x)
        return y, torch.neg(y)

    def cosines(x: Tensor):
        return torch.cos(x), torch.tanh(x)

    module = torch.jit.script(Net())
    rule = RewriteRule("alone", alone, gelu)
    assert not rule.apply(module).matches
    assert "is used by aten::add" in rule.explain(module).places[0].reason
    result = RewriteRule("both", both, cosines).apply(module)
    x = shape(3)
    assert torch.equal(result.module(x), torch.tanh(x) * (torch.cos(x) + 1))


def test_operands_that_come_late() -> None:
    """Constants and attributes are moved up to the first use of a result; computed ones are not."""

    class Net(nn.Module):
        __constants__ = ("late",)

        def __init__(self, late: bool) -> None:
            super().__init__()
            self.weight, self.late = nn.Parameter(shape(3)), late

        def forward(self, x: Tensor) -> Tensor:
            y = torch.sin(x)
            early = torch.exp(y)
            w = torch.tanh(early) if self.late else self.weight
            return y * w + early

    rule = RewriteRule(
        "sin_mul",
        """graph(%x, %w):
  %y = aten::sin(%x)
  %z = aten::mul(%y, %w)
  return (%y, %z)""",
        """graph(%x, %w):
  %z = aten::mul(%x, %w)
  %y = aten::cos(%x)
  return (%y, %z)""",
    )
    x = shape(3)
    result = rule.apply(torch.jit.script(Net(False)))
    assert len(result.rewritten) == 1, str(result)
    assert torch.equal(result.module(x), x * shape(3) + torch.exp(torch.cos(x)))
    late = rule.apply(torch.jit.script(Net(True)))
    assert "is computed after one of its results is used" in late.refused[0].refused


def test_an_input_that_is_a_result_of_the_match() -> None:
    """The input would be gone: there is no match."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a = torch.relu(x)
            return (a * a).sin() + a

    rule = RewriteRule(
        "own_result",
        "graph(%x, %y):\n  %a = aten::relu(%x)\n  %b = aten::mul(%a, %y)\n  return (%a, %b)",
        "graph(%x, %y):\n  %a = aten::neg(%y)\n  %b = aten::mul(%a, %x)\n  return (%a, %b)",
    )
    module = torch.jit.script(Net())
    assert not rule.apply(module).matches
    assert "which is matched too" in rule.explain(module).places[0].reason


def test_random_operators_are_not_shared() -> None:
    """Two dropouts in the pattern are two in the model: one result used twice is something else."""

    def pattern(x: Tensor):
        return torch.rand_like(x) + torch.rand_like(x)

    def replacement(x: Tensor):
        return torch.zeros_like(x)

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.rand_like(x)
            return y + y

    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand_like(x) + torch.rand_like(x)

    rule = RewriteRule("noise", pattern, replacement)
    assert not rule.apply(torch.jit.script(Net())).matches
    assert len(rule.apply(torch.jit.script(Two())).rewritten) == 1
