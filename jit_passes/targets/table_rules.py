"""Lookup tables as PyTorch's operators; its quantized operators have no tables.

A table gives codes; the dequantize behind it has their grid.
"""

from __future__ import annotations

from functools import cache

from ..passes.rule import RewriteRule
from ..passes.steps import RuleSet

PATTERN = "jit_passes::dequantize(jit_passes::lookup_table(%a, %table, %first), %scale, %zero)"
INT64 = 4
# %a is of a quantized dtype in the lowered graph.
REPLACEMENT = f"""
%codes = aten::to(aten::int_repr(%a), {INT64}, False, False, None)
%entries = aten::take(%table, aten::sub(%codes, %first, 1))
%q = aten::_make_per_tensor_quantized_tensor(%entries, %scale, %zero)
jit_passes::dequantize(%q, %scale, %zero)
"""


@cache
def lower_tables() -> RuleSet:
    """Return the step of a lowering, parsed once."""
    return RuleSet("lower_tables", (RewriteRule("table", PATTERN, REPLACEMENT).compile(),))
