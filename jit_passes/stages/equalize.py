"""Channels of layers' results, scaled so that one grid suits all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..configuration.stages import EQUALIZATIONS
from ..errors import ArgumentError, JitPassesError, not_among
from ..graph.view import GraphView, NodeView
from ..passes.subject import wrap
from .annotate import FROZEN
from .batch_norms import batch_norms
from .batches import InputFn, batches, progress_bar
from .recording import Recorder, check_finite, copy_of
from .scaling import Layer, Scaling, apply_factors, balanced, find_scaling, is_layer
from .smooth import STRENGTH, check_strength

ROUNDS = 20
_CONVERGED = 1e-4  # of a factor, from round to round
_FLOOR = 2.0**-8  # of the largest channel: a smaller one may be dead in these data alone
_BIAS = 4.0  # times the largest bias of a layer: no bias becomes larger
_FLOATS = (torch.float32, torch.float64)
NOTHING = (
    "no layer with constant weights has only layers as readers, with sums, pools, pads and relus "
    "in between"
)


@dataclass(frozen=True)
class Equalized:
    """The change of a layer's result by equalization.

    Attributes:
        name: of the layer.
        smallest, largest: the factors that its channels were divided by.
        before, after: by how many bits a channel is smaller than the largest one, in the mean.
    """

    name: str
    smallest: float
    largest: float
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"channels of its result were divided by {self.smallest:.3g} to {self.largest:.3g}: "
            f"below the largest one they are by {self.after:.1f} bits in the mean, "
            f"{self.before:.1f} before"
        )


def equalize(
    model: torch.jit.ScriptModule,
    data: Iterable[Any] | None = None,
    *,
    by: str | None = None,
    strength: float = STRENGTH,
    rounds: int = ROUNDS,
    absorb: bool = False,
    method: str = "forward",
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> torch.jit.ScriptModule:
    """Scale the channels between layers, so that they are of like size; the function stays.

    A layer can divide channel i of its result by s_i, where all that reads it multiplies by s_i:

        W1[i] / s_i,  b1[i] / s_i,  W2[:, i] s_i
        s_i = sqrt(r1_i r2_i) / r2_i = sqrt(r1_i / r2_i)    by weights
        s_i = max|X_i|^a / max|W2[:, i]|^(1 - a)            by activations

    with r1_i and r2_i the largest weights that make and that read a channel, and a the `strength`.
    Weights are gone through layer by layer, until nothing changes. Convolutions of all kinds and
    linears count; relu, leaky relu, pads with zeros, pools, resizing, means over pixels, products
    with gates, sums and concatenations may lie in between. Operands of a sum have equal factors. A
    clip such as relu6 becomes a relu where the data never reach its limit; else its channels stay.

    A channel behind a relu may never fall below some number c. `absorb` moves c into the biases of
    the layers that read the channel, so that its range begins at 0. For layers without padding:

        b1 - c,  b2 + W2 c        c = the least number in the data; or max(0, beta - 3 |gamma|)

    The second form is for no data, by the batch norm in front of the relu: 1 of 740 numbers is
    below that c, and changes.

    Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction,
    2019 (arXiv:1906.04721), equation 11; with activations SmoothQuant (arXiv:2211.10438),
    equation 4.

    Args:
        model: a float model in eval mode; it is not touched.
        data: batches of typical inputs, as for `calibrate`; without, limits stay.
        by: whose ranges: "activations", for weights with a scale for each channel; "weights", for
            weights with one scale. None: of activations, or without data of weights.
        strength: 0 to 1: how much of the differences between activations goes into the weights.
        rounds: how often weights are gone through at most.
        absorb: whether to absorb high biases.
        method: the method to change. The result has this one only.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.

    Returns:
        The model in canonical form, its parameters constants: to be quantized, not to be trained.
        `compare` takes it in place of the original: values between layers have other numbers.

    Raises:
        JitPassesError: the model has been quantized or is in training mode; no layers can be
            scaled; a value is NaN or infinite; there is no batch; an option is out of range.
    """
    equalizer = Equalizer(by, data, strength, rounds, absorb, input_fn, progress, origin=model)
    module = FROZEN.enter(model, method)
    result = equalizer(module, method)
    if equalizer.scaling is None:
        raise JitPassesError(f"there is nothing to equalize: {NOTHING}")
    return wrap(result)


@dataclass(frozen=True)
class _Ranges:
    """Statistics of a value over the data, channel by channel."""

    low: Tensor
    high: Tensor

    @property
    def largest(self) -> Tensor:
        return torch.maximum(-self.low, self.high)


@dataclass
class Equalizer:
    """Equalizes a module ahead of annotation; further copies get the factors of the first.

    Attributes:
        by, data, strength, rounds, absorb, input_fn, progress: see `equalize`. An iterator becomes
            a list.
        origin: the float model, for messages about data.
        scaling: of the first module; None before, and where nothing can be scaled.
        changed: the changed layers, with their factors.
        values: names of the values with other numbers than in the float model.
        kept: why channels stay, by the layer that makes them: data reach a limit.
    """

    by: str | None
    data: Iterable[Any] | None
    strength: float = STRENGTH
    rounds: int = ROUNDS
    absorb: bool = False
    input_fn: InputFn | None = None
    progress: bool | None = None
    origin: torch.jit.ScriptModule | None = None
    scaling: Scaling | None = None
    changed: Sequence[Equalized] = ()
    values: Sequence[str] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    _factors: Tensor | None = None
    _unlimited: Sequence[NodeView] = ()
    _shifts: Mapping[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_strength(self.strength)
        if self.by is not None and self.by not in EQUALIZATIONS:
            raise ArgumentError(not_among("by", self.by, EQUALIZATIONS))
        if self.by == "activations" and self.data is None:
            raise ArgumentError("by='activations' needs data: pass some, or leave it out")
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise ArgumentError(f"rounds is a whole number above 0, not {self.rounds!r}")

    def __call__(self, module: Any, method: str) -> Any:
        """Return the module, in canonical form, with scaled channels and equal results."""
        if self._factors is None:
            self._factors = self._choose(module, method)
        if self.scaling is None:
            return module
        return apply_factors(
            module, method, self.scaling, self._factors, name="equalize",
            unlimited=self._unlimited, shifts=self._shifts,
        )  # fmt: skip

    @property
    def made(self) -> dict[str, Any]:
        """A report's entries: the number of changed layers, and the values with other numbers."""
        if not self.changed:
            return {}
        return {"equalize": self._ranges, "equalized": len(self.changed), "scaled": self.values}

    @property
    def remarks(self) -> dict[str, str]:
        """Remarks about layers: how their channels were scaled, or which limit kept them."""
        return {**self.kept, **{row.name: str(row) for row in self.changed}}

    @property
    def _ranges(self) -> str:
        return self.by or ("weights" if self.data is None else "activations")

    def _choose(self, module: Any, method: str) -> Tensor:
        graph = GraphView.of(module, method)
        scaling = find_scaling(graph, makes=_is_float_layer, reads=_is_float_layer)
        seen: dict[int, _Ranges] = {}
        if self.data is not None and scaling.roots()[1].any():
            seen = self._measure(module, method, graph, scaling)
        for clip, ids in scaling.clips:
            limit, known = clip.clip, seen.get(clip.main_operand.id)
            assert limit is not None and limit[1] is not None
            if known is None or float(known.high.max()) > limit[1]:
                scaling.fix(ids)
                if known is not None:
                    self._keep(scaling, clip, float(known.high.max()))
        roots, free = scaling.roots()
        if not free.any():
            return scaling.ones()
        if self._ranges == "activations":
            factors = _by_activations(scaling, roots, free, seen, self.strength)
        else:
            factors = _by_weights(scaling, roots, free, self.rounds)
        self.scaling = scaling
        self._unlimited = [
            clip for clip, ids in scaling.clips if free[ids].any() and (factors[ids] != 1).any()
        ]
        if self.absorb:
            self._shifts = self._absorbed(scaling, seen, method)
        self._note(graph, scaling, factors)
        return factors

    def _keep(self, scaling: Scaling, clip: NodeView, reached: float) -> None:
        layer = clip.main_operand.producer
        if layer is not None and clip.clip is not None:
            limit = f"'{clip.name}' limits them at {clip.clip[1]:g}, and data reach {reached:.3g}"
            self.kept = {**self.kept, layer.name: f"channels of its result stay: {limit}"}

    def _absorbed(
        self, scaling: Scaling, seen: Mapping[int, _Ranges], method: str
    ) -> dict[int, Tensor]:
        """Return the terms that are added to biases, by index of the layer."""
        known = {}
        if self.data is None and self.origin is not None:
            known = batch_norms(self.origin, method)
        makers = {layer.node.output.id: layer for layer in scaling.layers}
        readers: dict[int, list[Layer]] = {}
        for layer in scaling.layers:
            if layer.inputs is not None:
                readers.setdefault(layer.node.main_operand.id, []).append(layer)
        shifts: dict[int, Tensor] = {}
        for value in dict.fromkeys(scaling.read):
            relu = value.producer
            if relu is None or relu.kind != "aten::relu" or value.is_result:
                continue
            maker, reading = makers.get(relu.main_operand.id), readers[value.id]
            alone = len(relu.main_operand.uses) == 1 and not relu.main_operand.is_result
            if maker is None or not alone or len(reading) < len(value.uses):
                continue
            least = None
            if value.id in seen:
                least = seen[value.id].low
            elif (normal := known.get(maker.node.name)) is not None:
                least = normal.mean - 3 * normal.deviation
            if least is None or not (least > 0).any() or not all(map(_is_unpadded, reading)):
                continue
            least = least.clamp_min(0)
            for layer, shift in ((maker, -least), *((r, r.applied(least)) for r in reading)):
                shifts[layer.node.index] = shifts.get(layer.node.index, 0) + shift
        return shifts

    def _measure(
        self, module: Any, method: str, graph: GraphView, scaling: Scaling
    ) -> dict[int, _Ranges]:
        """Return the ranges of the values that layers read or clips limit."""
        wanted = [*scaling.read, *(clip.main_operand for clip, _ in scaling.clips)]
        by_node = {value.producer.index: value for value in wanted if value.producer is not None}
        if isinstance(self.data, Iterator):
            self.data = list(self.data)
        assert self.data is not None
        arguments = batches(self.data, self.input_fn, progress_bar("equalize", self.progress))
        found: dict[int, _Ranges] = {}
        recorder = Recorder(copy_of(module, method), method, list(by_node), origin=self.origin)
        kept = (
            (number, row)
            for number, batch in enumerate(arguments)
            for row in recorder.run(batch, number=number)[1].items()
        )
        for number, (index, tensors) in kept:
            value = by_node[index]
            carried = scaling.carried[value.id]
            for tensor in tensors:
                rows = carried.rows(tensor)
                if not rows.numel():
                    continue
                low, high = (end.double() for end in rows.aminmax(dim=1))
                check_finite((low, high), number, value.name)
                if (known := found.get(value.id)) is not None:
                    low, high = torch.minimum(low, known.low), torch.maximum(high, known.high)
                found[value.id] = _Ranges(low, high)
        return found

    def _note(self, graph: GraphView, scaling: Scaling, factors: Tensor) -> None:
        rows = []
        ones = scaling.ones()
        for layer in scaling.layers:
            own = factors[layer.outputs]
            if (own == 1).all():
                continue
            before = layer.made(_at(ones, layer.inputs), ones[layer.outputs])
            after = layer.made(_at(factors, layer.inputs), own)
            smallest, largest = (float(end) for end in own.aminmax())
            rows.append(Equalized(layer.node.name, smallest, largest, _lost(before), _lost(after)))
        self.changed = rows
        self.values = [
            value.name
            for node in graph.nodes
            for value in node.outputs
            if value.id in scaling.carried and (factors[scaling.carried[value.id].ids] != 1).any()
        ]


