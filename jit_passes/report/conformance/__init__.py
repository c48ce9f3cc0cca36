"""One quantized model in several engines, code by code."""

from .check import FileCheck, check_onnx
from .result import Conformance, Divergence, EngineValue
from .run import conformance

__all__ = ["Conformance", "Divergence", "EngineValue", "FileCheck", "check_onnx", "conformance"]
