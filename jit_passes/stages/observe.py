"""Stage 2: annotate the graph and insert observers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import JitPassesError
from ..graph.view import GraphView
from ..observers import MovingAverageMinMax
from ..passes.pipeline import Pipeline, wrap
from ..quantizers.backend import BackendQuantizer
from ..quantizers.base import Quantizer, annotations_of
from ..quantizers.deferred import DEFERRED, FOLD_BIAS, show_folded
from ..quantizers.slots import channels_of, slot_of_split
from ..specification.annotation import Annotations
from ..specification.resolve import Quantization, resolve
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    spec_to_text,
)
from ..targets import Target, resolve_target
from .module import Report, attribute_of, check_module
from .normalize import normalize
from .records import check_refusals, operator_records

OBSERVE = Pipeline("observe", ("insert_observers",), ensures=("observed_once",))


Observation = tuple[Any, ...]


def prepare(
    model: torch.jit.ScriptModule,
    *,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    config: Any = None,
    strict: bool = False,
    method: str = "forward",
) -> torch.jit.ScriptModule:
    """Return a copy of the model that watches its values while it runs.

    The copy is inlined, frozen and in canonical form, with an observer on every value that the
    quantizer wants quantized; it computes what the model computes.

    Args:
        model: scripted, traced or loaded, in eval mode. It is not touched.
        quantizer: decides what is quantized and how; None for the target's own.
        target: the backend that the model is for: "auto" (the one that the quantizer is made for,
            or the best for this machine), a name, or a `Target`.
        config: layer by layer, what is to be done otherwise: the path of a YAML file, a dict, or a
            `Configuration`. For quantizers of a backend.
        strict: raise an error for operators with weights and matrix products that would stay in
            float and were not asked to, and for rules of the configuration that change nothing.
        method: the method to quantize. The copy has this one only.

    Raises:
        JitPassesError: the model is not a ScriptModule, is in training mode, is quantized already
            or has no such method; the target is unknown; the configuration is wrong.

    Warns:
        JitPassesWarning: what the configuration asks for is more than the target can do: these
            operators stay in float; or a rule of it changes nothing.
    """
    check_module(model, method)
    if (report := Report.read(model)) is not None:
        raise JitPassesError(
            f"the model is {report.stage} already: start from the float model, or go on with "
            "calibrate, convert or lower"
        )
    backend, chosen = choose_quantizer(quantizer, target, config)
    module, graph, annotations = annotate(model, chosen, method)
    places = resolve(graph, annotations)
    operators = tuple(operator_records(graph, annotations, backend, places))
    check_refusals(annotations, operators, strict)
    check_places(places, backend)
    observations = plan_observations(places)
    if observations:
        options = {"insert_observers": {"observations": observations}}
        module = OBSERVE.run(module, method, options=options).module
    Report("prepared", method, backend.record(), operators).write(module)
    return wrap(module)


def choose_quantizer(
    quantizer: Quantizer | None, target: str | Target, config: Any = None
) -> tuple[Target, Quantizer]:
    """Return the backend, and the quantizer with what a configuration says.

    Raises:
        JitPassesError: the target is unknown, the quantizer is none, or takes no configuration.
    """
    if quantizer is not None and not isinstance(quantizer, Quantizer):
        call = f": call it, {quantizer.__name__}()" if isinstance(quantizer, type) else ""
        raise JitPassesError(f"a quantizer is an instance of Quantizer, not {quantizer!r}{call}")
    made_for = quantizer.target if quantizer is not None else None
    backend = resolve_target(made_for if target == "auto" and made_for is not None else target)
    chosen = quantizer or backend.quantizer()
    if config is not None:
        if not isinstance(chosen, BackendQuantizer):
            raise JitPassesError(
                f"a configuration changes what a backend's quantizer does, and "
                f"{type(chosen).__name__} is none: leave `config` or `quantizer` out"
            )
        chosen = chosen.configured(config)
    return backend, chosen


def annotate(
    model: torch.jit.ScriptModule, quantizer: Quantizer, method: str
) -> tuple[Any, GraphView, Annotations]:
    """Return the normalized module, its graph, and what a quantizer says about it."""
    return annotate_graph(normalize(model._c, method).module, method, quantizer)


def annotate_graph(
    module: Any, method: str, quantizer: Quantizer, *, parameters: bool = False
) -> tuple[Any, GraphView, Annotations]:
    """Return the module as the quantizer has changed it, its graph, and what it says about it.

    Args:
        module: a normalized C++ module.
        method: whose graph.
        quantizer: annotates it.
        parameters: whether the module still has its parameters, which then count as constants.

    Raises:
        JitPassesError: the graph is quantized already, or the quantizer does not do its work.
    """
    if is_quantized(GraphView.of(module, method)):
        raise JitPassesError("the model is quantized already: start from the float model")
    if type(quantizer).transform_for_annotation is not Quantizer.transform_for_annotation:
        change = Pipeline("transform_for_annotation", (quantizer.transform_for_annotation,))
        module = change.run(module, method).module
    graph = GraphView.of(module, method, parameters=parameters)
    if parameters:
        model = wrap(module)
        show_folded(graph, lambda path: attribute_of(model, path))
    annotations = annotations_of(quantizer, graph)
    quantizer.validate(annotations)
    return module, graph, annotations


def check_places(places: Sequence[Quantization], target: Target) -> None:
    """Raise an error for specifications that the target's operators do not compute with.

    Those of a target's own quantizer have passed this already.
    """
    for place in places:
        if isinstance(place.spec, GroupDerivation):
            continue
        for node, operand in place.uses or ((place.node, None),):
            if why := target.refusal(node, operand, place.spec):
                raise JitPassesError(
                    f"'{place.name}' is to be {why}: annotate what '{target.name}' has, or prepare "
                    "for another target"
                )


def is_quantized(graph: GraphView) -> bool:
    """Say whether the graph holds quantized operators, whoever put them there."""
    kinds = {node.kind for node in graph.nodes} - {DEFERRED, FOLD_BIAS}
    return any(kind.startswith(("quantized::", "jit_passes::")) for kind in kinds)


def plan_observations(quantizations: Sequence[Quantization]) -> list[Observation]:
    """Return what the pass insert_observers takes.

    Raises:
        JitPassesError: a value is to be quantized twice, or per channel and it is not known how
            many channels it has, or those that share its parameters have another number of them.
    """
    counts = check_channels(quantizations)
    return [_observation(*pair) for pair in zip(quantizations, counts, strict=True)]


def check_channels(quantizations: Sequence[Quantization]) -> list[int]:
    """Return how many channels have parameters of their own; 0 per tensor, or if it is unknown."""
    first: dict[int, tuple[Quantization, int]] = {}
    counts = []
    for quantization in quantizations:
        spec = quantization.spec
        axis = None if isinstance(spec, FixedQParamsQuantizationSpec) else spec.ch_axis
        count = 0
        if axis is not None:
            known = isinstance(spec, QuantizationSpec)  # what is derived is not measured
            count = channel_count(quantization, axis, needed=known)
        if count:
            one, former = first.setdefault(quantization.group, (quantization, count))
            if count != former:
                raise JitPassesError(
                    f"'{one.name}' and '{quantization.name}' share parameters per channel, and "
                    f"have {former} and {count} channels along axis {axis}"
                )
        counts.append(count)
    return counts


def _observation(quantization: Quantization, count: int) -> Observation:
    if quantization.again:
        raise JitPassesError(
            f"'{quantization.name}' is to be quantized twice, which only fake quantization does: "
            "leave output_qspec_again of its annotation out"
        )
    value, spec = quantization.value, quantization.spec
    if isinstance(spec, QuantizationSpec) and spec.rounding != "half_even":
        raise JitPassesError(
            f"'{quantization.name}' is to be rounded {spec.rounding}, which only fake quantization "
            "does: backends' kernels round halves to even"
        )
    channels, axis, constant, bins = 0, 0, 1.0, 0
    # The buffers of channels hold no rank, so nothing can be noted there but their ranges.
    op = "observe_nothing" if isinstance(spec, GroupDerivation) or count else "observe_reach"
    if isinstance(spec, QuantizationSpec) and quantization.observed:
        op = spec.observer.op
        bins = getattr(spec.observer, "bins", 0)
        if isinstance(spec.observer, MovingAverageMinMax):
            constant = spec.observer.averaging_constant
        if spec.ch_axis is not None:
            op, axis, channels = spec.observer.per_channel_op, spec.ch_axis, count
    text = spec_to_text(
        spec,
        group=quantization.group,
        observed=quantization.observed,
        owner=quantization.owner,
        users=quantization.users,
        ranks=quantization.ranks,
        channels=count,
    )
    uses = [(node.index, operand) for node, operand in quantization.uses]
    once = value.is_constant
    name = quantization.name
    return (
        value.id, uses, op, quantization.group, channels, axis, once, constant, bins, name, text,
    )  # fmt: skip


def channel_count(quantization: Quantization, axis: int, needed: bool = True) -> int:
    """Return how many channels the value has, ahead of time; 0 if not known and not needed.

    Raises:
        JitPassesError: the graph does not know.
    """
    shape = quantization.value.shape
    channels = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if channels is None and (split := slot_of_split(quantization)) is not None:
        channels = channels_of(quantization.node, split)
    if channels is not None:
        return channels
    if shape is None and not needed:
        return 0
    raise JitPassesError(
        f"'{quantization.name}' is to be quantized per channel along axis {axis}, and its "
        f"shape is {'not known ahead of time' if shape is None else list(shape)}: use a "
        "per-tensor scheme"
    )
