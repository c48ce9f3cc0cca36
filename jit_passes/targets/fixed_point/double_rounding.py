"""A sum of two operands with double rounding, as TFLite and CMSIS-NN compute it.

With R(x, M) = round(M * x) as `rescale.py` has it, and t = 2 * max(s_a, s_b):

    a' = R(2^k * (a - z_a), s_a / t),   b' = R(2^k * (b - z_b), s_b / t)
    q_y = clamp(R(a' +- b', t / (2^k * s_y)) + z_y, quant_min, quant_max)

k is 20, and 15 where codes are int16: all numbers but products have 32 bits. Source:
`AddElementwise` of TFLite's reference kernels, and `arm_elementwise_add_s8` of CMSIS-NN.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.view import ValueView
from .call import Call
from .codes import Codes
from .rescale import rescale_of

LIFT, LIFT_OF_16_BITS = 20, 15


def added_in_steps(call: Call, parts: Sequence[Codes], alpha: float) -> ValueView:
    """Return the codes of a + alpha * b.

    Args:
        call: the operator.
        parts: codes of a and b.
        alpha: not 0.
    """
    math, bits = call.math, call.rules.multiplier_bits
    scales = [parts[0].scale, abs(alpha) * parts[1].scale]
    wide = any(x.dtype == "int16" for x in parts)
    lift = 1 << (LIFT_OF_16_BITS if wide else LIFT)
    largest = 2 * max(scales)
    a, b = (
        math.rescaled(
            math.times(call.steps(x), lift), rescale_of([s / largest], bits, False), (-1,)
        )
        for x, s in zip(parts, scales, strict=True)
    )
    total = math.insert("aten::add", a, b, 1 if alpha > 0 else -1)
    rescale = rescale_of([largest / (lift * call.scale)], bits, False)
    return math.saturated(math.rescaled(total, rescale, (-1,)), call.result)
