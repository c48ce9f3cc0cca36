"""Saying how to quantize: specifications, annotations, quantizers."""

from .annotation import Annotations, EdgeAnnotation, OutputAnnotation
from .backend import WEIGHT, BackendQuantizer
from .qparams import QParams, choose_qparams
from .quantizer import Quantizer
from .specification import (
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    SharedQuantizationSpec,
    spec_from_text,
    spec_to_text,
)
from .support import OperatorSupport, Role

__all__ = [
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
    "choose_qparams",
    "spec_from_text",
    "spec_to_text",
]
