"""Saying how to quantize: specifications, annotations, quantizers."""

from .annotation import Annotations, EdgeAnnotation, OutputAnnotation
from .backend import WEIGHT, BackendQuantizer
from .fixed_ranges import FIXED_RANGES
from .qparams import QParams, choose_qparams
from .quantizer import Quantizer
from .slots import RECIPES, SLOTS, Slot, SlotQuantizer
from .specification import (
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    SharedQuantizationSpec,
    spec_from_text,
    spec_to_text,
)
from .support import OperatorSupport, Role

__all__ = [
    "FIXED_RANGES",
    "RECIPES",
    "SLOTS",
    "WEIGHT",
    "Annotations",
    "BackendQuantizer",
    "EdgeAnnotation",
    "FixedQParamsQuantizationSpec",
    "OperatorSupport",
    "OutputAnnotation",
    "QParams",
    "QuantizationSpec",
    "Quantizer",
    "Role",
    "SharedQuantizationSpec",
    "Slot",
    "SlotQuantizer",
    "choose_qparams",
    "spec_from_text",
    "spec_to_text",
]
