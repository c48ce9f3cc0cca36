"""How PyTorch's dynamic operators replace choose_qparams, quantize, dequantize, linear.

`quantized::linear_dynamic` takes and gives floats. It chooses scale and zero point of its input as
`jit_passes::choose_qparams` does in the range form fbgemm, for 8 bits, or 7 with its argument
`reduce_range`, and adds the bias in float.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

from ..passes.rule import Match, RewriteRule
from ..passes.steps import RuleSet
from .stock_rules import WEIGHTS

_CODES = {False: (0, 255), True: (0, 127)}  # by reduce_range


def _kernel_chooses(reduce_range: bool) -> Any:
    """Return the check of whether the kernel chooses the parameters that the graph does."""

    def check(match: Match) -> bool | str:
        known = match.constants
        codes = (known["low"], known["high"])
        chosen = (known["scheme"], known["form"], known["dtype"])
        if codes == _CODES[reduce_range] and chosen == ("per_tensor_affine", "fbgemm", 0):
            return True
        return "the kernel chooses other parameters"

    return check


def _linear(per_channel: bool, reduce_range: bool, relu: bool) -> Any:
    suffix, activation = "_per_channel" * per_channel, "_relu" * relu
    weight = ["%w_q", "%w_scale", "%w_zero", *(["%w_axis"] if per_channel else [])]
    names = ["%x", "%low", "%high", "%scheme", "%form", "%dtype", *weight, "%bias"]
    header = f"graph({', '.join(names)}):\n"
    pattern = (
        f"{header}"
        "  %s, %z = jit_passes::choose_qparams(%x, %low, %high, %scheme, %form)\n"
        "  %q = jit_passes::quantize_dynamic(%x, %s, %z, %low, %high, %dtype)\n"
        "  %d = jit_passes::dequantize_dynamic(%q, %s, %z)\n"
        f"  %w = jit_passes::dequantize{suffix}({', '.join(weight)})\n"
        f"  %y = aten::linear(%d, %w, %bias)\n"
    )
    pattern += "  %r = aten::relu(%y)\n  return (%r)" if relu else "  return (%y)"
    # The kernels refuse a vector: with an axis more it is a matrix, and nothing else changes.
    replacement = (
        f"{header}"
        f"  {WEIGHTS[suffix]}\n"
        "  %packed = quantized::linear_prepack(%w, %bias)\n"
        f"  %reduce : bool = prim::Constant[value={int(reduce_range)}]()\n"
        "  %first : int = prim::Constant[value=0]()\n"
        "  %rows = aten::unsqueeze(%x, %first)\n"
        f"  %all = quantized::linear{activation}_dynamic(%rows, %packed, %reduce)\n"
        "  %y = aten::squeeze(%all, %first)\n"
        "  return (%y)"
    )
    name = f"linear{suffix}{activation}_dynamic{'_7_bits' * reduce_range}"
    return RewriteRule(name, pattern, replacement, _kernel_chooses(reduce_range)).compile()


@cache
def fuse_dynamic(*, saturates: bool = False) -> tuple[RuleSet, ...]:
    """Return the steps of a lowering, parsed once: with a relu behind, then without.

    A kernel that `saturates` adds pairs of products in int16, and gets inputs of 7 bits only.
    """
    ranges = (True,) if saturates else (True, False)
    return tuple(
        RuleSet(
            name,
            tuple(_linear(a, b, relu) for a, b in product((True, False), ranges)),
        )
        for name, relu in (("fuse_dynamic_relu", True), ("fuse_dynamic", False))
    )
