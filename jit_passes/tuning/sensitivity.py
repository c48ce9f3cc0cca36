"""The cost of quantizing each layer of a model."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from ..errors import JitPassesError, UnknownNameError, aligned, count_of, nearest
from ..graph.modules import Patterns, fit_of, several
from ..logs import LOGGER, timed
from ..quantizers.base import Quantizer
from ..stages.batches import InputFn, progress_bar
from ..tables import for_json, html_table
from ..targets import Target
from ..workers import check_executor
from .measuring import measuring
from .metric import MetricFn, score_text
from .variants import IN_FLOAT, Choices, Layer, Variants


@dataclass(frozen=True)
class LayerSensitivity:
    """The metric with and without one layer quantized; larger is better.

    Attributes:
        name: of the operator, `layer1.0.conv1:conv2d`.
        operator: `aten::conv2d`.
        source: `file:line` of the model's code.
        bits: see `OperatorRecord`.
        alone: the metric where this layer is quantized, and all others are in float.
        left_out: the metric where this layer is in float, and all others are quantized.
        gain: by how much leaving it out is better than quantizing all: left_out - quantized.
    """

    name: str
    operator: str
    source: str
    bits: str
    alone: float
    left_out: float
    gain: float


@dataclass(frozen=True)
class Sensitivity:
    """The cost of quantizing each layer; printing it gives a table.

    Attributes:
        rows: the layers in program order.
        metric: name of the measured number; larger is better.
        unit: `dB` or "".
        of_float: the metric of the float model; inf for the SQNR.
        quantized: that with all layers quantized.
        evaluations: how many quantized models were measured.
    """

    rows: tuple[LayerSensitivity, ...]
    metric: str
    unit: str
    of_float: float
    quantized: float
    evaluations: int

    @property
    def worst(self) -> tuple[LayerSensitivity, ...]:
        """The layers by their cost alone, the most first; then by the gain of leaving them out."""
        return tuple(sorted(self.rows, key=lambda row: (row.alone, -row.gain)))

    def __getitem__(self, name: str) -> LayerSensitivity:
        """Return the row of that name.

        Raises:
            JitPassesError: there is none; this is a KeyError too.
        """
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        raise UnknownNameError(f"no layer {name!r} was measured: {nearest(str(name), names)}")

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, which knows no infinity: None stands for one, no error mostly."""
        rows = [{k: for_json(v) for k, v in asdict(row).items()} for row in self.rows]
        fields = {k: for_json(v) for k, v in vars(self).items() if k != "rows"}
        return {**fields, "layers": rows}

    def table(self) -> list[tuple[str, ...]]:
        """Return head and rows as texts."""
        head = ("layer", "operator", "bits", "alone", "left out", "gain")
        return [head, *map(self._cells, self.rows)]

    @property
    def summary(self) -> str:
        """The result, in two lines."""
        shown = partial(score_text, unit=self.unit)
        worst = self.worst[0]
        source = f" of {worst.source}" if worst.source else ""
        return (
            f"{self.metric}: {shown(self.quantized)} with all layers quantized, "
            f"{shown(self.of_float)} in float\n"
            f"costs most alone: {worst.name} ({worst.operator}{source}), {shown(worst.alone)}"
        )

    def __str__(self) -> str:
        return f"{aligned(self.table())}\n{self.summary}"

    def _repr_html_(self) -> str:
        head, *rows = self.table()
        return html_table(head, rows, self.summary)

    def _cells(self, row: LayerSensitivity) -> tuple[str, ...]:
        shown = partial(score_text, unit=self.unit)
        gain = f"{row.gain:+z.1f}" if self.unit else f"{row.gain:+z.4g}"
        return row.name, row.operator, row.bits, shown(row.alone), shown(row.left_out), gain


