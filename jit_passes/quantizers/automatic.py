"""The mode of each operator, where a caller leaves it to the graph: `auto`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..configuration.configuration import ResolvedConfiguration
from ..configuration.options import AUTO, FLOAT, LayerOptions
from ..graph.view import GraphView, NodeView, ValueView
from .capability import Capability
from .support import Role

NEEDS_DATA = "its input needs a range from data: pass batches or a profile, or say mode: dynamic"
WITHOUT_DATA = "no data"
CALIBRATED = "ranges from the data"
BESIDE_ATTENTION = "of a transformer, where a few channels may be large"
RECURRENT = "a recurrent layer, whose states are quantized step by step"
TABLE = "a table, of which rows are looked up"

_SOFTMAX = ("aten::softmax", "aten::_safe_softmax")
_FUSED = "attention"  # in the names of all fused forms


@dataclass(frozen=True)
class Choice:
    """A mode and the reason for it.

    Attributes:
        mode: "static", "dynamic" or "weight_only"; None where the operator stays in float.
        why: the reason, for reports.
    """

    mode: str | None
    why: str


def choose_modes(
    graph: GraphView, can: Capability, resolved: ResolvedConfiguration, has_data: bool
) -> dict[int, Choice]:
    """Return the modes of the operators that may have any, by index.

    | operator | with data | without |
    | --- | --- | --- |
    | embedding | weight_only | weight_only |
    | recurrent layer | dynamic | dynamic |
    | linear of a transformer | dynamic | dynamic |
    | other linears | static | dynamic, else weight_only |
    | convolution | static | weight_only |

    A convolution has few multiply-adds for each number that it reads, and finding its range and its
    codes takes two passes over these: so it is dynamic only where somebody says so.

    Each has the first of these that the target has. Operators are static whose input or result a
    rule says something of that needs a range.

    Args:
        graph: in canonical form.
        can: all that the target can do.
        resolved: what rules say of each operator.
        has_data: whether there will be batches or a profile.
    """
    found: dict[int, Choice] = {}
    beside: set[int] | None = None
    for node in graph.nodes:
        row = can.operators.get(node.kind)
        options = resolved.layers.get(node.index, resolved.everywhere)
        if row is None or options.mode != AUTO:
            continue
        if row.role is Role.LOOKUP:
            found[node.index] = Choice("weight_only", TABLE)
        elif row.role is Role.RECURRENT:
            found[node.index] = Choice("dynamic", RECURRENT)
        elif row.role is Role.WEIGHTED and options.input.dtype != FLOAT:
            if not has_data:
                found[node.index] = _without_data(node, can)
                continue
            beside = beside_attention(graph) if beside is None else beside
            is_linear = node.traits.weighted is not None and not node.traits.weighted.spatial_dims
            fits = is_linear and node.index in beside and can.has_mode(node, "dynamic")
            asks = _asks_for_ranges(resolved.layers.get(node.index))
            dynamic = Choice("dynamic", BESIDE_ATTENTION)
            found[node.index] = dynamic if fits and not asks else Choice("static", CALIBRATED)
    return found


def _without_data(node: NodeView, can: Capability) -> Choice:
    weighted = node.traits.weighted
    modes = () if weighted is not None and weighted.spatial_dims else ("dynamic",)
    mode = next((mode for mode in (*modes, "weight_only") if can.has_mode(node, mode)), None)
    return Choice(mode, NEEDS_DATA if mode is None else WITHOUT_DATA)


def _asks_for_ranges(options: LayerOptions | None) -> bool:
    """Say whether a rule says something of an input or result that only static ones have."""
    if options is None:
        return False
    names = ("calibration", "range", "scale", "rounding")
    return bool(options.output) or any(getattr(options.input, name) is not None for name in names)


def beside_attention(graph: GraphView) -> set[int]:
    """Return the indices of the operators that are connected with attention.

    A path to it may go either way, and leads over no convolution: what stands behind a backbone of
    convolutions is of a transformer, and the backbone is not.
    """
    pending = [node for node in graph.nodes if is_attention(node)]
    found = {node.index for node in pending}
    carried = _carried(graph)
    while pending:
        for node in _neighbours(pending.pop(), carried):
            if node.index not in found:
                found.add(node.index)
                pending.append(node)
    return found


def is_attention(node: NodeView) -> bool:
    """Say whether a node multiplies by a softmax, or is a fused form of that."""
    if not node.traits.product:
        return _FUSED in node.kind and node.traits.holds_weights
    return _FUSED in node.kind or any(_is_softmax(value) for value in node.inputs)


def _is_softmax(value: ValueView) -> bool:
    while (maker := value.producer) is not None and maker.inputs:
        if maker.kind in _SOFTMAX:
            return True
        if not (maker.moves_data or maker.traits.dropout or maker.kind == "aten::to"):
            return False
        value = maker.inputs[0]
    return False


def _carried(graph: GraphView) -> dict[int, list[ValueView]]:
    """Return the tensors that each is, by id, in a block that it goes into or comes out of."""
    found: dict[int, list[ValueView]] = {}
    for pair in (pair for node in graph.nodes for pair in node.carried):
        if all(value.is_tensor for value in pair):
            for value, other in (pair, pair[::-1]):
                found.setdefault(value.id, []).append(other)
    return found


def _neighbours(node: NodeView, carried: dict[int, list[ValueView]]) -> Iterator[NodeView]:
    weighted = node.traits.weighted
    if (weighted is not None and weighted.spatial_dims) or node.traits.asks_for_shape:
        return
    pending = [value for value in (*node.inputs, *node.outputs) if not value.is_constant]
    seen = {value.id for value in pending}
    for value in pending:  # which grows
        others = [other for other in carried.get(value.id, ()) if other.id not in seen]
        seen.update(other.id for other in others)
        pending += others
        if value.producer is not None:
            yield value.producer
        if value.producer is not None or value.id in carried:
            yield from (user for user, _ in value.uses)
