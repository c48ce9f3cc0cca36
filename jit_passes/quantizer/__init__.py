"""Saying how to quantize: specifications, annotations, quantizers."""

from .annotation import Annotations, QuantizationAnnotation
from .backend import WEIGHT, BackendQuantizer
from .composable import ComposableQuantizer
from .configuration import Configuration, ResolvedConfiguration, Rule
from .configuration_file import read_configuration, write_configuration
from .fixed_ranges import FIXED_RANGES
from .glow_configuration import from_glow_kinds, from_glow_node_precision
from .nni_configuration import from_nni
from .options import LayerOptions, TensorOptions
from .qparams import QParams, bias_qparams, choose_qparams
from .quantizer import Quantizer, annotations_of
from .resolve import Quantization, resolve
from .selector import Selector
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
from .support import ANY_SPEC, PER_TENSOR, OperatorSupport, Role, SpecSupport

__all__ = [
    "ANY_SPEC",
    "FIXED_RANGES",
    "PER_TENSOR",
    "RECIPES",
    "SLOTS",
    "WEIGHT",
    "Annotations",
    "BackendQuantizer",
    "ComposableQuantizer",
    "Configuration",
    "DerivedQuantizationSpec",
    "FixedQParamsQuantizationSpec",
    "GroupDerivation",
    "LayerOptions",
    "OperatorSupport",
    "QParams",
    "Quantization",
    "QuantizationAnnotation",
    "QuantizationSpec",
    "Quantizer",
    "ResolvedConfiguration",
    "Role",
    "Rule",
    "Selector",
    "SharedQuantizationSpec",
    "Slot",
    "SlotQuantizer",
    "SpecSupport",
    "TensorOptions",
    "annotations_of",
    "bias_qparams",
    "choose_qparams",
    "derivation",
    "find_derivation",
    "from_glow_kinds",
    "from_glow_node_precision",
    "from_nni",
    "read_configuration",
    "resolve",
    "spec_from_text",
    "spec_to_text",
    "write_configuration",
]
