"""Scores of variants, measured by other processes or machines."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..configuration.options import LayerOptions
from ..errors import JitPassesError, first_line
from ..profile import Profile

if TYPE_CHECKING:
    from .variants import Variants

Choices = Mapping[str, LayerOptions]
Scored = tuple[str, float]  # a plan and its score
MODEL, PROFILE, SETUP = "model.pt", "profile.yaml", "setup.pickle"


class Workers(Executor):
    """A pool of processes on this machine; after a worker has died, a new pool takes its place.

    Each process computes with an equal share of the cores.

    Args:
        count: of processes, from 1 on.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = self._new()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in one of the processes."""
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool.shutdown(wait=False)
            self._pool = self._new()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _new(self) -> ProcessPoolExecutor:
        threads = max(1, (os.cpu_count() or 1) // self._count)
        return ProcessPoolExecutor(
            self._count,
            # A fork would copy threads of PyTorch in the middle of their work.
            multiprocessing.get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(threads,),
        )


class Measuring:
    """Measures variants ahead of time on an executor.

    A task names a folder with the model, the profile and the data, and has the choices of one
    variant. The scores are handed out as they are asked for, so a search takes them in one order,
    whatever the order in which tasks end.

    Args:
        executor: of `concurrent.futures`, or one like it.
        folder: that all workers can read.
    """

    def __init__(self, executor: Executor, folder: str) -> None:
        self._executor, self._folder = executor, folder
        self._running: dict[tuple[Any, ...], Future[Scored]] = {}

    def ahead(self, several: Iterable[Choices]) -> None:
        """Begin with variants whose scores may be asked for soon; others that wait are dropped."""
        wanted = {_key(choices): choices for choices in several}
        for key in set(self._running) - set(wanted):
            if self._running[key].cancel():
                del self._running[key]
        for key, choices in wanted.items():
            if key not in self._running:
                self._running[key] = self._submit(choices)

    def score(self, choices: Choices) -> Scored:
        """Return plan and score of a variant.

        Raises:
            JitPassesError: the variant cannot be measured; a task failed twice.
        """
        key = _key(choices)
        if key not in self._running:
            self._running[key] = self._submit(choices)
        try:
            return self._running[key].result()
        except JitPassesError:
            raise
        except Exception:
            # A worker may have died for reasons that have passed, as for want of memory.
            self._running[key] = again = self._submit(choices)
        try:
            return again.result()
        except JitPassesError:
            raise
        except Exception as error:
            why = (
                f"a worker failed twice as it measured {_told(choices)}: {type(error).__name__}: "
                f"{first_line(error)}"
            )
            raise JitPassesError(
                f"{why}; with resume= scores so far are kept",
                command=f"{why}; with --resume scores so far are kept",
            ) from error

    def stop(self) -> None:
        """Drop tasks that nobody has asked for."""
        for future in self._running.values():
            future.cancel()
        self._running.clear()

    def _submit(self, choices: Choices) -> Future[Scored]:
        try:
            return self._executor.submit(measure, self._folder, dict(choices))
        except Exception as error:
            raise JitPassesError(
                f"the executor takes no task: {type(error).__name__}: {first_line(error)}; if one "
                "of its workers has died, make a new executor; with resume= scores so far are kept"
            ) from error


@contextlib.contextmanager
def measuring(variants: Variants, executor: Any) -> Iterator[None]:
    """Let variants be measured by an executor; None for this process.

    Raises:
        JitPassesError: it is no executor, or the metric, the quantizer or the data cannot be sent.
    """
    if executor is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="jit_passes-") as folder:
        write_task(variants, Path(folder))
        variants.workers = Measuring(executor, folder)
        try:
            yield
        finally:
            variants.workers.stop()
            variants.workers = None


def check_executor(executor: Any) -> None:
    """Raise an error for anything that is no executor."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise JitPassesError(
            "an executor is one of concurrent.futures, such as ProcessPoolExecutor(2), with "
            f"submit, not {executor!r}"
        )


def write_task(variants: Variants, folder: Path) -> None:
    """Write the parts that all tasks share: the model, its profile, and the rest as one pickle.

    Raises:
        JitPassesError: a part cannot be pickled.
    """
    parts = {**variants.how, "data": variants.data or None}
    for name, part in parts.items():
        try:
            pickle.dumps(part)
        except Exception as error:
            advice = (
                "define it at the top of a module that workers can import"
                if name == "metric"
                else "pass objects that pickle can send"
            )
            raise JitPassesError(
                f"executor: the {name} cannot be sent to a worker: {first_line(error)}; {advice}"
            ) from error
    torch.jit.save(variants.model, folder / MODEL)
    if variants.profile is not None:
        variants.profile.save(folder / PROFILE)
    names = [layer.name for layer in variants.layers]
    (folder / SETUP).write_bytes(pickle.dumps((parts, names, variants.known)))


@lru_cache(1)
def _opened(folder: str) -> Variants:
    """Return the variants of a folder; a worker opens it once."""
    from .variants import Variants

    path = Path(folder)
    if not (path / SETUP).exists():
        raise JitPassesError(
            f"executor: a worker does not find the folder {folder}: workers on other machines need "
            "a temporary folder that all can read; set TMPDIR to one"
        )
    parts, names, known = pickle.loads((path / SETUP).read_bytes())
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
    try:
        return _opened(folder).measured(choices)
    except JitPassesError as error:
        # Some classes of errors have more arguments, and so cannot be sent back.
        raise JitPassesError(str(error), command=error.command) from None


def _key(choices: Choices) -> tuple[Any, ...]:
    return tuple(sorted(choices.items(), key=lambda entry: entry[0]))


def _told(choices: Choices) -> str:
    if not choices:
        return "the model with all layers quantized"
    first = ", ".join(sorted(choices)[:3])
    return f"a variant with {len(choices)} layers otherwise ({first}{', ...' * (len(choices) > 3)})"
