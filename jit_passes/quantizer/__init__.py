"""Saying how to quantize: specifications, annotations, quantizers."""

from ..configuration.configuration import Configuration, ResolvedConfiguration, Rule
from ..configuration.file import read_configuration, write_configuration
from ..configuration.glow import from_glow_kinds, from_glow_node_precision
from ..configuration.nni import from_nni
from ..configuration.options import LayerOptions, TensorOptions
from ..configuration.selector import Selector
from ..configuration.stages import StageOptions
from ..quantizers.backend import BackendQuantizer
from ..quantizers.base import Quantizer, annotations_of
from ..quantizers.capability import WEIGHT, Capability
from ..quantizers.composable import ComposableQuantizer
from ..quantizers.fixed_ranges import FIXED_RANGES
from ..quantizers.policy import Policy
from ..quantizers.slot_quantizer import RECIPES, SlotQuantizer
from ..quantizers.support import ANY_SPEC, PER_TENSOR, OperatorSupport, Role, SpecSupport
from ..specification.annotation import Annotations, QuantizationAnnotation
from ..specification.bias import bias_qparams
from ..specification.derivation import derivation, find_derivation
from ..specification.parameters import QParams
from ..specification.place import Place, spec_from_text, spec_to_text
from ..specification.qparams import choose_qparams
from ..specification.resolve import Quantization, resolve
from ..specification.slots import SLOTS
from ..specification.specification import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    SharedQuantizationSpec,
)

__all__ = [
    "ANY_SPEC",
    "FIXED_RANGES",
    "PER_TENSOR",
    "RECIPES",
    "SLOTS",
    "WEIGHT",
    "Annotations",
    "BackendQuantizer",
    "Capability",
    "ComposableQuantizer",
    "Configuration",
    "DerivedQuantizationSpec",
    "FixedQParamsQuantizationSpec",
    "GroupDerivation",
    "LayerOptions",
    "OperatorSupport",
    "Place",
    "Policy",
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
    "SlotQuantizer",
    "SpecSupport",
    "StageOptions",
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
