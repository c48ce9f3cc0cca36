"""Stage 2: annotate the graph and insert observers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import torch

from ..collector import paused
from ..errors import JitPassesError, first_line
from ..graph.traits import packet_of, schema_of
from ..logs import stage
from ..observers import Observer
from ..passes.pipeline import Pipeline
from ..quantizers.base import Quantizer
from ..specification.groups import rows_of
from ..specification.place import Place
from ..specification.resolve import Quantization
from ..specification.specification import GroupDerivation, QuantizationSpec
from ..targets import Target
from .annotate import FROZEN, Mode, annotate, choose_quantizer, warn_of_stages
from .faults import note_origin
from .module import ModelStage, remarked

OBSERVE = Pipeline("observe", ("insert_observers",), ensures=("observed_once",))
CONSTANT, NOTHING, REACH = "observe_constant", "observe_nothing", "observe_reach"
INPUTS = "observe_inputs"  # of a constant weight and of the input that it multiplies


class Change(Protocol):
    """Makes another float module of one in canonical form, with equal results."""

    def __call__(self, module: Any, method: str) -> Any: ...

    @property
    def made(self) -> Mapping[str, Any]:
        """Entries of the report."""
        ...

    @property
    def remarks(self) -> Mapping[str, str]:
        """Remarks about operators, by name."""
        ...


@dataclass
class Changes:
    """Changes, one after another."""

    all: Sequence[Change]

    def __call__(self, module: Any, method: str) -> Any:
        """Return the module with all of them."""
        for change in self.all:
            module = change(module, method)
        return module

    @property
    def made(self) -> dict[str, Any]:
        """The entries of all."""
        return {name: entry for change in self.all for name, entry in change.made.items()}

    @property
    def remarks(self) -> dict[str, str]:
        """The remarks of all."""
        return {name: said for change in self.all for name, said in change.remarks.items()}


def prepare(
    model: torch.jit.ScriptModule,
    *,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    config: Any = None,
    mode: str | None = None,
    strict: bool = False,
    method: str = "forward",
) -> torch.jit.ScriptModule:
    """Return a copy of the model that watches its values while it runs.

    The copy is inlined, frozen and in canonical form, with an observer on every value that the
    quantizer wants quantized. Its results are the model's.

    Args:
        model: scripted, traced or loaded, in eval mode. The model does not change.
        quantizer: decides what is quantized and how; None for the target's own.
        target: the backend that the model is for: a name, a `Target`, or "auto": the quantizer's
            own, or the best for this machine. The best target is "x86" on a processor with AVX-512
            VNNI or AVX-VNNI, else "stock". See `quantize_script` for what files of it need.
        config: other options, layer by layer: the path of a YAML file, a dict, or a
            `Configuration`. For quantizers of a backend.
        mode: of all operators with weights that no rule of `config` gives another: "auto",
            "static", "dynamic" or "weight_only", see `quantize_script`; None for "auto", or for
            the mode of a `quantizer`. A model without static operators needs no calibration.
        strict: raise an error for operators with weights and matrix products, the rows of
            `coverage`, that would stay in float and were not asked to, and for rules of the
            configuration that change nothing. A softmax or a norm may stay in float.
        method: the method to quantize. The copy has this one only.

    Raises:
        JitPassesError: the model is not a ScriptModule, is in training mode, is quantized already
            or does not have the method; the target or mode is unknown; the configuration is wrong.

    Warns:
        JitPassesWarning: the configuration asks for more than the target can do, and these
            operators stay in float; a rule of it changes nothing; or it has stages.
    """
    backend, chosen = choose_quantizer(quantizer, target, config, mode)
    warn_of_stages(chosen, "prepare")
    return prepare_for(model, backend, chosen, strict=strict, method=method)


@paused()
def prepare_for(
    model: torch.jit.ScriptModule,
    backend: Target,
    quantizer: Quantizer,
    *,
    change: Change | None = None,
    strict: bool = False,
    method: str = "forward",
    mode: Mode = FROZEN,
) -> torch.jit.ScriptModule:
    """Return the result of `prepare`, of a changed model if asked for."""
    with stage("prepare"):
        annotated = annotate(model, method, mode, quantizer, backend, change=change, strict=strict)
        if change is not None:
            rows = remarked(annotated.operators, change.remarks)
            made = {**annotated.made, **change.made}
            annotated = replace(annotated, made=made, operators=rows)
        options = {"insert_observers": plan_observations(annotated.quantizations)}
        prepared = annotated.insert(OBSERVE, options, ModelStage.PREPARED)
    note_origin(prepared, model)
    return prepared


def plan_observations(quantizations: Sequence[Quantization]) -> dict[str, Any]:
    """Return the options of the pass insert_observers; constants are measured.

    Raises:
        JitPassesError: a value is to be quantized twice, or rounded otherwise than backends do; or
            a constant is NaN or infinite.
    """
    plan = _Plan()
    for quantization in quantizations:
        place = quantization.place
        if place.observed and not place.is_dynamic and not quantization.value.is_constant:
            plan.live.add(place.group)
    for quantization in quantizations:
        _check(quantization)
        plan.add(quantization)
    return {"places": tuple(plan.requests), "states": tuple(plan.states)}


def fresh_range(scales: tuple[int, ...] = ()) -> torch.Tensor:
    """Return the range of an observer that has seen nothing: see `ObserverState`."""
    return _unseen(math.prod(scales) if scales else 0).clone()


@lru_cache
def _unseen(channels: int) -> torch.Tensor:
    infinity = float("inf")
    if channels:
        return torch.tensor([[infinity], [-infinity]], dtype=torch.float64).repeat(1, channels)
    return torch.tensor([infinity, -infinity, infinity, -infinity, 0, 0], dtype=torch.float64)


def operands_of(op: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known operands that the operator takes behind the value, by name."""
    return {name: known[name] for name in _arguments(op) if name in known}


