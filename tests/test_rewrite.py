"""Rewrite rules: what matches, what takes its place, and what is said about it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes import (
    _C,
    GraphView,
    JitPassesError,
    Match,
    PassError,
    RewriteRule,
    replace_pattern,
    rewrite,
)

ACTIVATION = {"match::activation": ["aten::relu", "aten::relu_", "aten::relu6"]}


def kinds(module: torch.jit.ScriptModule, method: str = "forward") -> list[str]:
    """Operators of the method, without constants and attributes."""
    skip = {"prim::Constant", "prim::GetAttr"}
    return [node.kind for node in GraphView.of(module, method).nodes if node.kind not in skip]


def shape(*sizes: int) -> Tensor:
    """A seeded tensor."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def unary(name: str, wanted: str, given: str) -> RewriteRule:
    """A rule that replaces one operator of one operand by another."""
    return RewriteRule(
        name,
        f"graph(%x):\n  %y = {wanted}(%x)\n  return (%y)",
        f"graph(%x):\n  %y = {given}(%x)\n  return (%y)",
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


def scale_by_two(x: Tensor) -> Tensor:
    """A pattern as a function."""
    return torch.relu(x * 2)


def gelu(x: Tensor) -> Tensor:
    """A replacement as a function."""
    return F.gelu(x)


class Doubled(nn.Module):
    """What scale_by_two describes, twice, and once with 3."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * 2) + torch.relu(x.sin() * 2.0) + torch.relu(x * 3)


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
    """It would be gone: that is no match."""

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


# Where


class Scoped(nn.Module):
    """Activations in layers of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.ReLU6())
        self.decoder = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.decoder(self.encoder(x)))


@pytest.mark.parametrize(
    ("modules", "types", "names"),
    [
        ("*", (), ["encoder.1:relu", "decoder.1:relu", "relu"]),
        ("encoder.*", (), ["encoder.1:relu"]),
        (["encoder.*", "decoder.?"], (), ["encoder.1:relu", "decoder.1:relu"]),
        ("", (), ["relu"]),
        ("*", "ReLU", ["encoder.1:relu", "decoder.1:relu"]),
        ("dec*", ["ReLU", "Linear"], ["decoder.1:relu"]),
    ],
)
def test_module_globs_and_types(modules: Any, types: Any, names: list[str]) -> None:
    """Globs over the path, names of classes; the others are refused with the reason."""
    text = "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)"
    after = text.replace("relu", "tanh")
    rule = RewriteRule("tanh", text, after, modules=modules, module_types=types)
    result = rule.apply(torch.jit.script(Scoped()))
    assert [m.name for m in result.rewritten] == names
    assert len(result.matches) == 3
    assert all("is not among" in m.refused for m in result.refused)


class Blocks(nn.Module):
    """Matches in branches and loops, and one across a border."""

    def forward(self, x: Tensor, n: int) -> Tensor:
        y = torch.neg(x)
        if n > 2:
            x = torch.neg(torch.neg(x)) + torch.neg(y)
        else:
            for _ in range(n):
                x = torch.neg(torch.neg(x)) * 2
        return x


NEG_NEG = RewriteRule(
    "neg_neg",
    "graph(%x):\n  %a = aten::neg(%x)\n  %b = aten::neg(%a)\n  return (%b)",
    "graph(%x):\n  return (%x)",
)


def test_blocks() -> None:
    """What stands inside of branches and loops matches; all of it in the same block."""
    module = torch.jit.script(Blocks())
    result = NEG_NEG.apply(module)
    assert len(result.rewritten) == 2
    assert kinds(result.module).count("aten::neg") == 2
    for n in (1, 3):
        assert torch.equal(result.module(shape(3), n), module(shape(3), n))
    reasons = [p.reason for p in NEG_NEG.explain(module).places]
    assert any("stands in another block" in reason for reason in reasons)


def test_replacement_with_branches() -> None:
    """A function with an if becomes part of the graph."""

    def replacement(x: Tensor) -> Tensor:
        if x.sum() > 0:  # noqa: SIM108
            y = torch.sin(x)
        else:
            y = torch.cos(x)
        return y

    def pattern(x: Tensor) -> Tensor:
        return torch.tanh(x)

    result = RewriteRule("branch", pattern, replacement).apply(
        torch.jit.script(nn.Sequential(nn.Tanh(), nn.Tanh()))
    )
    assert kinds(result.module).count("prim::If") == 2
    x = torch.ones(3)
    assert torch.equal(result.module(x), x.sin().sin())
    assert torch.equal(result.module(-x), torch.cos(-x).sin())


