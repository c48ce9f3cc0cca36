"""Variants of a quantized model, in which single layers have other options, and their scores."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..configuration.configuration import Configuration, Rule
from ..configuration.options import LayerOptions
from ..configuration.selector import Selector
from ..errors import JitPassesError, JitPassesWarning, warn_again
from ..graph.modules import only
from ..profile import Profile
from ..profile.fill import fill_own, needs_more_than_ranges
from ..profile.run import profile_of
from ..quantizers.backend import BackendQuantizer
from ..quantizers.base import Quantizer
from ..report.inspection import Inspection, inspection_of
from ..stages.annotate import FROZEN, annotate, choose_quantizer, entered
from ..stages.batches import InputFn, batches, cloned
from ..stages.calibrate import calibrate_alone
from ..stages.convert import convert, plan_of
from ..stages.lower import lower
from ..stages.module import ALREADY, Report
from ..stages.prepare import prepare_for
from ..stages.seen import needs_data
from ..stages.staged import Staged
from ..targets import Target
from .journal import Journal
from .measuring import Measuring, Scored
from .metric import Metric, MetricFn, metric_of

IN_FLOAT = LayerOptions(keep_float=True)
Choices = Mapping[str, LayerOptions]


@dataclass(frozen=True)
class Layer:
    """An operator on integers, and the operators computed together with it.

    Attributes:
        name: of the operator, `layer1.0.conv1:conv2d`.
        operator: `aten::conv2d`.
        source: `file:line` of the model's code.
        bits: see `OperatorRecord`.
        parts: names of the operator and the others, as a relu behind it.
    """

    name: str
    operator: str
    source: str
    bits: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class _Made:
    """A variant that has no ranges yet; plan and `is_possible` as in `Scored`."""

    choices: Choices
    prepared: torch.jit.ScriptModule
    plan: str
    is_possible: bool


def _named(layer: Layer) -> tuple[str, ...]:
    """Return globs that fit the results of the layer alone."""
    return tuple(map(only, layer.parts))


def digest_of(data: Any) -> str:
    """Return a text that is equal for equal batches."""
    digest = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            digest.update(f"{item.dtype}{list(item.shape)}".encode())
            values = item.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(values.numpy().tobytes())
        elif isinstance(item, dict):
            add(list(item.items()))
        elif isinstance(item, tuple | list):
            digest.update(f"{len(item)}".encode())
            for part in item:
                add(part)
        else:
            digest.update(repr(item).encode())

    add(data)
    return digest.hexdigest()[:16]


def layers_of(inspection: Inspection) -> list[Layer]:
    """Return the layers that are quantized, in program order, except ones quantized before."""
    rows = [r for r in inspection if (r.dtype == "int8" or r.bits) and r.why != ALREADY]
    parts: dict[str, list[str]] = {}
    for row in rows:
        parts.setdefault(row.part_of or row.name, []).append(row.name)
    return [
        Layer(row.name, row.kind, row.source, row.bits, tuple(parts[row.name]))
        for row in rows
        if not row.part_of
    ]


def choose_configurable(
    quantizer: Quantizer | None, target: str | Target, config: Any, mode: str | None, lacks: str
) -> tuple[Target, BackendQuantizer]:
    """Return the backend and a quantizer that takes configurations; see `choose_quantizer`.

    Raises:
        JitPassesError: the quantizer takes none; `lacks` says in the message what it does not take.
    """
    backend, chosen = choose_quantizer(quantizer, target, config, mode)
    if not isinstance(chosen, BackendQuantizer):
        why = f"{type(chosen).__name__} takes no {lacks}"
        raise JitPassesError(
            f"{why}: pass a quantizer of a backend, or none",
            command=f"{why}: choose another --target",
        )
    return backend, chosen


class Variants:
    """Quantizes a model again and again, each time with other options for some layers.

    A variant is exactly the result of `quantize_script` with these options. The float model runs
    over the data once: its profile stands for the data in all variants. Variants with equal plans,
    that is with the same values quantized in the same way, are measured once.

    Attributes:
        layers: the quantized layers, in program order.
        metric: the measure of variants.
        data: the batches, which are kept; empty without data.
        how: the other arguments that make these variants, for workers.
        workers: that measure variants; None for this process.
        evaluations: how many variants were measured.
        seconds: their time.

    Raises:
        JitPassesError: the quantizer takes no options for single layers; nothing would be
            quantized; data or the metric are not as they should be.
    """

    def __init__(
        self, model: torch.jit.ScriptModule, data: Iterable[Any] | None,
        metric: MetricFn | Metric | None,
        *, quantizer: Quantizer | None, target: str | Target, config: Any, mode: str | None,
        method: str, input_fn: InputFn | None, resume: Any, progress: bool | None,
        profile: Profile | None = None,
    ) -> None:  # fmt: skip
        backend, chosen = choose_configurable(
            quantizer, target, config, mode, "options for single layers, so there are no variants"
        )
        if data is None and metric is None:
            raise JitPassesError(
                "without a metric of your own the outputs on data are compared: pass data, an "
                "iterable of batches"
            )
        self.model, self.method = model, method
        # A target by its name here: "auto" may be another one on another machine.
        self.how = {
            "metric": metric, "quantizer": quantizer, "config": config, "mode": mode,
            "method": method, "target": backend.name if isinstance(target, str) else target,
        }  # fmt: skip
        self.workers: Measuring | None = None
        self._next: _Made | None = None  # a plan is asked for ahead of its score
        given = [] if data is None else list(batches(data, input_fn))
        self.data = [kwargs or args for args, kwargs in given]
        chosen = chosen if self.data else chosen.without_data()
        self._quantizer, self._target = chosen, backend
        self._staged = Staged(
            chosen.configuration.stages, model, self.data or None, False, chosen, progress=False
        )
        change = self._staged.change
        self._mode = entered(FROZEN.enter(model, method))
        self.annotated = annotate(model, method, self._mode, chosen, backend, change=change)
        self.layers = layers_of(inspection_of(self.annotated, backend))
        if not self.layers:
            why = "nothing of the model would be quantized"
            raise JitPassesError(
                f"{why}; jit_passes.inspect(model) says why",
                command=f"{why}; `jit-passes inspect` says why",
            )
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", JitPassesWarning)
            base = self._prepared({})
        warn_again(told)
        self._told = {str(warning.message) for warning in told}
        self._profile = profile
        if profile is None and needs_data(base):
            if data is None:
                raise JitPassesError(
                    "ranges come from calibration data, an iterable of batches: pass data",
                    command="ranges come from --data or --random",
                )
            copies = map(cloned, self.data)  # a model may write into its inputs
            self._profile = profile_of(
                self.annotated.module, method, copies, progress=progress, origin=model,
                backend=backend,
            )  # fmt: skip
        self.metric = metric_of(metric, model, method, dict(enumerate(given)))
        self.evaluations, self.seconds = 0, 0.0
        self._journal = (
            resume if isinstance(resume, Journal) else Journal(resume, self._about(base))
        )

    @property
    def profile(self) -> Profile | None:
        """The profile that stands for the data, if anything needs data."""
        return self._profile

    @property
    def known(self) -> dict[str, float]:
        """The scores so far, by plan."""
        return self._journal.scores

    def choose(self, choices: Choices) -> Configuration:
        """Return the configuration with options for some layers, by name, one rule for each."""
        return self._configured(
            Rule(Selector(value=_named(layer)), choices[layer.name])
            for layer in self.layers
            if layer.name in choices
        ).configuration

    def _configured(self, rules: Iterable[Rule]) -> BackendQuantizer:
        return self._quantizer.configured(Configuration(rules=tuple(rules)))

    def plan(self, choices: Choices) -> str | None:
        """Return a text that is equal for variants with equal results.

        None if the target cannot do that: it would leave one of these layers in float.
        """
        if self.workers is not None:
            return self.workers.plan(choices)
        try:
            self._next = made = self._made(choices)
        except JitPassesError:
            return None
        return made.plan if made.is_possible else None

    def ahead(self, several: Iterable[Choices]) -> None:
        """Let workers, if there are any, begin with variants that may be asked for soon."""
        if self.workers is not None:
            self.workers.ahead(several)

    def score(self, choices: Choices) -> float:
        """Return the metric of a variant; larger is better."""
        begin = time.perf_counter()
        found = (self.measured if self.workers is None else self.workers.score)(choices)
        if found.plan and found.plan not in self._journal.scores:
            self.seconds += time.perf_counter() - begin
            self.evaluations += 1
            self._journal.add(found.plan, found.score)
        return found.score

    def measured(self, choices: Choices) -> Scored:
        """Return plan and metric of a variant."""
        made, self._next = self._next, None
        if made is None or made.choices != choices:
            made = self._made(choices)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitPassesWarning)
            if not made.plan:
                score = self.metric.of_float
            elif made.plan in self._journal.scores:
                score = self._journal.scores[made.plan]
            else:
                score = self.metric.measure(lower(self.reference(made.prepared), progress=False))
        return Scored(made.plan, made.is_possible, score)

    def _made(self, choices: Choices) -> _Made:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", JitPassesWarning)
            prepared = self._prepared(choices)
        plan, stages = plan_of(prepared), self._staged.options.given()
        if plan and stages:
            plan = f"{plan} {json.dumps(stages)}"
        is_possible = {str(warning.message) for warning in told} <= self._told
        return _Made(dict(choices), prepared, plan, is_possible)

    def model_of(self, choices: Choices) -> torch.jit.ScriptModule:
        """Return a variant, as `quantize_script` would make it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitPassesWarning)
            return lower(self.reference(self._prepared(choices)), progress=False)

    def reference(self, prepared: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
        """Return the reference model of a prepared one.

        The data run again where a range goes by numbers that no profile has, and where other layers
        are static than in the model that was profiled: targets may write operators in other forms.
        """
        if needs_data(prepared):
            report = Report.read(prepared)
            assert report is not None
            same = report.made.get("forms") == self.annotated.made.get("forms")
            ranges = not self.data or not needs_more_than_ranges(prepared, self.method)
            if same and ranges and self._profile is not None:
                fill_own(prepared, self._profile)
            else:
                calibrate_alone(prepared, map(cloned, self.data), progress=False)
        return convert(self._staged.finished(prepared), progress=False)

    def _prepared(self, choices: Choices) -> torch.jit.ScriptModule:
        # A single rule for all layers with equal options: thousands are slow to look up one by one.
        names: dict[LayerOptions, list[str]] = {}
        for layer in self.layers:
            if layer.name in choices:
                names.setdefault(choices[layer.name], []).extend(_named(layer))
        rules = (Rule(Selector(value=tuple(found)), options) for options, found in names.items())
        quantizer = self._configured(rules)
        return prepare_for(
            self.model, self._target, quantizer, change=self._staged.change, method=self.method,
            mode=self._mode,
        )  # fmt: skip

    def prepared(self) -> torch.jit.ScriptModule:
        """Return the prepared model in which all layers are as the configuration says."""
        return self._prepared({})

    def _about(self, base: torch.jit.ScriptModule) -> dict[str, Any]:
        """Return the inputs of scores: model and data by the profile's digest."""
        report = Report.read(base)
        assert report is not None
        digest = plan_of(base) if self._profile is None else self._profile.digest
        return {
            "data": f"{digest} {digest_of(self.data)}" if self.data else digest,
            "target": report.target,
            "metric": self.metric.name,
            "number of the float model": self.metric.of_float,
            # Rounded, since sums depend on the number of threads.
            "power of the outputs": f"{self.metric.power or 0:.4e}",
        }
