"""Stage 4: observers become quantize and dequantize: the reference model."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from .. import _C
from ..collector import paused
from ..errors import JitPassesError, shortened, warn
from ..logs import timed
from ..observers import parameters_of as named
from ..passes.pipeline import CLEAN_UP, Pipeline
from ..passes.subject import wrap
from ..specification.parameters import ChosenQParams, QParams
from ..specification.qparams import derive_qparams, fixed_qparams
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
)
from .batches import progress_bar
from .module import ModelStage, OperatorRecord, stage_of
from .seen import QuantizedPlace, check_seen, read_places, refusals, without_batch
from .values import quantized_values

CONVERT = Pipeline(
    "convert",
    (
        "fold_constant_lists",  # a file spells them out
        "add_batch_axis",
        "insert_quantize_dequantize",
        "fold_quantized_constants",
        *CLEAN_UP,
    ),
    ensures=("no_observers", "valid_grids"),
)


@timed
@paused()
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
    unbatched = without_batch(places, report)
    given: dict[str, dict[str, Any]] = {
        "add_batch_axis": {"places": list(unbatched)},
        "insert_quantize_dequantize": options,
    }
    result = CONVERT.run(module, report.method, options=given).module
    _C.copy_constants(result, report.method)  # else training on would change the result
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
    named = _C.quantized_values(result, report.method)
    # Of a result whose batch axis is taken off, what stands there is a reshape.
    values = quantized_values([(id, unbatched.get(id, name)) for id, name in named], known)
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
    return row.in_float(reason) if reason else row


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
