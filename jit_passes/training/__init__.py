"""Training models as they will be quantized."""
