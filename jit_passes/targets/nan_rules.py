"""How a NaN stays in its row, where PyTorch's dynamic kernels choose one range for a batch.

Their search for the range forgets all numbers ahead of a NaN, and one infinity makes the range
infinite: results of all rows are wrong then, and finite. The norm of an operand finds both. The
kernel gets zeros for them, and a row that held one becomes NaN behind it: x - x is 0 for finite
numbers, else NaN. A norm that overflows takes the slow way too, which is right for all numbers.
PyTorch computes a norm in one thread, faster than it wakes others for a sum.

A linear's rows are vectors of its input; rows of LSTM and GRU are samples with all their steps.
"""

from __future__ import annotations

from functools import cache

import torch

from ..passes.rule import RewriteRule
from ..passes.steps import RuleSet

_HELPERS = """
def norm(x: Tensor) -> float:
    return float(x.norm())

def is_finite(norm: float) -> bool:
    return norm - norm == 0.0

def clean(x: Tensor, finite: bool) -> Tensor:
    return x if finite else torch.nan_to_num(x, 0.0, 0.0, 0.0)

def lost(x: Tensor, states: List[Tensor], batch_first: bool) -> Tensor:
    found = (x - x).sum([1 if batch_first else 0, 2])
    for state in states:
        found = found + (state - state).sum([0, 2])
    return found.unsqueeze(-1)
"""

_LINEAR = """
def kernel(x: Tensor, weights: Weights, reduce: bool) -> Tensor:
    return torch.ops.quantized.{name}(x, weights, reduce)

def isolated(x: Tensor, weights: Weights, reduce: bool) -> Tensor:
    finite = is_finite(norm(x))
    y = torch.ops.quantized.{name}(clean(x, finite), weights, reduce)
    return y if finite else y + (x - x).sum(-1, keepdim=True)
"""

_LAYERS = (
    "cells: List[Cell], biases: bool, layers: int, dropout: float, train: bool, both: bool, "
    "batch_first: bool"
)
_GIVEN = "cells, biases, layers, dropout, train, both, batch_first"

_LSTM = f"""
def kernel(x: Tensor, states: List[Tensor], {_LAYERS}, dtype: Optional[int], dynamic: bool):
    return torch.quantized_lstm(x, states, {_GIVEN}, dtype=dtype, use_dynamic=dynamic)

def isolated(x: Tensor, states: List[Tensor], {_LAYERS}, dtype: Optional[int], dynamic: bool):
    finite = is_finite(norm(x) + norm(states[0]) + norm(states[1]))
    given = [clean(states[0], finite), clean(states[1], finite)]
    y, h, c = torch.quantized_lstm(
        clean(x, finite), given, {_GIVEN}, dtype=dtype, use_dynamic=dynamic
    )
    if not finite:
        row = lost(x, states, batch_first)
        y, h, c = y + (row.unsqueeze(-1) if batch_first else row), h + row, c + row
    return y, h, c
"""

_GRU = f"""
def kernel(x: Tensor, state: Tensor, {_LAYERS}):
    return torch.quantized_gru(x, state, {_GIVEN})

def isolated(x: Tensor, state: Tensor, {_LAYERS}):
    finite = is_finite(norm(x) + norm(state))
    y, h = torch.quantized_gru(clean(x, finite), clean(state, finite), {_GIVEN})
    if not finite:
        row = lost(x, [state], batch_first)
        y, h = y + (row.unsqueeze(-1) if batch_first else row), h + row
    return y, h
"""


def _rule(name: str, source: str) -> RewriteRule:
    # The compiler finds classes of operators by names of the function that calls it.
    Weights = torch.classes.quantized.LinearPackedParamsBase  # noqa: F841
    Cell = torch.classes.rnn.CellParamsBase  # noqa: F841
    compiled = torch.jit.CompilationUnit(_HELPERS + source)
    return RewriteRule(f"isolate_nan_{name}", compiled.kernel, compiled.isolated, repeat=False)


@cache
def isolate_nan() -> RuleSet:
    """Return the step of a lowering, compiled once."""
    kernels = {
        "linear": _LINEAR.format(name="linear_dynamic"),
        "linear_relu": _LINEAR.format(name="linear_relu_dynamic"),
        "lstm": _LSTM,
        "gru": _GRU,
    }
    rules = (_rule(name, source).compile() for name, source in kernels.items())
    return RuleSet("isolate_nan", tuple(rules))
