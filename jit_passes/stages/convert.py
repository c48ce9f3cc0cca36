"""Stage 4: observers become quantize and dequantize: the reference model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError, shortened, warn
from ..fake_quantizers import trained_qparams
from ..observers import ObserverState
from ..passes.pipeline import CLEAN_UP, Pipeline, wrap
from ..specification.qparams import QParams, choose_qparams, derive_qparams, fixed_qparams
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
    spec_from_text,
)
from .module import OperatorRecord, Report, stage_of

CONVERT = Pipeline(
    "convert",
    (
        "fold_constant_lists",  # a file spells them out
        "insert_quantize_dequantize",
        "fold_quantized_constants",
        *CLEAN_UP,
    ),
    ensures=("no_observers", "valid_grids"),
)


def convert(prepared: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Return the reference model of a calibrated one, or of one that has trained.

    It computes in float on values that went through `jit_passes::quantize` and `dequantize`;
    weights are stored as integers, biases as int32 in steps of input scale times weight scale.
    It defines what every lowered model must compute, to within one step.

    Args:
        prepared: a calibrated model, or one from `prepare_qat`, in training or eval mode; it is
            not touched.

    Raises:
        JitPassesError: the model was not prepared, or has seen no data.

    Warns:
        JitPassesWarning: no data reached part of the model, which stays float; or nothing was
            quantized at all.
    """
    stages = ("prepared", "qat")
    report = stage_of(prepared, stages, "call jit_passes.prepare and calibrate, or prepare_qat")
    module, places = read_places(prepared, report)
    refused = refusals(places)
    check_seen(places, report)
    groups = Groups(places, refused)
    parameters = [groups.parameters_at(place) for place in places]
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


# Out of training: batch norms are folded into weights, which are constants now.
SETTLE = Pipeline(
    "settle",
    (
        "restore_batch_norm",
        "freeze",
        "resolve_none_checks",
        "remove_dropout",
        "fold_deferred",
        "fold_batch_norm",
    ),
)

NO_DATA = {
    "prepared": "the model was not calibrated: call jit_passes.calibrate(model, data)",
    "qat": "the model has not trained: no batch in training mode came by {names}, so no scale has "
    "begun; run batches in training mode, and where these stand in branches, some that take them",
}


@dataclass(frozen=True)
class QuantizedPlace:
    """A place at which convert quantizes, as the graph of a prepared model describes it.

    Attributes:
        name: what messages call it.
        spec: how.
        group, observed, owner, users, ranks: see `Quantization`.
        channels: 0 per tensor, or not known ahead of time.
        reached: whether data came by; True for what is not looked at.
        seen: whether data is known to have come by.
        found: makes parameters out of what was seen, or trained.
        dims: the lowest and highest number of dimensions seen, if that was noted.
    """

    name: str
    spec: ResolvedSpec
    group: int
    observed: bool
    owner: str
    users: tuple[str, ...]
    ranks: tuple[int, int]
    channels: int
    reached: bool
    seen: bool
    found: Callable[[], QParams]
    dims: tuple[int, int] | None = None


def read_places(
    prepared: torch.jit.ScriptModule, report: Report
) -> tuple[Any, list[QuantizedPlace]]:
    """Return a copy of the module in which weights are constants, and its places."""
    module = _C.clone(prepared._c, report.method)
    if report.stage == "prepared":
        return module, [_observed(*row) for row in _C.observations(module, report.method)]
    wrap(module).eval()
    module = SETTLE.run(module, report.method).module
    return module, [_trained(*row) for row in _C.trained(module, report.method)]


def check_seen(places: list[QuantizedPlace], report: Report) -> None:
    """Raise a JitPassesError for a model that has seen no data; weights alone need none."""
    seen = report.calibrated or any(place.seen for place in places)
    if not seen and not all(place.reached for place in places):
        unreached = [f"'{place.name}'" for place in places if not place.reached]
        raise JitPassesError(NO_DATA[report.stage].format(names=shortened(unreached)))


def _observed(op: str, name: str, text: str, range_: Any, histogram: Any) -> QuantizedPlace:
    spec, fields = _fields(text)
    state = ObserverState(range_, histogram)
    blind = op == "observe_nothing"
    reached = blind or state.reached
    dims = state.ranks if not blind and reached and state.range.dim() == 1 else None

    def found() -> QParams:
        assert isinstance(spec, QuantizationSpec)
        return choose_qparams(spec, state)

    seen = state.reached
    return QuantizedPlace(name, spec, **fields, reached=reached, seen=seen, found=found, dims=dims)


