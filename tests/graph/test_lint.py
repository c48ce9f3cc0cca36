"""The check that runs after every pass: what is wrong with a graph, and where."""

from __future__ import annotations

import pytest

from jit_passes import _C
from tests.passes.golden import module_of

CHAIN = """
graph(%x : Tensor):
  %y : Tensor = aten::relu(%x)
  %z : Tensor = aten::tanh(%y)
  return (%z)
"""
BRANCH = """
graph(%x : Tensor, %flag : bool):
  %y : Tensor = prim::If(%flag)
    block0():
      %a : Tensor = aten::relu(%x)
      -> (%a)
    block1():
      -> (%x)
  %z : Tensor = aten::tanh(%y)
  return (%z)
"""


def test_valid() -> None:
    """Nothing to say."""
    for text in (CHAIN, BRANCH):
        _C.lint(module_of(text), "forward")


def test_use_before_definition() -> None:
    """The message names both."""
    module = module_of(CHAIN)
    relu, tanh = module._get_method("forward").graph.nodes()
    tanh.moveBefore(relu)
    with pytest.raises(RuntimeError, match=r"not valid at aten::tanh.*of aten::relu.*not defined"):
        _C.lint(module, "forward")


def test_value_of_another_block() -> None:
    """A value of a branch is not seen outside."""
    module = module_of(BRANCH)
    branch, tanh = module._get_method("forward").graph.nodes()
    (relu,) = next(iter(branch.blocks())).nodes()
    tanh.replaceInput(0, relu.output())
    with pytest.raises(RuntimeError, match=r"aten::tanh.*of aten::relu.*block around it"):
        _C.lint(module, "forward")


def test_no_such_operator() -> None:
    """The message has the types that were given."""
    module = module_of(CHAIN)
    graph = module._get_method("forward").graph
    relu, tanh = graph.nodes()
    flag = graph.insertConstant(True)
    flag.node().moveBefore(relu)
    tanh.replaceInput(0, flag)
    with pytest.raises(RuntimeError, match=r"at aten::tanh: aten::tanh does not take \(bool\)"):
        _C.lint(module, "forward")


def test_results_of_a_branch() -> None:
    """One for each result of the node."""
    module = module_of(BRANCH)
    branch, _ = module._get_method("forward").graph.nodes()
    block = next(iter(branch.blocks()))
    block.registerOutput(next(iter(block.outputs())))
    with pytest.raises(RuntimeError, match=r"prim::If.*1 results of the first block.*there are 2"):
        _C.lint(module, "forward")
