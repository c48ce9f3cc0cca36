"""A backend's integer operators as data, and the one place that refuses other operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from ..graph.kinds import SUMS
from ..graph.view import GraphView, NodeView, ValueView, are_constant
from ..observers import MinMax, PairSums
from ..passes.steps import Step
from ..specification.annotation import describe
from ..specification.recurrent import RECURRENT, is_matrix, matrices_of
from ..specification.specification import QuantizationSpec
from .support import (
    ANY_SPEC,
    BIAS_OPERAND,
    WEIGHT_OPERAND,
    Check,
    OperatorSupport,
    Role,
    Spec,
    SpecSupport,
)

ACTIVATION = QuantizationSpec("uint8")
DYNAMIC = QuantizationSpec("uint8", is_dynamic=True)
WEIGHT = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())

_JOINED = ("prim::TupleConstruct", "prim::ListConstruct", "prim::DictConstruct")
HEADER = ("operator", "how", "operands", "weights", "ranks", "modes", "absorbs")


@dataclass(frozen=True)
class Truths:
    """Operators on truths, that is on tensors of bool, by kind.

    Attributes:
        given: kinds that give truths, and take truths and numbers alike.
        taken: by kind, the position of the operand that may be truths.
        bits: kinds among `given` that take truths alone: numbers have other bits than truths.
    """

    given: frozenset[str] = frozenset()
    taken: Mapping[str, int] = field(default_factory=dict)
    bits: frozenset[str] = frozenset()

    def take(self, reader: NodeView, operand: int) -> bool:
        """Say whether an operator takes truths as one of its operands."""
        return reader.kind in self.given or self.taken.get(reader.kind) == operand


@dataclass(frozen=True)
class Capability:
    """A backend's integer operators, as data.

    Attributes:
        operators: its operators, by kind.
        activations: the specifications of activations that it can compute with.
        weights: the specifications of weights, where an operator has none of its own.
        accumulators: the specifications of biases, which are added to a sum of products; None
            where it takes them in float.
        float_biases: whether biases are left in float, since the backend makes integers of them
            by itself.
        float_results: whether results of operators with weights are left in float where nothing
            reads their integers, since it gives floats at no cost.
        mixed: whether an operator may have some operands in float and others quantized, and
            results of its own specification where the table says that they share.
        moves: operators that only rearrange integers, each with a function that says why a node
            cannot be done, or None; None where it takes all of them. For regions only.
        barriers: operators that only rearrange, but behind which the backend wants an operand
            quantized anew.
        floats: operators that it computes in float within a region, each with a function that says
            why a node cannot be done, or None. Asked for regions only.
        truths: operators of `floats` that give truths or take them. A region has numbers for these,
            so it gives none: all their readers are in it.
        shapes: whether a region gives a tensor of one number for a value that others only ask for
            its shape.
        in_regions: a function that says why an operator can be in no region, though the backend
            may compute it elsewhere.
        outside: kinds of operators that the backend computes outside of regions only.
        begins: operators of `floats` at which a region may begin, with operators that lead to them.
        forms: passes that give operators the forms that it has, after all targets' passes.
        dynamic: the specifications of inputs whose parameters are chosen as the model runs, for
            operators that have this mode; None where there are none.
        dynamic_regions: whether regions take dynamic operators, operators whose weight alone is
            quantized, and float operators between them.
        sums: a function that says why the sums of products of an operator overflow, given the
            specifications of its weight and its input, or of the second and the first operand of a
            product of matrices; None where they never do.
        integers_only: whether every operator that it can compute is to be quantized. Other backends
            leave an operator in float where integers save no conversion.
        correlations: whether it rounds between the products of a convolution and its bias, where
            the correlation is quantized.
        shared: a function that returns groups of results. Results of a group have the same
            parameters where they are quantized alike. None for no groups.
    """

    operators: Mapping[str, OperatorSupport]
    activations: SpecSupport = ANY_SPEC
    weights: SpecSupport = ANY_SPEC
    accumulators: SpecSupport | None = None
    float_biases: bool = False
    float_results: bool = False
    mixed: bool = False
    moves: Mapping[str, Check | None] | None = None
    barriers: frozenset[str] = frozenset()
    floats: Mapping[str, Check] = field(default_factory=dict)
    truths: Truths = field(default_factory=Truths)
    shapes: bool = False
    in_regions: Check | None = None
    outside: frozenset[str] = frozenset()
    begins: frozenset[str] = frozenset()
    forms: tuple[Step, ...] = ()
    dynamic: SpecSupport | None = None
    dynamic_regions: bool = False
    sums: Callable[[NodeView, Spec, Spec], str | None] | None = None
    integers_only: bool = False
    correlations: bool = False
    shared: Callable[[GraphView], Iterable[Sequence[ValueView]]] | None = None

    def is_weighted(self, node: NodeView) -> bool:
        """Say whether the backend has the operator as one with weights."""
        row = self.operators.get(node.kind)
        return row is not None and row.role is Role.WEIGHTED

    def adds_in_float(self, node: NodeView) -> bool:
        """Say whether a sum alone reads an operator's result, and takes it in float in one step."""
        row = self.operators.get(node.kind)
        if row is None or not row.float_in_regions:
            return False
        value = node.output
        sums = [user.kind in SUMS and user.block == node.block for user, _ in value.uses]
        return sums == [True] and not (value.is_result or value.written)

    def returns_float(self, node: NodeView) -> bool:
        """Say whether the caller alone reads an operator's result, and gets it in float."""
        row = self.operators.get(node.kind)
        return row is not None and row.returns_float and _is_returned(node)

    def has_mode(self, node: NodeView, mode: str) -> bool:
        """Say whether the backend has an operator in a mode, for any weight."""
        row = self.operators.get(node.kind)
        return row is not None and (
            mode in row.modes
            or (self.mixed and mode == "weight_only" and row.role is Role.WEIGHTED)
        )

    def takes_weight_alone(self, node: NodeView) -> bool:
        """Say whether an operator's weight can be quantized while its input stays in float."""
        row = self.operators.get(node.kind)
        return row is not None and (self.mixed or "weight_only" in row.mode_weights)

    def specs(
        self, node: NodeView, operand: int | None = None, mode: str = "static"
    ) -> SpecSupport | None:
        """Return the specifications that an operator's operand, or its result, can have in a mode.

        None where it is taken in float.
        """
        row = self.operators.get(node.kind)
        if row is not None and operand not in (None, BIAS_OPERAND) and mode in row.mode_weights:
            return row.mode_weights[mode]
        if node.kind in RECURRENT and operand is not None and is_matrix(node, operand):
            return self.weights
        if operand not in (WEIGHT_OPERAND, BIAS_OPERAND) or not self.is_weighted(node):
            return self.activations
        if not node.inputs[operand].is_constant:
            return self.activations
        own = self.operators[node.kind].weights
        return (own or self.weights) if operand == WEIGHT_OPERAND else self.accumulators

    def refusal(
        self,
        node: NodeView,
        operand: int | None = None,
        spec: Spec | None = None,
        mode: str = "static",
    ) -> str | None:
        """Say why the backend cannot do an operator as asked; None when it can.

        Args:
            node: the operator. Without a specification: whether it has an integer form at all.
            operand: which of its operands the specification is for; None for its result.
            spec: the wanted quantization. The answer goes on from "is to be": "uint8 [0, 15], and
                the target has uint8 [0, 255]".
            mode: of the operator, "static", "dynamic" or "weight_only": its input stays in float.
        """
        row = self.operators.get(node.kind)
        if spec is None:
            if row is None:
                return "the target has no int8 form of it"
            if not self.has_mode(node, mode):
                return f"the target has no {mode} form of it"
            of_weight = _REASONS.get(row.role)
            reason = of_weight(node) if of_weight else None
            return reason or (row.check(node) if row.check else None)
        if spec.is_dynamic:
            reads = self.mixed or (row is not None and operand in row.operands)
            if self.dynamic is None or not reads or row is None or "dynamic" not in row.modes:
                return "chosen as the model runs, and the target has no dynamic form of it"
            return (row.dynamic or self.dynamic).refusal(spec)
        can = self.specs(node, operand, mode)
        if can is not None and (why := can.refusal(spec)):
            return why
        if operand is None and (why := self._clip_refusal(node, spec)):
            return why
        pairs = operand == WEIGHT_OPERAND and mode != "weight_only" and self.adds_pairs(node)
        if pairs and isinstance(spec, QuantizationSpec):
            found = spec.observer
            if not isinstance(found, PairSums):
                return (
                    f"calibrated with {found.name}, and the target's kernel adds pairs of products "
                    "in int16: calibrate with pair_sums"
                )
        return None

    def _clip_refusal(self, clip: NodeView, spec: Spec) -> str | None:
        """Say why saturation of a result with this specification does not replace its clip."""
        maker = clip.main_operand.producer if clip.clip is not None else None
        row = self.operators.get(maker.kind) if maker is not None else None
        if row is None or row.clip_refusal is None or clip.kind not in row.clips:
            return None
        return row.clip_refusal(clip, spec)

    def move_refusal(self, node: NodeView) -> str | None:
        """Say why the backend cannot rearrange integers as a node does; None when it can."""
        if self.moves is None:
            return _list_reason(node)
        if node.kind not in self.moves:
            return "the target does not do it on integers"
        check = self.moves[node.kind]
        return _list_reason(node) or (check(node) if check else None)

    def float_refusal(self, node: NodeView) -> str | None:
        """Say why the backend cannot compute one of its `floats` so; None when it can."""
        written = written_reason((*node.inputs, *node.outputs))
        return written or _list_reason(node) or self.floats[node.kind](node)

    def adds_pairs(self, node: NodeView) -> bool:
        """Say whether the operator's kernel adds pairs of products in int16; see `PairSums`."""
        row = self.operators.get(node.kind)
        if row is None or row.adds_pairs is None or not node.inputs[WEIGHT_OPERAND].is_constant:
            return False
        return row.adds_pairs(node)

    def __str__(self) -> str:
        """Return all of it as a table."""
        default = describe(self.activations.nearest(ACTIVATION))
        lines = [
            f"  activations  {self.activations}; by default {default}",
            f"  weights      {self.weights}",
        ]
        if self.dynamic is not None:
            lines.append(f"  dynamic      {self.dynamic}")
        rows: list[tuple[str, ...]] = [HEADER]
        rows += [self._columns(row) for _, row in sorted(self.operators.items())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            cells = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _columns(self, row: OperatorSupport) -> tuple[str, ...]:
        weights = ""
        if row.role in (Role.WEIGHTED, Role.LOOKUP, Role.RECURRENT):
            weights = f"per {'channel' if (row.weights or self.weights).per_channel else 'tensor'}"
        low, high = row.ranks
        return (
            row.kind,
            row.role.name.lower(),
            ", ".join(map(str, row.operands)),
            weights,
            str(low) if low == high else f"{low} to {high}",
            ", ".join(row.modes),
            ", ".join(clip.removeprefix("aten::") for clip in row.clips),
        )


def _is_returned(node: NodeView) -> bool:
    """Say whether nothing but the method's caller reads a result, alone or as a part of others."""
    if node.block or len(node.outputs) != 1 or node.output.written:
        return False
    users = [user for user, _ in node.output.uses]
    if not (users or node.output.is_result):
        return False
    return all(user.kind in _JOINED and _is_returned(user) for user in users)


def written_reason(values: Iterable[ValueView]) -> str | None:
    """Say that one of the values that an operator reads or gives is written in place."""
    written = any(value.written for value in values)
    return "it reads or gives a value that is written in place" if written else None


def _list_reason(node: NodeView) -> str | None:
    known = all(value.is_tensor or _is_unpacked(value) for value in node.outputs)
    return None if known else "its results stay a list"


def options_reason(node: NodeView) -> str | None:
    """Say why operands behind the first are no options that are known ahead of time."""
    known = are_constant(node.other_operands)
    return None if known else "one of its options is computed by the model"


def dtype_reason(node: NodeView) -> str | None:
    """Say why an operator does not give the dtype that it takes."""
    dtype = node.operand("dtype")
    return None if dtype.is_constant and dtype.constant is None else "it changes the dtype"


def tensors_reason(node: NodeView) -> str | None:
    """Say why an operator is not of two tensors."""
    return None if all(value.is_tensor for value in node.inputs[:2]) else "not of two tensors"


def average_reason(node: NodeView) -> str | None:
    """Say why an average pool leaves the range of its operand, whose parameters it shares.

    With a divisor of 1 it is a sum.
    """
    divisor, window = node.operand("divisor_override"), node.operand("kernel_size")
    if divisor.is_constant and divisor.constant is None:
        return None
    if not (divisor.is_constant and window.is_constant):
        return "its divisor or window is computed by the model"
    sizes, dims = window.constant, int(node.kind[-2])
    count = prod(sizes) if len(sizes) == dims else sizes[0] ** dims
    return None if divisor.constant >= count else "it divides by less than its window holds"


def weighted_reason(node: NodeView) -> str | None:
    """Say why a convolution or linear cannot be quantized by any backend."""
    reason = _reason_of_weight(node.inputs[WEIGHT_OPERAND])
    bias = node.inputs[BIAS_OPERAND]  # of a correlation, which has no bias, another constant
    if reason or not bias.is_constant:
        return reason or "its bias is computed by the model"
    return None if bias.is_finite else "its bias holds a NaN or an infinity"


def lookup_reason(node: NodeView) -> str | None:
    """Say why the weight of an embedding cannot be quantized by any backend."""
    reason = _reason_of_weight(node.operand("weight"))
    return reason or (None if node.operand("weight").constant.numel() else "its weight is empty")


def recurrent_reason(node: NodeView) -> str | None:
    """Say why the weights of a recurrent layer cannot be quantized by any backend."""
    matrices = matrices_of(node)
    if matrices is None:
        return "its weights are computed by the model"
    return next(filter(None, (_reason_of_weight(value) for _, value in matrices)), None)


# The values of a spectral norm change so.
_CHANGED = (
    ", from values that change as it runs: where they do so in training mode, script or trace it "
    "in eval mode"
)
_REASONS = {
    Role.WEIGHTED: weighted_reason,
    Role.LOOKUP: lookup_reason,
    Role.RECURRENT: recurrent_reason,
}


def _reason_of_weight(weight: ValueView) -> str | None:
    if not (weight.is_constant and isinstance(weight.constant, torch.Tensor)):
        why = "" if _reads_inputs(weight) else _CHANGED
        return f"its weight is computed by the model{why}"
    if weight.constant.dtype != torch.float32:
        return _reason_of_dtype(weight)
    return None if weight.is_finite else "its weight holds a NaN or an infinity"


def _reads_inputs(value: ValueView) -> bool:
    """Say whether a value may depend on the model's inputs."""
    makers = [one.producer for one in _behind(value)]
    return any(maker is None or maker.carried for maker in makers)


def _behind(value: ValueView) -> list[ValueView]:
    """Return a value and all that it is computed from, to attributes and inputs of the model."""
    found = [value]
    seen = {value.id}
    for one in found:  # which grows
        maker = one.producer
        if maker and not maker.carried and maker.kind not in ("prim::Constant", "prim::GetAttr"):
            found += [operand for operand in maker.inputs if operand.id not in seen]
            seen.update(operand.id for operand in maker.inputs)
    return found


def _reason_of_dtype(weight: ValueView) -> str:
    dtype = str(weight.constant.dtype).removeprefix("torch.")
    if not weight.constant.is_floating_point():
        return f"its weight is {dtype}, not float32"
    if not any(_is_parameter(value, weight.constant.dtype) for value in _behind(weight)):
        return (
            f"its weight is {dtype}, not float32, as the graph says, which model.float() does not "
            "change: script or trace the model in float32, without autocast"
        )
    return f"its weight is {dtype}, not float32: cast the model with model.float()"


def _is_parameter(value: ValueView, dtype: torch.dtype) -> bool:
    """Say whether a value is a parameter of this dtype, by its path."""
    path = not value.name.isdigit() and ":" not in value.name
    return path and isinstance(value.constant, torch.Tensor) and value.constant.dtype == dtype


def _is_unpacked(value: ValueView) -> bool:
    """Say whether a list is only unpacked, where it is made."""
    users = [user for user, _ in value.uses]
    return not value.is_result and len(users) == 1 and users[0].kind == "prim::ListUnpack" and (
        value.producer is not None and users[0].block == value.producer.block
    )  # fmt: skip
