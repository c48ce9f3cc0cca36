"""What a backend can compute on integers: the table that a backend's quantizer goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ..graph import NodeView
from .specification import FixedQParamsQuantizationSpec


class Role(Enum):
    """How an operator takes part in quantization.

    WEIGHTED operators multiply by a constant weight and start a quantized region; all others are
    quantized only between quantized neighbours, where staying float would cost two conversions.
    """

    WEIGHTED = "input, weight, bias; result with its own parameters"
    OWN = "result with its own parameters"
    SHARED = "result with the parameters of the first operand"
    FIXED = "result with parameters known beforehand"


Check = Callable[[NodeView], str | None]


@dataclass(frozen=True)
class OperatorSupport:
    """One row of a support table.

    Attributes:
        kind: qualified operator name.
        role: see `Role`.
        operands: the operands that must be quantized; for a list operand, all its elements.
        clips: the operators that become part of it when they follow: the result's range clips.
        ranks: numbers of dimensions of the result that the backend can do.
        check: says why a node cannot be quantized, or None when it can.
        per_channel: whether weights may have a scale for each output channel.
        fixed: the parameters, for Role.FIXED.
    """

    kind: str
    role: Role
    operands: tuple[int, ...] = (0,)
    clips: tuple[str, ...] = ()
    ranks: tuple[int, int] = (1, 8)
    check: Check | None = None
    per_channel: bool = True
    fixed: FixedQParamsQuantizationSpec | None = None
