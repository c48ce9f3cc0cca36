"""Which value of a converted model is which of the model that trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..graph.view import GraphView, NodeView
from ..specification.parameters import QParams
from ..specification.place import Place
from ..stages.module import Report, by_position
from ..stages.parameters import choose_parameters
from ..stages.seen import QuantizedPlace, refusals
from ..stages.values import DEQUANTIZE, QUANTIZE, QuantizedValue, grid_operands

DERIVED = "jit_passes::derive_quantization"
# Dequantize becomes these, where PyTorch has dtypes for codes.
_FLOAT = ("aten::dequantize", "aten::contiguous")
# Operators of other namespaces have a known grid; how they lay out codes is not known.
_KNOWN = ("jit_passes", "aten", "quantized", "prim")


@dataclass(frozen=True, eq=False)
class TrainedPlace:
    """A place at which the trained model is quantized.

    Attributes:
        place: its record from the annotation.
        name: as reports on the converted model have it; of a weight, also its reader.
        parameters: its parameters in the converted model.
        node: index of its node in the model's graph.
        operator, source: the operator that computes the value, and the line of the model's code.
        constant: for weights and biases, the numbers with batch norms folded in.
        derived: whether it is left alone in training, and rounded on conversion.
        order: its number in the order of the converted model.
    """

    place: Place
    name: str
    parameters: QParams
    node: int
    operator: str
    source: str
    constant: torch.Tensor | None
    derived: bool
    order: int


def trained_places(
    qat: torch.jit.ScriptModule,
    report: Report,
    places: Sequence[QuantizedPlace],
    labels: Mapping[int, str],
) -> list[TrainedPlace]:
    """Return the places that convert quantizes, in the order of the converted model.

    Args:
        qat: the model that trains.
        report: its report.
        places: its places, as they are once it is out of training.
        labels: the names of values in the converted model, by id of the place.
    """
    parameters = choose_parameters(list(places), refusals(list(places))).at
    nodes = GraphView.of(qat, report.method).nodes
    by_id: dict[int, list[NodeView]] = {}
    for index, _, operands in _C.places(qat._c, report.method):
        by_id.setdefault(Place.from_text(operands["spec"]).id, []).append(nodes[index])
    found: list[TrainedPlace] = []
    for known in places:
        chosen = parameters.get(known.place.id)
        before = by_id[known.place.id].pop(0)
        if not isinstance(chosen, QParams):  # float, or another grid for each input
            continue
        constant = known.operands["x"]
        computed = not isinstance(constant, torch.Tensor)
        reader = before.output.uses[0][0] if before.output.uses else None
        maker = before.main_operand.producer if computed else reader
        found.append(
            TrainedPlace(
                known.place,
                labels.get(known.place.id, known.place.name),
                chosen,
                before.index,
                maker.kind if maker is not None and computed else "",
                maker.source if maker is not None else "",
                None if computed else constant,
                before.kind == DERIVED,
                len(found),
            )
        )
    return found


@dataclass(frozen=True, eq=False)
class Site:
    """A value that the converted model quantizes.

    Attributes:
        place: id of the place that it is.
        node: index of the node whose result are its codes; for a constant, of its dequantize.
        readers: indices of the nodes that dequantize it.
        codes_read: whether anything else reads the codes.
        scale, zero_point, axis: parameters of the codes; None for PyTorch's quantized dtypes, whose
            tensors hold them, and for a value that stays in float.
        value: the entry of the report for a computed value: its name and the ends of its grid.
        codes: the codes of a constant.
        foreign: whether an operator of another package computes it.
    """

    place: int
    node: int
    readers: tuple[int, ...] = ()
    codes_read: bool = True
    scale: Any = None
    zero_point: Any = None
    axis: int | None = None
    value: QuantizedValue | None = None
    codes: torch.Tensor | None = None
    foreign: bool = False


def sites_of(converted: Any, report: Report) -> list[Site]:
    """Return the values that a converted C++ module quantizes, in its order.

    A region that was compiled shows its results, in float.
    """
    graph = GraphView.of(converted, report.method)
    ids = by_position(graph, report.places)
    values = {value.place: value for value in report.values}
    found: list[Site] = []
    for node in graph.nodes:
        place = ids.get(node.index)
        if place is None or node.kind in _FLOAT:
            continue
        if node.kind in DEQUANTIZE:
            if isinstance(codes := node.main_operand.constant, torch.Tensor):
                found.append(Site(place, node.index, (), False, *_grid(node), codes=codes))
        elif len(node.outputs) == 1 and node.output.is_tensor:
            value = values.get(place)
            readers = [user for user, _ in node.output.uses if user.kind in DEQUANTIZE]
            shown = node if node.kind in QUANTIZE else next(iter(readers), None)
            grid = _grid(shown) if shown is not None else _recorded(value)
            others = not readers or len(readers) < len(node.output.uses)
            indices = tuple(reader.index for reader in readers)
            foreign = node.kind.partition("::")[0] not in _KNOWN
            site = Site(place, node.index, indices, others, *grid, value, foreign=foreign)
            found.append(site)
    return found


_Grid = tuple[Any, Any, int | None]


def _grid(node: NodeView) -> _Grid:
    """Return the grid that a quantize or a dequantize has."""
    scale, zero_point, *axis = (value.constant for value in grid_operands(node))
    return scale, zero_point, int(axis[0]) if axis else None


def _recorded(value: QuantizedValue | None) -> _Grid:
    """Return the grid of codes that operators pass on to each other."""
    if value is None:
        return None, None, None
    if value.axis is None:
        return value.scale[0], value.zero_point[0], None
    scale = torch.tensor(value.scale, dtype=torch.float64)
    return scale, torch.tensor(value.zero_point), value.axis


Pairs = list[tuple[TrainedPlace, Site | None]]


def match(places: Sequence[TrainedPlace], sites: Sequence[Site]) -> Pairs:
    """Return each place with the value of the converted model that it is, None if it is gone.

    A value that is written in place has one for each operator that reads it, in their order.
    """
    by_id: dict[int, list[Site]] = {}
    for site in sites:
        by_id.setdefault(site.place, []).append(site)
    pairs: Pairs = []
    for place in places:
        left = by_id.get(place.place.id, [])
        pairs.append((place, left.pop(0) if left else None))
    return pairs
