"""How each operator of a reference model is computed on integers.

Each function gets codes of its operands, and returns the codes of its result. With codes q, steps
s and zero points z, v = (q - z) * s:

    conv, linear   y = (sum_i w_i * (x_i - z_x) + b) * s_w * s_x / s_y
    correlation    y = sum_i w_i * (x_i - z_x) * s_w * s_x / s_y
    add_bias       y = ((x - z_x) * s_x + b * s_b) / s_y
    add, sub       y = ((a - z_a) * s_a +- (b - z_b) * s_b) / s_y
    mul            y = (a - z_a) * (b - z_b) * s_a * s_b / s_y
    matmul, bmm    y = sum_k (a_k - z_a) * (b_k - z_b) * s_a * s_b / s_y
    cat            y = (x_k - z_k) * s_k / s_y, for each part
    averages       y = sum_i (x_i - z_x) * s_x / (count * s_y)

and the operators of `rows.py`. Then q_y = clamp(round(y) + z_y, quant_min, quant_max), in 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from ...graph.kinds import PRODUCTS, ROW_NORMS, SOFTMAX
from ...graph.view import NodeView, ValueView
from ...specification.slots import ADD_BIAS, CORRELATION, Correlation
from .accumulator import reach, reach_of_product
from .arithmetic import INT64, NUMBERS
from .call import Call
from .codes import Codes, Constant, RefusedError, constant_of
from .double_rounding import added_in_steps
from .groups import GROUPS, group_normalized
from .rescale import common_rescale, rescale_of
from .rows import normalized, softened

LONGEST_OF_AVERAGE = 40  # bits of a shift: with a count of 2^22 the divisor has 62


def weighted(call: Call) -> ValueView:
    """Return the codes of a convolution or linear."""
    node = call.node
    x, weight = call.codes(0), constant_of(node.operand("weight"))
    bias = _bias(node, _steps(x, weight))
    return _products(call, node.kind, bias, node.operands_behind("bias"))


def correlated(call: Call) -> ValueView:
    """Return the codes of a convolution or linear without its bias, which is added later."""
    node = Correlation.of(call.node).merged
    if FORMS.get(node.kind) is not weighted or node.overload == "padding":
        raise RefusedError("the target has no integer form of it")
    return _products(call, node.kind, None, node.operands_behind("bias"))


def _products(
    call: Call, kind: str, bias: torch.Tensor | None, options: Sequence[ValueView]
) -> ValueView:
    """Return the codes of sums of products, and of a bias in their steps."""
    rules, math = call.rules, call.math
    x, weight = call.codes(0), constant_of(call.node.operand("weight"))
    rules.check(*reach(weight.codes, bias, x.least, x.most))
    products = math.insert(kind, call.steps(x), math.cast(weight.value, INT64), bias, *options)
    ratios = [step / call.scale for step in _steps(x, weight)]
    rescale = rescale_of(ratios, rules.multiplier_bits, rules.only_shift)
    spatial = weight.codes.dim() - 2
    sums = math.rescaled(products, rescale, (-1, *([1] * spatial)))
    return math.saturated(sums, call.result)


def _steps(x: Codes, weight: Constant) -> tuple[float, ...]:
    """Return the steps of sums of products, one or one for each channel."""
    return tuple(x.scale * scale for scale in weight.scales)


def biased(call: Call) -> ValueView:
    """Return the codes of a sum and a number for each channel."""
    x, bias, rules = call.codes(0), constant_of(call.node.operand("bias")), call.rules
    ratios = [scale / call.scale for scale in (x.scale, *bias.scales)]
    (own, *factors), shift = common_rescale(ratios, rules.multiplier_bits, rules.only_shift)
    numbers = bias.codes.to(torch.int64) * torch.tensor(factors)
    spatial = call.node.operand("spatial_dims").constant
    math = call.math
    numbers = numbers.reshape([-1] + [1] * int(spatial))
    total = math.insert("aten::add", math.times(call.steps(x), own), numbers, 1)
    return math.saturated(math.shifted(total, (shift,)), call.result)


def _bias(node: NodeView, steps: tuple[float, ...]) -> torch.Tensor | None:
    value = node.operand("bias")
    if value.is_constant and value.constant is None:
        return None
    return constant_of(value).in_steps(steps)


def added(call: Call) -> ValueView:
    """Return the codes of a sum or difference."""
    alpha = call.node.operand("alpha").constant
    sign = alpha if call.node.kind == "aten::add" else -alpha
    if sign == 0:
        raise RefusedError("alpha is 0")
    parts = [call.codes(0), call.codes(1)]
    if call.rules.rounds_twice:
        return added_in_steps(call, parts, sign)
    ratios = [parts[0].scale / call.scale, sign * parts[1].scale / call.scale]
    rules = call.rules
    factors, shift = common_rescale(ratios, rules.multiplier_bits, rules.only_shift)
    math = call.math
    a, b = (math.times(call.steps(p), f) for p, f in zip(parts, factors, strict=True))
    return math.saturated(math.shifted(math.insert("aten::add", a, b, 1), (shift,)), call.result)


def multiplied(call: Call) -> ValueView:
    """Return the codes of a product, number by number or of matrices.

    Where the model's inputs say how many products a sum has, one product is checked here, and the
    program in C checks the sums.
    """
    a, b = call.codes(0), call.codes(1)
    ends = (a.least, a.most), (b.least, b.most)
    call.rules.check(*reach_of_product(*ends, call.products))
    product = call.math.insert(call.node.kind, call.steps(a), call.steps(b))
    ratio = a.scale * b.scale / call.scale
    rescale = rescale_of([ratio], call.rules.multiplier_bits, call.rules.only_shift)
    return call.math.saturated(call.math.rescaled(product, rescale, (-1,)), call.result)


def joined(call: Call) -> ValueView:
    """Return the codes of a concatenation."""
    values = [value for position, _, value in call.node.operands if position == 0]
    math, dtype = call.math, NUMBERS[call.result.dtype]
    parts = [math.cast(moved_to(call, call.finder.of(value)), dtype) for value in values]
    made = math.insert("prim::ListConstruct", *parts)
    return math.insert("aten::cat", made, call.node.operand("dim"))


def moved_to(call: Call, codes: Codes) -> ValueView:
    """Return codes on the grid of the result."""
    result, math = call.result, call.math
    if (codes.scale, codes.zero_point) == (call.scale, result.zero_point):
        inside = result.quant_min <= codes.low and codes.high <= result.quant_max
        if inside and codes.dtype == result.dtype:
            return codes.value
        return math.saturated(math.centred(codes.value, codes.zero_point), result)
    rules, ratio = call.rules, codes.scale / call.scale
    rescale = rescale_of([ratio], rules.multiplier_bits, rules.only_shift)
    return math.saturated(math.rescaled(call.steps(codes), rescale, (-1,)), result)


def averaged(call: Call) -> ValueView:
    """Return the codes of an average pool or mean: a sum, divided exactly by the count."""
    x, rules, math = call.codes(0), call.rules, call.math
    total, count = _SUMS[call.node.kind](call, call.steps(x))
    if isinstance(count, int):
        rules.check(x.least * count, x.most * count)
    ratio = x.scale / call.scale
    rescale = rescale_of([ratio], rules.multiplier_bits, rules.only_shift)
    if rules.rounds_twice:  # as TFLite's mean: the product, and then the quotient
        return math.saturated(
            math.divided(math.rescaled(total, rescale, (-1,)), count), call.result
        )
    (multiplier,), (shift,) = rescale.multipliers, rescale.shifts
    if shift > LONGEST_OF_AVERAGE:
        raise RefusedError(
            f"its result has steps that are {1 / ratio:g} times as large as its operand's"
        )
    product = math.times(total, multiplier)
    if isinstance(count, int) and count & (count - 1) == 0:
        rounded = math.shifted(product, (shift + count.bit_length() - 1,))
    else:
        rounded = math.divided(product, _divisor(call, count, shift))
    return math.saturated(rounded, call.result)


def _divisor(call: Call, count: int | ValueView, shift: int) -> int | ValueView:
    if isinstance(count, int):
        return count << shift
    return call.math.insert("aten::mul", count, 1 << shift) if shift else count


Total = tuple[ValueView, int | ValueView]


def _mean(call: Call, x: ValueView) -> Total:
    node = call.node
    if node.overload != "dim" or not node.operand("dim").constant:
        return call.math.insert("aten::sum", x, None), call.math.insert("aten::numel", x)
    dims = node.operand("dim").constant
    keep = node.operand("keepdim").constant
    return _sum(call, x, list(dims), keep)


def _adaptive(call: Call, x: ValueView) -> Total:
    return _sum(call, x, list(range(-int(call.node.kind[-2]), 0)), True)


def _sum(call: Call, x: ValueView, dims: list[int], keep: bool) -> Total:
    math = call.math
    sizes: list[Any] = [math.insert("aten::size", x, dim) for dim in dims]
    count = sizes[0]
    for size in sizes[1:]:
        count = math.insert("aten::mul", count, size)
    return math.insert("aten::sum", x, dims, keep, None), count


def _windows(call: Call, x: ValueView) -> Total:
    node, math = call.node, call.math
    window, stride, padding = (
        node.operand(name).constant for name in ("kernel_size", "stride", "padding")
    )
    dims = int(node.kind[-2])
    window, stride, padding = (
        list(numbers) if len(numbers) == dims else list(numbers) * dims
        for numbers in (window, stride or window, padding)
    )
    divisor = None if dims == 1 else node.operand("divisor_override").constant
    count = divisor or prod(window)
    if dims == 1:  # PyTorch's operator for one dimension divides by the window
        x = math.insert("aten::unsqueeze", x, -2)
        window, stride, padding = [1, *window], [1, *stride], [0, *padding]
    total = math.insert("aten::avg_pool2d", x, window, stride, padding, False, True, 1)
    return (math.insert("aten::squeeze", total, -2) if dims == 1 else total), count


_SUMS: Mapping[str, Callable[[Call, ValueView], Total]] = {
    "aten::mean": _mean,
    "aten::avg_pool1d": _windows,
    "aten::avg_pool2d": _windows,
    "aten::adaptive_avg_pool1d": _adaptive,
    "aten::adaptive_avg_pool2d": _adaptive,
}

FORMS: Mapping[str, Callable[[Call], ValueView]] = {
    "aten::conv1d": weighted,
    "aten::conv2d": weighted,
    "aten::linear": weighted,
    CORRELATION: correlated,
    ADD_BIAS: biased,
    "aten::add": added,
    "aten::sub": added,
    **dict.fromkeys(("aten::mul", *PRODUCTS), multiplied),
    **dict.fromkeys(SOFTMAX, softened),
    **dict.fromkeys(ROW_NORMS, normalized),
    **dict.fromkeys(GROUPS, group_normalized),
    "aten::cat": joined,
    **dict.fromkeys(_SUMS, averaged),
}