# Order


def relus(count: int) -> torch.jit.ScriptModule:
    """relu(relu(relu(...)))."""
    module = type("Made", (torch.jit.ScriptModule,), {})()
    lines = "\n".join(["    x = torch.relu(x)"] * count)
    module.define(f"def forward(self, x: Tensor) -> Tensor:\n{lines}\n    return x\n")
    return module


RELU_RELU = RewriteRule(
    "relu_relu",
    "graph(%x):\n  %a = aten::relu(%x)\n  %b = aten::relu(%a)\n  return (%b)",
    "graph(%x):\n  %a = aten::relu(%x)\n  return (%a)",
)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_overlaps_are_deterministic(count: int) -> None:
    """Two runs give the same text, and a run on the result changes nothing."""
    first, second = RELU_RELU.apply(relus(count)), RELU_RELU.apply(relus(count))
    assert first.after == second.after and str(first) == str(second)
    assert len(first.rewritten) == count - 1 and kinds(first.module) == ["aten::relu"]
    again = RELU_RELU.apply(first.module)
    assert not again.matches and again.diff() == ""
    to_gelu = RewriteRule("two_to_one", RELU_RELU.pattern, gelu)
    texts = {to_gelu.apply(relus(count)).after for _ in range(3)}
    assert len(texts) == 1
    assert kinds(to_gelu.apply(relus(count)).module).count("aten::gelu") == count // 2


def test_refusals_are_in_order() -> None:
    """Of several rules at one node too, the same in each run."""
    rules = [
        RewriteRule(
            f"no_{i}",
            "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)",
            gelu,
            check=lambda m: False,
        )
        for i in range(20)
    ]
    rules = [
        RewriteRule(rule.name, rule.pattern, "graph(%x):\n  return (%x)", check=rule.check)
        for rule in rules
    ]
    result = rewrite(relus(3), rules)
    assert [m.rule for m in result.refused] == [rule.name for rule in rules] * 3


def test_earlier_rules_come_first() -> None:
    """At one operator the first rule that matches wins."""
    to_sin, to_cos = (
        RewriteRule(
            name,
            "graph(%x):\n  %y = aten::tanh(%x)\n  return (%y)",
            f"graph(%x):\n  %y = aten::{name}(%x)\n  return (%y)",
        )
        for name in ("sin", "cos")
    )
    module = torch.jit.script(nn.Sequential(nn.Tanh()))
    assert kinds(rewrite(module, [to_sin, to_cos]).module) == ["aten::sin"]
    assert kinds(rewrite(module, [to_cos, to_sin]).module) == ["aten::cos"]


@pytest.mark.parametrize("inplace", [False, True])
def test_cycles(inplace: bool) -> None:
    """Are named, and the module is as it was."""
    rules = [
        unary("a", "aten::sin", "aten::cos"),
        unary("b", "aten::cos", "aten::tan"),
        unary("c", "aten::tan", "aten::sin"),
    ]
    module = type("Made", (torch.jit.ScriptModule,), {})()
    module.define("def forward(self, x: Tensor) -> Tensor:\n    return torch.sin(x)\n")
    before = str(module.graph)
    with pytest.raises(
        PassError, match=r"'(a|b|c)' -> '(a|b|c)' -> '(a|b|c)' -> '(a|b|c)'"
    ) as caught:
        rewrite(module, rules, inplace=inplace)
    assert "without end" in str(caught.value)
    assert str(module.graph) == before
    two = [unary("a", "aten::sin", "aten::cos"), unary("b", "aten::cos", "aten::sin")]
    with pytest.raises(PassError, match=r"('a' -> 'b' -> 'a'|'b' -> 'a' -> 'b')"):
        rewrite(module, two)


def test_growing_rules() -> None:
    """A rule that makes its own pattern anew."""
    rule = RewriteRule(
        "grow",
        "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)",
        "graph(%x):\n  %y = aten::relu(%x)\n  %z = aten::relu(%y)\n  return (%z)",
    )
    with pytest.raises(PassError, match=r"'grow' -> 'grow'"):
        rule.apply(relus(2))


def test_long_chains() -> None:
    """Thousands of rewrites, each of the last one's result, are no cycle, and take no stack."""
    result = RELU_RELU.apply(relus(5000))
    assert len(result.rewritten) == 4999 and kinds(result.module) == ["aten::relu"]


def test_very_long_chains() -> None:
    """A hundred thousand."""
    lines = ["graph(%v0 : Tensor):"]
    lines += [f"  %v{i + 1} : Tensor = aten::relu(%v{i})" for i in range(100_000)]
    graph = torch._C.parse_ir("\n".join([*lines, "  return (%v100000)"]))
    assert len(_C.apply_rules(graph, "", [RELU_RELU.compile()])) == 99_999
    assert str(graph).count("aten::relu") == 1


