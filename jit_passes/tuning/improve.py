"""A recipe with less loss, of steps that each helped on data held back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from html import escape
from numbers import Real
from typing import Any

import torch

from ..configuration.checks import OptionError
from ..configuration.configuration import Configuration
from ..configuration.file import write_configuration
from ..configuration.options import LayerOptions
from ..errors import JitPassesError, aligned, count_of, first_line, warn
from ..files import write_whole
from ..logs import LOGGER, timed
from ..quantizers.base import Quantizer
from ..report.provenance import note
from ..stages.batches import InputFn, progress_bar
from ..tables import for_json, html_table
from ..targets import Target
from ..workers import check_executor
from .clock import Clock, OutOfTime
from .measuring import measuring, measuring_recipes
from .metric import MetricFn, score_text
from .recipes import NotPossible, Recipes
from .search import Search, objective_of
from .steps import STEPS, Step
from .tune import ALTERNATIVES, check_budget
from .variants import Variants

WORTH = 0.1  # dB; a smaller gain on few batches is chance
LAYERS = "layers changed"


@dataclass(frozen=True)
class ImprovedStep:
    """A step that was tried.

    Attributes:
        name: of the step, `equalize: weights`.
        before: the metric without it, with the steps kept so far.
        after: the metric with it; None where it could not be done.
        kept: whether it is a part of the recipe.
        seconds: its time; 0 where the score comes from a file.
        why: why it could not be done, or is left out; "" otherwise.
    """

    name: str
    before: float
    after: float | None
    kept: bool
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Improved:
    """A quantized model, the recipe that makes it, and the steps tried; its text is YAML.

        improved = jit_passes.improve(model, batches)
        torch.jit.save(improved.model, "int8.pt")
        improved.save("recipe.yaml")
        int8 = jit_passes.quantize_script(model, batches, config="recipe.yaml")  # equal

    Attributes:
        model: the quantized model, made by the recipe.
        configuration: the recipe: for `config=` of `quantize_script`, with the same target.
        steps: in the order in which they were tried.
        metric: name of the measured number; larger is better.
        unit: `dB` or "".
        of_float: the metric of the float model; inf for the SQNR.
        quantized: the metric by default, before the first step.
        score: the metric with the recipe.
        least: the metric that the budget asks for; None without a budget.
        calibrating: how many batches the steps were calibrated with.
        held_back: how many others of the data they were measured with.
        batches: how many batches the model was calibrated with.
        seconds: the time of all.
        is_complete: False where the time was over before all steps were tried.
        why: why the model was not calibrated with all batches; "" where it was.
    """

    model: torch.jit.ScriptModule = field(repr=False)
    configuration: Configuration
    steps: tuple[ImprovedStep, ...]
    metric: str
    unit: str
    of_float: float
    quantized: float
    score: float
    least: float | None
    calibrating: int
    held_back: int
    batches: int
    seconds: float
    is_complete: bool
    why: str = ""

    @property
    def summary(self) -> str:
        """The result, in two lines, and a third one where batches were held back."""
        shown = partial(score_text, unit=self.unit)
        asked = "" if self.least is None else f", at least {shown(self.least)} asked for"
        tried = count_of(len(self.steps), "step")
        kept = sum(step.kept for step in self.steps)
        missing = "" if self.is_complete else "; the time was over before all were tried"
        of_all = ""
        if self.held_back:
            has = f"measured with {self.calibrating} of {self.calibrating + self.held_back} batches"
            in_model = f"these alone: {self.why}" if self.why else "all"
            of_all = f"\n{has}; the model has {in_model}"
        on = " on batches held back" if self.held_back else ""
        return (
            f"{self.metric}{on}: {shown(self.score)}{asked}; "
            f"{shown(self.quantized)} before, {shown(self.of_float)} in float\n"
            f"{kept} of {tried} kept{missing}{of_all}"
        )

    @property
    def account(self) -> str:
        """The result and all steps, without times, so equal runs have equal texts."""
        lines = aligned(self.table(seconds=False)) if self.steps else ""
        return f"{self.summary}\n{lines}".rstrip()

    def table(self, seconds: bool = True) -> list[tuple[str, ...]]:
        """Return head and rows as texts, with or without the times."""
        head = ("step", "before", "after", "", "s")
        rows = [head, *map(self._cells, self.steps)]
        return rows if seconds else [row[:-1] for row in rows]

    def __str__(self) -> str:
        """The recipe, with the account in front."""
        return write_configuration(self.configuration, self.account)

    def _repr_html_(self) -> str:
        head, *rows = self.table()
        return f"{html_table(head, rows, self.summary)}<pre>{escape(str(self))}</pre>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recipe.

        Raises:
            JitPassesError: the file cannot be written; this is an OSError too.
        """
        write_whole(path, str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, which knows no infinity: None stands for one."""
        steps = [{k: for_json(v) for k, v in asdict(step).items()} for step in self.steps]
        fields = {k: for_json(v) for k, v in vars(self).items() if k != "model"}
        return {**fields, "configuration": str(self), "steps": steps}

    def _cells(self, step: ImprovedStep) -> tuple[str, ...]:
        shown = partial(score_text, unit=self.unit)
        after = "" if step.after is None else shown(step.after)
        what = "kept" if step.kept else step.why
        return step.name, shown(step.before), after, what, f"{step.seconds:.1f}"


@timed
def improve(
    model: torch.jit.ScriptModule,
    data: Iterable[Any],
    metric: MetricFn | None = None,
    *,
    budget: float | None = None,
    time: float | None = None,
    held_back: Iterable[Any] | None = None,
    alternatives: Sequence[LayerOptions] = ALTERNATIVES,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    config: Any = None,
    mode: str | None = None,
    strict: bool = False,
    method: str = "forward",
    input_fn: InputFn | None = None,
    resume: Any = None,
    progress: bool | None = None,
    executor: Executor | None = None,
) -> Improved:
    """Quantize a model with less loss: by the tools that help it, each checked on data held back.

    Tried are, in the order of cost: calibration methods of activations; ranges of weights by error;
    `smooth` of several strengths, where there are layer norms; `equalize`; bias correction, fast or
    none; codes of weights by `round_weights`; sequential bias correction. Among alternatives the
    best is taken. A step is kept where the loss on the batches held back falls, and the next ones
    are measured on top of it. At last each kept step is left out again, and stays out where the
    loss does not grow. The search ends as soon as the budget is kept, or the time is over. Where
    all steps are not enough for the budget, single layers get other options, as in `tune`.

    In the end the recipe makes the model with all batches. If this model misses a budget that is
    kept without the batches held back, the result is the model without them.

    Options of your configuration hold: no other values are tried for them.

    Args:
        model: scripted, traced or loaded, in eval mode. The model does not change.
        data: batches, as for `calibrate`. Without a metric and `held_back`, every fourth one, at
            least the last, is held back, and the others calibrate. All batches are kept in memory.
        metric: a function of a copy of a model that returns a number, larger is better, of data of
            its own; of a loss, its negative. None for the SQNR of the output, in dB, on the batches
            held back.
        budget: with a metric, by how much it may be below the float model's; without a metric, the
            least SQNR in dB. None to try all steps, and to leave layers as they are.
        time: seconds after which no further step begins; None for no limit.
        held_back: batches to check steps with; then all of `data` calibrates.
        alternatives: options of single layers, as in `tune`; () for float only.
        quantizer: as in `quantize_script`; one of a backend.
        target: as in `quantize_script`.
        config: as in `quantize_script`; a recipe too.
        mode: as in `quantize_script`.
        strict: as in `quantize_script`; a step with which an operator stays in float is not taken.
        method: as in `quantize_script`.
        input_fn: makes a batch of inputs out of an item of `data`.
        resume: a file for the scores, written as they are measured; a run that was interrupted goes
            on from it.
        progress: a progress bar; None for one on terminals only.
        executor: as in `tune`: the steps of one kind are measured side by side.

    Returns:
        The model, its recipe, and for each step the loss before and after.

    Raises:
        JitPassesError: the model or the data do not allow it; there is a single batch, and nothing
            to hold back; the metric fails, or gives no number; an option is out of range; the file
            is of another run; a worker fails twice, or data or the metric cannot be sent to
            workers.

    Warns:
        JitPassesWarning: as `quantize_script`, for the result; the budget is missed.
    """
    check_executor(executor)
    if budget is not None:
        check_budget(budget)
    is_number = isinstance(time, Real) and not isinstance(time, bool)
    if time is not None and not (is_number and time >= 0):
        raise JitPassesError(f"time is a number of seconds from 0 on, not {time!r}")
    clock = Clock(time)
    recipes = Recipes(
        model, data, metric, held_back, quantizer=quantizer, target=target, config=config,
        mode=mode, method=method, input_fn=input_fn, resume=resume, strict=strict,
    )  # fmt: skip
    measured = recipes.metric
    least = budget
    if budget is not None and metric is not None:
        least = measured.of_float - budget
    found = _Improving(recipes, least, clock, progress)
    with measuring_recipes(recipes, executor):
        found.run()
    if not found.is_enough and least is not None and not clock.is_over:
        options: dict[str, Any] = {"quantizer": quantizer, "target": target, "method": method}
        found.change_layers(model, tuple(alternatives), options, executor)
    final = recipes.final(found.recipe, least if found.is_enough else None)
    improved = Improved(
        final.model, found.recipe, tuple(found.steps), measured.name, measured.unit,
        measured.of_float, found.quantized, found.score, least, len(recipes.calibrating),
        len(recipes.given) - len(recipes.calibrating), final.batches, clock.seconds,
        found.is_complete, final.why,
    )  # fmt: skip
    if least is not None and found.score < least:
        warn(f"improve misses the budget: {improved.summary.splitlines()[0]}")
    note(final.model, improved=improved.account)
    return improved


class _Improving:
    """The recipe so far.

    Attributes:
        recipe, score: the best so far.
        quantized: the score before the first step.
        steps: tried so far.
        is_complete: whether all were tried that the budget asks for.
    """

    def __init__(
        self, recipes: Recipes, least: float | None, clock: Clock, progress: bool | None
    ) -> None:
        self._recipes, self._least, self._clock = recipes, least, clock
        self._progress = progress
        self._bar = progress_bar("improve", progress, "step")
        self.recipe = recipes.base
        self.score = recipes.score(self.recipe)
        self.quantized = self.score
        self.steps: list[ImprovedStep] = []
        self.is_complete = True
        self._kept: list[Step] = []

    @property
    def is_enough(self) -> bool:
        """Whether the budget is kept."""
        return self._least is not None and self.score >= self._least

    def run(self) -> None:
        """Try all steps, until the budget is kept or the time is over."""
        kinds = self._recipes.kinds
        rows = [[step for step in row if not step.needs or step.needs in kinds] for row in STEPS]
        with self._bar(()) as shown:
            shown.total = sum(map(len, rows))
            for row in rows:
                if self.is_enough:
                    return
                self._try(row, shown)
            if not self.is_enough:
                self._leave_out(shown)

    def _try(self, row: Sequence[Step], shown: Any) -> None:
        """Keep the best of some steps, if the loss falls."""
        before, start = self.score, self.recipe
        best: Step | None = None
        recipes = [self._possible(step, start) for step in row]
        self._recipes.ahead(recipe for recipe in recipes if recipe is not None)
        for step, recipe in zip(row, recipes, strict=True):
            if recipe is not None and self._clock.is_over:
                self.is_complete = False
            elif recipe is not None:
                shown.set_postfix_str(f"{step.name}; {self._recipes.metric.shown(self.score)}")
                if self._measure(step.name, recipe, before):
                    best = step
            shown.update()
        if best is not None:
            self._kept.append(best)
            self._mark(best.name, kept=True)

    def _leave_out(self, shown: Any) -> None:
        """Leave out each step again without which the loss is no larger.

        A step that helped at first may harm later ones.
        """
        shown.total += len(self._kept)
        for step in list(self._kept):
            rest = [kept for kept in self._kept if kept is not step]
            recipe, name = Step("").after(rest, self._recipes.base), f"without {step.name}"
            if recipe == self.recipe:
                self._kept = rest
                self._mark(step.name, kept=False, why="replaced later")
            elif self._clock.is_over:
                self.is_complete = False
            else:
                shown.set_postfix_str(f"{name}; {self._recipes.metric.shown(self.score)}")
                if self._measure(name, recipe, self.score, shorter=True):
                    self._kept = rest
                    self._mark(step.name, kept=False, why="left out later")
                    self._mark(name, kept=False, why="left out")
            shown.update()

    def _possible(self, step: Step, start: Configuration) -> Configuration | None:
        """Return the recipe with a step; None where the caller's options leave no room for it."""
        try:
            recipe = step.after(self._kept, self._recipes.base)
            recipe.everywhere.check_mode()
        except OptionError:
            return None
        return None if recipe == start else recipe

    def _measure(
        self, name: str, recipe: Configuration, before: float, shorter: bool = False
    ) -> bool:
        """Measure a recipe, and say whether it is the best so far; a shorter one may be as good."""
        begin = self._clock.seconds
        try:
            score = self._recipes.score(recipe)
        except NotPossible as error:
            self._note(name, before, None, begin, first_line(error))
            return False
        self._note(name, before, score, begin, "changes nothing" if score == before else "")
        worth = WORTH if self._recipes.metric.unit else 0.0
        is_best = score >= before if shorter else score > max(before + worth, self.score)
        if is_best:
            self.recipe, self.score = recipe, score
        return is_best

    def _note(self, name: str, before: float, after: float | None, begin: float, why: str) -> None:
        seconds = self._clock.seconds - begin
        self.steps.append(ImprovedStep(name, before, after, False, seconds, why))
        shown = "not possible" if after is None else self._recipes.metric.shown(after)
        LOGGER.info("improve: %s: %s", name, shown)

    def _mark(self, name: str, *, kept: bool, why: str = "") -> None:
        """Mark the last step of a name."""
        number = max(n for n, step in enumerate(self.steps) if step.name == name)
        self.steps[number] = replace(self.steps[number], kept=kept, why=why)

    def change_layers(
        self, model: torch.jit.ScriptModule, alternatives: tuple[LayerOptions, ...],
        options: dict[str, Any], executor: Executor | None,
    ) -> None:  # fmt: skip
        """Give single layers other options, as `tune` does, so that the budget is kept."""
        assert self._least is not None
        begin, before = self._clock.seconds, self.score
        variants = Variants(
            model, self._recipes.calibrating, self._recipes.metric, config=self.recipe, mode=None,
            input_fn=None, resume=self._recipes.journal, progress=self._progress, **options,
        )  # fmt: skip
        objective = objective_of("layers", variants)
        try:
            with measuring(variants, executor):
                search = Search(
                    variants, self._least, alternatives, objective, self._progress, self._clock
                )
                choices = search.run().choices
        except OutOfTime:
            self.is_complete = False
            self._note(LAYERS, before, None, begin, "the time was over")
            return
        name = f"{LAYERS}: {len(choices)} of {len(variants.layers)}"
        if self._measure(name, variants.choose(choices), before):
            self._mark(name, kept=True)
