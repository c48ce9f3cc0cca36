"""The numbers that data have shown at the places of a prepared model, or that training found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError, shortened
from ..fake_quantizers import trained_qparams
from ..graph.functions import Function, function_behind
from ..graph.traits import NOTHING as UNKNOWN
from ..graph.traits import TRAITS
from ..graph.view import GraphView, ValueView
from ..observers import ObserverState
from ..passes.pipeline import FOLD_NUMBERS, Pipeline
from ..passes.subject import wrap
from ..quantizers.support import OperatorSupport
from ..specification.derivation import hold_derivations
from ..specification.groups import rows_of
from ..specification.parameters import QParams
from ..specification.place import Place
from ..specification.qparams import choose_qparams, codes_of, dequantized, fixed_qparams
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
)
from ..targets import Target
from .faults import note_origin, origin_of
from .module import ModelStage, Report, stage_of

_NOTHING = "jit_passes::observe_nothing"

# Out of training: batch norms are folded into weights, which are constants now.
SETTLE = Pipeline(
    "settle",
    (
        "restore_batch_norm",
        "freeze",
        FOLD_NUMBERS,
        "remove_dropout",
        "fold_deferred",
        "fold_batch_norm",
    ),
)

NO_DATA = {
    ModelStage.PREPARED: "the model was not calibrated",
    ModelStage.QAT: (
        "the model has not trained: no batch in training mode came by {names}, so no scale has "
        "begun; run batches in training mode, and where these stand in branches, some that take "
        "them"
    ),
}


@dataclass(frozen=True)
class QuantizedPlace:
    """A place at which convert quantizes, and the data seen there.

    Attributes:
        place: its record from the annotation.
        reached: whether data came by; True for unobserved places.
        seen: whether data is known to have come by.
        found: makes parameters out of the data seen, or trained.
        dims: the lowest and highest number of dimensions seen, if that was noted.
        node: index of its node in the graph that was read.
        operands: of its node, by name: constants and attributes, others None.
        function: finds the function by whose error its range is chosen; None for no choice.
    """

    place: Place
    reached: bool
    seen: bool
    found: Callable[[], QParams]
    dims: tuple[int, int] | None
    node: int
    operands: Mapping[str, Any]
    function: Callable[[], Function | None] = lambda: None

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
    return places_in(_C.clone(prepared._c, report.method), report)


def rewritten(
    prepared: torch.jit.ScriptModule, module: Any, report: Report
) -> torch.jit.ScriptModule:
    """Return a C++ module that was made of a prepared model as one, with its record."""
    report.write(module)
    result = wrap(module)
    specs = [known.place.spec for known in read_places(prepared, report)[1]]
    hold_derivations(result, [s.function for s in specs if isinstance(s, GroupDerivation)])
    origin = origin_of(prepared)
    if origin is not None:
        note_origin(result, origin)
    return result


def places_in(module: Any, report: Report) -> tuple[Any, list[QuantizedPlace]]:
    """Read the places of a C++ module like `read_places`; only the caller holds it."""
    if report.stage is ModelStage.QAT:
        wrap(module).eval()
        module = SETTLE.run(module, report.method).module
        return module, [_trained(*row) for row in _C.places(module, report.method)]
    rows = _C.places(module, report.method)
    ran = report.calibrated or any(_was_reached(op, operands) for _, op, operands in rows)
    functions = _Functions(module, report.method)
    places = [_observed(*row, ran, functions) for row in rows]
    functions.places = {known.node: known for known in places}
    dynamic = {user for known in places if known.place.is_dynamic for user in known.place.users}
    # A dynamic operator needs no data, so its weight is quantized whether data came by or not.
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
        why = NO_DATA[report.stage].format(names=shortened(unreached))
        is_prepared = report.stage is ModelStage.PREPARED
        instead = ": call jit_passes.calibrate(model, data)" if is_prepared else ""
        raise JitPassesError(f"{why}{instead}", command=why)


def _was_reached(op: str, operands: Mapping[str, Any]) -> bool:
    """Say whether an observer has looked at something."""
    if (reached := operands.get("reached")) is not None:
        return bool(reached)
    return op != _NOTHING and _state_of(operands).reached


def _state_of(operands: Mapping[str, Any]) -> ObserverState:
    return ObserverState(operands["range"], operands.get("histogram"))


def _with_rows(
    state: ObserverState, spec: QuantizationSpec, operands: Mapping[str, Any]
) -> ObserverState:
    """Return the state of an observer of a constant, with the numbers that it searches."""

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        if spec.ch_axis is None:
            return tensor.reshape(1, -1)
        return rows_of(tensor, spec.ch_axis, spec.group_size)

    weight, squares = operands["x"].detach(), operands.get("squares")
    importance = None if squares is None else rows(_importance(squares, weight.shape))
    return replace(state, rows=rows(weight), importance=importance)


def _importance(squares: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return for each weight the mean square of its input, relative to the largest one.

    Args:
        squares: see `Inputs.squares`.
        shape: of the weight.
    """
    squares = squares / squares.amax().clamp_min(torch.finfo(torch.float64).tiny)
    if squares.dim() == 1:
        by_channel = squares.reshape(-1, *[1] * (len(shape) - 1))
    else:
        of_outputs = squares.repeat_interleave(shape[0] // len(squares), 0)
        by_channel = of_outputs.reshape(*shape[:2], *[1] * (len(shape) - 2))
    return by_channel.float().expand(shape)


class _Functions:
    """The functions behind the values of a prepared model, looked for when one is asked for.

    Args:
        module: the C++ module, which must not change as long as functions are asked for.
        method: the method whose values are observed.

    Attributes:
        places: all places, by the indices of their nodes.
    """

    def __init__(self, module: Any, method: str) -> None:
        self._module, self._method = module, method
        self.places: Mapping[int, QuantizedPlace] = {}

    @cached_property
    def _values(self) -> dict[int, ValueView]:
        """The observed values, by the indices of their observers."""
        nodes = GraphView.of(self._module, self._method).nodes
        return {node.index: node.main_operand for node in nodes if node.index in self.places}

    @cached_property
    def _observers(self) -> dict[int, int]:
        return {value.id: index for index, value in self._values.items()}

    @cached_property
    def _members(self) -> Counter[int]:
        """How many values decide on the parameters of each group."""
        return Counter(known.place.group for known in self.places.values() if known.place.observed)

    def behind(self, node: int) -> Function | None:
        """Return the function that alone reads the value at an observer."""
        if self._members[self.places[node].place.group] > 1:
            return None
        return function_behind(self._values[node], lambda value: value.id in self._observers)

    def rounding(self, function: Function) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Return how the result of a function is rounded; None for a float."""
        index = self._observers.get(function.result.id)
        known = None if index is None else self.places[index]
        if known is None or not (known.reached and known.place.observed):
            return None
        spec = known.place.spec
        if isinstance(spec, FixedQParamsQuantizationSpec):
            qparams = fixed_qparams(spec)
        elif isinstance(spec, QuantizationSpec) and not spec.is_dynamic and spec.ch_axis is None:
            qparams = known.found()
        else:
            return None
        return lambda numbers: dequantized(codes_of(numbers, qparams), qparams)


def _observed(
    node: int, op: str, operands: dict[str, Any], ran: bool, functions: _Functions
) -> QuantizedPlace:
    place = Place.from_text(operands["spec"])
    state, blind = _state_of(operands), op == _NOTHING
    measured = "reached" in operands  # a constant, before any data
    seen = _was_reached(op, operands)
    reached = blind or seen or (measured and not ran)
    noted = not blind and not measured and reached and state.range.dim() == 1

    spec = place.spec
    asks = isinstance(spec, QuantizationSpec) and spec.observer.asks_function and not measured
    asked = functions if asks else None  # which keeps the module

    @cache
    def function() -> Function | None:
        return None if asked is None else asked.behind(node)

    def found() -> QParams:
        spec = place.spec
        assert isinstance(spec, QuantizationSpec)
        searches = measured and spec.observer.searches_rows
        known = _with_rows(state, spec, operands) if searches else state
        if asked is not None and (behind := function()) is not None:
            known = replace(state, function=behind, rounded=asked.rounding(behind))
        return choose_qparams(
            spec, known, place.scales or (-1,), sampled=not measured, name=place.name
        )

    return QuantizedPlace(
        place, reached, seen, found, state.ranks if noted else None, node, operands, function
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
    """Return, by name of the operator, why the data seen rule out that it is quantized."""
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


def without_batch(places: list[QuantizedPlace], report: Report) -> dict[int, str]:
    """Return the convolutions that saw inputs without a batch axis, and whose kernels need one.

    By the ids of their results' places, the names of these results.
    """
    kinds = {row.name: f"aten::{row.kind}" for row in report.operators}
    support: Mapping[str, OperatorSupport] | None = None
    found = {}
    for known in places:
        place = known.place
        kind = kinds.get(place.owner, "")
        weighted = TRAITS.get(kind, UNKNOWN).weighted
        if weighted and known.dims is not None and known.dims[0] == weighted.spatial_dims + 1:
            # The module may be in another package, which most models do not need here.
            if support is None:
                support = Target.from_record(report.target).capability.operators
            row = support.get(kind)
            if row is not None and row.adds_batch_axis:
                found[place.id] = place.name
    return found


def _span(ranks: tuple[int, int]) -> str:
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]} to {ranks[1]}"
