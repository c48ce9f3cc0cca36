"""Models annotated by hand, by the names of their nodes, and what comes of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.view import GraphView, NodeView, ValueView
from jit_passes.observers import MinMax
from jit_passes.quantizer import (
    Annotations,
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QParams,
    Quantization,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    resolve,
)
from jit_passes.stages.normalize import normalize

UINT8 = QuantizationSpec("uint8", observer=MinMax())
INT8 = QuantizationSpec("int8", observer=MinMax())
FIXED = FixedQParamsQuantizationSpec(1 / 256, 0)


class Given(Quantizer):
    """Annotates as a function says that gets the graph's nodes by name."""

    def __init__(self, annotate: Callable[[Nodes, Annotations], None]) -> None:
        self.annotate_nodes = annotate

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        self.annotate_nodes(Nodes(graph), annotations)
        return annotations


class Nodes:
    """A graph's nodes and inputs by name."""

    def __init__(self, graph: GraphView) -> None:
        self.graph = graph

    def __getitem__(self, name: str) -> NodeView:
        return next(node for node in self.graph.nodes if node.name == name)

    @property
    def x(self) -> ValueView:
        return self.graph.inputs[0]


def nodes_of(model: nn.Module) -> Nodes:
    script = torch.jit.script(model.eval())
    return Nodes(GraphView.of(normalize(script._c, "forward").module))


def annotation(
    operands: Mapping[Any, Any] | None = None, result: Any = None, implicit: bool = True
) -> QuantizationAnnotation:
    return QuantizationAnnotation(operands or {}, result, implicit)


def places(nodes: Nodes, annotations: Annotations) -> dict[str, Quantization]:
    found = resolve(nodes.graph, annotations)
    by_name = {place.name: place for place in found}
    assert len(by_name) == len(found), "places of one name"
    return by_name


def groups(nodes: Nodes, annotations: Annotations) -> dict[str, int]:
    return {name: place.place.group for name, place in places(nodes, annotations).items()}


class Net(nn.Module):
    """Two convolutions of one input, added and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, 3)
        self.c2 = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.c1(x), self.c2(x)
        return (a + b).relu(), torch.cat([a, b], 1).sigmoid()


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid().tanh().relu().exp()


@pytest.fixture(name="nodes")
def net_nodes() -> Nodes:
    return nodes_of(Net())


@pytest.fixture(name="chain")
def chain_nodes() -> Nodes:
    return nodes_of(Chain())


def half(sources: Sequence[QParams]) -> tuple[float, int]:
    return float(sources[0].scale) / 2, 0


def derived(*sources: Any, function: Any = half, **options: Any) -> DerivedQuantizationSpec:
    return DerivedQuantizationSpec(sources, function, **{"dtype": "int16", **options})


def converted(
    model: nn.Module, annotate: Callable[[Nodes, Annotations], None], data: list[Any]
) -> torch.jit.ScriptModule:
    model = model.eval()
    script = torch.jit.script(model)
    prepared = jit_passes.prepare(script, quantizer=Given(annotate), target="reference")
    jit_passes.calibrate(prepared, data)
    return jit_passes.convert(prepared)


CODES = (torch.uint8, torch.int8, torch.int16, torch.int32)


def parameters(module: torch.jit.ScriptModule) -> list[tuple[Any, ...]]:
    """Value, scale, zero point, range and dtype of each quantize that is left, in program order."""
    found: list[tuple[Any, ...]] = []
    for node in GraphView.of(module).nodes:
        if node.kind == "jit_passes::quantize":
            value, *grid = node.inputs
            scale, zero_point, low, high, code = (operand.constant for operand in grid)
            found.append((value.name, scale, zero_point, low, high, CODES[code]))
    return found


def qparams(*values: Tensor, dtype: torch.dtype = torch.quint8) -> tuple[float, int]:
    """Scale and zero point that PyTorch's own observer finds."""
    observer = torch.ao.quantization.MinMaxObserver(dtype=dtype)
    for value in values:
        observer(value)
    scale, zero_point = observer.calculate_qparams()
    return float(scale), int(zero_point)


WEIGHT = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())


def to_bytes(module: torch.jit.ScriptModule) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()
