"""Factors for the channels of values that leave the function of a model as it is.

    y = f(W x + b), z = V y   ->   y' = f((W / s) x + b / s), z = (s V) y'       f(x / s) = f(x) / s

A walk over the graph finds the channels that need one factor. A sum joins the channels of its
operands. A concatenation has the channels of its parts one after another. Operands of unknown
operators keep factors of 1. A product can take factors back instead:

    y = W x + b, z = y + r   ->   y' = (W / s) x + b / s, z = s y' + r

`smooth` and `equalize` choose the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..graph.editor import GraphEditor
from ..graph.view import LIST, GraphView, NodeView, ValueView, are_constant
from ..passes.pipeline import Pipeline

NORM = "aten::layer_norm"

# f(s x) = s f(x) for each factor s > 0, whichever axes the operator knows.
_EVERYWHERE = """
    abs alias alpha_dropout clone contiguous detach dropout feature_dropout leaky_relu neg prelu
    relu
"""
_HOMOGENEOUS = frozenset(f"aten::{name}" for name in _EVERYWHERE.split())
# Likewise, operators on as many last axes as their names say, max_pool2d.
_LAST_AXES = """
    adaptive_avg_pool adaptive_max_pool avg_pool max_pool reflection_pad replication_pad
    upsample_bicubic upsample_bilinear upsample_linear upsample_nearest upsample_trilinear
"""
_SPATIAL = frozenset(_LAST_AXES.split())


@dataclass(frozen=True)
class Carried:
    """The channels of a value.

    Attributes:
        ids: the number of each channel, among all of the graph.
        axis: along which they lie, from the end.
        flat: whether each channel may stand for several neighbours: its pixels, flattened.
    """

    ids: Tensor
    axis: int
    flat: bool = False

    def rows(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the value with a row for each channel."""
        channels = len(self.ids)
        if self.flat:  # pixels of a channel lie side by side
            tensor = tensor.reshape(*tensor.shape[:-1], channels, -1)
            return tensor.movedim(-2, 0).reshape(channels, -1)
        return tensor.movedim(self.axis, 0).reshape(channels, -1)


