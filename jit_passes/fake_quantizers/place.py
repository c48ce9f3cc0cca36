"""Where a value is fake-quantized while a model trains, and by which operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import JitPassesError
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
)


@dataclass(frozen=True)
class Place:
    """A value, and what is known of it before training.

    Attributes:
        name: what messages and files call it.
        slot: what it is to its operator: "weight", "input", "output", "bias", ...; the names of its
            parameters and buffers start with it.
        spec: how it is quantized.
        text: the specification as the operator carries it: see `spec_to_text`.
        channels: how many have parameters of their own; 0 per tensor.
        weight: for weights and biases, their numbers as integers will see them: times the factor of
            the batch norm behind. None for activations.
        fold: index of that batch norm's node; None without one.
        fold_axis: the axis of the weight along which that factor lies.
        signed: whether it can hold numbers below 0.
        observed: whether its numbers count when parameters begin, or ranges follow.
        later: whether it trains in float and is quantized on conversion: a bias that folding a
            batch norm will change.
    """

    name: str
    slot: str
    spec: ResolvedSpec
    text: str
    channels: int = 0
    weight: torch.Tensor | None = None
    fold: int | None = None
    fold_axis: int = 0
    signed: bool = True
    observed: bool = True
    later: bool = False

    @property
    def is_parameter(self) -> bool:
        """Whether it is a weight or bias, the model's own or computed from such."""
        return self.slot in ("weight", "bias")


@dataclass(frozen=True)
class State:
    """A tensor that the model keeps for a place.

    Attributes:
        name: of the attribute, in the module that the place belongs to.
        initial: its first value.
        trained: whether it is a parameter, or a buffer.
    """

    name: str
    initial: torch.Tensor
    trained: bool


# ("constant", value), ("state", its number in `Operator.states`), ("observe", always), ...: see the
# pass insert_fake_quantize.
Operand = tuple[str, Any]


@dataclass(frozen=True)
class Operator:
    """What is inserted at a place.

    Attributes:
        kind: name of the operator, in the namespace jit_passes.
        operands: those behind the value.
        states: what it keeps.
        scale: (rule, smallest code, largest code) by which its scale follows from the first of
            these: "scale", "log2_threshold", or the scheme of a range.
    """

    kind: str
    operands: tuple[Operand, ...]
    states: tuple[State, ...] = ()
    scale: tuple[str, int, int] | None = None


def constants(*values: Any) -> tuple[Operand, ...]:
    """Return operands that are these values."""
    return tuple(("constant", value) for value in values)


def fold_operands(place: Place) -> tuple[Operand, ...]:
    """Return the operands `fold` and `fold_axis`."""
    fold = ("constant", None) if place.fold is None else ("fold", place.fold)
    return fold, ("constant", place.fold_axis)


def observe_operand(place: Place, always: bool = False) -> Operand:
    """Return the operand `observe`: in training while its switch is on, or always, or never."""
    return ("observe", always) if place.observed else ("constant", False)


def group_operand(place: Place) -> Operand:
    """Return the operand `group`: none for weights, which are the same on all ranks."""
    return ("constant", "") if place.is_parameter else ("group", None)


def zero_point(spec: QuantizationSpec, signed: bool) -> int:
    """Return the code that means 0 where the scale alone is trained.

    power_of_two: 0; symmetric: the middle of the range; else the middle for signed values and
    quant_min for others.
    """
    if spec.power_of_two:
        return 0
    if spec.symmetric or signed:
        return (spec.quant_min + spec.quant_max + 1) // 2
    return spec.quant_min


def trained_grid(place: Place) -> tuple[int, int]:
    """Return the smallest and largest code, counted from the one that means 0.

    Raises:
        JitPassesError: the specification rounds otherwise than halves to even.
    """
    spec = place.spec
    assert isinstance(spec, QuantizationSpec)
    if spec.rounding != "half_even":
        raise JitPassesError(
            f"'{place.name}' is to be rounded {spec.rounding}: trained scales round halves to "
            "even; use the method 'moving_average'"
        )
    zero = zero_point(spec, place.signed)
    return spec.quant_min - zero, spec.quant_max - zero


def fixed_or_derived(place: Place) -> Operator | None:
    """Return the operator of a place that no method has a say in; None for others."""
    if isinstance(place.spec, GroupDerivation) or place.later:
        return Operator("derive_quantization", constants(place.name, place.text))
    if isinstance(place.spec, FixedQParamsQuantizationSpec):
        spec = place.spec
        grid = constants(spec.quant_min, spec.quant_max, place.name, place.text)
        fixed = constants(float(spec.scale), spec.zero_point)
        return Operator("train_fixed", (*fixed, ("enabled", None), *grid))
    return None


def unset(place: Place) -> torch.Tensor:
    """Return what a parameter holds that the first batch will set."""
    return torch.full((max(place.channels, 1),), float("inf"))


def by_channel(values: torch.Tensor, place: Place) -> torch.Tensor:
    """Return the numbers that share a parameter, row by row, as float64."""
    assert isinstance(place.spec, QuantizationSpec)
    if place.spec.ch_axis is None:
        return values.double().reshape(1, -1)
    return values.double().movedim(place.spec.ch_axis, 0).flatten(1)
