"""What is left of the dialect between floats and integers, as operators of ATen.

    quantize      int_repr(quantize_per_tensor(x, scale, zero_point)), clamped
    dequantize    (q - zero_point) * scale, in float32
    lookup_table  take(table, codes - first)

The first is PyTorch's own quantization, ties included, as the dialect's is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from ...graph.editor import GraphEditor
from ...passes.rule import RewriteRule
from ...passes.steps import RuleSet
from ..units import DEQUANTIZE
from .arithmetic import INT64, NUMBERS, Arithmetic

FLOAT32 = 6  # as graphs have dtypes
QUINT8, QINT8, QINT32 = 13, 12, 14
CODES = "aten::int_repr(aten::quantize_per_tensor(%x, %scale, %zero, {}))"


def _cast(x: str, dtype: int) -> str:
    return f"aten::to({x}, {dtype}, False, False, None)"


def _rule(name: str, pattern: str, replacement: str) -> Any:
    return RewriteRule(f"lower_{name}", f"jit_passes::{pattern}", replacement).compile()


def _rules() -> Iterator[Any]:
    for number, ends, dtype in ((0, "0, 255", QUINT8), (1, "-128, 127", QINT8)):
        codes = CODES.format(dtype)
        of = "quantize(%x, %scale, %zero, {}, " + f"{number})"
        yield _rule("quantize", of.format(ends), codes)
        yield _rule("quantize", of.format("%low, %high"), f"aten::clamp({codes}, %low, %high)")
    for number in (NUMBERS["int16"], NUMBERS["int32"]):
        clamped = f"aten::clamp({CODES.format(QINT32)}, %low, %high)"
        pattern = f"quantize(%x, %scale, %zero, %low, %high, {number})"
        yield _rule("quantize", pattern, _cast(clamped, number))
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

    No rule, since what a rule makes stands for the value that it replaces, and reports would see
    the value twice: as codes, and as floats.
    """
    for node in graph.nodes:
        if node.kind != DEQUANTIZE or not all(value.is_constant for value in node.inputs[1:]):
            continue
        codes, scale, zero_point = node.inputs
        math = Arithmetic(graph, node, node, "truncate")
        steps = math.cast(codes, FLOAT32)
        if zero_point.constant:
            steps = math.insert("aten::sub", steps, zero_point, 1)
        graph.replace(node.output, math.insert("aten::mul", steps, scale))
        graph.remove(node)
