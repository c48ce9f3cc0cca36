"""Calls of operators that end in a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING

import torch

from ...graph.view import NodeView
from .layout import axes_text, broadcast_loops, loop_text, pool_text, saturation, strides_of
from .program import CTYPES, Argument, Buffer
from .sums import FormError, Rescaled

if TYPE_CHECKING:
    from .reading import Reader


def _rescaling(reader: Reader, node: NodeView, found: Rescaled) -> list[Argument]:
    """Return the text around the arrays of multipliers and shifts."""
    if not all(-(2**31) <= number < 2**31 for number in found.multipliers):
        raise reader.error(node, "a multiplier has more than 32 bits")
    several = max(len(found.multipliers), len(found.shifts))
    numbers = [
        values * several if len(values) == 1 else values
        for values in (found.multipliers, found.shifts)
    ]
    per_channel = int(several > 1)
    return [
        "&(const rescaling){",
        reader.constant(node, "multipliers", "int32_t", numbers[0]),
        reader.constant(node, "shifts", "uint8_t", numbers[1]),
        f"{per_channel}, {found.zero}, {found.low}, {found.high}}}",
    ]


def computed(reader: Reader, node: NodeView) -> None:
    """Add the call of an operator that ends in a sum.

    Raises:
        FormError: C has no function for it.
    """
    found = reader.sums.rescaled(node)
    maker = found.value.producer
    form = None if maker is None else _FORMS.get(maker.kind)
    if maker is None or form is None:
        raise FormError("C has no function for it")
    form(reader, node, maker, found)


def _weighted(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    steps = reader.sums.steps(maker.main_operand)
    x, y = reader.buffer(node, steps.codes), reader.new(node)
    codes = reader.sums.steps(maker.inputs[1]).codes
    weight = reader.value(codes)
    ctype = CTYPES[weight.dtype]
    arrays: list[Argument] = [x, reader.constant(maker, "weight", ctype, weight)]
    bias = reader.value(maker.inputs[2])
    if bias is not None and int(bias.abs().max()) >= 2**31:
        raise reader.error(node, "a bias has more than 32 bits")
    arrays += ["0"] if bias is None else [reader.constant(maker, "bias", "int32_t", bias)]
    arrays += [*_rescaling(reader, maker, found), y]
    if maker.kind == "aten::linear":
        outs, ins = weight.shape
        head = f"{x.count // ins}, {ins}, {outs}, {steps.zero}"
        reader.call(node, "linear", [head, *arrays], [x], y, ctype)
    else:
        head = _convolution(reader, maker, x, y, weight, steps.zero)
        reader.call(node, "conv2d", [head, *arrays], [x], y, ctype)


def _convolution(
    reader: Reader, maker: NodeView, x: Buffer, y: Buffer, weight: torch.Tensor, zero: int
) -> str:
    stride, padding, dilation, groups = (reader.value(value) for value in maker.inputs[3:])
    dims = weight.dim() - 2
    wide = [[1] * (2 - dims) + list(numbers) for numbers in (weight.shape[2:], stride)]
    wide += [[0] * (2 - dims) + list(padding), [1] * (2 - dims) + list(dilation)]
    sizes = [[1] * (2 - dims) + list(b.shape[-dims:]) for b in (x, y)]
    batch = prod(x.shape[: -dims - 1])
    numbers = [
        *(batch, x.shape[-dims - 1], *sizes[0], len(weight), *sizes[1]),
        *(number for pair in wide for number in pair),
        *(groups, zero),
    ]
    return f"&(const conv2d_shape){{{', '.join(map(str, numbers))}}}"


def _sum(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    """Add two operands, each times its factor."""
    if maker.inputs[1].is_constant:
        _biased(reader, node, maker, found)
        return
    (a, left), (b, right) = (reader.sums.factor(value) for value in maker.inputs[:2])
    x, x2, y = reader.buffer(node, a.codes), reader.buffer(node, b.codes), reader.new(node)
    (shift,) = found.shifts
    reader.call(
        node,
        "add",
        [
            *(broadcast_loops(y.shape, x.shape, x2.shape), x, f"{a.zero}, {left}", x2),
            *(f"{b.zero}, {right}, {shift}", saturation(found), y),
        ],
        [x, x2],
        y,
    )


def _biased(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    """Add a number for each channel to an operand times its factor."""
    a, factor = reader.sums.factor(maker.main_operand)
    x, y = reader.buffer(node, a.codes), reader.new(node)
    numbers, (shift,) = reader.value(maker.inputs[1]), found.shifts
    inner = prod(x.shape[len(x.shape) - numbers.dim() + 1 :])
    head = f"{y.count // len(numbers) // max(inner, 1)}, {len(numbers)}, {inner}"
    bias = reader.constant(maker, "bias", "int64_t", numbers)
    rest: list[Argument] = [f"{a.zero}, {factor}", bias, str(shift), saturation(found), y]
    reader.call(node, "add_bias", [head, x, *rest], [x], y)


def _product(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    a, b = (reader.sums.steps(value) for value in maker.inputs[:2])
    x, x2, y = reader.buffer(node, a.codes), reader.buffer(node, b.codes), reader.new(node)
    operands: list[Argument] = [broadcast_loops(y.shape, x.shape, x2.shape), x, str(a.zero), x2]
    operands += [str(b.zero), *_rescaling(reader, node, found), y]
    reader.call(node, "multiply", operands, [x, x2], y)


def _regridded(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    steps = reader.sums.steps(found.value)
    x, y = reader.buffer(node, steps.codes), reader.new(node)
    rest = _rescaling(reader, node, found)
    reader.call(node, "requantize", [str(y.count), x, str(steps.zero), *rest, y], [x], y)


def _mean(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    steps = reader.sums.steps(maker.main_operand)
    x, y = reader.buffer(node, steps.codes), reader.new(node)
    rank = len(x.shape)
    named = "dim" in (maker.overload or "")
    dims = {dim % rank for dim in reader.value(maker.inputs[1])} if named else set(range(rank))
    memory = strides_of(x.shape)
    kept = [axis for axis in range(rank) if axis not in dims]
    outer = [[x.shape[axis] for axis in kept], [memory[axis] for axis in kept]]
    inner = [[x.shape[axis] for axis in sorted(dims)], [memory[axis] for axis in sorted(dims)]]
    over, by = (axes_text(n, fill) for n, fill in zip(inner, (1, 0), strict=True))
    loops = loop_text(outer[0], outer[1])
    head: list[Argument] = [loops, f"(const int32_t[]){over}, (const int32_t[]){by}"]
    rest = [x, f"{steps.zero}, {found.divisor}", *_rescaling(reader, node, found), y]
    reader.call(node, "mean", [*head, *rest], [x], y)


def _windows(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    one = maker.kind == "aten::squeeze"  # in one dimension
    pool = maker.main_operand.producer if one else maker
    if pool is None or pool.kind != "aten::avg_pool2d":
        raise FormError("it is no average")
    value = pool.main_operand
    if one and value.producer is not None:
        value = value.producer.main_operand
    steps = reader.sums.steps(value)
    x, y = reader.buffer(node, steps.codes), reader.new(node)
    window, stride, padding = (reader.value(v) for v in pool.inputs[1:4])
    head = pool_text(x, y, one, window, stride, padding, [1, 1])
    rest = [f"{steps.zero}, {found.divisor}", *_rescaling(reader, node, found), y]
    reader.call(node, "average_pool2d", [head, x, *rest], [x], y)


_Form = Callable[["Reader", NodeView, NodeView, Rescaled], None]
_FORMS: Mapping[str, _Form] = {
    "aten::conv1d": _weighted,
    "aten::conv2d": _weighted,
    "aten::linear": _weighted,
    "aten::add": _sum,
    "aten::mul": _product,
    "aten::sum": _mean,
    "aten::avg_pool2d": _windows,
    "aten::squeeze": _windows,
    "aten::sub": _regridded,
    "aten::to": _regridded,
}
