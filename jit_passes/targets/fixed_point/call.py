"""An operator that is to be computed on integers, and how the target computes."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.view import NodeView, ValueView
from ...specification.parameters import QParams
from .accumulator import overflow
from .arithmetic import Arithmetic
from .codes import CodeFinder, Codes, RefusedError
from .rescale import DOUBLE_ROUND


@dataclass(frozen=True)
class Rules:
    """How a target computes.

    Attributes:
        only_shift: whether all scales are powers of two.
        rounding: how sums are rounded.
        accumulator_bits: of the register that sums of products are in.
        multiplier_bits: of a multiplier without its sign: a product with a sum has 64 bits.
    """

    only_shift: bool
    rounding: str
    accumulator_bits: int
    multiplier_bits: int

    @property
    def rounds_twice(self) -> bool:
        """Whether a product with a multiplier is rounded twice."""
        return self.rounding == DOUBLE_ROUND

    def check(self, least: int, most: int) -> None:
        """Refuse sums that do not fit.

        Raises:
            RefusedError: they do not.
        """
        if why := overflow(least, most, self.accumulator_bits):
            raise RefusedError(why)


@dataclass
class Call:
    """An operator that is to be computed on integers.

    Attributes:
        node: it.
        result: the grid of its result.
        finder: finds codes.
        math: inserts operators in front of it.
        rules: how the target computes.
        products: the number of products in a sum, if it is known; else 1.
    """

    node: NodeView
    result: QParams
    finder: CodeFinder
    math: Arithmetic
    rules: Rules
    products: int = 1

    @property
    def scale(self) -> float:
        """The scale of its result."""
        return float(self.result.scale)

    def codes(self, position: int) -> Codes:
        """Return the codes of an operand."""
        return self.finder.of(self.node.inputs[position])

    def steps(self, codes: Codes) -> ValueView:
        """Return how many steps from 0 codes are, in 64 bits."""
        return self.math.centred(codes.value, codes.zero_point)
