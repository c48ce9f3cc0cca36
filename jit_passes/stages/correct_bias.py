"""Biases that take back the mean error of a layer's result."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..configuration.stages import AUTO, BIAS_CORRECTIONS
from ..errors import ArgumentError, JitPassesError, JitPassesWarning, not_among, warn
from ..graph.editor import GraphEditor
from ..graph.view import GraphView
from ..passes.pipeline import Pipeline
from .batch_norms import batch_norms
from .batches import MOMENT, Batch, InputFn, batches, progress_bar
from .biased_layers import BiasedLayer, biased_layers
from .convert import converted
from .faults import note_origin, origin_of
from .means import Mean, batch_means, over_batches, recorded, rows_of, sum_of
from .module import ModelStage, Report, remarked, stage_of
from .recording import Recorder, copy_of, tensors_of
from .scaling import Layer
from .seen import rewritten
from .self_correcting import SelfCorrecting
from .values import EDGE, source_of

ROUNDS = 4
BATCHES = 4  # that suffice by default
_CHECKED = 16  # batches at most
_CUTS = frozenset({"aten::relu", "aten::relu6", "aten::hardtanh", "aten::clamp", "aten::clamp_min"})


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
            the batches at most: then biases stay as they are. "statistics" finds no batch norm.
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
    if model is not None and not isinstance(model, torch.jit.ScriptModule):
        kind = type(model).__name__
        raise ArgumentError(f"model is the float model, a ScriptModule, not {kind}")
    given = () if data is None or how == "statistics" else batches(data, input_fn)
    with progress_bar("correct", progress)(()) as bar:
        found = _find(prepared, report, how, list(given), bar, rounds=rounds, origin=origin)
    if how == "statistics" and not found.shifts:
        warn(
            "statistics bias correction changes no bias: no quantized layer has a bias and a batch "
            "norm of the float model in front; how='fast' needs data instead"
        )
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

    `BATCHES` are enough, and fewer are not.
    """
    report = Report.read(prepared)
    assert report is not None
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

    layers: Sequence[BiasedLayer]
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
    layers = biased_layers(prepared, reference, report)
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


def _by_results(
    layers: Sequence[BiasedLayer], prepared: torch.jit.ScriptModule,
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
    by_batch = batch_means(prepared, method, nodes, axes, _shown(data, bar))
    wanted = over_batches(by_batch)
    known = {layer.prepared.name: layer for layer in layers if layer.prepared.name in wanted}
    zero = torch.zeros((), dtype=torch.float64)
    correcting = SelfCorrecting(reference, method, known, by_batch)
    for number in range(rounds):
        errors = correcting.run(_shown(data, bar))
        found = {name: known[name].rounded(zero) - error for name, error in errors.items()}
        if number + 1 == rounds:
            break
        made = _reference(_with_biases(prepared, report, _Found(layers, found)), report)
        nodes = {node.name: node for node in GraphView.of(made, method).nodes if node.name in found}
        left = over_batches(batch_means(made, method, nodes, axes, _shown(data, bar)))
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


def _by_weights(
    layers: Sequence[BiasedLayer], prepared: torch.jit.ScriptModule, method: str,
    data: Iterable[Batch],
) -> tuple[dict[str, Tensor], set[str]]:  # fmt: skip
    """Return the terms that are added to biases, by the rounding of weights, in the float model.

    And the names of layers whose terms do not hold from one batch to another.
    """
    makers: dict[int, list[BiasedLayer]] = {}
    for layer in layers:
        producer = layer.prepared.operand("input").producer
        if producer is not None:
            makers.setdefault(producer.index, []).append(layer)
    # Of a linear, which has large weights, the mean input is small; of a convolution it is large.
    lost = {layer.prepared.name: layer.lost for layer in layers if layer.spatial_dims}
    inputs: dict[str, list[list[tuple[Tensor, int]]]] = {}  # means, by batch and by call
    shifts: dict[str, list[Mean]] = {}  # by batch
    for values in recorded(prepared, method, list(makers), data):
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
    return {name: sum_of(shifts[name]).value for name in shifts.keys() - left}, left


def _mean_result(layer: BiasedLayer, inputs: Iterable[tuple[Tensor, int]], weight: Tensor) -> Mean:
    """Return the mean of a layer's results for another weight, of mean inputs."""
    mean = Mean.of(len(layer.bias))
    for tensor, count in inputs:
        result = layer.applied(tensor, weight.to(tensor.dtype))
        mean.add(rows_of(result, layer.axis).mean(1) * count, count)
    return mean


def _holds(means: Sequence[Mean]) -> bool:
    """Say whether the mean of all other batches lowers the squared shift of a batch.

    Over all batches and channels. A single batch leaves nothing to check with.
    """
    total, before, after = sum_of(means), 0.0, 0.0
    for mean in means:
        others = Mean(total.total - mean.total, total.count - mean.count)
        before += mean.count * float(mean.value.square().sum())
        after += mean.count * float((mean.value - others.value).square().sum())
    return len(means) == 1 or after <= before


def _by_statistics(
    layers: Sequence[BiasedLayer], prepared: torch.jit.ScriptModule, method: str, origin: Any
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
        made = None if maker is None else maker.traits.weighted
        # A linear behind a convolution reads rows, not the channels of the batch norm.
        if maker is None or made is None or made.spatial_dims != layer.spatial_dims:
            continue
        if maker.name not in known:
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


def _remark(layer: BiasedLayer, shift: Tensor, how: str) -> str:
    scale = float(layer.bias.abs().max())
    most = float(shift.abs().max())
    share = f", {most / scale:.1%} of its largest" if scale else ""
    return f"bias correction ({how}) has changed its bias by up to {most:.2g}{share}"
