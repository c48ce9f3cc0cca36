"""A page about the effects of quantization on a model."""

from .write import page, report

__all__ = ["page", "report"]
