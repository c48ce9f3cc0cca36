"""From places at which values are quantized to the operators that train there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import JitPassesError
from ..fake_quantizers import FakeQuantizer, Operator, Place
from ..graph import GraphView, NodeView, ValueView
from ..observe import check_channels
from ..quantizer import Quantization, QuantizationSpec, spec_to_text
from ..quantizer.selection import DEFERRED, deferred_norm, passes_on
from ..quantizer.slots import label, slot_of_split

WEIGHTED = ("aten::conv", "aten::linear")
OPERANDS = ("input", "weight", "bias")
POSITIVE = frozenset(
    f"aten::{name}"
    for name in (
        "abs", "exp", "exp2", "hardsigmoid", "relu", "relu6", "sigmoid", "softmax", "softplus",
        "sqrt", "square",
    )
)  # fmt: skip
CLIPS = ("aten::clamp", "aten::clamp_min", "aten::hardtanh")
AVERAGES = ("aten::avg_pool", "aten::adaptive_", "aten::max_pool", "aten::mean", "aten::upsample")
MONOTONE = ("aten::add", "aten::cat", "aten::maximum", "aten::minimum", "aten::mul", "aten::stack")

FakeQuantizations = tuple[tuple[Any, ...], ...]


@dataclass
class Plan:
    """What the pass insert_fake_quantize takes.

    Attributes:
        graph: the graph, with parameters as constants.
        attribute: gives a tensor of the model by its path.
        method: decides which operator stands at each place.
        requests: one for each place.
        states: the tensors that they keep: (name, node, tensor, whether it is trained).
    """

    graph: GraphView
    attribute: Callable[[str], torch.Tensor]
    method: FakeQuantizer
    requests: list[tuple[Any, ...]] = field(default_factory=list)
    states: list[tuple[Any, ...]] = field(default_factory=list)
    by_group: dict[int, tuple[Operator, int]] = field(default_factory=dict)

    def add_all(self, quantizations: Sequence[Quantization]) -> None:
        """Plan all places.

        Raises:
            JitPassesError: one has channels whose number is not known, or the method cannot do what
                its specification says.
        """
        counts = check_channels(quantizations)
        nodes = {node.name: node for node in self.graph.nodes if node.name}
        signed = signed_groups(quantizations)
        for quantization, count in zip(quantizations, counts, strict=True):
            home = nodes.get(quantization.owner, quantization.node)
            place = self.place(quantization, count, signed[quantization.group])
            self.add(quantization, place, home)

    def add(self, quantization: Quantization, place: Place, home: NodeView) -> None:
        """Plan one place, whose parameters belong to the module of `home`."""
        known = None if quantization.again else self.by_group.get(quantization.group)
        operator, first = known or (self.method.at(place), len(self.states))
        if known is None:
            self.states += [
                (
                    state.name,
                    home.index,
                    state.initial.detach().requires_grad_(state.trained),
                    state.trained,
                )
                for state in operator.states
            ]
            if not quantization.again:
                self.by_group[quantization.group] = operator, first
        else:  # the parameters of another place, and names, weights and batch norms of its own
            operator = self.method.at(place)
        operands = tuple(
            (role, first + what) if role == "state" else (role, what)
            for role, what in operator.operands
        )
        uses = [(user.index, operand) for user, operand in quantization.uses]
        self.requests.append(
            (quantization.value.id, uses, home.index, operator.kind, operands, place.name)
        )

    def place(self, quantization: Quantization, count: int, signed: bool) -> Place:
        """Return what the method needs to know."""
        spec, value = quantization.spec, quantization.value
        text = spec_to_text(
            spec,
            group=quantization.group,
            observed=quantization.observed,
            owner=quantization.owner,
            users=quantization.users,
            ranks=quantization.ranks,
            channels=count,
        )
        slot = slot_name(quantization)
        split = slot_of_split(quantization) is not None
        name = label(quantization.node, slot) if split else quantization.name
        later = slot == "bias" and quantization.uses[0][0].kind == DEFERRED
        place = Place(
            name, slot, spec, text, count,
            signed=signed, observed=quantization.observed, later=later,
        )  # fmt: skip
        if not isinstance(value.constant, torch.Tensor):
            return place
        place = replace(place, weight=value.constant.detach())
        return self.folded(place, quantization) if slot == "weight" else place

    def folded(self, place: Place, quantization: Quantization) -> Place:
        """Return the place of a weight with the batch norm that will be folded into it."""
        node = quantization.uses[0][0]
        norm = deferred_norm(node)
        if norm is None:
            return place
        gamma, variance, eps = norm.inputs[1], norm.inputs[4], norm.inputs[7].constant
        factor = torch.ops.jit_passes.fold_factor(
            gamma.constant if gamma.constant is None else gamma.constant.detach(),
            self.attribute(variance.name),
            eps,
        )
        axis = 1 if "transpose" in node.kind else 0
        assert place.weight is not None
        shape = [-1 if i == axis else 1 for i in range(place.weight.dim())]
        weight = place.weight * factor.reshape(shape)
        return replace(place, weight=weight, fold=norm.index, fold_axis=axis)

    def options(self) -> dict[str, Mapping[str, Any]]:
        """Return the options of the pass."""
        return {
            "insert_fake_quantize": {
                "fake_quantizations": tuple(self.requests),
                "states": tuple(self.states),
            }
        }


def slot_name(quantization: Quantization) -> str:
    """Return what a place is to its operator; parameters have that name in front."""
    if (slot := slot_of_split(quantization)) is not None:
        return slot
    if not quantization.uses:
        return "output"
    node, operand = quantization.uses[0]
    if node.kind == DEFERRED:
        return "bias"
    if node.kind.startswith(WEIGHTED) and operand < len(OPERANDS):
        return OPERANDS[operand]
    return "input" if operand == 0 else f"input_{operand}"


def signed_groups(quantizations: Sequence[Quantization]) -> dict[int, bool]:
    """Return, by group, whether a value of it can hold numbers below 0."""
    signed: dict[int, bool] = {}
    known: dict[int, bool] = {}
    for quantization in quantizations:
        below = can_be_negative(quantization.value, known)
        signed[quantization.group] = signed.get(quantization.group, False) or below
    return signed


def can_be_negative(value: ValueView, known: dict[int, bool]) -> bool:
    """Say whether a value can hold numbers below 0, as far as the graph tells.

    Args:
        value: the value.
        known: answers for other values, by id; filled in.
    """
    pending = [value]  # not recursive: chains of additions may be long
    while pending:
        last = pending[-1]
        if last.id in known:
            pending.pop()
            continue
        decided, operands = _sign(last)
        if decided is not None:
            known[last.id] = decided
        else:
            unknown = [operand for operand in operands if operand.id not in known]
            if unknown:
                pending += unknown
            else:
                known[last.id] = any(known[operand.id] for operand in operands)
    return known[value.id]


def _sign(value: ValueView) -> tuple[bool | None, Sequence[ValueView]]:
    """Return whether it can be below 0, or None and the values that this depends on."""
    node = value.producer
    constant = value.constant
    if isinstance(constant, int | float):
        return constant < 0, ()
    if node is None or value.written or value.is_constant:
        return True, ()
    if node.kind in POSITIVE:
        return False, ()
    if node.kind in CLIPS:
        low = node.inputs[1].constant
        if isinstance(low, int | float) and low >= 0:
            return False, ()
        return (None, node.inputs[:1]) if node.kind != "aten::hardtanh" else (True, ())
    if passes_on(node) or node.kind.startswith(AVERAGES):
        return None, node.inputs[:1]
    if node.kind == "prim::ListConstruct":
        return None, node.inputs
    if node.kind in MONOTONE:
        return None, node.inputs[:1] if node.kind in ("aten::cat", "aten::stack") else node.inputs
    return True, ()


def check_forward_only(quantizations: Sequence[Quantization]) -> None:
    """Raise an error for what only a prepared model can do."""
    for quantization in quantizations:
        spec = quantization.spec
        if isinstance(spec, QuantizationSpec) and spec.range_form != "pytorch":
            raise JitPassesError(
                f"'{quantization.name}' is to have parameters in Glow's form, which do not train: "
                "leave range_form out"
            )
