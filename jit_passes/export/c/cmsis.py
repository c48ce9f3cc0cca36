"""Calls of CMSIS-NN in place of own loops, where its arithmetic is the model's.

CMSIS-NN has images with channels last, `[batch, places, channels]`. A convolution gives its result
in this order. Later operators keep the order as long as they compute number by number, or are pools
or convolutions of CMSIS-NN. Copies stand where the order changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import torch

from ...errors import JitPassesError
from .cmsis_kernels import MACROS
from .layout import loops, strides_of
from .program import Argument, Buffer, Call, Constant, Program, Struct, noted

_Order = tuple[int, int, int]  # batch, channels, places
_POINTWISE = ("lookup", "requantize")
_ONE = 1 << 30  # the smallest multiplier
_EXACT = 31  # bits of the smallest shift: M is 1 at most, so no result leaves 32 bits


def with_cmsis(program: Program) -> Program:
    """Return a program with calls of CMSIS-NN.

    Raises:
        JitPassesError: the target rounds otherwise, or no operator has the arithmetic.
    """
    if program.rounding not in MACROS:
        raise JitPassesError(
            "kernels='cmsis' takes a model with rounding='half_up' or 'double_round', and this has "
            f"{program.rounding!r}: quantize with target=FixedPoint(rounding='half_up')"
        )
    return _Translation(program).run()


class _Translation:
    """A run over the calls."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calls: list[Call] = []
        self._first = set(program.inputs)  # codes that are there with channels first
        self._last: dict[Buffer, Buffer] = {}  # the same codes with channels last
        self._orders: dict[Buffer, _Order] = {}  # of these
        self._constants = {constant.name: constant for constant in program.constants}
        self.scratch = 0

    def run(self) -> Program:
        found = 0
        for call in self.program.calls:
            form = _FORMS.get(call.kernel)
            made = form(self, call) if form and self._are_int8(call) else False
            found += made
            if not made and not self._number_by_number(call):
                self._as_it_is(call)
        if not found:
            raise JitPassesError(
                "no operator has the arithmetic of CMSIS-NN, which takes int8: give activations "
                "the dtype int8"
            )
        return replace(self.program, calls=self.calls, scratch=self.scratch)

    def _are_int8(self, call: Call) -> bool:
        dtypes = {buffer.dtype for buffer in (call.writes, *call.reads)}
        return dtypes == {torch.int8} and self.program.accumulator_bits <= 32

    # Orders of codes

    def _as_it_is(self, call: Call) -> None:
        for buffer in call.reads:
            self.need_first(buffer)
        self.calls.append(call)
        self._first.add(call.writes)

    def need_first(self, buffer: Buffer) -> None:
        """Have codes with channels first."""
        if buffer not in self._first and buffer in self._last:
            batch, channels, places = self._orders[buffer]
            steps = (channels * places, 1, channels)
            self._copy(self._last[buffer], buffer, (batch, channels, places), steps)
            self._first.add(buffer)

    def note_first(self, buffer: Buffer) -> None:
        """Remember that a call writes codes with channels first."""
        self._first.add(buffer)

    def order_of(self, buffer: Buffer) -> _Order | None:
        """Return the sizes of codes that are known with channels last; None for others."""
        return self._orders.get(buffer)

    def read_last(self, buffer: Buffer, order: _Order) -> Buffer:
        """Return codes with channels last."""
        if buffer not in self._last:
            found = self._made(buffer, order)
            if found is not buffer:
                batch, channels, places = order
                steps = (channels * places, 1, places)
                self._copy(buffer, found, (batch, places, channels), steps)
        return self._last[buffer]

    def write_last(self, buffer: Buffer, order: _Order) -> Buffer:
        """Return where a call writes codes with channels last."""
        return self._made(buffer, order)

    def _made(self, buffer: Buffer, order: _Order) -> Buffer:
        _, channels, places = order
        self._orders[buffer] = order
        if channels == 1 or places == 1:  # both orders are one
            self._first.add(buffer)
            self._last[buffer] = buffer
        else:
            shape = (order[0], places, channels)
            name = f"{buffer.name}, channels last"
            last = Buffer(name, buffer.dtype, shape, "arena", buffer.scale, buffer.zero_point)
            self._last[buffer] = last
        return self._last[buffer]

    def _copy(self, x: Buffer, y: Buffer, sizes: Sequence[int], steps: Sequence[int]) -> None:
        arguments: dict[str, Argument] = {
            "l": loops(sizes, steps, y=strides_of(sizes)),
            "begin_x": 0, "x": x, "begin_y": 0, "y": y,
        }  # fmt: skip
        types = {"X": x.ctype, "Y": y.ctype}
        self.calls.append(Call("copy", types, arguments, (x,), y, y.name, ""))

    def turned(self, x: Buffer, sizes: _Order) -> Buffer:
        """Return matrices `[batch, rows, columns]` with their columns as rows."""
        batch, rows, columns = sizes
        if rows == 1 or columns == 1:  # both orders are one
            return x
        shape = (batch, columns, rows)
        y = Buffer(f"{x.name}, transposed", x.dtype, shape, "arena", x.scale, x.zero_point)
        self._copy(x, y, shape, (rows * columns, 1, columns))
        return y

    def _number_by_number(self, call: Call) -> bool:
        """Add a call that takes any order of axes, if it is one; say whether it is."""
        if call.kernel not in _POINTWISE and not _in_step(call):
            return False
        if any(buffer not in self._last for buffer in call.reads) or not call.reads:
            return False
        orders = {self._orders[buffer] for buffer in call.reads}
        if len(orders) != 1 or all(buffer in self._first for buffer in call.reads):
            return False
        (order,) = orders
        reads = {buffer: self._last[buffer] for buffer in call.reads}
        self.add(call, reads, self.write_last(call.writes, order))
        return True

    def add(
        self, call: Call, reads: Mapping[Buffer, Buffer], writes: Buffer,
        kernel: str = "", arguments: Mapping[str, Argument] | None = None,
    ) -> None:  # fmt: skip
        """Add a call with other buffers, and where given another function and its arguments."""
        others = {**reads, call.writes: writes}
        own = (arguments if kernel else None) or call.arguments
        given = {n: others.get(a, a) if isinstance(a, Buffer) else a for n, a in own.items()}
        read = tuple(reads[buffer] for buffer in call.reads)
        types = {} if kernel else call.types
        name = kernel or call.kernel
        self.calls.append(Call(name, types, given, read, writes, call.name, call.source))
        if call.writes.role == "output":
            self.need_first(call.writes)

    # Numbers as CMSIS-NN has them

    def scales(self, r: Struct, count: int) -> dict[str, Argument] | None:
        """Return multipliers and shifts for so many channels; None where CMSIS-NN has none."""
        multipliers, shifts = r.values["multipliers"], r.values["shifts"]
        assert isinstance(multipliers, Constant) and isinstance(shifts, Constant)
        pairs = zip(multipliers.numbers.tolist(), shifts.numbers.tolist(), strict=True)
        found = [_normal(m, n) for m, n in pairs]
        if None in found:
            return None
        numbers = torch.tensor(found, dtype=torch.int64).expand(count, 2)
        return {
            "multipliers": self.constant(f"{multipliers.name}_q31", "int32_t", numbers[:, 0]),
            "shifts": self.constant(f"{shifts.name}_left", "int32_t", numbers[:, 1]),
            **_ends(r),
        }

    def constant(self, name: str, ctype: str, numbers: torch.Tensor) -> Constant:
        return noted(self._constants, Constant(name, ctype, numbers))


