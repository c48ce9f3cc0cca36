"""Weights rounded by the error of a layer's result, not each to the nearest code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log10
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..configuration.stages import WEIGHT_ROUNDINGS
from ..errors import ArgumentError, not_among
from ..graph.editor import GraphEditor
from ..graph.view import GraphView, NodeView
from ..observers import PairSums
from ..passes.pipeline import Pipeline
from ..specification.grid import DTYPES
from ..specification.parameters import QParams
from ..specification.qparams import spread_qparams
from ..specification.specification import QuantizationSpec
from .adaround import adaround, errors
from .batches import Batch, InputFn, batches, is_held_back, progress_bar
from .convert import converted
from .gptq import Grid, gptq
from .independent import independent
from .input_sums import InputSums
from .module import ModelStage, Report, remarked, stage_of
from .parameters import choose_parameters
from .patches import has_patches, patches
from .recording import copy_of
from .scaling import Layer
from .seen import QuantizedPlace, check_seen, read_places, refusals, rewritten
from .values import readers_of, source_of
from .watching import Walk, Watched

SEQUENTIAL = {f"{how}_sequential": how for how in ("gptq", "adaround")}
DAMPINGS = (0.1, 0.01, 1.0)
MEMORY = 2**30
Numbered = Iterable[tuple[int, Batch]]


@dataclass
class _RoundedLayer:
    """A layer whose weight can have other codes.

    Attributes:
        node: the layer in the prepared model.
        place: of its weight.
        weight: [groups, outputs, inputs of one output].
        grid: of its codes, in that shape.
        found: codes that it could have: of gptq one set for each damping, then of adaround.
        errors: of the result on batches held back: with the nearest codes, then with these.
        by: the methods that found them.
    """

    node: NodeView
    place: QuantizedPlace
    weight: Tensor
    grid: Grid
    found: list[Tensor] = field(default_factory=list)
    errors: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    by: list[str] = field(default_factory=list)

    def patches(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield the inputs of its outputs, [groups, rows, inputs of one output]."""
        return patches(self.node, self.place.operands["x"], inputs)

    def choose(self, gram: Tensor, how: str, dampings: Sequence[float]) -> None:
        """Find codes by the products of its inputs."""
        self._choose(gram, how, dict.fromkeys(dampings, self.weight))

    def choose_by(self, sums: InputSums, held: InputSums, how: str, parts: Sequence[float]) -> None:
        """Find codes by its inputs in the quantized model, and check them by ones held back."""
        self._choose(sums.quantized, how, {part: sums.aim(self.weight, part) for part in parts})
        if held.is_finite:
            sets = (self.grid.codes(self.weight.double()), *self.found)
            numbers = (self.grid.numbers(codes.double()) for codes in sets)
            measured = [held.error(self.weight, each) for each in numbers]
            self.errors = torch.tensor(measured, dtype=torch.float64)

    def _choose(self, gram: Tensor, how: str, aims: Mapping[float, Tensor]) -> None:
        """Find codes of the weights that are aimed at, one for each damping."""

        def lost(entry: tuple[Tensor, Tensor]) -> float:
            return float(errors(*entry, self.grid, gram).sum())

        found = [gptq(aim, gram, self.grid, part) for part, aim in aims.items()]
        if how == "adaround":
            aim, start = min(zip(aims.values(), found, strict=True), key=lost)
            found.append(adaround(aim, gram, self.grid, start))
        dtype = DTYPES[self.place.place.spec.dtype]
        self.found = [codes.to(dtype) for codes in found]
        self.by = ["gptq"] * len(aims) + ["adaround"] * (how == "adaround")
        self.errors = torch.zeros(1 + len(found), dtype=torch.float64)

    def check(self, inputs: Tensor) -> None:
        """Add the errors of its result for inputs that were held back."""
        weight = self.weight.double()
        sets = (self.grid.codes(weight), *self.found)
        lost = [(weight - self.grid.numbers(codes.double())).to(inputs.dtype) for codes in sets]
        for rows in self.patches(inputs):
            for i, error in enumerate(lost):
                self.errors[i] += (rows @ error.transpose(1, 2)).square().sum().double()

    @property
    def size(self) -> int:
        """Bytes of the products of its inputs."""
        return 4 * len(self.weight) * self.weight.shape[2] ** 2

    @property
    def best(self) -> int:
        """The number of the best codes, 0 for the nearest ones.

        Without a measurement, the first codes of gptq, or the codes of adaround.
        """
        unmeasured = 1 + self.by.index(self.by[-1])
        return int(self.errors.argmin()) if self.errors[0] else unmeasured

    @property
    def remark(self) -> str:
        nearest, *chosen = self.errors.tolist()
        by = self.by[max(self.best, 1) - 1]
        if not nearest:
            return f"its weight is rounded by {by}, without a check on held-back batches"
        gain = 10 * log10(nearest / min(chosen)) if min(chosen) else inf
        if not self.best:
            by = " and ".join(dict.fromkeys(self.by))
            more = f"{-gain:.1f} dB more" if gain <= -0.05 else "no less"
            return f"its weight is not rounded by {by}: {more} error on batches held back"
        return f"its weight is rounded by {by}: {gain:.1f} dB less error on batches held back"


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
    layers = _rounded_layers(prepared, report)
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
        return _with_codes(prepared, report, {n: s for n, s in layers.items() if s.found}, how)
    walk = progress_bar("round", progress)

    def some(held: bool) -> Numbered:
        for number, arguments in enumerate(batches(data, input_fn, walk)):
            if is_held_back(number) is held:
                yield number, arguments

    for part in _parts(layers, memory):
        grams = _grams(part, prepared, report.method, some(held=False))
        for name in list(grams):
            gram = grams.pop(name)
            if gram.isfinite().all():
                part[name].choose(gram, how, dampings)
    chosen = {name: layer for name, layer in layers.items() if layer.found}
    for layer, tensor in _inputs(chosen, prepared, report.method, some(held=True)):
        layer.check(tensor)
    return _with_codes(prepared, report, chosen, how)


