"""What a backend is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from ..passes import PassRecord
from ..quantizer import BackendQuantizer, OperatorSupport


class Target(ABC):
    """A backend: what it can compute on integers, and how the reference model becomes its own.

    Attributes:
        name: how users ask for it.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def support(self) -> Mapping[str, OperatorSupport]:
        """The support table, by operator kind."""

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The arguments that make an equal target: kept with a prepared model."""

    @abstractmethod
    def quantizer(self) -> BackendQuantizer:
        """Return the quantizer that is used when the caller gives none."""

    @abstractmethod
    def lower(self, module: Any, method: str) -> tuple[Any, dict[str, str], list[PassRecord]]:
        """Lower a reference model, a C++ module that no one else holds.

        Returns:
            The lowered module; by name of each operator that it left in float, why, which the
            report says of those that were to be int8; what the passes did.
        """
