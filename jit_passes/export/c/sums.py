"""The way from a sum to a code, as the target `fixed_point` writes it in operators of ATen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...graph.view import NodeView, ValueView, is_literal

INT64 = 4  # as graphs have it
# How many additions round in front of a shift: see `Arithmetic.shifted`.
_ADDITIONS = {"truncate": 0, "half_up": 1, "half_away": 2, "half_even": 2}


@dataclass(frozen=True)
class Rescaled:
    """clamp(round(value * multiplier / (divisor * 2^shift)) + zero, low, high).

    Attributes:
        value: the sum.
        multipliers: one, or one for each channel.
        shifts: likewise.
        divisor: of an average; 0 for none.
        by: the divisors of a row each; None for none.
        zero: the zero point of the result.
        low: the smallest code.
        high: the largest code.
    """

    value: ValueView
    multipliers: list[int]
    shifts: list[int]
    divisor: int
    by: ValueView | None
    zero: int
    low: int
    high: int


@dataclass(frozen=True)
class Steps:
    """Codes less their zero point.

    Attributes:
        codes: the codes.
        zero: the zero point.
    """

    codes: ValueView
    zero: int


class FormError(Exception):
    """Operators stand in another form than the target writes."""


class SumReader:
    """Reads sums.

    Args:
        rounding: of the target.
        known: returns a value of the example, or a constant.
    """

    def __init__(self, rounding: str, known: Callable[[ValueView], Any]) -> None:
        self._additions, self._known = _ADDITIONS[rounding], known

    def rescaled(self, node: NodeView) -> Rescaled:
        """Read what is in front of the node that stores codes.

        Raises:
            FormError: it is no sum.
        """
        value = node.main_operand
        if value.producer is not None and value.producer.kind == "aten::view_as":
            value = value.producer.main_operand  # from groups of channels to channels
        clamp = made(value, "aten::clamp")
        low, high = (int(self._known(value)) for value in clamp.inputs[1:])
        value, zero = clamp.main_operand, 0
        added = value.producer
        if added is not None and added.kind == "aten::add" and is_literal(added.inputs[1]):
            value, zero = added.main_operand, int(added.inputs[1].constant)
        value, shifts, by = self._rounded(value)
        divisor = None if by is None else self._known(by)
        if isinstance(divisor, int):
            by = None
        multipliers = [1]
        times = value.producer
        if times is not None and times.kind == "aten::mul" and times.inputs[1].is_constant:
            value, multipliers = times.main_operand, _numbers(times.inputs[1].constant)
        count = divisor if isinstance(divisor, int) else 0
        return Rescaled(value, multipliers, shifts, count, by, zero, low, high)

    def _rounded(self, value: ValueView) -> tuple[ValueView, list[int], ValueView | None]:
        """Return what is rounded, the shifts and the divisor."""
        node = value.producer
        if node is not None and node.kind == "aten::bitwise_right_shift":
            shifts, value = _numbers(node.inputs[1].constant), node.main_operand
            for _ in range(self._additions):
                value = made(value, "aten::add").main_operand
            return value, shifts, None
        if node is not None and node.kind == "aten::add":
            up = node.inputs[1].producer
            if up is not None and up.kind in ("aten::gt", "aten::ge"):
                node = node.main_operand.producer
        if node is not None and node.kind == "aten::div":
            return node.main_operand, [0], node.inputs[1]
        return value, [0], None

    def steps(self, value: ValueView) -> Steps:
        """Read codes less their zero point.

        Raises:
            FormError: it is something else.
        """
        zero, node = 0, value.producer
        if node is not None and node.kind == "aten::sub":
            zero, value = int(self._known(node.inputs[1])), node.main_operand
        return Steps(made(value, "aten::to").main_operand, zero)

    def scaled(self, value: ValueView) -> tuple[ValueView, int]:
        """Read a value times a number."""
        node = value.producer
        if node is not None and node.kind == "aten::mul" and node.inputs[1].is_constant:
            return node.main_operand, int(node.inputs[1].constant)
        return value, 1

    def factor(self, value: ValueView) -> tuple[Steps, int]:
        """Read codes less their zero point, times a number."""
        value, number = self.scaled(value)
        return self.steps(value), number


def made(value: ValueView, kind: str) -> NodeView:
    """Return the node of a kind that makes a value.

    Raises:
        FormError: another one makes it.
    """
    node = value.producer
    if node is None or node.kind != kind:
        raise FormError(f"'{value.name}' is no {kind}")
    return node


def _numbers(value: Any) -> list[int]:
    found: list[int] = torch.as_tensor(value).flatten().tolist()
    return found
