"""Integers only: what hardware without floats computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from ...errors import ArgumentError, not_among
from ...observers import MinMax
from ...passes.pipeline import CLEAN_UP, Pipeline
from ...passes.steps import PassCall
from ...quantizers.backend import BackendQuantizer
from ...quantizers.capability import Capability
from ...specification.specification import QuantizationSpec
from ..target import Target
from .accumulator import WIDTHS
from .borders import lower_to_codes, lower_to_floats
from .capability import POWERS, capability_of
from .functions import quantize_moved
from .lower import STORE_CODES, compute_on_integers
from .rescale import ROUNDINGS

REQUANTIZATIONS = ("multiplier", "shift")


@dataclass(frozen=True)
class FixedPoint(Target):
    """Integers alone, from the quantized input to the last code.

    The lowered model holds nothing but `aten::*`, so it loads without this package. Sums are int64
    tensors, which PyTorch convolves exactly; they stay within `accumulator_bits`.

        q_y = clamp(round(sum * multiplier * 2^-shift) + z_y, quant_min, quant_max)

    Args:
        requantization: "multiplier", an integer of 31 bits (15 with accumulators of 48 bits), and a
            shift; or "shift", for which all scales are powers of two.
        rounding: of that product: "half_even"; "half_up", as TFLite and TOSA with single rounding;
            "half_away" from zero; "truncate", which drops bits and so rounds down.
        accumulator_bits: 16, 24, 32 or 48. Layers whose weights could overflow it stay in float,
            and the report says by how much.
        steps: how many steps the sequences of recurrent layers have, which are unrolled; None
            to leave these layers in float.

    Raises:
        JitPassesError: one of them cannot be.
    """

    name: ClassVar[str] = "fixed_point"
    requantization: str = "multiplier"
    rounding: str = "half_even"
    accumulator_bits: int = 32
    steps: int | None = None

    def __post_init__(self) -> None:
        for option, known in (("requantization", REQUANTIZATIONS), ("rounding", ROUNDINGS)):
            if (value := getattr(self, option)) not in known:
                raise ArgumentError(not_among(option, value, known))
        if self.accumulator_bits not in WIDTHS:
            widths = ", ".join(map(str, WIDTHS))
            raise ArgumentError(f"accumulator_bits is {widths}, not {self.accumulator_bits!r}")
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise ArgumentError(f"steps is a whole number from 1 on, or None, not {self.steps!r}")

    @property
    def only_shift(self) -> bool:
        """Whether all scales are powers of two."""
        return self.requantization == "shift"

    @property
    def capability(self) -> Capability:
        return capability_of(self.only_shift, self.accumulator_bits, self.steps)

    def quantizer(self) -> BackendQuantizer:
        """Return its quantizer: of powers of two, int8 with one scale for each tensor."""
        if not self.only_shift:
            return BackendQuantizer(self)
        activation = QuantizationSpec("int8", qscheme=POWERS[0])
        weight = QuantizationSpec("int8", qscheme=POWERS[0], observer=MinMax())
        return BackendQuantizer(self, activation=activation, weight=weight)

    def lowering(self) -> Pipeline:
        compute = partial(
            compute_on_integers,
            only_shift=self.only_shift,
            rounding=self.rounding,
            accumulator_bits=self.accumulator_bits,
        )
        return Pipeline(
            "lower_fixed_point",
            (
                "fold_constant_lists",
                "merge_conv_bias",
                quantize_moved,
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
