"""Training quantized models: what stands around the optimizer."""

from .freezing import ThresholdFreezer
from .optimizers import watch

__all__ = ["ThresholdFreezer", "watch"]
