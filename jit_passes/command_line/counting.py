"""How many batches files hold, by their headers."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from .samples import ALL
from .tars import TAR, about_batches

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def count_batches(
    files: Iterable[Path], size: int, limit: int | None = None, own: slice = ALL
) -> int | None:
    """Return the number of batches of so many samples; None where a file does not say.

    The number for a long tar is an estimate. From the limit on no more are counted, and no more
    files are opened. `own` takes some of the batches.
    """
    total = 0
    for file in files:
        if limit is not None and total >= limit:
            return limit
        try:
            found = _batches_in(file, size)
        except Exception:  # the error of reading it names the fault
            return None
        if found is None:
            return None
        total += found
    total = len(range(total)[own])
    return total if limit is None else min(total, limit)


def _batches_in(file: Path, size: int) -> int | None:
    if file.suffix.lower() == TAR:
        return about_batches(file, size)
    shapes = _READERS[file.suffix.lower()](file)
    if isinstance(shapes, int):
        return shapes
    counts = {shape[0] for shape in shapes if len(shape) > 0}
    return math.ceil(counts.pop() / size) if len(counts) == 1 else None


def _of_npy(file: Path) -> Sequence[Sequence[int]]:
    return [np.load(file, mmap_mode="r", allow_pickle=False).shape]


def _of_npz(file: Path) -> Sequence[Sequence[int]]:
    shapes = []
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            with archive.open(name) as entry:
                shapes.append(_HEADERS[npy.read_magic(entry)](entry)[0])
    return shapes


def _of_safetensors(file: Path) -> Sequence[Sequence[int]]:
    from safetensors import safe_open

    with safe_open(file, "pt") as tensors:
        return [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118


def _of_torch(file: Path) -> Sequence[Sequence[int]] | int:
    """Return shapes of samples, or the number of batches of a list of them."""
    loaded: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    if isinstance(loaded, list):
        return len(loaded)
    if isinstance(loaded, Mapping):
        loaded = tuple(loaded.values())
    # Plain numbers and flags have no axis of samples.
    return [getattr(t, "shape", ()) for t in (loaded if isinstance(loaded, tuple) else (loaded,))]


_READERS = {
    ".npy": _of_npy,
    ".npz": _of_npz,
    ".pt": _of_torch,
    ".pth": _of_torch,
    ".safetensors": _of_safetensors,
}
