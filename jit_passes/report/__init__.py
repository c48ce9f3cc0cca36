"""Reports on quantized models."""

from .coverage import Coverage, coverage

__all__ = ["Coverage", "coverage"]
