"""Fill a prepared model's observers from a profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..errors import JitPassesError, nearest, shortened, warn
from ..graph.view import NodeView
from ..logs import timed
from ..passes.pipeline import FOLD_NUMBERS, Pipeline
from ..specification.place import Place
from ..stages.module import ModelStage, stage_of
from ..stages.prepare import CONSTANT, INPUTS, NOTHING, REACH, measure, qualified
from ..stages.statistics import unseen
from ..stages.values import EDGE, source_of
from .probes import Probes
from .record import Profile, describe_difference
from .value import ValueProfile

AS_PREPARED = Pipeline("as_prepared", (FOLD_NUMBERS, "remove_dead_code"))
HISTOGRAM, MIN_MAX = "observe_histogram", "observe_min_max"


@timed
def fill(
    prepared: torch.jit.ScriptModule,
    profile: Profile | str | os.PathLike[str],
    *,
    partial: bool = False,
) -> torch.jit.ScriptModule:
    """Fill a prepared model's observers from a profile, instead of calibrating.

    The observers then have the state that `calibrate` would leave after the profile's data; their
    earlier state is forgotten. Weights are measured in the model itself.

    Args:
        prepared: the result of `prepare`; its observers are updated.
        profile: of the same model, or the file of one.
        partial: take a profile of another graph as far as its names agree. Values that it does not
            have count as never reached, so operators that need them stay float.

    Returns:
        The prepared model.

    Raises:
        JitPassesError: the model was not prepared; the profile is of another graph, and `partial`
            was not asked for; it has a value that this graph does not have; an observer needs
            statistics that no profile has, or more bins. The model is as it was.

    Warns:
        JitPassesWarning: the profile is of other weights, or lacks shards of the data; with
            `partial`, values that it does not have.
    """
    record = profile if isinstance(profile, Profile) else Profile.load(profile)

    def check(probes: Probes, observers: list[_Observer]) -> None:
        _check_graph(probes, record, observers, partial)
        if record.missing:
            left = f"{shortened(record.missing)} of the data"
            advice = "merge the profiles of all, `jit-passes merge`"
            warn(f"the profile lacks the shards {left}: {advice}")

    return _filled(prepared, record, check)


def fill_own(prepared: torch.jit.ScriptModule, profile: Profile) -> torch.jit.ScriptModule:
    """Fill observers from a profile of this very model, for which that need not be checked."""
    return _filled(prepared, profile, lambda _, __: None)


def needs_more_than_ranges(prepared: torch.jit.ScriptModule, method: str) -> bool:
    """Say whether a range goes by numbers that no profile has: the mean squares of inputs."""
    return any(op == qualified(INPUTS) for _, op, _ in _C.places(prepared._c, method))


def _filled(
    prepared: torch.jit.ScriptModule, record: Profile,
    check: Callable[[Probes, list[_Observer]], None],
) -> torch.jit.ScriptModule:  # fmt: skip
    report = stage_of(prepared, ModelStage.PREPARED, "call jit_passes.prepare(model) first")
    copy = _C.clone(prepared._c, report.method)  # which shares its buffers
    module = AS_PREPARED.run(copy, report.method).module
    probes = Probes.of(module, report.method)
    known = _C.places(module, report.method)
    observers = [
        _Observer(probes, probes.view.nodes[index], op.removeprefix("jit_passes::"), operands)
        for index, op, operands in known
        if op != qualified(NOTHING)
    ]
    # Observers that only note whether a value was computed may share the buffers of others.
    observers.sort(key=lambda observer: observer.op == REACH)
    check(probes, observers)
    buffers = _Buffers()
    for observer in observers:
        _fill(observer, record, buffers)
    buffers.write()
    made = {name: what for name, what in report.made.items() if name != "batches"}
    made["profile"] = record.digest
    replace(report, calibrated=True, made=made).write(prepared._c)
    return prepared


def _check_graph(
    probes: Probes, profile: Profile, observers: list[_Observer], partial: bool
) -> None:
    """Raise an error, or warn, if the profile is of another graph."""
    if profile.graph == probes.hash:
        _check_names(probes, profile)
        if profile.weights not in ("", probes.weights):
            warn(
                f"the profile is of a model with other weights, {profile.weights}, than this one, "
                f"{probes.weights}: its ranges may not fit this model; profile it again"
            )
        return
    observed = [observer for observer in observers if not observer.value.is_constant]
    lacking = list(dict.fromkeys(o.name for o in observed if o.find(profile) is None))
    if not partial:
        names = set(probes.names.values())
        own = [
            name
            for name, value in profile.values.items()
            if name.split(" -> ")[0] not in names and not value.weight
        ]
        why = (
            f"the profile is of another graph, {profile.graph}, than the model, {probes.hash}: "
            f"{describe_difference(lacking, own)}. Profile this model, for this target"
        )
        raise JitPassesError(
            f"{why} (`target=`), or take what agrees with partial=True",
            command=f"{why}: `jit-passes profile --target`",
        )
    if lacking:
        warn(f"the profile has no {shortened(lacking)}: their operators stay float")


def _check_names(probes: Probes, profile: Profile) -> None:
    """Raise an error for a value that this graph does not have: its file was edited."""
    known = {probe.name for probe in probes.all()}
    for name, value in profile.values.items():
        if name not in known and not value.weight:
            where = f"{profile.lines[name]}: " if name in profile.lines else ""
            raise JitPassesError(
                f"{where}the model has no value '{name}', which the profile names: "
                f"{nearest(name, known)}"
            )


class _Observer:
    """An observer of the prepared graph, with its buffers."""

    def __init__(
        self, probes: Probes, node: NodeView, op: str, operands: Mapping[str, Any]
    ) -> None:
        self.probes, self.edge, self.op, self.operands = probes, node.main_operand, op, operands
        self.range: Tensor = operands["range"]
        self.histogram: Tensor | None = operands.get("histogram")
        self.value = source_of(self.edge)

    @property
    def name(self) -> str:
        return self.probes.names[self.value.id]

    def find(self, profile: Profile) -> ValueProfile | None:
        """Return the profile's record of the observed value; None without one."""
        value, edge, names = self.value, self.edge, []
        if edge.producer is not None and edge.producer.kind == EDGE:
            block = edge.producer.block
            uses = self.probes.uses(edge)[:1]  # if it is written, each edge is of one use
            if self.probes.is_elsewhere(value, block):  # all uses in this block have seen one value
                uses += [use for use in self.probes.uses(value) if use[0].block == block]
            names = [self.probes.use_name(value, use) for use in uses]
        found = (profile.values[name] for name in (*names, self.name) if name in profile.values)
        return next(found, None)


