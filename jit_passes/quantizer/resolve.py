"""From annotations to groups of values with the same parameters.

Annotations say what each operator wants. Here it is decided who shares parameters with whom, as
PyTorch's PT2 export quantization does (torchao/quantization/pt2e/prepare.py), and what is quantized
where: the result does not depend on the order in which annotations were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import JitPassesError
from ..graph import GraphView, NodeView, ValueView
from .annotation import Annotations, describe, name_of, value_of
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
    derivation_name,
)

OwnSpec = QuantizationSpec | FixedQParamsQuantizationSpec | DerivedQuantizationSpec
Use = tuple[NodeView, int]


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
        """What messages and files call it: see `name_of`."""
        return name_of((self.value, self.node)) if self.uses else self.value.name


def resolve(graph: GraphView, annotations: Annotations) -> list[Quantization]:
    """Return all places at which values are quantized: uses, then results, in program order.

    An operand that has the parameters its maker's result is quantized with is no place of its own.

    Raises:
        JitPassesError: an annotation is not about the graph, names an operand that its operator
            does not have, or asks to quantize what is no float tensor; a specification shares with
            or derives from something that is not quantized, with itself in a circle, or with a
            value whose uses are quantized in different ways. The message names the values.
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
    edges: dict[tuple[int, int], _Member] = field(default_factory=dict)  # by value and node
    edges_of: dict[int, list[_Member]] = field(default_factory=dict)  # by value
    results: dict[int, _Member] = field(default_factory=dict)  # by value

    def __post_init__(self) -> None:
        nodes = self.graph.nodes
        for node in self.annotations:
            if node.index >= len(nodes) or nodes[node.index] is not node:
                raise JitPassesError(
                    f"'{node.name}' is annotated and is not a node of this graph: annotate the "
                    "nodes of the graph that `annotate` was given"
                )
            annotation = self.annotations[node]
            for place, spec in annotation.input_qspec_map.items():
                self.add_edge(node, value_of(place), spec)
            if annotation.output_qspec is not None:
                member = _Member(value_of(node), node, (), annotation.output_qspec)
                self.results[member.value.id] = member
                self.all.append(member)
        for member in self.all:
            check_float(member)

    def add_edge(self, node: NodeView, value: ValueView, spec: AnySpec) -> None:
        uses = operand_uses(node, value)
        if not uses:
            operands = ", ".join(f"'{name_of(v)}'" for v in node.inputs if v.is_tensor)
            raise JitPassesError(
                f"'{name_of(value)}' is annotated as an operand of '{node.name}' ({node.kind}), "
                f"which has {operands or 'no tensor operands'}"
            )
        member = _Member(value, node, uses, spec)
        self.edges[value.id, node.index] = member
        self.edges_of.setdefault(value.id, []).append(member)
        self.all.append(member)

    def find(self, target: EdgeOrNode, who: str, what: str) -> _Member:
        """Return what a specification refers to; `who` and `what` are for messages."""
        if isinstance(target, tuple):
            found = self.edges.get((value_of(target[0]).id, target[1].index))
        else:
            value = value_of(target)
            found = self.results.get(value.id)
            if found is None and (edges := self.edges_of.get(value.id)):
                found = edges[0]
                self.check_agree(edges, who)
        if found is None:
            hint = "annotate that too, or give this a specification of its own"
            if isinstance(target, tuple) and value_of(target[0]).id in self.results:
                hint = f"annotate that too, or name the value, '{name_of(target[0])}', which is"
            raise JitPassesError(
                f"{who} {what} '{name_of(target)}', which is not quantized itself: {hint}"
            )
        return found

    def check_agree(self, edges: list[_Member], who: str) -> None:
        """A value without a specification of its own stands for its uses, if they agree."""
        own = [edge for edge in edges if not isinstance(edge.spec, SharedQuantizationSpec)]
        for edge in own[1:]:
            if not same_parameters(own[0].spec, edge.spec):
                raise JitPassesError(
                    f"{who} shares with '{name_of(edge.value)}', whose uses differ: "
                    f"'{own[0].name}' has {describe(own[0].spec)}, and '{edge.name}' has "
                    f"{describe(edge.spec)}: share with one of them, (value, node)"
                )

    def share(self) -> None:
        for member in self.all:
            member.own = self.follow(member)
        for member in self.all:
            if isinstance(member.spec, SharedQuantizationSpec):
                target = self.find(member.spec.edge_or_node, member.place, "shares with")
                unite(target, member)
        for places in self.annotations.shared:
            self.share_places(places)
        for member in self.all:
            if member.uses and self.annotations[member.node].allow_implicit_sharing:
                self.share_implicitly(member)

    def share_places(self, places: tuple[EdgeOrNode, ...]) -> None:
        """Unite what is to have the same parameters, whoever said so."""
        found = [self.find(place, "annotations.share()", "is about") for place in places]
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
            following = self.find(spec.edge_or_node, seen[-1].place, "shares with")
            if following in seen:
                circle = [*seen[seen.index(following) :], following]
                raise JitPassesError(
                    "values share parameters in a circle, and none says what they are: "
                    + " -> ".join(f"'{m.name}'" for m in circle)
                )
            seen.append(following)
        return spec

    def share_implicitly(self, member: _Member) -> None:
        """Unite with the other users of the value, and with its maker, if they want the same."""
        if member.value.written:  # read anew at each use: it may be another one each time
            return
        others = [
            other
            for other in self.edges_of[member.value.id]
            if self.annotations[other.node].allow_implicit_sharing
        ]
        result = self.results.get(member.value.id)
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
    """Return the operands of the node that are this value, and the elements of its lists."""
    uses = [(node, i) for i, operand in enumerate(node.inputs) if operand is value]
    for operand in node.inputs:
        maker = operand.producer
        if maker is not None and maker.kind == "prim::ListConstruct":
            uses += [(maker, i) for i, element in enumerate(maker.inputs) if element is value]
    return tuple(uses)


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

    def edges_by_place(self) -> Iterable[list[_Member]]:
        """Uses in one block see the value quantized once; all of them if it is not written."""
        found: dict[tuple[int, int, int, int], list[_Member]] = {}
        for member in self.members.all:
            if not member.uses:
                continue
            value, node = member.value, member.uses[0][0]
            result = self.members.results.get(value.id)
            if result and not value.written and result.root() is member.root():
                continue
            use = node.index if value.written else -1
            key = (value.id, self.groups[member.root()], node.block, use)
            found.setdefault(key, []).append(member)
        return found.values()

    def edge(self, members: list[_Member]) -> Quantization:
        uses = sorted(
            {use for member in members for use in member.uses}, key=lambda u: (u[0].index, u[1])
        )
        first = min(members, key=lambda member: member.node.index)
        users = tuple(
            dict.fromkeys(self.owner(m.node) for m in sorted(members, key=lambda m: m.node.index))
        )
        constant = first.value.is_constant and len(members) == 1
        return Quantization(
            first.value, tuple(uses), first.node, self.spec(first), self.groups[first.root()],
            any(observed(member) for member in members),
            users[0] if constant else "", users, (0, 64),
        )  # fmt: skip

    def results(self, node: NodeView) -> list[Quantization]:
        annotation = self.members.annotations[node]
        found = []
        rest: dict[str, Any] = {"owner": self.owner(node), "users": (), "ranks": annotation.ranks}
        if annotation.output_qspec is not None:
            member = self.members.results[node.output.id]
            spec, group = self.spec(member), self.groups[member.root()]
            place = Quantization(node.output, (), node, spec, group, observed(member), **rest)
            found.append(place)
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
        return [self.members.find(t, member.place, "is derived from") for t in spec.derived_from]

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
