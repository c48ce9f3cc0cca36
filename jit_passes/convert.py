"""Stage 4: observers become quantize and dequantize: the reference model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import _C
from .errors import JitPassesError, warn
from .module import OperatorRecord, stage_of, wrap
from .observers import ObserverState
from .passes import Pipeline
from .quantizer import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QParams,
    QuantizationSpec,
    choose_qparams,
    spec_from_text,
)
from .quantizer.qparams import derive_qparams, fixed_qparams
from .quantizer.specification import ResolvedSpec

CONVERT = Pipeline(
    "convert",
    (
        "fold_constant_lists",  # a file spells them out
        "insert_quantize_dequantize",
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
    groups = Groups(observers, refused)
    parameters = [groups.parameters_at(o) for o in observers]
    options = {
        "insert_quantize_dequantize": {
            "parameters": [p.as_options() if p else None for p in parameters]
        }
    }
    result = CONVERT.run(module, report.method, options=options)
    operators = tuple(_with_refusal(row, refused) for row in report.operators)
    _warn(operators, refused, any(parameters))
    replace(report, stage="reference", operators=operators).write(result.module)
    return wrap(result.module)


@dataclass(frozen=True)
class _Observer:
    op: str
    name: str
    spec: ResolvedSpec
    group: int
    observed: bool
    owner: str
    users: tuple[str, ...]
    ranks: tuple[int, int]
    state: ObserverState
    channels: int = 0  # 0 per tensor, or not known ahead of time

    @property
    def reached(self) -> bool:
        """Whether calibration saw the value; one that is not looked at counts as seen."""
        return self.op == "observe_nothing" or self.state.reached


def _read(module: Any, method: str) -> list[_Observer]:
    observers = []
    for op, name, text, range_, histogram in _C.observations(module, method):
        spec, extra = spec_from_text(text)
        state = ObserverState(range_, histogram)
        extra = {**extra, "users": tuple(extra["users"]), "ranks": tuple(extra["ranks"])}
        observers.append(_Observer(op=op, name=name, spec=spec, state=state, **extra))
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
    if not observer.reached:
        return "calibration never reached it"
    if observer.op != "observe_nothing" and observer.state.range.dim() == 1:
        lowest, highest = observer.state.ranks
        allowed = observer.ranks
        if observer.observed and not (allowed[0] <= lowest and highest <= allowed[1]):
            seen = lowest if lowest < allowed[0] else highest
            return f"its result has {seen} dimensions, and the backend does {_span(allowed)}"
    return None


def _span(ranks: tuple[int, int]) -> str:
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]} to {ranks[1]}"


class Groups:
    """The parameters of each group of values that share them."""

    def __init__(self, observers: list[_Observer], refused: dict[str, str]) -> None:
        self._refused = refused
        self._members: dict[int, list[_Observer]] = {}
        for observer in observers:
            self._members.setdefault(observer.group, []).append(observer)
        self._found: dict[int, QParams | None] = {}

    def parameters_at(self, observer: _Observer) -> QParams | None:
        """Return the parameters at one place; None where the value stays float."""
        return self._of_group(observer.group) if self._stays(observer) else None

    def _stays(self, observer: _Observer) -> bool:
        users_refused = bool(observer.users) and all(u in self._refused for u in observer.users)
        return observer.owner not in self._refused and not users_refused and observer.reached

    def _of_group(self, group: int) -> QParams | None:
        pending = [group]  # not recursive: derivations may be many, one after another
        while pending:
            last = pending[-1]
            missing = [source for source in self._sources(last) if source not in self._found]
            if missing and last not in self._found:
                pending += missing
            else:
                if last not in self._found:
                    self._found[last] = self._choose(last)
                pending.pop()
        return self._found[group]

    def _leaders(self, group: int) -> list[_Observer]:
        return [o for o in self._members.get(group, ()) if o.observed and self._stays(o)]

    def _sources(self, group: int) -> tuple[int, ...]:
        leaders = self._leaders(group)
        spec = leaders[0].spec if leaders else None
        return spec.groups if isinstance(spec, GroupDerivation) else ()

    def _choose(self, group: int) -> QParams | None:
        leaders = self._leaders(group)
        if not leaders:
            return None
        spec = leaders[0].spec
        if isinstance(spec, FixedQParamsQuantizationSpec):
            return fixed_qparams(spec)
        if isinstance(spec, QuantizationSpec):
            return choose_qparams(spec, leaders[0].state)
        sources = [self._found[source] for source in spec.groups]
        known = [source for source in sources if source is not None]
        if len(known) < len(sources):
            return None
        parameters = derive_qparams(spec, known, leaders[0].name)
        _check_channels(parameters, leaders)
        return parameters


def _check_channels(parameters: QParams, observers: list[_Observer]) -> None:
    scale = parameters.scale
    found = len(scale) if isinstance(scale, torch.Tensor) else 0
    for observer in observers:
        if observer.channels and observer.channels != found:
            assert isinstance(observer.spec, GroupDerivation)
            raise JitPassesError(
                f"'{observer.name}' has {observer.channels} channels, and "
                f"{observer.spec.function} derived parameters for {found}"
            )


def _with_refusal(row: OperatorRecord, refused: dict[str, str]) -> OperatorRecord:
    reason = refused.get(row.name)
    return replace(row, dtype="float", reason=reason) if reason else row


def _warn(operators: tuple[OperatorRecord, ...], refused: dict[str, str], quantized: bool) -> None:
    unreached = [name for name, reason in refused.items() if "never reached" in reason]
    if unreached:
        more = f" and {len(unreached) - 5} more" if len(unreached) > 5 else ""
        warn(
            f"calibration data never reached {', '.join(unreached[:5])}{more}: they stay float; "
            "calibrate with data that takes these branches to quantize them"
        )
    if not quantized:
        reasons = Counter(row.reason for row in operators)
        why = "; ".join(f"{count} of them: {reason}" for reason, count in reasons.most_common(3))
        warn(
            "nothing was quantized: "
            + (f"{why}" if why else "the model has no convolution or linear with constant weights")
        )
