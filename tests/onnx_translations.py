"""PyTorch's table of ONNX translations, made once for many files."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@functools.cache
def _tables() -> tuple[Any, Callable[..., Any]]:
    """The class of tables, and its constructor, which makes each once in this process."""
    registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    return registry, functools.cache(registry.from_torchlib)


@contextmanager
def translations_once() -> Iterator[None]:
    """Make PyTorch's table of ONNX translations once for each opset.

    `torch.onnx` makes it anew for each file, from the source of 500 functions, which takes longer
    than writing a small model. Each file gets a copy, to which its own translations are added.
    """
    registry, made = _tables()

    def from_torchlib(**options: Any) -> Any:
        known, copy = made(**options), registry()
        copy._opset_version = known._opset_version
        copy.functions = {name: list(functions) for name, functions in known.functions.items()}
        return copy

    with mock.patch.object(registry, "from_torchlib", staticmethod(from_torchlib)):
        yield
