"""Sizes of axes that follow from weights and options, for any inputs of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .view import LIST, NodeView, ValueView

# The operands with a number for each axis of the result.
_RESHAPES = {"aten::reshape": "shape", "aten::view": "size", "aten::_unsafe_view": "size"}
# Besides the operators whose traits say so.
_LIKE = ("jit_passes::edge", "jit_passes::dequantize_per_channel", "jit_passes::lookup_table")
_WEIGHTED = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d")


def size_of(value: ValueView, axis: int) -> int | None:
    """Return the size of an axis; None where it follows from the model's inputs.

    Args:
        value: a tensor.
        axis: counted from the last one, which is -1: the number of axes may be unknown.
    """
    if value.is_constant:
        shape = value.constant.shape if isinstance(value.constant, torch.Tensor) else ()
        return int(shape[axis]) if len(shape) >= -axis else None
    if value.shape is not None and len(value.shape) >= -axis and value.shape[axis] is not None:
        return value.shape[axis]
    node = value.producer
    if node is None or node.carried:
        return None
    if node.kind in ("prim::ListUnpack", "aten::__getitem__"):
        parts = node.main_operand.producer
        return None if parts is None else _of_part(parts, axis)
    form = _FORMS.get(node.kind)
    if form is not None:
        return form(node, axis)
    if node.traits.elementwise == 2:
        return _broadcast(node, axis)
    return size_of(node.main_operand, axis) if _keeps_shape(node) else None


def rank_of(value: ValueView) -> int | None:
    """Return the number of axes; None where the graph does not say it."""
    if value.shape is not None:
        return len(value.shape)
    node = value.producer
    if node is None or node.carried:
        return None
    if node.kind == "aten::bmm":
        return 3
    if node.kind in _RESHAPES or node.kind == "aten::permute":
        sizes = _numbers_of_axes(node)
        return None if sizes is None else len(sizes)
    if _keeps_shape(node) or node.kind in ("aten::transpose", "aten::linear"):
        return rank_of(node.main_operand)
    return None


def rank_read(value: ValueView) -> int | None:
    """Return the number of axes that convolutions and pools read a value with; None without any.

    The inputs count as having a batch axis, as in all passes that do not ask for certain ranks.
    """
    for node, operand in value.uses:
        if operand != 0:
            continue
        images = node.traits.weighted.spatial_dims if node.traits.weighted else node.traits.spatial
        rank = images + 2 if images else rank_read(node.output) if _keeps_shape(node) else None
        if rank is not None:
            return rank
    return None


def _keeps_shape(node: NodeView) -> bool:
    traits = node.traits
    return traits.keeps_shape or traits.elementwise == 1 or node.kind in _LIKE


def _sizes(value: ValueView) -> list[int | None] | None:
    """Return whole numbers of a list, None for each that the model computes."""
    if value.is_constant:
        found: list[int | None] = list(value.constant)
        return found
    maker = value.producer
    if maker is None or maker.kind != LIST:
        return None
    return [part.constant if part.is_constant else None for part in maker.inputs]


def _numbers_of_axes(node: NodeView) -> list[int | None] | None:
    """Return the sizes that a reshape asks for, or the order of axes; see `_sizes`."""
    return _sizes(node.operand(_RESHAPES.get(node.kind, "dims")))


def _from_end(axis: Any, rank: int | None) -> int | None:
    """Return an axis of a tensor of that many axes counted from the last."""
    if not isinstance(axis, int):
        return None
    return axis if axis < 0 else None if rank is None else axis - rank


def _broadcast(node: NodeView, axis: int) -> int | None:
    """Return the size of an axis of two operands: a size above 1 is the size of both."""
    tensors = [value for value in node.inputs[:2] if value.is_tensor]
    sizes = [size_of(value, axis) for value in tensors]
    known = [size for size in sizes if size is not None]
    return max(known) if known and (max(known) > 1 or len(known) == len(sizes)) else None


def _weighted(node: NodeView, axis: int) -> int | None:
    weight = node.operand("weight")
    channels = -1 if node.kind == "aten::linear" else 1 - _rank_of_weight(weight)
    if axis == channels:
        rank = 2 if node.kind == "aten::linear" else _rank_of_weight(weight)
        return size_of(weight, -rank)
    return size_of(node.main_operand, axis) if node.kind == "aten::linear" else None


def _rank_of_weight(weight: ValueView) -> int:
    while not weight.is_constant and weight.producer is not None and weight.producer.inputs:
        weight = weight.producer.main_operand
    return weight.constant.dim() if isinstance(weight.constant, torch.Tensor) else 0


def _reshaped(node: NodeView, axis: int) -> int | None:
    sizes = _numbers_of_axes(node)
    size = sizes[axis] if sizes is not None and len(sizes) >= -axis else None
    return size if size is not None and size >= 0 else None


def _unflattened(node: NodeView, axis: int) -> int | None:
    sizes, rank = _sizes(node.operand("sizes")), rank_of(node.main_operand)
    if sizes is None:
        return None
    if rank is None and (result := rank_of(node.output)) is not None:
        rank = result - len(sizes) + 1
    behind = _from_end(node.operand("dim").constant, rank)
    if behind is None:
        return None
    place = axis - behind - 1  # from the end of the new axes
    if place >= 0:
        return size_of(node.main_operand, axis)
    if -place > len(sizes):
        return size_of(node.main_operand, axis + len(sizes) - 1)
    size = sizes[place]
    return size if size is not None and size >= 0 else None


def _permuted(node: NodeView, axis: int) -> int | None:
    order = _numbers_of_axes(node)
    source = order[axis] if order is not None and len(order) >= -axis else None
    if order is None or source is None:
        return None
    return size_of(node.main_operand, source if source < 0 else source - len(order))


def _transposed(node: NodeView, axis: int) -> int | None:
    x, rank = node.main_operand, rank_of(node.output)
    first, second = (_from_end(node.operand(name).constant, rank) for name in ("dim0", "dim1"))
    if first is None or second is None:
        return None
    return size_of(x, {first: second, second: first}.get(axis, axis))


def _of_part(node: NodeView, axis: int) -> int | None:
    """Return the size of an axis of a part of a tensor that a node cuts into equal ones."""
    if node.kind not in ("aten::unbind", "aten::chunk"):
        return None
    dim = node.operand("dim").constant
    if node.kind == "aten::unbind":
        return _without(node.main_operand, dim, axis)
    cut = _from_end(dim, rank_of(node.main_operand))
    if cut is None:
        return None
    size, count = size_of(node.main_operand, axis), node.operand("chunks").constant
    if cut != axis or size is None:
        return size
    return size // count if isinstance(count, int) and size % count == 0 else None


def _selected(node: NodeView, axis: int) -> int | None:
    return _without(node.main_operand, node.operand("dim").constant, axis)


def _without(value: ValueView, dim: Any, axis: int) -> int | None:
    """Return the size of an axis of a tensor that loses another one."""
    lost = _from_end(dim, rank_of(value))
    if lost is None:
        return None
    return size_of(value, axis if axis > lost else axis - 1)


def _product(node: NodeView, axis: int) -> int | None:
    """Return the size of an axis of a product of matrices: of matmul, a vector loses its axis."""
    matrices = node.kind == "aten::bmm" or all((rank_of(x) or 0) > 1 for x in node.inputs)
    if not matrices or axis not in (-1, -2):
        return None
    left, right = node.inputs
    return size_of(right if axis == -1 else left, axis)


_FORMS: Mapping[str, Callable[[NodeView, int], int | None]] = {
    **dict.fromkeys(_WEIGHTED, _weighted),
    **dict.fromkeys(_RESHAPES, _reshaped),
    "aten::unflatten": _unflattened,
    "aten::permute": _permuted,
    "aten::transpose": _transposed,
    "aten::select": _selected,
    "aten::bmm": _product,
    "aten::matmul": _product,
}
