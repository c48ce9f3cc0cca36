"""Reads a model that is lowered for `fixed_point` as a program of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ...errors import ArgumentError, JitPassesError, count_of
from ...graph.view import GraphView, NodeView, ValueView
from ...stages.faults import misfit
from ...stages.module import ModelStage, Report, by_position, stage_of
from ...targets import FixedPoint, Target
from ...targets.fixed_point.accumulator import overflow, reach_of_product
from ...targets.fixed_point.masks import without_data
from ..program.forms import Form, form_of
from .calls import computed
from .layout import from_strides, loops, pool_shape, strides_of
from .program import CODES, Argument, Buffer, Call, Constant, Program, identifier, noted
from .structs import AXES
from .sums import FormError, SumReader

_OF_INPUT = ("to", "clamp", "round", "floor", "trunc", "nan_to_num", "mul", "add")  # quantize it
_HOLD = ("prim::Constant", "prim::GetAttr")
_MOVES = ("copy", "gather", "max_pool2d")  # kernels that keep the grid
PRODUCTS = ("aten::conv1d", "aten::conv2d", "aten::linear", "aten::matmul", "aten::bmm")
_SAME_ORDER = (
    *("reshape", "flatten", "view", "squeeze", "unsqueeze", "unflatten", "contiguous"),
    *("clone", "detach", "alias"),
)


def read_program(
    model: torch.jit.ScriptModule, inputs: Sequence[Any], method: str
) -> tuple[Program, list[torch.Tensor], list[torch.Tensor]]:
    """Return a lowered model as a program for inputs of these sizes, and its codes for these.

    Args:
        model: lowered for the target `fixed_point`.
        inputs: an example, as `example_of` returns it; the program has its sizes.
        method: of the model.

    Returns:
        The program, the codes of its inputs and the codes of its outputs.

    Raises:
        JitPassesError: the model is another one, or it computes something in float.
    """
    report = stage_of(
        model,
        ModelStage.LOWERED,
        f"call jit_passes.{_way_to_integers(Report.read(model))} first",
        command="quantize it with --target fixed_point first",
    )
    target = Target.from_record(report.target)
    if not isinstance(target, FixedPoint):
        why = f"the model is lowered for {target.name!r}, and C is written of 'fixed_point'"
        raise JitPassesError(
            f"{why}: quantize with target='fixed_point'",
            command=f"{why}: quantize with --target fixed_point",
        )
    reader = Reader(GraphView.of(model, method), report, target)
    try:
        return reader.read(inputs)
    except JitPassesError:
        raise
    except Exception:  # operators have errors of many kinds, most of an example that does not fit
        function = getattr(model, method)
        try:
            with torch.no_grad():
                function(*inputs)
        except Exception as error:
            raise misfit(function, tuple(inputs), {}, "an example", error) from error
        raise


def _way_to_integers(report: Report | None) -> str:
    """Return the call that makes integers of a model, which keeps what training has found."""
    if report is not None and isinstance(Target.from_record(report.target), FixedPoint):
        if report.stage is ModelStage.REFERENCE:
            return "lower(model)"
        return "lower(jit_passes.convert(model))"
    return "quantize_script(model, data, target='fixed_point')"


def example_of(inputs: Any, model: Any, method: str) -> tuple[Any, ...]:
    """Return an example in the order of the method's arguments, with their defaults.

    Raises:
        ArgumentError: it has other arguments than the method, or one that is no tensor.
    """
    arguments = getattr(model, method).schema.arguments[1:]
    names = [argument.name for argument in arguments]
    if not isinstance(inputs, Mapping):
        given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        if len(given) > len(names):
            _refuse_count(len(names), len(given))
        inputs = dict(zip(names, given, strict=False))
    elif unknown := set(inputs) - set(names):
        raise ArgumentError(f"the method takes {names}, and the example has {sorted(unknown)}")
    optional = {argument.name for argument in arguments if argument.has_default_value()}
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            advice = f": leave out '{name}', which has a default" if name in optional else ""
            raise ArgumentError(
                f"the program in C takes tensors, and '{name}' is of type "
                f"{type(value).__name__}{advice}"
            )
    missing = [a for a in arguments if a.name not in inputs and not a.has_default_value()]
    if missing:
        _refuse_count(len(names), len(inputs))
    return tuple(inputs.get(a.name, a.default_value) for a in arguments)


def _refuse_count(takes: int, given: int) -> NoReturn:
    raise ArgumentError(
        f"the model takes {count_of(takes, 'input')}, and the example has {given}: give a tuple of "
        "as many tensors"
    )


def in_double(form: Form, operands: Sequence[Any]) -> Any:
    """Compute sums of products of whole numbers in double precision, 4 to 40 times faster.

    Each partial sum fits the accumulator, 48 bits at most, and doubles are exact up to 2^53. Sums
    of floats stay as they are.
    """
    if any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in operands):
        return form(*operands)
    tensors = [x.double() if isinstance(x, torch.Tensor) else x for x in operands]
    return form(*tensors).long()


class Reader:
    """Reads a graph, node by node, as it computes it for an example."""

    def __init__(self, graph: GraphView, report: Report, target: FixedPoint) -> None:
        self.graph, self.target = graph, target
        self.program = Program(target.rounding, target.accumulator_bits)
        self.results: dict[int, Any] = {}  # of values, by id, for the example
        self.buffers: dict[int, Buffer] = {}  # of codes, by id
        self._chosen: dict[int, ValueView] = {}  # results of branches, by id
        self.sums = SumReader(target.rounding, self.value)
        self._made: dict[str, Constant] = {}  # by name
        known = {value.place: value for value in report.values}
        places = by_position(graph, report.places)
        self.values = {i: known[place] for i, place in places.items() if place in known}

    def read(self, inputs: Sequence[Any]) -> tuple[Program, list[torch.Tensor], list[torch.Tensor]]:
        self.results = dict(zip((v.id for v in self.graph.inputs), inputs, strict=True))
        for node in self.graph.nodes:
            tensors = any(value.is_tensor for value in node.outputs)  # others when one needs them
            if node.block == 0 and node.kind not in _HOLD and tensors:
                self._read(node)
        found = [self._output(value) for value in _parts(self.graph.outputs)]
        _spread_grids(self.program)
        read = {buffer for call in self.program.calls for buffer in call.reads}
        self.program.inputs = [
            buffer for buffer in dict.fromkeys(self.buffers.values())
            if buffer.role == "input" and buffer in read
        ]  # fmt: skip
        return self.program, [self.program.codes[b] for b in self.program.inputs], found

    def _read(self, node: NodeView) -> None:
        """Compute a node for the example, and add a call if it gives codes."""
        self._refuse_changes(node)
        if node.kind == "prim::RaiseException" or (node.kind == "prim::If" and not node.outputs):
            return
        if node.kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            for value, part in zip(node.outputs, self.value(node.main_operand), strict=True):
                self.results[value.id] = part
            return
        if node.kind in ("prim::ListConstruct", "prim::TupleConstruct"):
            self.results[node.output.id] = [self.value(value) for value in node.inputs]
            return
        if node.kind == "prim::If":
            self._branch(node)
            return
        form = None if node.kind == "prim::Loop" else form_of(node, {})
        if form is None:
            raise self.error(node, f"{node.kind} has no form in C")
        operands = [self.value(value) for value in node.inputs]
        found = in_double(form, operands) if node.kind in PRODUCTS else form(*operands)
        if len(node.outputs) != 1:
            self.results |= {v.id: r for v, r in zip(node.outputs, found or (), strict=False)}
            return
        self.results[node.output.id] = found
        if isinstance(found, torch.Tensor) and found.dtype in CODES:
            try:
                self._codes(node)
            except FormError as error:
                raise self.error(node, str(error)) from error

    def _refuse_changes(self, node: NodeView) -> None:
        """Refuse lists that the model changes: nodes are read when needed, and not in order."""
        for value in (*node.inputs, *node.outputs):
            if value.written and not value.is_tensor:
                why = f"the model changes the list '{value.name}', and C has no form for that"
                raise self.error(node, why)

    def _branch(self, node: NodeView) -> None:
        """Read the branch that is taken for these sizes."""
        if not without_data(node.main_operand):
            raise self.error(node, "it decides by its data, and C has no form for that")
        count = len(node.outputs)
        first = 0 if self.value(node.main_operand) else count
        for value, result in node.carried[first : first + count]:
            self.results[result.id] = self.value(value)
            self._chosen[result.id] = value
            if value.id in self.buffers:
                self.buffers[result.id] = self.buffers[value.id]

    def value(self, value: ValueView) -> Any:
        if value.is_constant:
            return value.constant
        maker = value.producer
        if value.id not in self.results and maker is not None and maker.kind not in _HOLD:
            self._read(maker)
        if value.id not in self.results:
            raise JitPassesError(f"'{value.name}' is state of the model, which C has no form for")
        return self.results[value.id]

    def error(self, node: NodeView, why: str) -> JitPassesError:
        name = self.name(node)
        source = _source(node)
        where = f" ({source})" if source else ""
        return JitPassesError(f"'{name}'{where}: {why}")

    def name(self, node: NodeView) -> str:
        """Return the name that reports have for a result."""
        value = self.values.get(node.index)
        return node.name if value is None else value.name

    # Codes

    def _codes(self, node: NodeView) -> None:
        source = node.main_operand
        if self._input(node):
            return
        if node.kind == "aten::to" and source.id in self.buffers:
            self.buffers[node.output.id] = self.buffers[source.id]
            self._describe(node)
        elif node.kind == "aten::to":
            computed(self, node)
        elif node.kind == "aten::take":
            self._lookup(node)
        elif node.kind == "aten::cat":
            self._concatenation(node)
        elif node.kind.removeprefix("aten::") in _SAME_ORDER:
            shape = tuple(self.results[node.output.id].shape)
            self.buffers[node.output.id] = self.buffer(node, source).reshaped(shape)
        elif node.kind == "aten::max_pool2d":
            self._maximum(node)
        elif node.kind == "aten::repeat_interleave" and self.value(source).dim() < AXES:
            self._repeated(node)
        else:
            self._move(node)

    def _input(self, node: NodeView) -> bool:
        """Note codes that come in."""
        value = node.main_operand
        if node.kind != "aten::to" or not self._is_float(value):
            return False
        value = self._quantized(value)
        if value.producer is not None:
            raise self._float_error(value.producer)
        self.new(node, value.name).role = "input"
        return True

    def _quantized(self, codes: ValueView) -> ValueView:
        """Return the operand of quantize, in front of the steps that lead to codes."""
        divided = False
        while (maker := codes.producer) is not None:
            kind = maker.kind.removeprefix("aten::")
            ahead = divided and kind != "to"  # only casts belong to quantizing there
            if kind not in _OF_INPUT or ahead or not self._is_float(maker.output):
                break
            divided |= kind == "mul"
            codes = maker.main_operand
        return codes

    def _is_float(self, value: ValueView) -> bool:
        found = self.value(value)
        return isinstance(found, torch.Tensor) and found.is_floating_point()

    def _describe(self, node: NodeView) -> None:
        """Note scale and zero point of codes, also where they are known behind a move."""
        value, buffer = self.values.get(node.index), self.buffers[node.output.id].memory
        if value is not None:
            buffer.scale, buffer.zero_point = float(value.scale[0]), int(value.zero_point[0])

    def new(self, node: NodeView, name: str | None = None) -> Buffer:
        found = self.results[node.output.id]
        label = name or self.name(node)
        made = self.buffers[node.output.id] = Buffer(label, found.dtype, tuple(found.shape))
        self.program.codes[made] = found
        self._describe(node)
        return made

    def buffer(self, node: NodeView, value: ValueView) -> Buffer:
        if value.id not in self.buffers:
            raise self.error(node, f"it reads '{value.name}', which is no codes")
        return self.buffers[value.id]

    def _output(self, value: ValueView) -> torch.Tensor:
        """Let codes be a result, and return them; the model dequantizes them."""
        value = self._taken(value)
        node = value.producer
        found = self._dequantized(value)
        if node is None or found is None:
            raise self._no_codes(value)
        codes, zero = found
        buffer = self.buffers[codes.id].memory
        if buffer.role != "arena":
            copied = Buffer(f"{buffer.name} again", buffer.dtype, buffer.shape)
            self.program.codes[copied] = self.results[codes.id]
            whole = (0, strides_of(buffer.shape))
            self._copy(node, buffer, copied, whole, whole)
            buffer = copied
        buffer.role, buffer.scale = "output", float(self.value(node.operand("other")))
        buffer.zero_point, buffer.shape = zero, tuple(self.results[codes.id].shape)
        self.program.outputs.append(buffer)
        result: torch.Tensor = self.results[codes.id]
        return result

    def _dequantized(self, value: ValueView) -> tuple[ValueView, int] | None:
        """Return the codes that a value is dequantized from, and their zero point."""
        node, zero = value.producer, 0
        steps = node.main_operand.producer if node and node.kind == "aten::mul" else None
        if steps is not None and steps.kind == "aten::sub":
            zero, steps = int(self.value(steps.operand("other"))), steps.main_operand.producer
        codes = steps.main_operand if steps and steps.kind == "aten::to" else None
        return None if codes is None or codes.id not in self.buffers else (codes, zero)

    def _float_error(self, node: NodeView, is_result: bool = False) -> JitPassesError:
        """Return the error about an operator in float: it names the first one that leads to it."""
        first = self._first_in_float(node)
        why = self.target.refusal(first)
        reason = f": {why}" if why else ""
        if first is not node:
            role = ", a result of the model" if is_result else ""
            why = f"it is computed in float, in front of '{self.name(node)}'{role}{reason}"
        elif is_result:
            why = f"it is a result of the model, and computed in float{reason}"
        else:
            why = f"it is computed in float{reason}"
        return self.error(first, why)

    def _first_in_float(self, node: NodeView) -> NodeView:
        """Return the first operator in float on the way to a node; the node itself for none."""
        first: NodeView | None = node
        while first is not None:
            node = first
            makers = (self._maker_in_float(value) for _, _, value in node.operands)
            first = next((maker for maker in makers if maker is not None), None)
        return node

    def _maker_in_float(self, value: ValueView) -> NodeView | None:
        """Return the operator that computes a value in float, moved or not; None for codes."""
        value = self._taken(value)
        while (maker := value.producer) is not None and not value.is_constant:
            if not (self._is_float(value) and self._dequantized(value) is None):
                return None
            if not maker.moves_data:
                return maker
            value = self._taken(maker.main_operand)
        return None

    def _taken(self, value: ValueView) -> ValueView:
        """Return the value in the branch that is taken; others as they are."""
        while value.id in self._chosen:
            value = self._chosen[value.id]
        return value

    def _no_codes(self, value: ValueView) -> JitPassesError:
        """Return the error about a result of the model that is no dequantized codes."""
        node = value.producer
        if node is None:
            return JitPassesError(f"the result '{value.name}' is an input of the model, in float")
        if not value.is_tensor:
            return self.error(node, "results are a tensor or a tuple of tensors, and this is none")
        return self._float_error(node, is_result=True)

    # Calls

    def call(
        self, node: NodeView, kernel: str, reads: Sequence[Buffer], writes: Buffer, /,
        **arguments: Argument,
    ) -> None:  # fmt: skip
        """Add a call; arguments are named as the parameters of its function."""
        types = {name: buffer.ctype for name, buffer in zip(("X", "X2"), reads, strict=False)}
        weight = arguments.get("weight")
        types |= {"W": weight.ctype} if isinstance(weight, Constant) else {}
        types["Y"] = writes.ctype
        named = arguments.items()
        given = {name: a.memory if isinstance(a, Buffer) else a for name, a in named}
        read = tuple(buffer.memory for buffer in reads)
        made = Call(kernel, types, given, read, writes, writes.name, _source(node))
        self.program.calls.append(made)

    def check_sums(
        self, node: NodeView, count: int, left: tuple[Buffer, int], right: tuple[Buffer, int]
    ) -> None:
        """Refuse sums of products of codes that the accumulator may not hold.

        The target checks them ahead, where weights and options say the size.

        Args:
            node: the operator.
            count: products in a sum.
            left: codes, and their zero point.
            right: likewise.
        """
        ends = []
        for buffer, zero in (left, right):
            limits = torch.iinfo(buffer.dtype)
            ends.append((limits.min - zero, limits.max - zero))
        reach = reach_of_product(ends[0], ends[1], count)
        if why := overflow(*reach, self.target.accumulator_bits):
            raise FormError(why)

    def constant(self, node: NodeView, what: str, ctype: str, numbers: Any) -> Constant:
        base = node.module or self.name(node)
        name = f"{identifier(base)}_{what}"
        return noted(self._made, Constant(name, ctype, torch.as_tensor(numbers)))

    # Operators on codes alone

    def _maximum(self, node: NodeView) -> None:
        x, y = self.buffer(node, node.main_operand), self.new(node)
        names = "kernel_size", "stride", "padding", "dilation"
        window, stride, padding, dilation = (self.value(node.operand(name)) for name in names)
        pairs = [n if len(n) == 2 else list(n) * 2 for n in (window, stride or window)]
        pairs += [n if len(n) == 2 else list(n) * 2 for n in (padding, dilation)]
        shape = pool_shape(x, y, False, *pairs)
        self.call(node, "max_pool2d", [x], y, s=shape, x=x, y=y)

    def _lookup(self, node: NodeView) -> None:
        table, index = node.inputs
        steps = self.sums.steps(index)
        x, y = self.buffer(node, steps.codes), self.new(node)
        array = self.constant(node, "table", y.ctype, self.value(table))
        self.call(node, "lookup", [x], y, count=y.count, x=x, first=steps.zero, table=array, y=y)

    def _repeated(self, node: NodeView) -> None:
        """Repeat each code along an axis: a copy with one more axis, of step 0 in the operand."""
        x, y = self.buffer(node, node.main_operand), self.new(node)
        times, axis = (self.value(node.operand(name)) for name in ("repeats", "dim"))
        behind = int(axis) % len(x.shape) + 1
        shape, steps = list(x.shape), strides_of(x.shape)
        shape.insert(behind, int(times))
        steps.insert(behind, 0)
        self._copy(node, x, y, (0, steps), (0, strides_of(shape)), tuple(shape))

    def _concatenation(self, node: NodeView) -> None:
        y, begin = self.new(node), 0
        axis = int(self.value(node.operand("dim"))) % len(y.shape)
        memory = strides_of(y.shape)
        for position, _, value in node.operands:
            if position == 0:
                x = self.buffer(node, value)
                self._copy(node, x, y, (0, strides_of(x.shape)), (begin * memory[axis], memory))
                begin += x.shape[axis]

    def _copy(
        self, node: NodeView, x: Buffer, y: Buffer, of: tuple[int, list[int]],
        to: tuple[int, list[int]], shape: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        """Add a copy; of each side the first place, and steps in memory along the axes."""
        along = loops(list(shape or x.shape), of[1], y=to[1])
        self.call(node, "copy", [x], y, l=along, begin_x=of[0], x=x, begin_y=to[0], y=y)

    def _move(self, node: NodeView) -> None:
        """Add a call that gives codes in another order, as PyTorch has moved their places."""
        part = node.kind == "aten::__getitem__"
        move = node.main_operand.producer if part else node
        if move is None or move.main_operand.id not in self.buffers:
            raise self.error(node, f"{node.kind} has no form in C")
        x = self.buffers[move.main_operand.id]
        y = self.new(node)
        places, fill = self._places(node, move, x)
        if not self._strided(node, x, y, places, fill):
            array = self.constant(node, "places", "int32_t", places)
            code = fill or 0
            self.call(node, "gather", [x], y, count=y.count, x=x, places=array, fill=code, y=y)

    def _strided(
        self, node: NodeView, x: Buffer, y: Buffer, places: torch.Tensor, fill: int | None
    ) -> bool:
        """Add a copy with steps along the axes, inside of a border; say whether it is one."""
        box = _box_of(places)
        inner = places[tuple(slice(low, high) for low, high in box)]
        begin = int(inner.flatten()[0]) if inner.numel() else 0
        steps = [
            int(inner.select(axis, 1).flatten()[0]) - begin if size > 1 else 0
            for axis, size in enumerate(inner.shape)
        ]
        even = torch.equal(from_strides(begin, steps, inner.shape), inner)
        if not even or len(y.shape) > AXES:
            return False
        if inner.shape != places.shape:
            self.call(node, "fill", [], y, count=y.count, fill=fill or 0, y=y)
        memory = strides_of(y.shape)
        first = sum(low * step for (low, _), step in zip(box, memory, strict=True))
        self._copy(node, x, y, (begin, steps), (first, memory), tuple(inner.shape))
        return True

    def _places(self, node: NodeView, move: NodeView, x: Buffer) -> tuple[torch.Tensor, int | None]:
        """Return where in the operand each code of the result is, and what stands at -1."""
        places = torch.arange(x.count).reshape(x.shape)
        operands = [self.value(value) for value in move.other_operands]
        fill = None
        if move.kind == "aten::constant_pad_nd":
            fill, operands[1] = int(operands[1]), -1
        form = form_of(move, {})
        assert form is not None
        found = form(places, *operands)
        if move is not node:
            found = found[self.value(node.operand("idx"))]
        return found, fill


def _spread_grids(program: Program) -> None:
    """Note scale and zero point of codes that were moved from or to others whose grid is known."""
    moves = [call for call in program.calls if call.kernel in _MOVES]
    ways = [(x, call.writes) for call in moves for x in call.reads]
    backwards = [(y, x) for x, y in reversed(ways)]
    for known, other in (*ways, *backwards, *ways):
        if known.scale and not other.scale:
            other.scale, other.zero_point = known.scale, known.zero_point


def _box_of(places: torch.Tensor) -> list[tuple[int, int]]:
    """Return for each axis where places that are not -1 begin and end."""
    inside = (places >= 0).nonzero()
    if not len(inside):
        return [(0, 0)] * places.dim()
    return [(int(axis.min()), int(axis.max()) + 1) for axis in inside.T]


def _parts(outputs: Sequence[ValueView]) -> list[ValueView]:
    """Return the results one by one."""
    maker = outputs[0].producer if len(outputs) == 1 else None
    if maker is not None and maker.kind == "prim::TupleConstruct":
        return list(maker.inputs)
    return list(outputs)


def _source(node: NodeView) -> str:
    """Return the line of a node, or of the value that it stores: a cast may have none itself."""
    found: NodeView | None = node
    while found is not None and not found.source and found.inputs:
        found = found.main_operand.producer
    return found.source if found is not None else ""
