"""Differences between graphs: the lines that changed, whatever numbers their neighbours have."""

from __future__ import annotations

import re

import pytest
import torch

from jit_passes import RewriteRule, diff_graphs, format_graph
from jit_passes.graph.diff import diff_text
from tests.rewriting.rules import RELU_RELU, module_of, once, relus, unary


def changed(diff: str) -> list[str]:
    """The lines of a diff that are gone or new."""
    return [line[0] + line[1:].strip() for line in diff.splitlines() if line[:1] in "+-"]


def chain() -> torch.jit.ScriptModule:
    """Several relus and tanhs in one module: their names differ by number alone."""
    return module_of(
        "x = torch.relu(x)\nx = torch.tanh(x)\nx = torch.relu(x)\nx = torch.neg(torch.tanh(x))\n"
        "x = torch.relu(x)\nreturn torch.tanh(x) * torch.sigmoid(x)"
    )


def test_a_rewrite_leaves_the_names_of_other_nodes() -> None:
    """The first relu and tanh become a sine: all relus and tanhs behind have other numbers."""
    rule = RewriteRule(
        "first",
        "graph(%x):\n  %y = aten::relu(%x)\n  %z = aten::tanh(%y)\n  return (%z)",
        "graph(%x):\n  %y = aten::sin(%x)\n  return (%y)",
        check=once(),
    )
    result = rule.apply(chain())
    assert len(set(result.after.splitlines()) - set(result.before.splitlines())) > 4
    assert changed(result.diff(color=False)) == [
        "-relu = aten::relu(x)",
        "-tanh = aten::tanh(relu)",
        "-relu#1 = aten::relu(tanh)",
        "+sin = aten::sin(x)",
        "+relu#1 = aten::relu(sin)",
    ]


def test_new_nodes_have_names_that_are_free() -> None:
    """A second relu behind each: none has a name that another node has."""
    rule = RewriteRule("twice", RELU_RELU.replacement, RELU_RELU.pattern, repeat=False)
    result = rule.apply(chain())
    lines = changed(result.diff(color=False))
    made = [line for line in lines if re.match(r"\+relu#\d = ", line)]
    assert made == [
        "+relu#3 = aten::relu(relu)",
        "+relu#4 = aten::relu(relu#1)",
        "+relu#5 = aten::relu(relu#2)",
    ]
    assert "+tanh#1 = aten::tanh(relu#4)" in lines and len(lines) == 11


@pytest.mark.parametrize("count", [3, 200])
def test_one_of_many_that_are_alike(count: int) -> None:
    """The lost one of equal relus cannot be told; the others have not changed."""
    lines = changed(diff_graphs(relus(count), relus(count - 1), color=False))
    assert [line[0] for line in lines] in (["-"], ["-", "-", "+"]), lines


def test_results_of_a_node_have_one_number() -> None:
    """The first of two layers is gone, and `lstm#1.0` is called `lstm.0` then."""
    before = """graph(self, x):
  lstm.0, lstm.1 = aten::lstm(x)
  lstm#1.0, lstm#1.1 = aten::lstm(lstm.0)
  neg = aten::neg(lstm#1.1)
  return (neg)"""
    after = """graph(self, x):
  gru.0, gru.1 = aten::gru(x)
  lstm.0, lstm.1 = aten::lstm(gru.0)
  neg = aten::neg(lstm.1)
  return (neg)"""
    assert changed(diff_text(before, after, False)) == [
        "-lstm.0, lstm.1 = aten::lstm(x)",
        "-lstm#1.0, lstm#1.1 = aten::lstm(lstm.0)",
        "+gru.0, gru.1 = aten::gru(x)",
        "+lstm#1.0, lstm#1.1 = aten::lstm(gru.0)",
    ]


def test_equal_graphs() -> None:
    """No line, and the text of a result is that of its module."""
    module = chain()
    assert diff_graphs(module, module) == ""
    result = unary("tan", "aten::tan", "aten::tanh").apply(module)
    assert result.diff() == "" and result.after == format_graph(result.module)
