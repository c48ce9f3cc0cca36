"""Sums of products, and the width of the register that holds them."""

from __future__ import annotations

import torch

from ...graph.view import NodeView
from ...observers import MinMax
from ...quantizers.support import Spec
from ...specification.qparams import affine_qparams
from ...specification.specification import QuantizationSpec

WIDTHS = (16, 24, 32, 48)
Range = tuple[int, int]
_WITHOUT_ZERO = ("symmetric", "power_of_two")  # schemes whose zero point is known


def reach(weight: torch.Tensor, bias: torch.Tensor | None, low: int, high: int) -> tuple[int, int]:
    """Return the smallest and the largest number that a sum of products can come to.

    The bounds hold for each partial sum too, in any order, and where a window reaches over the rim:

        largest = max over c of  sum_i max(w[c, i] * low, w[c, i] * high, 0) + max(b[c], 0)

    Args:
        weight: codes `[channels, ...]`, whole numbers.
        bias: `[channels]`, in steps of the sum; None for none.
        low: the smallest code of the input, less its zero point; not above 0.
        high: the largest one; not below 0.
    """
    rows = weight.to(torch.int64).flatten(1)
    above, below = rows.clamp(min=0).sum(1), rows.clamp(max=0).sum(1)
    added = torch.zeros_like(above) if bias is None else bias.to(torch.int64)
    least = above * low + below * high + added.clamp(max=0)
    most = above * high + below * low + added.clamp(min=0)
    if not rows.numel():
        least, most = added.clamp(max=0), added.clamp(min=0)
    return int(least.min()) if len(least) else 0, int(most.max()) if len(most) else 0


def reach_of_product(a: Range, b: Range, count: int = 1) -> Range:
    """Return the smallest and the largest number that a sum of products of codes can come to.

    Args:
        a: the smallest and the largest number of steps of one operand.
        b: of the other one.
        count: how many products are added.
    """
    corners = [0, *(x * y * count for x in a for y in b)]
    return min(corners), max(corners)


def products_in_sum(node: NodeView) -> int | None:
    """Return how many products a product of matrices adds; None where the model's inputs say it."""
    left, right = node.inputs
    inner = left.facts.size(-1)
    return right.facts.size(-2) if inner is None else inner


def overflow(least: int, most: int, bits: int) -> str | None:
    """Say that numbers do not fit an accumulator; None if they do."""
    needed = max(_width(least), _width(most))
    if needed <= bits:
        return None
    widths = [width for width in WIDTHS if width >= needed]
    wider = f"accumulator_bits={widths[0]}, or " * bool(widths)
    return (
        f"its sums may reach [{least}, {most}], which takes {needed} bits, and the accumulator has "
        f"{bits}: take {wider}fewer bits for its operands"
    )


def _width(number: int) -> int:
    """Return the bits of a number in two's complement."""
    return (number if number >= 0 else -number - 1).bit_length() + 1


def overflow_before_data(node: NodeView, weight: Spec, inputs: Spec, bits: int) -> str | None:
    """Say that the sums of an operator surely overflow, for any data.

    Codes of a weight follow from its numbers, if nothing is clipped. The zero point of an affine
    input is not known yet: the zero point with the smallest sums is taken. The bias is left out,
    since its codes follow from the scale of the input.

    Args:
        node: a convolution, a linear or a product of matrices.
        weight: how its weight is quantized, or the second matrix.
        inputs: how its input is quantized, or the first matrix.
        bits: of the accumulator.
    """
    if node.traits.product:
        count = products_in_sum(node)
        ranges = _range(inputs), _range(weight)
        return None if count is None else overflow(*reach_of_product(*ranges, count), bits)
    numbers = node.operand("weight").constant
    known = isinstance(weight, QuantizationSpec) and weight.observer == MinMax()
    folds = node.folded is not None  # a batch norm will change the weight
    if folds or not (known and isinstance(numbers, torch.Tensor) and numbers.numel()):
        return None
    assert isinstance(weight, QuantizationSpec)
    low, high = inputs.quant_min, inputs.quant_max
    largest = max(-weight.quant_min, weight.quant_max) * (high - low) * numbers[0].numel()
    if overflow(-largest, largest, bits) is None:
        return None  # without a look at the numbers, which takes time
    codes = _codes(numbers.detach().double(), weight)
    if inputs.qscheme.endswith(_WITHOUT_ZERO):
        least, most = reach(codes, None, *_range(inputs))
    else:
        span = int(codes.abs().flatten(1).sum(1).max()) * (high - low)
        least, most = -(span // 2), span // 2
    return overflow(least, most, bits)


def _range(spec: Spec) -> Range:
    """Return the steps that an activation can have; with the zero point of the fewest bits."""
    low, high = spec.quant_min, spec.quant_max
    middle = 0 if spec.qscheme.endswith("power_of_two") else (low + high + 1) // 2
    return min(low - middle, 0), max(high - middle, 0)


def _codes(weight: torch.Tensor, spec: QuantizationSpec) -> torch.Tensor:
    """Return the codes of a weight `[channels, ...]` with the range of its numbers."""
    rows = weight.flatten(1) if spec.ch_axis is not None else weight.flatten().unsqueeze(0)
    ends = zip(rows.amin(1).tolist(), rows.amax(1).tolist(), strict=True)
    scales = [affine_qparams(low, high, spec)[0] for low, high in ends]
    steps = rows / torch.tensor(scales, dtype=torch.float64).unsqueeze(1)
    codes = steps.round().clamp(spec.quant_min, spec.quant_max)
    return codes.long().reshape(weight.shape)
