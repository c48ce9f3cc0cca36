"""Integer arithmetic of the lowered model, as operators of ATen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...graph.editor import GraphEditor
from ...graph.view import NodeView, ValueView
from ...specification.parameters import QParams
from .codes import RefusedError
from .rescale import DOUBLE_ROUND, HIGH, Rescale, rounding_of_quotients

INT64 = 4  # as graphs have dtypes
NUMBERS = {"uint8": 0, "int8": 1, "int16": 2, "int32": 3}


@dataclass
class Arithmetic:
    """Inserts integer operators in front of a node.

    Sums are int64 tensors: PyTorch convolves and multiplies these exactly.

    Attributes:
        graph: the graph.
        before: the node that operators are put in front of.
        like: the node whose module and source line they take.
        rounding: how sums are rounded.
    """

    graph: GraphEditor
    before: NodeView
    like: NodeView
    rounding: str

    def insert(self, kind: str, *operands: Any) -> ValueView:
        """Insert an operator and return its result."""
        node = self.graph.insert(kind, operands, before=self.before, like=self.like)
        return node.output

    def cast(self, x: ValueView | torch.Tensor, dtype: int) -> ValueView:
        """Convert to another integer type."""
        return self.insert("aten::to", x, dtype, False, False, None)

    def centred(self, codes: ValueView, zero_point: int) -> ValueView:
        """Return codes - zero_point, in 64 bits."""
        wide = self.cast(codes, INT64)
        return self.insert("aten::sub", wide, zero_point, 1) if zero_point else wide

    def times(self, x: ValueView, factor: int | torch.Tensor) -> ValueView:
        """Return x * factor."""
        one = isinstance(factor, int) and factor == 1
        return x if one else self.insert("aten::mul", x, factor)

    def rescaled(self, x: ValueView, rescale: Rescale, channels: tuple[int, ...]) -> ValueView:
        """Return round(x * multiplier * 2^-shift).

        Args:
            x: sums.
            rescale: multipliers and shifts.
            channels: the shape in which numbers of channels stand against the sums, `[-1, 1, 1]`.
        """
        twice = self.rounding == DOUBLE_ROUND
        rescale = rescale.normalized if twice else rescale
        product = self.times(x, self._operand(rescale.multipliers, channels))
        shifted = self._shifted_twice if twice else self.shifted
        return shifted(product, rescale.shifts, channels)

    def shifted(
        self, x: ValueView, shifts: tuple[int, ...], channels: tuple[int, ...] = (-1,)
    ) -> ValueView:
        """Return round(x * 2^-shift).

            truncate     x >> n
            half_up      (x + h) >> n                            h = 2^(n - 1)
            half_away    (x + h - (x < 0)) >> n
            half_even    (x + h - 1 + ((x >> n) & 1)) >> n

        With n = 0 nothing is rounded: h is 0, and so is what is added besides.

        Raises:
            RefusedError: the rounding is for a product with a multiplier of 31 bits.
        """
        if self.rounding == DOUBLE_ROUND:
            raise RefusedError(
                f"rounding={DOUBLE_ROUND!r} has no form of it: take another rounding"
            )
        if not any(shifts):
            return x
        n = self._operand(shifts, channels)
        halves = tuple((1 << shift) >> 1 for shift in shifts)
        if self.rounding == "half_up":
            x = self.insert("aten::add", x, self._operand(halves, channels), 1)
        elif self.rounding == "half_away":
            sign = self.insert("aten::bitwise_right_shift", x, 63)  # -1 or 0
            if 0 in shifts:
                sign = self.times(sign, self._operand(_rounds(shifts), channels))
            x = self.insert("aten::add", x, sign, 1)
            x = self.insert("aten::add", x, self._operand(halves, channels), 1)
        elif self.rounding == "half_even":
            kept = self.insert("aten::bitwise_right_shift", x, n)
            odd = self.insert("aten::bitwise_and", kept, self._operand(_rounds(shifts), channels))
            x = self.insert("aten::add", x, odd, 1)
            less = tuple(half - 1 if half else 0 for half in halves)
            x = self.insert("aten::add", x, self._operand(less, channels), 1)
        return self.insert("aten::bitwise_right_shift", x, n)

    def _shifted_twice(
        self, x: ValueView, shifts: tuple[int, ...], channels: tuple[int, ...]
    ) -> ValueView:
        """Return (x + h + k + 2 * k * (x >> 63)) >> n, with k = 2^30 where n > 31, else 0."""
        halves = [(1 << shift) >> 1 for shift in shifts]
        firsts = [1 << (HIGH - 1) if shift > HIGH else 0 for shift in shifts]
        if any(firsts):
            sign = self.insert("aten::bitwise_right_shift", x, 63)  # -1 or 0
            twice = tuple(2 * first for first in firsts)
            x = self.insert("aten::add", x, self.times(sign, self._operand(twice, channels)), 1)
        nudges = tuple(half + first for half, first in zip(halves, firsts, strict=True))
        x = self.insert("aten::add", x, self._operand(nudges, channels), 1)
        return self.insert("aten::bitwise_right_shift", x, self._operand(shifts, channels))

    def divided(self, x: ValueView, divisor: int | ValueView) -> ValueView:
        """Return round(x / divisor), exactly: a tie is one only if there is a tie.

        q = floor(x / d),  r = 2 * (x - q * d)
        truncate     q
        half_up      q + (r >= d)
        half_away    q + (r - (x < 0) >= d)
        half_even    q + (r + (q & 1) > d)
        """
        rounding = rounding_of_quotients(self.rounding)
        quotient = self.insert("aten::div", x, divisor, "floor")
        if rounding == "truncate":
            return quotient
        rest = self.insert("aten::sub", x, self.insert("aten::mul", quotient, divisor), 1)
        rest = self.insert("aten::mul", rest, 2)
        if rounding == "half_even":
            odd = self.insert("aten::bitwise_and", quotient, 1)
            up = self.insert("aten::gt", self.insert("aten::add", rest, odd, 1), divisor)
        elif rounding == "half_away":
            sign = self.insert("aten::bitwise_right_shift", x, 63)
            up = self.insert("aten::ge", self.insert("aten::add", rest, sign, 1), divisor)
        else:
            up = self.insert("aten::ge", rest, divisor)
        return self.insert("aten::add", quotient, up, 1)

    def root(self, x: ValueView) -> ValueView:
        """Return floor(sqrt(x)), for x from 1 to 2^62.

        From r = 2^i, the smallest with x <= 4^i, five steps of Newton's r = (r + x / r) / 2 come to
        within 1e-6 of the root, and never below its whole part: the errors, as parts of it, are 1,
        0.25, 0.025, 3.1e-4, 4.7e-8 and 1.1e-15.
        """
        powers = torch.arange(32, dtype=torch.int64)
        start = self.insert("aten::bucketize", x, 4**powers, False, False)
        found = self.insert("aten::take", 2**powers, start)
        for _ in range(5):
            quotient = self.insert("aten::div", x, found, "floor")
            total = self.insert("aten::add", found, quotient, 1)
            found = self.insert("aten::bitwise_right_shift", total, 1)
        above = self.insert("aten::gt", self.insert("aten::mul", found, found), x)
        return self.insert("aten::add", found, above, -1)

    def saturated(self, x: ValueView, grid: QParams) -> ValueView:
        """Return clamp(x + zero_point, quant_min, quant_max): codes, in 64 bits."""
        zero = int(grid.zero_point)
        if zero:
            x = self.insert("aten::add", x, zero, 1)
        return self.insert("aten::clamp", x, grid.quant_min, grid.quant_max)

    def _operand(self, numbers: tuple[int, ...], channels: tuple[int, ...]) -> Any:
        """Return a number, or a tensor with one for each channel."""
        if len(set(numbers)) == 1:
            return numbers[0]
        return torch.tensor(numbers, dtype=torch.int64).reshape(channels)


def _rounds(shifts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(shift > 0) for shift in shifts)
