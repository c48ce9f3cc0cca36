"""Reductions that OpenVINO computes wrongly with a constant: a Max behind keeps the two apart.

    before                            after
    %m = ReduceMean(%x, axes=[2])     %m = ReduceMean(%x, axes=[2])
    %y = Mul(%m, %c)                  %k = Max(%m, low)
                                      %y = Mul(%k, %c)

with the lowest number of float32: no value changes.

OpenVINO 2026.4 multiplies by a constant, or adds one, as it reduces. Of a tensor of three axes over
the last one, it takes wrong elements of a constant that has one for each row, unless there is one
sample. The two may have functions, and numbers, between them.
"""

from __future__ import annotations

from typing import Any

from .graph import constant_of, limited

_POOLS = ("GlobalAveragePool", "GlobalMaxPool")
_WITH_CONSTANTS = ("Add", "Sub", "Mul", "Div", "PRelu", "BatchNormalization")
_FUNCTIONS = (
    *("Abs", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
    *(
        "LeakyRelu",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Neg",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
    ),
    *("Selu", "Sigmoid", "Softplus", "Sqrt", "Squeeze", "Tanh", "Unsqueeze"),
)


def keep_reductions(model: Any) -> None:
    """Write a Max behind reductions of rows with whose results constants are computed, in place.

    Args:
        model: of `onnx_ir`, whose values have their names.
    """
    for node in list(model.graph.all_nodes()):
        if _is_of_rows(node) and _meets_constant(node.outputs[0]):
            result = node.outputs[0]
            uses = list(result.uses())
            kept = limited(result, f"{result.name}:kept", behind=node)
            for use in uses:
                use.node.replace_input_with(use.idx, kept)


def _is_of_rows(node: Any) -> bool:
    """Say whether a node reduces the last of three axes, of more than one sample."""
    if node.op_type not in _POOLS and not node.op_type.startswith("Reduce"):
        return False
    shape = node.inputs[0].shape
    if shape is None or len(shape) != 3 or shape[0] == 1:
        return False
    if node.op_type in _POOLS:
        return True
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return axes is not None and {int(axis) % 3 for axis in axes.ravel()} == {2}


def _meets_constant(result: Any) -> bool:
    """Say whether a constant of several numbers is computed with a value, or a function of it."""
    pending, seen = [result], {result}
    while pending:
        value = pending.pop()
        for node in {use.node for use in value.uses()}:
            others = (constant_of(other) for other in node.inputs if other is not value)
            met = any(other is not None and other.size > 1 for other in others)
            if met and node.op_type in _WITH_CONSTANTS:
                return True
            if node.op_type in (*_WITH_CONSTANTS, *_FUNCTIONS):
                pending += {*node.outputs} - seen
                seen |= {*node.outputs}
    return False
