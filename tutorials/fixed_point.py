"""An operator for tutorial 04: what a number becomes in eight bits of fixed point.

The operator stands in a file of its own so that every process that needs it can import it.
"""

import torch
from torch import Tensor


@torch.library.custom_op("fixed_point::to_fixed", mutates_args=())
def to_fixed(x: Tensor, fraction_bits: int) -> Tensor:
    """Round to multiples of 2**-fraction_bits, and clip to what eight bits hold."""
    step = 2.0**-fraction_bits
    return torch.clamp(torch.round(x / step), -128, 127) * step


@to_fixed.register_fake
def _(x: Tensor, fraction_bits: int) -> Tensor:
    """Say what the result looks like: shape, dtype, device."""
    return torch.empty_like(x)


def _save_mask(ctx, inputs, output) -> None:
    """Keep what the gradient needs: where nothing is clipped."""
    x, fraction_bits = inputs
    code = torch.round(x * 2.0**fraction_bits)
    ctx.save_for_backward((code >= -128) & (code <= 127))


def _pass_gradient_on(ctx, gradient: Tensor) -> tuple[Tensor, None]:
    """Straight through: as if nothing had been rounded, and 0 where something was clipped."""
    (inside,) = ctx.saved_tensors
    return gradient * inside, None


to_fixed.register_autograd(_pass_gradient_on, setup_context=_save_mask)
