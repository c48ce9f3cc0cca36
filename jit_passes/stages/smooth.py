"""Large channels of activations, moved into the weights that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _C
from ..configuration.options import TensorOptions
from ..configuration.stages import SEARCHED, is_strength
from ..errors import ArgumentError, JitPassesError, warn
from ..graph.view import GraphView
from ..passes.subject import wrap
from ..quantizers.capability import WEIGHT
from ..specification.groups import no_groups
from ..specification.specification import QuantizationSpec
from .annotate import FROZEN
from .batches import Batch, InputFn, batches, progress_bar
from .recording import Recorder, check_finite, copy_of
from .scaling import NORM, Layer, Scaling, apply_factors, balanced, find_scaling, is_norm
from .searched_factors import searched, sums_of

_LINEAR = "aten::linear"
STRENGTH = 0.5
OUTLYING = 4.0  # times the median channel: two of eight bits of the others are lost
NOTHING_TO_SMOOTH = (
    "no layer norm over the last axis is read by a linear with constant weights in float32"
)
_LEAST = 2.0**-12  # of the largest channel: no channel is scaled down to less
_DEVIATIONS = 3.0  # that normalized numbers reach


def smooth(
    model: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    strength: float | str = STRENGTH,
    weight: Mapping[str, Any] | None = None,
    method: str = "forward",
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Move large channels of layer norms' results into the weights of the linears behind them.

    In transformers a few channels behind a layer norm are 20 to 100 times larger than the rest. A
    single scale for all channels leaves the small ones next to no digits. For channel j of the
    values X that linears with weights W read,

        s_j = max|X_j|^a / max|W_j|^(1 - a),    Y = (X / s) (s W)^T

    with a the `strength`. The results of the model stay, and both factors are quantized well. X / s
    is the layer norm with gain and shift divided by s. If an operator other than a linear reads X
    too, such as a residual sum, it gets an unchanged layer norm of its own. Source: SmoothQuant
    (Xiao et al., 2023, https://arxiv.org/abs/2211.10438, equation 4).

    The strength "search" is for weights of few bits. For each layer norm it takes the factors
    s_j = (mean|X_j|)^a with the a of 0, 0.05, ..., 0.95 for which rounded weights change the
    linears' results least. Source: AWQ (Lin et al., 2023, https://arxiv.org/abs/2306.00978).

    `quantize_script` smooths by itself where channels are outlying. Ahead of `prepare`, or for all
    layer norms, it is a call of its own, with the data of the calibration:

        model = jit_passes.smooth(model, batches)
        prepared = jit_passes.prepare(model)

    Args:
        model: a float model in eval mode; it is not touched.
        data: batches of typical inputs, as for `calibrate`.
        strength: 0 to 1: how much of the differences between channels goes into the weights; or
            "search".
        weight: for "search", how weights will be quantized, by options of a configuration:
            `{"bits": 4, "group_size": 32}`; None for 8 bits and a scale for each channel. A linear
            whose inputs are no multiple of the group size does not count.
        method: the method to change. The result has this one only.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.

    Returns:
        The model in canonical form, its parameters constants: to be quantized, not to be trained.
        `compare` takes it in place of the original: its layer norms have other results.

    Raises:
        JitPassesError: the model has been quantized or is in training mode; no layer norm is read
            by a linear; a value is NaN or infinite; there is no batch; the strength is not between
            0 and 1; an option of `weight` is wrong.
    """
    if strength != SEARCHED:
        check_strength(strength)
    spec = _weight_spec(weight, strength)
    module = FROZEN.enter(model, method)
    scaling = _scaling(module, method)
    norms = _norms(scaling)
    if not norms:
        raise JitPassesError(f"there is nothing to smooth: {NOTHING_TO_SMOOTH}")
    arguments = batches(data, input_fn, progress_bar("smooth", progress))
    measured = _measured(module, method, norms, arguments, model, strength == SEARCHED)
    specs = {layer.node.index: spec for layer in scaling.layers}
    return wrap(_migrated(module, method, scaling, measured, strength, specs))


def _weight_spec(weight: Mapping[str, Any] | None, strength: float | str) -> QuantizationSpec:
    """Return how weights will be quantized, by the options of `smooth`."""
    if weight is not None and strength != SEARCHED:
        raise ArgumentError(f"weight={dict(weight)} is for strength={SEARCHED!r}")
    try:
        options = TensorOptions(**(weight or {}))
    except TypeError as error:
        raise ArgumentError(f"weight has the options of a configuration: {error}") from error
    spec = options.apply(WEIGHT, 0, "weight")
    if not isinstance(spec, QuantizationSpec):
        raise ArgumentError(f"weight={dict(weight or {})} leaves nothing to search: take bits")
    return spec


def check_strength(strength: Any) -> None:
    """Raise an error for all but a number from 0 to 1."""
    if not is_strength(strength):
        raise ArgumentError(f"strength is a number from 0 to 1, not {strength!r}")


