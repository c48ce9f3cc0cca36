"""From files of samples to batches."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from ..errors import JitPassesError, count_of, nearest, shortened
from .counting import count_batches
from .files import check_readable
from .images import IMAGES, Images
from .outcome import note
from .samples import Batch, Samples, samples_of, unreadable, usable
from .tars import TAR, batches_of_tar, check_tar

SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".safetensors", TAR)
RANDOM = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")
DTYPES = {name: getattr(torch, name) for name in ("float32", "int32", "int64", "uint8", "bool")}


class Data:
    """Batches that can be gone through again and again, read as they are needed.

    Args:
        sources: called anew for each pass.
        count: of batches, asked for once; None where it is not known.
        limit: at most so many.
        check: raises an error for a batch that the model does not take.
    """

    def __init__(
        self,
        sources: Callable[[], Iterable[Batch]],
        count: Callable[[], int | None],
        limit: int | None,
        check: Callable[[Batch], None],
    ) -> None:
        self._sources, self._check, self._limit = sources, check, limit
        self._count = cache(count)

    def __iter__(self) -> Iterator[Batch]:
        for batch in islice(self._sources(), self._limit):
            self._check(batch)
            yield batch

    def __len__(self) -> int:
        count = self._count()
        if count is None:
            raise TypeError("the number of batches is not known")
        return count if self._limit is None else min(count, self._limit)


def data_of(
    path: Path, size: int, limit: int | None, images: Images | None, method: Any,
    shard: tuple[int, int] = (1, 1),
) -> Data:  # fmt: skip
    """Return the batches of a file, or of a folder of files.

    Args:
        path: `.npy`, `.npz`, `.pt`, `.safetensors`, `.tar`, or a folder of files of these kinds, or
            of images.
        size: samples in a batch.
        limit: the number of batches at most; None for all.
        images: how pictures become tensors; None where the caller did not say.
        method: that takes them; its schema has the names.
        shard: (3, 8) for the third of every eight files of tensors, or else batches.

    Raises:
        JitPassesError: the file does not exist, or it has another form.
    """
    own = slice(shard[0] - 1, None, shard[1])

    def check(batch: Batch) -> None:
        check_arguments(method, batch, str(path))

    if path.suffix.lower() == TAR and not path.is_dir():
        check_readable(path)
        check_tar(path)
        return Data(
            lambda: islice(batches_of_tar(path, size), own.start, None, own.step),
            lambda: count_batches([path], size, own=own), limit, check,
        )  # fmt: skip
    if not path.is_dir():
        loaded = read(path)
        if not isinstance(loaded, Samples):
            listed = loaded[own]
            return Data(lambda: listed, lambda: len(listed), limit, check)
        total = len(range(0, loaded.count(), size)[own])
        return Data(lambda: loaded.batches(size, own), lambda: total, limit, check)
    files = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")
    pictures = [file for file in files if file.suffix.lower() in IMAGES]
    tensors = [file for file in files if file.suffix.lower() in SUFFIXES]
    known = {*pictures, *tensors}
    if others := [file.name for file in files if file not in known]:
        count = count_of(len(others), "file")
        note(f"{path}: {count} of other forms passed over: {shortened(others)}")
    if bool(pictures) == bool(tensors):
        found = "both" if pictures else "none"
        raise JitPassesError(
            f"{path}: a folder of data has images, or files of one of the forms "
            f"{', '.join(SUFFIXES)}; this one has {found}"
        )
    if pictures:
        if images is None:
            raise JitPassesError(
                f"{path} has images: say with --image-size, --mean and --std how the model was "
                "trained, such as --image-size 224 --mean 0.485,0.456,0.406 --std "
                "0.229,0.224,0.225; --mean 0 --std 1 gives values from 0 to 1"
            )
        pictures = [
            file
            for first in range(0, len(pictures), size)[own]
            for file in pictures[first : first + size]
        ]
        total = math.ceil(len(pictures) / size)
        return Data(lambda: images.batches(pictures, size), lambda: total, limit, check)

    tensors = tensors[own]
    for file in tensors:
        if file.suffix.lower() == TAR:
            check_tar(file)  # all before the first is read, which may take hours

    def all_files() -> Iterator[Batch]:
        for file in tensors:
            if file.suffix.lower() == TAR:
                yield from batches_of_tar(file, size)
                continue
            found = read(file)
            yield from found.batches(size) if isinstance(found, Samples) else found

    return Data(all_files, lambda: count_batches(tensors, size, limit), limit, check)


def random_data(texts: Sequence[str], count: int, method: Any) -> Data:
    """Return batches of random numbers, the same ones each time.

    Args:
        texts: an argument each: `1x3x224x224`, `ids=1x128:int64`. Floats are normal, integers 0
            and 1.
        count: the number of batches.
        method: that takes them.

    Raises:
        click.UsageError: a text has another form.
    """
    specs = [RANDOM.fullmatch(text) for text in texts]
    for text, spec in zip(texts, specs, strict=True):
        if spec is None or (spec["dtype"] or "float32") not in DTYPES:
            raise click.UsageError(
                f"--random {text}: a shape such as 1x3x224x224 is needed, with a name and a dtype "
                f"where the model wants them, ids=1x128:int64; dtypes are {', '.join(DTYPES)}"
            )
        if 0 in _sizes(spec):
            raise click.UsageError(f"--random {text}: there are no samples in it")
    named = [spec["name"] for spec in specs if spec is not None and spec["name"]]
    if named and len(named) < len(specs):
        raise click.UsageError("--random: name all arguments, or none")

    def make() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(count):
            values = [_random(spec, generator) for spec in specs if spec is not None]
            yield dict(zip(named, values, strict=True)) if named else tuple(values)

    return Data(make, lambda: count, None, lambda batch: check_arguments(method, batch, "--random"))


def _sizes(spec: re.Match[str]) -> list[int]:
    return [int(size) for size in spec["shape"].split("x")]


def _random(spec: re.Match[str], generator: torch.Generator) -> torch.Tensor:
    shape = _sizes(spec)
    dtype = DTYPES[spec["dtype"] or "float32"]
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def read(path: Path) -> Samples | list[Batch]:
    """Return the samples of a file, or batches as they were saved.

    Raises:
        JitPassesError: it cannot be read, or has another form.
    """
    readers = {
        ".npy": _read_npy,
        ".npz": _read_npz,
        ".pt": _read_torch,
        ".pth": _read_torch,
        ".safetensors": _read_safetensors,
    }
    suffix = path.suffix.lower()
    check_readable(path)
    if suffix not in readers:
        raise JitPassesError(
            f"{path}: data are files that end in {', '.join(SUFFIXES)}, or a folder of these, or "
            "of images"
        )
    try:
        return readers[suffix](path)
    except JitPassesError:
        raise
    except Exception as error:
        raise unreadable(path, suffix, error) from error


def _read_npy(path: Path) -> Samples:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return Samples(str(path), (usable(array, path, path.name),))


def _read_npz(path: Path) -> Samples:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: usable(archive[name], path, name) for name in archive.files}
    return samples_of(str(path), arrays)


def _read_safetensors(path: Path) -> Samples:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise JitPassesError(
            f"{path}: reading it needs the package safetensors: pip install 'jit_passes[data]', or "
            "safetensors"
        ) from error
    return Samples(str(path), named={n: usable(t, path, n) for n, t in load_file(path).items()})


def _read_torch(path: Path) -> Samples | list[Batch]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        advice = "data are tensors: save a tensor, a tuple, a dict or a list of batches"
        if "TorchScript archive" in str(error):
            raise JitPassesError(f"{path}: this is a model, and {advice}") from error
        if isinstance(error, pickle.UnpicklingError):
            raise JitPassesError(f"{path}: it holds objects, and {advice}") from error
        raise
    if isinstance(loaded, torch.Tensor):
        return Samples(str(path), (usable(loaded, path, path.name),))
    if isinstance(loaded, dict) and all(isinstance(name, str) for name in loaded):
        return Samples(str(path), named={n: usable(v, path, n) for n, v in loaded.items()})
    if isinstance(loaded, tuple):
        return Samples(str(path), tuple(usable(v, path, str(i)) for i, v in enumerate(loaded)))
    if isinstance(loaded, list) and loaded:
        return loaded
    raise JitPassesError(
        f"{path}: data are a tensor, a tuple of arguments, a dict of them by name, or a list of "
        f"batches; this is a {type(loaded).__name__}"
    )


def check_arguments(method: Any, batch: Batch, where: str) -> None:
    """Raise an error if a batch has other arguments than a method takes."""
    schema = method.schema.arguments[1:]
    names = [argument.name for argument in schema]
    takes = ", ".join(f"{a.name}: {a.type}" for a in schema)
    needed = [argument.name for argument in schema if not argument.has_default_value()]
    if isinstance(batch, dict):
        for name in batch:
            if name not in names:
                raise JitPassesError(
                    f"{where}: the model has no argument '{name}': {nearest(name, names)}; it "
                    f"takes ({takes})"
                )
        missing = [repr(name) for name in needed if name not in batch]
        if missing:
            raise JitPassesError(
                f"{where}: the data have no {shortened(missing)}; the model takes ({takes})"
            )
        return
    count = len(batch) if isinstance(batch, tuple) else 1
    if not len(needed) <= count <= len(names):
        raise JitPassesError(f"{where}: the data have {count} arguments; the model takes ({takes})")
