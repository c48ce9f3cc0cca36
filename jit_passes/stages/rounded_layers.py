"""Layers whose weights can have other codes, and the codes that are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log10

import torch
from torch import Tensor

from ..graph.view import GraphView, NodeView
from ..observers import PairSums
from ..specification.grid import DTYPES
from ..specification.parameters import QParams
from ..specification.qparams import spread_qparams
from ..specification.specification import QuantizationSpec
from .adaround import adaround, errors
from .gptq import Grid, gptq, outputs_of
from .input_sums import InputSums
from .module import Report
from .parameters import choose_parameters
from .patches import has_patches, patches
from .scaling import Layer
from .seen import QuantizedPlace, check_seen, read_places, refusals
from .values import readers_of, source_of

FEW_INPUTS, FEW_PRODUCTS = 1536, 2**24


@dataclass
class Candidates:
    """Codes that a weight can have, beside the nearest ones.

    Attributes:
        codes: of gptq one set for each damping, then of adaround; [] where none were looked for.
        by: the methods that found them.
        errors: of the result on batches held back: with the nearest codes, then with these.
    """

    codes: list[Tensor] = field(default_factory=list)
    by: list[str] = field(default_factory=list)
    errors: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    @property
    def best(self) -> int:
        """The number of the best codes, 0 for the nearest ones.

        Without a measurement, the first codes of gptq, or the codes of adaround.
        """
        unmeasured = 1 + self.by.index(self.by[-1])
        return int(self.errors.argmin()) if self.errors[0] else unmeasured

    @property
    def chosen(self) -> Tensor | None:
        """The best codes; None for the nearest ones."""
        return self.codes[self.best - 1] if self.codes and self.best else None

    @property
    def remark(self) -> str:
        nearest, *chosen = self.errors.tolist()
        by = self.by[max(self.best, 1) - 1]
        if not nearest:
            return f"its weight is rounded by {by}, without a check on held-back batches"
        gain = 10 * log10(nearest / min(chosen)) if min(chosen) else inf
        if not self.best:
            by = " and ".join(dict.fromkeys(self.by))
            more = f"{-gain:.1f} dB more" if gain <= -0.05 else "no less"
            return f"its weight is not rounded by {by}: {more} error on batches held back"
        return f"its weight is rounded by {by}: {gain:.1f} dB less error on batches held back"


@dataclass
class RoundedLayer:
    """A layer whose weight can have other codes.

    Attributes:
        node: the layer in the prepared model.
        place: of its weight.
        weight: [groups, outputs, inputs of one output].
        grid: of its codes, in that shape.
        most_rows: of inputs, of each call; None for all.
        candidates: for its codes.
    """

    node: NodeView
    place: QuantizedPlace
    weight: Tensor
    grid: Grid
    most_rows: int | None = None
    candidates: Candidates = field(default_factory=Candidates)

    def patches(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield the inputs of its outputs, [groups, rows, inputs of one output]."""
        return patches(self.node, self.place.operands["x"], inputs, self.most_rows)

    def choose(self, gram: Tensor, how: str, dampings: Sequence[float]) -> None:
        """Find codes by the products of its inputs."""
        self._choose(gram, how, dict.fromkeys(dampings, self.weight))

    def choose_by(self, sums: InputSums, held: InputSums, how: str, parts: Sequence[float]) -> None:
        """Find codes by its inputs in the quantized model, and check them by ones held back."""
        self._choose(sums.quantized, how, {part: sums.aim(self.weight, part) for part in parts})
        if held.is_finite:
            sets = (self.grid.codes(self.weight.double()), *self.candidates.codes)
            numbers = (self.grid.numbers(codes.double()) for codes in sets)
            measured = [held.error(self.weight, each) for each in numbers]
            self.candidates.errors = torch.tensor(measured, dtype=torch.float64)

    def _choose(self, gram: Tensor, how: str, aims: Mapping[float, Tensor]) -> None:
        """Find codes of the weights that are aimed at, one for each damping."""

        def lost(entry: tuple[Tensor, Tensor]) -> float:
            return float(errors(*entry, self.grid, gram).sum())

        found = [gptq(aim, gram, self.grid, part) for part, aim in aims.items()]
        if how == "adaround":
            aim, start = min(zip(aims.values(), found, strict=True), key=lost)
            found.append(adaround(aim, gram, self.grid, start))
        dtype = DTYPES[self.place.place.spec.dtype]
        self.candidates = Candidates(
            [codes.to(dtype) for codes in found],
            ["gptq"] * len(aims) + ["adaround"] * (how == "adaround"),
            torch.zeros(1 + len(found), dtype=torch.float64),
        )

    def check(self, inputs: Tensor) -> None:
        """Add the errors of its result for inputs that were held back."""
        for some in outputs_of(self.weight):
            weight, grid = self.weight[:, some].double(), self.grid.of_outputs(some)
            sets = (grid.codes(weight), *(codes[:, some] for codes in self.candidates.codes))
            lost = [(weight - grid.numbers(codes.double())).to(inputs.dtype) for codes in sets]
            for rows in self.patches(inputs):
                for i, error in enumerate(lost):
                    results = rows @ error.transpose(1, 2)
                    self.candidates.errors[i] += results.square().sum().double()

    @property
    def is_small(self) -> bool:
        """Whether its outputs have few inputs each, also over all groups."""
        groups, _, inputs = self.weight.shape
        return inputs <= FEW_INPUTS and groups * inputs**2 <= FEW_PRODUCTS

    @property
    def size(self) -> int:
        """Bytes of the products of its inputs."""
        return 4 * len(self.weight) * self.weight.shape[2] ** 2


def rounded_layers(prepared: torch.jit.ScriptModule, report: Report) -> dict[str, RoundedLayer]:
    """Return the layers whose weights can have other codes, in program order."""
    places = read_places(prepared, report)[1]
    check_seen(places, report)
    chosen = choose_parameters(places, refusals(places)).at
    weights = {known.place.owner: known for known in places if _can_be_chosen(known)}
    found = {}
    for node in GraphView.of(prepared, report.method).nodes:
        known = weights.get(node.name)
        if known is None or not has_patches(node):
            continue
        qparams, weight = chosen.get(known.place.id), known.operands["x"].detach()
        alone = len(readers_of(node.operand("weight"))) == 1
        constant = source_of(node.operand("weight")).is_constant and weight.dim() > 1
        if isinstance(qparams, QParams) and alone and constant:
            view = Layer(node, None, torch.arange(0))

            def rows(tensor: Tensor, view: Layer = view) -> Tensor:
                return view.by_group(tensor).flatten(2)

            scale, zero_point = (
                rows(each.expand(weight.shape)) for each in spread_qparams(qparams, weight.shape)
            )
            grid = Grid(scale, zero_point, qparams.quant_min, qparams.quant_max)
            found[node.name] = RoundedLayer(node, known, rows(weight), grid)
    return found


def _can_be_chosen(known: QuantizedPlace) -> bool:
    spec = known.place.spec
    return (
        known.place.slot == "weight"
        and known.constant
        and known.reached
        and "codes" in known.operands
        and isinstance(spec, QuantizationSpec)
        and not isinstance(spec.observer, PairSums)
    )
