"""Batch norms that conversion will fold into the operator in front of them, in models that train.

To who annotates, such an operator counts as one with its batch norm: its result is that of the
batch norm, and its bias what folding makes of it. In graphs to calibrate, folding is over.
"""

from __future__ import annotations

from ..graph import NodeView, ValueView

DEFERRED = "jit_passes::deferred_batch_norm"
FOLD_BIAS = "jit_passes::fold_bias"
FOLDED_BIAS = 9  # the operand of a deferred batch norm that is the bias that folding makes
SHAPES = ("aten::size", "aten::dim", "aten::numel", "aten::len")  # ask for no values
_BIAS = 2  # the operand of convolutions and linears


def only_reader(value: ValueView) -> NodeView | None:
    """Return the one operator that sees a value's numbers, as its first operand."""
    readers = [use for use in value.uses if use[0].kind not in SHAPES]
    if value.written or value.is_result or len(readers) != 1 or readers[0][1] != 0:
        return None
    return readers[0][0]


def deferred_norm(node: NodeView) -> NodeView | None:
    """Return the batch norm behind a weighted operator that will be folded into it."""
    user = only_reader(node.output) if len(node.outputs) == 1 else None
    return user if user is not None and user.kind == DEFERRED else None


def as_folded(value: ValueView) -> ValueView:
    """Return what a result is to who annotates: that of the batch norm which is part of it."""
    norm = None if value.producer is None else deferred_norm(value.producer)
    return value if norm is None else norm.output


def folded_bias(node: NodeView) -> ValueView | None:
    """Return what folding makes of a weighted operator's bias; None where nothing is folded."""
    norm = deferred_norm(node)
    return None if norm is None else norm.inputs[FOLDED_BIAS]


def as_folded_operand(node: NodeView, value: ValueView) -> ValueView:
    """Return what an operand is to who annotates: for the bias, what folding makes of it."""
    is_bias = len(node.inputs) > _BIAS and node.inputs[_BIAS] is value
    return (folded_bias(node) or value) if is_bias else value
