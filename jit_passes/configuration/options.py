"""Options of one tensor, and of the tensors of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch

from ..errors import JitPassesError, not_among
from ..observers import Fixed, Observer
from ..specification.grid import DTYPES
from ..specification.specification import (
    ROUNDINGS,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
)
from .checks import OptionError, finite, whole

FLOAT = "float"
OPTION_DTYPES = (*DTYPES, FLOAT)
AUTO = "auto"
MODES = (AUTO, "static", "dynamic", "weight_only")
OPTION_SCHEMES = ("affine", "symmetric", "symmetric_with_uint8", "power_of_two")

# Options that say the same thing in another way: a later one replaces the earlier ones.
_REPLACES: dict[str, tuple[str, ...]] = {
    "dtype": ("signed",),
    "signed": ("dtype",),
    "scale": (
        *("range", "calibration", "scheme", "channelwise"),
        *("group_size", "tokenwise", "rounding"),
    ),
    "range": ("scale", "zero_point", "calibration"),
    "calibration": ("scale", "zero_point", "range"),
    "scheme": ("scale", "zero_point"),
    "channelwise": ("scale", "zero_point", "group_size"),
    "group_size": ("scale", "zero_point", "channelwise"),
    "tokenwise": ("scale", "zero_point"),
    "rounding": ("scale", "zero_point"),
}


@dataclass(frozen=True)
class TensorOptions:
    """How one tensor is quantized, where that differs from its backend's default.

    None leaves an option as it is.

    Attributes:
        bits: bits of a code, 2 to 16.
        dtype: the integer type that stores codes, "int8", "uint8", "int16" or "int32"; codes of
            int types are signed. "float" leaves the tensor as it is.
        scheme: "affine", "symmetric", "symmetric_with_uint8" or "power_of_two"; see
            `QuantizationSpec`.
        channelwise: whether each channel has a scale of its own.
        group_size: how many neighbouring inputs of a channel share a scale: see `QuantizationSpec`.
        tokenwise: whether each token, all but the last axis, has a scale of its own; for what is
            quantized dynamically.
        calibration: the observer that finds the range.
        scale: a scale known beforehand: goes with bits, dtype, signed and zero_point only.
        zero_point: the code that means 0, for a fixed scale; then 0 unless given.
        range: (low, high) known beforehand, in place of a calibration.
        signed: whether codes are signed, in place of a dtype.
        narrow_range: whether the smallest of the signed codes is left out: [-7, 7] with 4 bits,
            else [-8, 7].
        rounding: "half_even", "half_away", "half_up", "floor", "ceil" or "toward_zero".
        where: where options were written, by name, for messages.

    Raises:
        JitPassesError: an option is none of these, or two of them contradict each other.
    """

    bits: int | None = None
    dtype: str | None = None
    scheme: str | None = None
    channelwise: bool | None = None
    group_size: int | None = None
    tokenwise: bool | None = None
    calibration: Observer | None = None
    scale: float | None = None
    zero_point: int | None = None
    range: tuple[float, float] | None = None
    signed: bool | None = None
    narrow_range: bool | None = None
    rounding: str | None = None
    where: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check_words()
        self._check_numbers()
        self._check_together()

    def _check_words(self) -> None:
        allowed = {"dtype": OPTION_DTYPES, "scheme": OPTION_SCHEMES, "rounding": ROUNDINGS}
        for name, words in allowed.items():
            word = getattr(self, name)
            if word is not None and word not in words:
                raise OptionError(name, not_among(name, word, words))
        for name in ("channelwise", "tokenwise", "signed", "narrow_range"):
            if not isinstance(getattr(self, name), bool | None):
                raise OptionError(name, f"{name} is True or False, not {getattr(self, name)!r}")
        if not isinstance(self.calibration, Observer | None):
            raise OptionError(
                "calibration",
                f"calibration is an observer, not {self.calibration!r}: give one of "
                "jit_passes.observers, or observer_of with a method's name",
            )

    def _check_numbers(self) -> None:
        if self.bits is not None:
            self._set("bits", whole("bits", self.bits, 2, 16))
        if self.group_size is not None:
            self._set("group_size", whole("group_size", self.group_size, 1, 2**31))
        if self.scale is not None:
            self._set("scale", finite("scale", self.scale))
            if self.scale <= 0:
                raise OptionError("scale", f"scale is above 0, not {self.scale}")
        if self.zero_point is not None:
            self._set("zero_point", whole("zero_point", self.zero_point))
        if self.range is not None:
            two = isinstance(self.range, tuple | list) and len(self.range) == 2
            ends = tuple(finite("range", end) for end in self.range) if two else ()
            if list(ends) != sorted(ends) or not two:
                wanted = "two numbers, [low, high] with low <= high"
                raise OptionError("range", f"range is {wanted}, not {self.range!r}")
            self._set("range", ends)

    def _check_together(self) -> None:
        if self.dtype == FLOAT and len(given := self.given()) > 1:
            other = next(name for name in given if name != "dtype")
            why = f"dtype float leaves the tensor as it is, so {other} has no meaning: drop one"
            raise OptionError(other, why)
        if self.bits is not None and self.dtype is not None and self.bits > _width(self.dtype):
            why = f"bits is {self.bits}, and {self.dtype} has {_width(self.dtype)}"
            raise OptionError("bits", why)
        for option in ("scale", "range", "signed"):
            for other in _REPLACES[option]:
                if getattr(self, option) is not None and getattr(self, other) is not None:
                    name = option if option == "signed" else f"a fixed {option}"
                    why = f"{name} and {other} exclude each other: drop one of them"
                    raise OptionError(other, why)
        if self.group_size is not None and self.channelwise is False:
            why = "group_size cuts channels, which channelwise: false leaves out: drop one of them"
            raise OptionError("group_size", why)
        if self.zero_point is not None and self.scale is None:
            raise OptionError("zero_point", "zero_point belongs to a fixed scale: give a scale too")
        if self.scale is not None and self.zero_point is None:
            self._set("zero_point", 0)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def given(self) -> dict[str, Any]:
        """Return the options that are not None, by name."""
        return dict(self._given)

    @cached_property
    def _given(self) -> dict[str, Any]:
        named = ((name, getattr(self, name)) for name in _NAMES)
        return {name: value for name, value in named if value is not None}

    def __bool__(self) -> bool:
        """Whether any option is given."""
        return bool(self._given)

    def updated(self, later: TensorOptions) -> TensorOptions:
        """Return both together; where both say an option, the later one holds.

        A range, a fixed scale and a calibration replace each other. A fixed scale replaces scheme,
        channelwise, group_size, tokenwise and rounding, and each of these replaces it. dtype and
        signed replace each other, and so do channelwise and group_size. dtype "float" replaces
        everything, and anything replaces it. An earlier int8 becomes int16 if later bits need that;
        other dtypes too small for them go. Earlier bits too many for a later dtype go.
        """
        if not later:
            return self
        if FLOAT in (self.dtype, later.dtype):
            return later
        new, kept = later.given(), self.given()
        for name in new:
            for replaced in _REPLACES.get(name, ()):
                kept.pop(replaced, None)
        both = {**kept, **new}
        if "bits" in both and "dtype" in both and both["bits"] > _width(both["dtype"]):
            if "dtype" in new:
                del both["bits"]
            elif both["dtype"] == "int8":
                both["dtype"] = "int16"
            else:
                del both["dtype"]
        return TensorOptions(**both, where={**self.where, **later.where})

    def apply(
        self, spec: QuantizationSpec, ch_axis: int | None = None, where: str = ""
    ) -> QuantizationSpec | FixedQParamsQuantizationSpec | None:
        """Return the specification with these options; None for a tensor that stays float.

        [quant_min, quant_max] stay unless bits, sign or narrow_range change. Then they are all
        codes of so many bits. The smallest one is left out if narrow_range says so, or by default
        if the specification's own codes are [-q, q]. A dtype of another size has all its bits,
        unless bits says otherwise.

        Args:
            spec: the backend's default.
            ch_axis: the axis of the tensor's channels, for channelwise on a per-tensor
                specification; None if it has none.
            where: the beginning of messages: the configuration's line, the operator.

        Raises:
            JitPassesError: these options do not go with the specification.
        """
        if self.dtype == FLOAT:
            return None
        if not self:
            return spec
        try:
            return self._apply(spec, ch_axis)
        except ValueError as error:
            line = self.where.get(getattr(error, "option", ""), "")
            place = "".join(f"{part}: " for part in (line, where) if part)
            base = f"{spec.dtype} [{spec.quant_min}, {spec.quant_max}] {spec.qscheme}"
            raise JitPassesError(f"{place}{error}; without these options it is {base}") from error

    def _apply(
        self, spec: QuantizationSpec, ch_axis: int | None
    ) -> QuantizationSpec | FixedQParamsQuantizationSpec:
        dtype, quant_min, quant_max = self._codes(spec)
        if spec.is_dynamic:
            qscheme, form = self._dynamic(spec)
            return replace(
                spec,
                dtype=dtype,
                quant_min=quant_min,
                quant_max=quant_max,
                qscheme=qscheme,
                range_form=form,
            )
        if self.tokenwise:
            raise OptionError("tokenwise", "tokenwise is for inputs in the mode dynamic")
        if self.scale is not None:
            assert self.zero_point is not None
            if not quant_min <= self.zero_point <= quant_max:
                codes = f"one of the codes {quant_min} to {quant_max}, not {self.zero_point}"
                raise OptionError("zero_point", f"zero_point is {codes}")
            return FixedQParamsQuantizationSpec(
                self.scale, self.zero_point, dtype, quant_min, quant_max, rounding=spec.rounding
            )
        scheme = self.scheme or spec.qscheme.split("_", 2)[2]  # per_tensor_, per_channel_
        axis, group_size = spec.ch_axis, self.group_size
        if self.channelwise is None and group_size is None:
            group_size = spec.group_size
        else:
            axis = None if self.channelwise is False else ch_axis if axis is None else axis
            if self.channelwise is not False and axis is None:
                name = "group_size" if self.channelwise is None else "channelwise"
                raise OptionError(name, f"{name} needs a tensor with channels")
        if axis is not None and self.calibration is not None and not has_channels(self.calibration):
            raise OptionError(
                "calibration",
                f"{type(self.calibration).__name__} finds one range for a whole tensor: set "
                "channelwise to false, or calibrate with mean_squared_error or min_max",
            )
        observer = spec.observer if self.calibration is None else self.calibration
        return replace(
            spec,
            dtype=dtype,
            quant_min=quant_min,
            quant_max=quant_max,
            qscheme=f"per_{'tensor' if axis is None else 'channel'}_{scheme}",
            ch_axis=axis,
            observer=observer if self.range is None else Fixed(*self.range),
            rounding=self.rounding or spec.rounding,
            group_size=group_size,
        )

    def _dynamic(self, spec: QuantizationSpec) -> tuple[str, str]:
        """Return scheme and range form of parameters that the value itself decides.

        Ranges and roundings are for calibrated ones: options of all operators may say them.
        """
        if self.channelwise:
            raise OptionError("channelwise", "channelwise is not for inputs in the mode dynamic")
        _, granularity, scheme = spec.qscheme.split("_", 2)
        if self.tokenwise is not None:
            granularity = "token" if self.tokenwise else "tensor"
        scheme = self.scheme or scheme
        form = spec.range_form if scheme == "affine" else "pytorch"
        return f"per_{granularity}_{scheme}", form

    def _codes(self, spec: QuantizationSpec) -> tuple[str, int, int]:
        """Return dtype, quant_min and quant_max."""
        was_signed = spec.quant_min < 0
        signed = was_signed if self.dtype is None else self.dtype != "uint8"
        signed = signed if self.signed is None else self.signed
        had = (spec.quant_max - spec.quant_min).bit_length()
        bits = self.bits
        if bits is None:
            same_size = self.dtype is None or _width(self.dtype) == _width(spec.dtype)
            bits = had if same_size else _width(self.dtype or spec.dtype)
        if self.narrow_range and not signed:
            why = "narrow_range leaves out the smallest signed code, and these codes are unsigned"
            raise OptionError("narrow_range", why)
        narrow = signed and spec.quant_min == -spec.quant_max
        same = signed == was_signed and bits == had
        if same and self.narrow_range in (None, narrow):
            return self.dtype or spec.dtype, spec.quant_min, spec.quant_max
        narrow = narrow if self.narrow_range is None else self.narrow_range
        low = -(2 ** (bits - 1)) if signed else 0
        dtype = self.dtype or QuantizationSpec.of_bits(bits, signed).dtype
        return dtype, low + narrow, low + 2**bits - 1


_NAMES = tuple(option.name for option in fields(TensorOptions) if option.compare)
NOTHING = TensorOptions()


@dataclass(frozen=True)
class LayerOptions:
    """How the tensors of one operator are quantized.

    Attributes:
        input: its activations.
        weight: its weight.
        output: its result.
        bias: its bias.
        keep_float: whether it stays in float; None leaves that to others.
        mode: "static", its input has parameters from calibration; "dynamic", parameters from the
            input itself each time the model runs, and its result and bias stay in float;
            "weight_only", all but its weight stays in float; "auto", whichever of these suits it:
            see `jit_passes.quantize_script`. For operators with weights: operators between them
            follow. None leaves that to others; if nothing says a mode, it is static.

    Raises:
        JitPassesError: an option is none of these.
    """

    input: TensorOptions = field(default_factory=TensorOptions)
    weight: TensorOptions = field(default_factory=TensorOptions)
    output: TensorOptions = field(default_factory=TensorOptions)
    bias: TensorOptions = field(default_factory=TensorOptions)
    keep_float: bool | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        for name in TENSORS:
            if not isinstance(getattr(self, name), TensorOptions):
                raise OptionError(name, f"{name} is TensorOptions, not {getattr(self, name)!r}")
        if not isinstance(self.keep_float, bool | None):
            raise OptionError("keep_float", f"keep_float is True or False, not {self.keep_float!r}")
        if self.mode is not None and self.mode not in MODES:
            raise OptionError("mode", not_among("mode", self.mode, MODES))

    @cached_property
    def alone(self) -> LayerOptions:
        """These options with input and result in float."""
        return replace(self, input=TensorOptions(dtype=FLOAT), output=TensorOptions(dtype=FLOAT))

    def check_mode(self) -> None:
        """Refuse an option that has no meaning in the mode, where both are given together.

        Raises:
            OptionError: they do not go together.
        """
        for name in ("calibration", "range", "scale", "rounding"):
            if self.mode == "dynamic" and getattr(self.input, name) is not None:
                why = f"mode dynamic takes the range that the input has, so {name} has no meaning"
                raise OptionError("mode", f"{why}: drop one of them")
        for name in TENSORS:
            options = getattr(self, name)
            floats = name == "weight" or options.dtype == FLOAT
            if self.mode == "weight_only" and options and not floats:
                why = (
                    f"mode weight_only leaves all but the weight in float, so {name} has no meaning"
                )
                raise OptionError("mode", f"{why}: drop it, or say mode dynamic or static")

    def updated(self, later: LayerOptions) -> LayerOptions:
        """Return both together, tensor by tensor; see `TensorOptions.updated`."""
        mode = self.mode if later.mode is None else later.mode
        keep_float = self.keep_float if later.keep_float is None else later.keep_float
        tensors = {name: getattr(self, name).updated(getattr(later, name)) for name in TENSORS}
        return LayerOptions(**tensors, keep_float=keep_float, mode=mode)


def has_channels(observer: Observer) -> bool:
    """Say whether an observer's method works channel by channel."""
    kind = type(observer)
    by_histogram = kind.find_range is not Observer.find_range
    return not by_histogram or kind.find_channel_ranges is not Observer.find_channel_ranges


TENSORS = ("input", "weight", "output", "bias")


def _width(dtype: str) -> int:
    return torch.iinfo(DTYPES[dtype]).bits