# Subjects


class Small(nn.Module):
    """A convolution, batch norm and dropout, and another exported method."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.relu(self.norm(self.conv(x))))

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)) * 2


TO_SIGMOID = unary("sigmoid", "aten::relu", "aten::sigmoid")
IMAGE = shape(1, 2, 3, 3)


@pytest.mark.parametrize("how", ["script", "trace", "load", "freeze", "train"])
def test_modules_of_all_kinds(how: str, tmp_path: Path) -> None:
    """Scripted, traced, loaded, frozen, in training mode."""
    net = Small().train(how == "train")
    module = torch.jit.trace(net, IMAGE) if how == "trace" else torch.jit.script(net)
    if how == "load":
        torch.jit.save(module, str(tmp_path / "m.pt"))
        module = torch.jit.load(str(tmp_path / "m.pt"))
    if how == "freeze":
        module = torch.jit.freeze(module)
    result = TO_SIGMOID.apply(module)
    assert len(result.rewritten) == 1 and "aten::relu" not in kinds(result.module)
    assert how == "load" or result.rewritten[0].source.startswith(__file__)
    torch.manual_seed(0)
    found = result.module(IMAGE)
    copy = Small().train(how == "train")
    copy.load_state_dict(net.state_dict())
    torch.manual_seed(0)
    expected = copy.dropout(torch.sigmoid(copy.norm(copy.conv(IMAGE))))
    torch.testing.assert_close(found, expected)


def test_other_methods() -> None:
    """Only the named one is rewritten; the others work as before."""
    module = torch.jit.script(Small().eval())
    result = TO_SIGMOID.apply(module, "encode")
    assert "aten::sigmoid" in kinds(result.module, "encode")
    assert torch.equal(result.module(IMAGE), module(IMAGE))
    assert torch.equal(result.module.encode(IMAGE), torch.sigmoid(module.conv(IMAGE)) * 2)
    with pytest.raises(JitPassesError, match=r"no method 'decode', only: .*encode"):
        TO_SIGMOID.apply(module, "decode")


def test_bare_graphs() -> None:
    """A scripted function's graph; what needs a module is an error."""

    def function(x: Tensor) -> Tensor:
        return torch.relu(torch.relu(x))

    scripted = torch.jit.script(function)
    graph = scripted.graph.copy()
    assert _C.apply_rules(graph, "", [RELU_RELU.compile()])[0][0] == "relu_relu"
    assert str(graph).count("aten::relu") == 1
    rule = RewriteRule(
        "buffer",
        "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)",
        "graph(%x, %s):\n  %y = aten::mul(%x, %s)\n  return (%y)",
        compute=lambda match: {"s": torch.ones(1)},
    )
    with pytest.raises(RuntimeError, match="this is a graph alone"):
        _C.apply_rules(graph, "", [rule.compile()])


# Results


def test_results_and_their_text() -> None:
    """Names, lines, counts and reasons."""
    rule = RewriteRule(
        "sigmoid",
        TO_SIGMOID.pattern,
        TO_SIGMOID.replacement,
        check=lambda m: m.module != "decoder.1" or "not here",
    )
    result = rule.apply(torch.jit.script(Scoped()))
    assert [m.name for m in result.rewritten] == ["encoder.1:relu", "relu"]
    assert result.refused[0].refused == "not here"
    line = next(
        i
        for i, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "torch.relu(self.decoder(" in text
    )
    assert {m.source for m in result.matches} == {f"{__file__}:{line}"}
    lines = str(result).splitlines()
    assert lines[0] == "sigmoid: 2 rewritten"
    assert lines[-1].startswith("refused: decoder.1:relu") and lines[-1].endswith(": not here")
    assert "+  encoder.1:sigmoid = aten::sigmoid(encoder.0:linear)" in result.diff(color=False)
    assert "\033[32m" in result.diff(color=True) and "\033[" not in result.diff(color=False)
    assert str(NEG_NEG.apply(torch.jit.script(Scoped()))) == "no rewrite"


