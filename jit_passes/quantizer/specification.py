"""How a value is to be quantized."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..observers import Histogram, Observer, observer_from_dict

DTYPES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
}
DEFAULT_OBSERVER = Histogram()
SCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_tensor_symmetric_with_uint8",
    "per_tensor_power_of_two",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_symmetric_with_uint8",
    "per_channel_power_of_two",
)
RANGE_FORMS = ("pytorch", "glow")
ROUNDINGS = ("half_even", "half_away", "half_up", "floor", "ceil", "toward_zero")


@dataclass(frozen=True)
class QuantizationSpec:
    """Quantization of one value with parameters found by calibration.

    q = clamp(round(x / scale) + zero_point, quant_min, quant_max)

    Attributes:
        dtype: integer type that stores q: uint8, int8, int16 or int32.
        quant_min: smallest q.
        quant_max: largest q.
        qscheme: per_tensor_ (one scale) or per_channel_ (one for each index along ch_axis), then
            affine; symmetric (zero_point in the middle of the range); symmetric_with_uint8
            (affine where nothing is below 0, so that all codes are used, otherwise symmetric); or
            power_of_two (zero_point 0, the smallest power of two as scale with which nothing is
            clipped).
        ch_axis: the channel axis, for per-channel schemes only.
        observer: what watches the value during calibration.
        rounding: half_even; half_away (from zero); half_up; floor; ceil; toward_zero. Others than
            half_even are for fake quantization: backends' kernels round halves to even.
        range_form: whose formulas take a range to scale and zero point: pytorch (see
            `affine_qparams`) or glow (see `glow_qparams`). They differ in how symmetric and
            power_of_two treat the one code more below 0 than above, and in the scale of zeros.

    Raises:
        ValueError: the range does not fit the dtype; qscheme, rounding or range_form is unknown; or
            ch_axis and qscheme do not go together.
    """

    dtype: str = "uint8"
    quant_min: int = 0
    quant_max: int = 255
    qscheme: str = "per_tensor_affine"
    ch_axis: int | None = None
    observer: Observer = DEFAULT_OBSERVER
    rounding: str = "half_even"
    range_form: str = "pytorch"

    @classmethod
    def of_bits(
        cls, bits: int, signed: bool = True, qscheme: str = "per_tensor_affine", **options: Any
    ) -> QuantizationSpec:
        """Return a specification whose codes are all that so many bits hold, in the least dtype.

        [quant_min, quant_max] = [-2**(bits - 1), 2**(bits - 1) - 1], or [0, 2**bits - 1] unsigned.

        Args:
            bits: from 2 to 16.
            signed: whether codes are signed. Unsigned ones of more than 8 bits are int32.
            qscheme: as in the class.
            options: the class's other attributes.

        Raises:
            ValueError: bits is none of these, or what the class raises.
        """
        if not isinstance(bits, int) or not 2 <= bits <= 16:
            raise ValueError(f"bits is a whole number from 2 to 16, not {bits!r}")
        low = -(2 ** (bits - 1)) if signed else 0
        narrow = bits <= 8
        dtype = ("int8" if narrow else "int16") if signed else ("uint8" if narrow else "int32")
        return cls(dtype, low, low + 2**bits - 1, qscheme, **options)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}")
        limits = torch.iinfo(DTYPES[self.dtype])
        if not limits.min <= self.quant_min < self.quant_max <= limits.max:
            raise ValueError(
                f"[quant_min, quant_max] = [{self.quant_min}, {self.quant_max}] does not fit "
                f"{self.dtype}, which holds [{limits.min}, {limits.max}]"
            )
        if self.qscheme not in SCHEMES:
            raise ValueError(f"qscheme is one of {', '.join(SCHEMES)}, not {self.qscheme!r}")
        if (self.ch_axis is not None) != self.qscheme.startswith("per_channel"):
            raise ValueError(f"ch_axis = {self.ch_axis} does not go with {self.qscheme}")
        if self.power_of_two and not self.quant_min <= 0 < self.quant_max:
            raise ValueError(
                f"[quant_min, quant_max] = [{self.quant_min}, {self.quant_max}] does not hold 0, "
                f"the zero point of {self.qscheme}, and a number above it"
            )
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding is one of {', '.join(ROUNDINGS)}, not {self.rounding!r}")
        if self.range_form not in RANGE_FORMS:
            raise ValueError(
                f"range_form is one of {', '.join(RANGE_FORMS)}, not {self.range_form!r}"
            )
        if self.range_form == "glow" and self.quant_max - self.quant_min < 2:
            raise ValueError("range_form glow needs a code on either side of 0")

    @property
    def symmetric(self) -> bool:
        """Whether the zero point is fixed in the middle of the range."""
        return self.qscheme.endswith("symmetric")

    @property
    def power_of_two(self) -> bool:
        """Whether the scale is a power of two."""
        return self.qscheme.endswith("power_of_two")

    @property
    def centred(self) -> bool:
        """Whether as many steps lie below 0 as above, but for one."""
        return self.symmetric or (self.power_of_two and self.quant_min < 0)

    def for_range(self, low: float) -> QuantizationSpec:
        """Return the specification for values from there on: symmetric_with_uint8 is resolved."""
        granularity, mixed, _ = self.qscheme.partition("symmetric_with_uint8")
        if not mixed:
            return self
        return replace(self, qscheme=granularity + ("affine" if low >= 0 else "symmetric"))


@dataclass(frozen=True)
class SharedQuantizationSpec:
    """The parameters of another value.

    Attributes:
        value: id of the value whose parameters are taken.
    """

    value: int


@dataclass(frozen=True)
class FixedQParamsQuantizationSpec:
    """Parameters known beforehand, for operators whose results have a known range.

    Attributes:
        scale: input units per step.
        zero_point: the q that means 0.
    """

    scale: float
    zero_point: int
    dtype: str = "uint8"
    quant_min: int = 0
    quant_max: int = 255


AnySpec = QuantizationSpec | SharedQuantizationSpec | FixedQParamsQuantizationSpec


def spec_to_text(spec: QuantizationSpec | FixedQParamsQuantizationSpec, **extra: Any) -> str:
    """Return the JSON that an observer carries in the graph."""
    fields = asdict(spec)
    if isinstance(spec, QuantizationSpec):
        fields["observer"] = {"kind": type(spec.observer).__name__, **asdict(spec.observer)}
    return json.dumps({**fields, **extra}, sort_keys=True)


def spec_from_text(
    text: str,
) -> tuple[QuantizationSpec | FixedQParamsQuantizationSpec, dict[str, Any]]:
    """Read what `spec_to_text` wrote: the specification and the extra fields."""
    fields = json.loads(text)
    kind = FixedQParamsQuantizationSpec if "scale" in fields else QuantizationSpec
    known = {name: fields.pop(name) for name in kind.__dataclass_fields__ if name in fields}
    if "observer" in known:
        known["observer"] = observer_from_dict(known["observer"])
    return kind(**known), fields
