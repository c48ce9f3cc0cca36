"""A training method of somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jit_passes.fake_quantizers import LSQ, FakeQuantizer, Operator, State, TrainingPlace
from jit_passes.quantizer import QParams, QuantizationSpec


@dataclass(frozen=True)
class CoarseSteps(FakeQuantizer):
    """The steps of LSQ, which begin a factor wider for weights.

    Attributes:
        factor: at least 1.
    """

    name: ClassVar[str] = "coarse_steps"
    aliases: ClassVar[tuple[str, ...]] = ("coarse",)
    factor: float = 2.0

    def operator(self, place: TrainingPlace) -> Operator:
        """Return that of LSQ with another first value."""
        found = LSQ().operator(place)
        if not place.is_parameter:
            return found
        operands = {
            name: replace(what, initial=what.initial * self.factor)
            if isinstance(what, State)
            else what
            for name, what in found.operands.items()
        }
        return replace(found, operands=operands)

    def qparams(
        self, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return what LSQ does."""
        return LSQ().qparams(kind, operands, spec)


@dataclass(frozen=True)
class Twice(LSQ):
    """LSQ whose models are converted with twice the scale of weights: a wrong one, to be seen."""

    name: ClassVar[str] = "twice"

    def qparams(
        self, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return twice what LSQ does."""
        found = super().qparams(kind, operands, spec)
        return None if found is None else replace(found, scale=2 * found.scale)
