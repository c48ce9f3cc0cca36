"""A slow oracle of the target `fixed_point`: a reference model in Python's integers.

The oracle walks the graph of the reference model without the lowering. A value is codes, or a
sum that is not rounded yet, and fractions round exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from jit_passes.export.program.forms import form_of
from jit_passes.graph.view import GraphView, NodeView
from tests.published_forms import quantize_multiplier, twice

Array = np.ndarray[Any, Any]
CODES = (torch.uint8, torch.int8, torch.int16)
WHOLE: dict[str, Callable[[float], float]] = {
    "half_even": np.round,
    "half_up": lambda v: np.floor(v + 0.5),
    "half_away": lambda v: np.copysign(np.floor(abs(v) + 0.5), v),
    "floor": np.floor,
}
SKIPPED = ("prim::Constant", "prim::GetAttr", "prim::If", "prim::RaiseException", "aten::format")


def rounded(numerator: int, denominator: int, rounding: str) -> int:
    """Round a fraction to a whole number."""
    quotient, rest = divmod(numerator, denominator)
    if rounding == "truncate" or 2 * rest < denominator:
        return quotient
    if 2 * rest > denominator:
        return quotient + 1
    up = {"half_up": True, "half_away": numerator > 0, "half_even": quotient % 2 == 1}
    return quotient + up[rounding]


def multiplier_of(ratio: float, bits: int = 31) -> tuple[int, int]:
    """Return the multiplier below 2^bits with the largest shift up to 62, by trial."""
    for shift in range(62, -1, -1):
        multiplier = round(Fraction(ratio) * 2**shift)
        if multiplier < 2**bits:
            return multiplier, shift
    raise AssertionError(f"{ratio} is too large")


@dataclass(frozen=True)
class Value:
    """Whole numbers times scales, not rounded: terms[k] * scales[k] / count.

    Attributes:
        terms: int64 arrays of the same shape.
        scales: for each term, one number for each channel, or one for all.
        count: of an average.
        low, high: of a clip, in input units.
        axis: of the channels, from the end.
        rounding: of the reference model, for the codes of low and high.
    """

    terms: list[Array]
    scales: list[list[float]]
    count: int = 1
    low: float = -math.inf
    high: float = math.inf
    axis: int = -1
    rounding: str = "half_even"


@dataclass
class Oracle:
    """Runs a reference model of straight code.

    Args:
        reference: the model.
        rounding: of the target.
        bits: of a multiplier.
        lift: how much finer the steps of a sum of two operands are with double rounding, as a
            power of two: 20 for codes of 8 bits, 15 for codes of 16.
    """

    reference: Any
    rounding: str = "half_even"
    bits: int = 31
    lift: int = 20
    values: dict[int, Any] = field(default_factory=dict)
    sums: dict[int, Any] = field(default_factory=dict)  # that are rounded, by index of quantize

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        graph = GraphView.of(self.reference)
        self.values = {graph.inputs[0].id: x}
        for node in graph.nodes:
            if node.kind in SKIPPED:
                continue
            form = getattr(self, node.kind.split("::")[1], None)
            operands = [self.value(value) for value in node.inputs]
            found = form(node, *operands) if form else self.moved(node, *operands)
            self.values[node.output.id] = found
        result = self.values[graph.outputs[0].id]
        (codes,), ((scale,),) = result.terms, result.scales
        return torch.from_numpy(codes).float() * scale

    def by_floats(self, x: torch.Tensor) -> Iterator[tuple[Array, Array, Array]]:
        """Yield codes of the model's float operators, those of the oracle, and exact steps.

        Each operator reads the oracle's codes, so differences are its own.
        """
        graph = GraphView.of(self.reference)
        floats: dict[int, Any] = {graph.inputs[0].id: x}
        for node in graph.nodes:
            if node.kind in SKIPPED:
                continue
            operands = [floats.get(v.id, v.constant) for v in node.inputs]
            if node.kind == "prim::ListConstruct":
                floats[node.output.id] = operands
            elif node.kind == "aten::__getitem__":
                floats[node.output.id] = operands[0][operands[1]]
            else:
                namespace, name = node.kind.split("::")
                if name == "quantize":
                    operands[-1] = CODES[operands[-1]]
                own = getattr(torch.ops.jit_passes, name, None)
                found = (own if namespace == "jit_passes" else form_of(node, {}))(*operands)
                if node.index in self.sums:
                    expected, zero = self.values[node.output.id]
                    exact = self.exact(self.sums[node.index], operands[1]) + zero
                    yield found.numpy().astype(np.int64), expected, exact
                    found = torch.from_numpy(expected).to(found.dtype)
                floats[node.output.id] = found

    def exact(self, x: Any, scale: float) -> Array:
        """Return a sum in steps, in double precision."""
        if isinstance(x, list):
            return np.concatenate([self.exact(part, scale) for part in x[0]], x[1])
        parts = zip(x.terms, x.scales, strict=True)
        last = [np.moveaxis(t, x.axis, -1) * (np.array(s) / scale) for t, s in parts]
        return np.moveaxis(sum(np.broadcast_arrays(*last)), -1, x.axis) / x.count

    def value(self, value: Any) -> Any:
        return self.values.get(value.id, value.constant)

    def quantize(
        self, node: NodeView, x: Any, scale: float, zero: int, low: int, high: int, dtype: int
    ) -> tuple[Array, int]:
        if isinstance(x, torch.Tensor):
            codes = torch.ops.jit_passes.quantize(x, scale, zero, low, high, CODES[dtype])
            return codes.numpy().astype(np.int64), zero
        if isinstance(x, list):  # a concatenation
            parts = [self.quantize(node, p, scale, zero, low, high, dtype)[0] for p in x[0]]
            self.sums[node.index] = x
            return np.concatenate(parts, x[1]), zero
        self.sums[node.index] = x
        steps = self.rescaled(x, scale)
        ends = [self.code(x, end, scale, zero, low, high) for end in (x.low, x.high)]
        return np.clip(np.clip(steps + zero, low, high), *ends), zero

    def code(self, x: Value, end: float, scale: float, zero: int, low: int, high: int) -> int:
        return int(np.clip(WHOLE[x.rounding](end / scale) + zero, low, high))

    def fake_quantize(
        self, node: NodeView, x: Any, scale: torch.Tensor, zero: torch.Tensor, low: int, high: int,
        axis: None, rounding: str,
    ) -> Any:  # fmt: skip
        """Round floats; of whole numbers quantize does it, as the target."""
        if isinstance(x, torch.Tensor):
            return torch.ops.jit_passes.fake_quantize(x, scale, zero, low, high, axis, rounding)
        assert rounding == {"truncate": "floor"}.get(self.rounding, self.rounding)
        return replace(x, rounding=rounding) if isinstance(x, Value) else x

    def rescaled(self, x: Value, scale: float) -> Array:
        if self.rounding == "double_round":
            return self.rescaled_twice(x, scale)
        if len(x.terms) > 1:
            return self.rescaled_sum(x, scale)
        numbers = np.moveaxis(x.terms[0], x.axis, -1)
        scales = x.scales[0] * (numbers.shape[-1] if len(x.scales[0]) == 1 else 1)
        found = np.empty_like(numbers)
        for channel, own in enumerate(scales):
            multiplier, shift = multiplier_of(own / scale, self.bits)
            found[..., channel] = self.each(numbers[..., channel], multiplier, x.count << shift)
        return np.moveaxis(found, -1, x.axis)

    def rescaled_sum(self, x: Value, scale: float) -> Array:
        ratios = [own / scale for (own,) in x.scales]
        shift = min(multiplier_of(abs(ratio), self.bits)[1] for ratio in ratios)
        factors = [round(Fraction(ratio) * 2**shift) for ratio in ratios]
        total = sum(t * f for t, f in zip(np.broadcast_arrays(*x.terms), factors, strict=True))
        return self.each(total, 1, 1 << shift)

    def rescaled_twice(self, x: Value, scale: float) -> Array:
        """Do as TFLite does: a sum of two operands has steps of its own."""
        if len(x.terms) == 1:
            numbers = np.moveaxis(x.terms[0], x.axis, -1)
            scales = x.scales[0] * (numbers.shape[-1] if len(x.scales[0]) == 1 else 1)
            parts = [self.twice(numbers[..., c], own / scale) for c, own in enumerate(scales)]
            found = np.moveaxis(np.stack(parts, -1), -1, x.axis)
            return found if x.count == 1 else self.each(found, 1, x.count, "half_away")
        steps = [own for (own,) in x.scales]
        largest = 2 * max(map(abs, steps))
        terms = [
            self.twice(term << self.lift, abs(step) / largest) * (1 if step > 0 else -1)
            for term, step in zip(x.terms, steps, strict=True)
        ]
        return self.twice(sum(np.broadcast_arrays(*terms)), largest / (2**self.lift * scale))

    def twice(self, numbers: Array, ratio: float) -> Array:
        values = [twice(int(n), *quantize_multiplier(ratio)) for n in numbers.flat]
        return np.array(values, dtype=np.int64).reshape(numbers.shape)

    def each(
        self, numbers: Array, multiplier: int, divisor: int, rounding: str | None = None
    ) -> Array:
        how = rounding or self.rounding
        values = [rounded(int(n) * multiplier, divisor, how) for n in numbers.flat]
        return np.array(values, dtype=np.int64).reshape(numbers.shape)

    def dequantize(self, node: NodeView, codes: Any, scale: float, zero: int) -> Value:
        if isinstance(codes, torch.Tensor):
            codes = codes.numpy().astype(np.int64), 0
        return Value([codes[0] - zero], [[scale]])

    def dequantize_per_channel(
        self, node: NodeView, codes: Any, scales: Any, zeros: Any, axis: int
    ) -> Value:
        return Value([codes.numpy().astype(np.int64)], [scales.tolist()])

    def conv2d(
        self, node: NodeView, x: Value, w: Value, b: Value | None, stride: list[int],
        padding: list[int], dilation: list[int], groups: int,
    ) -> Value:  # fmt: skip
        ((inputs,), (weight,)), dims = (x.terms, w.terms), len(stride)
        rim = [(0, 0), (0, 0), *((p, p) for p in padding)]
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        axes = tuple(range(2, 2 + dims))
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(inputs, rim), reach, axis=axes)
        steps = [slice(None, None, s) for s in stride]
        holes = [slice(None, None, d) for d in dilation]
        windows = windows[(slice(None), slice(None), *steps, *holes)]
        outs, ins = weight.shape[0] // groups, weight.shape[1]
        last = tuple(range(2 + dims, 2 + 2 * dims))
        parts = [
            np.tensordot(
                windows[:, g * ins : (g + 1) * ins],
                weight[g * outs : (g + 1) * outs],
                ((1, *last), (1, *axes)),
            )
            for g in range(groups)
        ]
        sums = np.moveaxis(np.concatenate(parts, -1), -1, 1)
        return self.biased(sums, x, w, b, -1 - dims)

    conv1d = conv2d

    def correlation(
        self, node: NodeView, x: Value, w: Value, stride: list[int], padding: list[int],
        dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
    ) -> Value:  # fmt: skip
        return self.conv2d(node, x, w, None, stride, padding, dilation, groups)

    def add_bias(self, node: NodeView, x: Value, b: Value, spatial: int) -> Value:
        numbers = b.terms[0].reshape(-1, *([1] * spatial))
        return Value([x.terms[0], numbers], [x.scales[0], b.scales[0]])

    def linear(self, node: NodeView, x: Value, w: Value, b: Value | None) -> Value:
        return self.biased(x.terms[0] @ w.terms[0].T, x, w, b, -1)

    def biased(self, sums: Array, x: Value, w: Value, b: Value | None, axis: int) -> Value:
        scales = [x.scales[0][0] * scale for scale in w.scales[0]]
        if b is not None:
            own = b.scales[0] * (len(b.terms[0]) if len(b.scales[0]) == 1 else 1)
            steps = scales * (len(b.terms[0]) if len(scales) == 1 else 1)
            parts = zip(b.terms[0].tolist(), own, steps, strict=True)
            aligned = [round(code * Fraction(s) / Fraction(step)) for code, s, step in parts]
            sums = sums + np.array(aligned).reshape(-1, *([1] * (-1 - axis)))
        return Value([sums], [scales], axis=axis)

    def add(self, node: NodeView, a: Value, b: Value, alpha: float) -> Value:
        (step,) = b.scales[0]
        return Value([*a.terms, *b.terms], [a.scales[0], [alpha * step]])

    def sub(self, node: NodeView, a: Value, b: Value, alpha: float) -> Value:
        return self.add(node, a, b, -alpha)

    def mul(self, node: NodeView, a: Value, b: Value) -> Value:
        return Value([a.terms[0] * b.terms[0]], [[a.scales[0][0] * b.scales[0][0]]])

    def relu(self, node: NodeView, x: Value) -> Value:
        return replace(x, low=0.0)

    def clamp(self, node: NodeView, x: Value, low: float | None, high: float | None) -> Value:
        ends = {"low": low, "high": high}
        return replace(x, **{name: end for name, end in ends.items() if end is not None})

    def mean(self, node: NodeView, x: Value, dims: list[int], keep: bool, dtype: None) -> Value:
        axes = tuple(dims)
        count = math.prod(x.terms[0].shape[dim] for dim in dims)
        return replace(x, terms=[x.terms[0].sum(axes, keepdims=keep)], count=count)

    def adaptive_avg_pool2d(self, node: NodeView, x: Value, size: list[int]) -> Value:
        return self.mean(node, x, [-2, -1], True, None)

    def avg_pool2d(
        self, node: NodeView, x: Value, window: list[int], stride: list[int], padding: list[int],
        ceil: bool, rim: bool, divisor: int | None,
    ) -> Value:  # fmt: skip
        ends = [(0, 0), (0, 0), *((p, p) for p in padding)]
        views = np.lib.stride_tricks.sliding_window_view(
            np.pad(x.terms[0], ends), window, axis=(2, 3)
        )
        by, across = stride or window
        sums = views[:, :, ::by, ::across].sum((-2, -1))
        return replace(x, terms=[sums], count=divisor or math.prod(window))

    def ListConstruct(self, node: NodeView, *values: Any) -> list[Any]:
        return list(values)

    def cat(self, node: NodeView, parts: list[Value], dim: int) -> list[Any]:
        return [parts, dim]

    def lookup_table(self, node: NodeView, codes: Any, table: torch.Tensor, first: int) -> Any:
        return table.numpy().astype(np.int64)[codes[0] - first], 0

    def moved(self, node: NodeView, x: Any, *operands: Any) -> Any:
        """Do what PyTorch does, to whole numbers; sizes are asked of them."""
        call: Callable[..., Any] = getattr(torch.ops.aten, node.kind.split("::")[1])
        if isinstance(x, Value):
            result = call(torch.from_numpy(x.terms[0]).double(), *operands)  # exact
            if not torch.is_tensor(result):
                return result
            return replace(x, terms=[result.long().numpy()])
        return list(x)[operands[0]] if node.kind == "aten::__getitem__" else call(x, *operands)
