"""Channels with very different ranges: one scale leaves the small ones few codes.

Between two layers, a channel can be scaled by any factor and its reader's weights by the inverse.
The float network does not change, but its integers do. How far channels are apart is seen in the
weights alone, before any data:

    range[c] = max |weight of the layer before, output channel c|
    importance[c] = range[c] * max |weight of the reader, input channel c|

See Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ..graph.view import GraphView, NodeView, ValueView
from .module import OperatorRecord, remarked

SPREAD = 16.0  # the remark begins here: the smallest channel has 4 of 8 bits
MATTERS = 0.1  # of the largest importance; channels with less may have any range
_SAMPLED = 64  # elements of a channel that are looked at; more would tell no more
_RANGED = ("static", "dynamic")  # modes with one scale for the input
_KEPT = frozenset({"aten::flatten", "aten::constant_pad_nd", "aten::pad", "aten::contiguous"})
_ADVICE = (
    "channels of its input differ in range by 2^{:.1f}, as the weights on both sides show: one "
    "scale leaves small ones few codes. Scale them to one range (equalization), or keep this "
    "operator in float"
)


def with_remarks(
    graph: GraphView, operators: Sequence[OperatorRecord]
) -> tuple[OperatorRecord, ...]:
    """Return the records of operators, with advice where channels of the input are far apart.

    Args:
        graph: the normalized graph.
        operators: the records of operators with weights.
    """
    on_integers = {row.name for row in operators if row.dtype == "int8" and row.mode in _RANGED}
    channels, found = _Channels(), {}
    for node in graph.nodes:
        if node.traits.weighted is not None and node.name in on_integers:
            found[node.name] = channels.spread(node)
    far = {name: math.log2(spread) for name, spread in found.items() if spread >= SPREAD}
    return remarked(operators, {name: _ADVICE.format(bits) for name, bits in far.items()})


class _Channels:
    """Ranges of the channels of values, relative to each other."""

    def __init__(self) -> None:
        self._known: dict[int, Tensor | None] = {}

    def spread(self, node: NodeView) -> float:
        """Return the largest range over the smallest one, of input channels that matter to a layer.

        1 where weights do not tell.
        """
        ranges = self._ranges(node.operand("input"))
        if ranges is None or _ratio(ranges) < SPREAD:
            return 1.0
        read = _inputs_of(node)
        if read is None or len(read) != len(ranges):
            return 1.0
        importance = read * ranges
        return _ratio(ranges[importance > MATTERS * importance.max()])

    def _ranges(self, value: ValueView) -> Tensor | None:
        node = value.producer
        while node is not None and _keeps_channels(node):
            node = node.main_operand.producer
        if node is None:
            return None
        if node.index not in self._known:
            self._known[node.index] = self._ranges_made_by(node)
        return self._known[node.index]

    def _ranges_made_by(self, node: NodeView) -> Tensor | None:
        made = _outputs_of(node)
        if made is None or not _is_depthwise(node):
            return made
        before = self._ranges(node.operand("input"))
        return made if before is None or len(before) != len(made) else made * before


def _keeps_channels(node: NodeView) -> bool:
    traits = node.traits
    return traits.elementwise == 1 or traits.within or traits.dropout or node.kind in _KEPT


def _weight_of(node: NodeView) -> Tensor | None:
    if node.traits.weighted is None:
        return None
    weight = node.operand("weight").constant
    usable = isinstance(weight, Tensor) and weight.dim() > 1 and weight.is_floating_point()
    return weight.detach() if usable and weight.numel() else None


def _groups_of(node: NodeView) -> int:
    return node.groups if isinstance(node.groups, int) else 1


def _is_depthwise(node: NodeView) -> bool:
    weight = _weight_of(node)
    return weight is not None and _groups_of(node) == weight.shape[0] > 1


def _outputs_of(node: NodeView) -> Tensor | None:
    """Return the largest magnitude among the weights of each output channel."""
    weight, weighted = _weight_of(node), node.traits.weighted
    if weight is None or weighted is None:
        return None
    return _largest(
        weight, _groups_of(node) if weighted.transposed else 1, int(weighted.transposed)
    )


def _inputs_of(node: NodeView) -> Tensor | None:
    """Return the largest magnitude among the weights of each input channel."""
    weight, weighted = _weight_of(node), node.traits.weighted
    if weight is None or weighted is None:
        return None
    return _largest(
        weight, 1 if weighted.transposed else _groups_of(node), int(not weighted.transposed)
    )


def _largest(weight: Tensor, groups: int, axis: int) -> Tensor:
    """Return the largest magnitude of each channel along an axis.

    With groups, the first axis holds all of them one after another, and the second one group's.
    """
    if groups > 1:
        weight = weight.reshape(groups, -1, *weight.shape[1:]).movedim(axis + 1, 1).flatten(0, 1)
        axis = 0
    other = weight.shape[1 - axis]
    step = max(1, other * weight[0, 0].numel() // _SAMPLED)
    sampled = weight[::step] if axis else weight[:, ::step]
    return sampled.abs().amax([i for i in range(weight.dim()) if i != axis])


def _ratio(ranges: Tensor) -> float:
    if not len(ranges):
        return 1.0
    low, high = (float(end) for end in ranges.aminmax())
    return high / low if low > 0 else math.inf if high > 0 else 1.0
