"""A backend of somebody else's: int8 in [-127, 127] everywhere, weights of 6 bits, no dilation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jit_passes import NodeView, Pipeline
from jit_passes.quantizer import Capability, OperatorSupport, Role, SpecSupport
from jit_passes.targets import Target

SYMMETRIC = SpecSupport({"int8": (-127, 127)}, ("per_tensor_symmetric",), whole=True)
SIX_BITS = SpecSupport({"int8": (-31, 31)}, ("per_channel_symmetric", "per_tensor_symmetric"))
CLIPS = ("aten::relu",)


def dilated(node: NodeView) -> str | None:
    """Refuse windows with gaps."""
    return None if node.inputs[5].constant == [1, 1] else "the mill has no dilation"


OPERATORS = {
    row.kind: row
    for row in (
        OperatorSupport("aten::conv2d", Role.WEIGHTED, clips=CLIPS, ranks=(4, 4), check=dilated),
        OperatorSupport("aten::linear", Role.WEIGHTED, clips=CLIPS),
        OperatorSupport("aten::add", Role.OWN, (0, 1), clips=CLIPS),
        OperatorSupport("aten::sigmoid", Role.OWN, elementwise=True),
        OperatorSupport("aten::max_pool2d", Role.SHARED),
    )
}
CLEAN = ("remove_dead_code", "pool_constants", "remove_unused_attributes")


@dataclass(frozen=True)
class Mill(Target):
    """The mill.

    Attributes:
        tables: whether it computes functions by tables.
        corners: how many it has; it does not matter.
    """

    name: ClassVar[str] = "mill"
    tables: bool = True
    corners: tuple[int, ...] = (4, 4)

    @property
    def capability(self) -> Capability:
        """Return its operators and specifications."""
        return Capability(OPERATORS, activations=SYMMETRIC, weights=SIX_BITS)

    def lowering(self) -> Pipeline:
        """Make tables of functions."""
        return Pipeline("lower_mill", ("fold_lookup_tables", *CLEAN) if self.tables else CLEAN)
