"""Inductor's kernels on x86, by programs of torch.export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ...quantizers.backend import BackendQuantizer
from ...quantizers.capability import Capability, options_reason
from ...quantizers.support import OperatorSupport, Role, SpecSupport
from . import table
from .engine import Engine

WEIGHTED = ("aten::conv1d", "aten::conv2d", "aten::linear")
CAPABILITY = Capability(
    table.table_of(
        (
            *table.convolutions(1, 2),
            table.linear(modes=("static", "dynamic")),
            table.addition(sums=WEIGHTED),
            # These copy codes, so results and all operands have the same parameters.
            OperatorSupport("aten::cat", Role.SHARED),
            *table.pools("max", Role.SHARED, 2, check=options_reason),
        )
    ),
    replace(table.UINT8, why="its convolutions do not take int8"),
    SpecSupport({"int8": (-128, 127)}, table.AROUND_ZERO),  # one scale in all is not recognized
    float_biases=True,
    float_results=True,
    # Its patterns have a dequantize right in front of an operator that multiplies.
    barriers=table.REARRANGING,
    dynamic=table.UINT8_AS_IT_RUNS,
)


@dataclass(frozen=True)
class Inductor(Engine):
    """torch.compile and AOTInductor on x86: a convolution or linear adds before it rounds.

    Activations are uint8, affine; weights int8, symmetric, per channel; biases float32. A result
    that only float operators read is not rounded. Compile with
    `torch._inductor.config.freezing = True`.

    Source: torch/_inductor/fx_passes/quantization.py.
    """

    name: ClassVar[str] = "inductor"
    own_capability: ClassVar[Capability] = CAPABILITY
    reads: ClassVar[tuple[str, ...]] = ("pt2", "aoti")

    def quantizer(self) -> BackendQuantizer:
        return BackendQuantizer(self, equal_operands=("aten::cat",))
