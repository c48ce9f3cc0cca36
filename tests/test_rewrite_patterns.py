"""Patterns of rewrite rules: which operators, names, types and constants match."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rewriting import ACTIVATION, Doubled, gelu, kinds, once, scale_by_two, shape
from torch import Tensor, nn

from jit_passes import Match, RewriteRule


class Convolutions(nn.Module):
    """Of one, two and three axes, each with another activation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            nn.Conv1d(2, 2, 3),
            nn.Conv2d(2, 2, 3, stride=2),
            nn.Conv3d(2, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.relu(self.one(x))
        b = torch.relu_(self.two(x[:, None].expand(2, 5, 5)))
        c = F.relu6(self.three(x[:, None, None].expand(2, 2, 2, 5)))
        return a, b, c


def test_functions() -> None:
    """Typed functions; a number matches by value, 2 as well as 2.0, and not 3."""
    result = RewriteRule("gelu", scale_by_two, gelu).apply(torch.jit.script(Doubled()))
    assert [m.rule for m in result.rewritten] == ["gelu", "gelu"]
    x = shape(4, 4)
    assert torch.equal(result.module(x), F.gelu(x) + F.gelu(x.sin()) + torch.relu(x * 3))


def test_alternatives() -> None:
    """conv1d, 2d or 3d and any relu: in the replacement the names are those that were matched."""
    rule = RewriteRule(
        "no_bias",
        """graph(%x, %w, %b, %rest):
  %y = match::convolution(%x, %w, %b, %rest)
  %z = match::activation(%y)
  return (%z)""",
        """graph(%x, %w, %b, %rest):
  %none : NoneType = prim::Constant()
  %y = match::convolution(%x, %w, %none, %rest)
  %z = match::activation(%y)
  return (%z)""",
        alternatives={
            "match::convolution": ["aten::conv1d", "aten::conv2d", "aten::conv3d"],
            **ACTIVATION,
        },
        check=lambda match: match.constants["b"] is not None,
    )
    net = Convolutions()
    module = torch.jit.script(net)
    result = rule.apply(module)
    assert len(result.rewritten) == 3, str(result)
    before, after = kinds(module), kinds(result.module)
    assert [k for k in after if "relu" in k] == ["aten::relu", "aten::relu_", "aten::relu6"]
    assert "aten::conv1d" in after and "aten::conv3d" in after and before != after
    for layer in (net.one, net.two, net.three):
        layer.bias.data.zero_()
    for expected, found in zip(module(shape(2, 5)), result.module(shape(2, 5)), strict=True):
        assert torch.equal(expected, found)


def test_alternatives_from_functions() -> None:
    """An operator's own name stands for others when it is listed."""

    def pattern(x: Tensor) -> Tensor:
        return torch.relu(torch.neg(x))

    def replacement(x: Tensor) -> Tensor:
        return torch.relu(x)

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.neg(x)) + F.relu6(torch.neg(x)) + torch.sigmoid(torch.neg(x))

    names = {"aten::relu": ["aten::relu", "aten::relu6"]}
    result = RewriteRule("mirror", pattern, replacement, alternatives=names).apply(
        torch.jit.script(Net())
    )
    x = 9 * shape(4, 4)
    assert torch.equal(result.module(x), torch.relu(x) + F.relu6(x) + torch.sigmoid(-x))


@pytest.mark.parametrize(
    ("stride", "matches"), [("[1, 1]", 1), ("[2, 2]", 1), ("[3, 3]", 0), ("%stride", 2)]
)
def test_lists(stride: str, matches: int) -> None:
    """Lists of numbers match by value, or are captured and passed on."""
    header = "%x, %w, %b, %stride, %rest" if stride[0] == "%" else "%x, %w, %b, %rest"
    constant = "" if stride[0] == "%" else f"  %stride : int[] = prim::Constant[value={stride}]()\n"
    seen: list[Any] = []

    def check(match: Match) -> bool:
        seen.append(match.constants.get("stride"))
        return True

    rule = RewriteRule(
        "relu_after",
        f"graph({header}):\n{constant}"
        "  %y = aten::conv2d(%x, %w, %b, %stride, %rest)\n"
        "  %z = aten::tanh(%y)\n  return (%z)",
        f"graph({header}):\n{constant}"
        "  %y = aten::conv2d(%x, %w, %b, %stride, %rest)\n"
        "  %z = aten::relu(%y)\n  return (%z)",
        check=check,
    )
    module = torch.jit.script(
        nn.Sequential(nn.Conv2d(2, 2, 1), nn.Tanh(), nn.Conv2d(2, 2, 1, stride=2), nn.Tanh())
    )
    result = rule.apply(module)
    assert kinds(result.module).count("aten::relu") == len(result.rewritten) == matches
    if stride[0] == "%":
        assert seen == [[1, 1], [2, 2]]
    assert torch.isfinite(result.module(shape(1, 2, 4, 4))).all()


