"""Stage 2: annotate the graph and insert observers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .errors import JitPassesError
from .graph import GraphView
from .module import OperatorRecord, Report, check_module, wrap
from .normalize import normalize
from .observers import MovingAverageMinMax
from .passes import Pipeline
from .quantizer import (
    Annotations,
    GroupDerivation,
    Quantization,
    QuantizationSpec,
    Quantizer,
    resolve,
    spec_to_text,
)
from .targets import Target, resolve_target

OBSERVE = Pipeline("observe", ("insert_observers",))
REPORTED = ("conv", "linear", "matmul", "bmm", "mm", "addmm", "baddbmm")

Observation = tuple[Any, ...]


def prepare(
    model: torch.jit.ScriptModule,
    *,
    quantizer: Quantizer | None = None,
    target: str | Target = "auto",
    method: str = "forward",
) -> torch.jit.ScriptModule:
    """Return a copy of the model that watches its values while it runs.

    The copy is inlined, frozen and in canonical form, with an observer on every value that the
    quantizer wants quantized; it computes what the model computes.

    Args:
        model: scripted, traced or loaded, in eval mode. It is not touched.
        quantizer: decides what is quantized and how; None for the target's own.
        target: the backend that the model is for: "auto", a name, or a `Target`.
        method: the method to quantize. The copy has this one only.

    Raises:
        JitPassesError: the model is not a ScriptModule, is in training mode, is quantized already
            or has no such method; the target is unknown.
    """
    check_module(model, method)
    if (report := Report.read(model)) is not None:
        raise JitPassesError(
            f"the model is {report.stage} already: start from the float model, or go on with "
            "calibrate, convert or lower"
        )
    backend = resolve_target(target)
    module = normalize(model._c, method).module
    graph = GraphView.of(module, method)
    if is_quantized(graph):
        raise JitPassesError("the model is quantized already: start from the float model")
    chosen = quantizer or backend.quantizer()
    annotations = chosen.annotate(graph)
    chosen.validate(annotations)
    observations = plan_observations(resolve(graph, annotations))
    if observations:
        options = {"insert_observers": {"observations": observations}}
        module = OBSERVE.run(module, method, options=options).module
    operators = tuple(operator_records(graph, annotations))
    Report("prepared", method, backend.name, backend.options, operators).write(module)
    return wrap(module)


def is_quantized(graph: GraphView) -> bool:
    """Say whether the graph holds quantized operators, whoever put them there."""
    return any(node.kind.startswith(("quantized::", "jit_passes::")) for node in graph.nodes)


def operator_records(graph: GraphView, annotations: Annotations) -> list[OperatorRecord]:
    """List all convolutions, linears and matrix products, and what will become of them."""
    records = []
    quantized = set(annotations.quantized)
    for node in graph.nodes:
        name = node.kind.removeprefix("aten::")
        if not node.kind.startswith("aten::") or not name.startswith(REPORTED):
            continue
        reason = annotations.reasons.get(node.name, "the target has no int8 form of it")
        int8 = node.name in quantized
        dtype = "int8" if int8 else "float"
        records.append(OperatorRecord(node.name, name, dtype, "" if int8 else reason, node.source))
    return records


def plan_observations(quantizations: Sequence[Quantization]) -> list[Observation]:
    """Return what the pass insert_observers takes."""
    return [_observation(quantization) for quantization in quantizations]


def _observation(quantization: Quantization) -> Observation:
    if quantization.again:
        raise JitPassesError(
            f"'{quantization.name}' is to be quantized twice, which only fake quantization does: "
            "leave output_qspec_again of its annotation out"
        )
    value, spec = quantization.value, quantization.spec
    channels, axis, constant, bins = 0, 0, 1.0, 0
    op = "observe_nothing" if isinstance(spec, GroupDerivation) else "observe_reach"
    if isinstance(spec, QuantizationSpec) and quantization.observed:
        op = spec.observer.op
        bins = getattr(spec.observer, "bins", 0)
        if isinstance(spec.observer, MovingAverageMinMax):
            constant = spec.observer.averaging_constant
        if spec.ch_axis is not None:
            op, axis = spec.observer.per_channel_op, spec.ch_axis
            channels = channel_count(quantization, axis)
    text = spec_to_text(
        spec,
        group=quantization.group,
        observed=quantization.observed,
        owner=quantization.owner,
        users=quantization.users,
        ranks=quantization.ranks,
    )
    uses = [(node.index, operand) for node, operand in quantization.uses]
    once = value.is_constant
    name = quantization.name
    return (
        value.id, uses, op, quantization.group, channels, axis, once, constant, bins, name, text,
    )  # fmt: skip


def channel_count(quantization: Quantization, axis: int) -> int:
    """Return how many channels the value has, ahead of time.

    Raises:
        JitPassesError: the graph does not know.
    """
    shape = quantization.value.shape
    channels = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if channels is None:
        raise JitPassesError(
            f"'{quantization.name}' is to be quantized per channel along axis {axis}, and its "
            f"shape is {'not known ahead of time' if shape is None else list(shape)}: use a "
            "per-tensor scheme"
        )
    return channels
