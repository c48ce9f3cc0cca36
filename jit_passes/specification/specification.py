"""How a value is to be quantized."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, replace
from typing import Any

import torch

from ..errors import ArgumentError, not_among
from ..graph.view import NodeView, ValueView
from ..observers import Histogram, MinMax, Observer
from .derivation import Derivation
from .grid import settle

DEFAULT_OBSERVER = Histogram()
RANGE_FORMS = ("pytorch", "glow", "fbgemm")
ROUNDINGS = ("half_even", "half_away", "half_up", "floor", "ceil", "toward_zero")
LARGEST_SPAN = 2**16 - 1  # of a calibrated range, in steps: 16 bits
_OF_DTYPE: Any = None  # as default: all that the dtype holds

# A value at all its uses (a node stands for its only result), or at one of its users.
ValueOrNode = ValueView | NodeView
EdgeOrNode = ValueOrNode | tuple[ValueOrNode, NodeView]


@dataclass(frozen=True)
class QuantizationSpec:
    """Quantization of one value with parameters found by calibration, or each time the model runs.

    q = clamp(round(x / scale) + zero_point, quant_min, quant_max)

    Attributes:
        dtype: integer type that stores q: uint8, int8, int16 or int32, by name or as torch.dtype.
        quant_min: smallest q; None for the dtype's.
        quant_max: largest q; None for the dtype's.
        qscheme: per_tensor_ (one scale) or per_channel_ (one for each index along ch_axis), then
            affine; symmetric (zero_point in the middle of the range); symmetric_with_uint8 (affine
            where nothing is below 0, otherwise symmetric); or power_of_two (zero_point 0, the
            smallest power of two as scale without clipping). With is_dynamic: per_tensor_ or
            per_token_ (one scale for all but the last axis), then affine or symmetric.
        ch_axis: the channel axis, for per-channel schemes only; from the end if below 0.
        group_size: of a weight, how many neighbours along its input axis share a scale within a
            channel; None for all of them. The input axis is the other of the first two: a weight
            `[out, in]` with ch_axis 0 has scales `[out, in / group_size]`.
        observer: watches the value during calibration; a histogram, or per channel the smallest and
            the largest number, unless given.
        rounding: half_even; half_away (from zero); half_up; floor; ceil; toward_zero. Most kernels
            round halves to even; all other roundings are for targets that have them.
        range_form: whose formulas take a range to scale and zero point: pytorch (see
            `affine_qparams`) or glow (see `glow_qparams`). Both forms differ in how symmetric and
            power_of_two treat the one code more below 0 than above, and in the scale of zeros.
            With is_dynamic: pytorch, or fbgemm (affine only). The form fbgemm gives, to the bit,
                the parameters of PyTorch's dynamic kernels, whose scale is 6.1e-5 at least.
        is_dynamic: whether parameters come from the value itself, each time the model runs, as
            `jit_passes::choose_qparams` finds them. No data is needed then, and no observer.
        observer_or_fake_quant_ctr: the name of `observer` in PyTorch's specification; an observer
            or its class. For construction only.

    Raises:
        JitPassesError: the range does not fit the dtype or has more than 16 bits; qscheme, rounding
            or range_form is unknown; ch_axis, qscheme, group_size and rounding do not go together;
            or is_dynamic does not go with the rest.
    """

    dtype: str = "uint8"
    quant_min: int = _OF_DTYPE
    quant_max: int = _OF_DTYPE
    qscheme: str = "per_tensor_affine"
    ch_axis: int | None = None
    observer: Observer = DEFAULT_OBSERVER
    rounding: str = "half_even"
    range_form: str = "pytorch"
    group_size: int | None = None
    is_dynamic: bool = False
    observer_or_fake_quant_ctr: InitVar[Observer | type[Observer] | None] = None

    @classmethod
    def of_bits(
        cls, bits: int, signed: bool = True, qscheme: str = "per_tensor_affine", **options: Any
    ) -> QuantizationSpec:
        """Return a specification with all codes of so many bits, in the smallest dtype.

        [quant_min, quant_max] = [-2**(bits - 1), 2**(bits - 1) - 1], or [0, 2**bits - 1] unsigned.

        Args:
            bits: from 2 to 16.
            signed: whether codes are signed. Unsigned ones of more than 8 bits are int32.
            qscheme: as in the class.
            options: the class's other attributes.

        Raises:
            JitPassesError: bits is out of range; or an error of the class.
        """
        if not isinstance(bits, int) or not 2 <= bits <= 16:
            raise ArgumentError(f"bits is a whole number from 2 to 16, not {bits!r}")
        low = -(2 ** (bits - 1)) if signed else 0
        narrow = bits <= 8
        dtype = ("int8" if narrow else "int16") if signed else ("uint8" if narrow else "int32")
        return cls(dtype, low, low + 2**bits - 1, qscheme, **options)

    def __post_init__(self, constructor: Observer | type[Observer] | None) -> None:
        settle(self, self.ch_axis)
        self._check_groups()
        low, high = self.quant_min, self.quant_max
        if isinstance(constructor, type):
            constructor = constructor()
        if constructor is not None:
            object.__setattr__(self, "observer", constructor)
        if self.ch_axis is not None and self.observer is DEFAULT_OBSERVER:
            object.__setattr__(self, "observer", MinMax())  # no search by default
        if not isinstance(self.observer, Observer):
            raise ArgumentError(
                f"observer is one of jit_passes.observers, not a {type(self.observer).__name__}"
            )
        if high - low > LARGEST_SPAN:
            raise ArgumentError(
                f"[quant_min, quant_max] = [{low}, {high}] has more than 2**16 codes: give a "
                "range of 16 bits or less"
            )
        if self.power_of_two and not low <= 0 < high:
            raise ArgumentError(
                f"[quant_min, quant_max] = [{low}, {high}] does not hold 0, the zero point of "
                f"{self.qscheme}, and a number above it"
            )
        for name, known in (("rounding", ROUNDINGS), ("range_form", RANGE_FORMS)):
            if (word := getattr(self, name)) not in known:
                raise ArgumentError(not_among(name, word, known))
        if self.range_form == "glow" and high - low < 2:
            raise ArgumentError("range_form glow needs a code on either side of 0")
        self._check_dynamic()

    def _check_dynamic(self) -> None:
        fbgemm = self.range_form == "fbgemm"
        if not self.is_dynamic:
            if fbgemm:
                raise ArgumentError(
                    "range_form fbgemm is of dynamic kernels: it needs is_dynamic=True"
                )
            return
        if self.range_form == "glow" or (fbgemm and self.symmetric):
            raise ArgumentError(
                f"range_form {self.range_form} does not go with is_dynamic {self.qscheme}"
            )
        if self.rounding != "half_even":
            raise ArgumentError(f"is_dynamic=True rounds half_even, not {self.rounding}")
        if self.observer == DEFAULT_OBSERVER:
            object.__setattr__(self, "observer", MinMax())
        if self.observer != MinMax():
            raise ArgumentError(
                f"is_dynamic=True takes the range that the value has, so the observer "
                f"{self.observer.name} has nothing to do: leave it out"
            )

    def _check_groups(self) -> None:
        size = self.group_size
        if size is None:
            return
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentError(f"group_size is a whole number above 0, not {size!r}")
        if self.ch_axis not in (0, 1):
            raise ArgumentError(f"group_size goes with ch_axis 0 or 1, not {self.ch_axis}")
        if self.rounding != "half_even":
            raise ArgumentError(f"group_size goes with rounding half_even, not {self.rounding}")

    @property
    def middle(self) -> int:
        """The code in the middle of the range, which is 0 for signed ones."""
        return (self.quant_min + self.quant_max + 1) // 2

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

    def without_sign(self) -> QuantizationSpec:
        """Return the specification with as many codes from 0 on, for values that are never below.

        If it is not signed, return the specification itself.
        """
        if self.quant_min >= 0:
            return self
        codes = self.quant_max - self.quant_min
        dtype = "uint8" if codes <= torch.iinfo(torch.uint8).max else "int32"
        return replace(self, dtype=dtype, quant_min=0, quant_max=codes)

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
        edge_or_node: the place: a value (or the node that makes it) that is quantized for all its
            users, or the pair of a value and one of its users.
        observed: whether the numbers of this value count too when parameters are chosen. False
            for results that lie within the shared range, as results of pools do.
    """

    edge_or_node: EdgeOrNode
    observed: bool = True


