"""Recipes: configurations of a whole model, measured on data that took no part in calibration."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..configuration.configuration import Configuration
from ..configuration.file import write_configuration
from ..configuration.stages import StageOptions
from ..errors import JitPassesError, JitPassesWarning, first_line, warn, warn_again
from ..graph.view import GraphView
from ..in_order import quantize_method
from ..passes.subject import wrap
from ..profile.fingerprint import hash_of_weights
from ..quantizers.base import Quantizer
from ..stages.annotate import FROZEN
from ..stages.batches import Batch, InputFn, batches, cloned, is_held_back
from ..targets import Target
from ..workers import Tasks
from .journal import Journal
from .metric import Metric, MetricFn, metric_of, outputs
from .variants import choose_configurable, digest_of

HELD_BACK = (
    "a step is kept where it helps on batches that are held back, and there is one batch in all"
)


class NotPossible(JitPassesError):
    """A model cannot be quantized by a recipe."""


@dataclass(frozen=True)
class Final:
    """The model of a recipe.

    Attributes:
        model: quantized.
        batches: how many batches it was calibrated with.
        why: why they are not all; "" where they are.
    """

    model: torch.jit.ScriptModule
    batches: int
    why: str = ""


class Recipes:
    """Quantizes a model by one recipe after another, and measures the results.

    A result is exactly what `quantize_script` makes with the recipe and the batches.

    Attributes:
        base: the configuration that the caller asked for.
        metric: the measure of results.
        calibrating: the batches that recipes are measured with.
        given: all batches of the caller; more than `calibrating` where some are held back.
        model: the float model.
        how: the other arguments that make these recipes, for workers.
        workers: that measure recipes; None for this process.
        kinds: of the operators of the model.
        journal: of scores.

    Raises:
        JitPassesError: the quantizer takes no configuration; data or the metric are not as they
            should be.
    """

    def __init__(
        self, model: torch.jit.ScriptModule, data: Iterable[Any],
        metric: MetricFn | Metric | None,
        held_back: Iterable[Any] | None, *, quantizer: Quantizer | None, target: str | Target,
        config: Any, mode: str | None, method: str, input_fn: InputFn | None, resume: Any,
        strict: bool,
    ) -> None:  # fmt: skip
        backend, chosen = choose_configurable(
            quantizer, target, config, mode, "configuration, so there is nothing to try"
        )
        self.base = chosen.configuration
        self.model, self._method = model, method
        self.workers: Tasks | None = None
        self._target, self._quantizer, self._strict = backend, quantizer, strict
        graph = GraphView.of(wrap(FROZEN.enter(model, method)), method)
        self.kinds = {node.kind for node in graph.nodes}
        given = dict(enumerate(batches(data, input_fn)))
        calibrating = held = given
        if held_back is not None:
            held = dict(enumerate(batches(held_back, input_fn, what="held_back")))
        elif metric is None:
            calibrating, held = parted(given)
        self._unchecked = given
        self.calibrating, self.given = _items(calibrating), _items(given)
        self.metric = metric_of(metric, model, method, held)
        self.how = {
            "metric": self.metric, "quantizer": quantizer, "target": backend, "config": config,
            "mode": mode, "method": method, "strict": strict,
        }  # fmt: skip
        about = {
            "weights": hash_of_weights(graph, ()),
            "data": f"{digest_of(self.calibrating)} {digest_of(list(held.values()))}",
            "target": f"{backend.name} {digest_of(str(backend))}",
            "metric": self.metric.name,
            "number of the float model": self.metric.of_float,
        }
        self.journal = Journal(resume, about)

    def model_of(
        self, recipe: Configuration, items: list[Any] | None = None
    ) -> torch.jit.ScriptModule:
        """Return the result of `quantize_script` for the model and a recipe.

        Args:
            recipe: the configuration.
            items: batches to calibrate with; None for `calibrating`.

        Raises:
            NotPossible: the model, the data or the target do not allow it.
            JitPassesError: the float model does not take a batch.
        """
        try:
            return quantize_method(
                self.model, _Copies(items or self.calibrating), None, quantizer=self._quantizer,
                target=self._target, config=recipe, mode=None, stages=StageOptions(),
                strict=self._strict, progress=False, method=self._method, input_fn=None,
            )  # fmt: skip
        except JitPassesError as error:
            self._check_batches()
            raise NotPossible(str(error), command=error.command) from error

    def final(self, recipe: Configuration, least: float | None) -> Final:
        """Return the model of a recipe with all batches.

        If its metric is below `least` on the batches held back, or it cannot be made, return the
        model that was measured. Warnings are of the returned model.

        Raises:
            NotPossible: as `model_of`.
        """
        why = ""
        if len(self.given) > len(self.calibrating):
            try:
                model, told = self._warned(recipe, self.given)
                if least is None or self.metric.measure(model) >= least:
                    warn_again(told)
                    return Final(model, len(self.given))
                why = "with all of them the budget is missed"
            except NotPossible as error:
                why = f"with all of them it cannot be made: {first_line(error)}"
                count = f"{len(self.calibrating)} of {len(self.given)} batches"
                warn(f"improve makes the model with {count}: {why}")
        model, told = self._warned(recipe, self.calibrating)
        warn_again(told)
        return Final(model, len(self.calibrating), why)

    def score(self, recipe: Configuration) -> float:
        """Return the metric of a recipe.

        Raises:
            NotPossible: as `model_of`.
        """
        text = write_configuration(recipe)
        if text in self.journal.scores:
            return self.journal.scores[text]
        if self.workers is None:
            score = self.measured(recipe)
        else:
            found, why = self.workers.result(text, recipe)
            if found is None:
                raise NotPossible(why)
            score = found
        self.journal.add(text, score)
        return score

    def measured(self, recipe: Configuration) -> float:
        """Measure a recipe in this process."""
        return self.metric.measure(self._warned(recipe, self.calibrating)[0])

    def ahead(self, several: Iterable[Configuration]) -> None:
        """Let workers, if there are any, begin with recipes that will be asked for."""
        if self.workers is not None:
            texts = {write_configuration(recipe): recipe for recipe in several}
            known = self.journal.scores
            self.workers.ahead({t: recipe for t, recipe in texts.items() if t not in known})

    def _warned(
        self, recipe: Configuration, items: list[Any]
    ) -> tuple[torch.jit.ScriptModule, list[warnings.WarningMessage]]:
        """Return the model of a recipe, and its warnings."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", JitPassesWarning)
            return self.model_of(recipe, items), told

    def _check_batches(self) -> None:
        """Raise an error for the first batch that the float model does not take.

        A recipe may fail for other reasons too, so batches are looked at once.
        """
        copied, given = wrap(_C.deepcopy(self.model._c)), self._unchecked
        self._unchecked = {}
        for number, batch in given.items():
            outputs(copied, self._method, batch, number, fits=False)


def parted(given: Mapping[int, Batch]) -> tuple[dict[int, Batch], dict[int, Batch]]:
    """Return the batches to calibrate with, and every fourth one, at least the last, to check with.

    Batches have their numbers.

    Raises:
        JitPassesError: there is a single batch.
    """
    if len(given) < 2:
        raise JitPassesError(
            f"{HELD_BACK}: pass two or more, or held_back=, or a metric of your own",
            command=f"{HELD_BACK}: pass more --data, or a smaller --batch-size",
        )
    held = [n for n in range(len(given)) if is_held_back(n)] or [len(given) - 1]
    calibrating = {number: batch for number, batch in given.items() if number not in held}
    return calibrating, {number: given[number] for number in held}


def _items(given: Mapping[int, Batch]) -> list[Any]:
    return [kwargs or args for args, kwargs in given.values()]


class _Copies:
    """Batches that are copied each time they are gone through: a model may write into them."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Any:
        return map(cloned, self._items)