@dataclass
class Smoother:
    """Smooths a module ahead of annotation.

    Results Y of linears that are rounded for a residual sum in float32 are scaled too. Where a
    channel is more than four times the median of max|Y|, the linear makes Y / s, and a product in
    float32 stands in front of the sum:

        s_j = max(1, max|Y_j| / median_i max|Y_i|),    Y = s ((W / s) X + b / s)

    The canonical form would fold the product into the linear again. So this comes behind that form,
    and `smooth`, which returns a float model, does not do it.

    Attributes:
        strength: of `smooth`; None for 0.5, and for layer norms alone whose largest channel is more
            than four times the median one. Results of linears are scaled by that rule for any
            strength. "search" needs data.
        data: batches; None to take |shift| + 3 |gain| of a layer norm for the size of its channels.
            An iterator becomes a list where it is needed.
        input_fn: see `smooth`.
        progress: see `smooth`.
        rounded: returns the indices of linears whose results are rounded for sums in float; None
            for none.
        weights: for the strength "search", returns how weights will be quantized, by index.
        names: the layer norms that were smoothed, and the linears whose results were scaled.
        scaled: the largest factor that channels of a linear's result were divided by, by name.
        measured: magnitudes, or for "search" sums, by index of a layer norm or linear: data are
            read for the first copy of a model, and all further copies become equal to it.
        origin: the float model, for messages about data.
    """

    strength: float | str | None
    data: Iterable[Any] | None
    input_fn: InputFn | None = None
    progress: bool | None = None
    rounded: Callable[[GraphView], set[int]] | None = None
    weights: Callable[[GraphView], Mapping[int, QuantizationSpec]] = lambda graph: {}
    names: Sequence[str] = ()
    scaled: Mapping[str, float] = field(default_factory=dict)
    measured: dict[int, torch.Tensor] | None = None
    origin: torch.jit.ScriptModule | None = None

    @property
    def made(self) -> dict[str, Any]:
        """A report's entries: the strength, and the layer norms."""
        strength = STRENGTH if self.strength is None else self.strength
        return {"smooth": strength, "smoothed": list(self.names)} if self.names else {}

    @property
    def remarks(self) -> dict[str, str]:
        """Remarks on the linears whose results were scaled."""
        return {
            name: f"large channels of its result were divided by up to {factor:.3g}, so that they "
            "have one grid with the others; a product in float in front of the sum undoes this"
            for name, factor in self.scaled.items()
        }

    def __call__(self, module: Any, method: str) -> Any:
        """Return the module, in canonical form, with smooth channels and equal results."""
        norms: list[Layer] = []
        results: list[Layer] = []
        specs: Mapping[int, QuantizationSpec] = {}
        if NORM in _C.names_by_kind(module, method):
            scaling = _scaling(module, method, None if self.data is None else self.rounded)
            norms = [norm for norm in _norms(scaling) if _can_be_quantized(scaling, norm)]
            results = _results(scaling)
        if norms and self.strength == SEARCHED:
            specs = self.weights(GraphView.of(module, method))
            norms = [norm for norm in norms if _fitting(scaling, norm, specs)]
        if not norms and self.strength is not None and self.measured is None:
            why = f"{self.strength} changes nothing: {NOTHING_TO_SMOOTH}"
            warn(f"smooth={why}", command=f"--smooth {why}")
        if not norms and not results:
            return module
        if self.measured is None:
            self.measured = self._measure(module, method, norms, results)
        measured = self.measured
        changed = [layer.node for layer in (*norms, *results) if layer.node.index in measured]
        self.names = [node.name for node in changed]
        self.scaled = {
            layer.node.name: float(_restored(measured[layer.node.index]).max())
            for layer in results
            if layer.node.index in measured
        }
        strength = STRENGTH if self.strength is None else self.strength
        if not measured:
            return module
        return _migrated(module, method, scaling, measured, strength, specs)

    def _measure(
        self, module: Any, method: str, norms: Sequence[Layer], results: Sequence[Layer]
    ) -> dict[int, torch.Tensor]:
        if self.data is None:
            measured = {norm.node.index: _expected(norm) for norm in norms}
        else:
            if isinstance(self.data, Iterator):
                self.data = list(self.data)
            arguments = batches(self.data, self.input_fn, progress_bar("smooth", self.progress))
            layers, by_sums = [*norms, *results], self.strength == SEARCHED
            measured = _measured(module, method, layers, arguments, self.origin, by_sums)
        asked = set() if self.strength is None else {norm.node.index for norm in norms}
        return {i: most for i, most in measured.items() if i in asked or _is_outlying(most)}


def _is_outlying(largest: torch.Tensor) -> bool:
    return bool(largest.isfinite().all() and largest.max() > OUTLYING * largest.median())