def _is_float_layer(node: NodeView) -> bool:
    return is_layer(node) and node.operand("weight").constant.dtype in _FLOATS


def _is_unpadded(layer: Layer) -> bool:
    """Whether each number of a layer's result reads whole kernels."""
    weighted = layer.node.traits.weighted
    assert weighted is not None
    if not weighted.spatial_dims:
        return True
    padding = layer.node.operand("padding").constant
    return not weighted.transposed and isinstance(padding, list | tuple) and not any(padding)


def _at(factors: Tensor, ids: Tensor | None) -> Tensor | None:
    return None if ids is None else factors[ids]


def _lost(ranges: Tensor) -> float:
    """Return by how many bits a channel is below the largest one, in the mean."""
    ranges = ranges[ranges > 0]
    return float((ranges.max() / ranges).log2().mean()) if len(ranges) else 0.0


def _largest(pairs: Iterable[tuple[Tensor, Tensor]], roots: Tensor) -> Tensor:
    """Return for each id the largest number of its class, 0 for classes without any.

    Args:
        pairs: ids, and a number for each.
        roots: see `Scaling.roots`.
    """
    found = torch.zeros(len(roots), dtype=torch.float64)
    for ids, numbers in pairs:
        found.scatter_reduce_(0, roots[ids], numbers.double(), "amax")
    return found[roots]


