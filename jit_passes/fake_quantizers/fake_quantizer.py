"""The base of all methods of training a quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..registered import Registered
from ..specification.parameters import QParams
from ..specification.specification import QuantizationSpec
from .place import Operator, TrainingPlace, fixed_or_derived


@dataclass(frozen=True)
class FakeQuantizer(Registered, noun="training method"):
    """Base of all methods. Subclasses are frozen dataclasses whose fields are their options.

    Defining one registers it, under its `name`: see `Registered`.
    """

    def at(self, place: TrainingPlace) -> Operator:
        """Return the operator that is inserted at a place; the place then belongs to this method.

        A method that leaves a place to another method calls the other's `at`: `LSQ().at(place)`.

        Raises:
            JitPassesError: the method cannot follow the place's specification.
        """
        operator = fixed_or_derived(place) or self.operator(place)
        return operator if operator.method else replace(operator, method=self.record())

    def operator(self, place: TrainingPlace) -> Operator:
        """Return the operator for a place with a `QuantizationSpec`."""
        raise NotImplementedError

    def qparams(
        self, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return the parameters that training came to; None where no batch came by.

        Args:
            kind: the operator, in the namespace jit_passes.
            operands: by their names in its schema: numbers, texts, and tensors of parameters,
                buffers and weights.
            spec: the specification of the value.
        """
        raise NotImplementedError
