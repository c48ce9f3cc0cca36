"""A configuration with which the loss stays within a budget."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import torch

from ..configuration.configuration import Configuration
from ..configuration.file import write_configuration
from ..configuration.options import LayerOptions, TensorOptions
from ..errors import JitPassesError, count_of, without_folders
from ..files import write_whole
from ..logs import timed
from ..observers import Entropy, MinMax
from ..quantizers.base import Quantizer
from ..stages.batches import InputFn
from ..tables import for_json
from ..targets import Target
from ..workers import check_executor
from .measuring import measuring
from .metric import MetricFn, score_text
from .search import Objective, Search, objective_of
from .variants import Variants


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
        options: its options now; `keep_float` where nothing else was enough.
        without: the metric, measured during the search, with this layer as all others; it is below
            `Tuned.least`.
        extra: with the objective "size" or "latency", by how many bytes or seconds the model rises
            where this layer alone is in float.
    """

    name: str
    operator: str
    source: str
    options: LayerOptions
    without: float
    extra: float | None = None


@dataclass(frozen=True)
class Tuned:
    """A configuration within the budget, and the search's data; its text is YAML.

        tuned = jit_passes.tune(model, batches, budget=30)
        tuned.save("layers.yaml")
        quantized = jit_passes.quantize_script(model, batches, config="layers.yaml")

    Attributes:
        configuration: for `config=` of `quantize_script`, with the same target.
        layers: the layers with other options, in program order.
        of: how many layers there are.
        metric: name of the measured number; larger is better.
        unit: `dB` or "".
        of_float: the metric of the float model; inf for the SQNR.
        quantized: the metric with all layers quantized, without the configuration.
        score: the metric with the configuration; measured, not estimated.
        least: the lowest metric that the budget allows.
        evaluations: how many quantized models were measured.
        objective: "layers", "size" or "latency".
        costs: with the objective "size" or "latency", the bytes of the file or the seconds of a
            call, with all layers quantized and with the configuration.
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
    objective: str = "layers"
    costs: tuple[float, float] | None = None

    @property
    def summary(self) -> str:
        """The result, in two lines, and one of costs."""
        shown = partial(score_text, unit=self.unit)
        lines = (
            f"{self.metric}: {shown(self.score)}, at least {shown(self.least)} asked for; "
            f"{shown(self.quantized)} with all layers quantized, {shown(self.of_float)} in float\n"
            f"{len(self.layers)} of {count_of(self.of, 'layer')} changed, found by measuring "
            f"{count_of(self.evaluations, 'model')}"
        )
        if self.costs is None:
            return lines
        before, after = map(Objective(self.objective).shown, self.costs)
        return f"{lines}\n{self.objective}: {after}; {before} with all layers quantized"

    def __str__(self) -> str:
        shown = partial(score_text, unit=self.unit)
        rules = self.configuration.rules
        first = len(rules) - len(self.layers)
        comments = {}
        for number, layer in enumerate(self.layers, first):
            source = without_folders(layer.source)
            what = " of ".join(filter(None, (layer.operator, source)))
            comments[number] = f"{what}; as the others: {shown(layer.without)}"
            if layer.extra is not None:
                more = Objective(self.objective).shown(layer.extra, "+")
                comments[number] += f"; in float: {more}"
        return write_configuration(self.configuration, self.summary, comments)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the YAML.

        Raises:
            JitPassesError: the file cannot be written; this is an OSError too.
        """
        write_whole(path, str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, which knows no infinity: None stands for one."""
        layers = [
            {"name": layer.name, "operator": layer.operator, "source": layer.source,
             "without": for_json(layer.without), "extra": layer.extra}
            for layer in self.layers
        ]  # fmt: skip
        fields = {k: for_json(v) for k, v in vars(self).items()}
        return {**fields, "configuration": str(self), "layers": layers}


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
    executor: Executor | None = None,
) -> Tuned:
    """Find the few layers that need float, or other options, for the loss to stay in a budget.

    With m(F) the metric of the model in which the layers F are in float, and all others quantized:

    1. A comparison with the float model puts the layers in an order: see `compare`, own errors. 2.
    The shortest beginning F of that order with m(F) within the budget is found by doubling, then
       by halving.
    3. Halves, quarters, ... of F, and at last single layers, are quantized again where the budget
       allows it. So each layer that stays in F is needed there, if more float is never worse.
    4. Each layer of F gets the first alternative that keeps to the budget, in place of float.

    With the objective "size" or "latency", each layer's cost is measured, with this layer alone in
    float: the additional bytes of the file, or the additional time of calls on the first batch
    (medians). Steps 2 and 3 are done three times: in that order, in the order of noise over cost,
    and in the order of cost alone; step 3 begins with the costly layers. The result whose model is
    cheapest, as measured, counts. Step 4 then takes the cheapest of float and all alternatives that
    keep to the budget.

    So about 2 log2 |F| + |F| (1 + alternatives) quantized models are measured, where trying each
    set of layers L takes 2^|L|. Equal variants are measured once, and variants that the target
    cannot do are left out. The score of the result is measured too. Two runs have equal results,
    except with the objective "latency", since times differ.

    Args:
        model: scripted, traced or loaded, in eval mode. The model does not change.
        data: batches, as for `calibrate`; see `sensitivity`. None with a metric, if nothing needs
            data.
        metric: a function of a copy of a model that returns a number, larger is better; of a loss,
            its negative. None for the SQNR of the output on the data, in dB.
        budget: with a metric, by how much it may be below the float model's; without a metric, the
            least SQNR in dB.
        objective: "layers" for few layers that are otherwise; "size" for a small file; "latency"
            for a fast model, on this machine, which needs data and should do nothing else.
        alternatives: options for layers that cost too much, the most wanted first; float comes
            last. By default other calibrations, 8 bits, the modes dynamic and weight_only. () for
            float only.
        quantizer: as in `quantize_script`; one of a backend.
        target: as in `quantize_script`.
        config: as in `quantize_script`; it holds for all layers that are not found.
        mode: as in `quantize_script`.
        method: as in `quantize_script`.
        input_fn: makes a batch of inputs out of an item of `data`.
        resume: a file for the scores, written as they are measured; a run that was interrupted goes
            on from it.
        progress: a progress bar; None for one on terminals only.
        executor: of `concurrent.futures`, whose workers measure; the result and the file of
            `resume` are equal to a run in one process, as far as arithmetic does not depend on the
            number of threads. Workers need to import the metric. None for this process.
            Costs are measured in this process.

    Raises:
        JitPassesError: the errors of `sensitivity`; the budget is no number from 0 on; the
            objective is unknown, or "latency" without data.
    """
    check_budget(budget)
    check_executor(executor)
    variants = Variants(
        model, data, metric, quantizer=quantizer, target=target, config=config, mode=mode,
        method=method, input_fn=input_fn, resume=resume, progress=progress,
    )  # fmt: skip
    measured = variants.metric
    least = float(budget) if metric is None else measured.of_float - budget
    aim = objective_of(objective, variants)
    search = Search(variants, least, tuple(alternatives), aim, progress)
    with measuring(variants, executor):
        found = search.run()
    layers = tuple(
        TunedLayer(
            layer.name, layer.operator, layer.source, found.choices[layer.name],
            found.without[layer.name], search.extra.get(layer.name),
        )
        for layer in variants.layers
        if layer.name in found.choices
    )  # fmt: skip
    costs = None if aim.measure is None else (search.cost({}), search.cost(found.choices))
    return Tuned(
        variants.choose(found.choices), layers, len(variants.layers), measured.name,
        measured.unit, measured.of_float, variants.score({}), variants.score(found.choices), least,
        variants.evaluations, objective, costs,
    )  # fmt: skip


def check_budget(budget: Any) -> None:
    """Raise an error for all but a number from 0 on.

    Raises:
        JitPassesError: it is none.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget >= 0:
        raise JitPassesError(
            f"a budget is a number from 0 on, the least SQNR in dB or a loss, not {budget!r}"
        )
