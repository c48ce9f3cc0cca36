"""From places at which values are quantized to the operators that train there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import JitPassesError
from ..fake_quantizers import FakeQuantizer, Operator, Place
from ..fake_quantizers.place import Operand, constants
from ..graph.view import GraphView, NodeView
from ..quantizers.deferred import real_use
from ..quantizers.signs import can_be_negative
from ..quantizers.slots import label, slot_of_split
from ..specification.qparams import bias_qparams
from ..specification.resolve import Quantization
from ..specification.specification import (
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
    derivation_name,
    spec_to_text,
)
from ..stages.observe import check_channels

OPERANDS = ("input", "weight", "bias")
ACCUMULATOR = derivation_name(bias_qparams)  # biases in steps of it are rounded in training


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
        derived = []
        for quantization, count in zip(quantizations, counts, strict=True):
            home = nodes.get(quantization.owner, quantization.node)
            place = self.place(quantization, count, signed[quantization.group])
            if isinstance(place.spec, GroupDerivation):
                derived.append((quantization, place, home))
            else:
                self.add(quantization, place, home)
        for quantization, place, home in derived:  # once it is known what from
            operator = self.bias(quantization, place.spec, place) or self.method.at(place)
            self.insert(quantization, place, home, operator, 0)

    def add(self, quantization: Quantization, place: Place, home: NodeView) -> None:
        """Plan one place, whose parameters belong to the module of `home`."""
        operator = self.method.at(place)
        known = None if quantization.again else self.by_group.get(quantization.group)
        first = known[1] if known else len(self.states)
        if known is None:
            for state in operator.states:
                initial = state.initial.detach().requires_grad_(state.trained)
                self.states.append((state.name, home.index, initial, state.trained))
            if not quantization.again:
                self.by_group[quantization.group] = operator, first
        self.insert(quantization, place, home, operator, first)

    def insert(
        self,
        quantization: Quantization,
        place: Place,
        home: NodeView,
        operator: Operator,
        first: int,
    ) -> None:
        """Plan one operator, whose states are those from `first` on."""
        operands = tuple(
            (role, first + what) if role == "state" else (role, what)
            for role, what in operator.operands
        )
        uses = [real_use(use) for use in quantization.uses]
        self.requests.append(
            (quantization.value.id, uses, home.index, operator.kind, operands, place.name)
        )

    def bias(self, quantization: Quantization, spec: ResolvedSpec, place: Place) -> Operator | None:
        """Return the operator of a bias in steps of the accumulator; None for what else is derived.

        It is that of the convolution, or what folding the batch norm behind will make of it.
        """
        if not isinstance(spec, GroupDerivation) or spec.function != ACCUMULATOR:
            return None
        scales = [self.scale_of(group) for group in spec.groups]
        if not all(scales):
            return None
        grid = constants(spec.quant_min, spec.quant_max, place.name, place.text)
        return Operator("train_bias", (*scales[0], *scales[1], ("enabled", None), *grid))

    def scale_of(self, group: int) -> tuple[Operand, ...]:
        """Return the operands that give the scale of a group; none if it is not planned."""
        operator, first = self.by_group.get(group, (None, 0))
        if operator is None:
            return ()
        if operator.kind == "train_fixed":
            return constants(torch.tensor([operator.operands[0][1]]), "scale", 0, 1)
        return (("state", first), *constants(*operator.scale)) if operator.scale else ()

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
        later = slot == "bias" and quantization.uses[0][0].folded is not None
        place = Place(
            name, slot, spec, text, count,
            signed=signed, observed=quantization.observed, later=later,
        )  # fmt: skip
        if later or not isinstance(value.constant, torch.Tensor):
            return place
        place = replace(place, weight=value.constant.detach())
        return self.folded(place, quantization) if slot == "weight" else place

    def folded(self, place: Place, quantization: Quantization) -> Place:
        """Return the place of a weight with the batch norm that will be folded into it."""
        node = quantization.uses[0][0]
        norm = node.folded
        if norm is None:
            return place
        gamma, variance, eps = map(norm.operand, ("weight", "running_var", "eps"))
        ops = torch.ops.jit_passes
        factor = ops.fold_factor(
            gamma.constant if gamma.constant is None else gamma.constant.detach(),
            self.attribute(variance.name),
            eps.constant,
        )
        axis = 1 if "transpose" in node.kind else 0
        assert place.weight is not None
        _, fold = ops.deferred_weight(place.weight, factor, axis, False)  # where factor is 0: 1
        weight, _ = ops.deferred_weight(place.weight, fold, axis, True)
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
    if node.traits.weighted and operand < len(OPERANDS):
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


def check_forward_only(quantizations: Sequence[Quantization]) -> None:
    """Raise an error for what only a prepared model can do."""
    for quantization in quantizations:
        spec = quantization.spec
        if isinstance(spec, QuantizationSpec) and spec.range_form != "pytorch":
            raise JitPassesError(
                f"'{quantization.name}' is to have parameters in Glow's form, which do not train: "
                "leave range_form out"
            )
