"""Softmax and norms of rows on integers: a table, an integer root, and one exact division.

Softmax, with codes x of a row of K numbers and m / 2^n ~ 1 / s_y:

    e_i = E[max(x) - x_i],   E[d] = round(2^20 * exp(-d * s_x))
    y_i = round(e_i * m / (2^n * sum_k e_k))

A number that a mask hides has e = 0. Where it hides a whole row, a finite fill leaves equal shares,
as with real numbers; minus infinity leaves 0, as `aten::_safe_softmax` does, and softmax NaN.

With codes of more than 8 bits, E[d] = (H[d >> 8] * L[d & 255] + 2^39) >> 40 of two tables,
H[h] = round(2^30 * exp(-256 * h * s_x)) and L[l] = round(2^30 * exp(-l * s_x)).

Each e is within 1/2 (with two tables 0.501) of the real number times 2^20, and the largest is 2^20.
So a share p is within (1 + p * (K + 1)) / 2^21 / (1 - K / 2^21) + p / 2^24 of the real one; the
last term comes from m.

Layer norm, with the steps x_i = q_i - z_x of a row of N numbers, weight g and bias b:

    D_i = N * x_i - sum_k x_k
    U = 4^k * (N * sum_k x_k^2 - (sum_k x_k)^2) + round(4^k * eps * N^2 / s_x^2)
    R = floor(sqrt(U))
    y_i = round((2^a * D_i * G_i + R * B_i) / (2^16 * R))
    G_i = round(g_i * 2^(k + 16 - a) / s_y),   B_i = round(b_i * 2^16 / s_y)

N^2 times the variance is a whole number of steps, so nothing is lost ahead of the root. G and B
have 32 bits, with the smallest a that allows it. k is the largest number for which all products
have 63 bits. Ahead of rounding y is within 2^-17 + sqrt(N) / 2^(k + 17 - a) + |y - b / s_y| * (1 /
R + 1 / U) of the real number. A root-mean-square norm has D_i = N * x_i, no square of the sum in U,
and no bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf, log, prod

import torch

from ...graph.view import NodeView, ValueView
from .arithmetic import INT64
from .call import Call
from .codes import Codes, RefusedError
from .masks import is_mask, refusal_of_mask
from .rescale import rescale_of

ONE = 20  # bits of exp(0) behind the first
SHARE_BITS = 24  # of the multiplier of shares: with rows of 2^17 the divisor has 61
HALF = 30  # of each factor of an exponential of codes of more than 8 bits
WIDE = 256  # distances that one table is for
FRACTION = 16  # bits behind the point of results of layer norm ahead of rounding


def softened(call: Call) -> ValueView:
    """Return the codes of softmax."""
    rules, math = call.rules, call.math
    scores = call.node.main_operand
    mask = scores.producer if scores.producer is not None and is_mask(scores.producer) else None
    x = call.finder.of(scores if mask is None else mask.main_operand)
    bits = min(rules.multiplier_bits, SHARE_BITS)
    bits = bits if call.scale * 2**bits > 1 else SHARE_BITS  # for results of 16 bits
    rescale = rescale_of([1 / call.scale], bits, rules.only_shift)
    (multiplier,), (shift,) = rescale.multipliers, rescale.shifts
    if shift > SHARE_BITS:
        raise RefusedError(f"its result has steps of {call.scale:g}, more than its largest share")
    dim = call.node.operand("dim").constant
    codes = math.cast(x.value, INT64)
    if mask is None:
        shares = _exponentials(call, x, _below(call, codes, dim))
        total = math.insert("aten::sum", shares, [dim], True, None)
    else:
        shares, total = _seen(call, x, codes, mask, dim)
    quotient = math.divided(math.times(shares, multiplier), math.times(total, 1 << shift))
    return math.saturated(quotient, call.result)


def _below(call: Call, codes: ValueView, dim: int) -> ValueView:
    """Return how far codes are below the largest of their row."""
    largest = call.math.insert("aten::amax", codes, [dim], True)
    return call.math.insert("aten::sub", largest, codes, 1)


def _seen(
    call: Call, x: Codes, codes: ValueView, mask: NodeView, dim: int
) -> tuple[ValueView, ValueView]:
    """Return the numbers whose shares are taken, 0 where a mask hides one, and their sums."""
    math, (_, hidden, fill) = call.math, mask.inputs
    if why := refusal_of_mask(mask):
        raise RefusedError(f"of '{mask.name}': {why}")
    lowest, beyond = (x.low - x.zero_point) * x.scale, _beyond(x)
    if fill.constant - lowest > -(ONE + 1) * log(2):
        raise RefusedError(f"'{mask.name}' fills in {fill.constant:g}, and scores reach {lowest:g}")
    bottom = math.insert("aten::masked_fill", codes, hidden, x.low - beyond)
    below = math.insert("aten::clamp", _below(call, bottom, dim), 0, beyond)
    shares = _exponentials(call, x, below)
    if not isinf(fill.constant):
        return shares, math.insert("aten::sum", shares, [dim], True, None)
    shares = math.insert("aten::masked_fill", shares, hidden, 0)
    total = math.insert("aten::sum", shares, [dim], True, None)
    return shares, math.insert("aten::clamp", total, 1, None)


def _beyond(x: Codes) -> int:
    """Return a distance at which nothing is left, above any distance of two codes."""
    return x.high - x.low + 1 if x.high - x.low < WIDE else WIDE**2


def _exponentials(call: Call, x: Codes, below: ValueView) -> ValueView:
    """Return exp(-d * s_x) * 2^20 for the distances d of codes, 0 beyond the largest."""
    if x.high - x.low < WIDE:
        return call.math.insert("aten::take", _table(x, 1, ONE, x.high - x.low + 1), below)
    last, first = _table(x, 1, HALF, WIDE)[:-1], _table(x, WIDE, HALF, WIDE)
    insert = call.math.insert
    product = insert(
        "aten::mul",
        insert("aten::take", first, insert("aten::bitwise_right_shift", below, 8)),
        insert("aten::take", last, insert("aten::bitwise_and", below, WIDE - 1)),
    )
    bits = 2 * HALF - ONE
    rounded = insert("aten::add", product, 1 << (bits - 1), 1)
    return insert("aten::bitwise_right_shift", rounded, bits)


def _table(x: Codes, step: int, bits: int, count: int) -> torch.Tensor:
    """Return exp(-d * s_x) * 2^bits for d = 0, step, 2 * step, ..., and 0 behind these."""
    steps = torch.arange(count + 1, dtype=torch.float64) * step
    found: torch.Tensor = (torch.exp(-steps * x.scale) * 2**bits).round().long()
    found[-1] = 0
    return found


def normalized(call: Call) -> ValueView:
    """Return the codes of layer norm, or of a root-mean-square norm."""
    x, node, math = call.codes(0), call.node, call.math
    centres = node.kind == "aten::layer_norm"
    sizes = list(node.operand("normalized_shape").constant)
    count, dims = prod(sizes), list(range(-len(sizes), 0))
    weight = node.operand("weight").constant
    bias = node.operand("bias").constant if centres else None
    gains = in_steps(weight, torch.ones(sizes), call.scale)
    offsets = in_steps(bias, torch.zeros(sizes), call.scale)
    epsilon = epsilon_of(node) * count**2 / x.scale**2
    found = precision_of(call, x, count, epsilon, gains, offsets, centres)
    steps = call.steps(x)
    squares = math.insert("aten::sum", math.insert("aten::mul", steps, steps), dims, True, None)
    spread = math.times(squares, count)
    if centres:
        total = math.insert("aten::sum", steps, dims, True, None)
        centred = math.insert("aten::sub", math.times(steps, count), total, 1)
        spread = math.insert("aten::sub", spread, math.insert("aten::mul", total, total), 1)
    least = max(round(epsilon * 4**found.bits), 1)
    root = math.root(math.insert("aten::add", math.times(spread, 4**found.bits), least, 1))
    if centres:
        added = math.insert("aten::mul", root, found.offsets)
        scaled = math.insert("aten::mul", math.times(centred, 2**found.lift), found.gains)
        numerator = math.insert("aten::add", scaled, added, 1)
    else:
        lifted = math.insert("aten::mul", steps, count * 2**found.lift)
        numerator = math.insert("aten::mul", lifted, found.gains)
    divisor = math.insert("aten::mul", root, 1 << FRACTION)
    return math.saturated(math.divided(numerator, divisor), call.result)


@dataclass(frozen=True)
class Precision:
    """The bits of a norm, and its weights as whole numbers: k, a, G and B of the equations."""

    bits: int
    lift: int
    gains: torch.Tensor
    offsets: torch.Tensor


def precision_of(
    call: Call, x: Codes, count: int, epsilon: float, gains: torch.Tensor, offsets: torch.Tensor,
    centres: bool = True,
) -> Precision:  # fmt: skip
    """Choose the bits of a norm.

    Args:
        call: the norm.
        x: codes of its operand.
        count: numbers of a row.
        epsilon: eps * count^2 / s_x^2.
        gains: the weight in steps of the result.
        offsets: the bias, likewise.
        centres: whether the mean is subtracted.

    Raises:
        RefusedError: numbers would have more than 64 bits.
    """
    span = x.most - x.least if centres else max(x.most, -x.least)
    largest = count**2 * span**2 + int(epsilon) + 1
    room = 31 - _bits(gains)  # of gains
    free = 30 - (count * span).bit_length()  # of products with them
    bits = min((62 - largest.bit_length()) // 2, free + room - FRACTION)
    if min(bits, room, free) < 0 or _bits(offsets) + FRACTION > 30:
        raise RefusedError(
            f"its result has steps of {call.scale:g}, and its operand rows of {count} numbers with "
            f"steps of {x.scale:g}: its numbers would have more than 64 bits"
        )
    lift = max(bits + FRACTION - room, 0)
    whole = (gains * 2 ** (bits + FRACTION - lift)).round().long()
    return Precision(bits, lift, whole, (offsets * 2**FRACTION).round().long())


def epsilon_of(node: NodeView) -> float:
    """Return the number that a norm adds to the mean of squares."""
    given = node.operand("eps").constant
    return torch.finfo(torch.float32).eps if given is None else float(given)


def in_steps(given: torch.Tensor | None, default: torch.Tensor, scale: float) -> torch.Tensor:
    """Return a weight or bias in steps of a result, or a default, in double precision."""
    return (default if given is None else given.detach()).double() / scale


def _bits(numbers: torch.Tensor) -> int:
    """Return the bits of the whole part of the largest number."""
    return int(numbers.abs().max() if numbers.numel() else 0).bit_length()
