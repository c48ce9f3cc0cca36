"""Arguments and results of a program as types and expressions of TorchScript."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import TreeSpec

from ...errors import JitPassesError

_CONTAINERS = (tuple, list, dict)


def type_of(value: Any) -> str:
    """Return TorchScript's type of a value that a program knows, or that stands for one.

    Raises:
        JitPassesError: TorchScript has no type for it.
    """
    if value is None:
        return "Optional[torch.Tensor]"
    if isinstance(value, torch.Tensor):
        return "torch.Tensor"
    numbers = (("bool", torch.SymBool), ("int", torch.SymInt), ("float", torch.SymFloat))
    for name, symbol in numbers:
        if type(value).__name__ == name or isinstance(value, symbol):
            return name
    if isinstance(value, str):
        return "str"
    if isinstance(value, list | tuple):
        kinds = [type_of(item) for item in value]
        if isinstance(value, tuple):
            return f"Tuple[{', '.join(kinds)}]"
        return f"List[{_common(kinds, 'a list')}]"
    raise JitPassesError(f"TorchScript has no type for a {type(value).__name__}, as {value!r}")


def type_of_structure(spec: TreeSpec, leaves: Iterator[Any]) -> str:
    """Return the type of an argument; its leaves come from the remaining ones."""
    if spec.is_leaf():
        return type_of(next(leaves))
    _check(spec)
    kinds = [type_of_structure(child, leaves) for child in spec.children()]
    if spec.type is tuple:
        return f"Tuple[{', '.join(kinds)}]"
    if spec.type is list:
        return f"List[{_common(kinds, 'a list')}]"
    return f"Dict[str, {_common(kinds, 'a dict')}]"


def leaves_of(spec: TreeSpec, value: str) -> Iterator[str]:
    """Yield the expressions of an argument's leaves, in the order that a program has them in."""
    if spec.is_leaf():
        yield value
        return
    _check(spec)
    keys = spec.context if spec.type is dict else range(spec.num_children)
    for key, child in zip(keys, spec.children(), strict=True):
        yield from leaves_of(child, f"{value}[{key!r}]")


def structure_of(spec: TreeSpec, leaves: Iterator[str]) -> str:
    """Return the expression of a result; its leaves come from the remaining ones."""
    if spec.is_leaf():
        return next(leaves)
    _check(spec)
    parts = [structure_of(child, leaves) for child in spec.children()]
    if spec.type is dict:
        pairs = zip(spec.context, parts, strict=True)
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in pairs) + "}"
    if spec.type is list:
        return f"[{', '.join(parts)}]"
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _common(kinds: list[str], container: str) -> str:
    if len(set(kinds)) > 1:
        raise JitPassesError(
            f"TorchScript has one type for all values of {container}, and the program has "
            f"{' and '.join(sorted(set(kinds)))}: pass them as a tuple"
        )
    return kinds[0] if kinds else "torch.Tensor"


def _check(spec: TreeSpec) -> None:
    named = spec.type is dict and not all(isinstance(key, str) for key in spec.context)
    if spec.type not in _CONTAINERS or named:
        kind = "dict with keys that are no text" if named else spec.type.__name__
        raise JitPassesError(
            f"the program takes or gives a {kind}, which TorchScript does not have: use tensors, "
            "numbers, tuples, lists, and dicts by text"
        )