def _by_activations(
    scaling: Scaling,
    roots: Tensor,
    free: Tensor,
    seen: Mapping[int, _Ranges],
    strength: float,
) -> Tensor:
    ones = scaling.ones()
    read = [(value, scaling.carried[value.id].ids) for value in scaling.read]
    before = _largest(
        ((ids, _raised(seen[value.id].largest)) for value, ids in read if value.id in seen), roots
    )
    after = _largest(
        (
            (layer.inputs, _raised(layer.read(ones[layer.inputs], ones[layer.outputs])))
            for layer in scaling.layers
            if layer.inputs is not None
        ),
        roots,
    )
    return torch.where(free, balanced(before, after, strength), 1.0)


def _raised(ranges: Tensor) -> Tensor:
    """Return ranges that are no less than a part of the largest one; ranges of 0 stay 0."""
    floor = _FLOOR * float(ranges.max()) if len(ranges) else 0.0
    return torch.where(ranges > 0, ranges.clamp_min(floor), 0.0)


def _by_weights(scaling: Scaling, roots: Tensor, free: Tensor, rounds: int) -> Tensor:
    factors = scaling.ones()
    least = _largest(
        (
            (layer.outputs, layer.bias.abs().double() / (_BIAS * float(layer.bias.abs().max())))
            for layer in scaling.layers
            if layer.bias is not None and layer.bias.any()
        ),
        roots,
    )
    groups = _groups(scaling, roots, free)
    for _ in range(rounds):
        most = 0.0
        for ids, makers, readers in groups:
            before = _largest(
                (
                    (layer.outputs, layer.made(_at(factors, layer.inputs), factors[layer.outputs]))
                    for layer in makers
                ),
                roots,
            )
            after = _largest(
                (
                    (layer.inputs, layer.read(factors[layer.inputs], factors[layer.outputs]))
                    for layer in readers
                    if layer.inputs is not None
                ),
                roots,
            )
            known = factors[ids]
            wanted = known * balanced(before[ids], after[ids], 0.5)
            factors[ids] = torch.maximum(wanted, least[ids])
            most = max(most, float((factors[ids] / known).log().abs().max()))
        if most < _CONVERGED:
            break
    return factors


def _groups(
    scaling: Scaling, roots: Tensor, free: Tensor
) -> list[tuple[Tensor, list[Layer], list[Layer]]]:
    """Return the channels that layers make together, with the layers that make and read them."""
    group_of: dict[int, int] = {}  # by root
    members: dict[int, set[int]] = {}
    for layer in scaling.layers:
        own = set(roots[layer.outputs][free[layer.outputs]].tolist())
        joined = {group_of[root] for root in own if root in group_of}
        if not own:
            continue
        group = min(joined, default=min(own))
        for other in joined - {group}:
            own |= members.pop(other)
        members.setdefault(group, set()).update(own)
        group_of.update(dict.fromkeys(members[group], group))
    found = []
    for group in members:
        inside = torch.zeros(len(roots), dtype=torch.bool)
        inside[torch.tensor(sorted(members[group]))] = True
        ids = (inside[roots] & free).nonzero().flatten()
        makers = [layer for layer in scaling.layers if inside[roots[layer.outputs]].any()]
        readers = [
            layer
            for layer in scaling.layers
            if layer.inputs is not None and inside[roots[layer.inputs]].any()
        ]
        found.append((ids, makers, readers))
    return found
