"""Large channels of activations, moved into the weights that read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError
from ..graph.editor import GraphEditor
from ..graph.view import GraphView, NodeView, ValueView
from ..passes.pipeline import Pipeline
from ..passes.subject import wrap
from .annotate import FROZEN
from .batches import InputFn, batches, progress_bar
from .recording import Recorder

_NORM, _LINEAR = "aten::layer_norm", "aten::linear"
_GAIN, _SHIFT = 2, 3  # operands of layer norm
_WEIGHT = 1  # of linear


@dataclass(frozen=True)
class _Group:
    """A layer norm over one axis, the linears that read it, and whether others do."""

    norm: NodeView
    linears: tuple[NodeView, ...]
    shared: bool

    @property
    def largest_weights(self) -> torch.Tensor:
        """The largest magnitude of the weights that read each channel, `[channels]`."""
        weights = [node.inputs[_WEIGHT].constant.detach() for node in self.linears]
        return torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).double()


def smooth(
    model: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    strength: float = 0.5,
    method: str = "forward",
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Move large channels of what layer norms give into the weights of the linears behind them.

    In transformers a few channels behind a layer norm are 20 to 100 times larger than the rest. One
    scale for all channels leaves the others next to no digits. For channel j of the values X that
    linears with weights W read,

        s_j = max|X_j|^a / max|W_j|^(1 - a),    Y = (X / s) (s W)^T

    with a the `strength`: the model computes the same, and both factors are quantized well. X / s
    is the layer norm with gain and shift divided by s. Where others read X too, the sum of a
    residual say, they get a layer norm of their own, as it was. Source: SmoothQuant (Xiao et al.,
    2023, https://arxiv.org/abs/2211.10438, equation 4).

    Call it before `quantize_script` or `prepare`, with the same data:

        model = jit_passes.smooth(model, batches)
        quantized = jit_passes.quantize_script(model, batches)

    Args:
        model: a float model in eval mode; it is not touched.
        data: batches of typical inputs, as for `calibrate`.
        strength: 0 to 1: how much of the differences between channels goes into the weights.
        method: the method to change. The result has this one only.
        input_fn: makes a batch of inputs out of what `data` gives.
        progress: a progress bar; None for one on terminals only.

    Returns:
        The model in canonical form, its parameters constants: to be quantized, not to be trained.
        `compare` takes it in place of the original: results of its layer norms are others.

    Raises:
        JitPassesError: the model has been quantized or is in training mode; no layer norm is read
            by a linear; a value is NaN or infinite; there is no batch.
        ValueError: the strength is not between 0 and 1.
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength is between 0 and 1, got {strength}")
    module = FROZEN.enter(model, method)
    groups = _groups(GraphView.of(module, method))
    if not groups:
        raise JitPassesError(
            "there is nothing to smooth: no layer norm over the last axis is read by a linear with "
            "constant weights"
        )
    watched = _C.deepcopy(_C.clone(module, method))
    recorder = Recorder(watched, method, [group.norm.index for group in groups])
    largest: dict[int, torch.Tensor] = {}
    for arguments in batches(data, input_fn, progress_bar("smooth", progress)):
        _, values = recorder.run(arguments)
        for index, computed in values.items():
            for value in computed:
                rows = value.detach().abs().reshape(-1, value.shape[-1]).double()
                known = largest.get(index, rows.new_zeros(1, rows.shape[1]))
                largest[index] = torch.cat([rows, known.reshape(1, -1)]).amax(0)
    factors = {
        group.norm.index: _factors(group, largest[group.norm.index], strength)
        for group in groups
        if group.norm.index in largest  # it may stand in a branch that no data took
    }

    def migrate(graph: GraphEditor) -> None:
        nodes = {node.index: node for node in graph.nodes}
        for group in groups:
            if group.norm.index in factors:
                _migrate(graph, group, nodes, factors[group.norm.index])

    steps = (migrate, "remove_dead_code", "pool_constants")
    return wrap(Pipeline("smooth", steps).run(module, method).module)


def _groups(graph: GraphView) -> list[_Group]:
    found = []
    for node in graph.nodes:
        if node.kind != _NORM or not _has_one_axis(node) or node.output.written:
            continue
        linears = tuple(
            user for user, operand in node.output.uses if operand == 0 and _is_constant(user)
        )
        if linears:
            found.append(_Group(node, linears, shared=len(linears) < len(node.output.uses)))
    return found


def _has_one_axis(norm: NodeView) -> bool:
    sizes, gain, shift = norm.inputs[1].constant, *norm.inputs[_GAIN : _SHIFT + 1]
    return isinstance(sizes, list | tuple) and len(sizes) == 1 and _known(gain) and _known(shift)


def _known(value: ValueView) -> bool:
    return value.is_constant and (value.constant is None or torch.is_tensor(value.constant))


def _is_constant(node: NodeView) -> bool:
    return node.kind == _LINEAR and torch.is_tensor(node.inputs[_WEIGHT].constant)


def _factors(group: _Group, largest: torch.Tensor, strength: float) -> torch.Tensor:
    """Return s, 1 where a channel or its weights are 0."""
    if not largest.isfinite().all():
        raise JitPassesError(f"{group.norm.name} has given NaN or infinite values")
    weights = group.largest_weights
    factors = largest**strength / weights ** (1 - strength)
    return torch.where((largest > 0) & (weights > 0), factors, 1.0)


def _migrate(
    graph: GraphEditor, group: _Group, nodes: dict[int, NodeView], factors: torch.Tensor
) -> None:
    norm = nodes[group.norm.index]
    gain, shift = (value.constant for value in norm.inputs[_GAIN : _SHIFT + 1])
    like = gain if gain is not None else group.linears[0].inputs[_WEIGHT].constant
    ones = torch.ones(len(factors), dtype=like.dtype)

    def scaled(tensor: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return (tensor.detach().double() * by).to(like.dtype)

    operands = list(norm.inputs)
    operands[_GAIN] = graph.constant(
        scaled(ones if gain is None else gain, 1 / factors), before=norm
    )
    if shift is not None:
        operands[_SHIFT] = graph.constant(scaled(shift, 1 / factors), before=norm)
    smoothed = graph.insert(_NORM, operands, before=norm, like=norm).output
    for linear in group.linears:
        node = nodes[linear.index]
        weight = scaled(linear.inputs[_WEIGHT].constant, factors)
        graph.set_input(node, 0, smoothed)
        graph.set_input(node, _WEIGHT, graph.constant(weight, before=node))
    if not group.shared:
        graph.remove(norm)
