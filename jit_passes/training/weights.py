"""The quantized weights of a model that trains, and their codes as they are now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..fake_quantizers import trained_qparams
from ..graph.view import GraphView, NodeView, ValueView
from ..specification.groups import spread
from ..specification.place import Place
from ..specification.slots import place_at
from ..specification.specification import QuantizationSpec
from ..stages.module import attribute_of

_WEIGHT = "jit_passes::deferred_weight"
_FACTOR = "jit_passes::fold_factor"


@dataclass(frozen=True)
class Tensors:
    """Operands of a node: constants, and tensors of the model by their paths."""

    constants: Mapping[str, Any]
    paths: Mapping[str, str]

    def read(self, model: torch.jit.ScriptModule) -> dict[str, Any]:
        """Return the operands by name, tensors as they are now."""
        found = {name: attribute_of(model, path).detach() for name, path in self.paths.items()}
        return {**self.constants, **found}


@dataclass(frozen=True)
class Fold:
    """A batch norm that conversion will fold into a weight.

    Attributes:
        factor: operands of gamma / sqrt(running_var + eps).
        axis: of the weight, along which the factor lies.
    """

    factor: Tensors
    axis: int

    def read(self, model: torch.jit.ScriptModule) -> Tensor:
        """Return the factor; 1 where it is 0, as in training."""
        known = self.factor.read(model)
        factor = torch.ops.jit_passes.fold_factor(
            known["weight"], known["running_var"], known["eps"]
        )
        nonzero: Tensor = torch.ops.jit_passes.deferred_weight(factor, factor, 0, False)[1]
        return nonzero


@dataclass(frozen=True)
class Codes:
    """A weight as integers.

    Attributes:
        codes: int16, of the weight's shape, counted from the code of 0.
        step: the weight's own change from code to code, broadcast to its shape: scale / factor.
        low, high: the smallest and the largest code.
    """

    codes: Tensor
    step: Tensor
    low: int
    high: int


@dataclass(frozen=True)
class TrainedWeight:
    """A parameter that trains with its quantization.

    Attributes:
        place: its record.
        path: of the parameter.
        kind: of the operator that fake-quantizes it, without its namespace.
        operands: of that operator.
        fold: the batch norm behind; None for none.
    """

    place: Place
    path: str
    kind: str
    operands: Tensors
    fold: Fold | None

    def parameter(self, model: torch.jit.ScriptModule) -> Tensor:
        """Return the parameter itself."""
        return attribute_of(model, self.path)

    @torch.no_grad()
    def codes(self, model: torch.jit.ScriptModule) -> Codes | None:
        """Return the codes of the weight as it is now; None where its scale has not begun.

        code = clip(round(w f / s), low, high), f the factor of the batch norm behind or 1
        """
        weight, spec = self.parameter(model).detach(), self.place.spec
        assert isinstance(spec, QuantizationSpec)
        axis = 0 if self.fold is None else self.fold.axis
        ops = torch.ops.jit_passes
        factor = None if self.fold is None else self.fold.read(model)
        folded = weight if factor is None else ops.deferred_weight(weight, factor, axis, True)[0]
        known = {**self.operands.read(model), "x": folded}
        found = trained_qparams(self.kind, known, spec, self.place.method)
        if found is None:
            return None
        scale = torch.as_tensor(found.scale, dtype=weight.dtype, device=weight.device)
        zero = torch.as_tensor(found.zero_point, device=weight.device)
        if found.axis is not None:
            scale, zero = (spread(each, found.axis, weight.shape) for each in (scale, zero))
        low, high = found.quant_min, found.quant_max
        codes = ((folded / scale).round() + zero).clamp(low, high) - zero
        step = scale.expand_as(weight)
        if factor is not None:
            step = ops.deferred_weight(step, 1 / factor, axis, True)[0]
        middle = int(zero.flatten()[0])
        return Codes(codes.to(torch.int16), step, low - middle, high - middle)


def trained_weights(
    model: torch.jit.ScriptModule, method: str
) -> tuple[list[TrainedWeight], list[str]]:
    """Return the quantized weights that are parameters, and the names of the computed ones.

    A parameter that two places read is there twice.
    """
    found, computed = [], []
    graph = GraphView.of(model, method, parameters=True)
    for node, place in _weight_places(graph):
        source, fold = node.main_operand, None
        maker = source.producer
        if maker is not None and maker.kind == _WEIGHT:
            fold = _fold_of(model, maker)
            source = maker.main_operand
        path = _path_of(model, source)
        if path is None or not isinstance(source.constant, torch.Tensor):
            computed.append(place.name)
            continue
        kind = node.kind.removeprefix("jit_passes::")
        found.append(TrainedWeight(place, path, kind, _tensors(model, node), fold))
    return found, computed


def _weight_places(graph: GraphView) -> Iterator[tuple[NodeView, Place]]:
    for node in graph.nodes:
        place = place_at(node)
        if place and place.slot == "weight" and isinstance(place.spec, QuantizationSpec):
            yield node, place


def _fold_of(model: torch.jit.ScriptModule, node: NodeView) -> Fold | None:
    factor = node.operand("factor").producer
    if factor is None or factor.kind != _FACTOR:
        return None
    return Fold(_tensors(model, factor), int(node.operand("axis").constant))


def _tensors(model: torch.jit.ScriptModule, node: NodeView) -> Tensors:
    """Return the operands of a node by the names in its schema; others than its first are known."""
    constants: dict[str, Any] = {}
    paths: dict[str, str] = {}
    for name, position in node.arguments.items():
        value = node.inputs[position]
        path = _path_of(model, value)
        if path is not None:
            paths[name] = path
        else:
            constants[name] = value.constant
    return Tensors(constants, paths)


def _path_of(model: torch.jit.ScriptModule, value: ValueView) -> str | None:
    """Return the path of a tensor of the model; None for other values."""
    if value.is_constant and not isinstance(value.constant, torch.Tensor):
        return None
    return None if tensor_at(model, value.name) is None else value.name


def tensor_at(model: torch.jit.ScriptModule, path: str) -> Tensor | None:
    """Return a tensor of the model by its path; None where there is none."""
    try:
        found = attribute_of(model, path)
    except AttributeError:
        return None
    return found if isinstance(found, Tensor) else None
