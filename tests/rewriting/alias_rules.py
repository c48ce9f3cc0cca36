"""Rules for rewriting where memory is written to, and running what they made."""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import Tensor, nn

from jit_passes import RewriteRule
from tests.rewriting.rules import NEG_NEG, RELU_RELU

TIMES_ONE = RewriteRule(
    "times_one",
    """graph(%x):
  %one : int = prim::Constant[value=1]()
  %a = aten::mul(%x, %one)
  return (%a)""",
    "graph(%x):\n  return (%x)",
)
TRANSPOSE_TWICE = RewriteRule(
    "transpose_twice",
    """graph(%x, %i, %j):
  %a = aten::transpose(%x, %i, %j)
  %b = aten::transpose(%a, %i, %j)
  return (%b)""",
    "graph(%x, %i, %j):\n  return (%x)",
)
RELU_TO_FUNCTIONAL = RewriteRule(
    "relu_to_functional",
    """graph(%x):
  %a = aten::relu_(%x)
  return (%a)""",
    """graph(%x):
  %a = aten::relu(%x)
  return (%a)""",
)
RELU_OF_NEG = RewriteRule(
    "relu_of_neg",
    """graph(%x):
  %a = aten::neg(%x)
  %b = aten::relu_(%a)
  return (%b)""",
    """graph(%x):
  %zero : int = prim::Constant[value=0]()
  %a = aten::clamp_max(%x, %zero)
  %b = aten::neg(%a)
  return (%b)""",
)
SIBLINGS = RewriteRule(
    "siblings",
    """graph(%x):
  %a = aten::relu(%x)
  %b = aten::neg(%x)
  return (%a, %b)""",
    """graph(%x):
  %zero : int = prim::Constant[value=0]()
  %b = aten::neg(%x)
  %a = aten::clamp_min(%x, %zero)
  return (%a, %b)""",
)
ADD_OF_NEG = RewriteRule(
    "add_of_neg",
    """graph(%x, %y):
  %one : int = prim::Constant[value=1]()
  %a = aten::neg(%y)
  %b = aten::add(%x, %a, %one)
  return (%b)""",
    """graph(%x, %y):
  %one : int = prim::Constant[value=1]()
  %b = aten::sub(%x, %y, %one)
  return (%b)""",
)
SELF_ADD = RewriteRule(
    "add_relu_to_itself",
    """graph(%x):
  %one : int = prim::Constant[value=1]()
  %a = aten::relu(%x)
  %b = aten::add(%a, %x, %one)
  return (%b)""",
    """graph(%x):
  %one : int = prim::Constant[value=1]()
  %a = aten::relu(%x)
  %b = aten::add(%x, %a, %one)
  return (%b)""",
)
IN_PLACE = RewriteRule(
    "relu_in_place",
    """graph(%x):
  %a = aten::relu(%x)
  return (%a)""",
    """graph(%x):
  %a = aten::relu_(%x)
  return (%a)""",
)
RULES = [
    NEG_NEG,
    RELU_RELU,
    TIMES_ONE,
    TRANSPOSE_TWICE,
    RELU_TO_FUNCTIONAL,
    RELU_OF_NEG,
    SIBLINGS,
    ADD_OF_NEG,
    SELF_ADD,
]


def run(module: torch.jit.ScriptModule) -> list[Tensor]:
    """Two calls: results, gradients, the argument afterwards and the buffers."""
    torch.manual_seed(0)
    module = copy.deepcopy(module)
    seen = []
    for _ in range(2):
        leaf = torch.randn(4, 4, requires_grad=True)
        given = leaf.clone()
        out = module(given)
        grad = None
        with contextlib.suppress(RuntimeError):  # some of these cannot be differentiated
            grad = torch.autograd.grad(out.sum(), leaf, allow_unused=True)[0]
        buffers = [b.detach().clone() for b in module.buffers()]
        for name, buffer in module.named_buffers():
            setattr(module, name, buffer.detach())
        seen += [out.detach(), given.detach(), *buffers, *([] if grad is None else [grad])]
    return seen


def assert_same(before: torch.jit.ScriptModule, after: torch.jit.ScriptModule) -> None:
    """To the bit: the rules compute with the same numbers."""
    expected, found = run(before), run(after)
    assert any(t.abs().sum() > 0 for t in expected)
    for left, right in zip(expected, found, strict=True):
        assert torch.equal(left, right)


def scripted(kind: type[nn.Module]) -> torch.jit.ScriptModule:
    """A module of its own."""
    return torch.jit.script(kind().eval())
