"""Rewriting: the places and subjects of rules, and the results that come back."""

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
from jit_passes import _C, JitPassesError, Match, PassError, RewriteRule, replace_pattern
from tests.rewriting.rules import (
    ACTIVATION,
    NEG_NEG,
    RELU_RELU,
    Doubled,
    gelu,
    kinds,
    once,
    relus,
    scale_by_two,
    shape,
    unary,
)

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


def test_blocks() -> None:
    """Operators inside of branches and loops match; all of them in the same block."""
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
    """The view that checks get."""
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
    """The object itself changes, though the executor has optimized it already."""
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
    with pytest.raises(
        PassError, match=r"rule 'sigmoid' changed the results of the module: output"
    ):
        TO_SIGMOID.apply(module, inplace=True, verify=(IMAGE,))
    assert "aten::relu" in str(module.inlined_graph)

    def detached(x: Tensor) -> Tensor:
        return torch.relu(x.detach())

    def relu(x: Tensor) -> Tensor:
        return torch.relu(x)

    with pytest.raises(PassError, match="gradient of"):
        RewriteRule("detach", relu, detached, check=once()).apply(module, verify=(IMAGE,))
    assert RELU_RELU.apply(relus(3), verify=(IMAGE,)).rewritten


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
