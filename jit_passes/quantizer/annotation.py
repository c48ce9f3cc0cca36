"""What is to be quantized: the result of a quantizer, the input of inserting observers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..graph import NodeView, ValueView
from .specification import AnySpec, QuantizationSpec, SharedQuantizationSpec


@dataclass(frozen=True)
class OutputAnnotation:
    """A value that all its users see quantized.

    Attributes:
        value: the value.
        spec: how.
        owner: name of the operator that computes it: quantized as a whole or not at all.
        ranks: lowest and highest number of dimensions with which the operator can be quantized.
        slot: for fake quantization: which of its operator's slots this is, "sum"; else "".
        again: how to quantize the result of that once more, as the slot "sum": a wide sum of
            products that is then narrowed. For fake quantization only.
    """

    value: ValueView
    spec: AnySpec
    owner: str
    ranks: tuple[int, int]
    slot: str = ""
    again: QuantizationSpec | None = None


@dataclass(frozen=True)
class EdgeAnnotation:
    """Some uses of a value that see it quantized, while others see it as it is.

    Attributes:
        value: the value.
        uses: (node, operand) of the uses.
        spec: how.
        owner: name of the operator, for operands that belong to one alone, as weights do; else "".
        slot: for fake quantization: which of the operator's slots this is, "weight"; else "".
    """

    value: ValueView
    uses: tuple[tuple[NodeView, int], ...]
    spec: QuantizationSpec
    owner: str = ""
    slot: str = ""


@dataclass
class Annotations:
    """All annotations of a graph.

    Attributes:
        outputs: by id of the value.
        edges: in program order of their first use.
        reasons: for operators that could have been quantized and stay float, by name, why.
        quantized: names of the operators that will be quantized.
    """

    outputs: dict[int, OutputAnnotation] = field(default_factory=dict)
    edges: list[EdgeAnnotation] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    quantized: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{a.value.name:<48} output  {_brief(a.spec)}" for a in self.outputs.values()]
        for edge in self.edges:
            users = ", ".join(f"{node.name}[{operand}]" for node, operand in edge.uses)
            lines.append(f"{edge.value.name:<48} into {users}  {_brief(edge.spec)}")
        return "\n".join(lines)


def _brief(spec: AnySpec) -> str:
    if isinstance(spec, SharedQuantizationSpec):
        return f"as value {spec.value}"
    if isinstance(spec, QuantizationSpec):
        return f"{spec.dtype} [{spec.quant_min}, {spec.quant_max}] {spec.qscheme}"
    return f"{spec.dtype} scale {spec.scale} zero_point {spec.zero_point}"
