"""Numbers that a trace has as tensors: known where they follow from known sizes.

    %n : int = aten::size(%x, 2)
    %t : Tensor = prim::NumToTensor(%n)
    %q : Tensor = aten::div(%t, 2)
    %h : Tensor = aten::ceil(%q)
    %i : int = aten::Int(%h)

`torch.export` knows no values of tensors, so %i would be a number that the data decide. The number
is computed here, on real tensors, as padding to equal sizes needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ...graph.view import NodeView, ValueView
from .forms import MADE, Form

_START = "prim::NumToTensor"
_CONVERSIONS = (
    *(_START, "aten::Int", "aten::Float", "aten::Bool", "aten::item"),
    *("aten::IntImplicit", "aten::FloatImplicit", "aten::ScalarImplicit"),
)


class Numbers:
    """The tensors without axes of a graph that are known, by the ids of their values."""

    def __init__(self) -> None:
        self._known: dict[int, Tensor] = {}

    def follow(self, node: NodeView, form: Form, operands: Sequence[Any]) -> Any:
        """Return the number that a node makes of known ones; None for any other node.

        A tensor without axes that it makes of known ones is known from here on. In its place is a
        number, if arithmetic alone reads it, which makes the same tensor of it again.

        Args:
            node: about to run.
            form: the function that computes it.
            operands: that it gets.
        """
        for value in node.outputs:
            self._known.pop(value.id, None)  # of the round of a loop before
        starts = node.kind == _START
        if not (starts or any(value.id in self._known for value in node.inputs)):
            return None
        if not _computes(node) or node.output.written:
            return None
        pairs = zip(node.inputs, operands, strict=True)
        given = [self._real(value, operand) for value, operand in pairs]
        if not all(_is_real(operand) for operand in given):
            return None
        with _disable_current_modes():  # the modes in which torch.export records calls
            found = _tensor(given[0]) if starts else form(*given)
        if not isinstance(found, Tensor):
            return found
        if found.dim() != 0:
            return None
        self._known[node.output.id] = found
        inside = not node.output.is_result and all(
            _computes(reader) for reader, _ in node.output.uses
        )
        return found.item() if inside and found.dtype in MADE else None

    def _real(self, value: ValueView, operand: Any) -> Any:
        """Return the known tensor that an operand stands for, or else the operand."""
        if value.id in self._known:
            return self._known[value.id]
        constant = value.constant if value.is_constant and not value.written else None
        return constant if isinstance(constant, Tensor) and constant.dim() == 0 else operand


def _computes(node: NodeView) -> bool:
    """Say whether it is arithmetic, or makes a number of a tensor or a tensor of a number."""
    return node.kind in _CONVERSIONS or node.traits.elementwise > 0


def _is_real(operand: Any) -> bool:
    """Say whether an operand is a number, text or None, or a tensor that has values."""
    plain = operand is None or type(operand) in (bool, int, float, str)
    return plain or type(operand) is Tensor


def _tensor(number: Any) -> Tensor:
    """Return a number as TorchScript makes a tensor of it: of reals in double."""
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)
