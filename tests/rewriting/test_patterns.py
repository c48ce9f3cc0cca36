"""Patterns of rewrite rules: which operators, names, types and constants match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes import Match, RewriteRule
from tests.rewriting.rules import (
    ACTIVATION,
    Doubled,
    gelu,
    kinds,
    module_of,
    once,
    scale_by_two,
    shape,
)


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
    """An input that stands twice is one value, or equal constants."""

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


# Values that PyTorch types more widely than they are


def convolve(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A pattern that wants a bias."""
    return F.conv2d(x, w, b)


def convolve_plain(x: Tensor, w: Tensor) -> Tensor:
    """A pattern without one."""
    return F.conv2d(x, w)


def bias_apart(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Operators that take no None."""
    return F.conv2d(x, w) + torch.reshape(b, (-1, 1, 1))


@pytest.mark.parametrize("replacement", [convolve, bias_apart])
def test_a_bias_of_a_scripted_convolution_is_a_tensor(replacement: Any, tmp_path: Path) -> None:
    """The attribute's type is Optional[Tensor]; a file loads, and the parameter is shared."""
    module = torch.jit.script(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 1, bias=False)))
    rule = RewriteRule("bias", convolve, replacement, repeat=False)
    result = rule.apply(module)
    assert [match.name for match in result.rewritten] == ["0:conv2d"]
    reasons = {place.name: place.reason for place in rule.explain(module).places}
    assert reasons["0:conv2d"] == "" and "is None, not Tensor" in reasons["1:conv2d"]
    torch.jit.save(result.module, tmp_path / "m.pt")
    x = shape(1, 2, 5, 5)
    for found in (result.module, torch.jit.load(tmp_path / "m.pt")):
        torch.testing.assert_close(found(x), module(x))
        found(x).sum().backward()
    assert getattr(result.module, "0").bias is getattr(module, "0").bias


def test_no_bias_of_a_scripted_convolution_is_none() -> None:
    """And not where there is one."""
    module = torch.jit.script(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 1, bias=False)))
    rule = RewriteRule("plain", convolve_plain, convolve_plain, repeat=False)
    assert [match.name for match in rule.apply(module).rewritten] == ["1:conv2d"]


def test_an_attribute_that_the_graph_assigns_to() -> None:
    """The attribute may be another one, or None, by the time that it is read."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.factor = torch.jit.Attribute(2.0, float | None), 2.0

        def forward(self, x: Tensor) -> Tensor:
            scale = self.scale
            assert scale is not None
            y = torch.clamp(x, self.scale) + x * self.factor
            self.factor, self.scale = self.factor + 1, None
            return y

    module = torch.jit.script(Net())
    rule = RewriteRule(
        "clamp",
        "graph(%x, %low : float, %high):\n  %y = aten::clamp(%x, %low, %high)\n  return (%y)",
        "graph(%x):\n  return (%x)",
    )
    assert not rule.apply(module).matches

    def scaled(x: Tensor, factor: float) -> Tensor:
        return x * factor

    seen: list[Match] = []
    check = lambda match: seen.append(match) or "no"  # noqa: E731
    RewriteRule("scaled", scaled, scaled, check=check).apply(module)
    assert len(seen) == 1 and "factor" not in seen[0].constants


def test_optional_numbers() -> None:
    """Bounds of a clamp: None, a float, and a whole number."""

    def pattern(x: Tensor, low: float | None, high: float | None) -> Tensor:
        return torch.clamp(x, low, high)

    def half(x: Tensor, low: float, high: float) -> Tensor:
        return F.hardtanh(x, low, high)

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.clamp(x, 0, 6) + torch.clamp(x, 0.5) + torch.clamp(x, max=3)

    module = torch.jit.script(Net())
    result = RewriteRule("clamp", pattern, pattern, repeat=False).apply(module)
    assert len(result.rewritten) == 3
    x = 9 * shape(4, 4)
    assert torch.equal(result.module(x), module(x))
    bounded = RewriteRule("both", pattern, half, check=lambda m: None not in m.constants.values())
    result = bounded.apply(module)
    assert kinds(result.module).count("aten::hardtanh") == 1
    assert torch.equal(result.module(x), module(x))


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("mean", "x.mean([1])", "x.mean(d)"),
        ("permute", "x.permute([0, 1])", "x.permute([0, d])"),
        ("roll", "torch.roll(x, [2], [1])", "torch.roll(x, [2], [d])"),
    ],
)
def test_elements_of_constant_lists(name: str, text: str, pattern: str) -> None:
    """The pattern puts a list together; the model's is a constant by now. `compute` sees it."""
    module = module_of(f"return {text}")
    seen: list[Match] = []
    graph = torch.jit.CompilationUnit(f"def f(x: Tensor, d: int):\n  return {pattern}\n").f
    rule = RewriteRule(
        "listed", graph, graph, repeat=False, check=lambda match: seen.append(match) is None
    )
    result = rule.apply(module)
    assert [match.name for match in result.rewritten] == [name], rule.explain(module)
    assert seen[0].constants == {"d": 1}
    x = shape(3, 4)
    assert torch.equal(result.module(x), module(x))


def test_lists_that_are_put_together_as_text() -> None:
    """Other numbers do not match, nor do other lengths."""
    text = """graph(%x):
  %a : int = prim::Constant[value={}]()
  %b : int = prim::Constant[value=0]()
  %l : int[] = prim::ListConstruct({})
  %y = aten::permute(%x, %l)
  return (%y)"""
    module = module_of("return x.permute([1, 0])")
    for number, names, count in [("1", "%a, %b", 1), ("0", "%a, %b", 0), ("1", "%a", 0)]:
        rule = RewriteRule("permute", text.format(number, names), "graph(%x):\n  return (%x)")
        assert len(rule.apply(module).matches) == count


def test_attributes_are_no_constants() -> None:
    """Attributes can change after the rewrite; the reason says what to write."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 2.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    def doubled(x: Tensor) -> Tensor:
        return x * 2.0

    rule = RewriteRule("doubled", doubled, doubled)
    module = torch.jit.script(Net())
    assert not rule.apply(module).matches
    reason = rule.explain(module).places[0].reason
    assert "is the attribute 'factor' (2.), not 2.: take it as an input" in reason


def test_results_of_operators_without_types() -> None:
    """PyTorch's parser would take the axis for a tensor, and `max` for the one of two tensors."""
    text = "graph(%x, %d, %k):\n  %v, %i = aten::{}(%x, %d, %k)\n  return (%v, %i)"
    rule = RewriteRule("least", text.format("max"), text.format("min"))
    module = module_of("a, b = torch.max(x, 1)\nreturn a + b")
    result = rule.apply(module)
    assert len(result.rewritten) == 1
    x = shape(3, 4)
    assert torch.equal(result.module(x), x.min(1).values + x.min(1).indices)
