"""Reports on quantized models."""

from .coverage import Coverage, coverage
from .inspection import Inspection, OperatorInspection, inspect

__all__ = ["Coverage", "Inspection", "OperatorInspection", "coverage", "inspect"]
