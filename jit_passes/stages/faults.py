"""Why a batch does not run: the model does not take it, or jit_passes has made a model that fails.

    float model takes the batch, the canonical form does not    an error in all targets
    canonical form takes it, the form of the target does not    an error that other targets avoid
    that form takes it, the model with observers does not       an error of an observer or quantizer

These causes are looked at once a batch has failed: a batch that runs costs nothing.
"""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from .. import _C
from ..errors import JitPassesError, without_folders
from ..graph.view import GraphView
from ..passes.subject import wrap
from ..targets import Target
from .annotate import formed
from .arguments import Advice, advice
from .batches import cloned
from .module import Report
from .normalize import normalize

# The model that another one was made from, as long as another reference keeps it.
_ORIGINS: WeakKeyDictionary[torch.nn.Module, ref[torch.jit.ScriptModule]] = WeakKeyDictionary()

# A call of a script, and one of a trace.
_FRAME = re.compile(
    r'^ *(?:File "(?P<file>[^"\n]+)", line (?P<line>\d+)|(?P<traced>.+)\((?P<at>\d+)\): )', re.M
)
_PICK = ". If batches hold more than the model takes, pick it: input_fn=lambda batch: ..."
_REPORT = "please report it as an error in jit_passes, with the model's code"
_OTHERS = ("stock", "reference")  # targets without forms of their own
_UNMEASURABLE = re.compile(r"the value '.*' holds a NaN .*")
_OF_TORCH = re.compile(r"(^|[/\\])torch[/\\]")


def unmeasurable(error: Exception) -> str | None:
    """Return what an observer says of a value whose range it cannot take; None for other errors."""
    found = _UNMEASURABLE.search(str(error))
    return None if found is None else found[0]


def note_origin(made: torch.jit.ScriptModule, model: torch.jit.ScriptModule) -> None:
    """Note the model from which another one was made, without keeping it alive."""
    _ORIGINS[made] = ref(model)


def origin_of(made: torch.jit.ScriptModule) -> torch.jit.ScriptModule | None:
    """Return the model from which another one was made, if it is known and still there."""
    found = _ORIGINS.get(made)
    return None if found is None else found()


