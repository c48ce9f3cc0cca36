"""Open sizes, as callers give them: their form and their axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ArgumentError

_TENSOR = "{0: torch.export.Dim('batch')}"


def check_dynamic_shapes(shapes: Any, example_inputs: Any, names: Sequence[str]) -> None:
    """Check the form of `dynamic_shapes`, and its axes, where the example has a tensor.

    PyTorch checks the names of arguments, their number, and containers within.

    Args:
        shapes: as `to_exported_program` takes them.
        example_inputs: the same.
        names: of the method's arguments.

    Raises:
        ArgumentError: the shapes are no tuple, list or dict by names; the shape of a tensor is no
            dict by axes, and no tuple of all axes; a tensor does not have the axis; or a size is
            text, say.
    """
    if shapes is None or hasattr(shapes, "dynamic_shapes"):  # a ShapesCollection makes them
        return
    each = "dynamic_shapes has the open axes of each argument, in a tuple or a dict by names"
    if not isinstance(shapes, tuple | list | dict):
        raise ArgumentError(f"{each}, not {shapes!r}: one tensor has ({_TENSOR},)")
    if isinstance(shapes, dict) and any(isinstance(axis, int) for axis in shapes):
        raise ArgumentError(f"{each}, not the axes of one alone: write ({shapes!r},)")
    if isinstance(example_inputs, dict):
        given = {name: example_inputs[name] for name in names if name in example_inputs}
    else:
        parts = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
        given = dict(zip(names, parts, strict=False))
    _check(shapes, given if isinstance(shapes, dict) else list(given.values()), "dynamic_shapes")


def _check(shapes: Any, value: Any, place: str) -> None:
    """Check the open sizes of a tensor, or of the tensors in a container."""
    if isinstance(value, torch.Tensor):
        _check_tensor(shapes, value, place)
    elif isinstance(value, dict) and isinstance(shapes, dict):
        for name in value.keys() & shapes.keys():
            _check(shapes[name], value[name], f"{place}[{name!r}]")
    elif isinstance(value, tuple | list) and isinstance(shapes, tuple | list):
        for k, (inner, part) in enumerate(zip(shapes, value, strict=False)):
            _check(inner, part, f"{place}[{k}]")


def _check_tensor(shape: Any, value: torch.Tensor, place: str) -> None:
    if shape is None:
        return
    dim, has = value.dim(), f"the tensor has the shape {list(value.shape)}"
    if not isinstance(shape, tuple | list | dict):
        raise ArgumentError(
            f"{place} is {shape!r}, and open sizes of a tensor are a dict by axes, {_TENSOR}, a "
            "tuple of all axes, or None"
        )
    if not isinstance(shape, dict) and len(shape) != dim:
        raise ArgumentError(
            f"{place} has the length {len(shape)}, and {has}: open some axes with a dict, {_TENSOR}"
        )
    sizes = shape.items() if isinstance(shape, dict) else enumerate(shape)
    kinds = (int, type(None), torch.export.Dim, type(torch.export.Dim.AUTO))
    for axis, size in sizes:
        if axis not in range(dim):  # PyTorch 2.13 ignores some sizes of axes below 0
            raise ArgumentError(f"{place} has the axis {axis!r}, and {has}")
        if not isinstance(size, kinds):
            raise ArgumentError(
                f"{place} has {size!r} for axis {axis}, and a size is a torch.export.Dim, "
                f"Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, a number or None: {_TENSOR}, for example"
            )
