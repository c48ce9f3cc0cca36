"""A quantized model in several engines, code by code."""

from .check import FileCheck, check_onnx
from .float_results import ResultDifference
from .result import Conformance, Divergence, EngineValue
from .run import conformance

__all__ = [
    "Conformance",
    "Divergence",
    "EngineValue",
    "FileCheck",
    "ResultDifference",
    "check_onnx",
    "conformance",
]
