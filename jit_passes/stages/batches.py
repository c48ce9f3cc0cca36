"""From the data that callers have to the arguments of a method."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any

import torch
from tqdm import tqdm

from ..errors import JitPassesError

Batch = tuple[tuple[Any, ...], dict[str, Any]]  # arguments of a call, positional and by name
InputFn = Callable[[Any], Any]
MOMENT = 0.5  # seconds, after which a bar is drawn for work that seldom takes longer


def progress_bar(
    name: str, progress: bool | None, unit: str = "batch", delay: float = 0
) -> Callable[..., Any]:
    """Return a walk through batches that shows progress and the time left, on stderr.

    Arguments are the steps, and a function that returns their number, or None. The function is
    called only where the bar is drawn, since it may have to look into many files.

    Args:
        name: of the work.
        progress: whether to; None for terminals only.
        unit: the name of a step.
        delay: seconds before it is drawn, for work that seldom takes longer.
    """
    shown = sys.stderr.isatty() if progress is None else progress

    def walk(steps: Iterable[Any], total: Callable[[], int | None] | None = None) -> Any:
        count = total() if shown and total is not None else None
        return tqdm(steps, desc=name, unit=unit, total=count, disable=not shown, delay=delay)

    return walk


def batches(
    data: Iterable[Any],
    input_fn: InputFn | None,
    through: Callable[..., Any] | None = None,
    what: str = "the data",
    allow_none: bool = False,
) -> Iterator[Batch]:
    """Yield the positional and the keyword arguments of each batch.

    The data are walked through once, with one iterator: an iterator may start processes, or read
    from a source that can be read once.

    Args:
        data: an iterable of batches: a tensor, a tuple of positional arguments, or a dict of
            keyword arguments.
        input_fn: makes a batch out of an item of `data`; None where the items are batches.
        through: a walk that shows progress, as `progress_bar` makes it.
        what: the name of the data in messages.
        allow_none: whether there may be no batch.

    Raises:
        JitPassesError: data is no iterable of batches, or there is none.
    """
    check_data(data, input_fn, what)
    items = iter(data)
    empty = not allow_none
    for item in items if through is None else through(items, total=lambda: _length_of(data)):
        empty = False
        batch = item if input_fn is None else input_fn(item)
        if isinstance(batch, Mapping):
            yield (), dict(batch)
        else:
            yield (batch if isinstance(batch, tuple) else (batch,)), {}
    if empty:
        raise JitPassesError(
            f"{what} is empty: pass an iterable with at least one batch (a generator that was "
            "used before is empty)",
            command=f"there is no batch in {what}",
        )


class Sample:
    """A few of many batches, drawn with equal chances; the draw depends on their number alone.

    Source: Vitter, Random Sampling with a Reservoir, 1985, algorithm R.

    Attributes:
        kept: copies of the batches.
        seen: the number of batches so far.
    """

    def __init__(self, most: int) -> None:
        self.kept: list[Batch] = []
        self.seen, self._most, self._random = 0, most, Random(0)

    def look(self, batch: Batch) -> None:
        """Keep a batch, perhaps in place of another one."""
        full = self.seen >= self._most
        place = self._random.randrange(self.seen + 1) if full else self.seen
        if place < self._most:
            self.kept[place : place + 1] = [cloned(batch)]
        self.seen += 1


def is_held_back(number: int) -> bool:
    """Say whether a batch is to check with, not to choose by: every fourth one is."""
    return number % 4 == 3


def check_data(data: Any, input_fn: Any, what: str) -> None:
    """Check that data can be batches, without taking one.

    Raises:
        JitPassesError: they are a single tensor, text, one batch, or nothing to go through.
    """
    if input_fn is not None and not callable(input_fn):
        raise JitPassesError(f"input_fn is a function of a batch, not {input_fn!r}")
    instead = ""
    if isinstance(data, torch.Tensor):
        instead = "not one tensor: pass [tensor]"
    elif isinstance(data, str | bytes | os.PathLike):
        instead = f"not text: load {data!r} first, [torch.from_numpy(numpy.load(path))] say"
    elif isinstance(data, Mapping):
        instead = "not one batch by names: pass [batch]"
    elif type(data).__module__ == "numpy":
        instead = "not an array of NumPy: pass [torch.from_numpy(array)]"
    elif isinstance(data, torch.nn.Module) or not _is_iterable(data):
        instead = f"not {data!r}" if isinstance(data, int | float) else f"got {type(data).__name__}"
    if instead:
        raise JitPassesError(f"{what} is an iterable of batches, {instead}")


def _is_iterable(data: Any) -> bool:
    # A class with __getitem__ alone, as data sets are, is iterable too.
    return isinstance(data, Iterable) or hasattr(data, "__getitem__")


def _length_of(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:  # a generator, or a DataLoader over one
        return None


def cloned(given: Any) -> Any:
    """Return a nest of tensors with copies of these."""
    if isinstance(given, torch.Tensor):
        return given.detach().clone()
    if isinstance(given, dict):
        return {key: cloned(item) for key, item in given.items()}
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        return type(given)(*map(cloned, given))
    return type(given)(map(cloned, given)) if isinstance(given, tuple | list) else given
