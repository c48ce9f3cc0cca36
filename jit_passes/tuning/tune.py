"""A configuration with which the loss stays within a budget."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch

from ..configuration.configuration import Configuration
from ..configuration.file import write_configuration
from ..configuration.options import LayerOptions, TensorOptions
from ..errors import JitPassesError, count_of, nearest, without_folders
from ..logs import LOGGER, timed
from ..observers import Entropy, MinMax
from ..quantizers.base import Quantizer
from ..report.cost import Cost, file_size, latency_on
from ..stages.batches import InputFn, progress_bar
from ..targets import Target
from .metric import Metric, MetricFn
from .ranking import suspects
from .sensitivity import finite
from .variants import IN_FLOAT, Layer, Variants

OBJECTIVES = ("layers", "size", "latency")


def _everything(options: TensorOptions) -> LayerOptions:
    return LayerOptions(input=options, output=options)


# In the order in which they are preferred to float.
ALTERNATIVES = (
    _everything(TensorOptions(calibration=MinMax())),
    _everything(TensorOptions(calibration=Entropy())),
    LayerOptions(
        input=TensorOptions(bits=8), weight=TensorOptions(bits=8), output=TensorOptions(bits=8)
    ),
    LayerOptions(mode="dynamic"),
    LayerOptions(mode="weight_only"),
)


@dataclass(frozen=True)
class TunedLayer:
    """A layer that is otherwise than the rest.

    Attributes:
        name: of the operator, `layer1.0.conv1:conv2d`.
        operator: `aten::conv2d`.
        source: `file:line` of the model's code.
        options: what it has now; `keep_float` where nothing else was enough.
        without: the metric, measured during the search, with this layer as all others; below
            what the budget allows.
    """

    name: str
    operator: str
    source: str
    options: LayerOptions
    without: float


@dataclass(frozen=True)
class Tuned:
    """A configuration within the budget, and what it was found with; its text is YAML.

        tuned = jit_passes.tune(model, batches, budget=30)
        tuned.save("layers.yaml")
        quantized = jit_passes.quantize_script(model, batches, config="layers.yaml")

    Attributes:
        configuration: for `config=` of `quantize_script`, with the same target.
        layers: what is otherwise, in program order.
        of: how many layers there are.
        metric: name of what was measured; larger is better.
        unit: `dB` or "".
        of_float: the metric of the float model; inf for the SQNR.
        quantized: that with all layers quantized, without the configuration.
        score: that with the configuration; measured, not estimated.
        least: the lowest that the budget allows.
        evaluations: how many quantized models were measured.
    """

    configuration: Configuration
    layers: tuple[TunedLayer, ...]
    of: int
    metric: str
    unit: str
    of_float: float
    quantized: float
    score: float
    least: float
    evaluations: int

    @property
    def summary(self) -> str:
        """The result, in two lines."""
        shown = self._metric.shown
        return (
            f"{self.metric}: {shown(self.score)}, at least {shown(self.least)} asked for; "
            f"{shown(self.quantized)} with all layers quantized, {shown(self.of_float)} in float\n"
            f"{len(self.layers)} of {count_of(self.of, 'layer')} otherwise, found by measuring "
            f"{count_of(self.evaluations, 'model')}"
        )

    def __str__(self) -> str:
        shown = self._metric.shown
        rules = self.configuration.rules
        first = len(rules) - len(self.layers)
        comments = {}
        for number, layer in enumerate(self.layers, first):
            source = without_folders(layer.source)
            what = " of ".join(filter(None, (layer.operator, source)))
            comments[number] = f"{what}; as the others: {shown(layer.without)}"
        return write_configuration(self.configuration, self.summary, comments)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the YAML.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(str(self), encoding="utf-8", newline="\n")

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, which knows no infinity: None stands for one."""
        layers = [
            {"name": layer.name, "operator": layer.operator, "source": layer.source,
             "without": finite(layer.without)}
            for layer in self.layers
        ]  # fmt: skip
        fields = {k: finite(v) for k, v in vars(self).items()}
        return {**fields, "configuration": str(self), "layers": layers}

    @property
    def _metric(self) -> Metric:
        return Metric(self.metric, lambda _: self.score, self.of_float, self.unit)


