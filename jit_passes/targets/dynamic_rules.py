"""How PyTorch's dynamic operators replace choose_qparams, quantize, dequantize, linear.

`quantized::linear_dynamic` takes and gives floats. This kernel chooses scale and zero point of its
input like `jit_passes::choose_qparams` in the range form fbgemm, for 8 bits, or 7 with its argument
`reduce_range`. The bias is added in float. Weights in groups of inputs, or with zero points, stay
codes, and are decoded for each product.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import torch

from ..passes.rule import Match, RewriteRule
from ..passes.steps import RuleSet
from .stock_rules import CODES, WEIGHTS

QUINT8 = 13  # as graphs have the dtype
_CODES = {False: (0, 255), True: (0, 127)}  # by reduce_range


def _kernel_chooses(reduce_range: bool, decodes: bool = False) -> Any:
    """Return the check of whether the kernel chooses the parameters that the graph does.

    A weight that the kernel does not have is decoded: one with zero points, or in groups of inputs.
    """

    def check(match: Match) -> bool | str:
        known = match.constants
        codes = (known["low"], known["high"])
        chosen = (known["scheme"], known["form"], known["dtype"])
        if codes != _CODES[reduce_range] or chosen != ("per_tensor_affine", "fbgemm", 0):
            return "the kernel chooses other parameters"
        scales = known["w_scale"]
        grouped = isinstance(scales, torch.Tensor) and scales.dim() > 1
        if (grouped or bool(torch.as_tensor(known["w_zero"]).any())) != decodes:
            return "the kernel has neither groups nor zero points of weights"
        return True

    return check


def quantized_as_it_runs(x: str) -> str:
    """Return lines that choose parameters of a value, and quantize and dequantize it by these."""
    return (
        f"{x}_s, {x}_z = jit_passes::choose_qparams({x}, %low, %high, %scheme, %form)\n"
        f"{x}_q = jit_passes::quantize_dynamic({x}, {x}_s, {x}_z, %low, %high, %dtype)\n"
        f"{x}_d = jit_passes::dequantize_dynamic({x}_q, {x}_s, {x}_z)\n"
    )


def _linear(per_channel: bool, reduce_range: bool, relu: bool) -> Any:
    suffix, activation = "_per_channel" * per_channel, "_relu" * relu
    call = f"aten::linear(%x_d, {CODES[suffix]}, %bias)"
    packed = f"quantized::linear_prepack({WEIGHTS[suffix]}, %bias)"
    # The kernels refuse a vector: with an axis more it is a matrix, and nothing else changes.
    kernel = f"quantized::linear{activation}_dynamic"
    return RewriteRule(
        f"linear{suffix}{activation}_dynamic{'_7_bits' * reduce_range}",
        quantized_as_it_runs("%x") + (f"aten::relu({call})" if relu else call),
        f"aten::squeeze({kernel}(aten::unsqueeze(%x, 0), {packed}, {reduce_range}), 0)",
        _kernel_chooses(reduce_range),
    ).compile()


def _decoded(reduce_range: bool, relu: bool, isolate: bool) -> Any:
    """Round the input as it is quantized, for weights that PyTorch has no kernel for.

    To isolate a NaN, numbers that are not finite count as 0, and x - x makes their rows NaN.
    """
    weight, activation = CODES["_per_channel"], "_relu" * relu
    call = f"aten::linear(%x_d, {weight}, %bias)"
    x = "%finite" if isolate else "%x"
    finite = "%finite = aten::nan_to_num(%x, 0.0, 0.0, 0.0)\n"
    layer = f"aten::linear(aten::dequantize(%codes), {weight}, %bias)"
    lost = "aten::sum(aten::sub(%x, %x, 1), [-1], True, None)"
    result = f"aten::add({layer}, {lost}, 1)" if isolate else layer
    return RewriteRule(
        f"linear_decoded{activation}_dynamic{'_7_bits' * reduce_range}",
        quantized_as_it_runs("%x") + (f"aten::relu({call})" if relu else call),
        # The range holds 0 in any case, and there is one of no numbers too.
        f"{finite * isolate}"
        f"%numbers = aten::constant_pad_nd(aten::flatten({x}, 0, -1), [0, 1], 0)\n"
        "%scale : float, %zero : int = "
        f"aten::_choose_qparams_per_tensor(%numbers, {reduce_range})\n"
        f"%codes = aten::quantize_per_tensor({x}, %scale, %zero, {QUINT8})\n"
        f"{f'aten::relu({result})' if relu else result}",
        _kernel_chooses(reduce_range, decodes=True),
    ).compile()


@cache
def fuse_dynamic(
    *, saturates: bool = False, decodes: bool = False, isolate: bool = False
) -> tuple[RuleSet, ...]:
    """Return the steps of a lowering, parsed once: with a relu behind, then without.

    Args:
        saturates: whether kernels add pairs of products in int16: these get inputs of 7 bits only.
        decodes: whether weights that the kernel does not have are decoded, and products in float.
            The rules stand in one step, since a layer that one of them takes needs no remark.
        isolate: whether a NaN makes its own row NaN alone, where weights are decoded.
    """
    ranges = (True,) if saturates else (True, False)
    return tuple(
        RuleSet(
            name,
            (
                *(_linear(a, b, relu) for a, b in product((True, False), ranges)),
                *(_decoded(reduced, relu, isolate) for reduced in ranges if decodes),
            ),
        )
        for name, relu in (("fuse_dynamic_relu", True), ("fuse_dynamic", False))
    )