def _measured(
    module: Any,
    method: str,
    layers: Sequence[Layer],
    data: Iterable[Batch],
    origin: torch.jit.ScriptModule | None,
    by_sums: bool,
) -> dict[int, torch.Tensor]:
    """Return the largest magnitude in each channel of layers' results, by index.

    With `by_sums`, layer norms have sums for `searched` instead. Layers in branches that no data
    took are left out.
    """
    summed = {layer.node.index for layer in layers if by_sums and layer.node.kind == NORM}
    names = {layer.node.index: layer.node.name for layer in layers}
    recorder = Recorder(copy_of(module, method), method, list(names), origin=origin)
    measured: dict[int, torch.Tensor] = {}
    for number, arguments in enumerate(data):
        _, values = recorder.run(arguments, number=number)
        for index, computed in values.items():
            check_finite(computed, number, names[index])
            for value in computed:
                rows = value.detach().reshape(-1, value.shape[-1]).double()
                if not len(rows):
                    continue
                found = sums_of(rows) if index in summed else rows.abs().amax(0)
                join = torch.add if index in summed else torch.maximum
                measured[index] = join(measured.get(index, torch.zeros_like(found)), found)
    return measured


def _scaling(
    module: Any, method: str, rounded: Callable[[GraphView], set[int]] | None = None
) -> Scaling:
    """Return the channels of layer norms that linears read, and of results that are rounded."""
    graph = GraphView.of(module, method)
    return find_scaling(
        graph, makes=is_norm, reads=lambda node: node.kind == _LINEAR,
        restored=() if rounded is None else rounded(graph),
    )  # fmt: skip


def _norms(scaling: Scaling) -> list[Layer]:
    return [layer for layer in scaling.layers if layer.node.kind == NORM]


def _results(scaling: Scaling) -> list[Layer]:
    """Return the linears whose results are rounded, as targets do with float32 alone."""
    restored = [layer for layer in scaling.layers if layer.restored]
    return [r for r in restored if r.weight is not None and r.weight.dtype == torch.float32]


def _restored(largest: torch.Tensor) -> torch.Tensor:
    """Return s_j = max(1, max|Y_j| / m), with m the median of max|Y_j| over the channels.

    Where most channels are dead, m is a part of the largest one instead.
    """
    typical = torch.maximum(largest.median(), _LEAST * largest.max())
    return (largest / typical).clamp_min(1)


def _readers(scaling: Scaling, norm: Layer) -> list[Layer]:
    """Return the linears that read a layer norm."""
    return [layer for layer in scaling.layers if layer.reads(norm)]


def _can_be_quantized(scaling: Scaling, norm: Layer) -> bool:
    """Say whether a linear behind may be quantized: targets take weights in float32 alone."""
    weights = (reader.weight for reader in _readers(scaling, norm))
    return any(weight is not None and weight.dtype == torch.float32 for weight in weights)


def _expected(norm: Layer) -> torch.Tensor:
    """Return the largest magnitude by gain and shift, if normalized numbers reach 3."""
    ones = torch.ones(len(norm.outputs), dtype=torch.float64)
    gain = ones if norm.weight is None else norm.weight.abs().double()
    shift = 0 * ones if norm.bias is None else norm.bias.abs().double()
    return _DEVIATIONS * gain + shift


def _fitting(scaling: Scaling, norm: Layer, specs: Mapping[int, QuantizationSpec]) -> list[Layer]:
    """Return the readers that will be quantized: groups that do not fit leave one in float."""

    def fits(reader: Layer) -> bool:
        spec, weight = specs.get(reader.node.index), reader.weight
        if spec is None or weight is None:
            return False
        if spec.group_size is None or spec.ch_axis is None:
            return True
        return no_groups(weight.shape, spec.ch_axis, spec.group_size) is None

    return [reader for reader in _readers(scaling, norm) if fits(reader)]


def _migrated(
    module: Any,
    method: str,
    scaling: Scaling,
    measured: Mapping[int, torch.Tensor],
    strength: float | str,
    specs: Mapping[int, QuantizationSpec],
) -> Any:
    """Return a module with smooth layer norms and results, if their sizes are given.

    The strength "search" reads `specs`: how weights will be quantized, by index of their linear.
    """
    factors = scaling.ones()
    for layer in _results(scaling):
        if (before := measured.get(layer.node.index)) is not None:
            factors[layer.outputs] = _restored(before)
    for norm in _norms(scaling):
        if (before := measured.get(norm.node.index)) is None:
            continue
        if isinstance(strength, str):
            readers = [
                (reader.scaled(None, factors[reader.outputs]), specs[reader.node.index])
                for reader in _fitting(scaling, norm, specs)
            ]
            factors[norm.outputs] = searched(before, readers)
            continue
        after = [
            reader.read(factors[norm.outputs], factors[reader.outputs])
            for reader in _readers(scaling, norm)
        ]
        factors[norm.outputs] = balanced(before, torch.stack(after).amax(0), strength)
    return apply_factors(module, method, scaling, factors, name="smooth")
