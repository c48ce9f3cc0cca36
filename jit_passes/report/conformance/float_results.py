"""Results of an engine beside the results of the reference model, as floats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from ...errors import JitPassesError, aligned
from .values import Grid

STEPS = 1.001  # a code may be the next one; float32 holds its number to far less than a step
RELATIVE = 0.01


@dataclass(frozen=True)
class ResultDifference:
    """How far a result of an engine is from the reference model's, over all batches.

    Attributes:
        name: of the result: `output`, or `output.1`.
        elements: how many numbers were compared.
        largest: the largest difference: in steps, or as a number where the result has no grid.
        tolerance: how large it may be: a step, or a hundredth of the result's largest number.
        unit: "steps", or "" where the result has no grid.
    """

    name: str
    elements: int
    largest: float
    tolerance: float
    unit: str

    @property
    def within(self) -> bool:
        """Whether the difference is within the tolerance; NaN is not."""
        return self.largest <= self.tolerance


def table_of(engine: str, results: Iterable[ResultDifference]) -> str:
    """Return the results as a table."""
    rows = [(f"results in {engine}", "numbers", "largest difference", "tolerance")]
    for result in results:
        most, allowed = f"{result.largest:.3g}", f"{result.tolerance:.3g}"
        if result.unit:
            most, allowed = f"{most} {result.unit}", "1 step"
        rows.append((result.name, str(result.elements), most, allowed))
    return aligned(rows)


@dataclass
class FloatResults:
    """The sum of differences that batches have shown.

    Args:
        grids: of results, by name.
    """

    grids: Mapping[str, Grid]
    _found: dict[str, list[float]] = field(init=False, default_factory=dict)

    def add(self, expected: Mapping[str, torch.Tensor], found: list[torch.Tensor]) -> None:
        """Add a batch: the reference model's results, and the engine's results in their order.

        Raises:
            JitPassesError: the engine gives other results, or a result of another shape.
        """
        if len(expected) != len(found):
            raise JitPassesError(
                f"the file has {len(found)} results, and the reference model {len(expected)}: was "
                "the file made from this model?"
            )
        for (name, ours), theirs in zip(expected.items(), found, strict=True):
            if ours.shape != theirs.shape:
                raise JitPassesError(
                    f"{name} has shape {list(theirs.shape)} in the engine, and "
                    f"{list(ours.shape)} in the reference model"
                )
            apart, largest = self._apart(name, ours.detach().double(), theirs.double())
            elements, most, number = self._found.get(name, (0, 0.0, 0.0))
            # torch.maximum keeps NaN.
            pair = torch.tensor([[most, number], [apart, largest]], dtype=torch.float64)
            most, number = torch.maximum(*pair).tolist()
            self._found[name] = [elements + ours.numel(), most, number]

    def _apart(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, float]:
        """Return the largest difference, and the largest number of the reference model."""
        if not ours.numel():
            return 0.0, 0.0
        equal = (ours == theirs) | (ours.isnan() & theirs.isnan())  # infinities too
        apart = torch.where(equal, 0.0, (ours - theirs).abs())
        if name in self.grids:
            grid = self.grids[name]
            apart = apart / grid.along(grid.scale, ours.dim())
        finite = torch.where(ours.isfinite(), ours.abs(), 0.0)
        return float(apart.max()), float(finite.max())

    def differences(self) -> tuple[ResultDifference, ...]:
        """Return the differences over all batches."""
        return tuple(
            ResultDifference(name, int(n), most, STEPS, "steps")
            if name in self.grids
            else ResultDifference(name, int(n), most, RELATIVE * number, "")
            for name, (n, most, number) in self._found.items()
        )
