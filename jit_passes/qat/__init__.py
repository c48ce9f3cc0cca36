"""Training models as they will be quantized."""

from .freezing import ThresholdFreezer
from .optimizers import watch
from .parameters import (
    model_parameters,
    named_quantization_parameters,
    quantization_parameters,
)
from .prepare import prepare_qat
from .strip import strip
from .switches import (
    disable_fake_quantize,
    disable_observers,
    enable_fake_quantize,
    enable_observers,
    freeze_statistics,
    scale_corrections,
    unfreeze_statistics,
)

__all__ = [
    "ThresholdFreezer",
    "disable_fake_quantize",
    "disable_observers",
    "enable_fake_quantize",
    "enable_observers",
    "freeze_statistics",
    "model_parameters",
    "named_quantization_parameters",
    "prepare_qat",
    "quantization_parameters",
    "scale_corrections",
    "strip",
    "unfreeze_statistics",
    "watch",
]
