"""Saying how to quantize: specifications, annotations, quantizers."""

from .annotation import Annotations, QuantizationAnnotation
from .backend import WEIGHT, BackendQuantizer
from .qparams import QParams, bias_qparams, choose_qparams
from .quantizer import Quantizer
from .resolve import Quantization, resolve
from .slots import RECIPES, SLOTS, Slot, SlotQuantizer
from .specification import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    SharedQuantizationSpec,
    derivation,
    find_derivation,
    spec_from_text,
    spec_to_text,
)
from .support import OperatorSupport, Role

__all__ = [
    "RECIPES",
    "SLOTS",
    "WEIGHT",
    "Annotations",
    "BackendQuantizer",
    "DerivedQuantizationSpec",
    "FixedQParamsQuantizationSpec",
    "GroupDerivation",
    "OperatorSupport",
    "QParams",
    "Quantization",
    "QuantizationAnnotation",
    "QuantizationSpec",
    "Quantizer",
    "Role",
    "SharedQuantizationSpec",
    "Slot",
    "SlotQuantizer",
    "bias_qparams",
    "choose_qparams",
    "derivation",
    "find_derivation",
    "resolve",
    "spec_from_text",
    "spec_to_text",
]