def test_errors_at_run_time_show_the_users_line() -> None:
    """Of a replaced operator as of the model's own."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            return torch.sin(y)  # the user's line

    rule = RewriteRule(
        "fails",
        "graph(%x):\n  %y = aten::sin(%x)\n  return (%y)",
        "graph(%x):\n  %d : int = prim::Constant[value=7]()\n"
        "  %y = aten::select(%x, %d, %d)\n  return (%y)",
    )
    result = rule.apply(torch.jit.script(Net()))
    with pytest.raises(Exception, match="the user's line"):
        result.module(shape(2))


def test_match_objects() -> None:
    """What checks see."""
    seen: list[Match] = []

    def look(match: Match) -> bool:
        seen.append(match)
        return False

    rule = RewriteRule(
        "look",
        """graph(%x, %w, %b, %stride, %rest):
  %y = aten::conv2d(%x, %w, %b, %stride, %rest)
  %z = match::activation(%y)
  return (%z)""",
        "graph(%x):\n  return (%x)",
        alternatives=ACTIVATION,
        check=look,
    )

    class Net(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu6(self[0](x))

    net = Net(nn.Conv2d(2, 3, 1))
    rule.apply(torch.jit.script(net))
    (match,) = seen
    assert (match.kind, match.module) == ("aten::conv2d", "0")
    assert match.module_type.split(".")[-1] == "Conv2d"
    assert match.types["x"] == "Tensor" and match.types["stride"] == "List[int]"
    assert match.constants["stride"] == [1, 1]
    assert torch.equal(match.constants["w"], net[0].weight)
    assert match.shapes["w"] == (3, 2, 1, 1) and "x" not in match.shapes
    assert match.operators == {"aten::conv2d": "aten::conv2d", "match::activation": "aten::relu6"}


def test_dry_run() -> None:
    """Changes nothing, and shows what would change."""
    module = torch.jit.script(Scoped())
    before = str(module.inlined_graph)
    dry, real = TO_SIGMOID.apply(module, dry_run=True), TO_SIGMOID.apply(module)
    assert dry.module is module and str(module.inlined_graph) == before
    assert dry.diff() == real.diff() != "" and dry.matches == real.matches
    TO_SIGMOID.apply(module, dry_run=True, inplace=True)
    assert str(module.inlined_graph) == before


@pytest.mark.parametrize("how", ["script", "trace"])
def test_inplace(how: str) -> None:
    """This very object changes, though the executor has optimized it already."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    x = shape(2, 3)
    module = torch.jit.script(net) if how == "script" else torch.jit.trace(net, x)
    parameters = list(module.parameters())
    for _ in range(3):
        module(x)
    result = TO_SIGMOID.apply(module, inplace=True)
    assert result.module is module
    assert torch.equal(module(x), torch.sigmoid(net[0](x)))
    assert all(
        a is b or a.data_ptr() == b.data_ptr()
        for a, b in zip(parameters, module.parameters(), strict=True)
    )


def test_verify() -> None:
    """Catches a wrong rule, also one whose outputs are right and gradients are not."""
    module = torch.jit.script(Small().eval())
    with pytest.raises(PassError, match=r"rule 'sigmoid' changed what the module computes: output"):
        TO_SIGMOID.apply(module, inplace=True, verify=(IMAGE,))
    assert "aten::relu" in str(module.inlined_graph)

    def detached(x: Tensor) -> Tensor:
        return torch.relu(x.detach())

    def relu(x: Tensor) -> Tensor:
        return torch.relu(x)

    with pytest.raises(PassError, match="gradient of"):
        RewriteRule("detach", relu, detached, check=once()).apply(module, verify=(IMAGE,))
    assert RELU_RELU.apply(relus(3), verify=(IMAGE,)).rewritten


def once() -> Any:
    """A check that agrees to the first match only."""
    seen: list[Match] = []

    def check(match: Match) -> bool:
        seen.append(match)
        return len(seen) == 1

    return check


