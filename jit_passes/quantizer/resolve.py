"""From annotations to groups of values with the same parameters.

Annotations say what each operator wants. Here it is decided who shares parameters with whom, as
PyTorch's PT2 export quantization does (torchao/quantization/pt2e/prepare.py), and what is quantized
where: the result does not depend on the order in which annotations were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import JitPassesError
from ..graph import GraphView, NodeView, ValueView
from .annotation import ANY_RANK, Annotations, describe, name_of, value_of
from .specification import (
    DEFAULT_OBSERVER,
    AnySpec,
    DerivedQuantizationSpec,
    EdgeOrNode,
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
    SharedQuantizationSpec,
    ValueOrNode,
    derivation_name,
)

OwnSpec = QuantizationSpec | FixedQParamsQuantizationSpec | DerivedQuantizationSpec
Use = tuple[NodeView, int]
LIST = "prim::ListConstruct"


@dataclass(frozen=True)
class Quantization:
    """A place at which a value is quantized.

    Attributes:
        value: the value.
        uses: (node, operand) that see it quantized; none for all of them.
        node: the annotated operator; for shared edges, the first.
        spec: how; the same for all of a group.
        group: number of the values that have the same parameters.
        observed: whether this value's numbers count when the group's parameters are chosen.
        owner: name of the operator that is quantized as a whole or not at all: for results, and
            for constant operands; else "".
        users: names of the operators that the uses belong to.
        ranks: see `QuantizationAnnotation`.
        again: whether the value is quantized here a second time.
    """

    value: ValueView
    uses: tuple[Use, ...]
    node: NodeView
    spec: ResolvedSpec
    group: int
    observed: bool
    owner: str
    users: tuple[str, ...]
    ranks: tuple[int, int]
    again: bool = False

    @property
    def name(self) -> str:
        """What messages and files call it: the value, or `value -> user`."""
        return f"{self.value.name} -> {self.users[0]}" if self.uses else self.value.name


def resolve(graph: GraphView, annotations: Annotations) -> list[Quantization]:
    """Return all places at which values are quantized: uses, then results, in program order.

    An operand that has the parameters its maker's result is quantized with is no place of its own.

    Raises:
        JitPassesError: an annotation is not about the graph, names an operand that its operator
            does not have, or one twice, or asks to quantize what is no float tensor; a
            specification shares with or derives from something that is not quantized, with itself
            in a circle, or with a value whose uses are quantized in different ways. The message
            names the values.
    """
    members = _Members(graph, annotations)
    members.share()
    return _Writer(members).write()


@dataclass(eq=False)
class _Member:
    """An edge or a result that is annotated: what union-find works on."""

    value: ValueView
    node: NodeView
    uses: tuple[Use, ...]  # none for a result
    spec: AnySpec
    parent: _Member | None = None
    own: OwnSpec | None = None  # after following what it shares with

    @property
    def name(self) -> str:
        return name_of((self.value, self.node) if self.uses else self.value)

    @property
    def place(self) -> str:
        return f"'{self.name}'" + (f" ({self.node.source})" if self.node.source else "")

    def root(self) -> _Member:
        member = self
        while member.parent is not None:
            member = member.parent
        if member is not self:
            self.parent = member
        return member


@dataclass
class _Members:
    graph: GraphView
    annotations: Annotations
    all: list[_Member] = field(default_factory=list)  # in program order, edges before results
    edges: dict[tuple[ValueView, NodeView], _Member] = field(default_factory=dict)
    edges_of: dict[ValueView, list[_Member]] = field(default_factory=dict)
    results: dict[ValueView, _Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = self.graph.nodes
        for node in self.annotations:
            if node.index >= len(nodes) or nodes[node.index] is not node:
                raise JitPassesError(
                    f"'{node.name}' is annotated and is not a node of this graph: annotate the "
                    "nodes of the graph that `annotate` was given"
                )
            annotation = self.annotations[node]
            self.add_edges(node, annotation.input_qspec_map)
            if annotation.output_qspec is not None:
                member = _Member(value_of(node), node, (), annotation.output_qspec)
                self.results[member.value] = member
                self.all.append(member)
        for member in self.all:
            check_spec(member)
            check_float(member)

    def add_edges(self, node: NodeView, specs: Mapping[ValueOrNode, AnySpec | None]) -> None:
        """Add the operands in the order in which the node has them, however they are annotated."""
        found: dict[ValueView, _Member] = {}
        for place, spec in specs.items():
            value = value_of(place)
            if spec is None:
                continue
            if value in found:
                raise JitPassesError(
                    f"'{name_of(value)}' is annotated twice as an operand of '{node.name}' "
                    f"({node.kind}), as a value and as a node: leave one of them out"
                )
            found[value] = _Member(value, node, operand_uses(node, value), spec)
        places = operand_places(node)
        for value in sorted(found, key=lambda value: places[value]):
            self.edges[value, node] = found[value]
            self.edges_of.setdefault(value, []).append(found[value])
            self.all.append(found[value])

    def find(self, target: EdgeOrNode, who: str, what: str) -> list[_Member]:
        """Return what a specification refers to; `who` and `what` are for messages.

        A value without a specification of its own stands for its uses. Those that say themselves
        how they are quantized come first.
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
                f"{who} {what} '{name_of(target)}', which is "
                + (
                    "not quantized itself: annotate that too, or give this a specification of its "
                    "own"
                    if self.knows(target)
                    else "of another graph: refer to the graph that `annotate` was given"
                )
            )
        return sorted(found, key=lambda m: isinstance(m.spec, SharedQuantizationSpec))

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

    def check_agree(self, edges: list[_Member], who: str) -> None:
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
        """Unite what is to have the same parameters, whoever said so."""
        found = [m for place in places for m in self.find(place, "annotations.share()", "is about")]
        for member in found[1:]:
            assert found[0].own is not None and member.own is not None
            if not same_parameters(found[0].own, member.own):
                raise JitPassesError(
                    f"{found[0].place} and {member.place} are to have the same parameters, and "
                    f"one is {describe(found[0].own)}, the other {describe(member.own)}"
                )
            unite(found[0], member)

    def follow(self, member: _Member) -> OwnSpec:
        seen = [member]
        while isinstance(spec := seen[-1].spec, SharedQuantizationSpec):
            found = self.find(spec.edge_or_node, seen[-1].place, "shares with")
            following = next((m for m in found if m is not seen[-1]), found[0])
            if following in seen:
                circle = [*seen[seen.index(following) :], following]
                raise JitPassesError(
                    "values share parameters in a circle, and none says what they are: "
                    + " -> ".join(f"'{m.name}'" for m in circle)
                )
            seen.append(following)
        return spec

    def source(self, target: EdgeOrNode, who: str) -> _Member:
        """Return what parameters are derived from; after sharing."""
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

    def share_implicitly(self, member: _Member) -> None:
        """Unite with the other users of the value, and with its maker, if they want the same."""
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
            if other is not member and same_parameters(member.own, other.own):
                unite(other, member)


