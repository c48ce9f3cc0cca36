"""Pools in the forms that `torch.onnx` translates rightly, and engines put on integers.

`torch.onnx` 2.13 has three faults here: a global average is written as ReduceMean, which ONNX
Runtime computes in float; the divisor of a pool is left out; adaptive pools of maxima are missing.
Adaptive averages of windows that overlap become up to a hundred operators, and OpenVINO computes
wrong numbers behind these. For an open size, `torch.onnx` writes the windows of the example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import JitPassesError
from .graph import nodes_of

_ATEN = torch.ops.aten
_ADAPTIVE = {getattr(_ATEN, f"adaptive_avg_pool{n}d").default: n for n in (1, 2, 3)}
_MAXIMA = {getattr(_ATEN, f"adaptive_max_pool{n}d").default: n for n in (2, 3)}
_AVERAGES = {getattr(_ATEN, f"avg_pool{n}d").default: n for n in (2, 3)}


def spell_out_pools(program: torch.export.ExportedProgram) -> None:
    """Write average pools with operators that `torch.onnx` translates rightly, in place.

    Adaptive pools that give one value become means, and a divisor becomes a factor: `torch.onnx`
    2.13 leaves it out.

    Raises:
        JitPassesError: the places of adaptive maxima are read.
    """
    for node in nodes_of(program):
        size: Any = node.args[1] if node.target in _ADAPTIVE else ()
        if {*size} == {1}:
            node.args = (node.args[0], list(range(-_ADAPTIVE[node.target], 0)), True)
            node.target = _ATEN.mean.dim
        elif node.target in _AVERAGES and _divisor(node) is not None:
            _multiply(node)
        elif node.target in _MAXIMA and any(
            user.args[1] == 1 and user.users for user in node.users
        ):
            name = node.meta.get("custom", {}).get("name", node.name)
            raise JitPassesError(
                f"'{name}' returns the places of its maxima, and an adaptive pool has none in a "
                "file of ONNX: leave them out, or take a pool with windows"
            )


def _divisor(average: torch.fx.Node) -> int | None:
    named = average.kwargs.get("divisor_override")
    return average.args[6] if len(average.args) > 6 else named  # type: ignore[return-value]


def _multiply(average: torch.fx.Node) -> None:
    """Write an average by a divisor as that by the size of the window, times size by divisor."""
    window: Any = average.args[1]
    dims = _AVERAGES[average.target]
    factor = math.prod(window if len(window) == dims else [*window] * dims) / _divisor(average)
    operand, _, *options = average.args
    stride, padding, ceil = (*options, *((), 0, False)[len(options) :])[:3]
    with average.graph.inserting_after(average):
        product = average.graph.call_function(_ATEN.mul.Tensor, (average, factor))
    average.replace_all_uses_with(product, delete_user_cb=lambda user: user is not product)
    product.meta, average.meta = average.meta, {"val": average.meta["val"]}
    average.args, average.kwargs = (operand, window, stride, padding, ceil, True), {}


def pool_translations(op: Any) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of means and adaptive pools; `op` is the module of an opset."""

    def mean(input: Any, dim: Any = None, keepdim: bool = False, dtype: int | None = None) -> Any:
        rank = len(input.shape)
        if dtype is not None:
            input = op.Cast(input, to=dtype)
        if not dim or rank == 0:
            return op.ReduceMean(input, keepdims=keepdim)
        axes = op.Constant(value_ints=list(dim))
        if rank < 3 or {axis % rank for axis in dim} != set(range(2, rank)):
            return op.ReduceMean(input, axes, keepdims=keepdim)
        average = op.GlobalAveragePool(input)
        return average if keepdim else op.Squeeze(average, axes)

    def adaptive(input: Any, output_size: Sequence[int], dims: int, reduce: Any) -> Any:
        """Return a pool of equal or overlapping windows, one axis after the other."""
        axes, sizes = range(-dims, 0), list(input.shape)[-dims:]
        counts = list(output_size) * (dims if len(output_size) == 1 else 1)
        if counts == sizes:
            return op.Identity(input)
        for axis, size, count in zip(axes, sizes, counts, strict=True):
            if count in (size, 1):
                whole = op.Constant(value_ints=[axis])
                input = input if count == size else reduce(input, whole, keepdims=1)
                continue
            if not isinstance(size, int):
                raise JitPassesError(
                    f"ONNX has no adaptive pool of an open size, {sizes}: let dynamic_shapes leave "
                    "these axes as they are"
                )
            along, parts = op.Constant(value_ints=[axis]), []
            for k in range(count):
                start, end = k * size // count, -(-(k + 1) * size // count)
                ends = (op.Constant(value_ints=[place]) for place in (start, end))
                parts.append(reduce(op.Slice(input, *ends, along), along, keepdims=1))
            input = op.Concat(*parts, axis=axis)
        return input

    def average(dims: int) -> Callable[..., Any]:
        def adaptive_avg_pool(self: Any, output_size: Sequence[int]) -> Any:
            sizes = list(self.shape)[-dims:]
            counts = list(output_size) * (dims if len(output_size) == 1 else 1)
            known = len(self.shape) == dims + 2 and all(isinstance(size, int) for size in sizes)
            pairs = list(zip(sizes, counts, strict=True))
            if known and sizes != counts and not any(size % count for size, count in pairs):
                window = [size // count for size, count in pairs]
                return op.AveragePool(self, kernel_shape=window, strides=window)
            return adaptive(self, output_size, dims, op.ReduceMean)

        return adaptive_avg_pool

    def maximum(dims: int) -> Callable[..., Any]:
        def adaptive_max_pool(self: Any, output_size: Sequence[int]) -> Any:
            found = adaptive(self, output_size, dims, op.ReduceMax)
            return found, op.Shape(self)  # in place of places, which nothing reads

        return adaptive_max_pool

    averages = {operator: average(dims) for operator, dims in _ADAPTIVE.items()}
    maxima = {operator: maximum(dims) for operator, dims in _MAXIMA.items()}
    return {_ATEN.mean.dim: mean, **averages, **maxima}
