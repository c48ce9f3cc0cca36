"""Saying how to quantize: specifications, annotations, quantizers."""

from .annotation import Annotations, EdgeAnnotation, OutputAnnotation
from .backend import WEIGHT, BackendQuantizer
from .configuration import Configuration, ResolvedConfiguration, Rule
from .configuration_file import read_configuration, write_configuration
from .glow_configuration import from_glow_kinds, from_glow_node_precision
from .nni_configuration import from_nni
from .options import LayerOptions, TensorOptions
from .qparams import QParams, choose_qparams
from .quantizer import Quantizer
from .selector import Selector
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
    "RECIPES",
    "SLOTS",
    "WEIGHT",
    "Annotations",
    "BackendQuantizer",
    "Configuration",
    "EdgeAnnotation",
    "FixedQParamsQuantizationSpec",
    "LayerOptions",
    "OperatorSupport",
    "OutputAnnotation",
    "QParams",
    "QuantizationSpec",
    "Quantizer",
    "ResolvedConfiguration",
    "Role",
    "Rule",
    "Selector",
    "SharedQuantizationSpec",
    "Slot",
    "SlotQuantizer",
    "TensorOptions",
    "choose_qparams",
    "from_glow_kinds",
    "from_glow_node_precision",
    "from_nni",
    "read_configuration",
    "spec_from_text",
    "spec_to_text",
    "write_configuration",
]
