"""Whether all engines must agree on a quantized model, ahead of any run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch

from ..errors import aligned, count_of
from ..graph.kinds import LAYERS, PRODUCTS, SUMS
from ..graph.view import NodeView, ValueView
from ..logs import timed
from ..specification.slots import ADD_BIAS, CORRELATION, is_split
from ..stages.recording import Recorder, copy_of
from ..stages.values import DEQUANTIZE, QUANTIZE, QuantizedValue, grid_operands
from ..tables import html_table
from ..targets.fixed_point.accumulator import reach
from ..targets.reference_nodes import rounding_of, unrounded
from .conformance.subject import Subject, is_power
from .conformance.values import dequantizes_of, results_of
from .places import sites_of

LIMIT = 2**24  # whole numbers up to it are float32
PAIR = 2**15 - 1  # the largest sum of two products in 16 bits
HEAD = ("value", "operator", "condition", "reason", "source")
PAIRS = "pairs"
_AVERAGES = ("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
_MEANS = ("aten::mean", "aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d")
_NORMS = ("aten::layer_norm", "aten::group_norm", "aten::batch_norm")
_MAXIMA = ("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d")


@dataclass(frozen=True)
class Doubt:
    """A condition that a value does not meet.

    Attributes:
        name: of the value.
        operator: that computes it; "" for inputs and results.
        source: `file:line` of the model's code.
        condition: "scale", "zero point", "sum", "bias", "count", "rounding", "function",
            "placement" or "pairs".
        reason: the numbers.
    """

    name: str
    operator: str
    source: str
    condition: str
    reason: str


@dataclass(frozen=True)
class Exactness:
    """Whether engines must agree; printing it gives the conditions that fail.

    Attributes:
        doubts: in the order of the graph.
        values: how many values were looked at.
    """

    doubts: tuple[Doubt, ...]
    values: int

    @property
    def exact(self) -> bool:
        """Whether all engines must agree whose sums do not saturate."""
        return all(doubt.condition == PAIRS for doubt in self.doubts)

    @property
    def exact_in_pairs(self) -> bool:
        """Whether engines must agree that add pairs of products in 16 bits, too."""
        return not self.doubts

    @property
    def summary(self) -> str:
        """The result, in a line."""
        if not self.exact:
            open_ = {doubt.name for doubt in self.doubts if doubt.condition != PAIRS}
            return f"engines may differ from {count_of(len(open_), 'value')} on"
        must = f"all engines must agree on {count_of(self.values, 'value')}"
        if self.doubts:
            must += ", except engines that add pairs of products in 16 bits"
        return must

    def as_data(self) -> dict[str, Any]:
        """Return all of it as dicts, lists, strings and numbers."""
        return {"exact": self.exact, "exact_in_pairs": self.exact_in_pairs} | asdict(self)

    def __str__(self) -> str:
        if not self.doubts:
            return self.summary
        return "\n".join((aligned([HEAD, *map(_cells, self.doubts)]), self.summary))

    def _repr_html_(self) -> str:
        return html_table(HEAD, map(_cells, self.doubts), self.summary)


@timed
def exactness(
    model: torch.jit.ScriptModule, example_inputs: Any = None, *, method: str = "forward"
) -> Exactness:
    """Say whether all engines must compute the codes of a reference model.

    Let all scales be powers of two. A sum of products is then a whole number of steps,

        sum = sum_i (x_i - z_x) * w_i + b,    |any partial sum| < 2^24

    so float32 holds it and each of its partial sums, in any order. So an engine with integers and
    an engine with floats compute equal numbers. Its ratio to the step of the result is a power of
    two, so the product with it is exact, and each engine rounds one number once, halves to even.
    The bound follows from the layer's own weights. Sums and products of codes are exact in the same
    way, and averages where the count is a power of two. An even zero point may be added before
    rounding or after it.

    The condition "pairs" is about kernels for processors without AVX-512 VNNI and AVX-VNNI: they
    add two products of 8 bits in 16 bits that saturate.

    Nothing is said of engines that transform convolutions (Winograd, FFT), use floats of less than
    32 bits, or round in another way.

    Args:
        model: a reference model; it is not touched, and does not run without an example.
        example_inputs: a tensor or a tuple of tensors, for the sizes over which means and products
            of matrices are taken; None to doubt these.
        method: of a model with several quantized methods, which.

    Raises:
        JitPassesError: the model is no reference model, or does not take the example.
    """
    subject = Subject.of(model, method)
    reader = _Reader(subject, _shapes(subject, example_inputs))
    return Exactness(tuple(reader.doubts()), len(subject.report.values))


def _shapes(subject: Subject, example: Any) -> dict[int, torch.Size]:
    """Return the sizes of the first operands of means and products of matrices, by index."""
    if example is None:
        return {}
    given = example if isinstance(example, tuple) else (example,)
    means = [node for node in subject.graph.nodes if node.kind in (*_MEANS, *PRODUCTS)]
    found = {node.index: node.main_operand.producer for node in means}
    kept = {index: maker.index for index, maker in found.items() if maker is not None}
    method = subject.report.method
    recorder = Recorder(copy_of(subject.model, method), method, [*dict.fromkeys(kept.values())])
    _, values = recorder.run((given, {}))
    return {i: values[maker][0].shape for i, maker in kept.items() if values.get(maker)}


class _Reader:
    def __init__(self, subject: Subject, shapes: dict[int, torch.Size]) -> None:
        self.subject, self.shapes, self.graph = subject, shapes, subject.graph
        sites = sites_of(copy_of(subject.model, subject.report.method), subject.report)
        self.values = {site.node: site.value for site in sites if site.value is not None}

    def doubts(self) -> Iterator[Doubt]:
        for node in self.graph.nodes:
            if node.kind in QUANTIZE:
                value = self.values.get(node.index)
                if value is None:
                    why = "its grid is chosen as the model runs"
                    yield Doubt(node.name, node.kind, node.source, "scale", why)
                else:
                    yield from self._value(node, value)
        for row in self.subject.report.operators:
            if row.dtype != "int8":
                why = row.explanation or "it is in float"
                yield Doubt(row.name, f"aten::{row.kind}", row.source, "placement", why)
        for name, result in results_of(self.graph):
            if result.is_tensor and None in dequantizes_of(self.graph, result, initial=True):
                yield Doubt(name, "", "", "rounding", "the result is not quantized")

    def _value(self, quantize: NodeView, value: QuantizedValue) -> Iterator[Doubt]:
        maker = _maker(unrounded(quantize))
        operator, source = (maker.kind, maker.source) if maker else ("", quantize.source)
        found = [*_grid(value.scale, value.zero_point)]
        if (rounding := rounding_of(quantize)) is not None:
            how = rounding.operand("rounding").constant
            found.append(("rounding", f"{how}, and engines round halves to even"))
        if maker is not None and maker.kind not in DEQUANTIZE:
            found += self._operator(maker)
        for condition, reason in found:
            yield Doubt(value.label, operator, source, condition, reason)

    def _operator(self, node: NodeView) -> Iterator[tuple[str, str]]:
        """Yield the conditions that an operator between dequantize and quantize does not meet."""
        # Weights and biases are looked at there.
        weighted = node.kind in LAYERS or is_split(node)
        first = weighted or node.kind in _NORMS
        operands = [node.main_operand] if first else list(_tensors(node))
        codes = [self._operand(value) for value in operands]
        read = [value for value in codes if value is not None]
        if len(read) != len(codes):
            kinds = [_kind(operands[i]) for i, value in enumerate(codes) if value is None]
            yield "rounding", f"it reads the result of {kinds[0]}, which is not rounded by itself"
        elif node.kind == ADD_BIAS:
            yield from self._biased(node, read[0])
        elif weighted:
            yield from self._weighted(node, read[0])
        elif node.kind in SUMS:
            yield from self._sum(node, read)
        elif node.kind == "aten::mul":
            if len(read) != 2:
                yield "function", "it multiplies by a number"
            else:
                yield from _bounded(prod(map(_largest, read)))
        elif node.kind in PRODUCTS:
            shape = self.shapes.get(node.index)
            if shape is None:
                yield "sum", "its sizes are not known: give example_inputs"
            else:
                yield from _bounded(prod(map(_largest, read)) * shape[-1])
        elif node.kind in _AVERAGES:
            yield from self._average(node, read[0])
        elif node.kind in _MEANS:
            yield from self._mean(node, read[0])
        elif node.kind != "aten::cat" and node.kind not in _MAXIMA:
            yield "function", "it is computed in float, which engines do in ways of their own"

    def _operand(self, value: ValueView) -> QuantizedValue | None:
        """Return the quantized value that an operand is dequantized from."""
        node = value.producer
        while node is not None and _moves(node):
            node = node.main_operand.producer
        if node is None or node.kind not in DEQUANTIZE:
            return None
        maker = node.main_operand.producer
        while maker is not None and maker.moves_data and not _fills(maker):
            maker = maker.main_operand.producer
        return None if maker is None else self.values.get(maker.index)

    def _weighted(self, node: NodeView, x: QuantizedValue) -> Iterator[tuple[str, str]]:
        found = _constant(node.operand("weight"))
        if found is None or x.axis is not None:
            yield "placement", "its weight is no constant integers with one scale for the input"
            return
        weight, scales, zeros = found
        yield from _grid(scales, zeros, "weight ")
        if any(zeros):
            yield "zero point", "its weight has one"
            return
        bias = _bias(node, x.scale[0], scales)
        if bias is None:
            yield "bias", "it is no whole number of the steps of the sum"
            return
        low, high = x.low - x.zero_point[0], x.high - x.zero_point[0]
        least, most = reach(weight, bias, min(low, 0), max(high, 0))
        yield from _bounded(max(-least, most))
        largest = int(weight.abs().max()) if weight.numel() else 0
        # Kernels take uint8: codes of int8 are moved by 128.
        pair = 2 * largest * (x.high - x.low)
        if pair > PAIR and x.high - x.low < 2**8:
            yield PAIRS, f"two products may reach {pair}, and 16 bits hold {PAIR}"

    def _biased(self, node: NodeView, x: QuantizedValue) -> Iterator[tuple[str, str]]:
        found = _constant(node.operand("bias"))
        if found is None:
            yield "bias", "it is no constant integers"
            return
        codes, scales, zeros = found
        yield from _grid(scales, zeros, "bias ")
        step = min(*x.scale, *scales)
        numbers = (codes.double() - torch.tensor(zeros)) * torch.tensor(scales)
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
        yield from _bounded(int((_largest(x) * max(x.scale) + largest) / step))

    def _sum(self, node: NodeView, read: list[QuantizedValue]) -> Iterator[tuple[str, str]]:
        alpha = node.operand("alpha")
        if len(read) != 2 or not alpha.is_constant or alpha.constant != 1:
            yield "function", "it adds a number, or a multiple"
            return
        step = min(value.scale[0] for value in read)
        yield from _bounded(int(sum(_largest(v) * v.scale[0] / step for v in read)))

    def _average(self, node: NodeView, x: QuantizedValue) -> Iterator[tuple[str, str]]:
        options = {name: node.operand(name) for name in ("kernel_size", "padding", "ceil_mode")}
        include = node.operand("count_include_pad")
        if not all(value.is_constant for value in (*options.values(), include)):
            yield "count", "its window is not known"
            return
        size = options["kernel_size"].constant
        axes = int(node.kind[-2])
        window = prod(size) if len(size) == axes else prod(list(size) * axes)
        padded = any(options["padding"].constant) and not include.constant
        other = "divisor_override" in node.arguments and node.operand("divisor_override").constant
        if options["ceil_mode"].constant or padded or other:
            yield "count", "its windows differ in size, or it divides by another number"
        else:
            yield from _averaged(window, x)

    def _mean(self, node: NodeView, x: QuantizedValue) -> Iterator[tuple[str, str]]:
        shape = self.shapes.get(node.index)
        if shape is None:
            yield "count", "its sizes are not known: give example_inputs"
            return
        if node.kind == "aten::mean":
            axes = node.operand("dim").constant if "dim" in node.arguments else None
            count = prod(shape[axis] for axis in (axes or range(len(shape))))
        else:
            axes = int(node.kind[-2])
            whole = node.operand("output_size").constant
            if any(size != 1 for size in whole):
                yield "count", "it has more than one result, and windows that may differ in size"
                return
            count = prod(shape[-axes:])
        yield from _averaged(count, x)


def _maker(value: ValueView) -> NodeView | None:
    """Return the operator in front of clips and moves; None for an input of the model."""
    node = value.producer
    while node is not None and (node.clip is not None or (node.moves_data and not _fills(node))):
        node = node.main_operand.producer
    return node


def _moves(node: NodeView) -> bool:
    """Say whether a node gives numbers of its operand."""
    return node.kind == "prim::ListUnpack" or (node.moves_data and not _fills(node))


def _fills(node: NodeView) -> bool:
    """Say whether a pad puts in another number than 0."""
    if node.kind != "aten::constant_pad_nd":
        return False
    filled = node.operand("value")
    return not filled.is_constant or bool(filled.constant)


def _tensors(node: NodeView) -> Iterator[ValueView]:
    for value in node.inputs:
        maker = value.producer
        if value.is_tensor:
            yield value
        elif maker is not None and maker.kind == "prim::ListConstruct":
            yield from (part for part in maker.inputs if part.is_tensor and not part.is_constant)


def _kind(value: ValueView) -> str:
    return value.producer.kind if value.producer is not None else "an input of the model"


def _constant(value: ValueView) -> tuple[torch.Tensor, list[float], list[int]] | None:
    """Return codes, scales and zero points of a constant."""
    node = value.producer
    if node is None or node.kind not in DEQUANTIZE or not node.main_operand.is_constant:
        return None
    scale, zero, *_ = (operand.constant for operand in grid_operands(node))
    scales = torch.as_tensor(scale, dtype=torch.float64).flatten().tolist()
    return node.main_operand.constant, scales, torch.as_tensor(zero).flatten().tolist()


def _bias(node: NodeView, scale: float, scales: list[float]) -> torch.Tensor | None:
    """Return the bias in steps of the sum, 0 without one; None if it has none."""
    if node.kind == CORRELATION:
        return torch.zeros(1, dtype=torch.int64)
    value = node.operand("bias")
    if value.is_constant and value.constant is None:
        return torch.zeros(1, dtype=torch.int64)
    found = _constant(value)
    if found is None:
        return None
    codes, own, zeros = found
    numbers = (codes.double() - torch.tensor(zeros)) * torch.tensor(own, dtype=torch.float64)
    steps = numbers / (scale * torch.tensor(scales, dtype=torch.float64))
    return steps.long() if torch.equal(steps, steps.round()) else None


def _grid(scales: list[float], zeros: list[int], what: str = "") -> Iterator[tuple[str, str]]:
    if others := [scale for scale in scales if not is_power(scale)]:
        yield "scale", f"its {what}scale {others[0]:.6g} is no power of two"
    elif far := [scale for scale in scales if not 2**-40 <= scale <= 2**40]:
        # Products of scales would leave float32's range.
        yield "scale", f"its {what}scale {far[0]:.6g} is beyond 2^-40 to 2^40: a dead layer?"
    if odd := [zero for zero in zeros if zero % 2]:
        yield "zero point", f"its {what}zero point {odd[0]} is odd"


def _largest(value: QuantizedValue) -> int:
    return max(max(abs(value.low - zero), abs(value.high - zero)) for zero in value.zero_point)


def _bounded(largest: int) -> Iterator[tuple[str, str]]:
    if largest >= LIMIT:
        yield "sum", f"it may reach {largest} steps, and float32 holds numbers below {LIMIT}"


def _averaged(count: int, x: QuantizedValue) -> Iterator[tuple[str, str]]:
    if count & (count - 1) or not count:
        yield "count", f"it divides by {count}, which is no power of two"
    yield from _bounded(count * _largest(x))


def _cells(doubt: Doubt) -> tuple[str, ...]:
    return doubt.name, doubt.operator, doubt.condition, doubt.reason, doubt.source