def _normal(multiplier: int, shift: int) -> tuple[int, int] | None:
    """Return a multiplier from 2^30 on and a shift to the left; None where it is above 1."""
    if multiplier == 0:
        return 0, 0
    lift = 31 - multiplier.bit_length()
    down = shift + lift - 31
    return (multiplier << lift, -down) if multiplier > 0 and 0 <= down <= 31 else None


def _ends(r: Struct) -> dict[str, Argument]:
    return {name: r.values[name] for name in ("zero", "low", "high")}


def _struct(call: Call, name: str) -> Struct:
    found = call.arguments[name]
    assert isinstance(found, Struct)
    return found


def _numbers(struct: Struct, *names: str) -> list[int]:
    found = [struct.values[name] for name in names]
    return [number for number in found if isinstance(number, int)]


def _in_step(call: Call) -> bool:
    """Say whether operands and result of two operands have one order: nothing is broadcast."""
    if call.kernel not in ("add", "add_rescaled", "multiply"):
        return False
    return _steps_alike(_struct(call, "l"))


def _steps_alike(along: Struct) -> bool:
    sizes = along.values["sizes"]
    assert isinstance(sizes, tuple)
    plain = strides_of(sizes)
    return all(
        size == 1 or step == own
        for name in ("a", "b")
        for size, step, own in zip(sizes, _steps(along, name), plain, strict=True)
    )


