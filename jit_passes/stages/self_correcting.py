"""A quantized model whose layers take back their mean errors while it computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..graph.editor import GraphEditor
from ..graph.view import GraphView, NodeView, ValueView
from ..passes.pipeline import Pipeline
from .batches import Batch
from .biased_layers import BiasedLayer
from .means import Mean, rows_of
from .recording import Recorder, copy_of, following


class SelfCorrecting:
    """A quantized model whose layers take back their mean errors, layers in front first.

    An error is the mean of a batch less that of the same batch in float: batches differ by more
    than the errors do. A layer takes back the mean error of the batches so far, this batch
    included, and of all batches of the run before. Where no error is left, the layer settles: it
    takes back this error from then on, and no batch changes the results for the layers behind.

    Args:
        reference: the quantized model.
        method: its method.
        layers: by name.
        wanted: the means of their results in float, by batch.
    """

    def __init__(
        self, reference: torch.jit.ScriptModule, method: str, layers: Mapping[str, BiasedLayer],
        wanted: Sequence[Mapping[str, Mean]],
    ) -> None:  # fmt: skip
        self._reference, self._method = reference, method
        self._layers, self._wanted = layers, wanted
        self._settled: dict[str, Tensor] = {}
        self._states = {name: _Running.of(len(layer.bias)) for name, layer in layers.items()}

    def run(self, data: Iterable[Batch]) -> dict[str, Tensor]:
        """Return the mean error of each layer over all data; the model's own state begins anew."""
        module = copy_of(self._reference, self._method)
        module = Pipeline("take_back", (self._edit,)).run(module, self._method).module
        names = {
            node.index: node.name
            for node in GraphView.of(module, self._method).nodes
            if node.name in self._layers and node.kind == self._layers[node.name].reference.kind
        }
        recorder = Recorder(module, self._method, list(names))
        found: dict[str, Mean] = {}
        for number, (arguments, wanted) in enumerate(zip(data, self._wanted, strict=True)):
            for name, mean in wanted.items():
                self._states[name].wanted.copy_(mean.value)
            for index, tensors in recorder.run(arguments, number=number)[1].items():
                name = names[index]
                if name not in wanted:
                    continue  # another branch than in float
                for rows in (rows_of(tensor, self._layers[name].axis) for tensor in tensors):
                    if not (count := rows.shape[1]):
                        continue
                    error = rows.mean(1) - wanted[name].value
                    found.setdefault(name, Mean.of(len(rows))).add(error * count, count)
                    self._states[name].add(error, count)
        errors = {name: mean.value for name, mean in found.items()}
        errors |= self._settled
        for name, error in errors.items():
            self._states[name].begin(error, inf if name in self._settled else found[name].count)
        return errors

    def settle(self, names: Iterable[str]) -> None:
        """Leave layers with the errors that they have taken back in the last run."""
        for name in names:
            self._settled[name] = self._states[name].error.double()
            self._states[name].begin(self._settled[name], inf)

    def _edit(self, graph: GraphEditor) -> None:
        nodes = graph.nodes  # without the inserted ones
        for node in [node for node in nodes if node.name in self._layers]:
            layer, state = self._layers[node.name], self._states[node.name]
            _insert_correction(graph, node, following(nodes, node), layer, state)


@dataclass(frozen=True)
class _Running:
    """Buffers of the module.

    Attributes:
        error: the mean error that a layer takes back.
        count: its number of rows.
        wanted: the mean of the batch in float.
    """

    error: Tensor
    count: Tensor
    wanted: Tensor

    @classmethod
    def of(cls, channels: int) -> _Running:
        """Return the state before any batch."""
        zeros = torch.zeros(channels, dtype=torch.float32)
        return cls(zeros, torch.zeros((), dtype=torch.float32), zeros.clone())

    def begin(self, error: Tensor, count: float) -> None:
        self.error.copy_(error)
        self.count.fill_(count)

    def add(self, error: Tensor, count: int) -> None:
        self.count.add_(count)
        self.error.lerp_(error.float(), count / float(self.count))  # 0 of inf


def _insert_correction(
    graph: GraphEditor, node: NodeView, before: NodeView | None, layer: BiasedLayer,
    state: _Running,
) -> None:  # fmt: skip
    """Let a layer take back its mean error, in whole steps of its bias."""

    def insert(kind: str, *operands: Any) -> ValueView:
        return graph.insert(kind, operands, before=before, like=node).output

    def constant(tensor: Tensor) -> ValueView:
        return graph.constant(tensor.to(layer.bias.dtype), before=before)

    def attribute(name: str, tensor: Tensor) -> ValueView:
        return graph.attribute(graph.add_tensor(name, tensor, like=node), before=before)

    moved = insert("aten::transpose", node.output, layer.axis, -1)
    rows = insert("aten::flatten", moved, 0, -2)
    mean = insert("aten::mean", rows, [0], False, None)
    error = insert("aten::sub", mean, attribute("wanted", state.wanted), 1)
    count = insert("aten::size", rows, 0)
    others = insert("aten::div", attribute("count", state.count), count)
    share = insert("aten::reciprocal", insert("aten::add", others, 1, 1))
    shift = insert("aten::lerp", attribute("error", state.error), error, share)
    if layer.step.any():
        step = constant(layer.step)
        shift = insert("aten::mul", insert("aten::round", insert("aten::div", shift, step)), step)
    spread = insert("aten::reshape", shift, [-1, *[1] * (-1 - layer.axis)])
    corrected = insert("aten::sub", node.output, spread, 1)
    graph.replace(node.output, corrected)
    assert moved.producer is not None
    graph.set_input(moved.producer, 0, node.output)
