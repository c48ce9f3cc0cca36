"""Run a float model and record its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import _C
from .._version import __version__
from ..errors import JitPassesError, first_line
from ..logs import stage, timed
from ..passes.subject import wrap
from ..stages.annotate import FROZEN, formed
from ..stages.batches import InputFn
from ..stages.calibrate import observe
from ..stages.faults import note_origin
from ..stages.module import ModelStage, Report
from ..stages.prepare import OBSERVE, request
from ..stages.ranks import are_several, gathered
from ..targets import Target, resolve_target
from .form import shard_of
from .probes import Probe, Probes
from .record import Profile
from .value import MOST_BINS, State, ValueProfile


@timed
def profile(
    model: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    bins: int = 2048,
    weights: bool = False,
    input_fn: InputFn | None = None,
    progress: bool | None = None,
    method: str = "forward",
    target: str | Target | None = None,
    shard: tuple[int, int] | None = None,
) -> Profile:
    """Run batches through a float model and return the ranges and histograms of all its values.

    Quantizing with the profile gives the model that calibrating with the data gives. Observers must
    need no more bins, and the target must compute the operators in this form. "x86" writes fused
    attention as products and a softmax, with other values: name the target then.

    The values are in the canonical form that `prepare` makes. Each value is recorded where it is
    computed. A value that may be written in place is also recorded at each operator that reads it.
    A value that a branch or loop takes from outside is also recorded in the branch or loop. These
    uses have names such as `conv:conv2d -> head:linear`. Integers, constants and elements of lists
    are left out. A value with an infinity, as masks have it, has no range.

    Where `torch.distributed` is initialized, each rank profiles data of its own, or none, and all
    return the profile of all data.

    Args:
        model: scripted, traced or loaded, in eval mode. The model does not change.
        data: batches, as for `calibrate`.
        bins: number of bins of each histogram.
        weights: also write down the constants, as `conv:conv2d[1]` for that operator's operand 1.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.
        method: the method to run.
        target: profile the values of the forms in which this target computes static operators.
        shard: (3, 8) where the data are the third of eight parts, which may be empty. Only noted:
            `Profile.merge` finds parts that are there twice or missing.

    Raises:
        JitPassesError: the model is not a ScriptModule, is in training mode, is quantized already
            or does not have the method; there is no batch, or the model does not take it; a value,
            which the message names, is NaN; bins is no number from 2 to 2**20; or shard is none.
            On several ranks: the work failed on one, or a rank has ended or is late.

    Warns:
        JitPassesWarning: a number is so far off all others that these may have few codes or none.
    """
    ranks = are_several()

    def own() -> Profile:  # with all checks: an error of one rank is one of all
        if isinstance(bins, bool) or not isinstance(bins, int) or not 2 <= bins <= MOST_BINS:
            raise JitPassesError(f"bins is a whole number from 2 to {MOST_BINS}, not {bins!r}")
        named = _named(shard)
        module = FROZEN.enter(model, method)
        backend = None if target is None else resolve_target(target)
        module, _ = formed(module, method, backend, {})
        found = profile_of(
            module, method, data, bins, weights, input_fn, progress, origin=model, backend=backend,
            allow_none=ranks or shard is not None,
        )  # fmt: skip
        return found if ranks else replace(found, shards=named)

    return replace(_of_all_ranks(own), shards=_named(shard)) if ranks else own()


def _named(shard: tuple[int, int] | None) -> tuple[str, ...]:
    """Return the name of a shard, as the only one."""
    named = () if shard is None else ("{}/{}".format(*shard),)
    if named and shard_of(named[0]) is None:
        raise JitPassesError(f"a shard is a number and how many there are, (3, 8), not {shard!r}")
    return named


def _of_all_ranks(own: Callable[[], Profile]) -> Profile:
    """Return the profile of all ranks' data, or raise an error on all of them."""
    merged = Profile.merge(gathered(own))
    if not any(value.ranks or not value.finite for value in merged.values.values()):
        raise JitPassesError("the data of all ranks are empty: pass a batch to one of them")
    return merged


def profile_of(
    module: Any, method: str, data: Iterable[Any], bins: int = 2048, weights: bool = False,
    input_fn: InputFn | None = None, progress: bool | None = None, *,
    origin: torch.jit.ScriptModule, backend: Target | None, allow_none: bool = False,
) -> Profile:  # fmt: skip
    """Profile a C++ module in canonical form, also in the forms of a target; see `profile`.

    There may be no batch where `allow_none` says so.

    If a batch fails, the message depends on the float model, `origin`, and the target, `backend`,
    whose forms the module has.
    """
    probes = Probes.of(module, method)
    graph, of_weights = probes.hash, probes.weights  # before observers are in the graph
    places = probes.all()
    if places:
        options = {"insert_observers": _plan(places, bins)}
        module = OBSERVE.run(module, method, options=options).module
    record = {} if backend is None else backend.record()
    Report(ModelStage.PREPARED, method, record).write(module)
    prepared = wrap(module)
    note_origin(prepared, origin)
    with stage("calibrate"):
        _, watch = observe(prepared, data, input_fn, progress, allow_none)
    observed = [operands for _, _, operands in _C.places(module, method)]
    watch.tell_all([operands["name"] for operands in observed])
    states = {
        operands["name"]: State(operands["range"], operands["histogram"]) for operands in observed
    }
    values = {probe.name: ValueProfile.of(probe.name, states[probe.name]) for probe in places}
    values = {name: v for name, v in values.items() if not _is_integer(v, states[name])}
    if weights:
        values |= {value.name: value for value in _weights(probes, bins)}
    return Profile(graph, bins, values, __version__, of_weights)


def _plan(probes: Sequence[Probe], bins: int) -> dict[str, Any]:
    """Return the options of insert_observers. Nothing will be quantized, so there are no places."""
    requests: list[dict[str, Any]] = []
    states: list[tuple[Any, ...]] = []
    for number, probe in enumerate(probes):
        fresh = State.new(bins)
        operands: dict[str, Any] = {"name": probe.name, "spec": ""}
        for name, buffer in (("range", fresh.range), ("histogram", fresh.histogram)):
            operands[name] = ("state", len(states))
            states.append((f"observer_{number}_{name}", None, buffer, False))
        uses = [(user.index, operand) for user, operand in probe.uses]
        requests.append(request(probe.value.id, uses, None, "observe_profile", operands))
    return {"places": tuple(requests), "states": tuple(states)}


def _is_integer(value: ValueProfile, state: State) -> bool:
    """Say whether the value was computed, and was never a floating-point tensor."""
    floating = float(state.range[5]) != 0  # see observe_histogram.cpp
    return value.ranks is not None and value.finite and not (value.reached or floating)


def _weights(probes: Probes, bins: int) -> list[ValueProfile]:
    found = []
    for node in probes.view.nodes:
        for operand, value in enumerate(node.inputs):
            tensor = value.constant
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            name, state = f"{node.name}[{operand}]", State.new(bins)
            try:
                torch.ops.jit_passes.observe_profile(tensor, state.range, state.histogram, name, "")
            except ValueError as error:
                raise JitPassesError(first_line(error)) from error
            found.append(ValueProfile.of(name, state, weight=True))
    return found
