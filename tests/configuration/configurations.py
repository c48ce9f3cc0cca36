"""A model to configure, and options and rules for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jit_passes.graph.view import GraphView, NodeView, ValueView
from jit_passes.observers import MinMax, methods
from jit_passes.quantizer import (
    Configuration,
    LayerOptions,
    QuantizationSpec,
    Rule,
    Selector,
    TensorOptions,
)
from jit_passes.stages.normalize import normalize

ACTIVATION = QuantizationSpec()
WEIGHT = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())
FLOAT = TensorOptions(dtype="float")
METHODS = {
    name: kind for name, kind in methods().items() if kind.__module__.startswith("jit_passes.")
}


class Block(nn.Module):
    """A residual block whose relu is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv1(x))
        return self.relu(y + x)


class Model(nn.Module):
    """Two blocks of one type, a module used twice, an operator at the top, an unpacked list."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(Block(), Block())
        self.shared = nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.stem(x))
        x = self.shared(torch.sigmoid(self.shared(x)))
        a, b = x.chunk(2, 1)
        return self.fc(torch.cat([b, a], 1).mean([2, 3]))


@pytest.fixture(name="graph", scope="module")
def model_graph() -> GraphView:
    """The normalized graph of the model."""
    return GraphView.of(normalize(torch.jit.script(Model().eval())._c).module)


def node_of(graph: GraphView, name: str) -> NodeView:
    """The node of that name."""
    return next(node for node in graph.nodes if node.name == name)


def value_of(graph: GraphView, name: str) -> ValueView:
    """The value of that name."""
    made = [value for node in graph.nodes for value in node.outputs]
    return next(value for value in (*graph.inputs, *made) if value.name == name)


def kept(graph: GraphView, *rules: Rule) -> list[str]:
    """Names of the operators that rules keep in float."""
    resolved = Configuration(rules=rules).resolve(graph)
    return [node.name for node in graph.nodes if resolved.of(node).keep_float]


def keep(**selector: Any) -> Rule:
    """A rule that keeps in float."""
    return Rule(Selector(**selector), LayerOptions(keep_float=True))


def options(**given: Any) -> TensorOptions:
    """Short for the class."""
    return TensorOptions(**given)


def rule(text: str) -> str:
    """A file whose fourth line is the rule."""
    return f"version: 1\nglobal: {{}}\nrules:\n  - {text}\n"
