"""Quantizers decide what is quantized and how."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ..errors import JitPassesError
from ..graph.editor import GraphEditor
from ..graph.view import GraphView
from ..specification.annotation import Annotations


class Quantizer(ABC):
    """Base of all quantizers.

    `prepare` normalizes the graph, then calls `transform_for_annotation`, `annotate` and
    `validate`, in this order.

    Attributes:
        target: the backend that it is made for, a name or a `Target`, for callers with "auto"; None
            for any.
    """

    target: Any = None

    def transform_for_annotation(self, graph: GraphEditor) -> None:  # noqa: B027 - optional
        """Change the normalized graph before it is annotated; nothing, unless overridden."""

    @abstractmethod
    def annotate(self, graph: GraphView) -> Annotations:
        """Say for each operator of the normalized graph whether and how it is quantized."""

    def validate(self, annotations: Annotations) -> None:  # noqa: B027 - optional
        """Raise JitPassesError for annotations that the backend cannot do; see `annotate`."""


def annotations_of(quantizer: Quantizer, graph: GraphView) -> Annotations:
    """Return a quantizer's annotations of a graph.

    Raises:
        JitPassesError: its `annotate` returns something else.
    """
    found: Any = quantizer.annotate(graph)
    if isinstance(found, Annotations):
        return found
    raise JitPassesError(
        f"{type(quantizer).__name__}.annotate returned {type(found).__name__}: return the "
        "Annotations"
    )
