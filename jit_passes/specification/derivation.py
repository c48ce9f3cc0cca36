"""Functions that derive parameters, and their names, by which prepared models find them again."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from ..errors import JitPassesError
from .parameters import QParams

# Makes scale and zero point out of the parameters of other values. Tensors for one per channel.
Derivation = Callable[[Sequence[QParams]], tuple[float | torch.Tensor, int | torch.Tensor]]

_MARKED: dict[str, Derivation] = {}
# Unmarked functions. Names of closures hold a number that no other process has.
_LOCAL: WeakValueDictionary[str, Derivation] = WeakValueDictionary()
_HOLDERS: WeakKeyDictionary[torch.nn.Module, tuple[Derivation, ...]] = WeakKeyDictionary()
_PROCESS = secrets.token_hex(4)
_NUMBERS = count()


def derivation(function: Derivation) -> Derivation:
    """Mark a function that derives parameters, so that a saved prepared model finds it again."""
    _MARKED[_name_of(function)] = function
    return function


def derivation_name(function: Derivation) -> str:
    """Return the name that a prepared model keeps.

    A function that is marked, or stands at the top of a module, is named by its module and its own
    name. Only a marked function can be found by another process. Other functions have a name in
    this process, for as long as someone holds them: see `hold_derivations`.
    """
    name = _name_of(function)
    if _MARKED.get(name) is function:
        return name
    module = sys.modules.get(function.__module__)
    if getattr(module, name.removeprefix(f"{function.__module__}."), None) is function:
        _LOCAL[name] = function
        return name
    for known, other in _LOCAL.items():
        if other == function:  # bound methods are made anew
            return known
    name = f"{name}#{_PROCESS}-{next(_NUMBERS)}"
    _LOCAL[name] = function
    return name


def hold_derivations(model: torch.nn.Module, names: Iterable[str]) -> None:
    """Keep the functions of these names for as long as the model is there."""
    _HOLDERS[model] = tuple(find_derivation(name) for name in names)


def find_derivation(name: str) -> Derivation:
    """Return the function of that name.

    Raises:
        JitPassesError: it is not known in this process.
    """
    function = _MARKED.get(name) or _LOCAL.get(name)
    if function is None:
        own = name.partition("#")[0]
        reason = (
            "it is made while another function runs, as closures are, and lives no longer than the "
            "process and the model that was prepared with it. Define it at the top of a module"
            if "#" in name
            else "this process does not have it"
        )
        why = f"the model derives parameters with the function '{own}', and {reason}"
        raise JitPassesError(
            f"{why}: mark it with @jit_passes.quantizer.derivation and import the module it is in",
            command=f"{why}: pass --plugin with the module it is in",
        )
    return function


def _name_of(function: Derivation) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"
