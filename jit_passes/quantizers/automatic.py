"""The mode of each operator, where a caller leaves it to the graph: `auto`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..configuration.configuration import ResolvedConfiguration
from ..configuration.options import AUTO, FLOAT, LayerOptions
from ..graph.kinds import SOFTMAX
from ..graph.view import GraphView, NodeView, ValueView
from .capability import Capability
from .residuals import find_first
from .support import Role

NEEDS_DATA = "its input needs a range from data: give batches or a profile, or say mode: dynamic"
WITHOUT_DATA = "no data"
CALIBRATED = "ranges from the data"
BESIDE_ATTENTION = "of a transformer, where a few channels are often very large"
BESIDE_RECURRENT = "beside a recurrent layer, which takes and gives float32"
BESIDE_TABLE = "beside an embedding, whose rows are float32"
IN_FRONT = "in front of residual sums in float32, which would keep the error of its result"
IN_GROUPS = "its weight is in groups, which the target does not have in the mode "
SAY_SO = "; a rule with a mode quantizes it"
RECURRENT = "a recurrent layer, whose states are quantized step by step"
TABLE = "an embedding only looks up rows"

_FUSED = "attention"  # in the names of all fused forms


@dataclass(frozen=True)
class Choice:
    """A mode and the reason for it.

    Attributes:
        mode: "static", "dynamic" or "weight_only"; None where the operator stays in float.
        why: the reason, for reports.
        better: whether float is the best mode for it, and no mode that it lacks data for.
    """

    mode: str | None
    why: str
    better: bool = False


def choose_modes(
    graph: GraphView,
    can: Capability,
    resolved: ResolvedConfiguration,
    has_data: bool,
    front_end: Mapping[int, str],
) -> dict[int, Choice]:
    """Return the modes of the operators that may have any, by index.

    | operator | with data | without |
    | --- | --- | --- |
    | of the front end | float | float |
    | embedding | weight_only | weight_only |
    | recurrent layer | dynamic | dynamic |
    | linear of a transformer | dynamic | dynamic |
    | linear beside a recurrent layer | dynamic | dynamic |
    | linear beside an embedding | dynamic | dynamic |
    | convolution of patches in front of residual sums in float | dynamic | weight_only |
    | other linears | static | dynamic, else weight_only |
    | convolution | static | weight_only |

    A convolution of patches, windows of several pixels that lie side by side, counts as a linear:
    vision transformers begin with one. Other convolutions give codes to each other, and a dynamic
    range takes two passes over the input. So they are dynamic only by a rule.

    An operator has the first mode of its row that the target has. The operator is static if a rule
    gives its input or result an option that needs a range. Where its weight is to be in groups, it
    has the first mode in which the target has groups: its own, dynamic, weight_only.

    Args:
        graph: in canonical form.
        can: all that the target can do.
        resolved: the options that rules set for each operator.
        has_data: whether there will be batches or a profile.
        front_end: why operators are better left in float, by index: see `find_front_end`.
    """
    found: dict[int, Choice] = {}
    beside: dict[int, str] | None = None
    for node in graph.nodes:
        row = can.operators.get(node.kind)
        options = resolved.layers.get(node.index, resolved.everywhere)
        if row is None or options.mode != AUTO:
            continue
        asks_for_ranges = _asks_for_ranges(resolved.layers.get(node.index))
        if node.index in front_end and not asks_for_ranges and options.keep_float is not False:
            found[node.index] = Choice(None, front_end[node.index] + SAY_SO, better=True)
        elif row.role is Role.LOOKUP:
            found[node.index] = Choice("weight_only", TABLE)
        elif row.role is Role.RECURRENT:
            found[node.index] = Choice("dynamic", RECURRENT)
        elif row.role is Role.WEIGHTED and options.input.dtype != FLOAT:
            grouped = options.weight.group_size is not None
            if not has_data:
                found[node.index] = _without_data(node, can, grouped)
                continue
            beside = _reasons_for_dynamic(graph, can) if beside is None else beside
            fits = _is_linear(node) and can.has_mode(node, "dynamic")
            why = beside.get(node.index) if fits and not asks_for_ranges else None
            mode, why = ("static", CALIBRATED) if why is None else ("dynamic", why)
            found[node.index] = Choice(mode, why)
            if grouped and not asks_for_ranges:
                other = _first_mode(node, can, (mode, "dynamic", "weight_only"), grouped)
                if other is not None and other != mode:
                    found[node.index] = Choice(other, IN_GROUPS + mode)
    return found


def _reasons_for_dynamic(graph: GraphView, can: Capability) -> dict[int, str]:
    """Return why linears are better dynamic although there are data, by index."""

    def of(role: Role) -> list[NodeView]:
        rows = can.operators
        return [node for node in graph.nodes if node.kind in rows and rows[node.kind].role is role]

    reasons: dict[int, str] = {}
    for starts, why in (
        (of(Role.LOOKUP), BESIDE_TABLE),
        (of(Role.RECURRENT), BESIDE_RECURRENT),
        ([node for node in graph.nodes if is_attention(node)], BESIDE_ATTENTION),
    ):
        reasons |= dict.fromkeys(beside(graph, starts), why)
    return reasons | dict.fromkeys(find_first(graph, can), IN_FRONT)


def _without_data(node: NodeView, can: Capability, grouped: bool) -> Choice:
    weighted = node.traits.weighted
    modes = () if weighted is not None and weighted.spatial_dims else ("dynamic",)
    mode = _first_mode(node, can, (*modes, "weight_only"), grouped)
    return Choice(mode, NEEDS_DATA if mode is None else WITHOUT_DATA)


def _first_mode(node: NodeView, can: Capability, modes: Sequence[str], grouped: bool) -> str | None:
    """Return the first mode that the target has; for weights in groups, the first with groups.

    Where no mode takes them, the first one: its reason for float tells of the groups.
    """
    had = [mode for mode in modes if can.has_mode(node, mode)]
    for mode in had if grouped else ():
        support = can.specs(node, node.position("weight"), mode)
        if support is not None and support.groups:
            return mode
    return next(iter(had), None)


def _is_linear(node: NodeView) -> bool:
    """Say whether a node is a linear layer, or one of patches."""
    weighted = node.traits.weighted
    if weighted is None or not weighted.spatial_dims:
        return weighted is not None
    if weighted.transposed:
        return False
    weight, dims = node.operand("weight").constant, weighted.spatial_dims

    def is_always(name: str, numbers: list[int]) -> bool:
        found = node.operand(name).constant  # one number may stand for all axes
        return isinstance(found, list) and (found * dims if len(found) == 1 else found) == numbers

    return (
        isinstance(weight, Tensor)
        and max(weight.shape[2:]) > 1
        and is_always("stride", [*weight.shape[2:]])
        and is_always("padding", [0] * dims)
        and is_always("dilation", [1] * dims)
        and node.groups == 1
    )


def _asks_for_ranges(options: LayerOptions | None) -> bool:
    """Say whether a rule says something of an input or result that only static ones have."""
    if options is None:
        return False
    names = ("calibration", "range", "scale", "rounding")
    return bool(options.output) or any(getattr(options.input, name) is not None for name in names)


def beside(graph: GraphView, starts: Sequence[NodeView]) -> set[int]:
    """Return the indices of the operators that are connected with some, and of these.

    A path may go either way, and leads over no convolution: the layers behind a backbone of
    convolutions are of a transformer, and the backbone is not.
    """
    pending = list(starts)
    found = {node.index for node in pending}
    carried = _carried(graph) if pending else {}
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
        if maker.kind in SOFTMAX:
            return True
        if not (maker.moves_data or maker.traits.dropout or maker.kind == "aten::to"):
            return False
        value = maker.main_operand
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
