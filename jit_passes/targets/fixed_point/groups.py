"""Group norm and instance norm on integers: the root of layer norm, for rows of unknown length.

A row is the numbers of a group of channels, N of them, which only the running model knows. With the
steps x_i = q_i - z_x, weight g and bias b of the channel c of number i:

    D_i = N * x_i - sum_k x_k
    U = 4^k * (N * sum_k x_k^2 - (sum_k x_k)^2) + floor(N^2 * e / 2^q) + 1
    R = floor(sqrt(U)),   e / 2^q ~ 4^k * eps / s_x^2
    y_i = round((2^a * D_i * G_c + R * B_c) / (2^16 * R))
    G_c = round(g_c * 2^(k + 16 - a) / s_y),   B_c = round(b_c * 2^16 / s_y)

k and a are chosen for N = 2^16, so results are within the bound of layer norm with the own N, and
e has 30 bits. Longer rows may overflow; the program in C, which knows N, refuses them.
"""

from __future__ import annotations

import math as real
from collections.abc import Sequence

import torch

from ...graph.view import NodeView, ValueView
from .call import Call
from .rows import FRACTION, in_steps, precision_of

GROUPS = ("aten::group_norm", "aten::instance_norm")
LONGEST = 1 << 16  # numbers of a row
EPSILON_BITS = 30  # a product with N^2 has 62


def group_normalized(call: Call) -> ValueView:
    """Return the codes of group norm or instance norm."""
    x, node, math = call.codes(0), call.node, call.math
    groups = _groups(node)
    weight, bias = (node.operand(name).constant for name in ("weight", "bias"))
    gains, offsets = (
        in_steps(given, default, call.scale).reshape(_channels(given, groups))
        for given, default in ((weight, torch.ones(1)), (bias, torch.zeros(1)))
    )
    epsilon = float(node.operand("eps").constant) / x.scale**2
    found = precision_of(call, x, LONGEST, epsilon * LONGEST**2, gains, offsets)
    column = math.insert("aten::unsqueeze", call.steps(x), -1)  # an axis of places, also if none is
    rows = math.insert("aten::unflatten", math.insert("aten::flatten", column, 2, -1), 1, groups)
    sizes = [math.insert("aten::size", rows, axis) for axis in (2, 3)]
    count = math.insert("aten::mul", *sizes)
    total = math.insert("aten::sum", rows, [2, 3], True, None)
    squares = math.insert("aten::sum", math.insert("aten::mul", rows, rows), [2, 3], True, None)
    spread = math.insert(
        "aten::sub",
        math.insert("aten::mul", squares, count),
        math.insert("aten::mul", total, total),
        1,
    )
    least = _epsilon(call, count, epsilon * 4**found.bits)
    root = math.root(math.insert("aten::add", math.times(spread, 4**found.bits), least, 1))
    centred = math.insert("aten::sub", math.insert("aten::mul", rows, count), total, 1)
    scaled = math.insert("aten::mul", math.times(centred, 2**found.lift), found.gains)
    added = math.insert("aten::mul", root, found.offsets)
    divisor = math.insert("aten::mul", root, 1 << FRACTION)
    quotient = math.divided(math.insert("aten::add", scaled, added, 1), divisor)
    return math.insert("aten::view_as", math.saturated(quotient, call.result), x.value)


def _groups(node: NodeView) -> list[int]:
    """Return the sizes that the axis of channels has as groups and channels of each."""
    return (
        [-1, 1] if node.kind == "aten::instance_norm" else [node.operand("num_groups").constant, -1]
    )


def _channels(given: torch.Tensor | None, groups: Sequence[int]) -> tuple[int, ...]:
    return (1, 1, 1) if given is None else (*groups, 1)


def _epsilon(call: Call, count: ValueView, epsilon: float) -> ValueView:
    """Return N^2 times a number, and 1, in whole numbers."""
    shift = min(EPSILON_BITS - real.frexp(epsilon)[1], 62) if epsilon > 0 else 0
    insert = call.math.insert
    numbers = insert("aten::mul", insert("aten::mul", count, count), round(epsilon * 2**shift))
    return insert("aten::add", insert("aten::floordiv", numbers, 1 << shift), 1)
