"""Stage 3: run data through a prepared model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError
from ..graph.view import GraphView
from ..logs import stage
from .batches import InputFn, Sample, batches, cloned, progress_bar
from .faults import broken_when_prepared, misfit, origin_of, takes, unmeasurable
from .module import ModelStage, Report, stage_of
from .outliers import OutlierWatch
from .ranks import are_several, gathered, in_turn
from .statistics import Contents, Statistics


def calibrate(
    prepared: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Run batches through a prepared model, whose observers watch.

    Can be called again with more data. Batches are not kept.

    Where `torch.distributed` is initialized, each rank runs data of its own, or none, and all end
    with the state that all data leave, to the last bit. Ranks run side by side. Where a method
    depends on the order, as `moving_average` does, they run one after another, in the order of the
    ranks.

    Args:
        prepared: the result of `prepare`; its observers are updated.
        data: an iterable of batches, a DataLoader for instance. A batch is a tensor, a tuple of
            positional arguments, or a dict of keyword arguments.
        input_fn: makes a batch out of an item of `data`, for a DataLoader that yields
            labels too: `input_fn=lambda batch: batch[0]`.
        progress: a progress bar; None for one on terminals only.

    Returns:
        The prepared model.

    Raises:
        JitPassesError: there is no batch; the model does not take a batch; the float model takes
            it, so jit_passes is at fault; a value, which the message names, is NaN or infinite. On
            several ranks: the work failed on one, a rank has ended or is late, the ranks have other
            models; the observers are as they were then.

    Warns:
        JitPassesWarning: a number is so far off all others that these have few codes or none.
    """
    if are_several():
        with stage("calibrate"):
            return _calibrate_on_ranks(prepared, data, input_fn, progress)
    return calibrate_alone(prepared, data, input_fn, progress)


def calibrate_alone(
    prepared: torch.jit.ScriptModule,
    data: Iterable[Any],
    input_fn: InputFn | None = None,
    progress: bool | None = None,
    sample: Sample | None = None,
) -> torch.jit.ScriptModule:
    """Calibrate like `calibrate`, in this process alone, independent of other ranks."""
    with stage("calibrate"):
        report, watch = observe(prepared, data, input_fn, progress, sample=sample)
        watch.tell(report)
    return prepared


def _calibrate_on_ranks(
    prepared: torch.jit.ScriptModule,
    data: Iterable[Any],
    input_fn: InputFn | None,
    progress: bool | None,
) -> torch.jit.ScriptModule:
    # An error of one rank, here too, is one of all.
    if len(set(gathered(lambda: _statistics_of(prepared)[1].identity))) > 1:
        raise JitPassesError(
            "the ranks have prepared models with other operators, weights or earlier data: prepare "
            "one model with one configuration on all of them"
        )
    before, statistics = _statistics_of(prepared)
    start, merges = statistics.read(), statistics.merge_exactly
    watches: list[OutlierWatch] = []
    counts: list[int] = []

    def own() -> tuple[Contents, int]:
        report, watch = observe(prepared, data, input_fn, progress, allow_none=True)
        watches.append(watch)
        return statistics.read(), report.made["batches"] - before.made.get("batches", 0)

    def take(result: tuple[Contents, int]) -> None:
        statistics.write(result[0])
        counts.append(result[1])

    try:
        if merges:
            statistics.clear()
            parts = gathered(own)
            statistics.write(start)
            statistics.merge([contents for contents, _ in parts])
            counts += [count for _, count in parts]
        else:
            in_turn(own, take)
        if not sum(counts):
            raise JitPassesError("the calibration data of all ranks are empty")
    except BaseException:
        statistics.write(start)
        before.write(prepared._c)
        raise
    made = {**before.made, "batches": before.made.get("batches", 0) + sum(counts)}
    report = replace(before, calibrated=True, made=made)
    report.write(prepared._c)
    watches[0].tell(report)
    return prepared


