"""A model with several methods. The chosen ones are quantized, each in a module of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError, nearest
from ..passes.subject import check_script, wrap
from .module import PART, check_module


def check_methods(model: Any, methods: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of methods to quantize, and the state that methods have in common.

    The state is given by paths of attributes that one method changes and another one uses, one of
    the two being quantized.

    Raises:
        JitPassesError: they are not names of methods, or the changes of a method are not known.
    """
    if isinstance(methods, str) or not isinstance(methods, Sequence) or not methods:
        raise JitPassesError(f"methods is a list of names of methods, got {methods!r}")
    for name in methods:
        check_module(model, name)
        if hasattr(model, PART + name):
            raise JitPassesError(
                f"the model has an attribute '{PART}{name}' of its own, and the quantized "
                f"'{name}' needs that name: rename the attribute"
            )
    for name in model._c._method_names():
        check_script(model, name)
    state, opaque = _C.common_state(model._c, set(methods))
    if opaque and state:
        raise JitPassesError(
            f"the method '{opaque}' uses '{state[0]}', which another method uses too, in a branch "
            "that runs on its own (torch.jit.fork): quantize one method alone"
        )
    if opaque:
        raise JitPassesError(
            f"the method '{opaque}' picks modules as it runs, so its changes are not known: "
            "quantize one method alone"
        )
    return tuple(dict.fromkeys(methods)), tuple(state)


def by_method(given: Any, methods: Sequence[str], what: str) -> Mapping[str, Any]:
    """Return the value given for each method: a dict by method, or for one method the value.

    Raises:
        JitPassesError: it is no dict by method.
    """
    if given is None or (len(methods) == 1 and not isinstance(given, dict)):
        return dict.fromkeys(methods, given)
    if not isinstance(given, dict):
        names = ", ".join(f"'{name}': ..." for name in methods)
        raise JitPassesError(
            f"of several methods, {what} is a dict by method, {{{names}}}, not of type "
            f"{type(given).__name__}"
        )
    for name in given:
        if name not in methods:
            raise JitPassesError(
                f"{what} is given for '{name}', which is none of the methods to quantize; "
                f"{nearest(str(name), methods)}"
            )
    return given


def join_methods(
    model: torch.jit.ScriptModule, parts: Mapping[str, torch.jit.ScriptModule]
) -> torch.jit.ScriptModule:
    """Return a copy of the model in which some methods come from other modules.

    State that methods have in common is in a module of its own, `common_state`.

    Args:
        model: a model that `check_methods` has passed; it is not touched.
        parts: by method, the module that has it.
    """
    return wrap(_C.join_methods(model._c, [(name, part._c) for name, part in parts.items()]))