@lru_cache
def _arguments(op: str) -> tuple[str, ...]:
    return tuple(argument.name for argument in schema_of(qualified(op)).arguments[1:])


def qualified(op: str) -> str:
    """Return the name of an operator with its namespace, which is jit_passes if it has none."""
    return op if "::" in op else f"jit_passes::{op}"


@dataclass
class _Plan:
    """The options of the pass insert_observers.

    Attributes:
        requests: one for each place.
        states: (name, node, tensor, whether it is trained) of each buffer.
        live: groups with a member that is observed while the model runs.
        numbers: the numbers of the states by their names.
    """

    requests: list[dict[str, Any]] = field(default_factory=list)
    states: list[tuple[Any, ...]] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, quantization: Quantization) -> None:
        """Plan one place."""
        place, value, spec = quantization.place, quantization.value, quantization.spec
        op = CONSTANT if value.is_constant and place.group not in self.live else REACH
        group = f"observer_{place.group}"
        known: dict[str, Any] = {}
        if isinstance(spec, QuantizationSpec) and place.observed and not place.is_dynamic:
            observer, axis = spec.observer, spec.ch_axis
            own = observer.op if axis is None else observer.per_channel_op
            known = {**vars(observer), "axis": axis}
            known["histogram"] = self.histogram(own, f"{group}_histogram", observer)
            known["range"] = self.range(group, place)
            if op == CONSTANT and spec.group_size is not None:
                assert axis is not None
                rows = rows_of(value.constant, axis, spec.group_size)
                self.measure(own, rows, {**known, "axis": 0}, place)
            elif op == CONSTANT:
                self.measure(own, value.constant, known, place)
            else:
                _check_search(observer, axis, place.name)
                op = own
            inputs = inputs_of(quantization) if observer.weighs_inputs and op == CONSTANT else None
            if inputs is not None:
                op, shape = INPUTS, inputs.squares
                known |= {"inputs": ("value", inputs.value), "channel_axis": inputs.axis}
                known["squares"] = self.state(
                    f"{group}_squares", torch.zeros, *shape, dtype=torch.float64
                )
        elif (
            isinstance(spec, GroupDerivation) or place.is_dynamic or (place.scales and op == REACH)
        ):
            # Buffers of channels have no room for ranks. All places where nothing is observed share
            # one buffer, since many attributes are slow to look up.
            op, group = NOTHING, "observer_none"
        known |= {"codes": None, "name": place.name, "spec": place.to_text()}
        if "range" not in known:
            known |= {"range": self.range(group, place), "histogram": None}
        if op in (CONSTANT, INPUTS):
            block = quantization.uses[0][0].block if quantization.uses else 0
            known["reached"] = self.state(
                f"observer_reached_{block}", torch.zeros, 1, dtype=torch.bool
            )
        uses = [(node.index, operand) for node, operand in quantization.uses]
        operands = operands_of(op, known)
        self.requests.append(request(value.id, uses, quantization.node.index, op, operands))

    def histogram(self, op: str, name: str, observer: Observer) -> tuple[str, int] | None:
        """Return the operand that is a histogram, if the operator has one."""
        if "histogram" not in operands_of(op, {"histogram": None}):
            return None
        return self.state(name, torch.zeros, getattr(observer, "bins", 0), dtype=torch.int64)

    def range(self, group: str, place: Place) -> tuple[str, int]:
        """Return the operand that is the group's range."""
        return self.state(f"{group}_range", fresh_range, place.scales)

    def state(
        self, name: str, fresh: Callable[..., torch.Tensor], *args: Any, **kwargs: Any
    ) -> tuple[str, int]:
        """Return the operand that is the buffer of that name; the first one makes it."""
        if name not in self.numbers:
            self.numbers[name] = len(self.states)
            self.states.append((name, None, fresh(*args, **kwargs), False))
        return "state", self.numbers[name]

    def measure(self, op: str, value: Any, known: Mapping[str, Any], place: Place) -> None:
        """Run an observer of a constant."""
        operands = operands_of(op, {**known, "name": place.name, "spec": ""})
        given = {
            name: self.states[what[1]][2] if isinstance(what, tuple) else what
            for name, what in operands.items()
        }
        measure(op, value, given, place.name)


