"""Passes before autograd: they get the graphs that PyTorch compiles.

PyTorch's compiling functions are replaced while a pass of this stage is scheduled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from .. import _C
from ..errors import JitPassesError, PassError, first_line, warn
from .pipeline import RESOLVE, own
from .subject import GraphSubject, ModuleSubject, Subject

# Whether this package itself is at work: a pass, or the compilation of a rule's pattern.
_own_work: ContextVar[bool] = ContextVar("jit_passes_own_work", default=False)
# Whether something is being compiled. A callee that is compiled meanwhile is a part of it.
_compiling: ContextVar[bool] = ContextVar("jit_passes_compiling", default=False)


class Handle(Protocol):
    """A pass that is scheduled."""

    name: str

    def apply(self, subject: Subject) -> bool: ...


Function = Callable[..., Any]
Active = Callable[[], Sequence[Handle]]


def _around_script(original: Function, active: Active) -> Function:
    @functools.wraps(original)
    def script(
        obj: Any, optimize: Any = None, _frames_up: int = 0, *rest: Any, **options: Any
    ) -> Any:
        with _compilation() as outermost:
            # A frame more than usual, between the user's names and the code that looks them up.
            compiled = original(obj, optimize, _frames_up + 1, *rest, **options)
        return _process(compiled, active()) if outermost and compiled is not obj else compiled

    return script


def _around_trace(original: Function, active: Active) -> Function:
    @functools.wraps(original)
    def trace(*arguments: Any, **options: Any) -> Any:
        with _compilation() as outermost:
            compiled = original(*arguments, **options)
        given = (*arguments, options.get("func"), options.get("mod"))
        is_new = all(compiled is not other for other in given)
        return _process(compiled, active()) if outermost and is_new else compiled

    return trace


def _around_make_module(original: Function, active: Active) -> Function:
    # Only trace_module calls it. If nothing else of ours is on the way, that was called by a name
    # which had been imported before it was replaced.
    @functools.wraps(original)
    def make_module(*arguments: Any, **options: Any) -> Any:
        if not _compiling.get() and not is_own_work() and active():
            warn(
                "scheduled passes do not reach this call of trace_module, which was imported from "
                "torch.jit before they were scheduled: call torch.jit.trace_module"
            )
        return original(*arguments, **options)

    return make_module


def _around_check(original: Function, active: Active) -> Function:
    # PyTorch traces again and compares: with the plain trace, so no pass must run on either.
    @functools.wraps(original)
    def check_trace(*arguments: Any, **options: Any) -> Any:
        with _compilation():
            return original(*arguments, **options)

    return check_trace


_PLACES: tuple[tuple[Any, str, Callable[[Function, Active], Function]], ...] = (
    # `script` and `trace` call these two, so earlier imports of `script` and `trace` have them too.
    (torch.jit._script, "_script_impl", _around_script),
    (torch.jit._trace, "_trace_impl", _around_trace),
    (torch.jit._trace, "trace_module", _around_trace),
    (torch.jit._trace, "make_module", _around_make_module),
    (torch.jit._trace, "_check_trace", _around_check),
    (torch.jit, "trace_module", _around_trace),
)
_patched: list[tuple[Any, str, Any, Any]] = []


def intercept(wanted: bool, active: Active) -> None:
    """Replace the functions of PyTorch that compile, or put them back."""
    if wanted and not _patched:
        for owner, name, around in _PLACES:
            original = getattr(owner, name)
            replacement = around(original, active)
            setattr(owner, name, replacement)
            _patched.append((owner, name, original, replacement))
    elif not wanted:
        for owner, name, original, replacement in _patched:
            # Where someone has wrapped ours, theirs stays: ours inside of it does nothing now.
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)
        _patched.clear()


def is_own_work() -> bool:
    """Return whether the present compilation belongs to a pass or a rule, not to the user."""
    return _own_work.get()


def own_work() -> AbstractContextManager[bool]:
    """Keep scheduled passes away from code that is compiled inside."""
    return _noted(_own_work)


def _compilation() -> AbstractContextManager[bool]:
    """Give whether a compilation inside is a whole, not part of another compilation."""
    return _noted(_compiling)


@contextmanager
def _noted(flag: ContextVar[bool]) -> Iterator[bool]:
    outermost = not (_compiling.get() or _own_work.get())
    token = flag.set(True)
    try:
        yield outermost
    finally:
        flag.reset(token)


def _process(compiled: Any, handles: Sequence[Handle]) -> Any:
    if not handles:
        return compiled
    with own_work():
        if isinstance(compiled, torch.jit.ScriptModule):
            _process_module(compiled, handles)
        elif isinstance(compiled, torch.jit.ScriptFunction):
            return _process_function(compiled, handles)
    return compiled


def _process_module(module: torch.jit.ScriptModule, handles: Sequence[Handle]) -> None:
    # Methods like __len__ are for Python, and compute no tensors.
    methods = [name for name in module._c._method_names() if not name.startswith("__")]
    if not methods:
        return
    try:
        cpp_module = own(module, methods[0]).module
        for method in methods[1:]:
            RESOLVE.run_on(ModuleSubject(cpp_module, method))
        for method in methods:
            _require_one_graph(ModuleSubject(cpp_module, method))
    except JitPassesError as error:
        _warn(f"the module {module.original_name}", error, handles)
        return
    changed = False
    for method in methods:
        if not cpp_module._has_method(method):
            names = ", ".join(f"'{handle.name}'" for handle in handles)
            raise PassError(
                f"scheduled before autograd: {names} left no method '{method}', and a pass here "
                "must keep all methods: run it with Pipeline.run on one",
                handles[-1].name,
                (),
            )
        subject = ModuleSubject(cpp_module, method)
        for handle in handles:
            changed |= handle.apply(subject)
        cpp_module = subject.module
    if changed:
        module._reconstruct(cpp_module)


def _process_function(function: Any, handles: Sequence[Handle]) -> Any:
    subject = GraphSubject(function.graph.copy())
    try:
        _C.inline_graph(subject.held)
        RESOLVE.run_on(subject)
        _require_one_graph(subject)
    except (JitPassesError, RuntimeError) as error:
        _warn(f"the function {function.name}", error, handles)
        return function
    changes = [handle.apply(subject) for handle in handles]
    if not any(changes):
        return function
    made = _C.rebuild_function(function, subject.held)
    for name in ("__doc__", "__name__", "__qualname__"):
        if hasattr(function, name):
            setattr(made, name, getattr(function, name))
    # Without `_torchdynamo_inline`: torch.compile would go by the Python source, around the passes.
    return made


def _require_one_graph(subject: Subject) -> None:
    problem = subject.check("inlined")
    if problem:
        raise JitPassesError(problem)


def _warn(what: str, error: Exception, handles: Sequence[Handle]) -> None:
    names = ", ".join(f"'{handle.name}'" for handle in handles)
    warn(
        f"{what} stays as PyTorch compiled it, and was not seen by the scheduled {names}: "
        f"{first_line(error)}"
    )