def unite(parent: _Member, child: _Member) -> None:
    parent_root, child_root = parent.root(), child.root()
    if parent_root is not child_root:
        child_root.parent = parent_root


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
    uses = [(node, i) for i, operand in enumerate(node.inputs) if operand is value]
    for operand in dict.fromkeys(node.inputs):
        maker = operand.producer
        if maker is not None and maker.kind == LIST:
            uses += [(maker, i) for i, element in enumerate(maker.inputs) if element is value]
    if not uses:
        operands = ", ".join(f"'{name_of(v)}'" for v in operand_places(node) if v.is_tensor)
        raise JitPassesError(
            f"'{name_of(value)}' is annotated as an operand of '{node.name}' ({node.kind}), "
            f"which has {operands or 'no tensor operands'}"
        )
    return tuple(uses)


def operand_places(node: NodeView) -> dict[ValueView, int]:
    """Return the operands of the node and the elements of its lists, and where each comes first."""
    places: dict[ValueView, int] = {}
    for operand in node.inputs:
        places.setdefault(operand, len(places))
        if operand.producer is not None and operand.producer.kind == LIST:
            for element in operand.producer.inputs:
                places.setdefault(element, len(places))
    return places


def check_edge(edge: tuple[ValueOrNode, NodeView], who: str) -> None:
    if len(edge) != 2 or not isinstance(edge[1], NodeView):
        kinds = ", ".join(type(part).__name__ for part in edge)
        raise JitPassesError(
            f"{who} refers to ({kinds}): an edge is a value, or the node that makes it, and the "
            "node that uses it: (value, node)"
        )


def check_spec(member: _Member) -> None:
    if not isinstance(member.spec, AnySpec):
        raise JitPassesError(
            f"{member.place} is annotated with {member.spec!r}: a QuantizationSpec, a "
            "SharedQuantizationSpec, a FixedQParamsQuantizationSpec or a DerivedQuantizationSpec "
            "is expected"
        )


def check_float(member: _Member) -> None:
    value = member.value
    found = ""
    if not value.is_tensor:
        found = "it is no tensor"
    elif isinstance(value.constant, torch.Tensor):
        if not value.constant.is_floating_point():
            found = f"it holds {str(value.constant.dtype).removeprefix('torch.')}"
    elif value.dtype is not None and not value.dtype.is_floating_point:
        found = f"it holds {str(value.dtype).removeprefix('torch.')}"
    if found:
        raise JitPassesError(
            f"{member.place} is annotated to be quantized, and {found}: only float tensors can be"
        )


