"""Small models for the floor: what must hold for every TorchScript module, however odd.

Each file holds one theme and ends in its part of the table; `CASES` is the whole table.
"""

from . import (
    activations,
    attention,
    containers,
    control,
    convolutions,
    detection,
    forms,
    functions,
    mutation,
    products,
    rearranging,
    recurrent,
    sequences,
    shapes,
    sharing,
    state,
)
from .case import Case

BASIC: list[Case] = [
    *containers.CASES,
    *sharing.CASES,
    *mutation.CASES,
    *state.CASES,
    *control.CASES,
    *convolutions.CASES,
    *products.CASES,
    *sequences.CASES,
    *rearranging.CASES,
    *activations.CASES,
]
"""One or a few of each kind, which other tests than the floor go through too."""

CASES: list[Case] = [
    *BASIC,
    *attention.CASES,
    *functions.CASES,
    *recurrent.CASES,
    *shapes.CASES,
    *forms.CASES,
    *detection.CASES,
]

assert len({case.name for case in CASES}) == len(CASES), "two cases share a name"

__all__ = ["BASIC", "CASES", "Case"]
