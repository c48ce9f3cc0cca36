"""Biases that take back the mean error of a layer's result."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..configuration.stages import AUTO, BIAS_CORRECTIONS
from ..errors import ArgumentError, JitPassesError, JitPassesWarning, not_among, warn
from ..graph.editor import GraphEditor
from ..graph.traits import packet_of
from ..graph.view import GraphView, NodeView, ValueView
from ..passes.pipeline import Pipeline
from ..specification.specification import GroupDerivation
from .batch_norms import batch_norms
from .batches import MOMENT, Batch, InputFn, batches, progress_bar
from .convert import converted
from .faults import note_origin, origin_of
from .module import ModelStage, Report, remarked, stage_of
from .recording import Recorder, check_finite, copy_of, following, tensors_of
from .scaling import Layer, is_layer
from .seen import read_places, rewritten
from .values import DEQUANTIZE, EDGE, grid_operands, source_of

ROUNDS = 4
BATCHES = 4  # that suffice by default
_CHECKED = 16  # batches at most
_CUTS = frozenset({"aten::relu", "aten::relu6", "aten::hardtanh", "aten::clamp", "aten::clamp_min"})


@dataclass(frozen=True)
class _BiasedLayer:
    """A quantized layer whose bias can be another one.

    Attributes:
        prepared: its node in the prepared model.
        reference: its node in the reference model.
        bias: as it was.
        step: of the bias, [channels] or one; 0 where it is float.
    """

    prepared: NodeView
    reference: NodeView
    bias: Tensor
    step: Tensor

    @property
    def spatial_dims(self) -> int:
        weighted = self.prepared.traits.weighted
        assert weighted is not None
        return weighted.spatial_dims

    @property
    def axis(self) -> int:
        return -1 - self.spatial_dims

    def rounded(self, shift: Tensor) -> Tensor:
        """Return the shift of the bias once the bias is rounded."""
        if not self.step.any():
            return shift
        bias = self.bias.double()
        return ((bias + shift) / self.step).round() * self.step - bias

    @property
    def lost(self) -> Tensor:
        """The weight less the numbers of its codes."""
        rounded = _weight_of(self.reference)  # numbers that nothing else holds
        return torch.sub(_weight_of(self.prepared), rounded, out=rounded)

    def mean_input(self, inputs: Tensor) -> tuple[Tensor, int]:
        """Return the mean of inputs over a batch, and how many they are.

        A layer is linear, so the mean of inputs gives the mean of results.
        """
        if inputs.dim() <= self.spatial_dims + 1:
            return inputs.unsqueeze(0), 1
        rows = inputs.flatten(0, -2 - self.spatial_dims)
        return rows.mean(0, keepdim=True), len(rows)

    def applied(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return the layer's result for other weights, without the bias."""
        options = [value.constant for value in self.prepared.operands_behind("bias")]
        found: Tensor = packet_of(self.prepared.kind)(inputs, weight, None, *options)
        return found


