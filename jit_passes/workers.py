"""Work of other processes or machines, by the interface of `concurrent.futures`.

A task is the name of a folder, with the parts that all tasks share, and an argument. A task never
holds a live module.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from .errors import JitPassesError, first_line

SETUP = "setup.pickle"


class WorkerError(JitPassesError):
    """A task could not be done with any argument."""


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


class Tasks:
    """Calls of one function on an executor: begun ahead, and taken in the order that one asks for.

    A task that fails runs once more, as its worker may have died for reasons that have passed.

    Args:
        executor: of `concurrent.futures`, or one like it.
        function: of the folder and an argument, which workers can import.
        folder: that all workers can read.
        told: names an argument in messages.
        kept: the end of messages: how finished work is kept.
    """

    def __init__(
        self, executor: Executor, function: Callable[[str, Any], Any], folder: str,
        told: Callable[[Any], str], kept: str = "",
    ) -> None:  # fmt: skip
        self._executor, self._function, self._folder = executor, function, folder
        self._told, self._kept = told, kept
        self._running: dict[Hashable, Future[Any]] = {}

    def ahead(self, wanted: Mapping[Any, Any]) -> None:
        """Begin with arguments, by key, that may be asked for; others that wait are dropped."""
        for key in set(self._running) - set(wanted):
            if self._running[key].cancel():
                del self._running[key]
        for key, argument in wanted.items():
            self.begin(key, argument)

    def begin(self, key: Hashable, argument: Any) -> None:
        """Begin with an argument, unless it has begun."""
        if key not in self._running:
            self._running[key] = self._submit(argument)

    def result(self, key: Hashable, argument: Any) -> Any:
        """Return the result of an argument, which has begun or begins now.

        Raises:
            JitPassesError: raised by the function.
            WorkerError: a task failed twice.
        """
        self.begin(key, argument)
        try:
            return self._running[key].result()
        except JitPassesError:
            raise
        except Exception:
            self._running[key] = again = self._submit(argument)
        try:
            return again.result()
        except JitPassesError:
            raise
        except Exception as error:
            why = (
                f"a worker failed twice as it measured {self._told(argument)}: "
                f"{type(error).__name__}: {first_line(error)}"
            )
            raise WorkerError(
                why + self._kept, command=why + self._kept.replace("resume=", "--resume")
            ) from error

    def forget(self, key: Hashable) -> None:
        """Drop a result that has been taken."""
        self._running.pop(key, None)

    def stop(self) -> None:
        """Drop tasks that nobody has asked for."""
        for future in self._running.values():
            future.cancel()
        self._running.clear()

    def _submit(self, argument: Any) -> Future[Any]:
        try:
            return self._executor.submit(self._function, self._folder, argument)
        except Exception as error:
            raise WorkerError(
                f"the executor takes no task: {type(error).__name__}: {first_line(error)}; if one "
                f"of its workers has died, make a new executor{self._kept}"
            ) from error


def check_executor(executor: Any) -> None:
    """Raise an error for anything that is no executor."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise JitPassesError(
            "an executor is one of concurrent.futures, such as ProcessPoolExecutor(2), with "
            f"submit, not {executor!r}"
        )


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Give a folder for the parts that all tasks share, which goes with the work."""
    with tempfile.TemporaryDirectory(prefix="jit_passes-") as folder:
        yield Path(folder)


def write_setup(folder: Path, parts: Mapping[str, Any], by_name: tuple[str, ...] = ()) -> None:
    """Write the parts that all tasks share.

    Args:
        folder: of `shared_folder`.
        parts: by name, for messages.
        by_name: the parts that are functions, which are sent by their names.

    Raises:
        JitPassesError: a part cannot be pickled.
    """
    for name, part in parts.items():
        try:
            pickle.dumps(part)
        except Exception as error:
            advice = (
                "define it at the top of a module that workers can import"
                if name in by_name
                else "pass objects that pickle can send"
            )
            raise JitPassesError(
                f"executor: the {name} cannot be sent to a worker: {first_line(error)}; {advice}"
            ) from error
    (folder / SETUP).write_bytes(pickle.dumps(dict(parts)))


def read_setup(folder: str) -> dict[str, Any]:
    """Return the parts that all tasks share, in a worker.

    Raises:
        JitPassesError: the folder is not on this machine.
    """
    path = Path(folder) / SETUP
    if not path.exists():
        raise JitPassesError(
            f"executor: a worker does not find the folder {folder}: workers on other machines need "
            "a temporary folder that all can read; set TMPDIR to one"
        )
    found: dict[str, Any] = pickle.loads(path.read_bytes())
    return found


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise errors of this package as ones that can be sent back: some classes cannot."""
    try:
        yield
    except JitPassesError as error:
        raise JitPassesError(str(error), command=error.command) from None
