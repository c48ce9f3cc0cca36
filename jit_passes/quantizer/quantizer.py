"""Quantizers decide what is quantized and how."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..graph import GraphView
from .annotation import Annotations


class Quantizer(ABC):
    """Base of all quantizers."""

    @abstractmethod
    def annotate(self, graph: GraphView) -> Annotations:
        """Say for each value and use of the normalized graph whether and how it is quantized."""
