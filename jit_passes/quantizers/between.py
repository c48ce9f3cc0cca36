"""Operators between layers with slots, for targets that compute with integers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..configuration.configuration import Configuration
from ..graph.view import GraphView, NodeView, Use, ValueView
from ..specification.annotation import Annotations
from ..specification.slots import ADD_BIAS, CORRELATION, is_split, place_at, quantized_behind
from ..specification.specification import AnySpec, SharedQuantizationSpec, ValueOrNode
from .policy import Policy
from .rearranged import passes_on, readers_of
from .refusals import Refusals
from .selection import Selection
from .support import OperatorSupport, Role
from .writer import AnnotationWriter

# Layers whose slots are annotated already.
_SPLIT = {
    CORRELATION: OperatorSupport(CORRELATION, Role.WEIGHTED),
    ADD_BIAS: OperatorSupport(ADD_BIAS, Role.OWN),
}
# Reasons of operators that have a way to integers.
_WAYS = {
    "aten::batch_norm": (
        "it is neither a layer nor part of one: a layer needs running statistics, and 3 or 4 axes "
        "for certain, or a linear that reads a matrix directly in front"
    ),
    "prim::If": "values leave branches as floats: trace the model",
    "prim::Loop": "values leave loops as floats: trace the model",
}


def annotate_between(
    graph: GraphView, annotations: Annotations, policy: Policy, refused: Mapping[int, str]
) -> None:
    """Annotate all that the target can compute between layers whose slots are annotated.

    A result that the input of one layer alone reads is quantized there. Other results have places
    of their
    own: a residual sum, which the next layer and the next sum read. Layers that are not split,
    since a form of the target spells them out, are quantized as `prepare_qat` does.

    Args:
        graph: the graph, in which layers are split.
        annotations: of the slots; others are added.
        policy: the capability of the target, and how activations and weights are quantized.
        refused: why nodes stay in float, by index; no message reports these.

    Operators that read integers and stay in float are told: `Annotations.refused` has them.
    """
    can = replace(policy.capability, operators={**policy.capability.operators, **_SPLIT})
    policy, resolved = replace(policy, capability=can), Configuration().resolve(graph)
    trained = [node for node in graph.nodes if place_at(node) is not None]
    known = {value.id for node in trained for value in node.outputs}
    stay = {n.index: "it is quantized already" for n in graph.nodes if _is_quantized(n)}
    stay |= refused
    while True:
        selection = Selection(can, graph, stay, quantized=set(known))
        selection.run()
        writer = AnnotationWriter(policy, selection, resolved, annotations, _results(annotations))
        found = Refusals(writer).find(lambda node: not is_split(node))
        if not found:
            break
        stay |= found
    _annotate(writer, set(_read_by_one(writer)))
    annotations.refused |= _left_in_float(writer)


def _left_in_float(writer: AnnotationWriter) -> dict[str, str]:
    """Return why operators that could read integers stay in float, by name.

    Operators that `refused` names, and layers, have their own reasons.
    """
    selection, can = writer.selection, writer.policy.capability
    found = {}
    for node in writer.nodes.values():
        known = node.index in selection.selected or node.index in selection.refused
        computes = node.kind.startswith("aten::") or node.kind in _WAYS
        if known or not computes or is_split(node) or passes_on(node):
            continue
        operands = [value for _, _, value in node.operands if value.is_tensor]
        operands += [value for value, _ in node.carried if value.is_tensor]
        reads = any(selection.origin(value).id in selection.quantized for value in operands)
        gives = any(value.is_tensor for value in node.outputs)
        if reads and gives and not node.traits.asks_for_shape:
            why = _WAYS.get(node.kind) or selection.reasons.get(node.name) or can.refusal(node)
            found[node.name] = why or "the target has no integer form of it"
    return found


def _is_quantized(node: NodeView) -> bool:
    """Say whether a node, or its result, is quantized in a model that trains with slots already."""
    single = len(node.outputs) == 1 and not is_split(node) and place_at(node) is None
    return single and bool(quantized_behind(node.output))


def _results(annotations: Annotations) -> dict[int, AnySpec | None]:
    """Return how the results of layers are quantized, by index of the node."""
    said = {node.index: annotations[node] for node in annotations}
    return {i: one.output_qspec_again or one.output_qspec for i, one in said.items()}


def _read_by_one(writer: AnnotationWriter) -> list[int]:
    """Return the nodes whose result the input of one layer alone reads, moved or not."""
    shared = writer.policy.capability.shared
    groups = shared(writer.selection.graph) if shared else ()
    alike = {value.id for group in groups for value in group}
    found = []
    for index in writer.selection.selected:
        value = writer.selection.result(writer.nodes[index])
        readers = list(readers_of(value, lambda *_: False))
        layer = _layer_at(readers[0]) if len(readers) == 1 else None
        if layer in writer.annotations and value.id not in alike:
            found.append(index)
    return found


def _layer_at(use: Use | None) -> NodeView | None:
    """Return the layer whose input slot a use is; None for other uses."""
    return use[0] if use and use[0].kind == CORRELATION and use[1] == 0 else None


def _annotate(writer: AnnotationWriter, at_readers: set[int]) -> None:
    selection, annotations = writer.selection, writer.annotations
    for index in sorted(selection.selected):
        node = writer.nodes[index]
        if is_split(node):
            continue
        _separate(writer, node)
        writer.annotate(node, index not in selection.inner and index not in at_readers)
        _share_inputs(writer, node)
    writer.share()
    split = {node.name for node in writer.nodes.values() if is_split(node)}
    annotations.reasons |= {n: why for n, why in selection.reasons.items() if n not in split}
    for name in annotations.quantized:
        annotations.reasons.pop(name, None)


def _separate(writer: AnnotationWriter, node: NodeView) -> None:
    """Give a result parameters of its own where its operand is quantized twice, at two places.

    A correlation without bias is a case: its first place, which others could share, is the
    correlation's, but a relu should have the few bits of the sum.
    """
    if writer.selection.selected[node.index].role is not Role.SHARED:
        return
    maker = writer.selection.origin(node.main_operand).producer
    said = writer.annotations.get(maker) if maker is not None else None
    if said is not None and said.output_qspec_again is not None:
        writer.results[node.index] = writer.policy.activation


def _share_inputs(writer: AnnotationWriter, node: NodeView) -> None:
    """Give an operand that a layer's input slot quantizes the parameters of this slot.

    An input of the model, which a layer and a residual sum read, then has one format.
    """
    annotations = writer.annotations
    own = annotations[node].input_qspec_map
    shared: dict[ValueOrNode, AnySpec | None] = {
        value: SharedQuantizationSpec((layer.main_operand, layer))
        for value in own
        if isinstance(value, ValueView) and (layer := _layer_that_reads(writer, value))
    }
    annotations[node] = replace(annotations[node], input_qspec_map={**own, **shared})


def _layer_that_reads(writer: AnnotationWriter, value: ValueView) -> NodeView | None:
    """Return a layer with slots whose input is the value, or that it was moved from."""
    if value.is_constant:
        return None
    readers = readers_of(writer.selection.origin(value), lambda *_: False)
    return next((x for x in map(_layer_at, readers) if x in writer.annotations), None)
