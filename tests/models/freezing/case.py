"""Rows of the table of models for freezing, and their arguments."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tests.compare import Args


def vectors() -> list[Args]:
    """Batches of four numbers."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(batch, 4, generator=generator),) for batch in (2, 3, 1, 2, 5)]


def rows() -> list[Args]:
    """One vector of four each."""
    return [(x[0],) for (x,) in vectors()]


def images() -> list[Args]:
    """Batches of small images of different sizes."""
    generator = torch.Generator().manual_seed(1)
    sizes = ((2, 3, 8, 8), (1, 3, 9, 7), (3, 3, 8, 8), (2, 3, 12, 6))
    return [(torch.randn(size, generator=generator),) for size in sizes]


@dataclass(frozen=True)
class Case:
    """A model, what stays of it, and its calls.

    Attributes:
        make: makes the eager model.
        stays: paths of the attributes that the frozen module has, but `training`.
        calls: makes the arguments of consecutive calls.
        trace: whether a trace records what it does.
        one_name: the path under which a trace has what has several.
        loaded: what stays in addition when the model was loaded: named tuples have lost their name.
    """

    make: Callable[[], nn.Module]
    stays: tuple[str, ...] = ()
    calls: Callable[[], list[Args]] = vectors
    trace: bool = True
    one_name: str = ""
    loaded: tuple[str, ...] = ()

    def paths(self, frontend: str) -> list[str]:
        """The attributes that stay, as this frontend calls them."""
        if frontend == "trace" and self.one_name:
            return [self.one_name]
        return sorted((*self.stays, *(self.loaded if frontend == "load" else ())))
