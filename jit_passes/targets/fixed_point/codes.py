"""The codes behind the float values of a reference model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from ...graph.editor import GraphEditor
from ...graph.view import NodeView, ValueView, are_constant, is_literal
from ..reference_nodes import PER_CHANNEL, parameters_of, rounding_of
from ..units import DEQUANTIZE, QUANTIZE, ROUND

# Operators that give codes of their operand in another order, or some of them.
MOVES = frozenset(
    f"aten::{kind}"
    for kind in (
        *("alias", "channel_shuffle", "chunk", "clone", "contiguous", "detach", "expand"),
        *("flatten", "flip", "max_pool2d", "movedim", "narrow", "permute", "pixel_shuffle"),
        *("pixel_unshuffle", "repeat", "reshape", "select", "slice", "split", "split_with_sizes"),
        *("squeeze", "t", "transpose", "unbind", "unflatten", "unsafe_chunk", "unsqueeze", "view"),
    )
)
PADS = ("aten::constant_pad_nd", "aten::pad")
POOL = "aten::max_pool1d"
UPSAMPLE = "aten::upsample_nearest2d"
PART = "aten::__getitem__"  # of a list that a move gives
PARTS = ("prim::ListUnpack", PART)
SUPPORTED_MOVES = (*sorted(MOVES), *PADS, POOL, UPSAMPLE, PART)


class RefusedError(Exception):
    """An operator cannot be computed on integers; the text says why."""


@dataclass(frozen=True)
class Codes:
    """Codes of an activation.

    Attributes:
        value: the codes.
        scale: input units per step.
        zero_point: in steps.
        low: no code is below it.
        high: no code is above it.
        dtype: of the codes, by name.
    """

    value: ValueView
    scale: float
    zero_point: int
    low: int
    high: int
    dtype: str

    @property
    def least(self) -> int:
        """The smallest number of steps, or 0 where that is smaller: a rim is 0."""
        return min(self.low - self.zero_point, 0)

    @property
    def most(self) -> int:
        """The largest number of steps, or 0."""
        return max(self.high - self.zero_point, 0)


@dataclass(frozen=True)
class Constant:
    """Codes of a weight or bias.

    Attributes:
        value: the codes, a constant of the graph.
        codes: their tensor.
        scales: one, or one for each output channel.
    """

    value: ValueView
    codes: torch.Tensor
    scales: tuple[float, ...]

    def in_steps(self, steps: tuple[float, ...]) -> torch.Tensor:
        """Return the numbers in other steps, int64 `[channels]`; halves go to even."""
        count = self.codes.numel()
        own, others = (s if len(s) == count else s * count for s in (self.scales, steps))
        numbers = zip(self.codes.flatten().tolist(), own, others, strict=True)
        found = [round(code * Fraction(s) / Fraction(step)) for code, s, step in numbers]
        return torch.tensor(found, dtype=torch.int64)


class CodeFinder:
    """Finds codes, and moves them where the model moves values.

    Args:
        graph: the graph that is edited.
    """

    def __init__(self, graph: GraphEditor) -> None:
        self.graph = graph
        self._moved: dict[int, Codes] = {}
        self._made: dict[int, Codes] = {}  # by id of the codes

    def note(self, codes: Codes) -> None:
        """Remember codes that were computed anew."""
        self._made[codes.value.id] = codes

    def of(self, value: ValueView) -> Codes:
        """Return the codes that a value stands for.

        Raises:
            RefusedError: it is in float.
        """
        if value.id not in self._moved:
            self._moved[value.id] = self._find(value)
        return self._moved[value.id]

    def before(self, value: ValueView, quantize: NodeView) -> Codes | None:
        """Return codes of an input of the model, quantized before it is moved; None for others.

        Args:
            value: the value that is quantized.
            quantize: the operator that does so.
        """
        moves = []
        while (maker := value.producer) is not None and maker.kind in SUPPORTED_MOVES:
            moves.append(maker)
            value = maker.main_operand
        if not moves or value.producer is not None or value.written:
            return None
        codes = quantize_as(self.graph, value, quantize, before=moves[-1])
        grid = parameters_of(quantize)
        ends = (grid.quant_min, grid.quant_max)
        found = Codes(codes, float(grid.scale), int(grid.zero_point), *ends, grid.dtype)
        for move in reversed(moves):
            found = self._behind(move, found)
        return found

    def _behind(self, move: NodeView, source: Codes) -> Codes:
        """Return codes behind a move."""
        found = replace(source, value=self._move(move, source))
        if move.kind in PADS:
            zero = source.zero_point
            found = replace(found, low=min(found.low, zero), high=max(found.high, zero))
        return found

    def _find(self, value: ValueView) -> Codes:
        maker = value.producer
        if value.written:
            raise RefusedError(f"its operand '{value.name}' is written in place")
        if maker is None:
            raise RefusedError(f"its operand '{value.name}' is in float")
        if maker.kind == DEQUANTIZE:
            return self._dequantized(maker)
        unpacked = maker.kind == "prim::ListUnpack"
        move = maker.main_operand.producer if unpacked else maker
        if move is None or move.kind not in SUPPORTED_MOVES or not move.inputs:
            kind = maker.kind.removeprefix("aten::")
            moves = f", and {kind} has no integer form" if maker.moves_data else ""
            raise RefusedError(f"its operand '{value.name}' is in float{moves}")
        source = self.of(move.main_operand)
        if unpacked:
            self._unpack(maker, move, source)
            return self._moved[value.id]
        return self._behind(move, source)

    def _dequantized(self, maker: NodeView) -> Codes:
        codes, *grid = maker.inputs
        if not are_constant(grid):
            raise RefusedError(f"the scale of '{codes.name}' is chosen as the model runs")
        if codes.id in self._made:
            return self._made[codes.id]
        scale, zero_point = (value.constant for value in grid)
        return Codes(codes, float(scale), int(zero_point), *_range(codes))

    def _move(self, move: NodeView, source: Codes) -> ValueView:
        """Insert the move of a node once more, of codes."""
        if move.kind in PADS:
            return self._padded(move, source)
        if move.kind == POOL:
            return self._pooled(move, source)
        if move.kind == UPSAMPLE:
            return self._repeated(move, source)
        operands = [source.value, *move.other_operands]
        return self.graph.insert(move.kind, operands, before=move).output

    def _padded(self, move: NodeView, source: Codes) -> ValueView:
        constant = move.kind == PADS[0] or move.operand("mode").constant == "constant"
        value = move.operand("value").constant
        if not constant or value not in (None, 0) or not is_literal(move.operand("pad")):
            raise RefusedError(f"'{move.name}' pads with something else than zeros")
        operands: list[Any] = [source.value, move.operand("pad"), source.zero_point]
        return self.graph.insert(PADS[0], operands, before=move).output

    def _pooled(self, move: NodeView, source: Codes) -> ValueView:
        """Pool in two dimensions: PyTorch's operator for one has no integer form."""
        numbers = [value.constant for value in move.other_operands]
        if not are_constant(move.other_operands):
            raise RefusedError(f"the window of '{move.name}' is computed by the model")
        window, stride, padding, dilation, ceil = numbers
        wide: list[Any] = [
            [1, window[0]],
            [1, (stride or window)[0]],
            [0, padding[0]],
            [1, dilation[0]],
            ceil,
        ]
        rows = self.graph.insert("aten::unsqueeze", [source.value, -2], before=move).output
        pooled = self.graph.insert("aten::max_pool2d", [rows, *wide], before=move).output
        return self.graph.insert("aten::squeeze", [pooled, -2], before=move).output

    def _repeated(self, move: NodeView, source: Codes) -> ValueView:
        """Repeat rows and columns: PyTorch's operator has no form for int8."""
        size = move.operand("output_size")
        named = move.overload == "vec" and size.is_constant and size.constant is None
        factors = (move.operand("scale_factors").constant if named else None) or ()
        if not factors or any(factor < 1 or factor != int(factor) for factor in factors):
            raise RefusedError(f"'{move.name}' has no whole number as scale_factor")
        found = source.value
        for axis, factor in zip((-2, -1), factors, strict=True):
            operands: list[Any] = [found, int(factor), axis, None]
            found = self.graph.insert("aten::repeat_interleave", operands, before=move).output
        return found

    def _unpack(self, unpack: NodeView, move: NodeView, source: Codes) -> None:
        """Move the codes into a list, and note all parts of it."""
        operands = [source.value, *move.other_operands]
        parts = self.graph.insert(move.kind, operands, before=move).output
        for number, value in enumerate(unpack.outputs):
            part = self.graph.insert(PART, [parts, number], before=unpack).output
            self._moved[value.id] = replace(source, value=part)


