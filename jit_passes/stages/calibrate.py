"""Stage 3: run data through a prepared model."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from tqdm import tqdm

from .. import _C
from ..errors import JitPassesError
from ..graph.view import GraphView
from .module import stage_of

InputFn = Callable[[Any], Any]


def calibrate(
    prepared: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Run batches through a prepared model, whose observers watch.

    Can be called again with more data. Batches are not kept.

    Args:
        prepared: the result of `prepare`; its observers are updated.
        data: an iterable of batches, a DataLoader for instance. A batch is a tensor, a tuple of
            positional arguments, or a dict of keyword arguments.
        input_fn: makes such a batch out of what `data` gives, for a DataLoader that yields
            labels too: `input_fn=lambda batch: batch[0]`.
        progress: a progress bar; None for one on terminals only.

    Returns:
        The prepared model.

    Raises:
        JitPassesError: there is no batch; the model does not take such batches; a value is NaN
            or infinite, which the message names.
    """
    report = stage_of(prepared, "prepared", "call jit_passes.prepare(model) first")
    show = sys.stderr.isatty() if progress is None else progress
    batches = 0
    before = _C.deepcopy(prepared._c)
    try:
        # Optimizing the graph would take longer than a few batches gain from it.
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            for batch in tqdm(_iterate(data), desc="calibrate", unit="batch", disable=not show):
                args, kwargs = _arguments(batch if input_fn is None else input_fn(batch))
                _run(prepared, report.method, args, kwargs, batches)
                batches += 1
    finally:  # counters and other state of the model's own are not the data's business
        _C.restore_state(prepared._c, before)
    if batches == 0:
        raise JitPassesError(
            "the calibration data is empty: pass an iterable with at least one batch (a generator "
            "that was used before is empty)"
        )
    replace(report, calibrated=True).write(prepared._c)
    return prepared


def _iterate(data: Any) -> Iterable[Any]:
    if isinstance(data, torch.Tensor):
        raise JitPassesError(
            "the calibration data is an iterable of batches, not one tensor: pass [tensor]"
        )
    try:
        iter(data)
    except TypeError:
        raise JitPassesError(
            f"the calibration data is an iterable of batches, got {type(data).__name__}"
        ) from None
    iterable: Iterable[Any] = data
    return iterable


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch) if isinstance(batch, tuple) else (batch,)), {}


def _run(
    model: torch.jit.ScriptModule,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    number: int,
) -> None:
    method = getattr(model, name)
    try:
        method(*args, **kwargs)
    except Exception as error:
        if unmeasurable := re.search(r"the value '.*' holds a NaN .*", str(error)):
            message = _bad_weight(model, name) or unmeasurable[0]
            raise JitPassesError(f"calibration batch {number}: {message}") from error
        got = ", ".join([*map(_kind, args), *(f"{k}={_kind(v)}" for k, v in kwargs.items())])
        raise JitPassesError(
            f"calibration batch {number} does not run. The model takes {_parameters(method)}; the "
            f"batch gives ({got}). If batches hold more than the model's inputs, pass "
            f"input_fn=lambda batch: ... to pick them. PyTorch says: {last_line(error)}"
        ) from error


def _bad_weight(model: torch.jit.ScriptModule, method: str) -> str | None:
    """Say which weight holds a NaN, so that data are not to blame; None if none does."""
    for node in GraphView.of(model, method).nodes:
        for value in node.inputs:
            tensor = value.constant
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.is_floating_point()
                and bool(tensor.isnan().any())
            ):
                return (
                    f"the weight '{value.name}', which '{node.name}' reads, holds a NaN: the data "
                    "are not to blame; look at the state_dict of the model"
                )
    return None


def last_line(error: BaseException) -> str:
    """Return what went wrong, without the interpreter's traceback in front of it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    found = [line for line in lines if line.startswith(("RuntimeError: ", "builtins."))]
    return (found or lines or [type(error).__name__])[-1 if found else 0]


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def _parameters(method: Any) -> str:
    arguments = method.schema.arguments[1:]
    shown = [
        f"{a.name}: {a.type}" + (f" = {a.default_value}" if a.has_default_value() else "")
        for a in arguments
    ]
    return f"({', '.join(shown)})"
