"""Stage 4: observers become quantize and dequantize: the reference model."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError, shortened, warn
from ..fake_quantizers import trained_qparams
from ..logs import timed
from ..observers import ObserverState
from ..observers import parameters_of as named
from ..passes.pipeline import CLEAN_UP, Pipeline
from ..passes.subject import wrap
from ..specification.parameters import ChosenQParams, QParams
from ..specification.place import Place
from ..specification.qparams import choose_qparams, derive_qparams, fixed_qparams
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
)
from .batches import progress_bar
from .module import ModelStage, OperatorRecord, Report, stage_of
from .values import quantized_values

_NOTHING = "jit_passes::observe_nothing"

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


@timed
def convert(
    prepared: torch.jit.ScriptModule, *, progress: bool | None = None
) -> torch.jit.ScriptModule:
    """Return the reference model of a calibrated one, or of one that has trained.

    It computes in float on values that went through `jit_passes::quantize` and `dequantize`;
    weights are stored as integers, biases as int32 in steps of input scale times weight scale.
    It defines what every lowered model must compute, to within one step.

    Args:
        prepared: a calibrated model, or one from `prepare_qat`, in training or eval mode; it is
            not touched.
        progress: a progress bar; None for one on terminals only.

    Raises:
        JitPassesError: the model was not prepared, or has seen no data.

    Warns:
        JitPassesWarning: no data reached part of the model, which stays float; or nothing was
            quantized at all.
    """
    stages = (ModelStage.PREPARED, ModelStage.QAT)
    report = stage_of(prepared, stages, "call jit_passes.prepare and calibrate, or prepare_qat")
    module, places = read_places(prepared, report)
    refused = refusals(places)
    check_seen(places, report)
    found = parameters_of(places, refused, progress_bar("convert", progress, "value"))
    options = {"parameters": {id: chosen.as_options() for id, chosen in found.items()}}
    given = {"insert_quantize_dequantize": options}
    result = CONVERT.run(module, report.method, options=given).module
    operators = tuple(_with_refusal(row, refused) for row in report.operators)
    _warn(operators, refused, bool(found))
    codes: dict[tuple[int, int], list[int]] = {}
    for id, chosen in found.items():
        codes.setdefault((chosen.quant_min, chosen.quant_max), []).append(id)
    report = replace(
        report,
        stage=ModelStage.REFERENCE,
        operators=operators,
        codes=[(*ends, ids) for ends, ids in codes.items()],
        plan=digest_of(places),
        made={**report.made, **_calibration(places, found)},
    )
    known = {id: chosen for id, chosen in found.items() if isinstance(chosen, QParams)}
    values = quantized_values(_C.quantized_values(result, report.method), known)
    replace(report.located(result), values=values).write(result)
    return wrap(result)


def _calibration(
    places: list[QuantizedPlace], found: Mapping[int, QParams | ChosenQParams]
) -> dict[str, str]:
    """Return the methods that found ranges in data, `entropy, percentile(99.9)`, for reports."""
    methods = set()
    for known in places:
        place = known.place
        ranged = isinstance(found.get(place.id), QParams) and not place.is_parameter
        if ranged and place.method is None and isinstance(place.spec, QuantizationSpec):
            method, parameters = named(place.spec.observer)
            options = ", ".join(f"{name}={value}" for name, value in parameters.items())
            methods.add(f"{method}({options})" if options else method)
    return {"calibration": ", ".join(sorted(methods))} if methods else {}


def plan_of(prepared: torch.jit.ScriptModule) -> str:
    """Return a text that is the same for models that were prepared alike; "" for no place."""
    report = stage_of(prepared, ModelStage.PREPARED, "call jit_passes.prepare first")
    places = read_places(prepared, report)[1]
    return digest_of(places) if places else ""


def digest_of(places: list[QuantizedPlace]) -> str:
    """Return a text that is the same for models that were prepared alike."""
    texts = "\n".join(sorted(known.operands["spec"] for known in places))
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def parameters_of(
    places: list[QuantizedPlace],
    refused: dict[str, str],
    through: Callable[..., Iterable[QuantizedPlace]] = iter,
) -> dict[int, QParams | ChosenQParams]:
    """Return the parameters by id of the place; places whose values stay float are left out."""
    groups = Groups(places, refused)
    found = {known.place.id: groups.parameters_at(known) for known in through(places)}
    return {id: chosen for id, chosen in found.items() if chosen is not None}


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
    ModelStage.PREPARED: "the model was not calibrated: call jit_passes.calibrate(model, data)",
    ModelStage.QAT: (
        "the model has not trained: no batch in training mode came by {names}, so no scale has "
        "begun; run batches in training mode, and where these stand in branches, some that take "
        "them"
    ),
}


@dataclass(frozen=True)
class QuantizedPlace:
    """A place at which convert quantizes, and what was found there.

    Attributes:
        place: what annotation has made of it.
        reached: whether data came by; True for what is not looked at.
        seen: whether data is known to have come by.
        found: makes parameters out of what was seen, or trained.
        dims: the lowest and highest number of dimensions seen, if that was noted.
        node: index of its node in the graph that was read.
        operands: of its node, by name: constants and attributes, others None.
    """

    place: Place
    reached: bool
    seen: bool
    found: Callable[[], QParams]
    dims: tuple[int, int] | None
    node: int
    operands: Mapping[str, Any]

    @property
    def constant(self) -> bool:
        """Whether its numbers do not depend on the model's input."""
        return isinstance(self.operands.get("x"), torch.Tensor)


