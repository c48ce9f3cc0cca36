"""What a backend is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from ..passes.pipeline import PassRecord
from ..quantizers.backend import BackendQuantizer
from ..quantizers.support import OperatorSupport, Role
from ..specification.annotation import describe as brief

HEADER = ("operator", "how", "operands", "weights", "ranks", "absorbs")


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

    def __str__(self) -> str:
        """Return the support table, and the specifications that go with it."""
        quantizer = self.quantizer()
        lines = [
            f"target '{self.name}'",
            f"  activations  {quantizer.activations}; by default {brief(quantizer.activation)}",
            f"  weights      {quantizer.weights}",
        ]
        rows: list[tuple[str, ...]] = [HEADER]
        rows += [_columns(row) for _, row in sorted(self.support.items())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            cells = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

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


def _columns(row: OperatorSupport) -> tuple[str, ...]:
    weights = ""
    if row.role is Role.WEIGHTED:
        weights = "per channel" if row.per_channel else "per tensor"
    return (
        row.kind,
        row.role.name.lower(),
        ", ".join(map(str, row.operands)),
        weights,
        str(row.ranks[0]) if row.ranks[0] == row.ranks[1] else f"{row.ranks[0]} to {row.ranks[1]}",
        ", ".join(clip.removeprefix("aten::") for clip in row.clips),
    )
