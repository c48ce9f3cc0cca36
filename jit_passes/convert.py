"""Stage 4: observers become quantize and dequantize: the reference model."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import _C
from .errors import JitPassesError, JitPassesWarning
from .module import OperatorRecord, stage_of, wrap
from .observers import ObserverState
from .passes import Pipeline
from .quantizer import FixedQParamsQuantizationSpec, QParams, choose_qparams, spec_from_text

CONVERT = Pipeline(
    "convert",
    (
        "fold_constant_lists",  # a file spells them out
        "insert_quantize_dequantize",
        "quantize_bias",
        "fold_quantized_constants",
        "remove_dead_code",
        "pool_constants",
        "remove_unused_attributes",
    ),
)


def convert(prepared: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Return the reference model of a calibrated one.

    It computes in float on values that went through `jit_passes::quantize` and `dequantize`;
    weights are stored as integers, biases as int32 in steps of input scale times weight scale.
    It defines what every lowered model must compute, to within one step.

    Args:
        prepared: a calibrated model; it is not touched.

    Raises:
        JitPassesError: the model was not prepared, or not calibrated.

    Warns:
        JitPassesWarning: calibration did not reach part of the model, which stays float; or
            nothing was quantized at all.
    """
    report = stage_of(prepared, "prepared", "call jit_passes.prepare and calibrate first")
    module = _C.clone(prepared._c, report.method)
    observers = _read(module, report.method)
    refused = refusals(observers)
    run = report.calibrated or any(o.state.reached for o in observers)
    if observers and not run:
        raise JitPassesError("the model was not calibrated: call jit_passes.calibrate(model, data)")
    parameters = [_parameters(o, observers, refused) for o in observers]
    options = {
        "insert_quantize_dequantize": {
            "parameters": [p.as_options() if p else None for p in parameters]
        }
    }
    result = CONVERT.run(module, report.method, options=options)
    operators = tuple(_with_refusal(row, refused) for row in report.operators)
    _warn(operators, refused)
    replace(report, stage="reference", operators=operators).write(result.module)
    return wrap(result.module)


@dataclass(frozen=True)
class _Observer:
    op: str
    name: str
    spec: Any
    owner: str
    users: tuple[str, ...]
    ranks: tuple[int, int]
    shared: bool
    state: ObserverState


def _read(module: Any, method: str) -> list[_Observer]:
    observers = []
    for op, name, text, range_, histogram in _C.observations(module, method):
        spec, extra = spec_from_text(text)
        observers.append(
            _Observer(
                op,
                name,
                spec,
                extra["owner"],
                tuple(extra.get("users", ())),
                tuple(extra["ranks"]),
                extra.get("shared", False),
                ObserverState(range_, histogram),
            )
        )
    return observers


def refusals(observers: list[_Observer]) -> dict[str, str]:
    """Return, by name of the operator, why calibration rules out that it is quantized."""
    refused: dict[str, str] = {}
    for observer in observers:
        reason = _refusal(observer)
        if observer.owner and reason:
            refused.setdefault(observer.owner, reason)
    return refused


def _refusal(observer: _Observer) -> str | None:
    if not observer.state.reached:
        return "calibration never reached it"
    if observer.state.range.dim() == 1:
        lowest, highest = observer.state.ranks
        allowed = observer.ranks
        if not observer.shared and not (allowed[0] <= lowest and highest <= allowed[1]):
            seen = lowest if lowest < allowed[0] else highest
            return f"its result has {seen} dimensions, and the backend does {_span(allowed)}"
    return None


def _span(ranks: tuple[int, int]) -> str:
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]} to {ranks[1]}"


def _parameters(
    observer: _Observer, observers: list[_Observer], refused: dict[str, str]
) -> QParams | None:
    users_refused = bool(observer.users) and all(user in refused for user in observer.users)
    if observer.owner in refused or users_refused or not observer.state.reached:
        return None
    spec = observer.spec
    if isinstance(spec, FixedQParamsQuantizationSpec):
        grid = (spec.quant_min, spec.quant_max, spec.dtype)
        return QParams(spec.scale, spec.zero_point, None, *grid)
    if observer.shared:
        source = next(
            (
                o
                for o in observers
                if not o.shared and o.state.range.data_ptr() == observer.state.range.data_ptr()
            ),
            None,
        )
        if source is None or source.owner in refused:
            return None
        return _parameters(source, observers, refused)
    return choose_qparams(spec, observer.state)


def _with_refusal(row: OperatorRecord, refused: dict[str, str]) -> OperatorRecord:
    reason = refused.get(row.name)
    return replace(row, dtype="float", reason=reason) if reason else row


def _warn(operators: tuple[OperatorRecord, ...], refused: dict[str, str]) -> None:
    unreached = [name for name, reason in refused.items() if "never reached" in reason]
    if unreached:
        more = f" and {len(unreached) - 5} more" if len(unreached) > 5 else ""
        warnings.warn(
            f"calibration data never reached {', '.join(unreached[:5])}{more}: they stay float; "
            "calibrate with data that takes these branches to quantize them",
            JitPassesWarning,
            stacklevel=3,
        )
    if not any(row.dtype == "int8" for row in operators):
        reasons = Counter(row.reason for row in operators)
        why = "; ".join(f"{count} of them: {reason}" for reason, count in reasons.most_common(3))
        warnings.warn(
            "nothing was quantized: "
            + (f"{why}" if why else "the model has no convolution or linear with constant weights"),
            JitPassesWarning,
            stacklevel=3,
        )
