"""The numbers and arrays that a call gives its function, by the names of the declaration in C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .program import Buffer, Call, Constant, Struct


@dataclass(frozen=True)
class Parameters:
    """The arguments of a call of a function in C.

    Attributes:
        numbers: ints; a struct's are in a dict under the name of its type.
        buffers: codes, by name, operands and the result.
        constants: arrays, by name.
    """

    numbers: Mapping[str, Any]
    buffers: Mapping[str, Buffer]
    constants: Mapping[str, Constant]


def parameters_of(call: Call) -> Parameters:
    """Return the arguments of a call by the names in the declaration of its function."""
    numbers: dict[str, Any] = {}
    buffers: dict[str, Buffer] = {}
    constants: dict[str, Constant] = {}
    for name, value in call.arguments.items():
        if isinstance(value, Struct):
            arrays = {n: v for n, v in value.values.items() if isinstance(v, Constant)}
            constants |= arrays
            numbers[value.type.name] = {n: v for n, v in value.values.items() if n not in arrays}
        elif isinstance(value, Buffer):
            buffers[name] = value
        elif isinstance(value, Constant):
            constants[name] = value
        else:
            numbers[name] = value
    return Parameters(numbers, buffers, constants)
