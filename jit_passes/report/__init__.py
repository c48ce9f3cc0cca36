"""Reports on quantized models."""

from .compare import Comparison, ValueComparison, compare
from .conformance import (
    Conformance,
    Divergence,
    EngineValue,
    FileCheck,
    ResultDifference,
    check_onnx,
    conformance,
)
from .coverage import Coverage, coverage
from .exactness import Doubt, Exactness, exactness
from .inspection import Inspection, OperatorInspection, inspect
from .page import report
from .parity import Parity, ValueParity, parity
from .provenance import Description, provenance
from .versions import show_versions

__all__ = [
    "Comparison",
    "Conformance",
    "Coverage",
    "Description",
    "Divergence",
    "Doubt",
    "EngineValue",
    "Exactness",
    "FileCheck",
    "Inspection",
    "OperatorInspection",
    "Parity",
    "ResultDifference",
    "ValueComparison",
    "ValueParity",
    "check_onnx",
    "compare",
    "conformance",
    "coverage",
    "exactness",
    "inspect",
    "parity",
    "provenance",
    "report",
    "show_versions",
]
