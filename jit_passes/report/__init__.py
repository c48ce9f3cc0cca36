"""Reports on quantized models."""

from .coverage import Coverage, coverage
from .inspection import Inspection, OperatorInspection, inspect
from .parity import Parity, ValueParity, parity
from .provenance import provenance

__all__ = [
    "Coverage",
    "Inspection",
    "OperatorInspection",
    "Parity",
    "ValueParity",
    "coverage",
    "inspect",
    "parity",
    "provenance",
]
