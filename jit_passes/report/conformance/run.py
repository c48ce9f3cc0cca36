"""`conformance`: one quantized model in several engines."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ...errors import ArgumentError, not_among
from ...logs import timed
from ...stages.batches import Batch, batches, progress_bar
from ...workers import (
    Tasks,
    check_executor,
    plain_errors,
    read_setup,
    shared_folder,
    write_setup,
)
from .comparison import Comparison, Engines, OwnEngine, Part
from .engines import ENGINES
from .result import Conformance
from .subject import Subject

DEFAULT = ("fixed_point", "c", "onnxruntime", "onnxruntime_optimized")
MODEL = "model.pt"
AHEAD = 16  # batches that wait for workers: no more are in memory


@timed
def conformance(
    model: torch.jit.ScriptModule,
    data: Iterable[Any],
    engines: Sequence[str | OwnEngine] = DEFAULT,
    *,
    input_fn: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    method: str = "forward",
    executor: Executor | None = None,
) -> Conformance:
    """Compare the codes of a reference model with the codes of engines, value by value.

    An engine runs the model by itself, from floats to codes, and shows some of its values.
    `fixed_point`, `stock` and `onnxruntime` show all of them, `onnxruntime_optimized` all values
    where further outputs do not change its graph, `x86` the values between regions, and `c`,
    `openvino` and `inductor` the results. All shown values before the first one that differs are
    equal.

    Args:
        model: the result of `convert`, or of `quantize_script` with target="reference"; it is not
            touched.
        data: batches, as for `calibrate`.
        engines: names, and engines of your own: functions of a batch's arguments that return codes
            by name of a value, as the report has it, or of a result, `output`, `output.1`.
            `reference` is always there.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.
        method: of a model with several quantized methods, which.
        executor: of `concurrent.futures`, whose workers compare batches side by side; each worker
            makes the engines once. Workers need to import engines of your own. None for this
            process.

    Raises:
        JitPassesError: the model is no reference model; an engine is unknown, two have one name, or
            one of your own gives another shape or no integers; no engine runs; there is no batch; a
            worker fails twice, or an engine cannot be sent to workers.
    """
    check_executor(executor)
    named = _named(engines)
    subject = Subject.of(model, method)
    comparison = Comparison(subject)
    given = batches(data, input_fn, progress_bar("conformance", progress))
    with comparing(subject, named, executor) as compare:
        for part in compare(given):
            comparison.add(part)
    return comparison.result(named)


Compare = Callable[[Iterable[Batch]], Iterator[Part]]


@contextlib.contextmanager
def comparing(
    subject: Subject, named: Mapping[str, str | OwnEngine], executor: Executor | None
) -> Iterator[Compare]:
    """Give the comparison of batches, by an executor; None for this process.

    Raises:
        JitPassesError: an engine cannot be sent to a worker.
    """
    if executor is None:
        engines = Engines(subject, named)
        yield lambda given: (engines.compare(n, arguments) for n, arguments in enumerate(given))
        return
    with shared_folder() as folder:
        setup = {"engines": dict(named), "method": subject.report.method}
        write_setup(folder, setup, ("engines",))
        torch.jit.save(subject.model, folder / MODEL)
        tasks = Tasks(executor, compare_batch, str(folder), lambda task: f"batch {task[0]}")
        try:
            yield lambda given: _in_order(tasks, given)
        finally:
            tasks.stop()


def _in_order(tasks: Tasks, given: Iterable[Batch]) -> Iterator[Part]:
    """Yield the comparisons of batches by workers, which begin some batches ahead."""
    waiting: deque[tuple[int, Batch]] = deque()

    def first() -> Part:
        task = waiting.popleft()
        part: Part = tasks.result(task[0], task)
        tasks.forget(task[0])
        return part

    for task in enumerate(given):
        waiting.append(task)
        tasks.begin(task[0], task)
        if len(waiting) == AHEAD:
            yield first()
    while waiting:
        yield first()


@lru_cache(1)
def _opened(folder: str) -> Engines:
    """Return the engines of a folder; a worker opens it once."""
    setup = read_setup(folder)
    model = torch.jit.load(Path(folder) / MODEL)  # type: ignore[no-untyped-call]
    return Engines(Subject.of(model, setup["method"]), setup["engines"])


def compare_batch(folder: str, task: tuple[int, Batch]) -> Part:
    """Compare a batch; the function that workers run."""
    with plain_errors():
        return _opened(folder).compare(*task)


def _named(engines: Sequence[str | OwnEngine]) -> dict[str, str | OwnEngine]:
    """Return engines by name.

    Raises:
        ArgumentError: one is unknown, or two have one name.
    """
    if isinstance(engines, str):
        raise ArgumentError(f"engines is a list of names and functions, not {engines!r}")
    named: dict[str, str | OwnEngine] = {}
    for engine in engines:
        if isinstance(engine, str):
            if engine not in ENGINES:
                raise ArgumentError(not_among("an engine", engine, list(ENGINES)))
            name = engine
        elif callable(engine):
            name = getattr(engine, "__name__", type(engine).__name__)
        else:
            raise ArgumentError(f"an engine is a name or a function, not {engine!r}")
        if name in named:
            raise ArgumentError(f"engines has {name!r} twice")
        named[name] = engine
    return named
