"""Samples in tars of `.npz` and `.npy` files, as WebDataset writes them: read as they are needed.

No more is kept than a batch. Members of other kinds, labels say, are passed over.
"""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import JitPassesError, first_line, shortened
from .outcome import note
from .samples import Batch, Samples, joined, samples_of, unreadable, usable

TAR = ".tar"
MEMBERS = (".npz", ".npy")
BLOCK = 512  # bytes; two of them at the end are zeros
SOME = 4  # the first batches give an estimate of the number


def check_tar(path: Path) -> None:
    """Raise an error for a tar that is cut: its last two blocks are of zeros."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2 * BLOCK))
        if size < 2 * BLOCK or size % BLOCK or any(file.read()):
            raise _cut(path)


def _cut(path: Path) -> JitPassesError:
    return JitPassesError(
        f"{path}: a tar ends with two blocks of zeros, and this file does not: it is cut, or no "
        "tar; write it again"
    )


def _check_end(path: Path, end: int) -> None:
    """Raise an error where something else than zeros is behind the last member.

    Zeros at the end of a member's data look like the end of a tar.
    """
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read(BLOCK << 10)
    if len(rest) < 2 * BLOCK:
        raise _cut(path)
    if any(rest):
        raise JitPassesError(
            f"{path}: another tar is behind the end of this one: write one file for each"
        )


def batches_of_tar(path: Path, size: int) -> Iterator[Batch]:
    """Yield batches of so many samples, across members; the last one may have fewer.

    Raises:
        JitPassesError: the file cannot be read; there is no sample; members have other arguments.
    """
    first: Samples | None = None
    parts: list[tuple[Samples, slice]] = []
    missing = size
    for member, _ in _members(path):
        first = first or member
        _check_alike(first, member)
        begin, total = 0, member.count()
        while begin < total:
            end = min(begin + missing, total)
            parts.append((member, slice(begin, end)))
            missing -= end - begin
            begin = end
            if not missing:
                yield joined(parts)
                parts, missing = [], size
    if first is None:
        raise JitPassesError(
            f"{path}: no member of this tar is samples, a file that ends in {', '.join(MEMBERS)}"
        )
    if parts:
        yield joined(parts)


def about_batches(path: Path, size: int) -> int:
    """Return about how many batches there are; exactly where there are few."""
    count, end = 0, 0
    for member, end in _members(path):
        count += member.count()
        if count >= SOME * size:
            count = count * (path.stat().st_size - BLOCK) // end
            break
    return math.ceil(count / size)


def _members(path: Path) -> Iterator[tuple[Samples, int]]:
    """Yield the samples of each member, and the byte at which it ends."""
    told: set[str] = set()

    def tell(message: str) -> None:
        if message not in told:  # once, not for each of a million members
            told.add(message)
            note(message)

    try:
        with tarfile.open(path, "r|") as tar:
            for info in tar:
                tar.members = []  # type: ignore[attr-defined]  # which would grow with each one
                name = info.name.rpartition("/")[2]
                suffix = os.path.splitext(name)[1].lower()
                if info.isfile() and suffix in MEMBERS and name[0] != ".":
                    file = tar.extractfile(info)
                    assert file is not None
                    content = file.read()
                    end = info.offset_data + math.ceil(info.size / BLOCK) * BLOCK
                    yield _read(f"{path}: {info.name}", suffix, content, tell), end
            _check_end(path, tar.offset)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise JitPassesError(f"{path}: this tar cannot be read: {first_line(error)}") from error


def _read(where: str, suffix: str, content: bytes, tell: Any) -> Samples:
    try:
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        if suffix == ".npy":
            return Samples(where, (usable(loaded, where, "it", tell),))
        with loaded as archive:
            arrays = {name: usable(archive[name], where, name, tell) for name in archive.files}
    except JitPassesError:
        raise
    except Exception as error:
        raise unreadable(where, suffix, error) from error
    return samples_of(where, arrays)


def _check_alike(first: Samples, other: Samples) -> None:
    """Raise an error for a member that cannot stand in one batch with another."""
    ours, theirs = first.arguments, other.arguments
    if ours.keys() != theirs.keys():
        names = [shortened(sorted(found)) for found in (theirs, ours)]
        raise JitPassesError(
            f"{other.where}: it holds {names[0]}, and the first member {names[1]}: members of one "
            "tar have the arguments of one model"
        )
    for name, value in theirs.items():
        known = ours[name]
        if np.shape(value)[1:] != np.shape(known)[1:] or value.dtype != known.dtype:
            raise JitPassesError(
                f"{other.where}: a sample of '{name}' is {_told(value)}, and of the first member "
                f"{_told(known)}: put samples of other sizes or types into another tar"
            )
        if np.ndim(value) == 0 and value != known:
            raise JitPassesError(
                f"{other.where}: '{name}' is {value}, and in the first member {known}: a number "
                "without an axis goes with all samples of a tar"
            )


def _told(value: Any) -> str:
    return f"{value.dtype}{list(np.shape(value)[1:])}"