def takes(
    model: torch.jit.ScriptModule | None, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool | None:
    """Say whether a copy of the model runs a batch; None where there is no model."""
    return None if model is None else _runs(model._c, method, args, kwargs)


def run_batch(
    method: Any, batch: tuple[tuple[Any, ...], dict[str, Any]], what: str, fits: bool | None = None
) -> Any:
    """Run a method on a copy of a batch, since the model may write to its arguments.

    Args:
        method: of a model.
        batch: positional and keyword arguments.
        what: the name of the batch in messages.
        fits: as in `misfit`.

    Raises:
        JitPassesError: the model does not take the batch, or a NaN in it.
    """
    args, kwargs = cloned(batch)
    try:
        return method(*args, **kwargs)
    except Exception as error:
        if why := unmeasurable(error):
            raise JitPassesError(f"{what}: {why}") from error
        raise misfit(method, *batch, what, error, fits) from error


def misfit(
    method: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    what: str,
    error: Exception,
    fits: bool | None = None,
) -> JitPassesError:
    """Return the error for a batch that a model does not run: why, its inputs, and the batch.

    Args:
        method: of the model.
        args: the batch's positional arguments.
        kwargs: its keyword arguments.
        what: the name of the batch in the message.
        error: the error of PyTorch.
        fits: whether the model from which this one was made takes the batch; None if unknown.
    """
    if fits and not _binds(method, args, kwargs):
        return JitPassesError(
            f"{what} does not run, and the float model takes it: this model takes "
            f"{_parameters(method)}, so it was made of another one"
        )
    if fits:
        return broken(what, error, "The model that jit_passes has made fails")
    said = last_line(error)
    got = ", ".join([*map(_kind, args), *(f"{k}={_kind(v)}" for k, v in kwargs.items())])
    found = advice(method, args, kwargs, said, of_batch=True)
    alone = len(args) == 1 and isinstance(args[0], torch.Tensor) and not kwargs
    certain = found.cause or fits is False
    unsure = "" if certain else f". If the original model takes the batch, {_REPORT}"

    def told(why: Advice, pick: str) -> str:
        return (
            f"{what} does not run{': ' if why.cause else ''}{why}. PyTorch says: {said}. "
            f"The model takes {_parameters(method)}; the batch gives ({got}){pick}{unsure}"
        )

    pick = "" if alone or "input_fn" in found.remedy else _PICK
    return JitPassesError(told(found, pick), command=told(found._replace(remedy=""), ""))


def broken(
    what: str, error: Exception, cause: str, instead: str = "", command: str = ""
) -> JitPassesError:
    """Return the error for a batch that the origin of a model runs and the model does not.

    Args:
        what: the name of the batch in the message.
        error: the error of PyTorch.
        cause: the part that fails.
        instead: a way around until that is mended.
        command: the same on the command line.
    """
    line = failing_line(error)
    place = f" at {line}" if line else ""
    message, by_command = (
        f"{what} runs in the original model, but not in the model made of it: the data are not the "
        f"cause. {cause}{place}. {way_around}{_REPORT[0].upper()}{_REPORT[1:]}. "
        f"PyTorch says: {last_line(error)}"
        for way_around in (instead, command)
    )
    return JitPassesError(message, command=by_command)


def broken_when_prepared(
    origin: torch.jit.ScriptModule,
    report: Report,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    what: str,
    error: Exception,
) -> JitPassesError:
    """Return that error for a prepared model, with the step that breaks it and a way around.

    Args:
        origin: the float model, which takes the batch.
        report: of the prepared model.
        args: the batch's positional arguments.
        kwargs: its keyword arguments.
        what: the name of the batch in the message.
        error: the error of PyTorch.
    """
    canonical = normalize(origin._c, report.method).module
    if not _runs(canonical, report.method, args, kwargs):
        return broken(what, error, "The canonical form, from which all targets start, fails")
    backend = Target.from_record(report.target) if report.target else None
    nodes = GraphView.of(canonical, report.method).nodes
    form, _ = formed(canonical, report.method, backend, report.made)
    if backend is not None and not _runs(form, report.method, args, kwargs):
        if demands := dict.fromkeys(filter(None, map(backend.demand, nodes))):
            return JitPassesError(
                f"{what} runs in the original model, but the model for the target "
                f"'{backend.name}' takes {', '.join(demands)} alone: give other data, or another "
                f"option to the target. PyTorch says: {last_line(error)}"
            )
        others = [name for name in _OTHERS if name != backend.name]
        instead, command = (
            f"Until it is mended, pass {' or '.join(form.format(name) for name in others)}. "
            for form in ("target='{}'", "--target {}")
        )
        cause = f"The form of operators for the target '{backend.name}' fails"
        return broken(what, error, cause, instead, command)
    instead, command = (
        f"Until it is mended, say keep_float for the operators there, in a rule of {config}. "
        for config in ("`config`", "the file of --config")
    )
    cause = "An observer, or a pass of the quantizer, fails"
    return broken(what, error, cause, instead, command)


def failing_line(error: BaseException) -> str:
    """Return `net.py:12`, the line of the model that failed; "" where the message has none."""
    frames = list(_FRAME.finditer(str(error)))
    if frames and frames[0]["file"]:  # the innermost call of a script comes last
        frames.reverse()
    for frame in frames:
        path = frame["file"] or frame["traced"].strip()
        if not _OF_TORCH.search(path) and not path.startswith("code/"):
            return without_folders(f"{path}:{frame['line'] or frame['at']}")
    return ""


def last_line(error: BaseException) -> str:
    """Return the error's text, without the interpreter's traceback in front of it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    found = [line for line in lines if line.startswith(("RuntimeError: ", "builtins."))]
    line = (found or lines or [type(error).__name__])[-1 if found else 0]
    return line.removeprefix("RuntimeError: ").rstrip(".")


def _runs(module: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    model = wrap(_C.deepcopy(_C.clone(module, method)))
    given, named = cloned((args, kwargs))
    with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        try:
            getattr(model, method)(*given, **named)
        except Exception:
            return False
    return True


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return f"{type(value).__name__} {value.dtype}{list(value.shape)}"
    return type(value).__name__


def _binds(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Say whether arguments have the number and names of a method's; quantizing keeps these."""
    arguments = method.schema.arguments[1:]
    given = {a.name for a in arguments[: len(args)]} | kwargs.keys()
    known = {a.name for a in arguments}
    needed = {a.name for a in arguments if not a.has_default_value()}
    return len(args) <= len(arguments) and needed <= given <= known


def _parameters(method: Any) -> str:
    arguments = method.schema.arguments[1:]
    shown = [
        f"{a.name}: {a.type}" + (f" = {a.default_value}" if a.has_default_value() else "")
        for a in arguments
    ]
    return f"({', '.join(shown)})"
