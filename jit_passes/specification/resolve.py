"""From annotations to groups of values with the same parameters.

Annotations say what each operator wants. Here it is decided who shares parameters with whom, as
PyTorch's PT2 export quantization does (torchao/quantization/pt2e/prepare.py), and what is quantized
where: the result does not depend on the order in which annotations were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import JitPassesError
from ..graph.view import GraphView, NodeView, ValueView
from .annotation import ANY_RANK, Annotations, name_of, value_of
from .members import Member, Members, OwnSpec, Use
from .specification import (
    DerivedQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
    SharedQuantizationSpec,
    derivation_name,
)


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
            does not have, or one twice, or asks to quantize what is no float tensor; a
            specification shares with or derives from something that is not quantized, with itself
            in a circle, or with a value whose uses are quantized in different ways. The message
            names the values.
    """
    members = Members(graph, annotations)
    members.share()
    return _Writer(members).write()


@dataclass
class _Writer:
    members: Members
    groups: dict[Member, int] = field(default_factory=dict)  # by root
    specs: dict[Member, OwnSpec] = field(default_factory=dict)  # by root, of the first member

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

    def is_observed(self, root: Member) -> bool:
        return isinstance(self.specs[root], QuantizationSpec)

    def edges_by_place(self) -> Iterable[dict[Member, list[Use]]]:
        """Uses in one block see the value quantized once; all of them if it is not written."""
        found: dict[tuple[ValueView, int, int, int], dict[Member, list[Use]]] = {}
        claimed: dict[Use, Member] = {}
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

    def is_seen_as_result(self, member: Member) -> bool:
        """Whether the value has the member's parameters for all its users."""
        result = self.members.results.get(member.value)
        return result is not None and not member.value.written and result.root() is member.root()

    def edge(self, uses_of: Mapping[Member, Sequence[Use]]) -> Quantization:
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
            value = value_of(node)
            member = self.members.results[value]
            edges = self.members.edges_of.get(value, ())
            seen = [member, *(edge for edge in edges if self.is_seen_as_result(edge))]
            spec, group = self.spec(member), self.groups[member.root()]
            watched = any(observed(one) for one in seen)
            found.append(Quantization(value, (), node, spec, group, watched, **rest))
        if (again := annotation.output_qspec_again) is not None:
            found.append(
                Quantization(value_of(node), (), node, again, -1, True, **rest, again=True)
            )
        return found

    def owner(self, node: NodeView) -> str:
        return (self.members.annotations[node].part_of or node).name

    def spec(self, member: Member) -> ResolvedSpec:
        spec = self.specs[member.root()]
        if not isinstance(spec, DerivedQuantizationSpec):
            return spec
        groups = tuple(self.groups[source.root()] for source in self.sources(member, spec))
        function = derivation_name(spec.derive_qparams_fn)
        grid = (spec.dtype, spec.quant_min, spec.quant_max)
        return GroupDerivation(groups, function, *grid, spec.qscheme, spec.ch_axis)

    def sources(self, member: Member, spec: DerivedQuantizationSpec) -> list[Member]:
        return [self.members.source(target, member.place) for target in spec.derived_from]

    def check_derivations(self) -> None:
        """Refuse parameters that are derived from each other in a circle."""
        derived: dict[Member, list[Member]] = {}
        for member in self.members.all:
            root = member.root()
            spec = self.specs[root]
            if isinstance(spec, DerivedQuantizationSpec) and root not in derived:
                derived[root] = [source.root() for source in self.sources(member, spec)]
        done: set[int] = set()
        for root in derived:
            check_acyclic(root, derived, done)


def check_acyclic(start: Member, derived: Mapping[Member, list[Member]], done: set[int]) -> None:
    path: list[Member] = []
    pending: list[tuple[Member, bool]] = [(start, False)]
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


def observed(member: Member) -> bool:
    return not isinstance(member.spec, SharedQuantizationSpec) or member.spec.observed


def check_claim(first: Member, second: Member) -> None:
    """Refuse what operators want of an element of the same list, if it is not the same."""
    if first.root() is not second.root():
        raise JitPassesError(
            f"'{first.name}' and '{second.name}' are elements of one list and are to have "
            f"parameters of their own: let them share, (value, node), or build two lists"
        )
