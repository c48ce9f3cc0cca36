"""A page that shows what quantization did to a model."""

from .write import page, report

__all__ = ["page", "report"]
