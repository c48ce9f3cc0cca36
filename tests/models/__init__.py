"""Small models for the floor: what must hold for every TorchScript module, however odd.

Each file holds one theme and ends in its part of the table; `CASES` is the whole table.
"""

from . import (
    activations,
    containers,
    control,
    convolutions,
    mutation,
    products,
    rearranging,
    sequences,
    sharing,
    state,
)
from .case import Case

CASES: list[Case] = [
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

assert len({case.name for case in CASES}) == len(CASES), "two cases share a name"

__all__ = ["CASES", "Case"]
