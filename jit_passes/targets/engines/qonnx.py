"""Compilers for FPGAs that read QONNX: FINN, hls4ml and others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...quantizers.capability import Capability, options_reason, tensors_reason
from ...quantizers.support import CLIPS, OperatorSupport, Role, SpecSupport
from . import table
from .engine import Engine

FUNCTIONS = ("sigmoid", "tanh")
CAPABILITY = Capability(
    table.table_of(
        (
            *table.convolutions(1, 2),
            table.linear(),
            *table.products(),
            table.addition(),
            OperatorSupport("aten::mul", Role.OWN, (0, 1), CLIPS, check=tensors_reason),
            OperatorSupport("aten::cat", Role.OWN, clips=("aten::relu",)),
            *table.pools("max", Role.SHARED, 1, 2, check=options_reason),
            *table.pools("avg", Role.OWN, 2, check=table.average_reason),
            *table.pools("adaptive_avg", Role.OWN, 2, check=table.global_average_reason),
            OperatorSupport("aten::mean", Role.OWN, ranks=(2, 4), check=table.image_mean_reason),
            *(OperatorSupport(f"aten::{kind}", Role.OWN) for kind in FUNCTIONS),
        )
    ),
    # A compiler builds multipliers with the bits of the codes, so fewer codes are welcome.
    SpecSupport({"int8": (-128, 127)}, ("per_tensor_symmetric", "per_tensor_power_of_two")),
    table.INT8_WEIGHTS,
    float_biases=True,
)


@dataclass(frozen=True)
class QONNX(Engine):
    """Compilers for FPGAs that read QONNX: up to 8 bits, and a grid behind each result.

    Activations and weights are int8 or of fewer bits, around 0, since FINN and hls4ml have no zero
    points. Weights have a scale for each output channel; biases are float32.

    Source: https://github.com/fastmachinelearning/qonnx.
    """

    name: ClassVar[str] = "qonnx"
    own_capability: ClassVar[Capability] = CAPABILITY
