"""What all ways of training a quantization have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..specification.qparams import QParams
from ..specification.specification import QuantizationSpec
from .place import Operator, Place, fixed_or_derived


@dataclass(frozen=True)
class FakeQuantizer:
    """Base of all methods. Subclasses are frozen dataclasses whose fields are their options.

    Attributes:
        kinds: the operators that it inserts, in the namespace jit_passes.
    """

    kinds: ClassVar[tuple[str, ...]] = ()

    def at(self, place: Place) -> Operator:
        """Return what is inserted at a place.

        Raises:
            JitPassesError: the method cannot do what the place's specification says.
        """
        return fixed_or_derived(place) or self.operator(place)

    def operator(self, place: Place) -> Operator:
        """Return what is inserted at a place with a `QuantizationSpec`."""
        raise NotImplementedError

    @classmethod
    def qparams(
        cls, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return the parameters that training came to; None where no batch came by.

        Args:
            kind: the operator.
            operands: by their names in its schema: numbers, texts, and tensors of parameters,
                buffers and weights.
            spec: the specification of the value.
        """
        raise NotImplementedError
