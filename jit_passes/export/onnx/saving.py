"""Files of a written model: one of protobuf, which ends below 2 GiB, or two with weights apart.

A message of protobuf is there twice while it is written: as an object, and as bytes. So the graph
is written without weights first. The final file is put together from it and one weight after
another:

    ModelProto    other fields, graph
    graph         other fields, initializer, initializer, ...
    initializer   other fields, raw_data

A field that holds others is its number, its length in bytes, and the bytes.

Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...errors import JitPassesError, first_line
from ...files import write_whole, writing

LARGE = 2**31 - 2**20  # bytes of constants, beyond which they are apart
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # numbers of fields
_BYTES = 2  # the type of fields that have a length


def save(written: Any, path: str | os.PathLike[str]) -> None:
    """Check a model with `onnx.checker` and write it, as a whole or not at all.

    Args:
        written: of `torch.onnx`.
        path: the file; weights apart are in `<path>.data`, which the file names.

    Raises:
        JitPassesError: `onnx.checker` refuses it; or it cannot be written, which is an OSError too.
    """
    constants = written.model.graph.initializers.values()
    apart = sum(value.const_value.nbytes for value in constants) > LARGE
    place = Path(os.path.realpath(path))
    special = place.exists() and not place.is_file()  # a device or a pipe
    beside = None if special else place.parent
    with ExitStack() as stack:
        with writing(path):
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=beside)
            )
            file = Path(folder) / place.name
            # The checker copies its argument four times, but for weights apart.
            written.save(file, external_data=True)
            _check(os.fspath(file))
            if apart:
                # The weights first: a file without its weights is of no use.
                for name in (f"{place.name}.data", place.name):
                    os.replace(file.with_name(name), place.with_name(name))
                return
        write_whole(path, _message(file))


def _message(file: Path) -> Iterator[bytes]:
    """Yield the bytes of a model with its weights, whose file has them apart."""
    onnx: Any = importlib.import_module("onnx")
    model = onnx.load(os.fspath(file), load_external_data=False)
    weights = [_Weight(tensor, file.parent) for tensor in model.graph.initializer]
    del model.graph.initializer[:]
    onnx.external_data_helper.load_external_data_for_model(model, os.fspath(file.parent))
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    yield model.SerializeToString()
    yield _start(_GRAPH, len(graph) + sum(len(weight.start) + weight.size for weight in weights))
    yield graph
    for weight in weights:
        yield weight.start
        yield from weight.read()


class _Weight:
    """An initializer whose data may be in a file of their own.

    Attributes:
        start: number and length of the field.
        size: bytes of its content.
    """

    def __init__(self, tensor: Any, folder: Path) -> None:
        place = {entry.key: entry.value for entry in tensor.external_data}
        self._file = folder / place["location"] if place else None
        self._offset, self._length = int(place.get("offset", 0)), int(place.get("length", 0))
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        self._fields = tensor.SerializeToString()
        if place:
            self._fields += _start(_RAW_DATA, self._length)
        self.size = len(self._fields) + self._length
        self.start = _start(_INITIALIZER, self.size)

    def read(self) -> Iterator[bytes]:
        """Yield the bytes of its content."""
        yield self._fields
        if self._file is not None:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                yield file.read(self._length)


def _start(number: int, length: int) -> bytes:
    """Return the header of a field's bytes."""
    return _whole(number << 3 | _BYTES) + _whole(length)


def _whole(number: int) -> bytes:
    """Return a number with 7 bits in a byte, the lowest first; the eighth says that more follow."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _check(file: str) -> None:
    checker: Any = importlib.import_module("onnx").checker
    try:
        checker.check_model(file, full_check=True)
    except Exception as error:  # of several classes of its own
        raise JitPassesError(
            f"the file would not be right: onnx.checker says {first_line(error).strip()!r}"
        ) from error