@dataclass(frozen=True)
class FixedQParamsQuantizationSpec:
    """Parameters known beforehand, for operators whose results have a known range.

    Attributes:
        scale: input units per step.
        zero_point: the q that means 0.
        dtype, quant_min, quant_max: as in `QuantizationSpec`.
        qscheme: "per_tensor_affine", or another per-tensor scheme, for readers of the model.
        rounding: as in `QuantizationSpec`.

    Raises:
        JitPassesError: the range does not fit the dtype, zero_point is outside of it, scale is not
            finite and above 0, the scheme is one per channel, or the rounding is unknown.
    """

    scale: float
    zero_point: int
    dtype: str = "uint8"
    quant_min: int = _OF_DTYPE
    quant_max: int = _OF_DTYPE
    qscheme: str = "per_tensor_affine"
    is_dynamic: bool = False
    rounding: str = "half_even"

    def __post_init__(self) -> None:
        _not_dynamic(self)
        settle(self, None)
        if self.rounding not in ROUNDINGS:
            raise ArgumentError(not_among("rounding", self.rounding, ROUNDINGS))
        low, high = self.quant_min, self.quant_max
        if not 0 < self.scale < float("inf"):
            raise ArgumentError(f"scale is finite and above 0, not {self.scale}")
        if not low <= self.zero_point <= high:
            raise ArgumentError(f"zero_point = {self.zero_point} is not within [{low}, {high}]")


