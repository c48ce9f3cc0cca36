"""Copies of models that keep the inputs of layers, and whose weights can get other codes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import JitPassesError
from ..graph.editor import GraphEditor
from ..graph.view import GraphView
from ..passes.pipeline import Pipeline
from .recording import Recorder, check_finite, copy_of

OBSERVERS = "jit_passes::observe_"


class Watched:
    """A copy of a model that keeps the inputs of layers; without observers, which have seen all.

    Args:
        model: it is not touched.
        method: which to run.
        names: of the layers.
        coded: whether the codes of their weights can be set: of a reference model.
    """

    def __init__(
        self, model: torch.jit.ScriptModule, method: str, names: Collection[str],
        coded: bool = False,
    ) -> None:  # fmt: skip
        self._names, self._coded = frozenset(names), coded
        self._codes: dict[str, Tensor] = {}
        view = GraphView.of(model, method)
        self._indices = {node.index for node in view.nodes if node.name in self._names}
        watch = Pipeline("watch", (self._edit, "remove_dead_code"))
        module: Any = watch.run(copy_of(model, method), method).module
        self._layers: dict[int, str] = {}
        for node in GraphView.of(module, method).nodes:
            if node.name in self._names and node.traits.weighted is not None:
                maker = node.operand("input").producer
                assert maker is not None
                self._layers[maker.index] = node.name
        self._recorder = Recorder(module, method, list(self._layers))

    def set_codes(self, name: str, codes: Tensor) -> None:
        """Give the weight of a layer other codes, for recorders that are made from now on."""
        held = self._codes[name]
        held.copy_(codes.reshape(held.shape))

    def recorder(self) -> WatchedRecorder:
        """Return a model of its own to run: its state begins anew."""
        return WatchedRecorder(self._recorder.copied(), self._layers)

    def _edit(self, graph: GraphEditor) -> None:
        for node in [node for node in graph.nodes if node.kind.startswith(OBSERVERS)]:
            if not node.outputs:
                graph.remove(node)
        for node in [node for node in graph.nodes if node.index in self._indices]:
            alias = graph.insert("aten::alias", [node.operand("input")], before=node, like=node)
            graph.set_input(node, node.position("input"), alias.output)
            if not self._coded or node.traits.weighted is None:
                continue
            numbers = node.operand("weight").producer
            codes = None if numbers is None else numbers.inputs[0].constant
            if numbers is None or not isinstance(codes, Tensor):
                raise JitPassesError(f"the weight of '{node.name}' has no codes in the graph")
            held = codes.detach().clone()
            attribute = graph.attribute(graph.add_tensor("codes", held, like=node), before=numbers)
            graph.set_input(numbers, 0, attribute)
            self._codes[node.name] = held


class WatchedRecorder:
    """A watched model that runs on batches in order."""

    def __init__(self, recorder: Recorder, layers: Mapping[int, str]) -> None:
        self._recorder, self._layers = recorder, layers

    def run(
        self, arguments: tuple[Any, ...], number: int, names: Collection[str]
    ) -> Iterator[tuple[str, list[Tensor]]]:
        """Run on a batch; yield layers with their inputs, one for each time they were reached.

        Raises:
            JitPassesError: the model does not take the batch, or it gives one of these layers a
                NaN or an infinity.
        """
        kept = self._recorder.run(arguments)[1]
        values = {self._layers[index]: tensors for index, tensors in kept.items()}
        found = {name: tensors for name, tensors in values.items() if name in names}
        check_finite((tensor for tensors in found.values() for tensor in tensors), number)
        yield from found.items()