@dataclass(frozen=True)
class Layer:
    """An operator with constant weights, and the channels that its factors change.

    Attributes:
        node: a convolution, a linear or a layer norm.
        inputs: the id of each channel that it reads; None where these have no ids. A linear may
            read several pixels of a channel.
        outputs: the id of each channel that it makes.
        shared: of a layer norm, whether other operators than linears read its result: these read
            a copy that stays as it is.
        restored: whether a product behind its result takes the factors back, for all readers.
    """

    node: NodeView
    inputs: Tensor | None
    outputs: Tensor
    shared: bool = False
    restored: bool = False

    @property
    def weight(self) -> Tensor | None:
        constant: Tensor | None = self.node.operand("weight").constant
        return None if constant is None else constant.detach()

    @property
    def bias(self) -> Tensor | None:
        constant: Tensor | None = self.node.operand("bias").constant
        return None if constant is None else constant.detach()

    def reads(self, norm: Layer) -> bool:
        """Say whether it reads a layer norm directly."""
        return self.inputs is not None and self.node.main_operand is norm.node.output

    def by_group(self, weight: Tensor) -> Tensor:
        """Return a weight as [groups, outputs of one, inputs of one, kernel]."""
        weighted = self.node.traits.weighted
        assert weighted is not None
        groups = self.node.groups
        if weighted.transposed:
            parts = weight.reshape(groups, -1, weight.shape[1], weight.shape[2:].numel())
            return parts.transpose(1, 2)
        inputs = weight.shape[1] if self.inputs is None else len(self.inputs) // groups
        return weight.reshape(groups, weight.shape[0] // groups, inputs, -1)

    @cached_property
    def magnitudes(self) -> Tensor:
        """The largest |weight| of each pair of channels, [groups, outputs, inputs]."""
        assert self.weight is not None
        found: Tensor = torch.linalg.vector_norm(self.by_group(self.weight), torch.inf, 3)
        return found

    def read(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the largest |weight| that reads each channel, with factors, [inputs]."""
        assert self.weight is not None
        if (outputs == 1).all():  # at once: no copy of a large weight
            parts = self.by_group(self.weight)
            found: Tensor = torch.linalg.vector_norm(parts, torch.inf, (1, 3))
        else:
            magnitudes = self.magnitudes
            factors = outputs.to(magnitudes.dtype).reshape(len(magnitudes), -1, 1)
            found = (magnitudes / factors).amax(1)
        return found.flatten().double() * inputs

    def made(self, inputs: Tensor | None, outputs: Tensor) -> Tensor:
        """Return the largest |weight| that makes each channel, with factors, [outputs]."""
        if self.node.kind == NORM:
            gain = torch.ones(len(outputs)) if self.weight is None else self.weight.abs()
            return gain.double() / outputs
        magnitudes = self.magnitudes
        if inputs is not None:
            factors = inputs.to(magnitudes.dtype).reshape(len(magnitudes), 1, -1)
            magnitudes = magnitudes * factors
        return magnitudes.amax(2).flatten().double() / outputs

    def applied(self, constants: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the result for inputs of one number for each channel, [outputs].

        Args:
            constants: the numbers.
            weight: in place of its own.
        """
        weight = self.weight if weight is None else weight
        assert weight is not None
        parts = self.by_group(weight.double()).sum(3)
        return (parts * constants.reshape(len(parts), 1, -1)).sum(2).flatten()

    def scaled(self, inputs: Tensor | None, outputs: Tensor) -> Tensor:
        """Return the weight that reads inputs / factor and makes outputs / factor."""
        weight = self.weight
        if self.node.kind == NORM:
            gain = torch.ones(len(outputs), dtype=torch.float32) if weight is None else weight
            return rounded(gain.double() / outputs, gain)
        assert weight is not None
        double = weight.double()
        parts = self.by_group(double)
        factor = 1 / outputs.reshape(len(parts), -1, 1, 1)
        if inputs is not None:
            factor = factor * inputs.reshape(len(parts), 1, -1, 1)
        transposed = self.node.traits.weighted is not None and self.node.traits.weighted.transposed
        made = (parts * factor).transpose(1, 2) if transposed else parts * factor
        return rounded(made.reshape(weight.shape), weight)


def rounded(numbers: Tensor, like: Tensor) -> Tensor:
    """Return numbers in the dtype of another tensor: under autocast, weights and gains differ."""
    return numbers.to(like.dtype)


@dataclass
class Scaling:
    """The channels of a graph that can have factors.

    Attributes:
        layers: that make channels, in program order.
        clips: limits [0, c] whose operand has channels, with these: without the limit, any factor
            is right.
        carried: the channels of values, by their id in the graph.
        read: the values that a layer reads by channels.
    """

    layers: list[Layer] = field(default_factory=list)
    clips: list[tuple[NodeView, Tensor]] = field(default_factory=list)
    carried: dict[int, Carried] = field(default_factory=dict)
    read: list[ValueView] = field(default_factory=list)
    _parent: list[int] = field(default_factory=list)
    _fixed: set[int] = field(default_factory=set)

    def ones(self) -> Tensor:
        """Return a factor for each channel that changes nothing."""
        return torch.ones(len(self._parent), dtype=torch.float64)

    def fresh(self, count: int) -> Tensor:
        """Return ids of new channels."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def join(self, one: Tensor, other: Tensor) -> None:
        """Give channels the same factor, pair by pair."""
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            a, b = self._root(a), self._root(b)
            self._parent[max(a, b)] = min(a, b)

    def fix(self, ids: Tensor) -> None:
        """Leave channels as they are."""
        self._fixed.update(ids.tolist())

    def roots(self) -> tuple[Tensor, Tensor]:
        """Return for each id the representative of its class, and whether it may change."""
        roots = torch.tensor([self._root(i) for i in range(len(self._parent))], dtype=torch.int64)
        free = torch.ones(len(roots), dtype=torch.bool)
        if self._fixed:
            free[roots[torch.tensor(sorted(self._fixed))]] = False
        return roots, free[roots]

    def _root(self, i: int) -> int:
        parent = self._parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i


def find_scaling(
    graph: GraphView,
    makes: Callable[[NodeView], bool],
    reads: Callable[[NodeView], bool],
    restored: Container[int] = (),
) -> Scaling:
    """Return the channels that can have factors.

    Where an axis is counted from the front, the value is taken to have a batch axis.

    Args:
        graph: in canonical form.
        makes: says which layers may make channels smaller.
        reads: says which layers may take the factors back.
        restored: indices of layers with a product behind the result, which takes the factors back.
    """
    walk = _Walk(Scaling(), makes, reads, restored)
    for node in graph.nodes:
        walk.visit(node)
    walk.close(graph)
    return walk.found


def _constants(node: NodeView) -> bool:
    """Whether weight and bias are constants, in a dtype that targets have integers for."""
    weight, bias = node.operand("weight"), node.operand("bias")
    return all(
        value.is_constant and (value.constant is None or torch.is_tensor(value.constant))
        for value in (weight, bias)
    )


def is_layer(node: NodeView) -> bool:
    """Say whether an operator is a convolution or linear with constant weights."""
    return (
        node.traits.weighted is not None
        and torch.is_tensor(node.operand("weight").constant)
        and node.operand("weight").constant.is_floating_point()
        and _constants(node)
    )


def is_norm(node: NodeView) -> bool:
    """Say whether an operator is a layer norm over one axis, with constant gain and shift."""
    if node.kind != NORM or node.output.written:
        return False
    sizes = node.operand("normalized_shape").constant
    return _constants(node) and isinstance(sizes, list | tuple) and len(sizes) == 1


@dataclass
class _Walk:
    found: Scaling
    makes: Callable[[NodeView], bool]
    reads: Callable[[NodeView], bool]
    restored: Container[int] = ()

    def visit(self, node: NodeView) -> None:
        """Note the effect of an operator on the channels of its operands."""
        # An operand that is written has no channels: its maker came here first.
        written = any(value.written for value in node.outputs)
        if is_norm(node) and self.makes(node) and not written:
            self._fix_operands(node)
            self._make_norm(node)
        elif is_layer(node) and not written:
            self._make_layer(node)
        elif node.kind == LIST and self._is_concatenated(node):
            return  # aten::cat sees to its elements
        elif node.traits.asks_for_shape:
            return
        else:
            carried = None if written else self._passed(node)
            if carried is None:
                self._fix_operands(node)
            else:
                self.found.carried[node.output.id] = carried

    def close(self, graph: GraphView) -> None:
        """Fix the channels of all results."""
        values = [value for node in graph.nodes for value in node.outputs]
        for value in (*values, *graph.outputs):
            if value.is_result or value in graph.outputs:
                self._fix(value)

    def _of(self, value: ValueView) -> Carried | None:
        return self.found.carried.get(value.id)

    def _fix(self, value: ValueView) -> None:
        """Leave the channels of a value as they are, except of a layer norm, which has a copy."""
        carried = self._of(value)
        if carried is not None and not self._is_norm(value):
            self.found.fix(carried.ids)

    def _fix_operands(self, node: NodeView) -> None:
        for value in node.inputs:
            self._fix(value)

    def _make_norm(self, node: NodeView) -> None:
        """Give ids to the channels for linears; other readers get a copy that stays as it is."""
        uses = node.output.uses
        readers = [user for user, operand in uses if operand == 0 and self._reads_norm(user)]
        if not readers:
            return
        (size,) = node.operand("normalized_shape").constant
        ids = self.found.fresh(int(size))
        shared = len(readers) < len(uses) or node.output.is_result
        self.found.layers.append(Layer(node, None, ids, shared))
        self.found.carried[node.output.id] = Carried(ids, -1)

    def _reads_norm(self, node: NodeView) -> bool:
        weighted = node.traits.weighted
        return (
            weighted is not None
            and not weighted.spatial_dims
            and is_layer(node)
            and self.reads(node)
        )

    def _make_layer(self, node: NodeView) -> None:
        weighted = node.traits.weighted
        assert weighted is not None
        ids = self._read(node)
        weight = node.operand("weight").constant
        outputs = weight.shape[1] * node.groups if weighted.transposed else weight.shape[0]
        made = self.found.fresh(outputs)
        restored = node.index in self.restored
        self.found.layers.append(Layer(node, ids, made, restored=restored))
        if restored:
            return  # readers see the result as it was
        if self.makes(node):
            self.found.carried[node.output.id] = Carried(made, -1 - weighted.spatial_dims)
        else:
            self.found.fix(made)

    def _read(self, node: NodeView) -> Tensor | None:
        """Return the ids of the channels that a layer reads; fix them where it cannot."""
        value, weighted = node.operand("input"), node.traits.weighted
        assert weighted is not None
        carried = self._of(value)
        if carried is None:
            return None
        weight = node.operand("weight").constant
        channels = weight.shape[0] if weighted.transposed else weight.shape[1] * node.groups
        ids = carried.ids
        pixels = channels // len(ids) if carried.flat else 1  # beside each other, like a kernel
        fits = carried.axis == -1 - weighted.spatial_dims and len(ids) * pixels == channels
        if not fits or not self.reads(node):
            self._fix(value)
            return None
        self.found.read.append(value)
        return ids

    def _is_norm(self, value: ValueView) -> bool:
        """Whether a layer norm makes the value: readers that are no linears get a copy."""
        return value.producer is not None and value.producer.kind == NORM

    def _passed(self, node: NodeView) -> Carried | None:
        """Return the channels of the result of an operator between layers; None for other ones."""
        if len(node.outputs) != 1:
            return None
        if node.kind in ("aten::add", "aten::sub"):
            return self._sum(node)
        if node.kind in ("aten::mul", "aten::div"):
            return self._product(node)
        if node.kind == "aten::cat":
            return self._concatenated(node)
        carried = self._of(node.main_operand) if node.inputs else None
        others = (self._of(value) for value in node.other_operands)
        if carried is None or any(other is not None for other in others):
            return None
        if self._is_norm(node.main_operand):
            return None
        return self._mapped(node, carried)

    def _mapped(self, node: NodeView, carried: Carried) -> Carried | None:
        if node.kind in _HOMOGENEOUS and are_constant(node.other_operands):
            return carried
        if node.traits.clip is not None and (clip := node.clip) is not None:
            low, high = clip
            if low == 0 and high is None:
                return carried
            if low == 0 and high is not None and high > 0:
                self.found.clips.append((node, carried.ids))
                return carried
            return None
        behind = -1 - carried.axis  # axes behind the channels
        kind = node.kind.removeprefix("aten::")
        if kind in ("constant_pad_nd", "pad"):
            sizes = node.operand("pad").constant
            known = isinstance(sizes, list | tuple) and len(sizes) // 2 <= behind
            zeros = node.moves_data or (
                kind == "pad" and node.operand("mode").constant not in ("constant", None)
            )
            return carried if known and zeros else None
        name, digit = kind[:-2], kind[-2:-1]  # max_pool2d
        if digit.isdigit() and name in _SPATIAL:
            return carried if int(digit) <= behind else None
        moved = _MOVES.get(kind)
        return None if moved is None else moved(node, carried)

    def _sum(self, node: NodeView) -> Carried | None:
        one, other = (self._of(value) for value in node.inputs[:2])
        alpha = node.operand("alpha").constant if "alpha" in node.arguments else 1
        if one is None or other is None or not isinstance(alpha, int | float):
            return None
        if any(self._is_norm(value) for value in node.inputs[:2]):
            return None
        if one.axis != other.axis or len(one.ids) != len(other.ids) or one.flat or other.flat:
            return None
        self.found.join(one.ids, other.ids)
        return one

    def _product(self, node: NodeView) -> Carried | None:
        """A product by a number, or by values without factors, as a gate's."""
        one, other = node.inputs[:2]
        if node.kind == "aten::mul" and self._of(one) is None:
            one, other = other, one
        carried = self._of(one)
        mode = "rounding_mode"
        rounds = mode in node.arguments and node.operand(mode).constant is not None
        if carried is None or self._is_norm(one) or carried.flat or rounds:
            return None
        self._fix(other)
        return carried

    def _is_concatenated(self, node: NodeView) -> bool:
        return all(user.kind == "aten::cat" for user, _ in node.output.uses)

    def _concatenated(self, node: NodeView) -> Carried | None:
        parts = node.operand("tensors").producer
        dim = node.operand("dim").constant
        if parts is None or parts.kind != LIST:
            return None
        carried = [self._of(value) for value in parts.inputs]
        known = [c for c in carried if c is not None]
        first = known[0] if known else None
        if (
            first is None
            or len(known) < len(carried)
            or any(self._is_norm(value) for value in parts.inputs)
            or any(c.flat or c.axis != first.axis for c in known)
            or _from_end(dim, parts.main_operand) != first.axis
        ):
            for value in parts.inputs:
                self._fix(value)
            return None
        return replace(first, ids=torch.cat([c.ids for c in known]))


def _from_end(dim: Any, value: ValueView) -> int | None:
    """Return an axis of a value counted from the end; None where that is unknown."""
    if not isinstance(dim, int):
        return None
    rank = value.facts.rank
    return dim if dim < 0 else None if rank is None or dim >= rank else dim - rank


def _mean(node: NodeView, carried: Carried) -> Carried | None:
    if node.overload != "dim":  # of all numbers
        return None
    dims, keep = node.operand("dim").constant, node.operand("keepdim").constant
    if not isinstance(dims, list | tuple) or not dims or keep is None:
        return None
    axes = [_from_end(dim, node.main_operand) for dim in dims]
    if any(axis is None or axis <= carried.axis for axis in axes) or carried.flat:
        return None
    if keep:
        return carried
    return replace(carried, axis=carried.axis + len(axes))


def _flatten(node: NodeView, carried: Carried) -> Carried | None:
    ends = (node.operand(name).constant for name in ("start_dim", "end_dim"))
    start, end = (_from_end(dim, node.main_operand) for dim in ends)
    if start is None or end is None or start < carried.axis or carried.flat:
        return None
    if start > carried.axis:
        return replace(carried, axis=carried.axis + end - start)
    return replace(carried, axis=end, flat=True) if end == -1 else None


def _permute(node: NodeView, carried: Carried) -> Carried | None:
    dims = node.operand("dims").constant
    if not isinstance(dims, list | tuple) or carried.flat:
        return None
    rank = len(dims)
    places = [dim % rank for dim in dims]
    return replace(carried, axis=places.index(rank + carried.axis) - rank)


_MOVES: Mapping[str, Callable[[NodeView, Carried], Carried | None]] = {
    "mean": _mean,
    "flatten": _flatten,
    "permute": _permute,
}


def apply_factors(
    module: Any,
    method: str,
    scaling: Scaling,
    factors: Tensor,
    *,
    name: str,
    unlimited: Sequence[NodeView] = (),
    shifts: Mapping[int, Tensor] | None = None,
) -> Any:
    """Return a module whose channels are divided by factors, with equal results.

    Args:
        module: in canonical form.
        method: whose graph.
        scaling: of this graph, or of one with equal nodes.
        factors: for each id.
        name: of the pipeline.
        unlimited: the clips that become relus.
        shifts: by index of the layer, the terms that are added to biases before scaling.
    """
    shifts = shifts or {}

    def change(graph: GraphEditor) -> None:
        nodes = {node.index: node for node in graph.nodes}
        for clip in unlimited:
            node = nodes[clip.index]
            relu = graph.insert("aten::relu", [node.main_operand], before=node, like=node)
            graph.replace(node.output, relu.output)
            graph.remove(node)
        for layer in scaling.layers:
            outputs = factors[layer.outputs]
            inputs = None if layer.inputs is None else factors[layer.inputs]
            scaled = (outputs != 1).any() or (inputs is not None and (inputs != 1).any())
            if scaled or layer.node.index in shifts:
                shift = shifts.get(layer.node.index)
                _change(graph, nodes, layer, inputs, outputs, scaling, shift)

    steps = (change, "remove_dead_code", "pool_constants")
    return Pipeline(name, steps).run(module, method).module


def _change(
    graph: GraphEditor,
    nodes: Mapping[int, NodeView],
    layer: Layer,
    inputs: Tensor | None,
    outputs: Tensor,
    scaling: Scaling,
    shift: Tensor | None,
) -> None:
    node = nodes[layer.node.index]
    operands = {"weight": layer.scaled(inputs, outputs)}
    if layer.bias is not None or shift is not None:
        bias = torch.zeros_like(outputs) if layer.bias is None else layer.bias.double()
        bias = (bias if shift is None else bias + shift) / outputs
        operands["bias"] = rounded(bias, operands["weight"] if layer.bias is None else layer.bias)
    if layer.node.kind != NORM:
        for name, tensor in operands.items():
            graph.set_input(node, node.position(name), graph.constant(tensor, before=node))
        if layer.restored and (outputs != 1).any():
            _restore(graph, node, rounded(outputs, operands["weight"]))
        return
    values = list(node.inputs)
    for name, tensor in operands.items():
        values[node.position(name)] = graph.constant(tensor, before=node)
    smoothed = graph.insert(NORM, values, before=node, like=node).output
    readers = {reader.node.index for reader in scaling.layers if reader.reads(layer)}
    for user, operand in list(node.output.uses):
        if user.index in readers and operand == 0:
            graph.set_input(user, operand, smoothed)
    if not layer.shared:
        graph.remove(node)


def _restore(graph: GraphEditor, node: NodeView, factors: Tensor) -> None:
    """Multiply a linear's result by factors, for all its readers, which are in its block."""
    uses = list(node.output.uses)
    first = min((user for user, _ in uses), key=lambda user: user.index)
    operands = [node.output, graph.constant(factors, before=first)]
    product = graph.insert("aten::mul", operands, before=first, like=node)
    for user, operand in uses:
        graph.set_input(user, operand, product.output)


def balanced(before: Tensor, after: Tensor, strength: float) -> Tensor:
    """Return s = before^a / after^(1 - a); 1 where either is 0."""
    factors = before**strength / after ** (1 - strength)
    return torch.where((before > 0) & (after > 0), factors, 1.0)