def _rounded_layers(prepared: torch.jit.ScriptModule, report: Report) -> dict[str, _RoundedLayer]:
    """Return the layers whose weights can have other codes, in program order."""
    places = read_places(prepared, report)[1]
    check_seen(places, report)
    chosen = choose_parameters(places, refusals(places)).at
    weights = {known.place.owner: known for known in places if _can_be_chosen(known)}
    found = {}
    for node in GraphView.of(prepared, report.method).nodes:
        known = weights.get(node.name)
        if known is None or not has_patches(node):
            continue
        qparams, weight = chosen.get(known.place.id), known.operands["x"].detach()
        alone = len(readers_of(node.operand("weight"))) == 1
        constant = source_of(node.operand("weight")).is_constant and weight.dim() > 1
        if isinstance(qparams, QParams) and alone and constant:
            view = Layer(node, None, torch.arange(0))

            def rows(tensor: Tensor, view: Layer = view) -> Tensor:
                return view.by_group(tensor).flatten(2)

            scale, zero_point = (
                rows(each.expand(weight.shape)) for each in spread_qparams(qparams, weight.shape)
            )
            grid = Grid(scale, zero_point, qparams.quant_min, qparams.quant_max)
            found[node.name] = _RoundedLayer(node, known, rows(weight), grid)
    return found


def _can_be_chosen(known: QuantizedPlace) -> bool:
    spec = known.place.spec
    return (
        known.place.slot == "weight"
        and known.constant
        and known.reached
        and "codes" in known.operands
        and isinstance(spec, QuantizationSpec)
        and not isinstance(spec.observer, PairSums)
    )


def _parts(layers: Mapping[str, _RoundedLayer], memory: int) -> Iterator[dict[str, _RoundedLayer]]:
    """Yield layers by name, as many at a time as the memory has room for."""
    part: dict[str, _RoundedLayer] = {}
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
    layers: Mapping[str, _RoundedLayer],
    prepared: torch.jit.ScriptModule,
    method: str,
    data: Numbered,
) -> Iterator[tuple[_RoundedLayer, Tensor]]:
    """Yield the inputs of layers in the float model, batch by batch."""
    recorder = Watched(prepared, method, layers).recorder()
    for number, arguments in data:
        for name, tensors in recorder.run(arguments, number, layers):
            for tensor in tensors:
                yield layers[name], tensor


def _choose_in_order(
    stages: Iterable[Mapping[str, _RoundedLayer]], layers: Collection[str],
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
                if layer.best:
                    quantized.set_codes(name, layer.found[layer.best - 1])


def _stages(
    layers: Mapping[str, _RoundedLayer], graph: GraphView, memory: int
) -> Iterator[dict[str, _RoundedLayer]]:
    """Yield layers in order; layers that do not depend on each other come together."""

    def fits(nodes: Sequence[NodeView]) -> bool:
        return sum(6 * layers[node.name].size for node in nodes) <= memory

    nodes = [node for node in graph.nodes if node.name in layers and has_patches(node)]
    for stage in independent(graph, nodes, fits):
        yield {node.name: layers[node.name] for node in stage}


def _grams(
    layers: Mapping[str, _RoundedLayer],
    prepared: torch.jit.ScriptModule,
    method: str,
    data: Numbered,
) -> dict[str, Tensor]:
    """Return the sums of products of layers' inputs."""
    grams: dict[str, Tensor] = {}
    for layer, inputs in _inputs(layers, prepared, method, data):
        if not inputs.numel():
            continue
        for rows in layer.patches(inputs):
            products = rows.transpose(1, 2) @ rows
            name = layer.node.name
            grams[name] = grams[name].add_(products) if name in grams else products
    return grams


def _with_codes(
    prepared: torch.jit.ScriptModule, report: Report, layers: Mapping[str, _RoundedLayer], how: str
) -> torch.jit.ScriptModule:
    """Return a copy of a prepared model that knows the codes of weights."""
    kept = {layer.place.node: layer for layer in layers.values() if layer.best}

    def change(graph: GraphEditor) -> None:
        for node in [node for node in graph.nodes if node.index in kept]:
            layer = kept[node.index]
            codes = layer.found[layer.best - 1].reshape(layer.place.operands["x"].shape)
            made = graph.constant(codes, before=node)
            graph.set_input(node, node.position("codes"), made)

    method = report.method
    module = Pipeline("round_weights", (change,)).run(copy_of(prepared, method), method).module
    rows = remarked(report.operators, {name: layer.remark for name, layer in layers.items()})
    made = {**report.made, "weight_rounding": how}
    return rewritten(prepared, module, replace(report, operators=rows, made=made))
