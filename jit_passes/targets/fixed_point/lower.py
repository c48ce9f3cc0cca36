"""The steps of the lowering that compute operators on integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...errors import JitPassesError, count_of, shortened, warn
from ...graph.editor import GraphEditor
from ...graph.functions import is_function
from ...graph.kinds import PRODUCTS
from ...graph.view import NodeView, ValueView, are_constant
from ...passes.rule import RewriteRule
from ...passes.steps import RuleSet
from ...quantizers.capability import Capability
from ...quantizers.support import CLIPS
from ...specification.parameters import QParams
from ...specification.qparams import codes_of
from ..reference_nodes import PER_CHANNEL, parameters_of, unrounded
from ..units import DEQUANTIZE, QUANTIZE
from .accumulator import products_in_sum
from .arithmetic import Arithmetic
from .call import Call, Rules
from .capability import capability_of
from .codes import PARTS, CodeFinder, Codes, RefusedError
from .operators import FORMS, moved_to
from .recurrent import refusal_of_layer
from .rescale import rounding_of_codes


def compute_on_integers(
    graph: GraphEditor, only_shift: bool, rounding: str, accumulator_bits: int, multiplier_bits: int
) -> None:
    """Compute operators in front of quantize on the codes that their operands are dequantized from.

        %y = aten::conv2d(jit_passes::dequantize(%x, ...), ...)
        %q = jit_passes::quantize(%y, scale, zero, ...)
    ->  %c = ...                                          of %x, on integers
        %d = jit_passes::dequantize(%c, scale, zero)
        %q = jit_passes::quantize(%d, scale, zero, ...)

    The value in front of quantize then has its grid, and `store_codes` takes quantize out. The
    value in front of a fake_quantize that rounds as the target does has its grid too. An operator
    without an integer form gets a remark, and stays in float. For the options see `Rules`.
    """
    rules = Rules(only_shift, rounding, accumulator_bits, multiplier_bits)
    capability = capability_of(only_shift, rounding, accumulator_bits)
    lowering = _Lowering(graph, rules, capability)
    for node in graph.nodes:
        if node.kind == QUANTIZE:
            lowering.lower(node)
    lowering.dequantize_last()
    lowering.ask_codes_for_sizes()
    lowering.remark_float()
    lowering.warn_of_floats()


# Behind `compute_on_integers`, a dequantize in front of a quantize has its grid and its range.
STORE_CODES = RuleSet(
    "store_codes",
    (
        RewriteRule(
            "store_codes",
            "jit_passes::quantize(jit_passes::dequantize(%q, %scale, %zero), %scale, %zero, "
            "%low, %high, %dtype)",
            "aten::to(%q, %dtype, False, False, None)",
        ),
    ),
)


_CODED = (DEQUANTIZE, PER_CHANNEL, QUANTIZE)
NO_FORM = "the target has no integer form of it"


class _Lowering:
    """A run over a graph."""

    def __init__(self, graph: GraphEditor, rules: Rules, capability: Capability) -> None:
        self.graph, self.rules, self.capability = graph, rules, capability
        self.finder = CodeFinder(graph)
        # Products of matrices, as long as the graph is the reference model's.
        sums = ((n.index, products_in_sum(n)) for n in graph.nodes if n.kind in PRODUCTS)
        self._products = {index: count for index, count in sums if count is not None}
        self._codes: dict[int, ValueView] = {}  # of floats that are computed on integers, by id
        self._lowered: set[int] = set()  # indices of nodes
        self._refused: dict[int, str] = {}  # reasons
        self._left: dict[str, str] = {}  # reasons of operators between integers, by name

    def lower(self, quantize: NodeView) -> None:
        """Put codes that are dequantized in front of quantize, or remark why not."""
        values, bounds = _clipped(unrounded(quantize))
        value, node = values[-1], values[-1].producer
        if not are_constant(quantize.other_operands) or node is None:
            return  # an input of the model, or a grid that the model computes
        form = FORMS.get(node.kind)
        place = node if form else quantize
        try:
            grid = _within(self._rounded(parameters_of(quantize)), bounds)
            math = Arithmetic(self.graph, place, node, self.rules.rounding)
            products = self._products.get(node.index, 1)
            call = Call(node, grid, self.finder, math, self.rules, products)
            row = self.capability.operators.get(node.kind)
            if row and row.check and (why := row.check(node)):
                raise RefusedError(why)
            if form is not None:
                codes = form(call)
            elif node.kind in (DEQUANTIZE, *PARTS) or node.moves_data:
                of_input = self.finder.before(value, quantize)
                codes = moved_to(call, of_input or self.finder.of(value))
            else:
                raise RefusedError(refusal_of_layer(node) or _of_function(node) or NO_FORM)
        except (RefusedError, JitPassesError) as error:
            self._refuse(node, str(error))
            return
        self._lowered.add(node.index)
        scale, zero = float(grid.scale), int(grid.zero_point)
        ends = (grid.quant_min, grid.quant_max)
        self.finder.note(Codes(quantize.output, scale, zero, *ends, grid.dtype))
        floats = self.graph.insert(DEQUANTIZE, [codes, scale, zero], before=place, like=node)
        self.graph.set_input(quantize, 0, floats.output)
        if form is not None:
            for known in values:
                self._codes.setdefault(known.id, codes)

    def _rounded(self, grid: QParams) -> QParams:
        """Return the grid, if the target rounds as the reference model does, or halves to even.

        Raises:
            RefusedError: it does not.
        """
        own = rounding_of_codes(self.rules.rounding)
        if grid.rounding not in ("half_even", own):
            raise RefusedError(f"its result is rounded {grid.rounding}, and the target has {own}")
        return grid

    def _refuse(self, node: NodeView, reason: str) -> None:
        self.graph.remark(node, reason)
        self._refused[node.index] = reason
        maker = _unmoved(node)
        if maker.moves_data:  # an input of the model, which comes in floats
            return
        for ahead in self._in_front(maker):
            self._left.setdefault(ahead.name, self._reason_of(ahead))
        if maker is not node:
            reason = self._refused.get(maker.index) or self._reason_of(maker)
        self._left[maker.name] = reason

    def _in_front(self, node: NodeView) -> list[NodeView]:
        """Return the operators in float whose numbers an operator reads, in program order.

        The first of them are the cause: they read numbers that have codes.
        """
        found: dict[int, NodeView] = {}
        pending = [node]
        while pending:
            for _, _, value in pending.pop().operands:
                maker = self._in_float(value)
                if maker is not None and maker.index not in found:
                    found[maker.index] = maker
                    pending.append(maker)
        return [found[index] for index in sorted(found)]

    def _in_float(self, value: ValueView) -> NodeView | None:
        """Return the operator that computes a value in float; None for codes and inputs."""
        if not value.is_tensor or value.is_constant or value.producer is None:
            return None
        maker = _unmoved(value.producer)
        known = maker.moves_data or maker.kind in _CODED or maker.index in self._lowered
        return None if known else maker

    def _reason_of(self, node: NodeView) -> str:
        """Return why an operator that is not in front of quantize is in float."""
        row = self.capability.operators.get(node.kind)
        refused = row.check(node) if row and row.check else None
        if refused or not (node.kind in FORMS or is_function(node)):
            return refused or refusal_of_layer(node) or NO_FORM
        names = (v.name for _, _, v in node.operands if self._in_float(v) is not None)
        name = next(names, None)
        return (
            "its result is not quantized" if name is None else f"its operand '{name}' is in float"
        )

    def dequantize_last(self) -> None:
        """Dequantize results of the model once they have been moved, not before."""
        for value in self.graph.outputs:
            maker = value.producer
            if maker is None or maker.kind not in ("prim::TupleConstruct", "prim::ListConstruct"):
                self._dequantize_moved(value)
                continue
            for part in dict.fromkeys(maker.inputs):
                self._dequantize_moved(part)

    def _dequantize_moved(self, value: ValueView) -> None:
        maker = value.producer
        if maker is None or not value.is_tensor:
            return
        if not maker.moves_data and maker.kind not in PARTS:
            return
        try:
            codes = self.finder.of(value)
        except RefusedError:
            return
        operands: list[Any] = [codes.value, codes.scale, codes.zero_point]
        floats = self.graph.insert(DEQUANTIZE, operands, before=maker, like=maker)
        self.graph.replace(value, floats.output)

    def ask_codes_for_sizes(self) -> None:
        """Ask codes for sizes, in place of floats that nothing else may need."""
        for node in self.graph.nodes:
            if not node.traits.asks_for_shape or not node.main_operand.is_tensor:
                continue
            value = node.main_operand
            if value.id in self._codes:
                self.graph.set_input(node, 0, self._codes[value.id])
                continue
            try:
                codes = self.finder.of(value)
            except RefusedError:
                continue
            self.graph.set_input(node, 0, codes.value)

    def remark_float(self) -> None:
        """Remark on operators with weights, and products, whose results are not quantized."""
        for node in self.graph.nodes:
            known = node.index in self._lowered or node.index in self._refused
            if known or not node.traits.counts or not node.name:
                continue
            try:
                self.finder.of(node.main_operand)
                reason = "its result is not quantized"
            except RefusedError as error:
                reason = str(error)
            self.graph.remark(node, reason)

    def warn_of_floats(self) -> None:
        """Warn of floats between integers, which hardware without them does not compute."""
        if self._left:
            count = count_of(len(self._left), "operator")
            told = [f"'{name}' ({reason})" for name, reason in self._left.items()]
            warn(f"{count} computed in float: {shortened(told, 3)}")


def _of_function(node: NodeView) -> str | None:
    """Say why a function has no table: it would have one if it read codes."""
    value = node.main_operand
    if not is_function(node) or value.producer is None or value.producer.kind == DEQUANTIZE:
        return None
    return f"its operand '{value.name}' is in float"


def _unmoved(node: NodeView) -> NodeView:
    """Return the operator whose numbers a node moves or clips; the node itself for others."""
    while node.moves_data or node.kind in PARTS or (node.kind in CLIPS and node.clip):
        if node.main_operand.producer is None:
            break
        node = node.main_operand.producer
    return node


Bounds = list[tuple[float | None, float | None]]


def _clipped(value: ValueView) -> tuple[list[ValueView], Bounds]:
    """Return a value, the operands of clips in front of it, and the bounds of the clips."""
    values, bounds = [value], []
    while (maker := value.producer) is not None and maker.kind in CLIPS and maker.clip is not None:
        bounds.append(maker.clip)
        value = maker.main_operand
        values.append(value)
    return values, bounds


def _within(grid: QParams, bounds: Bounds) -> QParams:
    """Return the grid with no more codes than clips leave.

    quantize never decreases, so quantize(clamp(x, a, b)) = clamp(quantize(x), of a, of b).
    """
    low, high = grid.quant_min, grid.quant_max
    for ends in reversed(bounds):  # the last clip wins where they contradict each other
        codes = [None if end is None else _code(end, grid) for end in ends]
        if codes[0] is not None:
            low, high = max(low, codes[0]), max(high, codes[0])
        if codes[1] is not None:
            low, high = min(low, codes[1]), min(high, codes[1])
    return replace(grid, quant_min=low, quant_max=high)


def _code(number: float, grid: QParams) -> int:
    return int(codes_of(torch.tensor(float(number)), grid))