@timed
def tune(
    model: torch.jit.ScriptModule,
    data: Iterable[Any] | None,
    metric: MetricFn | None = None,
    *,
    budget: float,
    objective: str = "layers",
    alternatives: Sequence[LayerOptions] = ALTERNATIVES,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    config: Any = None,
    mode: str | None = None,
    method: str = "forward",
    input_fn: InputFn | None = None,
    resume: Any = None,
    progress: bool | None = None,
) -> Tuned:
    """Find the few layers that need float, or other options, for the loss to stay in a budget.

    With m(F) the metric of the model in which the layers F are in float, and all others quantized:

    1. One comparison with the float model puts the layers in an order: see `compare`, own errors.
    2. The shortest beginning F of that order with m(F) within the budget is found by doubling, then
       by halving.
    3. Halves, quarters, ... of F, and at last single layers, are quantized again where the budget
       allows it. So none of what stays can be taken out of F, if more float is never worse.
    4. Each layer of F gets the first alternative that keeps to the budget, in place of float.

    With the objective "size" or "latency", step 3 begins with the layers that cost most in float,
    and step 4 takes what costs least of float and all alternatives that keep to the budget. Costs
    are measured: the bytes of a variant's file, the median time of calls on the first batch.

    So about 2 log2 |F| + |F| (1 + alternatives) quantized models are measured, where trying each
    set of layers L takes 2^|L|. Variants that come to the same are measured once, and those that
    the target cannot do not at all. The result is measured. It is the same each time, but for the
    objective "latency", since times are not.

    Args:
        model: scripted, traced or loaded, in eval mode. It is not touched.
        data: batches, as for `calibrate`; see `sensitivity`. None with a metric, if nothing needs
            data.
        metric: a function that takes a model and returns a number, larger is better; of a loss,
            its negative. None for the SQNR of the output on the data, in dB.
        budget: with a metric, by how much it may be below that of the float model; without one,
            the least SQNR in dB.
        objective: "layers" for few layers that are otherwise; "size" for a small file; "latency"
            for a fast model, on this machine, which needs data and should do nothing else.
        alternatives: options for layers that cost too much, the most wanted first; float comes
            last. By default other calibrations, 8 bits, the modes dynamic and weight_only. () for
            float only.
        quantizer: as in `quantize_script`; one of a backend.
        target: as in `quantize_script`.
        config: as in `quantize_script`; what it says holds for all
            layers that are not found.
        mode: as in `quantize_script`.
        method: as in `quantize_script`.
        input_fn: makes a batch of inputs out of what `data` gives.
        resume: a file to which scores are written as they are measured; a run that was interrupted
            goes on from it.
        progress: a progress bar; None for one on terminals only.

    Raises:
        JitPassesError: what `sensitivity` raises; the budget is no number from 0 on; the objective
            is unknown, or "latency" without data.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget >= 0:
        raise JitPassesError(
            f"a budget is a number from 0 on, the least SQNR in dB or a loss, not {budget!r}"
        )
    variants = Variants(
        model, data, metric, quantizer=quantizer, target=target, config=config, mode=mode,
        method=method, input_fn=input_fn, resume=resume, progress=progress,
    )  # fmt: skip
    measured = variants.metric
    least = float(budget) if metric is None else measured.of_float - budget
    cost = _cost_of(objective, variants)
    search = _Search(variants, least, tuple(alternatives), progress, cost)
    choices = search.run()
    layers = tuple(
        TunedLayer(
            layer.name, layer.operator, layer.source, choices[layer.name],
            search.without[layer.name],
        )
        for layer in variants.layers
        if layer.name in choices
    )  # fmt: skip
    return Tuned(
        variants.choose(choices), layers, len(variants.layers), measured.name,
        measured.unit, measured.of_float, variants.score({}), variants.score(choices), least,
        variants.evaluations,
    )  # fmt: skip


def _cost_of(objective: str, variants: Variants) -> Cost | None:
    """Return what measures the cost of a model; None where layers are counted."""
    if objective not in OBJECTIVES:
        close = nearest(objective, OBJECTIVES) if isinstance(objective, str) else ""
        words = ", ".join(OBJECTIVES)
        raise JitPassesError(f"an objective is one of {words}, not {objective!r}: {close}")
    if objective == "layers":
        return None
    if objective == "size":
        return file_size
    if not variants.data:
        raise JitPassesError("the objective latency is measured on data: pass data")
    return latency_on(variants.data[0], variants.method)


class _Search:
    """A search for few layers in float.

    Attributes:
        without: by layer, the score that ruled out that it is as the others.
    """

    def __init__(
        self, variants: Variants, least: float, alternatives: tuple[LayerOptions, ...],
        progress: bool | None, cost: Cost | None,
    ) -> None:  # fmt: skip
        self.variants, self.least, self.alternatives = variants, least, alternatives
        self.measure = cost
        self.without: dict[str, float] = {}
        self.kept: dict[str, LayerOptions] = {}
        self.bar = progress_bar("tune", progress, "model")

    def run(self) -> dict[str, LayerOptions]:
        """Return the options of the layers that cannot be as the others."""
        with self.bar(()) as self.shown:
            if self.enough({}):
                return {}
            order = suspects(self.variants)
            found = order[: self.shortest(order)]
            self.kept = dict.fromkeys((layer.name for layer in found), IN_FLOAT)
            LOGGER.info("tune: within the budget with %s in float", count_of(len(found), "layer"))
            # Without the last one, the budget is known not to be kept.
            self.put_back(found[-1:])
            self.put_back(self.costly_first(found[-2::-1]))
            for layer in self.variants.layers:
                if layer.name in self.kept:
                    self.cheapen(layer)
            return self.kept

    def enough(self, choices: dict[str, LayerOptions]) -> bool:
        """Say whether a variant keeps to the budget."""
        before = self.variants.evaluations
        score = self.variants.score(choices)
        self.shown.update(self.variants.evaluations - before)
        LOGGER.info("tune: %s with %s otherwise", self.variants.metric.shown(score), len(choices))
        return score >= self.least

    def shortest(self, order: Sequence[Layer]) -> int:
        """Return how many layers from the first one on are enough in float."""

        def holds(count: int) -> bool:
            return self.enough({layer.name: IN_FLOAT for layer in order[:count]})

        too_few, count = 0, 1
        while count < len(order) and not holds(count):  # with all of them it is the float model
            too_few, count = count, min(2 * count, len(order))
        while count - too_few > 1:
            middle = (count + too_few) // 2
            too_few, count = (too_few, middle) if holds(middle) else (middle, count)
        return count

    def put_back(self, layers: Sequence[Layer]) -> None:
        """Quantize those again that the budget allows, as many at once as possible."""
        if not layers:
            return
        names = {layer.name for layer in layers}
        fewer = {name: options for name, options in self.kept.items() if name not in names}
        if self.enough(fewer):
            self.kept = fewer
        elif len(layers) == 1:
            self.without[layers[0].name] = self.variants.score(fewer)
        else:
            half = len(layers) // 2
            self.put_back(layers[:half])
            self.put_back(layers[half:])

    def cheapen(self, layer: Layer) -> None:
        """Give a layer the first alternative to float that the budget allows, or the cheapest."""
        in_float = self.variants.plan(self.kept)
        best, least = self.kept, self.cost(self.kept)
        for options in self.alternatives:
            choices = {**self.kept, layer.name: options}
            plan = self.variants.plan(choices)
            if plan is None or plan == in_float or not self.enough(choices):
                continue
            if self.measure is None:
                self.kept = choices
                return
            if (cost := self.cost(choices)) < least:
                best, least = choices, cost
        self.kept = best

    def cost(self, choices: dict[str, LayerOptions]) -> float:
        """Return what a variant costs; 0 where layers are counted."""
        return 0.0 if self.measure is None else self.measure(self.variants.model_of(choices))

    def costly_first(self, layers: Sequence[Layer]) -> list[Layer]:
        """Sort layers by what each costs in float, the most first; equal ones stay in order."""
        costs = {layer.name: self.cost({layer.name: IN_FLOAT}) for layer in layers}
        return sorted(layers, key=lambda layer: -costs[layer.name])
