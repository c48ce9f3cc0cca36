"""The slot of a value at its operator, and the number of channels there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import JitPassesError
from ..graph.view import LIST, NodeView, ValueView
from .place import Place
from .recurrent import RECURRENT, is_matrix

SLOTS = ("input", "weight", "correlation", "bias", "sum")
CORRELATION = "jit_passes::correlation"
ADD_BIAS = "jit_passes::add_bias"
_WEIGHTED = ("aten::conv", "aten::linear")
_QUANTIZES = tuple(f"jit_passes::{op}quantize" for op in ("", "de", "fake_"))
LOOKUPS = ("aten::embedding", "aten::embedding_bag")
_OPERANDS = ("input", "weight", "bias")


@dataclass(frozen=True)
class Correlation:
    """A correlation in a graph, with its bias and its options.

    Attributes:
        node: the correlation.
        add_bias: the operator that adds the bias to it; None without bias.
        spatial_dims: number of axes of the window, 0 for a linear.
        transposed: whether it is a transposed convolution.
        groups: number of groups; None where it is not constant.
    """

    node: NodeView
    add_bias: NodeView | None
    spatial_dims: int
    transposed: bool
    groups: int | None

    @classmethod
    def of(cls, node: NodeView) -> Correlation:
        """Read the operands of a node of that kind."""
        stride, groups = node.operand("stride").constant, node.operand("groups").constant
        transposed = node.overload != "mode" and node.operand("transposed").constant
        if stride is None or transposed is None:
            raise JitPassesError(
                f"the stride of {where(node)} is computed while the model runs: make it constant, "
                "or leave the convolution out"
            )
        result = [node, *quantized_behind(node.output)][-1].output
        users = [user for user, operand in result.uses if user.kind == ADD_BIAS and not operand]
        return cls(node, users[0] if users else None, len(stride), bool(transposed), groups)

    @property
    def merged(self) -> NodeView:
        """The convolution or linear that merging both gives, as a node that stands in no graph."""
        dims, padding = self.spatial_dims, self.node.operand("padding").constant
        bias = ValueView(-1, "", False, False, False, True, None)
        if self.add_bias is not None:
            bias = self.add_bias.operand("bias")
            unwrapping = bias.producer
            if unwrapping is not None and unwrapping.kind == "aten::_unwrap_optional":
                bias = unwrapping.main_operand
        if not dims:
            inputs = [*self.node.inputs[:2], bias]
            return replace(self.node, kind="aten::linear", overload="", inputs=inputs)
        kind, overload = f"aten::conv{dims}d", "padding" * isinstance(padding, str)
        names = ["stride", "padding", "dilation", "groups"]
        if self.transposed:
            kind, overload = f"aten::conv_transpose{dims}d", "input" if dims > 1 else ""
            names = ["stride", "padding", "output_padding", "groups", "dilation"]
        first, rest = self.node.inputs[:2], [self.node.operand(name) for name in names]
        return replace(self.node, kind=kind, overload=overload, inputs=[*first, bias, *rest])


def place_at(node: NodeView) -> Place | None:
    """Return the place that an operator quantizes in a model that trains; None for others."""
    return Place.from_text(node.operand("spec").constant) if "spec" in node.arguments else None


def quantized_behind(result: ValueView) -> list[NodeView]:
    """Return the operators, one behind the other, that quantize a result for all its readers."""
    found: list[NodeView] = []
    while len(result.uses) == 1:
        user = result.uses[0][0]
        if not user.kind.startswith(_QUANTIZES) and place_at(user) is None:
            break
        found.append(user)
        result = user.output
    return found


def merged_use(node: NodeView, operand: int | None) -> tuple[NodeView, int | None]:
    """Return the operator that a part was split from, and the part's operand there.

    Likewise the recurrent layer of a list; other operators are returned as they are.
    """
    if node.kind == LIST:
        readers = (use for use in node.output.uses if use[0].kind in RECURRENT)
        return next(readers, (node, operand))
    if node.kind == CORRELATION:
        return Correlation.of(node).merged, operand
    if node.kind != ADD_BIAS:
        return node, operand
    maker = node.operand("x").producer
    while maker is not None and place_at(maker) is not None:
        maker = maker.main_operand.producer
    if maker is None or maker.kind != CORRELATION:
        return node, operand
    return Correlation.of(maker).merged, 2 if operand == 1 else operand


def is_split(node: NodeView) -> bool:
    """Say whether it is a part of an operator that is split into correlation and bias."""
    return node.kind in (CORRELATION, ADD_BIAS)


def slot_of(node: NodeView, operand: int | None, again: bool = False) -> str:
    """Return the slot that an operand is, or for None the result."""
    if operand is None and is_split(node):
        return "correlation" if node.kind == CORRELATION and not again else "sum"
    if operand is None:
        return "output"
    if node.kind == ADD_BIAS and operand == 1:
        return "bias"
    if operand == 0 and node.kind in LOOKUPS:
        return "weight"
    reader, position = merged_use(node, operand) if node.kind == LIST else (node, operand)
    if reader.kind in RECURRENT and position is not None and is_matrix(reader, position):
        return "weight"
    weighted = node.kind == CORRELATION or node.kind.startswith(_WEIGHTED)
    if weighted and operand < len(_OPERANDS):
        return _OPERANDS[operand]
    return "input" if operand == 0 else f"input_{operand}"


def channels_of(node: NodeView, slot: str) -> int | None:
    """Return how many channels a slot of a correlation or bias addition has, by its weight or bias.

    None where these are computed while the model runs.
    """
    if not is_split(node):
        return None
    shape = node.operand("bias" if node.kind == ADD_BIAS else "weight").shape
    if node.kind == ADD_BIAS or shape is None:
        return shape[0] if shape else None
    op = Correlation.of(node)
    # Transposed, the weight is [in, out / groups, ...], else [out, in / groups, ...].
    if slot == "weight":
        return shape[int(op.transposed)]
    if (slot == "input") == op.transposed:
        return shape[0]
    if op.groups is None:
        raise JitPassesError(f"{label(node, slot)} has a number of groups that is not constant")
    return None if shape[1] is None else shape[1] * op.groups


def label(node: NodeView, slot: str) -> str:
    """Return the name of an operator's slot in messages."""
    return f"{node.name} {slot}"


def where(node: NodeView) -> str:
    """Return the name of an operator and its line, for messages."""
    return f"'{node.name}'" + (f" ({node.source})" if node.source else "")
