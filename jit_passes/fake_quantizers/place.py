"""A place as a fake quantizer sees it, and the operator that it puts there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..specification.groups import rows_of
from ..specification.place import Place
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
)


@dataclass(frozen=True)
class TrainingPlace:
    """A place, and facts about its value from before training.

    Attributes:
        place: its record, which all stages share.
        weight: for weights and biases, their numbers as integers will see them: times the factor of
            the batch norm behind. None for activations.
        fold: index of that batch norm's node; None without one.
        fold_axis: the axis of the weight along which that factor lies.
        signed: whether it can hold numbers below 0.
        later: whether it trains in float and is quantized on conversion: a bias that folding a
            batch norm will change.
    """

    place: Place
    weight: torch.Tensor | None = None
    fold: int | None = None
    fold_axis: int = 0
    signed: bool = True
    later: bool = False

    @property
    def name(self) -> str:
        """Its name in messages and files."""
        return self.place.name

    @property
    def spec(self) -> ResolvedSpec:
        """How it is quantized."""
        return self.place.spec

    @property
    def is_parameter(self) -> bool:
        """Whether it is a weight or bias, the model's own or computed from the model's own."""
        return self.place.is_parameter


@dataclass(frozen=True)
class State:
    """A tensor that the model keeps for a place.

    Attributes:
        name: of the attribute, behind the place's slot, `weight_<name>`; in the module that the
            place belongs to.
        initial: its first value.
        trained: whether it is a parameter, or a buffer.
    """

    name: str
    initial: torch.Tensor
    trained: bool


# Operands that the model supplies while it runs: see cpp/quantization/insertion.h.
OBSERVE, ENABLED, CORRECTIONS, GROUP = ("observe",), ("enabled",), ("corrections",), ("group",)
_OF_SPEC = ("quant_min", "quant_max", "qscheme", "ch_axis", "rounding", "range_form")


@dataclass(frozen=True)
class Operator:
    """An operator to insert at a place.

    Attributes:
        kind: name of the operator, in the namespace jit_passes unless it says another. The last
            argument of its schema is `str spec`.
        operands: by the names of its arguments behind the value: constants, a `State` that the
            model keeps, or a constant such as `OBSERVE`. Operands in `common_operands` can be left
            out.
        scale: (rule, smallest code, largest code) by which its scale follows from the first of its
            states: "scale", "log2_threshold", or the scheme of a range.
        method: the record of the training method that it is of: see `FakeQuantizer.at`.
    """

    kind: str
    operands: Mapping[str, Any]
    scale: tuple[str, int, int] | None = None
    method: Mapping[str, Any] | None = None

    @property
    def states(self) -> list[State]:
        """The tensors that the model keeps for it."""
        return [what for what in self.operands.values() if isinstance(what, State)]


def common_operands(place: TrainingPlace) -> dict[str, Any]:
    """Return the operands that a place has with any method; an operator takes some by name.

    `observe` is on in training while its switch is, or never. Weights have no `group`: they are the
    same on all ranks.
    """
    return {
        **{name: getattr(place.spec, name, None) for name in _OF_SPEC},
        "fold": None if place.fold is None else ("fold", place.fold, place.fold_axis),
        "fold_axis": place.fold_axis,
        "observe": OBSERVE if place.place.observed else False,
        "enabled": ENABLED,
        "corrections": CORRECTIONS,
        "group": "" if place.is_parameter else GROUP,
        "name": place.name,
    }


def zero_point(spec: QuantizationSpec, signed: bool) -> int:
    """Return the code that means 0 where the scale alone is trained.

    power_of_two: 0; symmetric: the middle of the range; else the middle for signed values and
    quant_min for others.
    """
    if spec.power_of_two:
        return 0
    if spec.symmetric or signed:
        return spec.middle
    return spec.quant_min


def trained_grid(place: TrainingPlace) -> tuple[int, int]:
    """Return the smallest and largest code, counted from the code of 0."""
    spec = place.spec
    assert isinstance(spec, QuantizationSpec)
    zero = zero_point(spec, place.signed)
    return spec.quant_min - zero, spec.quant_max - zero


def fixed_or_derived(place: TrainingPlace) -> Operator | None:
    """Return the operator of a place that no method has a say in; None for others."""
    spec = place.spec
    if isinstance(spec, GroupDerivation) or place.later:
        return Operator("derive_quantization", {})
    if place.place.is_dynamic:
        return Operator("train_dynamic", {})
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return Operator("train_fixed", {"scale": float(spec.scale), "zero_point": spec.zero_point})
    return None


def unset(place: TrainingPlace) -> torch.Tensor:
    """Return the value of a parameter until the first batch sets it."""
    return torch.full(place.place.scales or (1,), float("inf"))


def by_channel(values: torch.Tensor, place: TrainingPlace) -> torch.Tensor:
    """Return the numbers that share a parameter, row by row, as float64."""
    assert isinstance(place.spec, QuantizationSpec)
    if place.spec.ch_axis is None:
        return values.double().reshape(1, -1)
    return rows_of(values.double(), place.spec.ch_axis)