def _statistics_of(prepared: torch.jit.ScriptModule) -> tuple[Report, Statistics]:
    report = stage_of(prepared, ModelStage.PREPARED, "call jit_passes.prepare(model) first")
    return report, Statistics.of(prepared, report.method)


def observe(
    prepared: torch.jit.ScriptModule,
    data: Iterable[Any],
    input_fn: InputFn | None,
    progress: bool | None,
    allow_none: bool = False,
    sample: Sample | None = None,
) -> tuple[Report, OutlierWatch]:
    """Calibrate like `calibrate`, but return the outliers found instead of a warning.

    There may be no batch where `allow_none` says so. A `sample` looks at all batches.
    """
    report = stage_of(prepared, ModelStage.PREPARED, "call jit_passes.prepare(model) first")
    before = _C.deepcopy(prepared._c)
    watch = OutlierWatch(prepared, report.method)
    count = report.made.get("batches", 0)
    try:
        # Optimizing the graph would take longer than a few batches gain from it.
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            shown = progress_bar("calibrate", progress)
            given = batches(data, input_fn, shown, "the calibration data", allow_none)
            for number, (args, kwargs) in enumerate(given):
                if sample is not None:
                    sample.look((args, kwargs))
                _run(prepared, report, args, kwargs, number)
                watch.look(number, args, kwargs)
                count += 1
    finally:  # the model's own counters, running means and attributes stay as they were
        _C.restore_state(prepared._c, before, report.method)
    made = {**report.made, "batches": count}
    report = replace(report, calibrated=True, made=made)
    report.write(prepared._c)
    return report, watch


def _run(
    prepared: torch.jit.ScriptModule,
    report: Report,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    number: int,
) -> None:
    name, what = report.method, f"calibration batch {number}"
    method = getattr(prepared, name)
    try:
        method(*cloned(args), **cloned(kwargs))  # the model may write to its arguments
    except Exception as error:
        if why := unmeasurable(error):
            raise JitPassesError(f"{what}: {_bad_weight(prepared, name) or why}") from error
        if where := _foreign_device(prepared, name, args, kwargs):
            raise JitPassesError(f"{what} does not run: {where}") from error
        origin = origin_of(prepared)
        fits = takes(origin, name, args, kwargs)
        if origin is not None and fits:
            raise broken_when_prepared(origin, report, args, kwargs, what, error) from error
        raise misfit(method, args, kwargs, what, error, fits) from error


def _bad_weight(model: torch.jit.ScriptModule, method: str) -> str | None:
    """Say which weight holds a NaN or an infinity: data are not to blame. None if no weight does.

    Masks hold infinities rightly.
    """
    for node in GraphView.of(_C.clone(model._c, method), method).nodes:
        layer = node.traits.weighted is not None or node.kind == "jit_passes::add_bias"
        for value in node.inputs:
            tensor = value.constant
            if not (isinstance(tensor, torch.Tensor) and tensor.is_floating_point()):
                continue
            nan = bool(tensor.isnan().any())
            if nan or (layer and bool(tensor.isinf().any())):
                reader = f", which '{node.name}' reads," if node.name else ""
                return (
                    f"the weight '{value.name}'{reader} holds {'a NaN' if nan else 'an infinity'}: "
                    "the data are not to blame; look at the state_dict of the model"
                )
    return None


def _foreign_device(
    model: torch.jit.ScriptModule, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Say which operator computes on a device where there are no data; None if none does."""
    given = {v.device.type for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)}
    for node in GraphView.of(_C.clone(model._c, method), method).nodes:
        for value in node.inputs:
            device = value.constant
            if isinstance(device, torch.device) and device.type not in given:
                return (
                    f"'{node.name}' ({node.kind}, {node.source}) computes on {device.type}, and "
                    f"the data are on {' and '.join(sorted(given)) or 'none'}: write "
                    "device=x.device there, and script or trace the model again, on the CPU"
                )
    return None
