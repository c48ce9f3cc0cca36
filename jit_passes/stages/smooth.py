"""Large channels of activations, moved into the weights that read them."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..errors import ArgumentError, JitPassesError, warn
from ..graph.editor import GraphEditor
from ..graph.view import GraphView, NodeView, ValueView
from ..passes.pipeline import Pipeline
from ..passes.subject import wrap
from .annotate import FROZEN
from .batches import InputFn, batches, progress_bar
from .recording import Recorder

_NORM, _LINEAR = "aten::layer_norm", "aten::linear"
STRENGTH = 0.5
OUTLYING = 4.0  # times the median channel: two of eight bits of the others are lost
NOTHING_TO_SMOOTH = (
    "no layer norm over the last axis is read by a linear with constant weights in float32"
)
_DEVIATIONS = 3.0  # that normalized numbers reach

Arguments = Iterable[tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class _Group:
    """A layer norm over one axis, the linears that read it, and whether others do."""

    norm: NodeView
    linears: tuple[NodeView, ...]
    shared: bool

    @property
    def can_be_quantized(self) -> bool:
        """Whether a linear may be, which targets do with float32 alone: else nothing is gained."""
        return any(n.operand("weight").constant.dtype == torch.float32 for n in self.linears)

    @property
    def largest_weights(self) -> torch.Tensor:
        """The largest magnitude of the weights that read each channel, `[channels]`."""
        weights = [node.operand("weight").constant.detach() for node in self.linears]
        ends = [weight.aminmax(dim=0) for weight in weights]  # of abs() there would be a copy
        return torch.stack([torch.maximum(-low, high) for low, high in ends]).amax(0).double()

    @property
    def expected(self) -> torch.Tensor:
        """The largest magnitude by gain and shift, if normalized numbers reach 3, `[channels]`."""
        ones = torch.ones_like(self.largest_weights)
        gain, shift = (self.norm.operand(name).constant for name in ("weight", "bias"))
        gain = ones if gain is None else gain.detach().abs().double()
        shift = 0 * ones if shift is None else shift.detach().abs().double()
        return _DEVIATIONS * gain + shift


def smooth(
    model: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    strength: float = STRENGTH,
    method: str = "forward",
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Move large channels of layer norms' results into the weights of the linears behind them.

    In transformers a few channels behind a layer norm are 20 to 100 times larger than the rest. One
    scale for all channels leaves the others next to no digits. For channel j of the values X that
    linears with weights W read,

        s_j = max|X_j|^a / max|W_j|^(1 - a),    Y = (X / s) (s W)^T

    with a the `strength`: the model computes the same, and both factors are quantized well. X / s
    is the layer norm with gain and shift divided by s. Where others read X too, the sum of a
    residual say, they get a layer norm of their own, as it was. Source: SmoothQuant (Xiao et al.,
    2023, https://arxiv.org/abs/2211.10438, equation 4).

    `quantize_script` does so by itself where channels are outlying. With `prepare`, or of all layer
    norms, it is a call of its own, with the same data:

        model = jit_passes.smooth(model, batches)
        prepared = jit_passes.prepare(model)

    Args:
        model: a float model in eval mode; it is not touched.
        data: batches of typical inputs, as for `calibrate`.
        strength: 0 to 1: how much of the differences between channels goes into the weights.
        method: the method to change. The result has this one only.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.

    Returns:
        The model in canonical form, its parameters constants: to be quantized, not to be trained.
        `compare` takes it in place of the original: results of its layer norms are others.

    Raises:
        JitPassesError: the model has been quantized or is in training mode; no layer norm is read
            by a linear; a value is NaN or infinite; there is no batch; the strength is not between
            0 and 1.
    """
    check_strength(strength)
    module = FROZEN.enter(model, method)
    groups = _groups(GraphView.of(module, method))
    if not groups:
        raise JitPassesError(f"there is nothing to smooth: {NOTHING_TO_SMOOTH}")
    arguments = batches(data, input_fn, progress_bar("smooth", progress))
    largest = _measured(module, method, groups, arguments, model)
    return wrap(_migrated(module, method, groups, largest, strength))


def check_strength(strength: Any, said: str = "strength is a number from 0 to 1") -> None:
    """Raise an error that begins with the given text, for all but a number from 0 to 1."""
    is_number = isinstance(strength, numbers.Real) and not isinstance(strength, bool)
    if not is_number or not 0 <= strength <= 1:
        raise ArgumentError(f"{said}, not {strength!r}")