@dataclass(frozen=True)
class Inputs:
    """The input that a constant weight multiplies.

    Attributes:
        value: its id.
        axis: of its channels, from the end.
        squares: the shape of one number for each channel: [groups, channels], or of a transposed
            convolution, whose weight begins with all of them, [channels].
    """

    value: int
    axis: int
    squares: tuple[int, ...]


def inputs_of(quantization: Quantization) -> Inputs | None:
    """Return the input that the first reader of a weight multiplies by it; None for no product."""
    for node, operand in quantization.uses[:1]:
        weighted = node.traits.weighted
        if weighted is None or operand != node.position("weight"):
            return None
        shape = quantization.value.constant.shape
        squares = (shape[0],) if weighted.transposed else (node.groups, shape[1])
        return Inputs(node.operand("input").id, -1 - weighted.spatial_dims, squares)
    return None


def request(
    value: int, uses: list[tuple[int, int]], home: int | None, op: str, operands: dict[str, Any]
) -> dict[str, Any]:
    """Return the request of a place to the inserting passes: see cpp/quantization/insertion.h."""
    return {"value": value, "uses": uses, "home": home, "op": qualified(op), "operands": operands}


def measure(op: str, value: Any, operands: Mapping[str, Any], name: str) -> None:
    """Run an observer of a constant.

    Raises:
        JitPassesError: it holds a NaN or an infinity.
    """
    try:
        packet_of(qualified(op))(value, **operands)
    except ValueError as error:
        raise JitPassesError(
            f"the constant '{name}' cannot be quantized: {first_line(error)}"
        ) from error


def _check_search(observer: Observer, axis: int | None, name: str) -> None:
    """Raise an error for a search among numbers that only a constant keeps."""
    if observer.weighs_inputs or (observer.searches_rows and axis is not None):
        where = "" if axis is None else " per channel"
        raise JitPassesError(
            f"'{name}' is to be calibrated{where} with {observer.name}, which goes through the "
            "numbers of a constant weight, and the model computes it: calibrate with min_max"
            + ("" if observer.weighs_inputs else ", or set channelwise to false")
        )


def _check(quantization: Quantization) -> None:
    """Raise an error for annotations that only fake quantization follows."""
    if quantization.again:
        raise JitPassesError(
            f"'{quantization.name}' is to be quantized twice, which only fake quantization does: "
            "leave output_qspec_again of its annotation out"
        )
