"""XNNPACK as ExecuTorch delegates to it, by programs of torch.export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...quantizers.backend import BackendQuantizer
from ...quantizers.capability import Capability, options_reason, tensors_reason
from ...quantizers.support import CLIPS, OperatorSupport, Role, SpecSupport
from . import table
from .engine import Engine

CAPABILITY = Capability(
    table.table_of(
        (
            *table.convolutions(2),
            table.linear(modes=("static", "dynamic")),
            table.addition(),
            OperatorSupport("aten::mul", Role.OWN, (0, 1), CLIPS, check=tensors_reason),
            OperatorSupport("aten::cat", Role.SHARED),  # it copies codes
            *table.pools("max", Role.SHARED, 2, check=options_reason),
            *table.pools("adaptive_avg", Role.OWN, 2, check=table.global_average_reason),
            OperatorSupport("aten::mean", Role.OWN, ranks=(2, 4), check=table.image_mean_reason),
        )
    ),
    SpecSupport({"int8": (-128, 127)}, table.AFFINE, whole=True),
    table.INT8_WEIGHTS,
    float_biases=True,
    # Its partitioner looks for a dequantize right in front of an operator that multiplies.
    barriers=table.REARRANGING,
    dynamic=table.INT8_AS_IT_RUNS,
)


@dataclass(frozen=True)
class XNNPACK(Engine):
    """XNNPACK in ExecuTorch: quantize and dequantize behind each operator.

    Activations are int8, affine; weights int8, symmetric, per channel or tensor; biases float32,
    which XNNPACK turns into int32 itself.

    Source: pytorch/executorch, backends/xnnpack.
    """

    name: ClassVar[str] = "xnnpack"
    own_capability: ClassVar[Capability] = CAPABILITY
    reads: ClassVar[tuple[str, ...]] = ("pt2",)

    def quantizer(self) -> BackendQuantizer:
        return BackendQuantizer(self, equal_operands=("aten::cat",))