@dataclass
class Smoother:
    """Smooths a module on its way to be annotated.

    Attributes:
        strength: of `smooth`; None for 0.5 and only those layer norms whose largest channel is more
            than four times the median one.
        data: batches; None to take from gain and shift of a layer norm how large its channels are,
            that is |shift| + 3 |gain|. An iterator becomes a list where it is needed.
        input_fn: see `smooth`.
        progress: see `smooth`.
        names: the layer norms that were smoothed.
        largest: the measured magnitudes, by index of a layer norm: data are read for the first
            copy of a model, and all further copies become equal to it.
        origin: the float model, for messages about data.
    """

    strength: float | None
    data: Iterable[Any] | None
    input_fn: InputFn | None = None
    progress: bool | None = None
    names: Sequence[str] = ()
    largest: dict[int, torch.Tensor] | None = None
    origin: torch.jit.ScriptModule | None = None

    def __call__(self, module: Any, method: str) -> Any:
        """Return the module, in canonical form, or one that computes the same."""
        has_norms = _NORM in _C.names_by_kind(module, method)
        found = _groups(GraphView.of(module, method)) if has_norms else []
        groups = [group for group in found if group.can_be_quantized]
        if not groups:
            if self.strength is not None and self.largest is None:
                why = f"{self.strength:g} changes nothing: {NOTHING_TO_SMOOTH}"
                warn(f"smooth={why}", command=f"--smooth {why}")
            return module
        if self.largest is None:
            self.largest = self._measure(module, method, groups)
        largest = self.largest
        self.names = [group.norm.name for group in groups if group.norm.index in largest]
        strength = STRENGTH if self.strength is None else self.strength
        return _migrated(module, method, groups, largest, strength) if largest else module

    def _measure(
        self, module: Any, method: str, groups: Sequence[_Group]
    ) -> dict[int, torch.Tensor]:
        if self.data is None:
            largest = {group.norm.index: group.expected for group in groups}
        else:
            if isinstance(self.data, Iterator):
                self.data = list(self.data)
            arguments = batches(self.data, self.input_fn, progress_bar("smooth", self.progress))
            largest = _measured(module, method, groups, arguments, self.origin)
        if self.strength is not None:
            return largest
        return {index: most for index, most in largest.items() if _is_outlying(most)}


def _is_outlying(largest: torch.Tensor) -> bool:
    return bool(largest.isfinite().all() and largest.max() > OUTLYING * largest.median())


def _measured(
    module: Any,
    method: str,
    groups: Sequence[_Group],
    data: Arguments,
    origin: torch.jit.ScriptModule | None,
) -> dict[int, torch.Tensor]:
    """Return the largest magnitude in each channel of layer norms' results, by index.

    Layer norms in branches that no data took are left out.
    """
    watched = _C.deepcopy(_C.clone(module, method))
    recorder = Recorder(watched, method, [group.norm.index for group in groups], origin=origin)
    largest: dict[int, torch.Tensor] = {}
    for arguments in data:
        _, values = recorder.run(arguments)
        for index, computed in values.items():
            for value in computed:
                rows = value.detach().abs().reshape(-1, value.shape[-1]).double()
                known = largest.get(index, rows.new_zeros(1, rows.shape[1]))
                largest[index] = torch.cat([rows, known.reshape(1, -1)]).amax(0)
    return largest


def _migrated(
    module: Any,
    method: str,
    groups: Sequence[_Group],
    largest: dict[int, torch.Tensor],
    strength: float,
) -> Any:
    """Return a module whose layer norms are smooth, if their largest magnitudes are given."""
    factors = {
        group.norm.index: _factors(group, largest[group.norm.index], strength)
        for group in groups
        if group.norm.index in largest
    }

    def migrate(graph: GraphEditor) -> None:
        nodes = {node.index: node for node in graph.nodes}
        for group in groups:
            if group.norm.index in factors:
                _migrate(graph, group, nodes, factors[group.norm.index])

    steps = (migrate, "remove_dead_code", "pool_constants")
    return Pipeline("smooth", steps).run(module, method).module


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
    sizes = norm.operand("normalized_shape").constant
    known = _known(norm.operand("weight")) and _known(norm.operand("bias"))
    return known and isinstance(sizes, list | tuple) and len(sizes) == 1


def _known(value: ValueView) -> bool:
    return value.is_constant and (value.constant is None or torch.is_tensor(value.constant))


def _is_constant(node: NodeView) -> bool:
    return node.kind == _LINEAR and torch.is_tensor(node.operand("weight").constant)


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
    gain, shift = (norm.operand(name).constant for name in ("weight", "bias"))
    if gain is None:
        gain = torch.ones(len(factors), dtype=group.linears[0].operand("weight").constant.dtype)
    operands = list(norm.inputs)
    operands[norm.position("weight")] = graph.constant(_scaled(gain, 1 / factors), before=norm)
    if shift is not None:
        operands[norm.position("bias")] = graph.constant(_scaled(shift, 1 / factors), before=norm)
    smoothed = graph.insert(_NORM, operands, before=norm, like=norm).output
    for linear in group.linears:
        node = nodes[linear.index]
        weight = _scaled(linear.operand("weight").constant, factors)
        graph.set_input(node, 0, smoothed)
        graph.set_input(node, node.position("weight"), graph.constant(weight, before=node))
    if not group.shared:
        graph.remove(norm)


def _scaled(tensor: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Return the product in the tensor's own dtype: under autocast, weights and gains differ."""
    return (tensor.detach().double() * by).to(tensor.dtype)