@timed
def sensitivity(
    model: torch.jit.ScriptModule,
    data: Iterable[Any] | None,
    metric: MetricFn | None = None,
    *,
    layers: Patterns | None = None,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    config: Any = None,
    mode: str | None = None,
    method: str = "forward",
    input_fn: InputFn | None = None,
    resume: Any = None,
    progress: bool | None = None,
    executor: Executor | None = None,
) -> Sensitivity:
    """Measure the cost of quantizing each layer: quantized alone, and left out alone.

    With m the metric, L the layers, and m(S) the metric of the model in which the layers S are
    quantized:

        alone(l) = m({l})        left_out(l) = m(L - {l})        gain(l) = left_out(l) - m(L)

    A layer is an operator on integers with the operators computed together with it, as a relu
    behind a convolution. An addition between layers is a layer too. An addition has nothing to
    compute on integers where all others are in float: alone, it costs nothing.

    The float model runs over the data once, for ranges. Then at most 2 |L| + 1 quantized models are
    measured, each as `quantize_script` would make it. Before the first one, the log `jit_passes`
    and the progress bar say how long the measurement will take. The bar then shows the time left.

    Args:
        model: scripted, traced or loaded, in eval mode. The model does not change.
        data: batches, as for `calibrate`. The batches are kept, and so are the float model's
            outputs: pass a hundred samples or so. None with a metric, if nothing needs data.
        metric: a function of a copy of a model that returns a number, larger is better, such as its
            accuracy on labelled data; of a loss, its negative. None for the SQNR of the output on
            the data, in dB, which is infinite for the float model.
        layers: measure these only: globs of their names, `layer4.*`.
        quantizer: as in `quantize_script`; one of a backend.
        target: as in `quantize_script`.
        config: as in `quantize_script`.
        mode: as in `quantize_script`.
        method: as in `quantize_script`.
        input_fn: makes a batch of inputs out of an item of `data`.
        resume: a file for the scores, written as they are measured; a run that was interrupted goes
            on from it.
        progress: a progress bar; None for one on terminals only.
        executor: of `concurrent.futures`, whose workers measure. The result and the file of
            `resume` equal a run in one process, unless arithmetic depends on the number of threads.
            Workers need to import the metric. None for this process.

    Raises:
        JitPassesError: the model or the data do not allow it, nothing would be quantized, `layers`
            fits none; the metric fails, or gives no number; the file is of another run; a worker
            fails twice, or data or the metric cannot be sent to workers.
    """
    check_executor(executor)
    variants = Variants(
        model, data, metric, quantizer=quantizer, target=target, config=config, mode=mode,
        method=method, input_fn=input_fn, resume=resume, progress=progress,
    )  # fmt: skip
    chosen = _chosen(variants.layers, layers)
    in_float = {layer.name: IN_FLOAT for layer in variants.layers}
    quantized = variants.score({})
    seconds = 2 * len(chosen) * variants.seconds / max(variants.evaluations, 1)
    LOGGER.info(
        "sensitivity: %s, up to %d evaluations, about %.1f s", count_of(len(chosen), "layer"),
        2 * len(chosen), seconds,
    )  # fmt: skip
    about = f"sensitivity, about {seconds:.0f} s" + (" in one process" if executor else "")
    shown = progress_bar(about, progress, "layer")
    rows = []
    with measuring(variants, executor):
        pairs = [(_without(in_float, layer), {layer.name: IN_FLOAT}) for layer in chosen]
        variants.ahead(choices for pair in pairs for choices in pair)
        for layer, (others, own) in shown(list(zip(chosen, pairs, strict=True))):
            alone, left_out = variants.score(others), variants.score(own)
            gain = 0.0 if left_out == quantized else left_out - quantized
            described = (layer.name, layer.operator, layer.source, layer.bits)
            rows.append(LayerSensitivity(*described, alone, left_out, gain))
    measured = variants.metric
    return Sensitivity(
        tuple(rows), measured.name, measured.unit, measured.of_float, quantized,
        variants.evaluations,
    )  # fmt: skip


def _without(choices: Choices, layer: Layer) -> Choices:
    return {name: options for name, options in choices.items() if name != layer.name}


def _chosen(layers: list[Layer], patterns: Patterns | None) -> list[Layer]:
    if patterns is None:
        return layers
    names = [layer.name for layer in layers]
    if not isinstance(patterns, str | Iterable):
        raise JitPassesError(f"layers are globs, one or several, not {patterns!r}")
    for pattern in several(patterns):
        if not any(map(fit_of(pattern), names)):
            raise JitPassesError(f"layers: {pattern!r} fits none: {nearest(pattern, names)}")
    return [layer for layer in layers if fit_of(patterns)(layer.name)]