def read_places(
    prepared: torch.jit.ScriptModule, report: Report
) -> tuple[Any, list[QuantizedPlace]]:
    """Return a copy of the module in which weights are constants, and its places.

    Raises:
        JitPassesError: another version of this package prepared the model.
    """
    module = _C.clone(prepared._c, report.method)
    if report.stage is ModelStage.QAT:
        wrap(module).eval()
        module = SETTLE.run(module, report.method).module
        return module, [_trained(*row) for row in _C.places(module, report.method)]
    rows = _C.places(module, report.method)
    ran = report.calibrated or any(_was_reached(op, operands) for _, op, operands in rows)
    places = [_observed(*row, ran) for row in rows]
    dynamic = {user for known in places if known.place.is_dynamic for user in known.place.users}
    # Nothing waits for data there: its weight is quantized as in any other model without.
    return module, [
        replace(known, reached=True)
        if known.place.is_parameter and known.place.owner in dynamic
        else known
        for known in places
    ]


def needs_data(prepared: torch.jit.ScriptModule) -> bool:
    """Say whether a prepared model has to see data before it is converted: weights need none."""
    report = stage_of(prepared, ModelStage.PREPARED, "call jit_passes.prepare first")
    return not all(known.reached for known in read_places(prepared, report)[1])


def check_seen(places: list[QuantizedPlace], report: Report) -> None:
    """Raise a JitPassesError for a model that has seen no data; weights alone need none."""
    seen = report.calibrated or any(known.seen for known in places)
    if not seen and not all(known.reached for known in places):
        unreached = [f"'{known.place.name}'" for known in places if not known.reached]
        raise JitPassesError(NO_DATA[report.stage].format(names=shortened(unreached)))


def _was_reached(op: str, operands: Mapping[str, Any]) -> bool:
    """Say whether an observer has looked at something."""
    if (reached := operands.get("reached")) is not None:
        return bool(reached)
    return op != _NOTHING and _state_of(operands).reached


def _state_of(operands: Mapping[str, Any]) -> ObserverState:
    return ObserverState(operands["range"], operands.get("histogram"))


def _observed(node: int, op: str, operands: dict[str, Any], ran: bool) -> QuantizedPlace:
    place = Place.from_text(operands["spec"])
    state, blind = _state_of(operands), op == _NOTHING
    measured = "reached" in operands  # a constant, before any data
    seen = _was_reached(op, operands)
    reached = blind or seen or (measured and not ran)
    noted = not blind and not measured and reached and state.range.dim() == 1

    def found() -> QParams:
        assert isinstance(place.spec, QuantizationSpec)
        return choose_qparams(place.spec, state, place.scales or (-1,))

    return QuantizedPlace(
        place, reached, seen, found, state.ranks if noted else None, node, operands
    )


