"""Integers only, for hardware without floats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from ...errors import ArgumentError, not_among
from ...graph.view import NodeView
from ...observers import MinMax
from ...passes.pipeline import CLEAN_UP, FOLD_NUMBERS, Pipeline
from ...passes.steps import PassCall
from ...quantizers.backend import BackendQuantizer
from ...quantizers.capability import Capability
from ...specification.recurrent import RECURRENT
from ...specification.specification import QuantizationSpec
from ..target import Target
from .accumulator import WIDTHS
from .borders import lower_to_codes, lower_to_floats
from .capability import POWERS, capability_of
from .functions import quantize_ahead_of_moves, quantize_moved
from .lower import STORE_CODES, compute_on_integers
from .rescale import DOUBLE_ROUND, ROUNDINGS

MULTIPLIERS = (16, 32)
REQUANTIZATIONS = ("multiplier", "shift")


@dataclass(frozen=True)
class FixedPoint(Target):
    """Integers alone, from the quantized input to the last code.

    The lowered model holds nothing but `aten::*`, so it loads without this package. Sums are int64
    tensors, which PyTorch convolves exactly; they stay within `accumulator_bits`.

        q_y = clamp(round(sum * multiplier * 2^-shift) + z_y, quant_min, quant_max)

    Args:
        requantization: "multiplier", an integer and a shift; or "shift", for which all scales are
            powers of two.
        rounding: of that product: "half_even"; "half_up", as TFLite and TOSA with single rounding;
            "half_away" from zero; "truncate", which drops bits and so rounds down; "double_round",
            twice, as gemmlowp, TFLite and CMSIS-NN without single rounding, and TOSA. The reference
            model, and a model that trains, round activations in the same way. With "double_round"
            they round halves to even.
        accumulator_bits: 16, 24, 32 or 48. Layers whose weights could overflow it stay in float,
            and the report says by how much.
        steps: how many steps the sequences of recurrent layers have, which are unrolled; None
            to leave these layers in float.
        multiplier_bits: of a multiplier with its sign, 32 or 16, as `apply_scale_32` and
            `apply_scale_16` of TOSA; None for 32, or 16 with accumulators of 48 bits.

    Raises:
        JitPassesError: one of them cannot be, or two of them together.
    """

    name: ClassVar[str] = "fixed_point"
    requantization: str = "multiplier"
    rounding: str = "half_even"
    accumulator_bits: int = 32
    steps: int | None = None
    multiplier_bits: int | None = None

    def __post_init__(self) -> None:
        if self.requantization not in REQUANTIZATIONS:
            raise ArgumentError(not_among("requantization", self.requantization, REQUANTIZATIONS))
        roundings = (*ROUNDINGS, DOUBLE_ROUND)
        if self.rounding not in roundings:
            said = not_among("rounding", self.rounding, roundings)
            same = [name for name, word in ROUNDINGS.items() if word == self.rounding]
            note = f": {self.rounding!r} of a configuration is {same[0]!r} here" if same else ""
            raise ArgumentError(said + note)
        if self.accumulator_bits not in WIDTHS:
            widths = ", ".join(map(str, WIDTHS))
            raise ArgumentError(f"accumulator_bits is {widths}, not {self.accumulator_bits!r}")
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise ArgumentError(f"steps is a whole number from 1 on, or None, not {self.steps!r}")
        if self.multiplier_bits not in (None, *MULTIPLIERS):
            raise ArgumentError(f"multiplier_bits is 16, 32 or None, not {self.multiplier_bits!r}")
        if why := self._contradiction():
            raise ArgumentError(why)

    def _contradiction(self) -> str | None:
        """Say which two options exclude each other."""
        if self.only_shift and self.multiplier_bits is not None:
            return "multiplier_bits is for requantization='multiplier', not for 'shift'"
        wide = self.accumulator_bits > 32
        if wide and self.multiplier_bits == 32:
            return (
                f"multiplier_bits=32 is for accumulators of 32 bits, not {self.accumulator_bits}: "
                "their product has 64 bits; take multiplier_bits=16"
            )
        if self.rounding == DOUBLE_ROUND and self.only_shift:
            return f"rounding={DOUBLE_ROUND!r} is for requantization='multiplier', not for 'shift'"
        if self.rounding == DOUBLE_ROUND and (wide or self.multiplier_bits == 16):
            return (
                f"rounding={DOUBLE_ROUND!r} is for accumulators of at most 32 bits and a "
                "multiplier of 32 bits: take another rounding"
            )
        return None

    @property
    def only_shift(self) -> bool:
        """Whether all scales are powers of two."""
        return self.requantization == "shift"

    @property
    def capability(self) -> Capability:
        return capability_of(self.only_shift, self.rounding, self.accumulator_bits, self.steps)

    def demand(self, node: NodeView) -> str | None:
        unrolled = self.steps is not None and node.kind in RECURRENT
        return f"sequences of {self.steps} steps" if unrolled else None

    def quantizer(self) -> BackendQuantizer:
        """Return its quantizer: of powers of two, int8 with one scale for each tensor."""
        if not self.only_shift:
            return BackendQuantizer(self)
        activation = self.capability.activations.nearest(QuantizationSpec("int8"))
        weight = QuantizationSpec("int8", qscheme=POWERS[0], observer=MinMax())
        return BackendQuantizer(self, activation=activation, weight=weight)

    def lowering(self) -> Pipeline:
        compute = partial(
            compute_on_integers,
            only_shift=self.only_shift,
            rounding=self.rounding,
            accumulator_bits=self.accumulator_bits,
            multiplier_bits=(self.multiplier_bits or (16 if self.accumulator_bits > 32 else 32))
            - 1,
        )
        return Pipeline(
            "lower_fixed_point",
            (
                FOLD_NUMBERS,
                "merge_conv_bias",
                quantize_moved,
                quantize_ahead_of_moves,
                "fold_lookup_tables",
                compute,
                STORE_CODES,
                "remove_dead_code",
                PassCall("fold_quantized_constants", dequantize=True),
                lower_to_codes(),
                lower_to_floats,
                *CLEAN_UP,
            ),
            ensures=("no_dialect",),
        )