@dataclass
class _Writer:
    members: _Members
    groups: dict[_Member, int] = field(default_factory=dict)  # by root
    specs: dict[_Member, OwnSpec] = field(default_factory=dict)  # by root, of the first member

    def write(self) -> list[Quantization]:
        for member in self.members.all:
            root = member.root()
            self.groups.setdefault(root, len(self.groups))
            assert member.own is not None
            if root not in self.specs or not self.is_observed(root):
                self.specs[root] = member.own
        self.check_derivations()
        places = [self.edge(group) for group in self.edges_by_place()]
        places.sort(key=lambda place: (place.uses[0][0].index, place.uses[0][1]))
        for node in self.members.annotations:
            places += self.results(node)
        return places

    def is_observed(self, root: _Member) -> bool:
        return isinstance(self.specs[root], QuantizationSpec)

    def edges_by_place(self) -> Iterable[dict[_Member, list[Use]]]:
        """Uses in one block see the value quantized once; all of them if it is not written."""
        found: dict[tuple[ValueView, int, int, int], dict[_Member, list[Use]]] = {}
        claimed: dict[Use, _Member] = {}
        for member in self.members.all:
            if not member.uses or self.is_seen_as_result(member):
                continue
            for use in member.uses:
                check_claim(claimed.setdefault(use, member), member)
                node = use[0]
                anew = node.index if member.value.written else -1
                key = (member.value, self.groups[member.root()], node.block, anew)
                found.setdefault(key, {}).setdefault(member, []).append(use)
        return found.values()

    def is_seen_as_result(self, member: _Member) -> bool:
        """Whether the value has the member's parameters for all its users."""
        result = self.members.results.get(member.value)
        return result is not None and not member.value.written and result.root() is member.root()

    def edge(self, uses_of: Mapping[_Member, Sequence[Use]]) -> Quantization:
        members = sorted(uses_of, key=lambda member: member.node.index)
        uses = {use for member in members for use in uses_of[member]}
        first = members[0]
        users = tuple(dict.fromkeys(self.owner(member.node) for member in members))
        constant = first.value.is_constant and len(members) == 1
        return Quantization(
            first.value, tuple(sorted(uses, key=lambda use: (use[0].index, use[1]))), first.node,
            self.spec(first), self.groups[first.root()],
            any(observed(member) for member in members),
            users[0] if constant else "", users, ANY_RANK,
        )  # fmt: skip

    def results(self, node: NodeView) -> list[Quantization]:
        annotation = self.members.annotations[node]
        found = []
        rest: dict[str, Any] = {"owner": self.owner(node), "users": (), "ranks": annotation.ranks}
        if annotation.output_qspec is not None:
            member = self.members.results[node.output]
            edges = self.members.edges_of.get(node.output, ())
            seen = [member, *(edge for edge in edges if self.is_seen_as_result(edge))]
            spec, group = self.spec(member), self.groups[member.root()]
            watched = any(observed(one) for one in seen)
            found.append(Quantization(node.output, (), node, spec, group, watched, **rest))
        if (again := annotation.output_qspec_again) is not None:
            found.append(
                Quantization(value_of(node), (), node, again, -1, True, **rest, again=True)
            )
        return found

    def owner(self, node: NodeView) -> str:
        return (self.members.annotations[node].part_of or node).name

    def spec(self, member: _Member) -> ResolvedSpec:
        spec = self.specs[member.root()]
        if not isinstance(spec, DerivedQuantizationSpec):
            return spec
        groups = tuple(self.groups[source.root()] for source in self.sources(member, spec))
        function = derivation_name(spec.derive_qparams_fn)
        grid = (spec.dtype, spec.quant_min, spec.quant_max)
        return GroupDerivation(groups, function, *grid, spec.qscheme, spec.ch_axis)

    def sources(self, member: _Member, spec: DerivedQuantizationSpec) -> list[_Member]:
        return [self.members.source(target, member.place) for target in spec.derived_from]

    def check_derivations(self) -> None:
        """Refuse parameters that are derived from each other in a circle."""
        derived: dict[_Member, list[_Member]] = {}
        for member in self.members.all:
            root = member.root()
            spec = self.specs[root]
            if isinstance(spec, DerivedQuantizationSpec) and root not in derived:
                derived[root] = [source.root() for source in self.sources(member, spec)]
        done: set[int] = set()
        for root in derived:
            check_acyclic(root, derived, done)


def check_acyclic(start: _Member, derived: Mapping[_Member, list[_Member]], done: set[int]) -> None:
    path: list[_Member] = []
    pending: list[tuple[_Member, bool]] = [(start, False)]
    while pending:
        member, leaving = pending.pop()
        if leaving:
            path.pop()
            done.add(id(member))
        elif member in path:
            circle = [*path[path.index(member) :], member]
            raise JitPassesError(
                "parameters are derived from each other in a circle: "
                + " -> ".join(f"'{m.name}'" for m in circle)
            )
        elif id(member) not in done:
            path.append(member)
            pending.append((member, True))
            pending += [(source, False) for source in derived.get(member, [])]


def observed(member: _Member) -> bool:
    return not isinstance(member.spec, SharedQuantizationSpec) or member.spec.observed


def check_claim(first: _Member, second: _Member) -> None:
    """Refuse what operators want of an element of the same list, if it is not the same."""
    if first.root() is not second.root():
        raise JitPassesError(
            f"'{first.name}' and '{second.name}' are elements of one list and are to have "
            f"parameters of their own: let them share, (value, node), or build two lists"
        )
