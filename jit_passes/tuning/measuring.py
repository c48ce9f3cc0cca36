"""Scores of variants and recipes, measured by other processes or machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..configuration.configuration import Configuration
from ..configuration.options import LayerOptions
from ..errors import JitPassesError
from ..profile import Profile
from ..workers import Tasks, WorkerError, plain_errors, read_setup, shared_folder, write_setup

if TYPE_CHECKING:
    from .recipes import Recipes
    from .variants import Variants

Choices = Mapping[str, LayerOptions]
MODEL, PROFILE = "model.pt", "profile.yaml"
KEPT = "; with resume= scores so far are kept"


@dataclass(frozen=True)
class Scored:
    """A variant that has been measured.

    Attributes:
        plan: a text that is equal for variants that compute equal results; empty where all is in
            float.
        is_possible: False if the target would leave a layer in float for which a choice asks.
        score: the metric; larger is better.
    """

    plan: str
    is_possible: bool
    score: float


class Measuring:
    """Measures variants ahead of time on an executor.

    A task names a folder with the model, the profile and the data, and has the choices of one
    variant. The scores are handed out as they are asked for, so a search takes them in one order,
    independent of the order in which tasks end.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def ahead(self, several: Iterable[Choices]) -> None:
        """Begin with variants whose scores may be asked for soon; others that wait are dropped."""
        self._tasks.ahead({_key(choices): dict(choices) for choices in several})

    def plan(self, choices: Choices) -> str | None:
        """Return the plan of a variant, which a worker has measured; None if it is not possible.

        Raises:
            WorkerError: a task failed twice.
        """
        try:
            scored = self.score(choices)
        except WorkerError:
            raise
        except JitPassesError:
            return None
        return scored.plan if scored.is_possible else None

    def score(self, choices: Choices) -> Scored:
        """Return plan and score of a variant.

        Raises:
            JitPassesError: the variant cannot be measured.
            WorkerError: a task failed twice.
        """
        scored: Scored = self._tasks.result(_key(choices), dict(choices))
        return scored


@contextlib.contextmanager
def measuring(variants: Variants, executor: Any) -> Iterator[None]:
    """Let variants be measured by an executor; None for this process.

    Raises:
        JitPassesError: it is no executor, or the metric, the quantizer or the data cannot be sent.
    """
    if executor is None:
        yield
        return
    with shared_folder() as folder:
        write_task(variants, folder)
        tasks = Tasks(executor, measure, str(folder), _told, KEPT)
        variants.workers = Measuring(tasks)
        try:
            yield
        finally:
            tasks.stop()
            variants.workers = None


@contextlib.contextmanager
def measuring_recipes(recipes: Recipes, executor: Any) -> Iterator[None]:
    """Let recipes be measured by an executor; None for this process.

    Raises:
        JitPassesError: as `measuring`.
    """
    if executor is None:
        yield
        return
    with shared_folder() as folder:
        write_setup(folder, {**recipes.how, "data": recipes.calibrating}, ("metric",))
        torch.jit.save(recipes.model, folder / MODEL)
        told = "a recipe for the whole model"
        recipes.workers = Tasks(executor, measure_recipe, str(folder), lambda _: told, KEPT)
        try:
            yield
        finally:
            recipes.workers.stop()
            recipes.workers = None


def write_task(variants: Variants, folder: Path) -> None:
    """Write the parts that all tasks share: the model, its profile, and the rest as one pickle.

    Raises:
        JitPassesError: a part cannot be pickled.
    """
    names = [layer.name for layer in variants.layers]
    parts = {**variants.how, "data": variants.data or None}
    write_setup(folder, {**parts, "layers": names, "scores": variants.known}, ("metric",))
    torch.jit.save(variants.model, folder / MODEL)
    if variants.profile is not None:
        variants.profile.save(folder / PROFILE)


@lru_cache(1)
def _opened(folder: str) -> Variants:
    """Return the variants of a folder; a worker opens it once."""
    from .variants import Variants

    path, parts = Path(folder), read_setup(folder)
    names, known = parts.pop("layers"), parts.pop("scores")
    profile = Profile.load(path / PROFILE) if (path / PROFILE).exists() else None
    variants = Variants(
        torch.jit.load(path / MODEL),  # type: ignore[no-untyped-call]
        **parts, input_fn=None, resume=None, progress=False,
        profile=profile,
    )  # fmt: skip
    if [layer.name for layer in variants.layers] != names:
        raise JitPassesError(
            "executor: a worker finds other layers to quantize than this process: use one version "
            "of PyTorch and of jit_passes, and one target, on all machines"
        )
    variants.known.update(known)
    return variants


def measure(folder: str, choices: dict[str, LayerOptions]) -> Scored:
    """Return plan and score of a variant; the function that workers run."""
    with plain_errors():
        return _opened(folder).measured(choices)


@lru_cache(1)
def _opened_recipes(folder: str) -> Recipes:
    """Return the recipes of a folder; a worker opens it once."""
    from .recipes import Recipes

    model = torch.jit.load(Path(folder) / MODEL)  # type: ignore[no-untyped-call]
    return Recipes(model, **read_setup(folder), held_back=None, input_fn=None, resume=None)


def measure_recipe(folder: str, recipe: Configuration) -> tuple[float | None, str]:
    """Return the score of a recipe, or why it is not possible; the function that workers run."""
    from .recipes import NotPossible

    with plain_errors():
        try:
            return _opened_recipes(folder).measured(recipe), ""
        except NotPossible as error:
            return None, str(error)


def _key(choices: Choices) -> tuple[Any, ...]:
    return tuple(sorted(choices.items(), key=lambda entry: entry[0]))


def _told(choices: Choices) -> str:
    if not choices:
        return "the model with all layers quantized"
    first = ", ".join(sorted(choices)[:3])
    return f"a variant with {len(choices)} layers changed ({first}{', ...' * (len(choices) > 3)})"
