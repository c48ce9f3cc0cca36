"""Stage 4: observers become quantize and dequantize: the reference model."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from .. import _C
from ..collector import paused
from ..errors import count_of, shortened, warn
from ..graph.editor import GraphEditor
from ..logs import timed
from ..observers import parameters_of as named
from ..passes.pipeline import CLEAN_UP, FOLD_NUMBERS, Pipeline
from ..passes.subject import wrap
from ..specification.parameters import ChosenQParams, QParams
from ..specification.qparams import dequantized
from ..specification.specification import QuantizationSpec
from .batches import progress_bar
from .module import ModelStage, OperatorRecord, Report, stage_of
from .parameters import choose_parameters
from .seen import QuantizedPlace, check_seen, places_in, read_places, refusals, without_batch
from .values import quantized_values, source_of

CONVERT = Pipeline(
    "convert",
    (
        FOLD_NUMBERS,
        "add_batch_axis",
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

    The reference model computes in float on values that went through `jit_passes::quantize` and
    `dequantize`. Weights are stored as integers, biases as int32 in steps of input scale times
    weight scale.
    A lowered model must have the results of the reference model, to within one step.

    Args:
        prepared: a calibrated model, or one from `prepare_qat`, in training or eval mode; it is
            not touched.
        progress: a progress bar; None for one on terminals only.

    Raises:
        JitPassesError: the model was not prepared, or has seen no data.

    Warns:
        JitPassesWarning: no data reached part of the model, which stays float; or nothing was
            quantized at all, unless `prepare` has warned that nothing fits the target.
    """
    stages = (ModelStage.PREPARED, ModelStage.QAT)
    report = stage_of(prepared, stages, "call jit_passes.prepare and calibrate, or prepare_qat")
    return converted(_C.clone(prepared._c, report.method), report, progress)


@paused()
def converted(module: Any, report: Report, progress: bool | None) -> torch.jit.ScriptModule:
    """Convert a C++ module like `convert`; only the caller holds it: float weights are freed."""
    module, places = places_in(module, report)
    refused = refusals(places)
    check_seen(places, report)
    chosen = choose_parameters(places, refused, progress_bar("convert", progress, "value"))
    found = chosen.at
    options = {"parameters": {id: qparams.as_options() for id, qparams in found.items()}}
    unbatched = without_batch(places, report)
    given: dict[str, dict[str, Any]] = {
        "add_batch_axis": {"places": list(unbatched)},
        "insert_quantize_dequantize": options,
    }
    module = _with_codes(module, report.method, places, found)
    plan, made = digest_of(places), {**report.made, **_calibration(places, found)}
    del places  # with the float weights, which become integers one by one
    result = CONVERT.run(module, report.method, options=given).module
    _C.copy_constants(result, report.method)  # else training on would change the result
    operators = tuple(_settled(row, refused, chosen.remarks) for row in report.operators)
    _warn(operators, refused, bool(found) or report.nothing_fits)
    codes: dict[tuple[int, int], list[int]] = {}
    for id, qparams in found.items():
        codes.setdefault((qparams.quant_min, qparams.quant_max), []).append(id)
    report = replace(
        report,
        stage=ModelStage.REFERENCE,
        operators=operators,
        codes=[(*ends, ids) for ends, ids in codes.items()],
        plan=plan,
        made=made,
    )
    known = {id: qparams for id, qparams in found.items() if isinstance(qparams, QParams)}
    named = _C.quantized_values(result, report.method)
    # Where the batch axis is taken off a result, the node is a reshape.
    values = quantized_values(
        [(id, unbatched.get(id, name), user) for id, name, user in named], known
    )
    replace(report.located(result), values=values).write(result)
    return wrap(result)


def _with_codes(
    module: Any,
    method: str,
    places: list[QuantizedPlace],
    found: Mapping[int, QParams | ChosenQParams],
) -> Any:  # fmt: skip
    """Return the module with the numbers of codes that `round_weights` has chosen for weights."""
    coded = {known.node: known for known in places if known.operands.get("codes") is not None}

    def change(graph: GraphEditor) -> None:
        for node in [node for node in graph.nodes if node.index in coded]:
            known = coded[node.index]
            qparams, weight = found.get(known.place.id), source_of(node.operand("x"))
            if isinstance(qparams, QParams):
                numbers = dequantized(known.operands["codes"], qparams)
                made = graph.constant(numbers.to(weight.constant.dtype), before=weight.producer)
                graph.replace(weight, made)

    return Pipeline("take_codes", (change,)).run(module, method).module if coded else module


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
    """Return a text that is equal for models that were prepared alike; "" for no place."""
    report = stage_of(prepared, ModelStage.PREPARED, "call jit_passes.prepare first")
    places = read_places(prepared, report)[1]
    return digest_of(places) if places else ""


def digest_of(places: list[QuantizedPlace]) -> str:
    """Return a text that is equal for models that were prepared alike."""
    texts = "\n".join(sorted(known.operands["spec"] for known in places))
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def _settled(
    row: OperatorRecord, refused: Mapping[str, str], remarks: Mapping[str, str]
) -> OperatorRecord:
    """Return the record of an operator with all that the data have shown."""
    if reason := refused.get(row.name):
        return row.in_float(reason)
    return row.remarked(remarks.get(row.name, ""))


def _warn(operators: tuple[OperatorRecord, ...], refused: dict[str, str], known: bool) -> None:
    """Warn of operators that data never reached, and, unless it is known, that all is in float."""
    unreached = [name for name, reason in refused.items() if "never reached" in reason]
    if unreached:
        warn(
            f"data never reached {shortened(unreached)}, left in float: calibrate with "
            "data that takes these branches"
        )
    if not known:
        reasons = Counter(row.reason for row in operators)
        often = reasons.most_common(3)
        why = "; ".join(f"{count_of(count, 'operator')}: {reason}" for reason, count in often)
        warn(
            "nothing was quantized: "
            + (why or "the model has no operator with weights, and no matrix product")
        )
