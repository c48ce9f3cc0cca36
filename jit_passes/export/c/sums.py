"""The way from a sum to a code, as the target `fixed_point` writes it in operators of ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...graph.view import NodeView, ValueView, is_literal
from ...targets.fixed_point.rescale import DOUBLE_ROUND, HIGH

INT64 = 4  # as graphs have it
# How many additions round in front of a shift: see `Arithmetic.shifted`.
_ADDITIONS = {"truncate": 0, "half_up": 1, "half_away": 2, "half_even": 2}


def _additions(rounding: str, shifts: Sequence[int]) -> int:
    twice = rounding == DOUBLE_ROUND
    return 1 + int(max(shifts) > HIGH) if twice else _ADDITIONS[rounding]


@dataclass(frozen=True)
class Rescaled:
    """clamp(round(round(value * multiplier / 2^shift) / divisor) + zero, low, high).

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


@dataclass(frozen=True)
class Part:
    """round((codes - zero) * lift * multiplier / 2^shift).

    Attributes:
        steps: codes less their zero point.
        lift: a power of two.
        multiplier: of 31 bits.
        shift: of the product.
    """

    steps: Steps
    lift: int
    multiplier: int
    shift: int


class FormError(Exception):
    """Operators stand in another form than the target writes."""


class SumReader:
    """Reads sums.

    Args:
        rounding: of the target.
        known: returns a value of the example, or a constant.
    """

    def __init__(self, rounding: str, known: Callable[[ValueView], Any]) -> None:
        self._rounding, self._known = rounding, known

    def rescaled(self, node: NodeView) -> Rescaled:
        """Read the operators in front of the node that stores codes.

        Raises:
            FormError: it is no sum.
        """
        value = node.main_operand
        if value.producer is not None and value.producer.kind == "aten::view_as":
            value = value.producer.main_operand  # from groups of channels to channels
        clamp = made(value, "aten::clamp")
        low, high = (int(self._known(value)) for value in map(clamp.operand, ("min", "max")))
        value, zero = clamp.main_operand, 0
        added = value.producer
        if added is not None and added.kind == "aten::add" and is_literal(added.operand("other")):
            value, zero = added.main_operand, int(added.operand("other").constant)
        value, shifts, by = self._rounded(value)
        divisor = None if by is None else self._known(by)
        if isinstance(divisor, int):
            by = None
        value, multipliers = self._multiplied(value)
        count = divisor if isinstance(divisor, int) else 0
        return Rescaled(value, multipliers, shifts, count, by, zero, low, high)

    def _rounded(self, value: ValueView) -> tuple[ValueView, list[int], ValueView | None]:
        """Return the rounded value, the shifts and the divisor."""
        node = value.producer
        if node is not None and node.kind == "aten::add":
            up = node.operand("other").producer
            if up is not None and up.kind in ("aten::gt", "aten::ge"):
                node = node.main_operand.producer
        if node is not None and node.kind == "aten::div":
            return *self._shifted(node.main_operand), node.operand("other")
        return *self._shifted(value), None

    def _shifted(self, value: ValueView) -> tuple[ValueView, list[int]]:
        """Return the number that is shifted, and the shifts."""
        node = value.producer
        if node is None or node.kind != "aten::bitwise_right_shift":
            return value, [0]
        shifts, value = _numbers(node.operand("other").constant), node.main_operand
        for _ in range(_additions(self._rounding, shifts)):
            value = made(value, "aten::add").main_operand
        return value, shifts

    def _multiplied(self, value: ValueView) -> tuple[ValueView, list[int]]:
        """Return the number that is multiplied, and the multipliers."""
        node = value.producer
        if node is None or node.kind != "aten::mul" or not node.operand("other").is_constant:
            return value, [1]
        return node.main_operand, _numbers(node.operand("other").constant)

    def part(self, value: ValueView) -> Part:
        """Read an operand of a sum that is rescaled by itself.

        Raises:
            FormError: it is something else.
        """
        value, (shift,) = self._shifted(value)
        value, (multiplier,) = self._multiplied(value)
        steps, lift = self.factor(value)
        return Part(steps, lift, multiplier, shift)

    def steps(self, value: ValueView) -> Steps:
        """Read codes less their zero point.

        Raises:
            FormError: it is something else.
        """
        zero, node = 0, value.producer
        if node is not None and node.kind == "aten::sub":
            zero, value = int(self._known(node.operand("other"))), node.main_operand
        return Steps(made(value, "aten::to").main_operand, zero)

    def scaled(self, value: ValueView) -> tuple[ValueView, int]:
        """Read a value times a number."""
        node = value.producer
        if node is not None and node.kind == "aten::mul" and node.operand("other").is_constant:
            return node.main_operand, int(node.operand("other").constant)
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
