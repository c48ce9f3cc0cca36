"""Quantizing the five slots of a layer that is split into correlation and bias addition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..configuration.options import TensorOptions
from ..errors import ArgumentError, JitPassesError, nearest
from ..graph.modules import cover_of
from ..graph.view import GraphView, NodeView
from ..observers import MovingAverageMinMax
from ..specification.annotation import Annotations, QuantizationAnnotation
from ..specification.slots import CORRELATION, SLOTS, Correlation, place_at, quantized_behind, where
from ..specification.specification import AnySpec, QuantizationSpec, ValueOrNode
from .base import Quantizer
from .between import annotate_between
from .capability import Capability
from .support import Spec
from .writer import bias_of

Specs = dict[str, AnySpec | None]
_BIAS = 2  # operand of convolutions and linears
NOT_CHOSEN = "its module was not chosen"
ADVICE = "change the model or the slots, or leave modules out with `where`"
# A slot, as far as its options say nothing else.
SLOT = QuantizationSpec.of_bits(
    8, qscheme="per_tensor_symmetric", observer=MovingAverageMinMax(averaging_constant=0.01)
)


def _power_of_two(bits: int) -> TensorOptions:
    return TensorOptions(bits=bits, scheme="power_of_two")


RECIPES: Mapping[str, Mapping[str, TensorOptions]] = MappingProxyType(
    {
        # q8(q16(sum q8(w) * q8(x)) + q16(b)): Graffitist (Jain et al., "Trained quantization
        # thresholds for accurate and efficient fixed-point inference of deep neural networks",
        # 2019), with scales from ranges instead of trained ones.
        "graffitist": MappingProxyType(
            {
                "input": _power_of_two(8),
                "weight": _power_of_two(8),
                "correlation": _power_of_two(16),
                "bias": _power_of_two(16),
                "sum": _power_of_two(8),
            }
        ),
    }
)


class SlotQuantizer(Quantizer):
    """Annotates the slots of split convolutions and linears.

    A target that takes operands in float next to integers takes any slots. Other targets compute a
    layer on integers as a whole. For these, a layer is annotated if input, weight and sum are
    quantized as the target can, and the correlation is quantized only where the target rounds it
    (`Capability.correlations`). For a target that computes with integers alone, all other operators
    of the target are annotated too, with activations as the slot "input" says. A bias without a
    slot is then in steps of the sum of products.

    Args:
        slots: for each slot to quantize, how: "input", "weight", "correlation" (the sum of
            products), "bias", "sum" (of both). Options left open are 8 signed bits, symmetric,
            the range of `MovingAverageMinMax`; or the nearest options that the target has.
        where: a pattern, or several, of paths of modules: `layer1`, with all that is in it,
            `layer1.*.conv1`, `*`.
        target: the backend that it is made for.

    Raises:
        JitPassesError: no slot, or one of another name; no pattern.
    """

    def __init__(
        self,
        slots: Mapping[str, TensorOptions],
        where: str | Sequence[str] = "*",
        target: Any = None,
    ) -> None:
        unknown = [name for name in slots if name not in SLOTS]
        if unknown or not slots:
            found = f"not {unknown[0]!r}" if unknown else "and none was given"
            raise ArgumentError(f"slots are {', '.join(SLOTS)}, {found}")
        self.slots = dict(slots)
        self.where = _patterns(where)
        self.target = target

    def annotate(self, graph: GraphView) -> Annotations:
        """Annotate the slots of all correlations in modules that `where` names.

        Raises:
            JitPassesError: there is none, or a slot of one is quantized already.
        """
        correlations = [node for node in graph.nodes if node.kind == CORRELATION]
        others = (node.name for node in graph.nodes if node.kind != CORRELATION)
        annotations = Annotations(dict.fromkeys(others, "only convolutions and linears have slots"))
        annotations.advice = ADVICE
        chosen = [node for node in correlations if self._covers(node)]
        if not chosen:
            raise JitPassesError(self._nothing_matches([node.module for node in correlations]))
        for node in correlations:
            if node not in chosen:
                if _is_quantized(node):
                    annotations[node] = QuantizationAnnotation()
                annotations.reasons[node.name] = NOT_CHOSEN
                continue
            op = Correlation.of(node)
            specs = self._specs(op)
            why = self._refusal(op, specs)
            if why and _has_rounded_weight(node):
                raise JitPassesError(
                    f"{where(node)} is quantized already: start from the float model, or let "
                    "`where` choose other modules"
                )
            if why:
                annotations.refused[node.name] = annotations.reasons[node.name] = why
            else:
                _annotate(op, specs, annotations, self._integers)
        if self._integers is not None:
            self._annotate_between(graph, annotations, self._integers)
        return annotations

    @property
    def _integers(self) -> Capability | None:
        """Capability of a target that computes with integers alone; None for other targets."""
        integers = not self._takes_any() and self.target.capability.integers_only
        return self.target.capability if integers else None

    def _annotate_between(
        self, graph: GraphView, annotations: Annotations, can: Capability
    ) -> None:
        """Annotate the other operators, with activations as the slot "input" says.

        A scale or a range that the option gives is for the layers' inputs alone.
        """
        options = self.slots.get("input", TensorOptions())
        options = replace(options, scale=None, zero_point=None, range=None, channelwise=None)
        activation = options.apply(can.activations.nearest(SLOT))
        if not annotations or not isinstance(activation, QuantizationSpec):
            return
        refused = {}
        for node in graph.nodes:
            left = node.kind == CORRELATION and node not in annotations
            known = node.kind in can.operators and not can.is_weighted(node)
            if left or not (known or self._covers(node)):
                refused[node.index] = annotations.reasons.get(node.name, NOT_CHOSEN)
        policy = replace(self.target.quantizer().policy, capability=can, activation=activation)
        annotate_between(graph, annotations, policy, refused)

    def _covers(self, node: NodeView) -> bool:
        return cover_of(self.where)(node.module)

    def _specs(self, op: Correlation) -> Specs:
        """Return the specification of each slot, None for float."""
        channels = -(op.spatial_dims + 1)
        operands = {"input": (0, channels), "weight": (1, int(op.transposed)), "bias": (_BIAS, 0)}
        found: Specs = {}
        for slot, options in self.slots.items():
            operand, axis = operands.get(slot, (None, channels))
            found[slot] = options.apply(self._default(op, operand), axis, where(op.node))
        return found

    def _default(self, op: Correlation, operand: int | None) -> QuantizationSpec:
        """Return the specification of a slot whose options are all left open."""
        if self._takes_any():
            return SLOT
        backend: Capability = self.target.capability
        can = backend.specs(op.merged, operand)
        if can is None:
            return SLOT
        scheme = backend.activations.nearest(SLOT).qscheme
        if operand == _BIAS and scheme in can.qschemes:
            return can.nearest(replace(SLOT, qscheme=scheme))
        return can.nearest(SLOT)

    def _takes_any(self) -> bool:
        return self.target is None or self.target.capability.mixed

    def _refusal(self, op: Correlation, specs: Specs) -> str | None:
        """Say why the target cannot compute it with these slots."""
        if self._takes_any():
            return None
        if specs.get("correlation") is not None and not self.target.capability.correlations:
            return "its correlation is quantized, and the target rounds once the bias is added"
        if reason := self.target.refusal(op.merged):
            return str(reason)
        operands = {"input": 0, "weight": 1, "correlation": None, "sum": None}
        for slot, operand in operands.items():
            if (spec := specs.get(slot)) is None and slot != "correlation":
                return f"its {slot} is not quantized"
            reason = None if spec is None else self.target.refusal(op.merged, operand, spec)
            if reason:
                return f"its {slot} is to be {reason}"
        return None

    def _nothing_matches(self, paths: list[str]) -> str:
        if not paths:
            return "the method has no convolution or linear that could be split"
        wanted = ", ".join(map(repr, self.where))
        near = nearest(self.where[0], paths)
        return f"no convolution or linear is in a module that matches {wanted}: {near}"


def _annotate(
    op: Correlation, specs: Specs, annotations: Annotations, integers: Capability | None
) -> None:
    """Annotate a layer.

    Args:
        op: the layer.
        specs: of its slots.
        annotations: others are added to these.
        integers: capability of a target that takes no bias in float; None for other targets.
    """
    node, added = op.node, op.add_bias
    product = _checked(specs, "correlation", node)
    total = _checked(specs, "sum", added or node)
    assert added or total is None or isinstance(total, QuantizationSpec)
    operands: dict[ValueOrNode, AnySpec | None] = {
        node.inputs[k]: _checked(specs, slot, node, k) for k, slot in enumerate(SLOTS[:2])
    }
    annotations[node] = QuantizationAnnotation(
        operands,
        product,
        allow_implicit_sharing=False,
        output_qspec_again=None if added else total,
    )
    if added:
        bias = _checked(specs, "bias", added, 1)
        weight = operands[node.operand("weight")]
        if bias is None and integers is not None and isinstance(weight, Spec):
            edges = (node.main_operand, node), (node.operand("weight"), node)
            bias = bias_of(edges, weight, integers)
        operands = {added.operand("bias"): bias}
        annotations[added] = QuantizationAnnotation(operands, total, allow_implicit_sharing=False)


def _patterns(where: Any) -> tuple[str, ...]:
    """Return patterns of paths as a tuple."""
    given = [where] if isinstance(where, str) else where
    if not isinstance(given, Sequence) or not given or not all(isinstance(p, str) for p in given):
        raise ArgumentError(
            f"where is a pattern of the paths of modules, or several, not {where!r}: '*' is all"
        )
    return tuple(given)


def _checked(specs: Specs, slot: str, node: NodeView, operand: int | None = None) -> Any:
    """Return the specification of a slot that is not quantized yet."""
    makers = [] if operand is None else [node.inputs[operand].producer]
    near = quantized_behind(node.output) if operand is None else filter(None, makers)
    places = [place for other in near if (place := place_at(other)) is not None]
    if (spec := specs.get(slot)) is not None and any(place.slot == slot for place in places):
        raise JitPassesError(
            f"the slot '{slot}' of {where(node)} is quantized already: start from the float "
            "model, or choose other modules or slots"
        )
    return spec


def _has_rounded_weight(node: NodeView) -> bool:
    maker = node.operand("weight").producer
    return maker is not None and place_at(maker) is not None


def _is_quantized(node: NodeView) -> bool:
    makers = [value.producer for value in node.inputs[:2]]
    return bool(quantized_behind(node.output)) or any(m and place_at(m) for m in makers)