def quantize_as(
    graph: GraphEditor,
    value: ValueView,
    quantize: NodeView,
    before: NodeView,
    like: NodeView | None = None,
) -> ValueView:
    """Return codes of a value, on the grid of a quantize and rounded as there."""
    if (rounding := rounding_of(quantize)) is not None:
        operands = [value, *rounding.other_operands]
        value = graph.insert(ROUND, operands, before=before, like=like).output
    operands = [value, *quantize.other_operands]
    return graph.insert(QUANTIZE, operands, before=before, like=like).output


def _range(codes: ValueView) -> tuple[int, int, str]:
    """Return the smallest and the largest code that there can be, and the dtype."""
    maker = codes.producer
    if maker is not None and maker.kind == QUANTIZE:
        grid = parameters_of(maker)
        return grid.quant_min, grid.quant_max, grid.dtype
    if maker is not None and maker.kind == "jit_passes::lookup_table":
        table = maker.operand("table").constant
        return int(table.min()), int(table.max()), str(table.dtype).removeprefix("torch.")
    raise RefusedError(f"the codes '{codes.name}' have no known range")


def constant_of(value: ValueView) -> Constant:
    """Return the codes of a weight or bias.

    Raises:
        RefusedError: it is in float, or has a zero point.
    """
    maker = value.producer
    if maker is None or maker.kind not in (DEQUANTIZE, PER_CHANNEL):
        raise RefusedError(f"its constant '{value.name}' is in float")
    codes, scale, zero_point, *axis = maker.inputs
    if not are_constant(maker.inputs):
        raise RefusedError(f"its constant '{value.name}' is computed by the model")
    if axis and (axis[0].constant != 0 or scale.constant.dim() != 1):
        raise RefusedError("its weight has scales of something else than output channels")
    scales = tuple(torch.as_tensor(scale.constant, dtype=torch.float64).reshape(-1).tolist())
    if bool(torch.as_tensor(zero_point.constant).any()):
        raise RefusedError("its weight or bias has a zero point: give it a symmetric scheme")
    return Constant(codes, codes.constant, scales)
