"""Packages and files of engines: whether they are here, and the errors when they fail."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import JitPassesError, first_line


def imported(name: str) -> Any:
    """Return a package that an engine needs.

    Raises:
        JitPassesError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise JitPassesError(f"{name} does not import ({error}): pip install {name}") from error


def onnx_of(path: Path) -> Any:
    """Return a file of ONNX as its ModelProto, without data in further files.

    Raises:
        JitPassesError: onnx is not installed, or the file is of another kind.
    """
    onnx = imported("onnx")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # of protobuf
        raise JitPassesError(f"{path} is not a file of ONNX") from error
    if not model.HasField("graph"):  # an empty file is a message without fields
        raise JitPassesError(f"{path} is not a file of ONNX")
    return model


def fed(inputs: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays that a file takes, out of the reference model's arguments by name.

    Raises:
        JitPassesError: the file has an input that the reference model has not.
    """
    wanted = list(inputs)
    if lost := [name for name in wanted if name not in given]:
        raise JitPassesError(
            f"the file has the input {lost[0]!r}, and the reference model takes "
            f"{', '.join(given)}: was the file made from this model?"
        )
    return {name: given[name].numpy() for name in wanted}


@contextmanager
def errors_of(engine: str) -> Iterator[None]:
    """Turn any error of an engine into one that says which engine failed."""
    try:
        yield
    except JitPassesError:
        raise
    except Exception as error:  # engines raise errors of their own classes
        raise JitPassesError(f"{engine} fails: {first_line(error)}") from error
