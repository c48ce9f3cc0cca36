"""Quantizing the five slots of a convolution that is split into correlation and bias addition."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from ..errors import JitPassesError
from ..graph.view import GraphView, NodeView
from ..observers import MovingAverageMinMax
from ..specification.annotation import Annotations, QuantizationAnnotation
from ..specification.slots import CORRELATION, FAKE_QUANTIZE, SLOTS, Correlation, label, where
from ..specification.specification import ROUNDINGS, AnySpec, QuantizationSpec, ValueOrNode
from .base import Quantizer


@dataclass(frozen=True)
class Slot:
    """How one slot of a convolution is quantized.

    code = clamp(round(x / scale) + zero_point, quant_min, quant_max)
    x^   = (code - zero_point) * scale

    with [quant_min, quant_max] = [-2**(bits - 1), 2**(bits - 1) - 1], or [0, 2**bits - 1] unsigned.

    Attributes:
        bits: from 2 to 16.
        signed: whether codes are signed.
        scheme: "symmetric" (zero_point in the middle), "affine", or "power_of_two" (zero_point 0,
            the smallest power of two as scale with which nothing within the range is clipped;
            unsigned, what is below 0 is).
        granularity: "per_tensor", or "per_channel" for one scale for each channel.
        rounding: "half_even", "half_away", "half_up", "floor", "ceil" or "toward_zero".
        averaging_constant: weight of the newest batch in the range of activations, in (0, 1].
            Weights and biases have the range of their own values at all times.

    Raises:
        ValueError: one of them is none of these.
    """

    bits: int = 8
    signed: bool = True
    scheme: str = "symmetric"
    granularity: str = "per_tensor"
    rounding: str = "half_even"
    averaging_constant: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise ValueError(f"bits is a whole number from 2 to 16, not {self.bits!r}")
        allowed = {
            "scheme": ("symmetric", "affine", "power_of_two"),
            "granularity": ("per_tensor", "per_channel"),
            "rounding": ROUNDINGS,
        }
        for name, words in allowed.items():
            if getattr(self, name) not in words:
                raise ValueError(
                    f"{name} is one of {', '.join(words)}, not {getattr(self, name)!r}"
                )
        MovingAverageMinMax(self.averaging_constant)

    def spec(self, ch_axis: int) -> QuantizationSpec:
        """Return the specification of a value whose channels lie along that axis."""
        per_channel = self.granularity == "per_channel"
        return QuantizationSpec.of_bits(
            self.bits,
            self.signed,
            f"{self.granularity}_{self.scheme}",
            ch_axis=ch_axis if per_channel else None,
            observer=MovingAverageMinMax(self.averaging_constant),
            rounding=self.rounding,
        )


def _power_of_two(bits: int) -> Slot:
    return Slot(bits, scheme="power_of_two")


RECIPES: Mapping[str, Mapping[str, Slot]] = MappingProxyType(
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
    """Annotates the slots of split convolutions.

    Args:
        slots: for each slot to quantize, how: "input", "weight", "correlation" (the sum of
            products), "bias", "sum" (of both).
        where: a pattern, or several, of module paths: `*`, `layer1.*.conv1`.

    Raises:
        ValueError: no slot, or one of another name.
    """

    def __init__(self, slots: Mapping[str, Slot], where: str | Sequence[str] = "*") -> None:
        unknown = [name for name in slots if name not in SLOTS]
        if unknown or not slots:
            found = f"not {unknown[0]!r}" if unknown else "and none was given"
            raise ValueError(f"slots are {', '.join(SLOTS)}, {found}")
        self.slots = dict(slots)
        self.where = (where,) if isinstance(where, str) else tuple(where)

    def annotate(self, graph: GraphView) -> Annotations:
        """Annotate the slots of all correlations in modules that `where` names.

        Raises:
            JitPassesError: there is none, or a slot of one is quantized already.
        """
        annotations = Annotations()
        correlations = [node for node in graph.nodes if node.kind == CORRELATION]
        chosen = [node for node in correlations if self._matches(node.module)]
        if not chosen:
            raise JitPassesError(self._nothing_matches([node.module for node in correlations]))
        for node in correlations:
            if node in chosen:
                self._annotate(Correlation.of(node), annotations)
            else:
                annotations.reasons[node.name] = "its module was not chosen"
        return annotations

    def _matches(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.where)

    def _nothing_matches(self, paths: list[str]) -> str:
        if not paths:
            return "the method has no convolution that could be split"
        wanted = ", ".join(map(repr, self.where))
        near = [
            p for pattern in self.where for p in difflib.get_close_matches(pattern, paths, 5, 0.3)
        ]
        some = list(dict.fromkeys(near or paths))[:5]
        names = ", ".join(repr(path) for path in some)
        return f"no convolution is in a module that matches {wanted}; there are {names}"

    def _annotate(self, op: Correlation, annotations: Annotations) -> None:
        channels = -(op.spatial_dims + 1)
        operands = {0: ("input", channels), 1: ("weight", int(op.transposed))}
        product = self._result("correlation", op.node, channels)
        total = self._result("sum", op.add_bias or op.node, channels)
        annotations[op.node] = QuantizationAnnotation(
            self._operands(op.node, operands),
            product,
            allow_implicit_sharing=False,
            output_qspec_again=None if op.add_bias else total,
        )
        if op.add_bias:
            annotations[op.add_bias] = QuantizationAnnotation(
                self._operands(op.add_bias, {1: ("bias", 0)}), total, allow_implicit_sharing=False
            )

    def _operands(
        self, node: NodeView, slots: Mapping[int, tuple[str, int]]
    ) -> dict[ValueOrNode, AnySpec]:
        specs: dict[ValueOrNode, AnySpec] = {}
        for operand, (slot, axis) in slots.items():
            if slot in self.slots:
                _check_float(slot, node, [node.inputs[operand].producer])
                specs[node.inputs[operand]] = self.slots[slot].spec(axis)
        return specs

    def _result(self, slot: str, node: NodeView, axis: int) -> QuantizationSpec | None:
        if slot not in self.slots:
            return None
        _check_float(slot, node, [user for user, _ in node.output.uses])
        return self.slots[slot].spec(axis)


def _check_float(slot: str, node: NodeView, neighbours: Sequence[NodeView | None]) -> None:
    for other in neighbours:
        if other and other.kind in FAKE_QUANTIZE and other.inputs[-2].constant == label(node, slot):
            raise JitPassesError(
                f"the slot '{slot}' of {where(node)} is quantized already: start from the float "
                "model, or choose other modules or slots"
            )
