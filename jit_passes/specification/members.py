"""Groups of annotated edges and results that share parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ..errors import JitPassesError
from ..graph.view import GraphView, NodeView, Use, ValueView
from .annotation import Annotations, describe, name_of, value_of
from .specification import (
    DEFAULT_OBSERVER,
    AnySpec,
    DerivedQuantizationSpec,
    EdgeOrNode,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    SharedQuantizationSpec,
    ValueOrNode,
)

OwnSpec = QuantizationSpec | FixedQParamsQuantizationSpec | DerivedQuantizationSpec


@dataclass(eq=False)
class Member:
    """An edge or a result that is annotated: an element of union-find."""

    value: ValueView
    node: NodeView
    uses: tuple[Use, ...]  # none for a result
    spec: AnySpec
    parent: Member | None = None
    own: OwnSpec | None = None  # after following shared specifications

    @cached_property
    def name(self) -> str:
        return name_of((self.value, self.node) if self.uses else self.value)

    @property
    def place(self) -> str:
        return f"'{self.name}'" + (f" ({self.node.source})" if self.node.source else "")

    def root(self) -> Member:
        member = self
        while member.parent is not None:
            member = member.parent
        if member is not self:
            self.parent = member
        return member


@dataclass
class Members:
    """All annotated places, in groups once `share` has run.

    Attributes:
        graph: the graph.
        annotations: its annotations.
        all: in program order, the edges of an operator before its result.
        edges: by value and user.
        edges_of: by value.
        results: by value.
    """

    graph: GraphView
    annotations: Annotations
    all: list[Member] = field(default_factory=list)
    edges: dict[tuple[ValueView, NodeView], Member] = field(default_factory=dict)
    edges_of: dict[ValueView, list[Member]] = field(default_factory=dict)
    results: dict[ValueView, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = set(self.graph.nodes)
        for node in self.annotations:
            if node not in nodes:
                raise JitPassesError(
                    f"'{node.name}' is annotated and is not a node of this graph: annotate the "
                    "nodes of the graph that `annotate` was given"
                )
            annotation = self.annotations[node]
            self.add_edges(node, annotation.input_qspec_map)
            if annotation.output_qspec is not None:
                member = Member(value_of(node), node, (), annotation.output_qspec)
                self.results[member.value] = member
                self.all.append(member)
        for member in self.all:
            check_spec(member)
            check_float(member)

    def add_edges(self, node: NodeView, specs: Mapping[ValueOrNode, AnySpec | None]) -> None:
        """Add the operands in the order in which the node has them, however they are annotated."""
        found: dict[ValueView, Member] = {}
        for place, spec in specs.items():
            value = value_of(place)
            if spec is None:
                continue
            if value in found:
                raise JitPassesError(
                    f"'{name_of(value)}' is annotated twice as an operand of '{node.name}' "
                    f"({node.kind}), as a value and as a node: leave one of them out"
                )
            found[value] = Member(value, node, operand_uses(node, value), spec)
        places = operand_places(node)
        for value in sorted(found, key=lambda value: places[value]):
            self.edges[value, node] = found[value]
            self.edges_of.setdefault(value, []).append(found[value])
            self.all.append(found[value])

    def find(self, target: EdgeOrNode, who: str, what: str) -> list[Member]:
        """Return the members that a specification refers to; `who` and `what` are for messages.

        A value without a specification of its own stands for its uses. Uses with a specification
        of their own come first.
        """
        if isinstance(target, tuple):
            check_edge(target, who)
            edge = self.edges.get((value_of(target[0]), target[1]))
            found = [edge] if edge else []
        else:
            value = value_of(target)
            result = self.results.get(value)
            found = [result] if result else list(self.edges_of.get(value, ()))
        if not found:
            raise JitPassesError(
                f"{who} {what} '{name_of(target)}', which is {self.why_not(target)}"
            )
        return sorted(found, key=lambda m: isinstance(m.spec, SharedQuantizationSpec))

    def why_not(self, target: EdgeOrNode) -> str:
        """Say why a specification cannot refer to the target, and name the way out."""
        if not self.knows(target):
            return "of another graph: refer to the graph that `annotate` was given"
        hint = "or give this a specification of its own"
        if isinstance(target, tuple) and value_of(target[0]) in self.results:
            hint = f"or name the value, '{name_of(target[0])}', which is"
        return f"not quantized itself: annotate that too, {hint}"

    def knows(self, place: EdgeOrNode) -> bool:
        if isinstance(place, tuple):
            return self.knows(place[0]) and self.knows(place[1])
        if isinstance(place, NodeView):
            return any(place is node for node in self.graph.nodes)
        made = (value for node in self.graph.nodes for value in (*node.inputs, *node.outputs))
        return any(place is value for value in (*self.graph.inputs, *made))

    def share(self) -> None:
        for member in self.all:
            member.own = self.follow(member)
        for member in self.all:
            if isinstance(member.spec, SharedQuantizationSpec):
                targets = self.find(member.spec.edge_or_node, member.place, "shares with")
                self.check_agree(targets, f"{member.place} shares with")
                for target in (*targets[1:], member):
                    unite(targets[0], target)
        for places in self.annotations.shared:
            self.share_places(places)
        for member in self.all:
            if member.uses and self.annotations[member.node].allow_implicit_sharing:
                self.share_implicitly(member)

    def check_agree(self, edges: list[Member], who: str) -> None:
        """Refuse uses of one value that are quantized in different ways."""
        first = edges[0]
        for edge in edges[1:]:
            assert first.own is not None and edge.own is not None
            if not same_parameters(first.own, edge.own):
                raise JitPassesError(
                    f"{who} '{name_of(edge.value)}', whose uses differ: "
                    f"'{first.name}' has {describe(first.own)}, and '{edge.name}' has "
                    f"{describe(edge.own)}: refer to one of them, (value, node)"
                )

    def share_places(self, places: tuple[EdgeOrNode, ...]) -> None:
        """Unite members that are to have the same parameters, by any annotation."""
        found = [m for place in places for m in self.find(place, "annotations.share()", "is about")]
        for member in found[1:]:
            assert found[0].own is not None and member.own is not None
            if not same_parameters(found[0].own, member.own):
                raise JitPassesError(
                    f"{found[0].place} and {member.place} are to have the same parameters, and "
                    f"one is {describe(found[0].own)}, the other {describe(member.own)}"
                )
            unite(found[0], member)

    def follow(self, member: Member) -> OwnSpec:
        seen = [member]
        while isinstance(spec := seen[-1].spec, SharedQuantizationSpec):
            found = self.find(spec.edge_or_node, seen[-1].place, "shares with")
            following = next((m for m in found if m is not seen[-1]), found[0])
            if following in seen:
                circle = [*seen[seen.index(following) :], following]
                raise JitPassesError(
                    "values share parameters in a circle, and none of them has any: "
                    + " -> ".join(f"'{m.name}'" for m in circle)
                )
            seen.append(following)
        return spec

    def source(self, target: EdgeOrNode, who: str) -> Member:
        """Return the member that parameters are derived from; after sharing."""
        found = self.find(target, who, "is derived from")
        self.check_agree(found, f"{who} is derived from")
        for edge in found[1:]:
            if edge.root() is not found[0].root():
                raise JitPassesError(
                    f"{who} is derived from '{name_of(edge.value)}', whose uses have parameters "
                    f"of their own, '{found[0].name}' and '{edge.name}': derive from one of them, "
                    "(value, node)"
                )
        return found[0]

    def share_implicitly(self, member: Member) -> None:
        """Unite with other users of the value, and with its maker, if specifications are equal."""
        if member.value.written:  # read anew at each use: it may be another one each time
            return
        others = [
            other
            for other in self.edges_of[member.value]
            if self.annotations[other.node].allow_implicit_sharing
        ]
        result = self.results.get(member.value)
        for other in [*others, *([result] if result else [])]:
            assert member.own is not None and other.own is not None
            if other is member or not folded_alike(member, other):
                continue
            if same_parameters(member.own, other.own):
                unite(other, member)


def unite(parent: Member, child: Member) -> None:
    parent_root, child_root = parent.root(), child.root()
    if parent_root is not child_root:
        child_root.parent = parent_root


def folded_alike(one: Member, other: Member) -> bool:
    """Say whether integers see equal numbers: a batch norm behind changes a weight."""

    def factor(member: Member) -> tuple[Any, ...]:
        norm = member.node.folded if is_weight(member) else None
        if norm is None:
            return ()
        gamma, variance, eps = map(norm.operand, ("weight", "running_var", "eps"))
        return gamma, variance, eps.constant

    return factor(one) == factor(other)


def is_weight(member: Member) -> bool:
    return any(user.traits.weighted and operand == 1 for user, operand in member.uses)


def same_parameters(one: AnySpec, other: AnySpec) -> bool:
    """Say whether two specifications differ at most in how a range is found."""
    if isinstance(one, QuantizationSpec) and isinstance(other, QuantizationSpec):
        other = replace(other, observer=DEFAULT_OBSERVER)
        one = replace(one, observer=DEFAULT_OBSERVER)
    return one == other


def operand_uses(node: NodeView, value: ValueView) -> tuple[Use, ...]:
    """Return the operands of the node that are this value, and the elements of its lists.

    Raises:
        JitPassesError: there are none.
    """
    found = (node.use(place, k) for place, k, operand in node.operands if operand is value)
    uses = tuple(dict.fromkeys(found))  # an operator may take a list twice
    if not uses:
        operands = ", ".join(f"'{name_of(v)}'" for v in operand_places(node) if v.is_tensor)
        raise JitPassesError(
            f"'{name_of(value)}' is annotated as an operand of '{node.name}' ({node.kind}), "
            f"which has {operands or 'no tensor operands'}"
        )
    return uses


def operand_places(node: NodeView) -> dict[ValueView, int]:
    """Return the operands of the node and the elements of its lists, and where each comes first."""
    places: dict[ValueView, int] = {}
    for _, _, value in node.operands:
        places.setdefault(value, len(places))
    return places


def check_edge(edge: tuple[ValueOrNode, NodeView], who: str) -> None:
    if len(edge) != 2 or not isinstance(edge[1], NodeView):
        kinds = ", ".join(type(part).__name__ for part in edge)
        raise JitPassesError(
            f"{who} refers to ({kinds}): an edge is a value, or the node that makes it, and the "
            "node that uses it: (value, node)"
        )


def check_spec(member: Member) -> None:
    if not isinstance(member.spec, AnySpec):
        raise JitPassesError(
            f"{member.place} is annotated with {member.spec!r}: a QuantizationSpec, a "
            "SharedQuantizationSpec, a FixedQParamsQuantizationSpec or a DerivedQuantizationSpec "
            "is expected"
        )


def check_float(member: Member) -> None:
    value = member.value
    found = ""
    if isinstance(value.constant, torch.Tensor):  # a value of type Tensor? may hold one too
        if not value.constant.is_floating_point():
            found = f"it holds {str(value.constant.dtype).removeprefix('torch.')}"
    elif not value.is_tensor:
        found = "it is no tensor"
    elif value.dtype is not None and not value.dtype.is_floating_point:
        found = f"it holds {str(value.dtype).removeprefix('torch.')}"
    elif value.producer is not None and (gives := value.producer.traits.gives) is not None:
        found = f"it holds {str(gives).removeprefix('torch.')}"
    if found:
        raise JitPassesError(
            f"{member.place} is annotated to be quantized, and {found}: only float tensors can be"
        )
