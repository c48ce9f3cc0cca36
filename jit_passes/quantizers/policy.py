"""The choice of a quantizer among all that a backend can do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..graph.view import NodeView
from ..observers import MinMax, PairSums
from ..specification.specification import QuantizationSpec
from .capability import Capability
from .support import per_tensor


@dataclass(frozen=True)
class Policy:
    """The choice of a quantizer among all that a backend can do.

    Attributes:
        capability: of the backend.
        activation: specification of activations.
        dynamic: specification of inputs in the mode dynamic; None where the backend has none.
            Operators that can do less than the backend's others get the nearest that they can do.
        weight: specification of weights. Operators that can do less than the backend's
            others get the nearest that they can do: one scale for the whole tensor, fewer codes.
        equal_operands: operators whose operands must have the same parameters.
        unsigned: whether activations that cannot be below 0 have codes from 0 on, where the
            specification has signed ones. The number of codes stays, so steps have half the size.
    """

    capability: Capability
    activation: QuantizationSpec
    weight: QuantizationSpec
    equal_operands: tuple[str, ...] = ()
    unsigned: bool = False
    dynamic: QuantizationSpec | None = None

    def dynamic_of(self, node: NodeView) -> QuantizationSpec:
        """Return the specification of an operator's input in the mode dynamic."""
        assert self.dynamic is not None
        own = self.capability.operators[node.kind].dynamic
        return self.dynamic if own is None else own.nearest_dynamic(self.dynamic)

    def weight_of(self, node: NodeView) -> QuantizationSpec:
        """Return the specification of an operator's weight."""
        spec, own = self.weight, self.capability.operators[node.kind].weights
        if spec.ch_axis is not None:
            axis = output_channels(node)
            if axis != spec.ch_axis:
                spec = per_tensor(spec) if axis is None else replace(spec, ch_axis=axis)
        if own is not None:
            spec = own.narrow(spec)
        if self.capability.adds_pairs(node) and spec.observer == MinMax():
            spec = replace(spec, observer=PairSums())
        return spec


def output_channels(node: NodeView) -> int | None:
    """Return the axis of a weight along which the output channels lie.

    None for transposed convolutions in groups: their weight has the channels of one group only.
    """
    weighted = node.traits.weighted
    if weighted is None or not weighted.transposed:
        return 0
    return 1 if node.groups == 1 else None