def _trained(node: int, kind: str, operands: dict[str, Any]) -> QuantizedPlace:
    place = Place.from_text(operands["spec"])
    short = kind.removeprefix("jit_passes::")
    parameters = trained_qparams(short, operands, place.spec, place.method)
    derived = isinstance(place.spec, GroupDerivation)
    reached = parameters is not None or derived or place.is_dynamic
    begins = operands.get("observe") is not True and not isinstance(operands["x"], torch.Tensor)

    def found() -> QParams:
        assert parameters is not None
        return parameters

    seen = begins and parameters is not None
    return QuantizedPlace(place, reached, seen, found, None, node, operands)


def refusals(places: list[QuantizedPlace]) -> dict[str, str]:
    """Return, by name of the operator, why what was seen rules out that it is quantized."""
    refused: dict[str, str] = {}
    for known in places:
        owner = known.place.owner or next(iter(known.place.users), "")
        if reason := _refusal(known):
            refused.setdefault(owner, reason)
    return refused


def _refusal(known: QuantizedPlace) -> str | None:
    if known.place.is_parameter and known.operands.get("observe") is True and not known.constant:
        return f"its {known.place.slot} is computed by the model, and measured each time"
    if not known.place.owner:
        return None
    if not known.reached:
        return "data never reached it"
    if known.dims is not None:
        lowest, highest = known.dims
        allowed = known.place.ranks
        if known.place.observed and not (allowed[0] <= lowest and highest <= allowed[1]):
            seen = lowest if lowest < allowed[0] else highest
            return f"its result has {seen} dimensions, and the backend does {_span(allowed)}"
    return None


def _span(ranks: tuple[int, int]) -> str:
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]} to {ranks[1]}"


class Groups:
    """The parameters of each group of values that share them."""

    def __init__(self, places: list[QuantizedPlace], refused: dict[str, str]) -> None:
        self._refused = refused
        self._leaders: dict[int, list[QuantizedPlace]] = {}  # whose numbers count
        for known in places:
            if known.place.observed and self._stays(known):
                self._leaders.setdefault(known.place.group, []).append(known)
        self._found: dict[int, QParams | None] = {}

    def parameters_at(self, known: QuantizedPlace) -> QParams | ChosenQParams | None:
        """Return the parameters at one place; None where the value stays float."""
        if known.place.is_dynamic and self._stays(known):
            return _chosen(known.place.spec)
        return self._of_group(known.place.group) if self._stays(known) else None

    def _stays(self, known: QuantizedPlace) -> bool:
        place = known.place
        users_refused = bool(place.users) and all(u in self._refused for u in place.users)
        return place.owner not in self._refused and not users_refused and known.reached

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

    def _sources(self, group: int) -> tuple[int, ...]:
        leaders = self._leaders.get(group)
        spec = leaders[0].place.spec if leaders else None
        return spec.groups if isinstance(spec, GroupDerivation) else ()

    def _choose(self, group: int) -> QParams | None:
        leaders = self._leaders.get(group)
        if not leaders:
            return None
        spec = leaders[0].place.spec
        if isinstance(spec, FixedQParamsQuantizationSpec):
            return fixed_qparams(spec)
        if isinstance(spec, QuantizationSpec):
            return leaders[0].found()
        sources = [self._found[source] for source in spec.groups]
        known = [source for source in sources if source is not None]
        if len(known) < len(sources):
            return None
        parameters = derive_qparams(spec, known, leaders[0].place.name)
        _check_channels(parameters, leaders)
        return parameters


def _chosen(spec: ResolvedSpec) -> ChosenQParams:
    assert isinstance(spec, QuantizationSpec)
    grid = (spec.quant_min, spec.quant_max, spec.dtype)
    return ChosenQParams(*grid, spec.qscheme, spec.range_form)


def _check_channels(parameters: QParams, places: list[QuantizedPlace]) -> None:
    scale = parameters.scale
    found = tuple(scale.shape) if isinstance(scale, torch.Tensor) else ()
    for place in (known.place for known in places):
        if place.scales and place.scales != found:
            assert isinstance(place.spec, GroupDerivation)
            raise JitPassesError(
                f"'{place.name}' has {place.scales[0]} channels, and "
                f"{place.spec.function} derived parameters for {sum(found)}"
            )


def _with_refusal(row: OperatorRecord, refused: dict[str, str]) -> OperatorRecord:
    reason = refused.get(row.name)
    return replace(row, dtype="float", reason=reason, why="") if reason else row


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
            + (why or "the model has no operator with weights, and no matrix product")
        )
