"""Which operators a plan of the target x86 has to move elements."""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.view import NodeView, ValueView
from ..quantizers.capability import is_constant_behind
from ..quantizers.support import Check

MOST_AXES = 5  # of a tensor
MOST_MOVED = 6  # of one that is only cut into windows, or gone over number by number
MOST_ROLLED = 3  # axes
FUNCTIONS = tuple(
    f"aten::{name}"
    for name in (
        *("gelu", "sigmoid", "silu", "tanh", "hardsigmoid", "hardswish"),
        *("square", "sqrt", "rsqrt", "reciprocal", "abs"),
        *("exp", "mish", "leaky_relu", "elu", "softplus"),
    )
)  # of float32
CLIPS = ("aten::relu", "aten::clamp")
NORMS = ("aten::layer_norm", "aten::rms_norm")  # of rows
SOFTMAX = ("aten::softmax", "aten::_safe_softmax")
SUMS = ("aten::add", "aten::sub", "aten::mul")  # and products, which broadcast
BROADCAST = (*SUMS, "aten::div", "aten::masked_fill")
REDUCTIONS = tuple(f"aten::{name}" for name in ("mean", "sum", "amax", "amin"))
LENGTHS = ("aten::linalg_vector_norm", "aten::norm")
KEEP_AXES = (
    *(f"aten::{name}" for name in ("contiguous", "detach", "alias", "transpose", "slice")),
    *(f"aten::{name}" for name in ("roll", "to", "neg", "div", "linear")),
    *NORMS,
    *SOFTMAX,
)
CUTS = (
    *(f"aten::{name}" for name in ("reshape", "flatten", "unflatten", "unsqueeze", "squeeze")),
    *(f"aten::{name}" for name in ("permute", "transpose", "contiguous", "detach", "alias")),
    *("aten::slice", "aten::narrow", "aten::select"),
    *(f"aten::{name}" for name in ("chunk", "split", "split_with_sizes", "unbind")),
    *(f"aten::unsafe_{name}" for name in ("chunk", "split", "split_with_sizes")),
    *("aten::to", "aten::neg", "aten::div", *FUNCTIONS, *CLIPS),
)  # take tensors of MOST_MOVED axes


def options(node: NodeView) -> str | None:
    """Refuse options that the model computes."""
    return None if is_constant_behind(node, 1) else "one of its options is computed by the model"


def sizes(node: NodeView) -> str | None:
    """Refuse options that the model computes otherwise than from sizes."""
    known = all(value.is_constant or value.from_sizes for value in node.inputs[1:])
    return None if known else "the model computes one of its options of other things than sizes"


def _count(numbers: ValueView) -> int:
    """Return how many there are in a list."""
    if numbers.is_constant:
        return len(numbers.constant)
    return len(numbers.producer.inputs) if numbers.producer is not None else 0


def _axes(node: NodeView) -> str | None:
    if reason := sizes(node):
        return reason
    few = _count(node.inputs[1]) <= MOST_MOVED
    return None if few else f"it gives more than {MOST_MOVED} axes"


def _permute(node: NodeView) -> str | None:
    return options(node) or _axes(node)


def _unflatten(node: NodeView) -> str | None:
    if reason := sizes(node):
        return reason
    few = _count(node.inputs[2]) <= MOST_MOVED and axes_of(node.output) <= MOST_MOVED
    return None if few else f"it gives more than {MOST_MOVED} axes"


def _unsqueeze(node: NodeView) -> str | None:
    few = axes_of(node.output) <= MOST_MOVED
    return options(node) or (None if few else f"it gives more than {MOST_MOVED} axes")


def _squeeze(node: NodeView) -> str | None:
    if len(node.inputs) < 2:
        return "it takes away all axes of size 1"
    return options(node)


def _expand(node: NodeView) -> str | None:
    if reason := sizes(node):
        return reason
    few = _count(node.inputs[1]) <= MOST_AXES
    return None if few else f"it gives more than {MOST_AXES} axes"


