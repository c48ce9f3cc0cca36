"""From annotations to groups of values with the same parameters.

Annotations say what each operator wants. This module decides which places share parameters, and
where values are quantized, as in PyTorch's PT2 export quantization
(torchao/quantization/pt2e/prepare.py). The result does not depend on the order of the annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch

from ..errors import JitPassesError
from ..graph.view import GraphView, NodeView, Use, ValueView
from .annotation import Annotations, name_of, value_of
from .derivation import derivation_name
from .groups import scales_of
from .members import Member, Members, OwnSpec
from .place import Place
from .slots import channels_of, is_split, label, place_at, slot_of
from .specification import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
    SharedQuantizationSpec,
)


@dataclass(frozen=True)
class Quantization:
    """A place in the graph that was annotated.

    Attributes:
        place: its record for later stages.
        value: the value.
        uses: (node, operand) that see it quantized; none for all of them.
        node: the annotated operator; for shared edges, the first.
        again: whether the value is quantized here a second time.
    """

    place: Place
    value: ValueView
    uses: tuple[Use, ...]
    node: NodeView
    again: bool = False

    @property
    def name(self) -> str:
        """Its name in messages and files."""
        return self.place.name

    @property
    def spec(self) -> ResolvedSpec:
        """How it is quantized."""
        return self.place.spec


def resolve(graph: GraphView, annotations: Annotations) -> list[Quantization]:
    """Return all places at which values are quantized: uses, then results, in program order.

    An operand that has the parameters its maker's result is quantized with is no place of its own.

    Raises:
        JitPassesError: an annotation is not about the graph, names an operand twice, names an
            operand that its operator does not have, or asks to quantize a value that is no float
            tensor. Or a specification shares with, or derives from, a place that is not quantized,
            itself in a circle, or a value with different quantizations at its uses. The message
            names the values.
    """
    members = Members(graph, annotations)
    members.share()
    return _Writer(members, _first_free(graph)).write()


def _first_free(graph: GraphView) -> int:
    """Return a number that no place and no group of a model that trains already has."""
    known = [place for node in graph.nodes if (place := place_at(node)) is not None]
    return max((max(place.id, place.group) + 1 for place in known), default=0)


@dataclass
class _Writer:
    members: Members
    first: int
    groups: dict[Member, int] = field(default_factory=dict)  # by root
    specs: dict[Member, OwnSpec] = field(default_factory=dict)  # by root, of the first member
    places: list[Quantization] = field(default_factory=list)
    # Shapes of scales by group, each with the name of its first place.
    scales: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def write(self) -> list[Quantization]:
        for member in self.members.all:
            root = member.root()
            self.groups.setdefault(root, self.first + len(self.groups))
            assert member.own is not None
            if root not in self.specs or not self.is_observed(root):
                self.specs[root] = member.own
        self.check_dynamic()
        self.check_derivations()
        edges = [(in_order(chain(*group.values())), group) for group in self.edges_by_place()]
        for uses, group in sorted(edges, key=lambda edge: position(edge[0][0])):
            self.add_edge(uses, list(group))
        for node in self.members.annotations:
            self.add_results(node)
        return self.places

    def check_dynamic(self) -> None:
        """Refuse parameters of one run of the model where they are needed before, or elsewhere."""
        first: dict[Member, Member] = {}
        for member in self.members.all:
            spec = self.specs[member.root()]
            if isinstance(spec, DerivedQuantizationSpec):
                for source in self.sources(member, spec):
                    if self.specs[source.root()].is_dynamic:
                        raise JitPassesError(
                            f"{member.place} is derived from '{source.name}', whose parameters are "
                            "chosen as the model runs (is_dynamic=True): leave it in float, or "
                            "give that a specification for calibration"
                        )
            if not spec.is_dynamic:
                continue
            if member.value.is_constant:
                raise JitPassesError(
                    f"{member.place} is a constant, and is_dynamic=True is for what the model "
                    "computes: give it a specification without"
                )
            known = first.setdefault(member.root(), member)
            if known.value is not member.value:
                raise JitPassesError(
                    f"{member.place} shares parameters with '{known.name}', which are chosen from "
                    "one value as the model runs (is_dynamic=True): let each have its own"
                )

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

    def add_edge(self, uses: tuple[Use, ...], members: list[Member]) -> None:
        members.sort(key=lambda member: member.node.index)
        first = members[0]
        users = tuple(dict.fromkeys(self.owner(member.node) for member in members))
        constant = first.value.is_constant and len(members) == 1
        self.add(
            first.value,
            uses,
            first.node,
            spec=self.spec(first),
            group=self.groups[first.root()],
            observed=any(observed(member) for member in members),
            owner=users[0] if constant else "",
            users=users,
        )

    def add_results(self, node: NodeView) -> None:
        annotation = self.members.annotations[node]
        rest: dict[str, Any] = {"owner": self.owner(node), "ranks": annotation.ranks}
        if annotation.output_qspec is not None:
            value = value_of(node)
            member = self.members.results[value]
            edges = self.members.edges_of.get(value, ())
            seen = [member, *(edge for edge in edges if self.is_seen_as_result(edge))]
            spec, group = self.spec(member), self.groups[member.root()]
            watched = any(observed(one) for one in seen)
            rest |= {"observed": watched}
            self.add(value, (), node, spec=spec, group=group, **rest)
        if (again := annotation.output_qspec_again) is not None:
            rest |= {"observed": True}
            value = value_of(node)
            own = self.first + len(self.groups)  # not shared
            self.groups[Member(value, node, (), again)] = own
            self.add(value, (), node, again=True, spec=again, group=own, **rest)

    def add(
        self,
        value: ValueView,
        uses: tuple[Use, ...],
        node: NodeView,
        again: bool = False,
        *,
        spec: ResolvedSpec,
        group: int,
        **known: Any,
    ) -> None:
        """Add a place.

        Raises:
            JitPassesError: the value is to be measured per channel, and the number of its channels
                is unknown; or places that share its parameters have another number; or its shape
                does not have the groups that are asked for.
        """
        user, operand = uses[0] if uses else (node, None)
        slot = slot_of(user, operand, again)
        name = name_of((value, node)) if uses else value.name
        name = label(node, slot) if is_split(user) else name
        place = Place(self.first + len(self.places), name, slot, spec, group, **known)
        found = Quantization(place, value, uses, node, again)
        axis = None if isinstance(spec, FixedQParamsQuantizationSpec) else spec.ch_axis
        if axis is not None and (scales := scales_at(found, axis)):
            found = replace(found, place=replace(place, scales=scales))
            other, former = self.scales.setdefault(group, (name, scales))
            if scales != former:
                one, two = (" by ".join(map(str, shape)) for shape in (former, scales))
                raise JitPassesError(
                    f"'{other}' and '{name}' share parameters per channel, and have {one} and "
                    f"{two} channels along axis {axis}"
                )
        self.places.append(found)

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


def in_order(uses: Iterable[Use]) -> tuple[Use, ...]:
    """Return them without repetition, in program order."""
    return tuple(sorted(set(uses), key=position))


def position(use: Use) -> tuple[int, int]:
    """Return the key that sorts uses into program order."""
    return use[0].index, use[1]


def scales_at(quantization: Quantization, axis: int) -> tuple[int, ...]:
    """Return the shape of the scales that a value has, ahead of time.

    Empty if the shape of a derived scale is not known, since it is not measured.

    Raises:
        JitPassesError: the graph does not know, or the value cannot be cut into these groups.
    """
    spec, name = quantization.spec, quantization.name
    if isinstance(spec, QuantizationSpec) and spec.group_size is not None:
        constant = quantization.value.constant
        if not isinstance(constant, torch.Tensor):
            raise JitPassesError(
                f"'{name}' is to be quantized in groups of {spec.group_size}, and the model "
                "computes it: groups are for constant weights; leave group_size out"
            )
        return scales_of(constant.shape, axis, spec.group_size, name)
    shape = quantization.value.shape
    channels = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    node = quantization.uses[0][0] if quantization.uses else quantization.node
    if channels is None and is_split(node):
        channels = channels_of(quantization.node, quantization.place.slot)
    if channels is not None:
        return (channels,) if channels else ()
    if shape is None and isinstance(spec, GroupDerivation):
        return ()
    raise JitPassesError(
        f"'{name}' is to be quantized per channel along axis {axis}, and its "
        f"shape is {'not known ahead of time' if shape is None else list(shape)}: use a "
        "per-tensor scheme"
    )


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
    """Refuse different wishes of operators for an element of the same list."""
    if first.root() is not second.root():
        raise JitPassesError(
            f"'{first.name}' and '{second.name}' are elements of one list and are to have "
            f"parameters of their own: let them share, (value, node), or build two lists"
        )
