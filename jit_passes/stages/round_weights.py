"""Weights rounded by the error of a layer's result, not each to the nearest code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..configuration.stages import AUTO, WEIGHT_ROUNDINGS
from ..errors import ArgumentError, JitPassesError, not_among
from ..graph.editor import GraphEditor
from ..graph.view import GraphView, NodeView
from ..passes.pipeline import Pipeline
from .batches import MOMENT, Batch, InputFn, batches, is_held_back, progress_bar
from .convert import converted
from .gptq import Grid
from .independent import independent
from .input_sums import InputSums
from .module import ModelStage, Report, remarked, stage_of
from .patches import has_patches
from .recording import copy_of
from .rounded_layers import Candidates, RoundedLayer, rounded_layers
from .seen import rewritten
from .watching import Walk, Watched

SEQUENTIAL = {f"{how}_sequential": how for how in ("gptq", "adaround")}
DAMPINGS = (0.1, 0.01, 1.0)
MEMORY = 2**30
ROWS = 4096  # of each call, by default
Numbered = Iterable[tuple[int, Batch]]


def round_weights(
    prepared: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    how: str = "gptq",
    damping: float | None = None,
    memory: int = MEMORY,
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Choose the codes of weights in a calibrated model by the error of each layer's result.

    The nearest code of each weight is not the best for their sum. With X the inputs of a layer and
    E = W - Q(W), codes Q(W) are chosen for a small

        || E X ||^2 = tr(E X X^T E^T)

    and scales stay. Rounding is worth most with 4 bits and fewer. X X^T is summed in as many passes
    over the data as `memory` needs. Every fourth batch is held back: the codes with the least error
    there are taken, which may be the nearest ones. `coverage` says for each layer by how much the
    error has changed.

    Convolutions and linears with constant weights are rounded so, in groups and per channel too.
    Transposed convolutions and recurrent layers keep the nearest codes, and so do weights whose
    sums of pairs have to fit int16. "adaround" begins with the codes of "gptq", takes longer, and
    never has more error on the data that it chooses by.

    The sequential ones go through the layers in order. Y are the inputs of a layer once the layers
    in front have their codes. Codes are chosen for a small || W X - Q(W) Y ||^2, so a layer makes
    up for the errors of the layers in front. Layers that do not depend on each other share a pass
    over the data of both models. Sources: GPTQ, Frantar et al., 2023 (arXiv:2210.17323); AdaRound,
    Nagel et al., 2020 (arXiv:2004.10568).

    Args:
        prepared: the result of `prepare`, calibrated; it is not touched.
        data: batches of typical inputs, as for `calibrate`; with more rows than a layer has inputs.
        how: "gptq", "adaround", "gptq_sequential" or "adaround_sequential".
        damping: part of the mean of X X^T's diagonal that is added to it, in (0, 1]; more where
            data are few. None for the best of 0.01, 0.1 and 1 for each layer, or 0.1 where no batch
            is held back.
        memory: bytes for the matrices X X^T; a larger one is held alone. The sequential methods
            hold six matrices of each layer. In addition, each of the two models may hold values of
            this size between layers, for all batches, and twice as much during a pass.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.

    Returns:
        The prepared model, in which `convert` will find these codes.

    Raises:
        JitPassesError: the model was not prepared or not calibrated; an option is out of range.
    """
    if how not in WEIGHT_ROUNDINGS:
        raise ArgumentError(not_among("how", how, WEIGHT_ROUNDINGS))
    if damping is not None and not 0 < damping <= 1:
        raise ArgumentError(f"damping is in (0, 1], not {damping!r}")
    if not isinstance(memory, int) or memory < 0:
        raise ArgumentError(f"memory is a whole number of bytes from 0 on, not {memory!r}")
    report = stage_of(prepared, ModelStage.PREPARED, "call jit_passes.prepare and calibrate first")
    layers = rounded_layers(prepared, report)
    if isinstance(data, Iterator):
        data = list(data)  # gone through several times
    dampings = DAMPINGS if damping is None else (damping,)
    if how in SEQUENTIAL:
        stages = list(_stages(layers, GraphView.of(prepared, report.method), memory))
        in_order = progress_bar("round", progress, "stage")(stages, total=lambda: len(stages))
        given = list(batches(data, input_fn))
        _choose_in_order(
            in_order, layers, prepared, report, given, SEQUENTIAL[how], dampings, memory
        )
        return _with_codes(prepared, report, layers, how)
    walk = progress_bar("round", progress)

    def some(held: bool) -> Numbered:
        for number, arguments in enumerate(batches(data, input_fn, walk)):
            if is_held_back(number) is held:
                yield number, arguments

    _choose(layers, prepared, report, some, how, dampings, memory)
    return _with_codes(prepared, report, layers, how)


