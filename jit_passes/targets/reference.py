"""The reference model itself, for hardware compilers.

The lowered model holds float operators between the dialect's dequantize and quantize, and lookup
tables. To load it, `import jit_passes` first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import torch

from ..graph.kinds import PRODUCTS
from ..graph.traits import kinds
from ..graph.view import NodeView, are_constant
from ..passes.pipeline import CLEAN_UP, Pipeline
from ..quantizers.capability import ACTIVATION, Capability, average_reason, tensors_reason
from ..quantizers.fixed_ranges import FIXED_RANGES
from ..quantizers.support import ANY_DYNAMIC, CLIPS, OperatorSupport, Role
from ..specification.recurrent import RECURRENT
from ..specification.slots import LOOKUPS
from ..specification.specification import FixedQParamsQuantizationSpec, QuantizationSpec
from .target import Target

MODES = ("static", "dynamic", "weight_only")
OF_TENSORS = ("add", "sub", "mul", "div", "maximum", "minimum")
OF_ONE = ("batch_norm", "group_norm", "instance_norm", "layer_norm", "pow", "prelu", "softmax")
KEEP_PARAMETERS = (
    "mean",
    *(f"{kind}_pool{dims}d" for kind in ("avg", "adaptive_avg", "max") for dims in (1, 2, 3)),
)  # fmt: skip
FIXED = {
    "aten::sigmoid": FixedQParamsQuantizationSpec(1 / 256, 0),
    "aten::tanh": FixedQParamsQuantizationSpec(1 / 128, 128),
}


def _tensors_or_numbers(node: NodeView) -> str | None:
    constants = [value.constant for value in node.inputs[:2] if value.is_constant]
    if any(isinstance(c, torch.Tensor) and c.dim() > 0 for c in constants):
        return "one of its operands is a constant"
    return None


def _options(node: NodeView) -> str | None:
    constant = are_constant(node.other_operands)
    return None if constant else "an operand other than the first is computed by the model"


def _average(node: NodeView) -> str | None:
    return _options(node) or average_reason(node)


@cache
def capability_of(activation: QuantizationSpec) -> Capability:
    """Return the reference model's capability, for activations of this specification.

    The results of sigmoid and tanh take all codes of uint8; of other dtypes they are calibrated.
    """
    unary = kinds(lambda traits: traits.elementwise == 1)
    rows = [OperatorSupport(kind, Role.OWN, check=_options, elementwise=True) for kind in unary]
    weighted = kinds(lambda traits: traits.weighted)
    rows += [OperatorSupport(kind, Role.WEIGHTED, clips=CLIPS, modes=MODES) for kind in weighted]
    rows += [
        OperatorSupport(
            f"aten::{op}",
            Role.OWN,
            (0, 1),
            clips=CLIPS,
            check=_tensors_or_numbers,
            elementwise=True,
        )
        for op in OF_TENSORS
    ]
    rows += [
        OperatorSupport(kind, Role.OWN, (0, 1), clips=CLIPS, check=tensors_reason)
        for kind in PRODUCTS
    ]
    rows += [OperatorSupport("aten::cat", Role.OWN, clips=CLIPS)]
    rows += [OperatorSupport(f"aten::{op}", Role.OWN, clips=CLIPS, check=_options) for op in OF_ONE]
    rows += [OperatorSupport(f"aten::{op}", Role.SHARED, check=_options) for op in KEEP_PARAMETERS]
    rows += [
        OperatorSupport(f"aten::avg_pool{dims}d", Role.SHARED, check=_average) for dims in (2, 3)
    ]
    rows += [
        OperatorSupport(f"aten::{op}", Role.SHARED, check=_options, elementwise=True)
        for op in ("relu", "clamp")
    ]
    rows += [OperatorSupport(kind, Role.LOOKUP, (), modes=("weight_only",)) for kind in LOOKUPS]
    rows += [OperatorSupport(kind, Role.RECURRENT, modes=("dynamic",)) for kind in RECURRENT]
    table = {row.kind: row for row in rows}  # explicit rows come after, and win
    if (activation.dtype, activation.quant_min, activation.quant_max) == ("uint8", 0, 255):
        for kind, spec in FIXED.items():
            table[kind] = replace(table[kind], role=Role.FIXED, fixed=spec)
    for kind, (ends, _) in FIXED_RANGES.items():
        table[kind] = replace(table[kind], input_range=ends)
    return Capability(table, mixed=True, dynamic=ANY_DYNAMIC)


@dataclass(frozen=True)
class Reference(Target):
    """The reference model itself: nothing is lowered to PyTorch's kernels.

    All numerics of the dialect: 2 to 16 bits, signed or unsigned, any scheme. A hardware compiler
    reads dequantize, operator, quantize as one integer operator.

    Args:
        lookup_tables: make tables of integers of the functions between dequantize and quantize
            that work element by element, and have no more than 16 bits of input codes. The results
            are equal.
    """

    name: ClassVar[str] = "reference"
    is_reference: ClassVar[bool] = True
    lookup_tables: bool = True

    @property
    def capability(self) -> Capability:
        return capability_of(ACTIVATION)

    def lowering(self) -> Pipeline:
        tables = ("fold_lookup_tables",) if self.lookup_tables else ()
        return Pipeline("lower_reference", (*tables, *CLEAN_UP), ensures=("valid_grids",))
