"""A compiler of somebody else's: regions of convolutions and sums, frozen by PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

import jit_passes
from jit_passes import NodeView, Pipeline
from jit_passes.quantizer import Capability, OperatorSupport, Role, SpecSupport
from jit_passes.targets import CompileRegions, Target

CLIPS = ("aten::relu",)


def dilated(node: NodeView) -> str | None:
    """Refuse windows with gaps."""
    return None if node.inputs[5].constant == [1, 1] else "the kiln has no dilation"


OPERATORS = {
    row.kind: row
    for row in (
        OperatorSupport("aten::conv2d", Role.WEIGHTED, clips=CLIPS, ranks=(4, 4), check=dilated),
        OperatorSupport("aten::linear", Role.WEIGHTED, clips=CLIPS),
        OperatorSupport("aten::add", Role.OWN, (0, 1), clips=CLIPS),
    )
}
CAPABILITY = Capability(
    OPERATORS,
    SpecSupport({"uint8": (0, 255)}, ("per_tensor_affine",), whole=True),
    SpecSupport({"int8": (-127, 127)}, ("per_channel_symmetric",)),
    moves={"aten::max_pool2d": None},
)


@dataclass(frozen=True)
class Kiln(Target):
    """The kiln.

    Attributes:
        smallest: regions of fewer operators with weights are left as they are.
    """

    name: ClassVar[str] = "kiln"
    smallest: int = 1

    @property
    def capability(self) -> Capability:
        """Return its operators and specifications."""
        return CAPABILITY

    def compile(self, region: torch.jit.ScriptModule) -> torch.jit.ScriptModule | None:
        """Return the region with weights in float once more, if it takes and gives one tensor."""
        graph = jit_passes.GraphView.of(region)
        weighted = sum(node.traits.weighted is not None for node in graph.nodes)
        if weighted < self.smallest or len(graph.inputs) != 1 or not graph.outputs[0].is_tensor:
            return None
        return torch.jit.freeze(region.eval())

    def lowering(self) -> Pipeline:
        """Compile the regions."""
        clean = ("remove_dead_code", "pool_constants", "remove_unused_attributes")
        return Pipeline("lower_press", (CompileRegions(self), *clean))