def correct_bias(
    prepared: torch.jit.ScriptModule,
    data: Iterable[Any] | None = None,
    *,
    how: str | None = None,
    rounds: int = ROUNDS,
    model: torch.jit.ScriptModule | None = None,
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Change biases of a calibrated model so that results keep their means once it is quantized.

    Rounding shifts the mean of each channel of a layer's result. The shift is taken from the bias,
    before `convert` makes it an integer:

        sequential    b - (E[quantized result] - E[result]), with inputs of the quantized model, in
                      which the layers in front are corrected already
        fast          b + E[(W - Q(W)) x], with inputs x of the float model: the shift by rounding
                      of the weights alone, in one pass over the data
        statistics    b + (W - Q(W)) E[x], with E[x] by the batch norm of the layer in front: a
                      normal distribution cut off by relu or relu6; no data

    With few batches the means fit these batches alone, so compare before and after on other data.
    "fast" checks the shift of each batch by the mean of all others, and leaves the bias of a layer
    whose squared shifts would grow. If the results have a larger error in the end, all biases stay.
    Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction,
    2019 (arXiv:1906.04721), section 4.2 and appendices B and C.

    Args:
        prepared: the result of `prepare`, calibrated; it is not touched.
        data: batches of typical inputs, as for `calibrate`.
        how: one of these; None for sequential, or without data statistics.
        rounds: for "sequential", how often all layers are measured at most. Rounds end earlier
            where no mean is off by more than half a step of the bias.
        model: the float model, for "statistics"; None for the argument of `prepare`, if that model
            still exists.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.

    Returns:
        The prepared model with other biases. Layers without a bias stay as they are.

    Raises:
        JitPassesError: the model was not prepared or not calibrated; data are missing, or hold a
            NaN; an option is unknown.

    Warns:
        JitPassesWarning: other biases make the error of the model's results larger, on sixteen of
            the batches at most: then biases stay as they are.
    """
    how = how or ("statistics" if data is None else "sequential")
    if how not in BIAS_CORRECTIONS:
        raise ArgumentError(not_among("how", how, BIAS_CORRECTIONS))
    if data is None and how != "statistics":
        raise ArgumentError(f"how='{how}' needs data: pass some, or say how='statistics'")
    if not isinstance(rounds, int) or rounds < 1:
        raise ArgumentError(f"rounds is a whole number above 0, not {rounds!r}")
    report = stage_of(prepared, ModelStage.PREPARED, "call jit_passes.prepare and calibrate first")
    origin = model or origin_of(prepared)
    if how == "statistics" and origin is None:
        raise JitPassesError(
            "the float model is gone, and with it its batch norms: pass it as model="
        )
    given = () if data is None or how == "statistics" else batches(data, input_fn)
    with progress_bar("correct", progress)(()) as bar:
        found = _find(prepared, report, how, list(given), bar, rounds=rounds, origin=origin)
    if not found.helps:
        why = "with it the results have a larger error, so biases stay as they are"
        instead = "; how='fast' may" if how == "sequential" else ""
        warn(f"{how} bias correction does not suit the model: {why}{instead}")
        found = _Found(found.layers, {})
    made = _with_biases(prepared, report, found, how)
    if model is not None:
        note_origin(made, model)
    return made


def correct_by_default(
    prepared: torch.jit.ScriptModule, data: Sequence[Batch], progress: bool | None
) -> torch.jit.ScriptModule:
    """Correct biases as "fast" does, where all goes well; else return the model as it is.

    A few batches are enough, and fewer than four are not.
    """
    report = Report.read(prepared)
    assert report is not None
    if len(data) < BATCHES:
        return prepared
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)  # which `convert` repeats
        try:
            with progress_bar("correct", progress, delay=MOMENT)(()) as bar:
                found = _find(prepared, report, "fast", data, bar, BATCHES // 2)
        except JitPassesError:  # without it the model is as good as before
            return prepared
    return _with_biases(prepared, report, found, AUTO) if found.helps else prepared


@dataclass(frozen=True)
class _Found:
    """Terms that are added to biases.

    Attributes:
        layers: whose bias can be another one.
        shifts: the terms, by the name of a layer.
        left: names of layers whose terms do not hold from one batch to another.
        helps: whether the results do not have a larger error with the terms.
    """

    layers: Sequence[_BiasedLayer]
    shifts: Mapping[str, Tensor]
    left: Collection[str] = ()
    helps: bool = True


def _find(
    prepared: torch.jit.ScriptModule, report: Report, how: str, data: Sequence[Batch], bar: Any,
    checks: int = _CHECKED, rounds: int = ROUNDS, origin: Any = None,
) -> _Found:  # fmt: skip
    """Return the terms, and whether they help on so many batches at most."""
    method = report.method
    reference = _reference(prepared, report)
    layers = _biased_layers(prepared, reference, report)
    if how == "statistics":
        return _Found(layers, _by_statistics(layers, prepared, method, origin))
    shifts: dict[str, Tensor]
    left: set[str] = set()
    if how == "fast":
        shifts, left = _by_weights(layers, prepared, method, _shown(data, bar))
    else:
        shifts = _by_results(layers, prepared, reference, report, data, bar, rounds)
    found = _Found(layers, shifts, left)
    if not shifts:
        return found
    corrected = _corrected(reference, method, found)
    checked = data[:: -(-len(data) // checks)]
    before, after = _errors(prepared, (reference, corrected), method, _shown(checked, bar))
    return replace(found, helps=after <= before)


def _shown(data: Sequence[Batch], bar: Any) -> Iterator[Batch]:
    """Go through the data once more, and show it."""
    bar.total = (bar.total or 0) + len(data)
    for batch in data:
        yield batch
        bar.update()


def _reference(prepared: torch.jit.ScriptModule, report: Report) -> torch.jit.ScriptModule:
    return converted(_C.clone(prepared._c, report.method), report, progress=False)


def _biased_layers(
    prepared: torch.jit.ScriptModule, reference: torch.jit.ScriptModule, report: Report
) -> list[_BiasedLayer]:
    """Return the quantized layers that have a bias without a range of its own, in program order."""
    method = report.method
    ranged = {
        known.place.owner
        for known in read_places(prepared, report)[1]
        if known.place.slot == "bias" and not isinstance(known.place.spec, GroupDerivation)
    }
    quantized = {
        node.name: node
        for node in GraphView.of(reference, method).nodes
        if node.traits.weighted is not None and _is_quantized(node)
    }
    found = []
    for node in GraphView.of(prepared, method).nodes:
        if node.name not in quantized or node.name in ranged or node.traits.weighted is None:
            continue
        bias = source_of(node.operand("bias")).constant
        if isinstance(bias, Tensor):
            step = _step(quantized[node.name].operand("bias"))
            found.append(_BiasedLayer(node, quantized[node.name], bias.detach(), step))
    return found


def _is_quantized(node: NodeView) -> bool:
    made = node.operand("weight").producer
    return made is not None and made.kind in DEQUANTIZE and made.main_operand.is_constant


def _step(bias: ValueView) -> Tensor:
    made = bias.producer
    if made is None or made.kind not in DEQUANTIZE:
        return torch.zeros((), dtype=torch.float64)
    scale, *_ = grid_operands(made)
    return torch.as_tensor(scale.constant, dtype=torch.float64)


def _weight_of(node: NodeView) -> Tensor:
    """Return the weight of a layer, in numbers where it is stored as codes."""
    value = source_of(node.operand("weight"))
    made = value.producer
    if made is not None and made.kind in DEQUANTIZE:
        found: Tensor = packet_of(made.kind)(*(given.constant for given in made.inputs))
        return found
    constant: Tensor = value.constant
    return constant.detach()


def _recorded(
    module: torch.jit.ScriptModule, method: str, indices: Sequence[int], data: Iterable[Batch]
) -> Iterator[dict[int, list[Tensor]]]:
    """Yield the results of nodes of a copy by their indices, batch by batch."""
    recorder = Recorder(copy_of(module, method), method, list(dict.fromkeys(indices)))
    for number, arguments in enumerate(data):
        values = recorder.run(arguments)[1]
        check_finite((t for tensors in values.values() for t in tensors), number)
        yield values


@dataclass
class _Mean:
    """A running mean of rows."""

    total: Tensor
    count: int = 0

    def add(self, total: Tensor, count: int) -> None:
        self.total, self.count = self.total + total, self.count + count

    @classmethod
    def of(cls, channels: int) -> _Mean:
        """Return the mean of nothing."""
        return cls(torch.zeros(channels, dtype=torch.float64))

    @property
    def value(self) -> Tensor:
        return self.total / max(self.count, 1)


def _batch_means(
    module: torch.jit.ScriptModule, method: str, nodes: Mapping[str, NodeView],
    axes: Mapping[str, int], data: Iterable[Batch],
) -> list[dict[str, _Mean]]:  # fmt: skip
    """Return the mean of each channel of the results of nodes, by name, for each batch."""
    names = {node.index: name for name, node in nodes.items()}
    found = []
    for values in _recorded(module, method, list(names), data):
        means: dict[str, _Mean] = {}
        for index, tensors in values.items():
            for rows in (_rows(tensor, axes[names[index]]) for tensor in tensors):
                known = means.setdefault(names[index], _Mean.of(len(rows)))
                known.add(rows.sum(1), rows.shape[1])
        found.append(means)
    return found


def _rows(tensor: Tensor, axis: int) -> Tensor:
    """Return [channels, values], in float64."""
    return tensor.movedim(axis, 0).flatten(1).double()


def _over_batches(by_batch: Iterable[Mapping[str, _Mean]]) -> dict[str, Tensor]:
    parts: dict[str, list[_Mean]] = {}
    for means in by_batch:
        for name, mean in means.items():
            parts.setdefault(name, []).append(mean)
    return {name: _sum(means).value for name, means in parts.items()}


def _by_results(
    layers: Sequence[_BiasedLayer], prepared: torch.jit.ScriptModule,
    reference: torch.jit.ScriptModule, report: Report, data: Sequence[Batch], bar: Any,
    rounds: int,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the terms that are added to biases, by the mean error of results.

    Errors are taken back while a batch is computed, so the layers behind see corrected results. If
    all layers were corrected at once, the layers behind would take back each error again. A round
    begins with the means of the round before.
    """
    method = report.method
    axes = {layer.prepared.name: layer.axis for layer in layers}
    nodes = {layer.prepared.name: layer.prepared for layer in layers}
    by_batch = _batch_means(prepared, method, nodes, axes, _shown(data, bar))
    wanted = _over_batches(by_batch)
    known = {layer.prepared.name: layer for layer in layers if layer.prepared.name in wanted}
    zero = torch.zeros((), dtype=torch.float64)
    correcting = _Correcting(reference, method, known, by_batch)
    for number in range(rounds):
        errors = correcting.run(_shown(data, bar))
        found = {name: known[name].rounded(zero) - error for name, error in errors.items()}
        if number + 1 == rounds:
            break
        made = _reference(_with_biases(prepared, report, _Found(layers, found)), report)
        nodes = {node.name: node for node in GraphView.of(made, method).nodes if node.name in found}
        left = _over_batches(_batch_means(made, method, nodes, axes, _shown(data, bar)))
        near = [n for n in left if _is_near(left[n], wanted[n], known[n].step)]
        if len(near) == len(left):
            break
        correcting.settle(near)
    return found


def _corrected(reference: torch.jit.ScriptModule, method: str, found: _Found) -> Any:
    """Return a copy of the quantized model with other biases, and with the codes of its weights."""
    known = {layer.reference.index: layer for layer in found.layers}

    def change(graph: GraphEditor) -> None:
        nodes = {node.index: node for node in graph.nodes}
        for index, layer in known.items():
            if (shift := found.shifts.get(layer.prepared.name)) is not None:
                node = nodes[index]
                bias = layer.bias + layer.rounded(shift)
                made = graph.constant(bias.to(layer.bias.dtype), before=node)
                graph.set_input(node, node.position("bias"), made)

    pipeline = Pipeline("correct_bias", (change, "remove_dead_code"))
    return pipeline.run(copy_of(reference, method), method).module


def _errors(model: Any, others: Sequence[Any], method: str, data: Iterable[Batch]) -> list[float]:
    """Return the squared errors of other models' results, where they have equal sizes."""
    recorders = [Recorder(copy_of(each, method), method, []) for each in (model, *others)]
    errors = [0.0] * len(others)
    for arguments in data:
        wanted, *found = (list(tensors_of(each.run(arguments)[0])) for each in recorders)
        for number, tensors in enumerate(found):
            for (_, one), (_, two) in zip(wanted, tensors, strict=False):  # as many as were found
                if one.shape == two.shape:
                    errors[number] += float((one.double() - two.double()).square().sum())
    return errors


def _is_near(mean: Tensor, wanted: Tensor, step: Tensor) -> bool:
    """Say whether means are off by the rounding of the bias and of float32 at most."""
    noise = 2.0**-20 * wanted.abs().max()
    return bool(((mean - wanted).abs() <= step / 2 + noise).all())


class _Correcting:
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
        self, reference: torch.jit.ScriptModule, method: str, layers: Mapping[str, _BiasedLayer],
        wanted: Sequence[Mapping[str, _Mean]],
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
        found: dict[str, _Mean] = {}
        for arguments, wanted in zip(data, self._wanted, strict=True):
            for name, mean in wanted.items():
                self._states[name].wanted.copy_(mean.value)
            for index, tensors in recorder.run(arguments)[1].items():
                name = names[index]
                if name not in wanted:
                    continue  # another branch than in float
                for rows in (_rows(tensor, self._layers[name].axis) for tensor in tensors):
                    error, count = rows.mean(1) - wanted[name].value, rows.shape[1]
                    found.setdefault(name, _Mean.of(len(rows))).add(error * count, count)
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
        return cls(torch.zeros(channels), torch.zeros(()), torch.zeros(channels))

    def begin(self, error: Tensor, count: float) -> None:
        self.error.copy_(error)
        self.count.fill_(count)

    def add(self, error: Tensor, count: int) -> None:
        self.count.add_(count)
        self.error.lerp_(error.float(), count / float(self.count))  # 0 of inf


def _insert_correction(
    graph: GraphEditor, node: NodeView, before: NodeView | None, layer: _BiasedLayer,
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


def _by_weights(
    layers: Sequence[_BiasedLayer], prepared: torch.jit.ScriptModule, method: str,
    data: Iterable[Batch],
) -> tuple[dict[str, Tensor], set[str]]:  # fmt: skip
    """Return the terms that are added to biases, by the rounding of weights, in the float model.

    And the names of layers whose terms do not hold from one batch to another.
    """
    makers: dict[int, list[_BiasedLayer]] = {}
    for layer in layers:
        producer = layer.prepared.operand("input").producer
        if producer is not None:
            makers.setdefault(producer.index, []).append(layer)
    # Of a linear, which has large weights, the mean input is small; of a convolution it is large.
    lost = {layer.prepared.name: layer.lost for layer in layers if layer.spatial_dims}
    inputs: dict[str, list[list[tuple[Tensor, int]]]] = {}  # means, by batch and by call
    shifts: dict[str, list[_Mean]] = {}  # by batch
    for values in _recorded(prepared, method, list(makers), data):
        for index, tensors in values.items():
            for layer in makers[index]:
                name, means = layer.prepared.name, [layer.mean_input(tensor) for tensor in tensors]
                if name in lost:
                    shifts.setdefault(name, []).append(_mean_result(layer, means, lost[name]))
                else:
                    inputs.setdefault(name, []).append(means)
    for layer in layers:
        if (name := layer.prepared.name) in inputs:
            weight = layer.lost
            shifts[name] = [_mean_result(layer, means, weight) for means in inputs[name]]
    left = {name for name, by_batch in shifts.items() if not _holds(by_batch)}
    return {name: _sum(shifts[name]).value for name in shifts.keys() - left}, left


def _mean_result(
    layer: _BiasedLayer, inputs: Iterable[tuple[Tensor, int]], weight: Tensor
) -> _Mean:
    """Return the mean of a layer's results for another weight, of mean inputs."""
    mean = _Mean.of(len(layer.bias))
    for tensor, count in inputs:
        result = layer.applied(tensor, weight.to(tensor.dtype))
        mean.add(_rows(result, layer.axis).mean(1) * count, count)
    return mean


def _sum(means: Iterable[_Mean]) -> _Mean:
    total = _Mean(torch.zeros((), dtype=torch.float64))
    for mean in means:
        total.add(mean.total, mean.count)
    return total


def _holds(means: Sequence[_Mean]) -> bool:
    """Say whether the mean of all other batches lowers the squared shift of a batch.

    Over all batches and channels. A single batch leaves nothing to check with.
    """
    total, before, after = _sum(means), 0.0, 0.0
    for mean in means:
        others = _Mean(total.total - mean.total, total.count - mean.count)
        before += mean.count * float(mean.value.square().sum())
        after += mean.count * float((mean.value - others.value).square().sum())
    return len(means) == 1 or after <= before


def _by_statistics(
    layers: Sequence[_BiasedLayer], prepared: torch.jit.ScriptModule, method: str, origin: Any
) -> dict[str, Tensor]:
    """Return the terms that are added to biases, by the batch norms in front."""
    known, found = batch_norms(origin, method), {}
    for layer in layers:
        low, high = -torch.inf, torch.inf
        maker = source_of(layer.prepared.operand("input")).producer
        if maker is not None and maker.kind in _CUTS and maker.clip is not None:
            ends = maker.clip
            low, high = (
                (low if ends[0] is None else ends[0]),
                (high if ends[1] is None else ends[1]),
            )
            maker = source_of(maker.main_operand).producer
        if maker is None or maker.name not in known:
            continue
        mean = known[maker.name].clipped_mean(low, high)
        view = Layer(layer.prepared, None, torch.arange(len(layer.bias)))
        found[layer.prepared.name] = view.applied(mean, layer.lost)
    return found


def _with_biases(
    prepared: torch.jit.ScriptModule, report: Report, found: _Found, how: str = ""
) -> torch.jit.ScriptModule:
    """Return a copy of a prepared model with other biases, and with `how` in its provenance.

    Layers have remarks, but for the default: there would be one for nearly each layer.
    """
    shifts = found.shifts
    known = {layer.prepared.index: layer for layer in found.layers if layer.prepared.name in shifts}

    def change(graph: GraphEditor) -> None:
        nodes = {node.index: node for node in graph.nodes}
        for index, layer in known.items():
            bias = layer.bias.double() + shifts[layer.prepared.name]
            node = nodes[index]
            operand = node.position("bias")
            while (maker := node.inputs[operand].producer) is not None and maker.kind == EDGE:
                node, operand = maker, 0
            made = graph.constant(bias.to(layer.bias.dtype), before=node)
            graph.set_input(node, operand, made)

    changed = Pipeline("correct_bias", (change, "remove_dead_code"))
    module = changed.run(copy_of(prepared, report.method), report.method).module
    if how and shifts:
        made = {**report.made, "bias_correction": how}
        report = replace(report, made=made)
        if how != AUTO:
            rows = {layer.prepared.name: layer for layer in known.values()}
            remarks = {name: _remark(layer, shifts[name], how) for name, layer in rows.items()}
            left = f"bias correction ({how}) leaves its bias: {_LEFT}"
            remarks |= dict.fromkeys(found.left, left)
            report = replace(report, operators=remarked(report.operators, remarks))
    return rewritten(prepared, module, report)


_LEFT = "its shift differs too much from batch to batch"


def _remark(layer: _BiasedLayer, shift: Tensor, how: str) -> str:
    scale = float(layer.bias.abs().max())
    most = float(shift.abs().max())
    share = f", {most / scale:.1%} of its largest" if scale else ""
    return f"bias correction ({how}) has changed its bias by up to {most:.2g}{share}"


class ZeroBiases:
    """Gives layers without a bias one of zeros, which a correction can change."""

    made: Mapping[str, Any] = MappingProxyType({})
    remarks: Mapping[str, str] = MappingProxyType({})

    def __call__(self, module: Any, method: str) -> Any:
        """Return the module with a bias for each layer of constant weights."""

        def give(graph: GraphEditor) -> None:
            for node in graph.nodes:
                if is_layer(node) and node.operand("bias").constant is None:
                    layer = Layer(node, None, torch.zeros(0))
                    first = layer.by_group(node.operand("weight").constant)[..., 0, 0]
                    zeros = torch.zeros_like(first).flatten()
                    bias = graph.constant(zeros, before=node)
                    graph.set_input(node, node.position("bias"), bias)

        return Pipeline("zero_biases", (give,)).run(module, method).module
