"""All stages in order, for one method: from float to int8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _C
from .configuration.stages import StageOptions
from .errors import JitPassesError, count_of, warn
from .logs import stage
from .profile import fill
from .quantizers.automatic import NEEDS_DATA
from .quantizers.backend import BackendQuantizer
from .quantizers.base import Quantizer
from .stages.annotate import choose_quantizer, frozen
from .stages.batches import InputFn
from .stages.calibrate import calibrate_alone
from .stages.convert import converted
from .stages.lower import lowered
from .stages.module import Report
from .stages.prepare import prepare_for
from .stages.records import refuse
from .stages.seen import needs_data
from .stages.staged import Staged
from .targets import Target

RANGES = (
    "ranges come from calibration data, an iterable of batches, or from a profile: pass one of "
    "the two"
)
OPTIONS = "ranges come from --data, --profile or --random"


def quantize_method(
    model: torch.jit.ScriptModule, calibration_data: Any, profile: Any, *,
    quantizer: Quantizer | None, target: str | Target, config: Any, mode: str | None,
    stages: StageOptions, strict: bool, progress: bool | None, method: str,
    input_fn: InputFn | None, state: Sequence[str] | None = None,
) -> torch.jit.ScriptModule:  # fmt: skip
    """Return a model with one method, quantized.

    The argument `stages` wins over the stages of the configuration. `state` has the paths of
    attributes that the method shares with others, None where it is the only one. For all else see
    `jit_passes.quantize_script`.
    """
    if calibration_data is not None and profile is not None:
        raise JitPassesError(RANGES, command=OPTIONS)
    has_data = calibration_data is not None or profile is not None
    backend, chosen = choose_quantizer(quantizer, target, config, mode)
    if isinstance(chosen, BackendQuantizer):
        stages = chosen.configuration.stages.updated(stages)
        chosen = chosen if has_data else chosen.without_data()
    staged = Staged(
        stages, model, calibration_data, profile is not None, chosen, input_fn, progress,
        alone=state is None,
    )  # fmt: skip
    prepared = prepare_for(
        model, backend, chosen, change=staged.change, strict=strict, method=method,
        mode=frozen(state or ()),
    )  # fmt: skip
    if profile is not None:
        fill(prepared, profile)
    elif staged.calibrating is not None:
        calibrate_alone(prepared, staged.calibrating, input_fn, progress, staged.sample)
    elif needs_data(prepared):
        raise JitPassesError(RANGES, command=OPTIONS)
    else:
        check_without_data(prepared)
    held = [staged.finished(prepared)]
    del prepared, staged  # which hold weights too
    return _finished(held, backend, strict, progress)


def _finished(
    held: list[torch.jit.ScriptModule], backend: Target, strict: bool, progress: bool | None
) -> torch.jit.ScriptModule:
    """Convert and lower the only model in a list, which is taken out of it.

    Then no other code holds it, so its weights can be freed one by one.
    """
    before = Report.read(held[0])
    assert before is not None
    module = _C.clone(held.pop()._c, before.method)  # the executor has copies for the old one
    with stage("convert"):
        module = converted(module, before, progress)._c
    reference = Report.read(module)
    assert reference is not None
    if strict:
        check_converted(before, reference)
    with stage("lower"):
        return lowered(module, reference, backend, progress)


def check_converted(before: Report, after: Report) -> None:
    """Raise an error for operators that data have ruled out, by never reaching them, say."""
    pairs = zip(before.operators, after.operators, strict=True)
    refuse([row for was, row in pairs if was.dtype != row.dtype])


def check_without_data(prepared: torch.jit.ScriptModule) -> None:
    """Tell which operators of a prepared model stay in float for want of data.

    Raises:
        JitPassesError: all that could be quantized do.
    """
    report = Report.read(prepared)
    assert report is not None
    waiting = [row.name for row in report.operators if row.reason == NEEDS_DATA]
    if waiting and not any(row.dtype == "int8" for row in report.operators):
        raise JitPassesError(RANGES, command=OPTIONS)
    if waiting:
        stay = "stays" if len(waiting) == 1 else "stay"
        count = count_of(len(waiting), "operator")
        why = f"{count} {stay} in float without data, '{waiting[0]}' first"
        warn(f"{why}: {RANGES}", command=f"{why}: {OPTIONS}")
