"""The reference model that `convert` would make, before any data: its numbers mean nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .. import _C
from ..graph.view import GraphView
from ..passes.pipeline import CLEAN_UP, FOLD_NUMBERS, Pipeline
from ..specification.parameters import QParams
from ..specification.place import Place
from ..specification.resolve import Quantization
from ..specification.specification import QuantizationSpec
from .annotate import Annotated
from .parameters import choose_parameters
from .prepare import NOTHING, OBSERVE, fresh_range, request
from .seen import QuantizedPlace

_QUANTIZE = Pipeline(
    "foretell",
    (FOLD_NUMBERS, "insert_quantize_dequantize", "fold_quantized_constants", *CLEAN_UP),
)


def foretold(annotated: Annotated) -> Any:
    """Return a C++ module with the graph of the reference model.

    Each group of values that data would give parameters has a scale of its own, above 1.

    Args:
        annotated: its module is not touched.
    """
    module, method = _C.clone(annotated.module, annotated.method), annotated.method
    if not annotated.quantizations:
        return module
    places = [
        QuantizedPlace(q.place, True, True, partial(_parameters, q.place), None, q.node.index, {})
        for q in annotated.quantizations
    ]
    chosen = choose_parameters(places, {}).at
    copies = dict(zip(_values(annotated.graph), _values(GraphView.of(module, method)), strict=True))
    inserted = {
        "places": tuple(_request(q, copies[q.value.id]) for q in annotated.quantizations),
        "states": (("observer_none_range", None, fresh_range(), False),),
    }
    module = OBSERVE.run(module, method, options={"insert_observers": inserted}).module
    found = {"parameters": {id: parameters.as_options() for id, parameters in chosen.items()}}
    return _QUANTIZE.run(module, method, options={"insert_quantize_dequantize": found}).module


def _values(graph: GraphView) -> list[int]:
    """Return the ids of all values, in an order that a copy of the graph has too."""
    found = (v.id for node in graph.nodes for v in (*node.inputs, *node.outputs))
    return list(dict.fromkeys(found))


def _request(quantization: Quantization, value: int) -> dict[str, Any]:
    place = quantization.place
    uses = [(node.index, operand) for node, operand in quantization.uses]
    operands = {"range": ("state", 0), "name": place.name, "spec": place.to_text()}
    return request(value, uses, quantization.node.index, NOTHING, operands)


def _parameters(place: Place) -> QParams:
    spec = place.spec
    assert isinstance(spec, QuantizationSpec)
    zero, scale = min(max(0, spec.quant_min), spec.quant_max), 1.0 + (place.group + 1) / 1024
    grid = (spec.quant_min, spec.quant_max, spec.dtype, spec.rounding)
    if spec.ch_axis is None:
        return QParams(scale, zero, None, *grid)
    scales = torch.full(place.scales, scale, dtype=torch.float64)
    return QParams(scales, torch.full(place.scales, zero), spec.ch_axis, *grid)
