"""Groups of operators that several rooms speak of, by qualified name."""

from __future__ import annotations

from .traits import kinds

# Layers whose weight has its outputs first: linear, and convolutions that are not transposed.
LAYERS = kinds(lambda traits: traits.weighted and not traits.weighted.transposed)
CONVOLUTIONS = tuple(kind for kind in LAYERS if kind != "aten::linear")
SUMS = ("aten::add", "aten::sub")
PRODUCTS = ("aten::matmul", "aten::bmm")  # of two matrices, in canonical form
SOFTMAX = ("aten::softmax", "aten::_safe_softmax")
ROW_NORMS = ("aten::layer_norm", "aten::rms_norm")
