"""Which operators have integer forms, and which codes they have."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import torch

from ...graph.functions import is_function
from ...graph.kinds import PRODUCTS, ROW_NORMS, SOFTMAX
from ...graph.traits import kinds
from ...graph.view import NodeView, are_constant, is_number
from ...quantizers.capability import Capability, dtype_reason, options_reason
from ...quantizers.fixed_ranges import FIXED_RANGES
from ...quantizers.support import CLIPS, PER_TENSOR, Check, OperatorSupport, Role, SpecSupport
from .accumulator import overflow_before_data
from .codes import SUPPORTED_MOVES
from .groups import GROUPS
from .masks import FILL, hide_scores, reads_mask, refusal_of_mask
from .recurrent import equal_values, unroll_layers
from .rescale import DOUBLE_ROUND, rounding_of_codes

CODES = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-(2**15), 2**15 - 1)}
BIASES = {"int32": (-(2**31) + 1, 2**31 - 1), "int16": CODES["int16"], "int8": CODES["int8"]}
POWERS = ("per_tensor_power_of_two", "per_channel_power_of_two")
_TWICE = f"the reference model of {DOUBLE_ROUND!r} rounds halves to even"
SYMMETRIC = ("per_tensor_symmetric", "per_channel_symmetric", *POWERS)


def _weighted(node: NodeView) -> str | None:
    options = node.operands_behind("bias")
    if not are_constant(options):
        return "one of its options is computed by the model"
    if any(isinstance(value.constant, str) for value in options):
        return "its padding is given in words"
    weight = node.operand("weight").constant
    vector = isinstance(weight, torch.Tensor) and weight.dim() == 1
    return "its weight is a vector" if vector else None


def _two(node: NodeView) -> str | None:
    """Take two tensors, or a tensor and a number, which a table has."""
    if any(value.is_constant and not is_number(value) for value in node.inputs[:2]):
        return "one of its operands is a constant"
    if node.kind == "aten::mul":
        return None
    alpha = node.operand("alpha").constant
    number = isinstance(alpha, int | float) and alpha != 0
    return None if number else "alpha is 0, or computed by the model"


def _of_number(node: NodeView) -> str | None:
    return None if is_number(node.operand("other")) else "it divides by a tensor"


def _of_one(node: NodeView) -> str | None:
    """Take one tensor and numbers, which a table has."""
    if is_function(node):
        return None
    if node.kind == "aten::prelu":
        return "it has a slope for each channel: a table is for one slope"
    return "it is no function of one tensor and numbers, as a table is"


def _average(node: NodeView) -> str | None:
    if why := options_reason(node):
        return why
    if node.kind.startswith("aten::adaptive"):
        ones = set(node.operand("output_size").constant) == {1}
        return None if ones else "its windows differ in size: take a pool with a fixed window"
    if node.kind == "aten::mean":
        return dtype_reason(node)
    if node.operand("ceil_mode").constant:
        return "its windows differ in size (ceil_mode)"
    rim = any(node.operand("padding").constant) and not node.operand("count_include_pad").constant
    return "its windows differ in size (count_include_pad=False)" if rim else None


def _matrices(node: NodeView) -> str | None:
    constant = any(value.is_constant for value in node.inputs[:2])
    return "one of its operands is a constant" if constant else None


def _softmax(node: NodeView) -> str | None:
    return options_reason(node) or dtype_reason(node)


def _norm(node: NodeView) -> str | None:
    if why := options_reason(node):
        return why
    if node.kind == "aten::instance_norm" and not node.operand("use_input_stats").constant:
        return "it takes running statistics"
    names = ("weight",) if node.kind == "aten::rms_norm" else ("weight", "bias")
    finite = all(node.operand(name).is_finite for name in names)
    return None if finite else "its weight or bias holds a NaN or an infinity"


def _rows() -> list[OperatorSupport]:
    functions = kinds(lambda traits: traits.elementwise == 1)
    of_numbers = kinds(lambda traits: traits.elementwise == 2 and traits.gives is None)
    own = Role.OWN
    rows = [
        OperatorSupport(kind, own, check=options_reason, elementwise=True) for kind in functions
    ]
    rows += [
        OperatorSupport(kind, own, (0, 1), check=_of_one, elementwise=True) for kind in of_numbers
    ]
    rows.append(OperatorSupport("aten::prelu", own, check=_of_one, elementwise=True))
    rows += [
        OperatorSupport(f"aten::conv{n}d", Role.WEIGHTED, (0,), CLIPS, (n + 1, n + 2), _weighted)
        for n in (1, 2)
    ]
    rows.append(OperatorSupport("aten::linear", Role.WEIGHTED, (0,), CLIPS, check=_weighted))
    rows += [
        OperatorSupport(f"aten::{op}", own, (0, 1), CLIPS, check=check, elementwise=True)
        for op, check in (("add", _two), ("sub", _two), ("mul", _two), ("div", _of_number))
    ]
    rows += [OperatorSupport(kind, own, (0, 1), CLIPS, check=_matrices) for kind in PRODUCTS]
    rows += [OperatorSupport(kind, own, check=_softmax, reads_parts=reads_mask) for kind in SOFTMAX]
    rows.append(OperatorSupport(FILL, own, check=refusal_of_mask, only_part=True))
    rows += [
        OperatorSupport(kind, own, clips=CLIPS, check=_norm, begins=True) for kind in ROW_NORMS
    ]
    rows += [OperatorSupport(kind, own, (0,), CLIPS, check=_norm) for kind in GROUPS]
    rows.append(OperatorSupport("aten::cat", own, clips=CLIPS, check=options_reason))
    averages = ("mean", *(f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2)))
    rows += [OperatorSupport(f"aten::{op}", own, clips=CLIPS, check=_average) for op in averages]
    rows += [
        OperatorSupport(kind, Role.SHARED, check=options_reason, elementwise=True) for kind in CLIPS
    ]
    return rows


@cache
def capability_of(
    only_shift: bool, rounding: str, accumulator_bits: int, steps: int | None = None
) -> Capability:
    """Return the capability for integers alone.

    Args:
        only_shift: whether all scales must be powers of two.
        rounding: how sums are rounded.
        accumulator_bits: of the register that sums of products are in.
        steps: of recurrent layers; None where they stay in float.
    """
    table = {row.kind: row for row in _rows()}  # rows that are spelled out come later, and win
    for kind, (ends, _) in FIXED_RANGES.items():
        table[kind] = replace(table[kind], input_range=ends)
    moves: dict[str, Check | None] = dict.fromkeys(SUPPORTED_MOVES)
    return Capability(
        table,
        SpecSupport(CODES, POWERS[:1] if only_shift else PER_TENSOR,
                    roundings=(rounding_of_codes(rounding),),
                    why_rounded=_TWICE if rounding == DOUBLE_ROUND else ""),
        SpecSupport({"int8": CODES["int8"], "int16": CODES["int16"]},
                    POWERS if only_shift else SYMMETRIC),
        SpecSupport(BIASES, SYMMETRIC),
        moves=moves,
        sums=partial(overflow_before_data, bits=accumulator_bits),
        forms=(
            "spell_out_composites",
            "expand_attention",
            "gather_operators",
            hide_scores,
            partial(unroll_layers, steps=steps),
        ),
        integers_only=True,
        correlations=rounding != DOUBLE_ROUND,
        shared=equal_values,
    )  # fmt: skip
