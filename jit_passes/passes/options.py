"""Options of passes: declared with a type and a default, and checked before anything runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import torch

from ..errors import JitPassesError, nearest

_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "None": (NoneType,),
    "Tensor": (torch.Tensor,),
    "list": (list, tuple),
    "dict": (dict,),
}
_NAMES = {python: name for name, (python, *_) in _TYPES.items()} | {tuple: "list", Sequence: "list"}
_PART = re.compile(r"(\w+)(?:\[(\w+)\])?")


@dataclass(frozen=True)
class PassOption:
    """An option of a pass.

    Attributes:
        name: the keyword.
        type: bool, int, float, str, None, Tensor, dict, list, a list of one of these such as
            list[int], several of them with | in between, or Any. A tuple is a list, an int is a
            float.
        required: whether the pass cannot do without.
        default: the value when it is not given.
    """

    name: str
    type: str
    required: bool
    default: Any = None

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + ("" if self.required else f" = {self.default!r}")

    def accepts(self, value: Any) -> bool:
        """Say whether the value has the option's type."""
        return any(_is(value, part) for part in self.type.split(" | "))


def check_options(what: str, options: Iterable[PassOption], given: Mapping[str, Any]) -> None:
    """Check the options given to a pass against its declared options."""
    known = {option.name: option for option in options}
    for name, value in given.items():
        if name not in known:
            raise JitPassesError(f"{what} has no option '{name}': {nearest(name, known)}")
        if not known[name].accepts(value):
            raise JitPassesError(
                f"the option '{name}' of {what} is {known[name].type}, not {value!r} "
                f"of type {type(value).__name__}"
            )
    for option in known.values():
        if option.required and option.name not in given:
            raise JitPassesError(f"{what} needs the option '{option.name}' ({option.type})")


def options_of(function: Callable[..., Any], what: str) -> tuple[PassOption, ...]:
    """Read options from the parameters behind the first one, their annotations and defaults."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # of a function in C
        return ()
    found = []
    for parameter in parameters[1:] if parameters and parameters[0].kind < 2 else parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            raise JitPassesError(
                f"{what} takes **{parameter.name}: name each option, as a keyword parameter"
            )
        if parameter.kind is not parameter.VAR_POSITIONAL:
            required = parameter.default is parameter.empty
            type_ = _type_of(function, parameter, what)
            default = None if required else parameter.default
            found.append(PassOption(parameter.name, type_, required, default))
    return tuple(found)


def _type_of(function: Callable[..., Any], parameter: inspect.Parameter, what: str) -> str:
    annotation = parameter.annotation
    try:
        if isinstance(annotation, str):
            defined = getattr(function, "func", function)  # of a functools.partial
            annotation = eval(annotation, getattr(defined, "__globals__", {}))
        return _text(annotation)
    except (KeyError, NameError, TypeError, SyntaxError) as error:
        raise JitPassesError(
            f"the option '{parameter.name}' of {what} is annotated {parameter.annotation!r}: "
            f"options are {', '.join(_TYPES)}, lists and unions of these, or Any"
        ) from error


def _text(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty or annotation is Any:
        return "Any"
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return " | ".join(map(_text, get_args(annotation)))
    if origin is None:
        return "None" if annotation is None else _NAMES[annotation]
    items = {_text(item) for item in get_args(annotation) if item is not ...}
    simple = len(items) == 1 and all(item in _TYPES for item in items)
    return f"{_NAMES[origin]}[{items.pop()}]" if simple else _NAMES[origin]


def _is(value: Any, type_: str) -> bool:
    match = _PART.fullmatch(type_)
    name, item = match.groups() if match else (type_, None)
    if name == "Any":
        return True
    if name not in _TYPES:
        raise JitPassesError(f"a pass declares an option of type '{type_}', which there is not")
    if isinstance(value, bool) and name != "bool":
        return False
    if not isinstance(value, _TYPES[name]):
        return False
    return item is None or (isinstance(value, list | tuple) and all(_is(v, item) for v in value))
