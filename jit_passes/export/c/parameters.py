"""The numbers and arrays that a call gives its function, by the names of the declaration in C."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .kernels import KERNELS, TYPES, arithmetic
from .program import Buffer, Call, Constant

_TOKEN = re.compile(r"@(\d+)|(-?\d+)|&?\(const (\w+)(?:\[\])?\)|([{}])")
_Value = Any  # an int, a Buffer, a Constant, or a list or dict of these


@dataclass(frozen=True)
class Parameters:
    """The arguments of a call of a function in C.

    Attributes:
        numbers: ints, and those of a struct in a dict under the name of its type.
        buffers: codes, by name, operands and the result.
        constants: arrays, by name.
    """

    numbers: Mapping[str, Any]
    buffers: Mapping[str, Buffer]
    constants: Mapping[str, Constant]


def parameters_of(call: Call) -> Parameters:
    """Return the arguments of a call by the names in the declaration of its function."""
    declared = KERNELS[call.kernel].partition("(")[2].partition(")")[0]
    names = [part.split()[-1] for part in declared.split(",")]
    objects = [argument for argument in call.arguments if not isinstance(argument, str)]
    numbered = iter(range(len(objects)))
    text = ", ".join(a if isinstance(a, str) else f"@{next(numbered)}" for a in call.arguments)
    tokens = _TOKEN.finditer(text)
    values = [_value(token, tokens, objects) for token in tokens]
    numbers: dict[str, Any] = {}
    buffers: dict[str, Buffer] = {}
    constants: dict[str, Constant] = {}
    for name, value in zip(names, values, strict=True):
        if isinstance(value, _Struct):
            fields = dict(zip(_FIELDS[value.kind], value.values, strict=True))
            constants |= {f: v for f, v in fields.items() if isinstance(v, Constant)}
            # A pointer that is not given is 0.
            numbers[value.kind] = {
                f.lstrip("*"): None if f[0] == "*" else v
                for f, v in fields.items()
                if not isinstance(v, Constant)
            }
        elif isinstance(value, Buffer):
            buffers[name.lstrip("*")] = value
        elif isinstance(value, Constant):
            constants[name] = value
        else:
            numbers[name.lstrip("*")] = None if name[0] == "*" and value == 0 else value
    return Parameters(numbers, buffers, {n.lstrip("*"): c for n, c in constants.items()})


@dataclass(frozen=True)
class _Struct:
    kind: str
    values: list[_Value]


def _value(token: re.Match[str], rest: Iterator[re.Match[str]], objects: list[_Value]) -> _Value:
    """Return the value that begins with a token."""
    place, number, cast, _ = token.groups()
    if place is not None:
        return objects[int(place)]
    if number is not None:
        return int(number)
    if cast is not None:
        values = _value(next(rest), rest, objects)
        return _Struct(cast, values) if cast in _FIELDS else values
    found = []
    while (following := next(rest)).group() != "}":
        found.append(_value(following, rest, objects))
    return found


def _fields(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the structs that a text declares, and the names of their fields; pointers with `*`."""
    plain = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", plain, flags=re.DOTALL):
        yield name, re.findall(r"(\*?\w+)(?:\[\d+\])?\s*[,;]", body)


_FIELDS = dict(_fields("".join((arithmetic("half_even"), *TYPES.values()))))
