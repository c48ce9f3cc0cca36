"""TensorRT, by files of ONNX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...graph.kinds import CONVOLUTIONS
from ...quantizers.capability import Capability, options_reason
from ...quantizers.support import CLIPS, OperatorSupport, Role, SpecSupport
from . import table
from .engine import Engine

AROUND_ZERO = ("per_tensor_symmetric", "per_tensor_power_of_two")
CAPABILITY = Capability(
    table.table_of(
        (
            *table.convolutions(2, 3),
            *(
                OperatorSupport(f"aten::conv_transpose{n}d", Role.WEIGHTED, clips=CLIPS,
                                ranks=(n + 2, n + 2))
                for n in (2, 3)
            ),
            table.linear(),
            *table.products(),
            table.addition(sums=CONVOLUTIONS[1:]),
            OperatorSupport("aten::cat", Role.OWN, clips=("aten::relu",)),
            *table.pools("max", Role.SHARED, 2, 3, check=options_reason),
            *table.pools("avg", Role.OWN, 2, 3, check=table.average_reason),
            *table.pools("adaptive_avg", Role.OWN, 2, check=table.global_average_reason),
            OperatorSupport("aten::mean", Role.OWN, ranks=(2, 4), check=table.image_mean_reason),
        )
    ),
    SpecSupport({"int8": (-128, 127)}, AROUND_ZERO, whole=True),
    table.INT8_WEIGHTS,
    float_biases=True,
    float_results=True,
)  # fmt: skip


@dataclass(frozen=True)
class TensorRT(Engine):
    """TensorRT 10 and later: everything around 0, and none between a convolution and its sum.

    Activations are int8, symmetric, one scale for each tensor; weights int8, symmetric, along the
    output channels; biases float32. TensorRT refuses zero points other than 0, and integers for
    biases. A result of a convolution or linear that only float operators read is not rounded, as
    its document advises.

    Source: https://docs.nvidia.com/deeplearning/tensorrt, "Working with quantized types".
    """

    name: ClassVar[str] = "tensorrt"
    own_capability: ClassVar[Capability] = CAPABILITY
