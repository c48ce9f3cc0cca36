"""The cost of quantizing each layer, and a configuration that gives accuracy back."""

from .improve import Improved, ImprovedStep, improve
from .search import OBJECTIVES
from .sensitivity import LayerSensitivity, Sensitivity, sensitivity
from .tune import ALTERNATIVES, Tuned, TunedLayer, tune

__all__ = [
    "ALTERNATIVES",
    "OBJECTIVES",
    "Improved",
    "ImprovedStep",
    "LayerSensitivity",
    "Sensitivity",
    "Tuned",
    "TunedLayer",
    "improve",
    "sensitivity",
    "tune",
]
