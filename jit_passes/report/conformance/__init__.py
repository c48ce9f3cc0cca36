"""One quantized model in several engines, code by code."""

from .result import Conformance, Divergence, EngineValue
from .run import conformance

__all__ = ["Conformance", "Divergence", "EngineValue", "conformance"]
