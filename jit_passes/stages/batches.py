"""From the data that callers have to the arguments of a method."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from ..errors import JitPassesError

InputFn = Callable[[Any], Any]


def progress_bar(
    name: str, progress: bool | None, unit: str = "batch"
) -> Callable[[Iterable[Any]], Any]:
    """Return what shows how far a walk through batches is, and the time left, on stderr.

    Args:
        name: of the work.
        progress: whether to; None for terminals only.
        unit: what a step is.
    """
    shown = sys.stderr.isatty() if progress is None else progress
    return partial(tqdm, desc=name, unit=unit, disable=not shown)


def batches(
    data: Iterable[Any],
    input_fn: InputFn | None,
    through: Callable[[Any], Any] = iter,
    what: str = "the data",
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the positional and the keyword arguments of each batch.

    Args:
        data: an iterable of batches: a tensor, a tuple of positional arguments, or a dict of
            keyword arguments.
        input_fn: makes such a batch out of what `data` gives; None where it gives batches.
        through: makes the iterator, to show progress.
        what: what messages call the data.

    Raises:
        JitPassesError: data is no iterable of batches, or there is none.
    """
    if isinstance(data, torch.Tensor):
        raise JitPassesError(f"{what} is an iterable of batches, not one tensor: pass [tensor]")
    try:
        iter(data)
    except TypeError:
        found = type(data).__name__
        raise JitPassesError(f"{what} is an iterable of batches, got {found}") from None
    empty = True
    for item in through(data):
        empty = False
        batch = item if input_fn is None else input_fn(item)
        if isinstance(batch, dict):
            yield (), batch
        else:
            yield (batch if isinstance(batch, tuple) else (batch,)), {}
    if empty:
        raise JitPassesError(
            f"{what} is empty: pass an iterable with at least one batch (a generator that was "
            "used before is empty)"
        )


def cloned(given: Any) -> Any:
    """Return a nest of tensors with copies of these."""
    if isinstance(given, torch.Tensor):
        return given.detach().clone()
    if isinstance(given, dict):
        return {key: cloned(item) for key, item in given.items()}
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        return type(given)(*map(cloned, given))
    return type(given)(map(cloned, given)) if isinstance(given, tuple | list) else given
