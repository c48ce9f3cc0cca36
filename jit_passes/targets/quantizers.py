"""Quantizers of backends by name: policies over the operators of `Stock` and `Reference`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..observers import MinMax
from ..quantizers.backend import BackendQuantizer
from ..quantizers.support import OperatorSupport, Role, per_tensor
from ..specification.specification import QuantizationSpec
from .reference import Reference, capability_of
from .stock import Stock

EQUAL_OPERANDS = ("aten::add", "aten::sub", "aten::cat", "aten::maximum", "aten::minimum")
SHARED_RESULTS = ("aten::cat", "aten::maximum", "aten::minimum")


class X86Quantizer(BackendQuantizer):
    """For PyTorch's kernels on x86: uint8 activations, int8 weights per channel, symmetric.

    Args:
        options: of `Stock`, all but `engine`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(Stock.make("stock", engine="x86", **options))


class QnnpackQuantizer(BackendQuantizer):
    """For PyTorch's QNNPACK kernels: everything symmetric, one scale for each tensor.

    Activations are uint8 with zero point 128, weights int8 in [-127, 127].

    Args:
        options: of `Stock`, all but `engine`.
    """

    def __init__(self, **options: Any) -> None:
        target = Stock.make("stock", engine="qnnpack", **options)
        default = target.quantizer().policy
        activation = replace(default.activation, qscheme="per_tensor_symmetric")
        super().__init__(target, activation=activation, weight=per_tensor(default.weight))


class PowerOfTwoQuantizer(BackendQuantizer):
    """For hardware that multiplies by shifting, as FPGAs do: every scale is a power of two.

    Activations, weights and biases are signed, but for `unsigned`, with zero point 0 and one scale
    for each tensor; a bias has the scale of the accumulator, input scale times weight scale.
    Operands that are added, joined or compared have one scale, so that kernels can add, join and
    compare integers. Operands of add, sub, cat, maximum and minimum share it, and so does the
    result of the last three. Graffitist (Jain et al., arXiv:1903.08066, section 5.1) shares scales
    so; its own 16-bit accumulators are in `quantize_slots(recipe="graffitist")`.

    Args:
        bits: of activations.
        weight_bits: of weights.
        lookup_tables: see `Reference`.
        unsigned: whether activations that cannot be below 0 have codes from 0 on, and so one more
            bit, as Graffitist has behind a relu.

    Raises:
        JitPassesError: bits outside of 2 to 16.
    """

    def __init__(
        self,
        bits: int = 8,
        weight_bits: int = 8,
        lookup_tables: bool = True,
        *,
        unsigned: bool = False,
    ) -> None:
        scheme = "per_tensor_power_of_two"
        activation = QuantizationSpec.of_bits(bits, qscheme=scheme)
        weight = QuantizationSpec.of_bits(weight_bits, qscheme=scheme, observer=MinMax())
        can = capability_of(activation)
        super().__init__(
            Reference(lookup_tables),
            capability=replace(can, operators=_with_shared(can.operators)),
            activation=activation,
            weight=weight,
            equal_operands=EQUAL_OPERANDS,
            unsigned=unsigned,
        )


def _with_shared(table: Mapping[str, OperatorSupport]) -> Mapping[str, OperatorSupport]:
    """Return a table where results of joined integers share, and so absorb no clip."""
    rows = {**table, **{k: replace(table[k], role=Role.SHARED) for k in SHARED_RESULTS}}
    return {
        kind: replace(row, clips=()) if row.role is Role.SHARED else row
        for kind, row in rows.items()
    }