@dataclass
class _Buffers:
    """New contents of buffers; observers may share some."""

    old: dict[int, Tensor] = field(default_factory=dict)  # by address
    new: dict[int, Tensor] = field(default_factory=dict)

    def fresh(self, buffer: Tensor) -> Tensor:
        """Return the coming content of a buffer, at first as `prepare` wrote it."""
        address = buffer.data_ptr()
        if address not in self.new:
            self.old[address], self.new[address] = buffer, unseen(buffer)
        return self.new[address]

    def write(self) -> None:
        for address, state in self.new.items():
            self.old[address].copy_(state)


def _fill(observer: _Observer, profile: Profile, buffers: _Buffers) -> None:
    if observer.op == CONSTANT:  # measured already
        buffers.fresh(observer.operands["reached"]).fill_(True)
        return
    if observer.op == INPUTS:
        raise JitPassesError(
            f"the range of '{observer.operands['name']}' goes by the mean squares of its inputs, "
            "channel by channel, which no profile has: choose the calibration "
            "mean_squared_error, or give data instead"
        )
    range_ = buffers.fresh(observer.range)
    histogram = None if observer.histogram is None else buffers.fresh(observer.histogram)
    if observer.value.is_constant:
        buffers_of = {"range": range_} | ({} if histogram is None else {"histogram": histogram})
        operands = {name: what for name, what in observer.operands.items() if name != "x"}
        measure(observer.op, observer.value.constant, operands | buffers_of, operands["name"])
        return
    found = observer.find(profile)
    if found is None or not (found.reached or found.ranks or not found.finite):
        return
    _check(observer, found, profile)
    # Unknown ranks become the ranks that its target can do.
    lowest, highest = found.ranks or Place.from_text(observer.operands["spec"]).ranks
    seen = bool(range_[0] <= range_[1])  # by others that share the buffers
    if observer.op == REACH:
        if not seen:
            range_[2:4] = torch.tensor([lowest, highest])
            if found.reached or not found.finite:
                range_[:2] = 0
        return
    if histogram is None:
        range_[0] = min(float(range_[0]), found.low)
        range_[1] = max(float(range_[1]), found.high)
    else:
        state = found.with_bins(len(histogram))
        if seen:
            torch.ops.jit_passes.merge_histogram(state.range, state.histogram, range_, histogram)
        else:
            range_[:2], range_[4:] = state.range[:2], state.range[4:]
            histogram.copy_(state.histogram)
    range_[2] = min(float(range_[2]), lowest)
    range_[3] = max(float(range_[3]), highest)


def _check(observer: _Observer, found: ValueProfile, profile: Profile) -> None:
    """Raise an error if a profile does not have the statistics of the observer."""
    if observer.op not in (HISTOGRAM, MIN_MAX, REACH):
        wanted = "ranges of each channel, or of its own kind"
        if observer.op == "observe_moving_average":
            wanted = "a moving average of each batch's range"
        raise JitPassesError(
            f"the observer of '{found.name}', {observer.op}, takes {wanted}, and a profile has "
            "one range and histogram over all data: choose the calibration min_max or histogram, "
            "or give data instead"
        )
    if not found.finite and observer.op != REACH:
        raise JitPassesError(
            f"the value '{found.name}' held an infinity when it was profiled, and is to be "
            "quantized: look at the data, or at the float model with torch.isfinite"
        )
    bins = 0 if observer.histogram is None else len(observer.histogram)
    if bins > profile.bins:
        raise JitPassesError(
            f"the observer of '{found.name}' has {bins} bins, and the profile {profile.bins}: "
            f"profile with {bins} bins, or choose an observer with fewer bins"
        )