def roll(node: NodeView) -> str | None:
    """Refuse what goes over all elements as one row."""
    if reason := options(node):
        return reason
    shifts, axes = node.inputs[1].constant, node.inputs[2].constant
    few = len(shifts) == len(axes) and 0 < len({*axes}) <= MOST_ROLLED
    return None if few else f"it rolls all elements as one row, or more than {MOST_ROLLED} axes"


def axes_of(value: ValueView) -> int:
    """Return how many axes a value is known to have, or 0.

    Each value is looked at once: there are as many ways through sums as the power of two of these.
    """
    pending = [value]
    while pending:
        last = pending[-1]
        operands, more = _axes_from(last)
        unknown = [operand for operand in operands if operand.least_axes is None]
        if last.least_axes is None and unknown:
            pending += unknown
            continue
        if last.least_axes is None:
            most = max([operand.least_axes or 0 for operand in operands], default=0)
            last.least_axes = most + more if most or not operands else 0
        pending.pop()
    return value.least_axes or 0


def _axes_from(value: ValueView) -> tuple[list[ValueView], int]:
    """Return what has as many axes, or fewer by a number; without such values, the number alone."""
    maker = value.producer
    if maker is None:
        return [], 0
    if maker.kind in ("aten::permute", "aten::reshape", "aten::expand"):
        sizes = maker.inputs[1]
        made = sizes.producer.inputs if sizes.producer is not None else []
        return [], len(sizes.constant if sizes.is_constant else made)
    if maker.kind == "aten::unsqueeze":
        return maker.inputs[:1], 1
    if maker.kind == "aten::unflatten" and maker.inputs[2].is_constant:
        return maker.inputs[:1], len(maker.inputs[2].constant) - 1
    if maker.traits.weighted is not None and maker.traits.weighted.spatial_dims:
        return [], maker.traits.weighted.spatial_dims + 2
    if maker.kind in SUMS:
        return maker.inputs[:2], 0
    same = maker.kind in KEEP_AXES or maker.kind.startswith("jit_passes::")
    return (maker.inputs[:1], 0) if same or maker.traits.elementwise == 1 else ([], 0)


def of_few_axes(checks: Mapping[str, Check]) -> dict[str, Check]:
    """Return checks that refuse operands with more axes than an operator of a plan takes."""
    return {kind: _of_few_axes(kind, check) for kind, check in checks.items()}


def _of_few_axes(kind: str, check: Check) -> Check:
    most = MOST_MOVED if kind in CUTS else MOST_AXES

    def refusal(node: NodeView) -> str | None:
        operands = node.inputs[: 2 if kind in (*BROADCAST, "aten::matmul") else 1]
        few = all(axes_of(operand) <= most for operand in operands)
        return check(node) or (None if few else f"it reads more than {most} axes")

    return refusal


def _pad(node: NodeView) -> str | None:
    if reason := sizes(node):
        return reason
    if _count(node.inputs[1]) >= 2 * MOST_AXES:
        return f"it pads all of {MOST_AXES} axes"
    cuts = node.inputs[1].is_constant and min(node.inputs[1].constant) < 0
    return "it cuts values off" if cuts else None


def moves() -> dict[str, Check]:
    """Return what only moves elements of any type, and why a node may be none of them."""
    of_any_type = (
        *("flatten", "contiguous", "detach", "alias", "transpose", "select"),
        *("chunk", "split", "split_with_sizes", "unbind"),
        *("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"),
    )
    checks: dict[str, Check] = {
        **{f"aten::{kind}": options for kind in of_any_type},
        "aten::slice": sizes,
        "aten::narrow": sizes,
        "aten::unflatten": _unflatten,
        "aten::unsqueeze": _unsqueeze,
        "aten::squeeze": _squeeze,
        "aten::expand": _expand,
        "aten::reshape": _axes,
        "aten::permute": _permute,
        **dict.fromkeys(("aten::pad", "aten::constant_pad_nd"), _pad),
    }
    return of_few_axes(checks)


def moves_of_codes() -> dict[str, Check]:
    """The same of integers alone."""
    pools = ("max_pool1d", "max_pool2d", "channel_shuffle")
    resizes = ("upsample_nearest2d", "upsample_nearest3d")
    return {
        **{f"aten::{kind}": options for kind in pools},
        **{f"aten::{kind}": sizes for kind in resizes},
    }