def test_large_numbers_are_compared_exactly() -> None:
    """2^53 and its successor are one number as floats."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 9007199254740993

    rule = RewriteRule(
        "add",
        """graph(%x):
  %n : int = prim::Constant[value=9007199254740992]()
  %one : int = prim::Constant[value=1]()
  %y = aten::add(%x, %n, %one)
  return (%y)""",
        "graph(%x):\n  return (%x)",
    )
    assert not rule.apply(torch.jit.script(Net())).matches


def test_names_are_names() -> None:
    """Inputs go by name: numbers, names with dots, parameters that are assigned to."""

    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.sub(x, y)

    text = "graph({}):\n  %one : int = prim::Constant[value=1]()\n  %o = aten::{}\n  return (%o)"

    def assigned(y: Tensor, x: Tensor) -> Tensor:
        return torch.sub(x, y)

    def mul_by_first(y: Tensor, x: Tensor) -> Tensor:
        x = x * 2
        return x.div(y)

    x, y = shape(3), shape(3) + 5
    for pattern, replacement in [
        (text.format("%5, %6", "sub(%5, %6, %one)"), text.format("%6, %5", "div(%5, %6)")),
        (
            text.format("%x.1, %x.2", "sub(%x.1, %x.2, %one)"),
            text.format("%x.2, %x.1", "div(%x.1, %x.2)"),
        ),
        (text.format("%x, %y", "sub(%x, %y, %one)"), text.format("%y, %x", "div(%x, %y)")),
        (assigned, text.format("%x, %y", "div(%x, %y)")),
    ]:
        result = RewriteRule("names", pattern, replacement).apply(torch.jit.script(Net()))
        assert torch.equal(result.module(x, y), x / y), pattern
    result = RewriteRule("names", assigned, mul_by_first).apply(torch.jit.script(Net()))
    assert torch.equal(result.module(x, y), x * 2 / y)


class Types(nn.Module):
    """Operands of many types."""

    def forward(self, x: Tensor, y: Tensor | None, n: int, f: float) -> list[Tensor]:
        out = [x + n, x + f, x + x, x + 3]
        if y is not None:
            out.append(x + y)
        return out


@pytest.mark.parametrize(
    ("type_", "count"), [("", 4), (" : int", 2), (" : float", 2), (" : Tensor", 2)]
)
def test_types(type_: str, count: int) -> None:
    """In text, an input without a type matches every value, one with a type its own.

    A constant that is a whole number counts as a float.
    """
    rule = RewriteRule(
        "add",
        f"graph(%x, %y{type_}):\n  %one : int = prim::Constant[value=1]()\n"
        "  %z = aten::add(%x, %y, %one)\n  return (%z)",
        f"graph(%x, %y{type_}):\n  %z = aten::mul(%x, %y)\n  return (%z)",
    )
    result = rule.apply(torch.jit.script(Types()))
    expected = count + (1 if type_ == "" else 0)
    assert len(result.rewritten) == expected, result.after


def test_optional_is_not_a_tensor() -> None:
    """A pattern of tensors does not match what may be None."""

    class Net(nn.Module):
        def forward(self, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            return F.linear(x, w, b)

    def pattern(x: Tensor, w: Tensor, b: Tensor):
        return F.linear(x, w, b)

    def optional(x: Tensor, w: Tensor, b: Tensor | None):
        return F.linear(x, w, b)

    def replacement(x: Tensor, w: Tensor):
        return F.linear(x, w)

    module = torch.jit.script(Net())
    assert not RewriteRule("tensor", pattern, replacement).apply(module).matches
    assert (
        len(RewriteRule("optional", optional, replacement, check=once()).apply(module).rewritten)
        == 1
    )
    place = RewriteRule("tensor", pattern, replacement).explain(module).places[0]
    assert "Optional[Tensor], not Tensor" in place.reason


def test_repeated_inputs() -> None:
    """The same input twice is the same value, or equal constants."""

    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * x + x * y

    rule = RewriteRule(
        "square",
        "graph(%x):\n  %y = aten::mul(%x, %x)\n  return (%y)",
        "graph(%x):\n  %y = aten::square(%x)\n  return (%y)",
    )
    result = rule.apply(torch.jit.script(Net()))
    assert kinds(result.module) == ["aten::square", "aten::mul", "aten::add"]
    dims = RewriteRule(
        "same_dims",
        "graph(%x, %d):\n  %y = aten::transpose(%x, %d, %d)\n  return (%y)",
        "graph(%x, %d):\n  return (%x)",
    )

    class Transposes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(1, 1).transpose(0, 1)

    assert kinds(dims.apply(torch.jit.script(Transposes())).module) == ["aten::transpose"]


def test_none() -> None:
    """None in the pattern matches constants and attributes that are None, and nothing else."""
    rule = RewriteRule(
        "plain_linear",
        """graph(%x, %w):
  %none : NoneType = prim::Constant()
  %y = aten::linear(%x, %w, %none)
  return (%y)""",
        """graph(%x, %w):
  %t = aten::t(%w)
  %y = aten::matmul(%x, %t)
  return (%y)""",
    )
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3)))
    result = rule.apply(module)
    assert kinds(result.module) == ["aten::t", "aten::matmul", "aten::linear"]
    torch.testing.assert_close(result.module(shape(2, 3)), module(shape(2, 3)))
