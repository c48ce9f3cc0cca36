"""Operators with weights that read and give floats, next to any other operators.

Embeddings look rows of their weight up. Recurrent layers quantize their input as the model runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ..configuration.configuration import ResolvedConfiguration
from ..configuration.options import FLOAT
from ..graph.view import NodeView, ValueView
from ..specification.annotation import QuantizationAnnotation
from ..specification.groups import no_groups
from ..specification.recurrent import input_of, matrices_of
from ..specification.specification import AnySpec, QuantizationSpec
from .policy import Policy
from .support import Role, Spec, SpecSupport

STANDALONE = {Role.LOOKUP: "weight_only", Role.RECURRENT: "dynamic"}  # the mode of each


def weight_spec(policy: Policy, resolved: ResolvedConfiguration, node: NodeView) -> Spec | None:
    """Return how the weights of an operator are quantized; None for not at all."""
    weighted = node.traits.weighted
    channels = int(weighted is not None and weighted.transposed)
    options = resolved.of(node).weight
    return options.apply(policy.weight_of(node), channels, f"weight of '{node.name}'")


def no_groups_of(
    spec: AnySpec | None, weight: ValueView, support: SpecSupport | None
) -> str | None:
    """Say why a weight cannot be quantized in the groups that are asked for; None if it can."""
    if not isinstance(spec, QuantizationSpec) or spec.group_size is None or spec.ch_axis is None:
        return None
    if not isinstance(weight.constant, torch.Tensor):
        return None
    multiple = support.groups if support is not None else 1
    why = no_groups(weight.constant.shape, spec.ch_axis, spec.group_size, multiple)
    return why and (
        f"its weight is to be in groups of {spec.group_size}, and {why}; channelwise: true gives "
        "it one scale for each channel"
    )


@dataclass(frozen=True)
class Standalone:
    """Decides how embeddings and recurrent layers are quantized.

    Attributes:
        policy: the choice of the quantizer.
        resolved: the options that rules set for each operator.
        tied: by index of an embedding, the quantized operator that has its table for a weight. The
            table is quantized too then: the float one would have to stay in the file beside the
            integers, which would be larger than before.
    """

    policy: Policy
    resolved: ResolvedConfiguration
    tied: Mapping[int, NodeView]

    def role(self, node: NodeView) -> Role | None:
        """Return the role of an operator, if it is one of these."""
        row = self.policy.capability.operators.get(node.kind)
        return row.role if row is not None and row.role in STANDALONE else None

    def reason(self, node: NodeView) -> str | None:
        """Say why an operator is not asked to be quantized, or has no quantized form."""
        role, mode = self.role(node), self.resolved.mode(node)
        options = self.resolved.of(node)
        if options.weight.dtype == FLOAT:
            return "its weight is to stay in float"
        if role is Role.LOOKUP:
            if not options.weight and mode != "weight_only" and node.index not in self.tied:
                return "nothing is said of its weight: a rule with mode: weight_only quantizes it"
            return self.policy.capability.refusal(node, mode="weight_only")
        if mode == "static":
            return "its states have no ranges ahead: a rule with mode: dynamic quantizes it"
        if mode == "dynamic" and options.input.dtype == FLOAT:
            return "its input is to stay in float, and its kernel quantizes it"
        return self.policy.capability.refusal(node, mode=mode)

    def why(self, node: NodeView) -> str | None:
        """Say why an operator is quantized that no option asks for; None for all others."""
        tied = self.tied.get(node.index)
        if (
            tied is None
            or self.resolved.of(node).weight
            or self.resolved.mode(node) == "weight_only"
        ):
            return None
        return f"its table is the weight of '{tied.name}'"

    def unsupported(self, node: NodeView) -> tuple[str, str] | None:
        """Return a tensor, "weight" say, and why the target cannot quantize it as is asked.

        None where it can, or where nothing is asked.
        """
        role = self.role(node)
        if role is None or self.reason(node):
            return None
        for what, value, operand, spec in self._specs(node):
            can, mode = self.policy.capability, STANDALONE[role]
            if why := can.refusal(node, operand, spec, mode):
                return what, f"its {what} is to be {why}"
            if why := no_groups_of(spec, value, can.specs(node, operand, mode)):
                return what, why
        return None

    def annotation(self, node: NodeView) -> QuantizationAnnotation:
        """Return how it is quantized."""
        specs = self._specs(node)
        return QuantizationAnnotation({value: spec for _, value, _, spec in specs})

    def _specs(self, node: NodeView) -> Iterator[tuple[str, ValueView, int, Spec]]:
        """Yield the quantized operands: the word for it, the value, the position, and how."""
        weight = weight_spec(self.policy, self.resolved, node)
        assert weight is not None
        if self.role(node) is Role.LOOKUP:
            operand = node.position("weight")
            yield "weight", node.inputs[operand], operand, weight
            return
        read, default = input_of(node), self.policy.dynamic_of(node)
        options = self.resolved.of(node).input.updated(self.resolved.of_value(read))
        spec = options.apply(default, where=f"'{node.name}'")
        if spec is not None:
            yield "input", read, 0, spec
        for matrix, operand in {matrix: place for place, matrix in matrices_of(node) or ()}.items():
            yield "weight", matrix, operand, weight
