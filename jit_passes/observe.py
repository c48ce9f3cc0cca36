"""Stage 2: annotate the graph and insert observers."""

from __future__ import annotations

from typing import Any

import torch

from .errors import JitPassesError
from .graph import GraphView, ValueView
from .module import OperatorRecord, Report, check_module, wrap
from .normalize import normalize
from .observers import MovingAverageMinMax
from .passes import Pipeline
from .quantizer import (
    Annotations,
    EdgeAnnotation,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
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
    annotations = (quantizer or backend.quantizer()).annotate(graph)
    observations = plan_observations(annotations)
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


def plan_observations(annotations: Annotations) -> list[Observation]:
    """Return what the pass insert_observers takes: edges first, then outputs in program order."""
    groups: dict[int, int] = {}
    planned: list[Observation] = []
    for edge in annotations.edges:
        group = len(planned)
        if not edge.value.is_constant:
            groups.setdefault(edge.value.id, group)
        users = [node.name for node, _ in edge.uses]
        text = spec_to_text(edge.spec, owner=edge.owner, users=users, ranks=[0, 64])
        name = f"{edge.value.name} -> {users[0]}"
        planned.append(_observation(edge.value, name, _uses(edge), edge.spec, group, text))
    for value_id, annotation in annotations.outputs.items():
        if annotation.again is not None:
            raise JitPassesError(
                f"'{annotation.value.name}' is to be quantized twice, which only fake quantization "
                "does: leave `again` of its annotation out"
            )
        group = groups[value_id] = len(planned)
        spec = annotation.spec
        shared = isinstance(annotation.spec, SharedQuantizationSpec)
        if isinstance(spec, SharedQuantizationSpec):
            group = groups[value_id] = groups[spec.value]
            spec = QuantizationSpec()
        text = spec_to_text(spec, owner=annotation.owner, ranks=annotation.ranks, shared=shared)
        value = annotation.value
        planned.append(_observation(value, value.name, [], spec, group, text, shared))
    return planned


def _uses(edge: EdgeAnnotation) -> list[tuple[int, int]]:
    return [(node.index, operand) for node, operand in edge.uses]


def _observation(
    value: ValueView,
    name: str,
    uses: list[tuple[int, int]],
    spec: QuantizationSpec | FixedQParamsQuantizationSpec,
    group: int,
    text: str,
    shared: bool = False,
) -> Observation:
    channels, axis, constant, bins, op = 0, 0, 1.0, 0, "observe_reach"
    if isinstance(spec, QuantizationSpec) and not shared:
        op = spec.observer.op
        bins = getattr(spec.observer, "bins", 0)
        if isinstance(spec.observer, MovingAverageMinMax):
            constant = spec.observer.averaging_constant
        if spec.ch_axis is not None:
            op, axis = spec.observer.per_channel_op, spec.ch_axis
            channels = value.constant.shape[axis]
    once = value.is_constant
    return (value.id, uses, op, group, channels, axis, once, constant, bins, name, text)