def test_verify_of_a_module_that_writes_to_its_argument() -> None:
    """The copies that it gets may be written to."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.add_(1)
            return torch.relu(torch.relu(x))

    x = shape(3)
    assert RELU_RELU.apply(torch.jit.script(Net()), verify=(x,)).rewritten
    assert torch.equal(x, shape(3))


def test_replace_pattern() -> None:
    """A rule without a name."""
    module = replace_pattern(torch.jit.script(Doubled()), scale_by_two, gelu)
    assert kinds(module).count("aten::gelu") == 2


def test_rules_as_passes() -> None:
    """In the registry, in pipelines, and gone again."""
    jit_passes.register_rules(
        "test_rules_pass", [RELU_RELU, NEG_NEG], summary="Remove repetitions."
    )
    try:
        result = jit_passes.Pipeline("mine", ("test_rules_pass", "test_rules_pass")).run(relus(3))
        assert [r.changed for r in result.records] == [True, False]
        with pytest.raises(JitPassesError, match="registered already"):
            jit_passes.register_rules("test_rules_pass", [NEG_NEG], summary="Again.")
    finally:
        jit_passes.passes.remove("test_rules_pass")
    assert "test_rules_pass" not in jit_passes.passes


def test_nothing_leaks() -> None:
    """Neither rules nor results outlive their last use."""

    class Checker:
        def __call__(self, match: Match) -> bool:
            return True

    check = Checker()
    rule = RewriteRule("leak", RELU_RELU.pattern, RELU_RELU.replacement, check=check)
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.ReLU()))
    result = rule.apply(module)
    parameter = weakref.ref(next(iter(module.parameters())))
    watched = weakref.ref(check)
    del rule, check
    gc.collect()
    assert watched() is None
    result.module(shape(2, 3))
    del result, module
    gc.collect()
    assert parameter() is None


# explain


def test_explain() -> None:
    """Near misses in order; each reason names the operator."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x: Tensor, flag: bool) -> Tensor:
            a = torch.relu(x)
            b = torch.relu(torch.sin(x))
            c = torch.relu(torch.mul(x, 3))
            d = torch.relu(torch.mul(self.first(x), 3))
            e = torch.relu(torch.mul(self.second(x), 2))
            y = torch.mul(self.third(x), 2)
            f = torch.relu(y) + y
            if flag:
                f = f + torch.relu(y)
            return a + b + c + d + e + f

    rule = RewriteRule(
        "fuse",
        """graph(%x, %w, %b):
  %two : int = prim::Constant[value=2]()
  %y = aten::linear(%x, %w, %b)
  %z = aten::mul(%y, %two)
  %o = aten::relu(%z)
  return (%o)""",
        "graph(%x):\n  return (%x)",
    )
    explanation = rule.explain(torch.jit.script(Net()))
    assert explanation.kind == "aten::relu" and len(explanation.places) == 7
    counts = [place.matched for place in explanation.places]
    assert counts == sorted(counts, reverse=True) and {p.size for p in explanation.places} == {3}
    reasons = {place.name: place.reason for place in explanation.places}
    assert (
        reasons["relu"].startswith("operand 0 of aten::relu")
        and "is an argument" in reasons["relu"]
    )
    assert (
        "it has aten::sin" in reasons["relu#1"] and "the pattern has aten::mul" in reasons["relu#1"]
    )
    assert "operand 0 of aten::mul" in reasons["relu#2"]
    assert "is 3, not 2" in reasons["relu#3"]
    assert reasons["relu#4"] == ""
    assert "is used by" in reasons["relu#5"]
    assert "stands in another block" in reasons["relu#6"]
    assert all(__file__ in reason or not reason for reason in reasons.values())
    text = str(explanation)
    assert "3 of 3, matches" in text and "relu#4" in text.splitlines()[0]
    nothing = rule.explain(torch.jit.script(nn.Sequential(nn.Tanh())))
    assert str(nothing) == "fuse: the graph has no aten::relu, which the pattern ends in"


def test_explain_says_what_checks_and_writes_refuse() -> None:
    """And types, operand counts, other operands and siblings that are missing."""

    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor, n: int) -> Tensor:
            z = x * y
            z.add_(1)
            a = torch.neg(torch.neg(z))
            a.mul_(2)
            return a + torch.cat([x, y, x]).sum() + z

    module = torch.jit.script(Net())
    assert "aten::mul_" in NEG_NEG.explain(module).places[0].reason
    checked = RewriteRule("neg", NEG_NEG.pattern, NEG_NEG.replacement, check=lambda m: "no")
    assert checked.explain(module).places[0].reason == "no"
    square = RewriteRule(
        "square", "graph(%x):\n  %y = aten::mul(%x, %x)\n  return (%y)", "graph(%x):\n  return (%x)"
    )
    assert "is not the %x matched before" in square.explain(module).places[0].reason
    pair = RewriteRule(
        "pair",
        "graph(%x, %y):\n  %l : Tensor[] = prim::ListConstruct(%x, %y)\n"
        "  %d : int = prim::Constant[value=0]()\n  %o = aten::cat(%l, %d)\n  return (%o)",
        "graph(%x):\n  return (%x)",
    )
    assert "has 3 operands where the pattern has 2" in pair.explain(module).places[0].reason
    siblings = RewriteRule(
        "siblings",
        "graph(%x, %y):\n  %b = aten::sin(%x)\n  %a = aten::mul(%x, %y)\n  return (%a, %b)",
        "graph(%x, %y):\n  return (%x, %y)",
    )
    assert "where the pattern has aten::sin" in siblings.explain(module).places[0].reason
