"""The attributes that a method reads and writes, while its graph runs.

A program keeps tensors from call to call, as buffers. An attribute that is assigned is the new
tensor until the end of the run, when its buffer gets the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ...errors import JitPassesError
from ...graph.view import NodeView
from .constants import hold
from .names import described


class NodeError(JitPassesError):
    """A node that cannot be exported; the message names it and its line of source."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "partial_fx_graph":  # which torch.export would print
            super().__setattr__(name, value)


class Held(str):
    """Stands for a tensor in the state of a program, by its path."""


class State:
    """The attributes by path.

    Args:
        root: the module that gets the buffers.
        attributes: by path, the values ahead of the first call.
    """

    def __init__(self, root: nn.Module, attributes: Mapping[str, Any]) -> None:
        self._root = root
        self._first = {
            path: Held(hold(root, path, value.detach().clone()))
            if isinstance(value, Tensor)
            else value
            for path, value in attributes.items()
        }
        self._assigned: dict[str, Any] = {}
        self._writers: dict[str, NodeView] = {}

    def begin(self) -> None:
        """Begin a run: no attribute is assigned yet."""
        self._assigned = {}

    def holds(self, path: str) -> bool:
        """Say whether the attribute is a tensor ahead of the first call."""
        return isinstance(self._first.get(path), Held)

    def read(self, path: str) -> Any:
        """Return the value that the attribute has now: the buffer itself, if none is assigned."""
        return self._assigned[path] if path in self._assigned else self._before(path)

    def _before(self, path: str) -> Any:
        first = self._first[path]
        return self._root.get_buffer(first) if isinstance(first, Held) else first

    def assign(self, path: str, value: Any, node: NodeView) -> None:
        """Give the attribute a value, as the node does."""
        self._assigned[path] = value
        self._writers[path] = node

    @contextmanager
    def within(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Let a block whose way or rounds are not known have tensors of its own.

        Raises:
            JitPassesError: the block changes another attribute.
        """
        outer = self._assigned
        self._assigned = {**outer, **tensors}
        try:
            yield
            for path in self._assigned:
                if path not in tensors:
                    old = outer[path] if path in outer else self._before(path)
                    self._check_equal(path, old)
        finally:
            self._assigned = outer

    def check_apart(self, attributes: Mapping[str, Any], written: Callable[[str], bool]) -> None:
        """Check that no operator writes to a tensor which two attributes are, or are views of.

        Raises:
            NodeError: one does: a program has a buffer for each attribute.
        """
        owners: dict[int, str] = {}
        for path, value in attributes.items():
            if not isinstance(value, Tensor) or not value.numel():
                continue
            other = owners.setdefault(value.untyped_storage().data_ptr(), path)
            if other != path and (written(path) or written(other)):
                raise NodeError(
                    f"the model writes to its attributes '{other}' and '{path}', which are one "
                    "tensor: give each its own"
                )

    def end(self, results: list[Any], written: Callable[[str], bool]) -> list[Any]:
        """Give buffers their new values, and return the results, copies if a buffer changes them.

        Args:
            results: of the method.
            written: says of a path whether operators write to the attribute's memory.

        Raises:
            NodeError: an attribute that is no tensor has changed; a tensor has another shape or
                dtype; or two attributes have become one tensor, and are written to.
        """
        tensors = {path: self.read(path) for path in self._first}
        for path in self._assigned:
            for other, value in tensors.items():
                one = isinstance(tensors[path], Tensor) and share(value, tensors[path])
                if other != path and one and (written(path) or written(other)):
                    raise NodeError(
                        f"{described(self._writers[path])}: the attributes '{path}' and '{other}' "
                        "are one tensor from then on, which is written to: assign a copy"
                    )
        changed: list[tuple[Tensor, Tensor]] = []
        for path, value in self._assigned.items():
            before = self._before(path)
            try:
                if isinstance(before, Tensor) and isinstance(value, Tensor):
                    _check_alike(path, before, value)
                    changed.append((before, value))
                else:
                    self._check_equal(path, before)
            except JitPassesError as error:
                raise NodeError(f"{described(self._writers[path])}: {error}") from error
        changed = [(before, value) for before, value in changed if value is not before]

        def apart(tensor: Tensor) -> Tensor:
            return tensor.clone() if any(share(tensor, one) for one, _ in changed) else tensor

        found: list[Any] = tree_map_only(Tensor, apart, results)
        for buffer, value in [(buffer, apart(value)) for buffer, value in changed]:
            buffer.copy_(value)
        return found

    def _check_equal(self, path: str, before: Any) -> None:
        """Check that the attribute has an equal value; -0.0 is not 0.0, and NaN is equal."""
        value = self._assigned[path]
        plain = isinstance(value, bool | int | float | str | None)
        equal = plain and type(value) is type(before) and repr(value) == repr(before)
        if not equal and value is not before:
            raise no_tensor(path)


def share(value: Any, tensor: Tensor) -> bool:
    """Say whether a value is, or holds, a tensor in the memory of another tensor."""
    is_alias: Any = getattr(torch._C, "_is_alias_of")  # noqa: B009  its type is not declared
    return any(isinstance(leaf, Tensor) and is_alias(leaf, tensor) for leaf in tree_leaves(value))


def no_tensor(path: str) -> JitPassesError:
    """Return the error for an attribute that changes and is no tensor."""
    return JitPassesError(
        f"the model changes its attribute '{path}', which is no tensor, and tensors alone are "
        "state of a program: make it a buffer"
    )


def _check_alike(path: str, before: Tensor, value: Tensor) -> None:
    if before.shape != value.shape or before.dtype != value.dtype:
        raise JitPassesError(
            f"the model changes its attribute '{path}' from {_shape(before)} to {_shape(value)}: "
            "the state of a program keeps shape and dtype; if the first call makes the state, call "
            "the model once before the export"
        )


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
