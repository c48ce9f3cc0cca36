"""Copies of models that keep the inputs of layers, and whose weights can get other codes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import JitPassesError
from ..graph.editor import GraphEditor
from ..graph.view import GraphView
from ..passes.pipeline import Pipeline
from ..passes.subject import wrap
from .batches import Batch
from .faults import origin_of
from .independent import is_plain
from .recording import Recorder, check_finite, copy_of, tensors_of
from .segments import Segments, Values

ALIAS, OBSERVERS = "aten::alias", "jit_passes::observe_"


class Watched:
    """A copy of a model that keeps the inputs of layers, without observers.

    Args:
        model: it is not touched.
        method: which to run.
        names: of the layers.
        coded: whether the codes of their weights can be set: of a reference model.

    Attributes:
        segments: of the copy, cut in front of layers; None where the graph does not allow it.
        marks: the numbers of layers there.
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
        view = GraphView.of(module, method)
        for node in view.nodes:
            if node.name in self._names and node.traits.weighted is not None:
                maker = node.operand("input").producer
                assert maker is not None
                self._layers[maker.index] = node.name
        aliases = [node.index for node in view.nodes if node.kind == ALIAS and node.block == 0]
        self.marks = {self._layers[a]: k for k, a in enumerate(aliases) if a in self._layers}
        self.segments = Segments(wrap(module), method, ALIAS) if is_plain(view) else None
        self._recorder = Recorder(module, method, list(self._layers), origin=origin_of(model))

    def set_codes(self, name: str, codes: Tensor) -> None:
        """Give the weight of a layer other codes, for segments and for new recorders."""
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
            alias = graph.insert(ALIAS, [node.operand("input")], before=node, like=node)
            graph.set_input(node, node.position("input"), alias.output)
            if not self._coded or node.traits.weighted is None:
                continue
            numbers = node.operand("weight").producer
            while numbers and numbers.inputs and not numbers.main_operand.is_constant:
                numbers = numbers.main_operand.producer
            codes = numbers.main_operand.constant if numbers and numbers.inputs else None
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
        kept = self._recorder.run(arguments, number=number)[1]
        values = {self._layers[index]: tensors for index, tensors in kept.items()}
        found = {name: tensors for name, tensors in values.items() if name in names}
        check_finite((tensor for tensors in found.values() for tensor in tensors), number)
        yield from found.items()


class Walk:
    """A walk through a watched model, layers in front first, with all batches.

    Where the graph allows, each step begins with the values at the end of the previous step; else
    each step begins anew.

    Args:
        watched: the model.
        data: batches that the model takes: see `check`.
        memory: bytes of the values of all batches; where they are more, the next step begins where
            this one did.
    """

    def __init__(self, watched: Watched, data: Sequence[Batch], memory: int) -> None:
        self._watched, self._data, self._memory = watched, data, memory
        self._mark: int | None = None
        self._held: list[Values] = []

    def check(self) -> None:
        """Run the whole model on all batches: a part may take a batch that the whole does not.

        Raises:
            JitPassesError: the model does not take a batch.
        """
        recorder = self._watched.recorder()
        for number, arguments in enumerate(self._data):
            list(recorder.run(arguments, number, ()))

    def inputs(self, names: Collection[str]) -> Iterator[dict[str, list[Tensor]]]:
        """Yield the inputs of layers that do not depend on each other, batch by batch.

        Raises:
            JitPassesError: a batch gives one of these layers a NaN or an infinity.
        """
        watched = self._watched
        if watched.segments is None:
            recorder = watched.recorder()
            for number, arguments in enumerate(self._data):
                yield dict(recorder.run(arguments, number, names))
            return
        layers = sorted(names, key=watched.marks.__getitem__)
        marks = [watched.marks[name] for name in layers]
        if self._mark is not None and marks[0] < self._mark:
            self._mark = None
        run = watched.segments.segment(self._mark, marks)
        left: list[Values] = []
        used = 0
        for number, arguments in enumerate(self._data):
            begun = watched.segments.start(arguments) if self._mark is None else self._held[number]
            values, inputs = run(begun)
            check_finite(inputs, number)
            used += sum(each.numel() * each.element_size() for _, each in tensors_of(values))
            if used <= self._memory:
                left.append(values)
            else:
                left.clear()
            yield {name: [tensor] for name, tensor in zip(layers, inputs, strict=True)}
        if used <= self._memory:
            self._mark, self._held = marks[0], left