def _steps(along: Struct, name: str) -> tuple[int, ...]:
    found = along.values[name]
    assert isinstance(found, tuple)
    return found


def _convolved(run: _Translation, call: Call) -> bool:
    s, weight = _struct(call, "s"), call.arguments["weight"]
    assert isinstance(weight, Constant)
    batch, ins, outs, groups = _numbers(s, "batch", "in_channels", "out_channels", "groups")
    deep = groups > 1 and groups == ins
    scales = run.scales(_struct(call, "r"), outs)
    if weight.ctype != "int8_t" or scales is None:
        return False
    window = _numbers(s, "kernel_height", "kernel_width")
    numbers = weight.numbers.reshape(outs, ins // groups, *window)
    numbers = numbers.permute(1, 2, 3, 0) if deep else numbers.permute(0, 2, 3, 1)
    kept = run.constant(f"{weight.name}_last", "int8_t", numbers)
    (x,), y = call.reads, call.writes
    before, behind = _places(s)
    reads = {x: run.read_last(x, (batch, ins, before))}
    writes = run.write_last(y, (batch, outs, behind))
    bias = call.arguments["bias"]
    if (
        bias is None and groups > 1 and not deep
    ):  # CMSIS-NN 7 reads biases of groups behind the first one
        zeros = torch.zeros(outs, dtype=torch.int64)
        bias = run.constant(f"{weight.name}_no_bias", "int32_t", zeros)
    arguments: dict[str, Argument] = {
        "s": s,
        "x": x,
        "weight": kept,
        "bias": bias,
        **scales,
        "y": y,
    }
    if not deep:
        run.scratch = max(run.scratch, _columns(ins * prod(window)))
    kernel = "cmsis_depthwise" if deep else "cmsis_convolve"
    run.add(call, reads, writes, kernel, arguments)
    return True


def _places(s: Struct) -> tuple[int, int]:
    """Return how many places images have, before and behind."""
    before, behind = (_numbers(s, f"{side}_height", f"{side}_width") for side in ("in", "out"))
    return prod(before), prod(behind)


def _columns(count: int) -> int:
    """Return the bytes of two columns of int16, in fours: `arm_convolve_s8_get_buffer_size`."""
    return 2 * ((count + 3) // 4 * 4) * 2


def _connected(run: _Translation, call: Call) -> bool:
    weight, outs = call.arguments["weight"], call.arguments["outs"]
    assert isinstance(weight, Constant) and isinstance(outs, int)
    scales = run.scales(_struct(call, "r"), outs)
    if weight.ctype != "int8_t" or scales is None:
        return False
    (x,) = call.reads
    run.need_first(x)
    given = dict(call.arguments)
    arguments = {
        **{name: given[name] for name in ("rows", "ins", "outs")}, "zero_x": given["zero"],
        **{name: given[name] for name in ("x", "weight", "bias")}, **scales, "y": given["y"],
    }  # fmt: skip
    run.add(call, {x: x}, call.writes, "cmsis_fully_connected", arguments)
    run.note_first(call.writes)
    return True


def _two(run: _Translation, call: Call, kernel: str, own: Mapping[str, Argument]) -> bool:
    """Add a call on two operands in step, in the order that both have."""
    r = _struct(call, "r")
    if not _in_step(call):
        return False
    found = _one(r)
    if found is None:
        return False
    given = call.arguments
    arguments = {
        "count": call.writes.count, **{n: given[n] for n in ("a", "zero_a", "b", "zero_b")},
        **own, "multiplier": found[0], "shift": found[1], **_ends(r), "y": given["y"],
    }  # fmt: skip
    orders = {run.order_of(buffer) for buffer in call.reads}
    order = next(iter(orders))
    if len(orders) == 1 and order is not None:
        reads = {buffer: run.read_last(buffer, order) for buffer in call.reads}
        run.add(call, reads, run.write_last(call.writes, order), kernel, arguments)
        return True
    for buffer in call.reads:
        run.need_first(buffer)
    run.note_first(call.writes)
    run.add(call, {buffer: buffer for buffer in call.reads}, call.writes, kernel, arguments)
    return True


def _one(r: Struct) -> tuple[int, int] | None:
    multipliers, shifts = r.values["multipliers"], r.values["shifts"]
    assert isinstance(multipliers, Constant) and isinstance(shifts, Constant)
    return _normal(int(multipliers.numbers[0]), int(shifts.numbers[0]))


def _added(run: _Translation, call: Call) -> bool:
    given, own = call.arguments, dict[str, Argument]()
    lift, sign = given["lift"], given["sign"]
    assert isinstance(lift, int)
    for name in "ab":
        multiplier, shift = given[f"multiplier_{name}"], given[f"shift_{name}"]
        assert isinstance(multiplier, int) and isinstance(shift, int)
        found = _normal(multiplier, shift)
        if found is None or sign != 1 or lift & (lift - 1):
            return False
        own[f"multiplier_{name}"], own[f"shift_{name}"] = found
    return _two(run, call, "cmsis_add", {**own, "lift": lift.bit_length() - 1})


def _multiplied(run: _Translation, call: Call) -> bool:
    return _two(run, call, "cmsis_multiply", {})


def _pooled(run: _Translation, call: Call) -> bool:
    s, (x,), y = _struct(call, "s"), call.reads, call.writes
    if _numbers(s, "dilation_y", "dilation_x") != [1, 1] or len(y.shape) < 3:
        return False
    known = run.order_of(x)
    (planes,) = _numbers(s, "planes")
    channels = known[1] if known else y.shape[-3]
    batch = planes // max(channels, 1)
    before, behind = (
        prod(_numbers(s, f"{side}_height", f"{side}_width")) for side in ("in", "out")
    )
    reads = {x: run.read_last(x, (batch, channels, before))}
    writes = run.write_last(y, (batch, channels, behind))
    arguments: dict[str, Argument] = {"batch": batch, "channels": channels, "s": s, "x": x, "y": y}
    run.add(call, reads, writes, "cmsis_max_pool", arguments)
    return True


def _matrices(run: _Translation, call: Call) -> bool:
    """Add a product of matrices, the right one with its columns as rows; no batch is broadcast."""
    r, along, given, y = _struct(call, "r"), _struct(call, "l"), call.arguments, call.writes
    found, sizes = _one(r), along.values["sizes"]
    if found is None or not _steps_alike(along):
        return False
    a, b, inner, columns = (given[name] for name in ("a", "b", "inner", "columns"))
    assert isinstance(a, Buffer) and isinstance(b, Buffer) and isinstance(sizes, tuple)
    assert isinstance(inner, int) and isinstance(columns, int)
    batch = prod(sizes)
    for buffer in (a, b):
        run.need_first(buffer)
    turned = run.turned(b, (batch, inner, columns))
    arguments = {
        "batch": batch, **{name: given[name] for name in ("rows", "inner", "columns")},
        "a": a, "zero_a": given["zero_a"], "b": turned, "zero_b": given["zero_b"],
        "multiplier": found[0], "shift": found[1], **_ends(r), "y": y,
    }  # fmt: skip
    run.calls.append(Call("cmsis_matmul", {}, arguments, (a, turned), y, call.name, call.source))
    run.note_first(y)
    return True


_FORMS: Mapping[str, Callable[[_Translation, Call], bool]] = {
    "conv2d": _convolved,
    "linear": _connected,
    "add_rescaled": _added,
    "multiply": _multiplied,
    "max_pool2d": _pooled,
    "matmul": _matrices,
}