@dataclass(frozen=True)
class DerivedQuantizationSpec:
    """Parameters computed from other values' parameters, as a bias's from input and weight.

    Attributes:
        derived_from: edges, values or nodes, as in `SharedQuantizationSpec`.
        derive_qparams_fn: takes their parameters, in that order, and returns (scale, zero_point):
            numbers, or tensors [channels] with ch_axis. A prepared model keeps the function's name;
            one that is loaded in another process needs the module that defines it imported, and
            the function marked with `derivation`.
        dtype, quant_min, quant_max, qscheme, ch_axis: as in `QuantizationSpec`.

    Raises:
        JitPassesError: the range does not fit the dtype, nothing is derived from, or ch_axis and
            qscheme do not go together.
    """

    derived_from: tuple[EdgeOrNode, ...]
    derive_qparams_fn: Derivation
    dtype: str = "int32"
    quant_min: int = _OF_DTYPE
    quant_max: int = _OF_DTYPE
    qscheme: str = "per_tensor_symmetric"
    ch_axis: int | None = None
    is_dynamic: bool = False

    def __post_init__(self) -> None:
        _not_dynamic(self)
        settle(self, self.ch_axis)
        object.__setattr__(self, "derived_from", tuple(self.derived_from))
        if not self.derived_from:
            raise ArgumentError("derived_from is empty: name the values to derive from")


def _not_dynamic(spec: Any) -> None:
    if spec.is_dynamic:
        raise ArgumentError(
            "is_dynamic=True is for a QuantizationSpec: parameters that are fixed or derived are "
            "known before the model runs"
        )


@dataclass(frozen=True)
class GroupDerivation:
    """A `DerivedQuantizationSpec` as a prepared model keeps it.

    Attributes:
        groups: numbers of the groups of values that parameters are derived from.
        function: name of the function: see `derivation`.
        ch_axis: the channel axis, if there is one.
    """

    groups: tuple[int, ...]
    function: str
    dtype: str
    quant_min: int
    quant_max: int
    qscheme: str
    ch_axis: int | None


AnySpec = (
    QuantizationSpec
    | SharedQuantizationSpec
    | FixedQParamsQuantizationSpec
    | DerivedQuantizationSpec
)
# The kinds that are left once sharing is resolved.
ResolvedSpec = QuantizationSpec | FixedQParamsQuantizationSpec | GroupDerivation
