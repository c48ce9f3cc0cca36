"""PyTorch's table of ONNX translations, and its list of composite operators, made once."""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

SEARCH = "_collect_all_valid_cia_ops"


@functools.cache
def _tables() -> tuple[Any, Callable[..., Any]]:
    """The class of tables, and its constructor, which makes each once in this process."""
    registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    return registry, functools.cache(registry.from_torchlib)


@functools.cache
def _composites() -> Callable[[], frozenset[Any]]:
    """PyTorch's search for composite operators, made once for all operators that there are."""
    search = getattr(importlib.import_module("torch._export.utils"), SEARCH)

    @functools.lru_cache(maxsize=1)
    def found(names: tuple[str, ...], namespaces: tuple[str, ...]) -> frozenset[Any]:
        return frozenset(search())

    def composites() -> frozenset[Any]:
        names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        return found(tuple(names), tuple(torch.ops._dir))

    return composites


@contextmanager
def translations_once() -> Iterator[None]:
    """Make PyTorch's table of ONNX translations once for each opset.

    `torch.onnx` makes it anew for each file, from the source of 500 functions, which takes longer
    than writing a small model. Each file gets a copy, to which its own translations are added.
    `torch.onnx` also looks for composite operators twice for each file, among all operators.
    """
    registry, made = _tables()
    composites = _composites()

    def from_torchlib(**options: Any) -> Any:
        known, copy = made(**options), registry()
        copy._opset_version = known._opset_version
        copy.functions = {name: list(functions) for name, functions in known.functions.items()}
        return copy

    with ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(registry, "from_torchlib", staticmethod(from_torchlib))
        )
        # An annotation that is evaluated 20,000 times for a file; this one knows its results.
        stack.enter_context(mock.patch.object(torch._ops, "Callable", typing.Callable))
        for name in ("exported_program", "decomp_utils"):
            module = importlib.import_module(f"torch.export.{name}")
            stack.enter_context(mock.patch.object(module, SEARCH, composites))
        yield
