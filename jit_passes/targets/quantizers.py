"""Quantizers by name: backends' own, ready to be told more about single layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..graph.view import NodeView
from ..observers import MinMax
from ..quantizers.backend import BackendQuantizer
from ..quantizers.support import OperatorSupport, Role
from ..specification.specification import QuantizationSpec
from .reference import Reference, support
from .stock import Stock
from .target import Target

EQUAL_OPERANDS = ("aten::add", "aten::sub", "aten::cat", "aten::maximum", "aten::minimum")
SHARED_RESULTS = ("aten::cat", "aten::maximum", "aten::minimum")


class TargetQuantizer(BackendQuantizer):
    """The quantizer of a backend.

    Args:
        target: the backend.
        options: what `BackendQuantizer` is made with, where it is not what the backend says.
    """

    def __init__(self, target: Target, **options: Any) -> None:
        own = target.quantizer()
        arguments: dict[str, Any] = {
            name: getattr(own, name)
            for name in (
                "support", "activation", "sums", "weight_of", "activations", "weights", "mixed",
                "equal_operands", "unsigned",
            )
        }  # fmt: skip
        super().__init__(**{**arguments, "target": target, **options})


class X86Quantizer(TargetQuantizer):
    """For PyTorch's kernels on x86: uint8 activations, int8 weights per channel, symmetric.

    Args:
        options: those of `Stock` but `engine`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(Stock("x86", **options))


class QnnpackQuantizer(TargetQuantizer):
    """For PyTorch's QNNPACK kernels: everything symmetric, one scale for each tensor.

    Activations are uint8 with zero point 128, weights int8 in [-127, 127].

    Args:
        options: those of `Stock` but `engine`.
    """

    def __init__(self, **options: Any) -> None:
        target = Stock("qnnpack", **options)
        own = target.quantizer()

        def weight_of(node: NodeView) -> QuantizationSpec:
            spec = own.weight_of(node)
            return replace(spec, qscheme="per_tensor_symmetric", ch_axis=None)

        activation = replace(own.activation, qscheme="per_tensor_symmetric")
        super().__init__(target, activation=activation, weight_of=weight_of)


class PowerOfTwoQuantizer(TargetQuantizer):
    """For hardware that multiplies by shifting, as FPGAs do: every scale is a power of two.

    Activations, weights and biases are signed, but for `unsigned`, with zero point 0 and one scale
    for each tensor; a bias has the scale of the accumulator, input scale times weight scale. What
    is added, joined or compared has one scale, so that integers can be: the operands of add, sub,
    cat, maximum and minimum share, and the result of the last three has it too. Graffitist (Jain
    et al., arXiv:1903.08066, section 5.1) shares scales so; its own 16-bit accumulators are in
    `quantize_slots(recipe="graffitist")`.

    Args:
        bits: of activations.
        weight_bits: of weights.
        lookup_tables: see `Reference`.
        unsigned: whether activations that cannot be below 0 have codes from 0 on, and so a bit
            more, as Graffitist has behind a relu.

    Raises:
        ValueError: bits outside of 2 to 16.
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
        table = dict(support(activation))
        for kind in SHARED_RESULTS:
            table[kind] = replace(table[kind], role=Role.SHARED)
        super().__init__(
            Reference(lookup_tables),
            support=_of_shared(table),
            activation=activation,
            weight_of=lambda node: weight,
            equal_operands=EQUAL_OPERANDS,
            unsigned=unsigned,
        )


def _of_shared(table: Mapping[str, OperatorSupport]) -> Mapping[str, OperatorSupport]:
    """A result that shares its operands' parameters cannot absorb a clip."""
    return {
        kind: replace(row, clips=()) if row.role is Role.SHARED else row
        for kind, row in table.items()
    }