class DefaultRounding:
    """Rounds layers of few inputs as "gptq" does; the time grows with the cube of the inputs.

    Variants of a model share the data, and codes of weights with equal grids.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Tensor, Grid, Candidates]] = {}

    def __call__(
        self, prepared: torch.jit.ScriptModule, data: Sequence[Batch], progress: bool | None
    ) -> torch.jit.ScriptModule:
        """Return a model with other codes where all goes well; else the model as it is."""
        report = Report.read(prepared)
        assert report is not None

        def some(held: bool) -> Numbered:
            return ((n, batch) for n, batch in enumerate(data) if is_held_back(n) is held)

        try:
            found = rounded_layers(prepared, report).items()
            layers = {
                name: replace(layer, most_rows=ROWS) for name, layer in found if layer.is_small
            }
            new = {name: layer for name, layer in layers.items() if not self._recall(layer)}
            with progress_bar("round", progress, "layer", delay=MOMENT)(()) as bar:
                _choose(new, prepared, report, some, "gptq", DAMPINGS[:1], MEMORY, bar)
        except JitPassesError:  # without it the model is as good as before
            return prepared
        for name, layer in new.items():
            if not layer.candidates.errors[0]:  # the batch that checks does not reach the layer
                layer.candidates = Candidates()
            self._known[name] = layer.weight, layer.grid, layer.candidates
        helps = any(layer.candidates.chosen is not None for layer in layers.values())
        return _with_codes(prepared, report, layers, AUTO) if helps else prepared

    def _recall(self, layer: RoundedLayer) -> bool:
        """Let a layer have the codes of an equal one, and say whether there is one."""
        if (known := self._known.get(layer.node.name)) is None:
            return False
        weight, grid, candidates = known
        is_equal = weight.equal(layer.weight) and grid.equals(layer.grid)
        layer.candidates = candidates if is_equal else layer.candidates
        return is_equal


def _choose(
    layers: Mapping[str, RoundedLayer], prepared: torch.jit.ScriptModule, report: Report,
    some: Callable[[bool], Numbered], how: str, dampings: Sequence[float], memory: int,
    bar: Any = None,
) -> None:  # fmt: skip
    """Find codes of layers by their inputs in the float model.

    Args:
        layers: by name.
        prepared: the model.
        report: of the model.
        some: the batches that are held back, or the others.
        how: the method.
        dampings: one set of codes for each.
        memory: bytes for products of inputs.
        bar: shows how many layers have codes; None for none.
    """
    if bar is not None:
        bar.total = len(layers)
    for part in _parts(layers, memory):
        grams = _grams(part, prepared, report.method, some(False))
        for name in list(grams):
            gram = grams.pop(name)
            if gram.isfinite().all():
                part[name].choose(gram, how, dampings)
            if bar is not None:
                bar.update()
    chosen = {name: layer for name, layer in layers.items() if layer.candidates.codes}
    for layer, tensor in _inputs(chosen, prepared, report.method, some(True)):
        layer.check(tensor)


def _parts(layers: Mapping[str, RoundedLayer], memory: int) -> Iterator[dict[str, RoundedLayer]]:
    """Yield layers by name, as many at a time as the memory has room for."""
    part: dict[str, RoundedLayer] = {}
    used = 0
    for name, layer in layers.items():
        if part and used + layer.size > memory:
            yield part
            part, used = {}, 0
        part[name] = layer
        used += layer.size
    if part:
        yield part


def _inputs(
    layers: Mapping[str, RoundedLayer],
    prepared: torch.jit.ScriptModule,
    method: str,
    data: Numbered,
) -> Iterator[tuple[RoundedLayer, Tensor]]:
    """Yield the inputs of layers in the float model, batch by batch."""
    if not layers:
        return
    recorder = Watched(prepared, method, layers).recorder()
    for number, arguments in data:
        for name, tensors in recorder.run(arguments, number, layers):
            for tensor in tensors:
                yield layers[name], tensor


def _choose_in_order(
    stages: Iterable[Mapping[str, RoundedLayer]], layers: Collection[str],
    prepared: torch.jit.ScriptModule, report: Report, data: Sequence[Batch], how: str,
    dampings: Sequence[float], memory: int,
) -> None:  # fmt: skip
    """Choose codes stage by stage, with the inputs that the codes in front of it give."""
    method = report.method
    reference = converted(_C.clone(prepared._c, method), report, progress=False)
    in_float = Watched(prepared, method, layers)
    quantized = Watched(reference, method, layers, coded=True)
    walks = [Walk(watched, data, memory) for watched in (in_float, quantized)]
    walks[0].check()
    for stage in stages:
        sums = {name: (InputSums(), InputSums()) for name in stage}
        both = (walk.inputs(stage) for walk in walks)
        for number, (xs, ys) in enumerate(zip(*both, strict=True)):
            for name, layer in stage.items():
                chosen = sums[name][is_held_back(number)]
                for x, y in zip(xs[name], ys[name], strict=True):
                    chosen.add(layer.patches(x), layer.patches(y))
        for name, layer in stage.items():
            chosen, held = sums.pop(name)
            if chosen.is_finite:
                layer.choose_by(chosen, held, how, dampings)
                if (codes := layer.candidates.chosen) is not None:
                    quantized.set_codes(name, codes)


def _stages(
    layers: Mapping[str, RoundedLayer], graph: GraphView, memory: int
) -> Iterator[dict[str, RoundedLayer]]:
    """Yield layers in order; layers that do not depend on each other come together."""

    def fits(nodes: Sequence[NodeView]) -> bool:
        return sum(6 * layers[node.name].size for node in nodes) <= memory

    nodes = [node for node in graph.nodes if node.name in layers and has_patches(node)]
    for stage in independent(graph, nodes, fits):
        yield {node.name: layers[node.name] for node in stage}


def _grams(
    layers: Mapping[str, RoundedLayer],
    prepared: torch.jit.ScriptModule,
    method: str,
    data: Numbered,
) -> dict[str, Tensor]:
    """Return the sums of products of layers' inputs."""
    grams: dict[str, Tensor] = {}
    for layer, inputs in _inputs(layers, prepared, method, data):
        for rows in layer.patches(inputs):
            products = rows.transpose(1, 2) @ rows
            name = layer.node.name
            grams[name] = grams[name].add_(products) if name in grams else products
    return grams


def _with_codes(
    prepared: torch.jit.ScriptModule, report: Report, layers: Mapping[str, RoundedLayer], how: str
) -> torch.jit.ScriptModule:
    """Return a copy of a prepared model that knows the codes of weights."""
    places = {layer.place.node: layer for layer in layers.values()}

    def change(graph: GraphEditor) -> None:
        for node in [node for node in graph.nodes if node.index in places]:
            layer = places[node.index]
            if (codes := layer.candidates.chosen) is None:
                continue
            made = graph.constant(codes.reshape(layer.place.operands["x"].shape), before=node)
            graph.set_input(node, node.position("codes"), made)

    method = report.method
    module = Pipeline("round_weights", (change,)).run(copy_of(prepared, method), method).module
    tried = {name: layer.candidates for name, layer in layers.items() if layer.candidates.codes}
    remarks = {} if how == AUTO else {name: found.remark for name, found in tried.items()}
    rows = remarked(report.operators, remarks)
    made = {**report.made, "weight_rounding": how}
    return rewritten(prepared, module, replace(report, operators=rows, made=made))
