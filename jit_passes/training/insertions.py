"""From places at which values are quantized to the operators that train there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import JitPassesError
from ..fake_quantizers import FakeQuantizer, Operator, State, TrainingPlace
from ..fake_quantizers.place import common_operands
from ..graph.view import GraphView, NodeView
from ..quantizers.deferred import real_use
from ..quantizers.signs import can_be_negative
from ..specification.bias import ACCUMULATOR
from ..specification.resolve import Quantization
from ..specification.specification import GroupDerivation, QuantizationSpec, ResolvedSpec
from ..stages.prepare import operands_of, request


@dataclass
class Insertions:
    """The options of the pass insert_fake_quantize."""

    graph: GraphView  # with parameters as constants
    attribute: Callable[[str], torch.Tensor]  # gives a tensor of the model by its path
    method: FakeQuantizer  # decides which operator stands at each place
    requests: list[dict[str, Any]] = field(default_factory=list)  # one for each place
    # The tensors that they keep: (name, node, tensor, whether it is trained).
    states: list[tuple[Any, ...]] = field(default_factory=list)
    by_group: dict[int, Operator] = field(default_factory=dict)

    def add_all(self, quantizations: Sequence[Quantization]) -> None:
        """Add all places."""
        nodes = {node.name: node for node in self.graph.nodes if node.name}
        signed = signed_groups(quantizations)
        derived = []
        for quantization in quantizations:
            home = nodes.get(quantization.place.owner, quantization.node)
            place = self.place(quantization, signed[quantization.place.group])
            if isinstance(place.spec, GroupDerivation):
                derived.append((quantization, place, home))
            else:
                self.add(quantization, place, home)
        for quantization, place, home in derived:  # once their sources are known
            operator = self.bias(place.spec) or self.method.at(place)
            self.insert(quantization, place, operator, home)

    def add(self, quantization: Quantization, place: TrainingPlace, home: NodeView) -> None:
        """Add one place, whose parameters belong to the module of `home`."""
        operator = self.method.at(place)
        known = self.by_group.get(place.place.group)
        operands = dict(operator.operands)
        for name, state in operands.items():
            if not isinstance(state, State):
                continue
            if known is not None and is_state(known.operands.get(name)):  # the group's states
                operands[name] = known.operands[name]
            else:
                operands[name] = self.state(f"{place.place.slot}_{state.name}", state, home)
        operator = replace(operator, operands=operands)
        self.by_group.setdefault(place.place.group, operator)
        self.insert(quantization, place, operator, home)

    def state(self, name: str, state: State, home: NodeView) -> tuple[str, int]:
        """Return the operand that is a tensor which the model keeps."""
        initial = state.initial.detach().requires_grad_(state.trained)
        self.states.append((name, home.index, initial, state.trained))
        return "state", len(self.states) - 1

    def insert(
        self, quantization: Quantization, place: TrainingPlace, operator: Operator, home: NodeView
    ) -> None:
        """Add one operator."""
        uses = [real_use(use) for use in quantization.uses]
        spec = replace(place.place, method=operator.method).to_text()
        known = operands_of(operator.kind, {**common_operands(place), "spec": spec})
        known |= operator.operands
        value = quantization.value.id
        self.requests.append(request(value, uses, home.index, operator.kind, known))

    def bias(self, spec: ResolvedSpec) -> Operator | None:
        """Return the operator of a bias in steps of the accumulator; None for other derived places.

        The bias is the convolution's own, or the one after folding the batch norm behind it.
        """
        if not isinstance(spec, GroupDerivation) or spec.function != ACCUMULATOR:
            return None
        operands: dict[str, Any] = {}
        for name, group in zip(("input", "weight"), spec.groups, strict=True):
            scale = self.scale_of(group)
            if scale is None:
                return None
            keys = ("state", "rule", "min", "max")
            operands |= {f"{name}_{key}": what for key, what in zip(keys, scale, strict=True)}
        return Operator("train_bias", operands)

    def scale_of(self, group: int) -> tuple[Any, str, int, int] | None:
        """Return the operands that give the scale of a group; None if it is not planned."""
        operator = self.by_group.get(group)
        if operator is None:
            return None
        if operator.kind == "train_fixed":
            return torch.tensor([operator.operands["scale"]]), "scale", 0, 1
        first = next((what for what in operator.operands.values() if is_state(what)), None)
        return (first, *operator.scale) if operator.scale else None

    def place(self, quantization: Quantization, signed: bool) -> TrainingPlace:
        """Return the place as the method takes it."""
        slot, value = quantization.place.slot, quantization.value
        later = slot == "bias" and quantization.uses[0][0].folded is not None
        place = TrainingPlace(quantization.place, signed=signed, later=later)
        if later or not isinstance(value.constant, torch.Tensor):
            return place
        place = replace(place, weight=value.constant.detach())
        return self.folded(place, quantization) if slot == "weight" else place

    def folded(self, place: TrainingPlace, quantization: Quantization) -> TrainingPlace:
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
        weighted = node.traits.weighted
        axis = int(weighted is not None and weighted.transposed)
        assert place.weight is not None
        _, fold = ops.deferred_weight(place.weight, factor, axis, False)  # where factor is 0: 1
        weight, _ = ops.deferred_weight(place.weight, fold, axis, True)
        return replace(place, weight=weight, fold=norm.index, fold_axis=axis)

    def options(self) -> dict[str, Mapping[str, Any]]:
        """Return the options of the pass."""
        taken = {"places": tuple(self.requests), "states": tuple(self.states)}
        return {"insert_fake_quantize": taken}


def is_state(operand: Any) -> bool:
    """Say whether an operand is a tensor that the model keeps."""
    return isinstance(operand, tuple) and operand[0] == "state"


def signed_groups(quantizations: Sequence[Quantization]) -> dict[int, bool]:
    """Return, by group, whether a value of it can hold numbers below 0."""
    signed: dict[int, bool] = {}
    known: dict[int, bool] = {}
    for quantization in quantizations:
        below = can_be_negative(quantization.value, known)
        group = quantization.place.group
        signed[group] = signed.get(group, False) or below
    return signed


def check_forward_only(quantizations: Sequence[Quantization]) -> None:
    """Raise an error for annotations that only a prepared model can follow."""
    for quantization in quantizations:
        spec = quantization.spec
        if isinstance(spec, QuantizationSpec) and spec.range_form == "glow":
            raise JitPassesError(
                f"'{quantization.name}' is to have parameters in Glow's form, which do not train: "
                "leave range_form out"
            )
        if isinstance(spec, QuantizationSpec) and spec.group_size is not None:
            raise JitPassesError(
                f"'{quantization.name}' is to be quantized in groups of {spec.group_size}, which "
                "do not train: leave group_size out, or quantize the trained model with prepare"
            )
