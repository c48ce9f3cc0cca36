"""Annotations: the result of a quantizer, and all that is to be quantized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

from ..errors import JitPassesError, aligned
from ..graph.view import NodeView, ValueView
from .specification import (
    AnySpec,
    DerivedQuantizationSpec,
    EdgeOrNode,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    ValueOrNode,
)

ANY_RANK = (0, 64)


@dataclass(frozen=True)
class QuantizationAnnotation:
    """How one operator takes part in quantization.

    Attributes:
        input_qspec_map: for operands that it is to see quantized, how; by value, or by the node
            that makes it; None for as it is. Elements of a list operand count as operands; other
            readers of the same list see them quantized too.
        output_qspec: how all users see its result; None for as it is.
        allow_implicit_sharing: whether operands have the parameters that the operators that make
            them, and their other users, ask for with an equal specification.
        part_of: the operator that this one is computed together with, as a relu with the
            convolution in front: if calibration rules one out, it rules out both.
        ranks: lowest and highest number of dimensions of its result with which it can be quantized.
        output_qspec_again: how to quantize its result once more, for fake quantization only: a wide
            sum of products that is then narrowed.
    """

    input_qspec_map: Mapping[ValueOrNode, AnySpec | None] = field(default_factory=dict)
    output_qspec: AnySpec | None = None
    allow_implicit_sharing: bool = True
    part_of: NodeView | None = None
    ranks: tuple[int, int] = ANY_RANK
    output_qspec_again: QuantizationSpec | None = None


class Annotations(MutableMapping[NodeView, QuantizationAnnotation]):
    """The annotations of a graph, by node; printing them gives a table.

    Attributes:
        reasons: for operators that could have been quantized and stay float, by name, why.
        kept: names of the operators that stay float by request.
        chosen: for operators whose mode the quantizer chose, by name, the reason.
        refused: for operators that were wanted otherwise than the backend can do, by name, why.
        lossy: for operators that are quantized as all others are, and would be better in float, by
            name, why.
        idle: rules of a configuration that match and change nothing: which, and why.
        shared: the groups that `share` was given.
        advice: the end of the message about refused operators.
    """

    def __init__(self, reasons: Mapping[str, str] | None = None) -> None:
        self.reasons = dict(reasons or {})
        self.kept: set[str] = set()
        self.chosen: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.lossy: dict[str, str] = {}
        self.idle: list[str] = []
        self.shared: list[tuple[EdgeOrNode, ...]] = []
        self.advice = "ask for options that the target has, or say keep_float: true"
        self._by_node: dict[NodeView, QuantizationAnnotation] = {}

    def __getitem__(self, node: NodeView) -> QuantizationAnnotation:
        return self._by_node[node]

    def __setitem__(self, node: NodeView, annotation: QuantizationAnnotation) -> None:
        if not isinstance(node, NodeView) or not isinstance(annotation, QuantizationAnnotation):
            raise JitPassesError(
                "annotations[node] = QuantizationAnnotation(...) with a node of the graph is "
                f"expected, got {type(node).__name__} and {type(annotation).__name__}"
            )
        self._by_node[node] = annotation

    def __delitem__(self, node: NodeView) -> None:
        del self._by_node[node]

    def __iter__(self) -> Iterator[NodeView]:
        return iter(sorted(self._by_node, key=lambda node: node.index))

    def __len__(self) -> int:
        return len(self._by_node)

    def share(self, *places: EdgeOrNode) -> None:
        """Say that values which are annotated with equal specifications have the same parameters.

        Observers may differ; the first one in program order finds the range.

        Args:
            places: values, as results or at all their annotated uses, or pairs of a value and one
                user.
        """
        self.shared.append(places)

    @property
    def quantized(self) -> set[str]:
        """Names of the operators that compute on quantized operands or give a quantized result."""
        return {node.name for node in self._by_node}

    def __str__(self) -> str:
        return aligned([row for node in self for row in _rows(node, self[node])])


def _rows(node: NodeView, annotation: QuantizationAnnotation) -> list[tuple[str, str, str]]:
    name = f"{node.name} ({node.kind})"
    rows = [
        (_operand(node, value_of(place)), describe(spec))
        for place, spec in annotation.input_qspec_map.items()
        if spec is not None
    ]
    results = (annotation.output_qspec, annotation.output_qspec_again)
    rows += [("result", describe(spec)) for spec in results if spec is not None]
    rows = rows or [("", "its operands and result come quantized")]
    return [("" if i else name, *row) for i, row in enumerate(rows)]


def value_of(place: ValueOrNode) -> ValueView:
    """Return the value that a node stands for, or the value itself."""
    if isinstance(place, ValueView):
        return place
    if not isinstance(place, NodeView):
        found = type(place).__name__
        raise JitPassesError(f"a value or node of the graph is expected, got {found}")
    if len(place.outputs) != 1:
        results = f"{len(place.outputs)} results: say which one with node.outputs[i]"
        raise JitPassesError(f"'{place.name}' ({place.kind}) has {results}")
    return place.output


def name_of(place: EdgeOrNode) -> str:
    """Return a value's or an edge's name in messages: `value -> user`, `user[1]` for a constant."""
    if not isinstance(place, tuple):
        value = value_of(place)
        return "constant" if _is_nameless(value) else value.name
    value, node = value_of(place[0]), place[1]
    if _is_nameless(value) and value in node.inputs:
        return f"{node.name}[{node.inputs.index(value)}]"
    return f"{name_of(value)} -> {node.name}"


def _operand(node: NodeView, value: ValueView) -> str:
    """Return an operand's name in the table."""
    if _is_nameless(value) and value in node.inputs:
        return f"operand {node.inputs.index(value)}"
    return name_of(value)


def _is_nameless(value: ValueView) -> bool:
    """Say whether a value has a number only, as constants that passes have computed."""
    return value.is_constant and value.name.isdigit()


def describe(spec: AnySpec) -> str:
    """Return a specification in a few words."""
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return f"{spec.dtype}  fixed scale {spec.scale:g} zero_point {spec.zero_point}"
    if isinstance(spec, DerivedQuantizationSpec):
        return f"{spec.dtype}  derived from {', '.join(name_of(p) for p in spec.derived_from)}"
    if isinstance(spec, QuantizationSpec):
        axis = f" axis {spec.ch_axis}" if spec.ch_axis is not None else ""
        axis += f" groups of {spec.group_size}" if spec.group_size is not None else ""
        grid = f"{spec.dtype} [{spec.quant_min}, {spec.quant_max}]"
        return f"{grid}  {spec.qscheme}{axis}  {type(spec.observer).__name__}"
    return f"as {name_of(spec.edge_or_node)}"
