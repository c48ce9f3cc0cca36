"""Samples: arguments of a model whose first axis counts, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import JitPassesError, first_line
from .outcome import note

ALL = slice(None)
Batch = Any  # a tensor, a tuple of arguments, or a dict of them


@dataclass(frozen=True)
class Samples:
    """Arguments whose first axis is the samples.

    Attributes:
        where: the file, for messages.
        positional: in order.
        named: by the names that the model has for them.
    """

    where: str
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Return all arguments, by name or number."""
        named = self.named or {}
        return {**{str(i): value for i, value in enumerate(self.positional)}, **named}

    def count(self) -> int:
        """Return the number of samples.

        Raises:
            JitPassesError: arguments have different numbers of them, or none.
        """
        counts = {n: len(v) for n, v in self.arguments.items() if np.ndim(v) > 0}
        if not counts or 0 in counts.values():
            raise JitPassesError(f"{self.where}: there are no samples in it")
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise JitPassesError(
                f"{self.where}: the first axis counts samples, and arguments have different "
                f"numbers of them: {told}"
            )
        return next(iter(counts.values()))

    def batches(self, size: int, own: slice = ALL) -> Iterator[Batch]:
        """Yield parts of so many samples, or some of these."""
        for begin in range(0, self.count(), size)[own]:
            yield self.batch(slice(begin, begin + size))

    def batch(self, part: slice) -> Batch:
        """Return some samples."""
        if self.named is not None:
            return {name: _tensor(value, part) for name, value in self.named.items()}
        return tuple(_tensor(value, part) for value in self.positional)


def joined(parts: Sequence[tuple[Samples, slice]]) -> Batch:
    """Return one batch of samples of several, which have equal arguments of NumPy."""
    first = parts[0][0]
    if len(parts) == 1:
        return first.batch(parts[0][1])
    arguments = [(samples.arguments, part) for samples, part in parts]

    def value_of(name: str, value: Any) -> Any:
        if np.ndim(value) == 0:
            return _tensor(value, ALL)
        return torch.from_numpy(np.concatenate([found[name][part] for found, part in arguments]))

    made = {name: value_of(name, value) for name, value in first.arguments.items()}
    return made if first.named is not None else tuple(made.values())


def samples_of(where: str, arrays: Mapping[str, Any]) -> Samples:
    """Return the samples of named arrays; `savez` names arrays without a name by their number."""
    ordered = [f"arr_{i}" for i in range(len(arrays))]
    if set(arrays) == set(ordered):
        return Samples(where, tuple(arrays[name] for name in ordered))
    return Samples(where, named=arrays)


_ADVICE = {
    ".npy": "write numbers with np.save(path, samples)",
    ".npz": "write numbers with np.savez(path, x=samples), an array for each argument",
}


def unreadable(where: Path | str, suffix: str, error: Exception) -> JitPassesError:
    """Return the error about a file that cannot be read, with a way to write one."""
    why = first_line(error)
    if "Object arrays" in why or "Python objects" in why:
        why = "it holds objects of Python"
    elif suffix in _ADVICE and "pickle" in why:  # NumPy advises to load it all the same
        why = "it is damaged, or another file"
    advice = f"; {_ADVICE[suffix]}" if suffix in _ADVICE else ""
    return JitPassesError(
        f"{where}: this is no file of the form {suffix} with tensors: {why}{advice}"
    )


def usable(value: Any, where: Path | str, name: str, tell: Callable[[str], None] = note) -> Any:
    """Return an argument as a model can take it: numbers, in the byte order of this machine.

    Double numbers, numpy's default, become float32.

    Raises:
        JitPassesError: it holds text, dates, records or objects.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise JitPassesError(
                f"{where}: '{name}' holds {value.dtype}, and a tensor holds numbers or bool: leave "
                "it out, or make numbers of it"
            )
        value = value.astype(value.dtype.newbyteorder("="), copy=False)
    elif not isinstance(value, torch.Tensor | bool | int | float | None):
        raise JitPassesError(
            f"{where}: '{name}' is a {type(value).__name__}, and arguments are tensors or numbers"
        )
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if dtype in ("float64", "float128", "longdouble"):
        tell(f"note: {name} holds {dtype}, and is taken as float32")
        return value.astype(np.float32) if isinstance(value, np.ndarray) else value.float()
    return value


def _tensor(value: Any, part: slice) -> Any:
    """Return some samples; a value without axes, such as a flag, goes with all samples."""
    if np.ndim(value) == 0:
        return value.item() if isinstance(value, np.ndarray | torch.Tensor) else value
    if isinstance(value, torch.Tensor):
        return value[part]
    return torch.from_numpy(np.array(value[part]))  # a copy: the file is only mapped
