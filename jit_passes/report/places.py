"""Which value of a converted model is which of the model that trained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..graph.view import GraphView, NodeView
from ..specification.qparams import QParams
from ..stages.convert import Groups, read_places, refusals
from ..stages.module import Report

QUANTIZE = ("jit_passes::quantize", "jit_passes::quantize_per_channel")
DEQUANTIZE = ("jit_passes::dequantize", "jit_passes::dequantize_per_channel")
TABLE = "jit_passes::lookup_table"


@dataclass(frozen=True, eq=False)
class TrainedPlace:
    """A place at which the trained model is quantized.

    Attributes:
        name: what the model itself calls it: `bn1:batch_norm`, `conv1.weight -> conv1:conv2d`.
        names: what a converted model may call it, the likeliest first.
        parameters: what `convert` makes of it.
        node: index of its node in the model's graph.
        operator, source: what computes the value, and the line of the model's code.
        constant: for weights and biases, the numbers with batch norms folded in.
        derived: whether it is left alone in training, and rounded on conversion.
        order: its number in the order of the converted model.
    """

    name: str
    names: tuple[str, ...]
    parameters: QParams
    node: int
    operator: str
    source: str
    constant: torch.Tensor | None
    derived: bool
    order: int


def trained_places(qat: torch.jit.ScriptModule, report: Report) -> list[TrainedPlace]:
    """Return the places that convert quantizes, in the order of the converted model.

    Operators in between batch norms and convolutions come in another order there. What the graph
    says of a place, its name and specification, is the same before and after.
    """
    settled, places = read_places(qat, report)
    groups = Groups(places, refusals(places))
    kinds = _C.trained(qat._c, report.method)
    names = {f"jit_passes::{kind}" for kind, _ in kinds}
    own = [n for n in GraphView.of(qat, report.method).nodes if n.kind in names]
    by_text: dict[Any, list[tuple[NodeView, dict[str, Any]]]] = {}
    for node, (_, operands) in zip(own, kinds, strict=True):
        by_text.setdefault((operands["name"], operands["spec"]), []).append((node, operands))
    nodes = [n for n in GraphView.of(settled, report.method).nodes if n.kind in names]
    found: list[TrainedPlace] = []
    for node, place in zip(nodes, places, strict=True):
        parameters = groups.parameters_at(place)
        key = tuple(value.constant for value in node.inputs[-2:])
        before, operands = by_text[key].pop(0)
        if parameters is None:
            continue
        constant = node.inputs[0].constant
        computed = not isinstance(constant, torch.Tensor)
        reader = before.output.uses[0][0] if before.output.uses else None
        known = before.inputs[0].producer if computed else reader
        found.append(
            TrainedPlace(
                place.name,
                _names(node),
                parameters,
                before.index,
                known.kind if known is not None and computed else "",
                known.source if known is not None else "",
                None if computed else constant,
                node.kind == "jit_passes::derive_quantization",
                len(found),
            )
        )
    return found


def _names(node: NodeView) -> tuple[str, ...]:
    """Return the name of the value, and of those that it is clipped from."""
    value = node.inputs[0]
    if value.is_constant and node.output.uses:
        user, operand = node.output.uses[0]
        return (f"{user.name}[{operand}]",)
    names = [value.name]
    while value.producer is not None and value.producer.traits.clip:
        value = value.producer.inputs[0]
        names.append(value.name)
    return tuple(names)


@dataclass(frozen=True, eq=False)
class Site:
    """A value that the converted model quantizes.

    Attributes:
        name: the value's; "" for what a table gives.
        node: index of the node whose result are its codes; of a constant, that of its dequantize.
        readers: indices of the nodes that dequantize it.
        codes_read: whether anything else reads the codes.
        scale, zero_point, axis: its grid; None for PyTorch's quantized dtypes, which carry it.
        codes: those of a constant.
        clip: whether it is a clip of the codes of its operand.
        operand: index of the node that makes its first operand.
    """

    name: str
    node: int
    readers: tuple[int, ...] = ()
    codes_read: bool = True
    scale: Any = None
    zero_point: Any = None
    axis: int | None = None
    codes: torch.Tensor | None = None
    clip: bool = False
    operand: int | None = None


def sites_of(converted: torch.jit.ScriptModule, method: str) -> tuple[list[Site], list[Site]]:
    """Return the activations and the constants that a converted model quantizes, in its order."""
    activations: list[Site] = []
    constants: list[Site] = []
    quantized: set[int] = set()  # ids of values with PyTorch's quantized dtypes, as far as known
    for node in GraphView.of(converted, method).nodes:
        if node.kind in DEQUANTIZE and isinstance(node.inputs[0].constant, torch.Tensor):
            user, operand = node.output.uses[0]
            name = f"{user.name}[{operand}]"
            codes = node.inputs[0].constant
            constants.append(Site(name, node.index, (), False, *_grid(node), codes))
        elif node.kind in QUANTIZE or node.kind == TABLE:
            readers = [user for user, _ in node.output.uses if user.kind in DEQUANTIZE]
            if node.kind == TABLE and not readers:
                continue  # nothing says what its codes mean
            grid = _grid(readers[0]) if node.kind == TABLE else _grid(node)
            name = "" if node.kind == TABLE else node.inputs[0].name
            others = len(readers) < len(node.output.uses)
            indices = tuple(reader.index for reader in readers)
            activations.append(Site(name, node.index, indices, others, *grid))
        elif _is_quantized(node, quantized):
            quantized.add(node.output.id)
            first = node.inputs[0]
            name = first.name if node.kind == "aten::quantize_per_tensor" else node.name
            maker = first.producer.index if first.producer is not None else None
            clip = node.traits.clip is not None
            activations.append(Site(name, node.index, clip=clip, operand=maker))
    return activations, constants


def _grid(node: NodeView) -> tuple[Any, Any, int | None]:
    per_channel = "per_channel" in node.kind
    scale, zero_point = (value.constant for value in node.inputs[1:3])
    return scale, zero_point, int(node.inputs[3].constant) if per_channel else None


def _is_quantized(node: NodeView, quantized: set[int]) -> bool:
    if len(node.outputs) != 1 or not node.output.is_tensor or "prepack" in node.kind:
        return False
    if node.kind.startswith("quantized::") or node.kind == "aten::quantize_per_tensor":
        return True
    moves = node.kind.startswith("aten::") and node.kind not in ("aten::dequantize", "aten::size")
    return moves and any(value.id in quantized for value in node.inputs[:1])


Pairs = list[tuple[TrainedPlace, Site | None]]


def match(places: Sequence[TrainedPlace], sites: Sequence[Site]) -> Pairs:
    """Return each place with the value of the converted model that it is, None where unknown.

    As many as there are places: one by one, since `convert` keeps their order. Otherwise by name:
    the first one behind the last match whose name without its number is one of the place's, and
    behind it a clip of that.
    """
    if len(places) == len(sites):
        return list(zip(places, sites, strict=True))
    paths = any(":" in site.name for site in sites)  # a file has lost them
    pairs: Pairs = []
    start = 0
    for place in places:
        wanted = {_base(name, paths) for name in place.names}
        grid = (place.parameters.scale, place.parameters.zero_point)
        found = next(
            (
                i
                for i in range(start, len(sites))
                if _base(sites[i].name, paths) in wanted
                or (not sites[i].name and (sites[i].scale, sites[i].zero_point) == grid)
            ),
            None,
        )
        if found is None:
            pairs.append((place, None))
            continue
        own = _base(place.names[0], paths)
        for i in range(found + 1, len(sites)):
            clipped = sites[i].clip and sites[i].operand == sites[found].node
            if clipped and _base(sites[i].name, paths) == own:
                found = i
        pairs.append((place, sites[found]))
        start = found + 1
    return pairs


def _base(name: str, paths: bool) -> str:
    base = re.sub(r"#\d+", "", name)
    return base if paths else base.rpartition(":")[2]
