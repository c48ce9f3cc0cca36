"""Packages of engines: whether they are here, and what they say when they fail."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def errors_of(engine: str) -> Iterator[None]:
    """Turn any error of an engine into one that says which engine failed."""
    try:
        yield
    except JitPassesError:
        raise
    except Exception as error:  # engines raise errors of their own classes
        raise JitPassesError(f"{engine} fails: {first_line(error)}") from error
