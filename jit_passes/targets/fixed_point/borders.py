"""Quantize and dequantize at the borders between floats and integers, as operators of ATen.

    quantize      clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max)
    dequantize    (q - zero_point) * scale, in float32
    lookup_table  take(table, codes - first)

The first gives the codes of the dialect in this torch, ties included: see `cpp/ops/rounding.h`.
Torch 2.13 rounds x * (1 / scale) + zero_point, which is one operation in float32. In double
precision the product is exact, so the sum has the same bits once it is float32. Other roundings,
with a fake_quantize in front of quantize, have this formula in any torch. Halves away from zero are
the exception: x / scale is rounded, ahead of the zero point.
NaN becomes code 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import torch

from ...graph.editor import GraphEditor
from ...graph.view import are_constant
from ...passes.rule import Match, RewriteRule
from ...passes.steps import RuleSet
from ..units import DEQUANTIZE
from .arithmetic import INT64, Arithmetic

FLOAT32, FLOAT64 = 6, 7  # as graphs have dtypes
ROUNDS_STEPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)


def _cast(x: str, dtype: int) -> str:
    return f"aten::to({x}, {dtype}, False, False, None)"


def _rule(name: str, pattern: str, replacement: str, **options: Any) -> Any:
    return RewriteRule(f"lower_{name}", f"jit_passes::{pattern}", replacement, **options).compile()


def _numbers(match: Match) -> dict[str, float]:
    """Return the numbers that a quantize is computed with, besides its own."""
    constants = match.constants
    inverse = torch.tensor(1.0) / torch.tensor(constants["scale"], dtype=torch.float32)
    return {"inverse": float(inverse), "code_0": -float(constants.get("zero", 0))}


def _steps(x: str) -> str:
    return f"aten::nan_to_num(aten::mul({x}, %inverse), %code_0, None, None)"


# A number of float32 in double precision, where a half is added exactly.
_ROUNDED = {
    "half_up": "aten::floor(aten::add(%v, 0.5, 1))",
    "half_away": "aten::trunc(aten::add(%v, aten::sign(%v), 0.5))",
    "floor": "aten::floor(%v)",
}


def _rounding_rules() -> Iterator[Any]:
    total = f"aten::add({_steps(_cast('%x', FLOAT64))}, %zero, 1)"
    for (rounding, rounded), zero in product(_ROUNDED.items(), ("0", "%zero")):
        code = _steps("%x")
        if zero == "%zero" and rounding == "half_away":
            rounded = f"aten::add({rounded}, %zero, 1)"
        elif zero == "%zero":
            code = _cast(total, FLOAT32)
        source = f'jit_passes::fake_quantize(%x, %s, %z, %low, %high, None, "{rounding}")'
        yield _rule(
            "rounding",
            f"quantize({source}, %scale, {zero}, %low, %high, %dtype)",
            f"%v = {_cast(code, FLOAT64)}\n"
            f"aten::to(aten::clamp({rounded}, %low, %high), %dtype, False, False, None)",
            compute=_numbers,
        )


def _rules() -> Iterator[Any]:
    yield from _rounding_rules()
    rounded = f"aten::round({_steps('%x')})"
    if ROUNDS_STEPS:
        moved = f"aten::add({rounded}, %zero, 1)"
    else:
        total = f"aten::add({_steps(_cast('%x', FLOAT64))}, %zero, 1)"
        moved = f"aten::round({_cast(total, FLOAT32)})"
    for zero, codes in (("0", rounded), ("%zero", moved)):
        yield _rule(
            "quantize",
            f"quantize(%x, %scale, {zero}, %low, %high, %dtype)",
            f"aten::to(aten::clamp({codes}, %low, %high), %dtype, False, False, None)",
            compute=_numbers,
        )
    index = _cast("%q", INT64)
    yield _rule("table", "lookup_table(%q, %table, 0)", f"aten::take(%table, {index})")
    shifted = f"aten::take(%table, aten::sub({index}, %first, 1))"
    yield _rule("table", "lookup_table(%q, %table, %first)", shifted)


@cache
def lower_to_codes() -> RuleSet:
    """Return the step for operators that give codes, parsed once."""
    return RuleSet("lower_to_codes", tuple(_rules()))


def lower_to_floats(graph: GraphEditor) -> None:
    """Write dequantize as operators of ATen.

    A rule would not do: the result of a rule stands for the value that it replaces, and reports
    would see the value twice, as codes and as floats.
    """
    for node in graph.nodes:
        if node.kind != DEQUANTIZE or not are_constant(node.other_operands):
            continue
        codes, scale, zero_point = node.inputs
        math = Arithmetic(graph, node, node, "truncate")
        steps = math.cast(codes, FLOAT32)
        if zero_point.constant:
            steps = math.insert("aten::sub", steps, zero_point, 1)
        graph.replace(node.output, math.insert("aten::mul", steps, scale))
        graph.remove(node)
