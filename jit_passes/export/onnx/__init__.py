"""Files of ONNX."""

from __future__ import annotations

from .file import export_onnx

__all__ = ["export_onnx"]
