"""Calls of operators that end in a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING

import torch

from ...graph.view import NodeView, ValueView
from ...targets.fixed_point.groups import LONGEST
from ...targets.fixed_point.rows import ONE
from .layout import all_axes, broadcast_loops, loops, pool_shape, rescaling, strides_of
from .program import CTYPES, Argument, Buffer, Struct
from .structs import CONV2D
from .sums import FormError, Rescaled, made

if TYPE_CHECKING:
    from .reading import Reader


def _rescaling(reader: Reader, node: NodeView, found: Rescaled) -> Struct:
    """Return a rescaling with arrays of multipliers and shifts."""
    if not all(-(2**31) <= number < 2**31 for number in found.multipliers):
        raise reader.error(node, "a multiplier has more than 32 bits")
    several = max(len(found.multipliers), len(found.shifts))
    numbers = [
        values * several if len(values) == 1 else values
        for values in (found.multipliers, found.shifts)
    ]
    return rescaling(
        found,
        reader.constant(node, "multipliers", "int32_t", numbers[0]),
        reader.constant(node, "shifts", "uint8_t", numbers[1]),
        int(several > 1),
    )


def computed(reader: Reader, node: NodeView) -> None:
    """Add the call of an operator that ends in a sum.

    Raises:
        FormError: C has no function for it.
    """
    found = reader.sums.rescaled(node)
    maker = found.value.producer
    forms = _FORMS if found.by is None else _QUOTIENTS
    form = None if maker is None else forms.get(maker.kind)
    if maker is None or form is None:
        raise FormError("C has no function for it")
    form(reader, node, maker, found)


def _weighted(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    steps = reader.sums.steps(maker.main_operand)
    x, y = reader.buffer(node, steps.codes), reader.new(node)
    codes = reader.sums.steps(maker.operand("weight")).codes
    weight = reader.value(codes)
    bias = reader.value(maker.operand("bias"))
    if bias is not None and int(bias.abs().max()) >= 2**31:
        raise reader.error(node, "a bias has more than 32 bits")
    shared: dict[str, Argument] = {
        "x": x,
        "weight": reader.constant(maker, "weight", CTYPES[weight.dtype], weight),
        "bias": None if bias is None else reader.constant(maker, "bias", "int32_t", bias),
        "r": _rescaling(reader, maker, found),
        "y": y,
    }
    if maker.kind == "aten::linear":
        outs, ins = weight.shape
        rows = x.count // ins
        head = {"rows": rows, "ins": ins, "outs": outs, "zero": steps.zero}
        reader.call(node, "linear", [x], y, **head, **shared)
    else:
        shape = _convolution(reader, maker, x, y, weight, steps.zero)
        reader.call(node, "conv2d", [x], y, s=shape, **shared)


def _convolution(
    reader: Reader, maker: NodeView, x: Buffer, y: Buffer, weight: torch.Tensor, zero: int
) -> Struct:
    names = "stride", "padding", "dilation", "groups"
    stride, padding, dilation, groups = (reader.value(maker.operand(name)) for name in names)
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
    return Struct(CONV2D, dict(zip(CONV2D.fields, numbers, strict=True)))


def _sum(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    """Add two operands, each times its factor."""
    if maker.operand("other").is_constant:
        _biased(reader, node, maker, found)
        return
    if found.multipliers != [1]:  # no sum that is rounded once has one of its own
        _sum_of_rescaled(reader, node, maker, found)
        return
    (a, left), (b, right) = (reader.sums.factor(value) for value in maker.inputs[:2])
    x, x2, y = reader.buffer(node, a.codes), reader.buffer(node, b.codes), reader.new(node)
    (shift,) = found.shifts
    reader.call(
        node, "add", [x, x2], y,
        l=broadcast_loops(y.shape, x.shape, x2.shape),
        a=x, zero_a=a.zero, factor_a=left,
        b=x2, zero_b=b.zero, factor_b=right,
        shift=shift, r=rescaling(found), y=y,
    )  # fmt: skip


def _sum_of_rescaled(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    """Add two operands that are rescaled one by one, and rescale their sum."""
    a, b = (reader.sums.part(value) for value in maker.inputs[:2])
    x, x2 = (reader.buffer(node, part.steps.codes) for part in (a, b))
    y = reader.new(node)
    reader.call(
        node, "add_rescaled", [x, x2], y,
        l=broadcast_loops(y.shape, x.shape, x2.shape), lift=a.lift,
        a=x, zero_a=a.steps.zero, multiplier_a=a.multiplier, shift_a=a.shift,
        b=x2, zero_b=b.steps.zero, multiplier_b=b.multiplier, shift_b=b.shift,
        sign=int(reader.value(maker.operand("alpha"))), r=_rescaling(reader, node, found), y=y,
    )  # fmt: skip


def _biased(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    """Add a number for each channel to an operand times its factor."""
    a, factor = reader.sums.factor(maker.main_operand)
    x, y = reader.buffer(node, a.codes), reader.new(node)
    numbers, (shift,) = reader.value(maker.operand("other")), found.shifts
    inner = prod(x.shape[len(x.shape) - numbers.dim() + 1 :])
    reader.call(
        node, "add_bias", [x], y,
        batch=y.count // len(numbers) // max(inner, 1), channels=len(numbers), inner=inner,
        x=x, zero=a.zero, factor=factor,
        bias=reader.constant(maker, "bias", "int64_t", numbers),
        shift=shift, r=rescaling(found), y=y,
    )  # fmt: skip


def _product(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    a, b = (reader.sums.steps(value) for value in maker.inputs[:2])
    x, x2, y = reader.buffer(node, a.codes), reader.buffer(node, b.codes), reader.new(node)
    reader.call(
        node, "multiply", [x, x2], y,
        l=broadcast_loops(y.shape, x.shape, x2.shape),
        a=x, zero_a=a.zero, b=x2, zero_b=b.zero,
        r=_rescaling(reader, node, found), y=y,
    )  # fmt: skip


def _matrices(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    a, b = (reader.sums.steps(value) for value in maker.inputs[:2])
    x, x2, y = reader.buffer(node, a.codes), reader.buffer(node, b.codes), reader.new(node)
    inner = x.shape[-1]
    left = x.shape if len(x.shape) > 1 else (1, inner)
    right = x2.shape if len(x2.shape) > 1 else (inner, 1)
    reader.check_sums(node, inner, (x, a.zero), (x2, b.zero))
    batch = y.shape[: len(y.shape) - (len(x.shape) > 1) - (len(x2.shape) > 1)]
    reader.call(
        node, "matmul", [x, x2], y,
        l=broadcast_loops(batch, left[:-2], right[:-2]),
        rows=left[-2], inner=inner, columns=right[-1],
        a=x, zero_a=a.zero, b=x2, zero_b=b.zero,
        r=_rescaling(reader, node, found), y=y,
    )  # fmt: skip


def _softmax(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    """Add softmax, with a mask or without."""
    empty = maker.kind == "aten::masked_fill"  # hidden elements have no share, also alone
    shares = maker.main_operand if empty else found.value
    table, wide, below = _exponentials(reader, shares)
    masked = below.producer is not None and below.producer.kind == "aten::clamp"
    if masked and below.producer is not None:
        below = below.producer.main_operand
    largest = made(made(below, "aten::sub").main_operand, "aten::amax")
    codes, hidden = largest.main_operand, largest.main_operand
    if masked:
        codes, hidden, _ = made(codes, "aten::masked_fill").inputs
    x, y = reader.buffer(node, reader.sums.steps(codes).codes), reader.new(node)
    if x.shape != y.shape:
        raise FormError(f"its mask has the sizes of {y.shape}, and its scores {x.shape}")
    (axis,) = reader.value(largest.operand("dim"))
    count, inner = x.shape[axis], prod(x.shape[axis % len(x.shape) + 1 :])
    assert found.by is not None
    (multiplier,), (_, divisor) = found.multipliers, reader.sums.scaled(found.by)
    array = reader.constant(node, "table", "int32_t", table)
    shared: dict[str, Argument] = {
        "multiplier": multiplier, "divisor": divisor, "r": rescaling(found), "y": y,
    }  # fmt: skip
    if not masked:
        rows = x.count // max(count * inner, 1)
        head: dict[str, Argument] = {"outer": rows, "count": count, "inner": inner, "x": x}
        reader.call(node, "softmax", [x], y, **head, table=array, wide=int(wide), **shared)
        return
    mask = reader.value(hidden)
    reader.call(
        node, "masked_softmax", [x], y,
        l=broadcast_loops(x.shape, mask.shape, mask.shape), count=max(count, 1), inner=inner, x=x,
        hidden=reader.constant(node, "hidden", "uint8_t", mask.to(torch.uint8)),
        table=array, wide=int(wide), alone=0 if empty else 1 << ONE, **shared,
    )  # fmt: skip


def _exponentials(reader: Reader, shares: ValueView) -> tuple[torch.Tensor, bool, ValueView]:
    """Return the table of exponentials, whether it is two, and the distances from the largest."""
    node = shares.producer
    if node is None or node.kind != "aten::bitwise_right_shift":
        table, below = made(shares, "aten::take").inputs
        return reader.value(table)[:-1], False, below
    product = made(made(node.main_operand, "aten::add").main_operand, "aten::mul")
    first, last = (made(value, "aten::take").inputs for value in product.inputs)
    tables = torch.cat([reader.value(last[0]), reader.value(first[0])[:-1]])
    return tables, True, made(first[1], "aten::bitwise_right_shift").main_operand


def _layer_norm(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    """Add layer norm, or a norm of groups of channels, whose count follows from sizes.

    Layer norm has one group, and each of its numbers is a channel.
    """
    centred, gains = made(maker.main_operand, "aten::mul").inputs
    root, offsets = made(maker.operand("other"), "aten::mul").inputs
    centred, lift = reader.sums.scaled(centred)
    steps, count = reader.sums.scaled(made(centred, "aten::sub").main_operand)
    groups = [1, count, 1]  # their number, the channels of each, and places
    if steps.producer is not None and steps.producer.kind == "aten::mul":
        steps = steps.producer.main_operand
        groups = list(reader.value(steps).shape[1:])
        for kind in ("aten::unflatten", "aten::flatten", "aten::unsqueeze"):
            steps = made(steps, kind).main_operand
        if (longest := prod(groups[1:])) > LONGEST:
            why = f"its groups have {longest} numbers, and 64 bits hold only groups of {LONGEST}"
            raise FormError(why)
    codes = reader.sums.steps(steps)
    x, y = reader.buffer(node, codes.codes), reader.new(node)
    above = made(made(root, "aten::add").operand("other"), "aten::gt")
    spread, epsilon = made(above.operand("other"), "aten::add").inputs[:2]
    assert found.by is not None
    gain, offset = (
        reader.constant(maker, name, "int32_t", _for_each(prod(groups[:2]), reader.value(numbers)))
        for name, numbers in (("gain", gains), ("offset", offsets))
    )
    numbers = dict(zip(("groups", "channels", "inner"), groups, strict=True))
    reader.call(
        node, "group_norm", [x], y,
        rows=x.count // max(prod(groups[1:]), 1), **numbers,
        x=x, zero=codes.zero,
        factor=reader.sums.scaled(spread)[1], epsilon=int(reader.value(epsilon)),
        lift=lift, gain=gain, offset=offset,
        divisor=reader.sums.scaled(found.by)[1], r=rescaling(found), y=y,
    )  # fmt: skip


def _for_each(channels: int, numbers: torch.Tensor) -> torch.Tensor:
    """Return a number for each channel, where there is one for all."""
    return numbers.flatten().repeat(channels) if numbers.numel() == 1 and channels > 1 else numbers


def _rms_norm(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    assert found.by is not None
    root, divisor = reader.sums.scaled(found.by)
    steps, lift = reader.sums.scaled(found.value)
    codes = reader.sums.steps(steps)
    x, y = reader.buffer(node, codes.codes), reader.new(node)
    above = made(made(root, "aten::add").operand("other"), "aten::gt")
    squares, epsilon = made(above.operand("other"), "aten::add").inputs[:2]
    squares, factor = reader.sums.scaled(squares)
    squares, count = reader.sums.scaled(squares)
    made(squares, "aten::sum")
    gains = torch.tensor(found.multipliers)
    reader.call(
        node, "rms_norm", [x], y,
        rows=x.count // max(len(gains), 1), count=len(gains), x=x, zero=codes.zero,
        factor=factor * count, epsilon=int(reader.value(epsilon)), lift=lift,
        gain=reader.constant(maker, "gain", "int32_t", gains),
        divisor=divisor, r=rescaling(found), y=y,
    )  # fmt: skip


def _regridded(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    steps = reader.sums.steps(found.value)
    x, y = reader.buffer(node, steps.codes), reader.new(node)
    r = _rescaling(reader, node, found)
    reader.call(node, "requantize", [x], y, count=y.count, x=x, zero=steps.zero, r=r, y=y)


def _mean(reader: Reader, node: NodeView, maker: NodeView, found: Rescaled) -> None:
    steps = reader.sums.steps(maker.main_operand)
    x, y = reader.buffer(node, steps.codes), reader.new(node)
    rank = len(x.shape)
    named = "dim" in (maker.overload or "")
    dims = {dim % rank for dim in reader.value(maker.operand("dim"))} if named else set(range(rank))
    memory = strides_of(x.shape)
    kept, summed = (
        [axis for axis in range(rank) if (axis in dims) == inner] for inner in (False, True)
    )
    reader.call(
        node, "mean", [x], y,
        l=loops([x.shape[axis] for axis in kept], [memory[axis] for axis in kept]),
        over=all_axes([x.shape[axis] for axis in summed], 1),
        steps=all_axes([memory[axis] for axis in summed], 0),
        x=x, zero=steps.zero, divisor=found.divisor,
        r=_rescaling(reader, node, found), y=y,
    )  # fmt: skip


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
    names = "kernel_size", "stride", "padding"
    window, stride, padding = (reader.value(pool.operand(name)) for name in names)
    shape = pool_shape(x, y, one, window, stride, padding, [1, 1])
    r = _rescaling(reader, node, found)
    divisor = found.divisor
    reader.call(
        node, "average_pool2d", [x], y, s=shape, x=x, zero=steps.zero, divisor=divisor, r=r, y=y
    )


_Form = Callable[["Reader", NodeView, NodeView, Rescaled], None]
_FORMS: Mapping[str, _Form] = {
    "aten::conv1d": _weighted,
    "aten::conv2d": _weighted,
    "aten::linear": _weighted,
    "aten::add": _sum,
    "aten::mul": _product,
    "aten::matmul": _matrices,
    "aten::bmm": _matrices,
    "aten::sum": _mean,
    "aten::avg_pool2d": _windows,
    "aten::squeeze": _windows,
    "aten::sub": _regridded,
    "aten::to": _regridded,
}
# Sums that are divided by the sums of their rows.
_QUOTIENTS: Mapping[str, _Form] = {
    **dict.fromkeys(("aten::take", "aten::masked_fill", "aten::bitwise_right_shift"), _softmax),
    "aten::add": _layer_norm,
    "aten::mul": _rms_norm,
}