def _trained(kind: str, operands: dict[str, Any]) -> QuantizedPlace:
    name, text = operands["name"], operands["spec"]
    spec, fields = _fields(text)
    parameters = trained_qparams(kind, operands, spec, fields.pop("method", None))
    reached = parameters is not None or isinstance(spec, GroupDerivation)
    begins = operands.get("observe") is not True and not isinstance(operands["x"], torch.Tensor)

    def found() -> QParams:
        assert parameters is not None
        return parameters

    seen = begins and parameters is not None
    return QuantizedPlace(name, spec, **fields, reached=reached, seen=seen, found=found)


def _fields(text: str) -> tuple[ResolvedSpec, dict[str, Any]]:
    spec, extra = spec_from_text(text)
    return spec, {**extra, "users": tuple(extra["users"]), "ranks": tuple(extra["ranks"])}


def refusals(places: list[QuantizedPlace]) -> dict[str, str]:
    """Return, by name of the operator, why what was seen rules out that it is quantized."""
    refused: dict[str, str] = {}
    for place in places:
        reason = _refusal(place)
        if place.owner and reason:
            refused.setdefault(place.owner, reason)
    return refused


def _refusal(place: QuantizedPlace) -> str | None:
    if not place.reached:
        return "data never reached it"
    if place.dims is not None:
        lowest, highest = place.dims
        allowed = place.ranks
        if place.observed and not (allowed[0] <= lowest and highest <= allowed[1]):
            seen = lowest if lowest < allowed[0] else highest
            return f"its result has {seen} dimensions, and the backend does {_span(allowed)}"
    return None


def _span(ranks: tuple[int, int]) -> str:
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]} to {ranks[1]}"


class Groups:
    """The parameters of each group of values that share them."""

    def __init__(self, places: list[QuantizedPlace], refused: dict[str, str]) -> None:
        self._refused = refused
        self._members: dict[int, list[QuantizedPlace]] = {}
        for place in places:
            self._members.setdefault(place.group, []).append(place)
        self._found: dict[int, QParams | None] = {}

    def parameters_at(self, place: QuantizedPlace) -> QParams | None:
        """Return the parameters at one place; None where the value stays float."""
        return self._of_group(place.group) if self._stays(place) else None

    def _stays(self, place: QuantizedPlace) -> bool:
        users_refused = bool(place.users) and all(u in self._refused for u in place.users)
        return place.owner not in self._refused and not users_refused and place.reached

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

    def _leaders(self, group: int) -> list[QuantizedPlace]:
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
            return leaders[0].found()
        sources = [self._found[source] for source in spec.groups]
        known = [source for source in sources if source is not None]
        if len(known) < len(sources):
            return None
        parameters = derive_qparams(spec, known, leaders[0].name)
        _check_channels(parameters, leaders)
        return parameters


def _check_channels(parameters: QParams, places: list[QuantizedPlace]) -> None:
    scale = parameters.scale
    found = len(scale) if isinstance(scale, torch.Tensor) else 0
    for place in places:
        if place.channels and place.channels != found:
            assert isinstance(place.spec, GroupDerivation)
            raise JitPassesError(
                f"'{place.name}' has {place.channels} channels, and "
                f"{place.spec.function} derived parameters for {found}"
            )


def _with_refusal(row: OperatorRecord, refused: dict[str, str]) -> OperatorRecord:
    reason = refused.get(row.name)
    return replace(row, dtype="float", reason=reason) if reason else row


def _warn(operators: tuple[OperatorRecord, ...], refused: dict[str, str], quantized: bool) -> None:
    unreached = [name for name, reason in refused.items() if "never reached" in reason]
    if unreached:
        warn(
            f"data never reached {shortened(unreached)}, left in float: calibrate with "
            "data that takes such branches"
        )
    if not quantized:
        reasons = Counter(row.reason for row in operators)
        why = "; ".join(f"{count} of them: {reason}" for reason, count in reasons.most_common(3))
        warn(
            "nothing was quantized: "
            + (f"{why}" if why else "the model has no convolution or linear with constant weights")
        )
