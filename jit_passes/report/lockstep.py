"""Two models run side by side, and the second one again with the values of the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import JitPassesError
from ..stages.recording import Recorder, copy_of, tensors_of
from .places import Site
from .steps import codes_of, has_codes, value_of

Values = list[torch.Tensor]  # a value each time it was computed: in loops several times


@dataclass(frozen=True)
class Pair:
    """A value that both models have.

    Attributes:
        name: for messages.
        node: of the first model, by the index in its view, whose result it is.
        site: where the second model has it.
    """

    name: str
    node: int
    site: Site


@dataclass(frozen=True)
class Seen:
    """A value of one batch.

    Attributes:
        ours: as the first model computes it.
        theirs: as the second model computes it.
        own: as the second model computes it where all compared values before it come from the
            first model.
    """

    ours: Values
    theirs: Values
    own: Values


NOTHING = Seen([], [], [])


class Lockstep:
    """Compares values while batches go through; it holds the values of one batch.

    Three models run: the first, the second, and a copy of the second. In the copy the first model's
    value replaces each compared value as soon as it is computed. A difference in that run is a
    value's own, and a difference in the plain run only is inherited.

    Args:
        first: a C++ module that no one else holds.
        second: the converted model; it is not touched.
        method: of both.
        pairs: values to compare.
        also: nodes of the first model whose values are wanted too.
        called: the name of the two in messages.
        rounded: whether values of the first model are put on the second one's grid before it sees
            them; without that they are on it already.
        origin: the model from which the first one was made, if that is known.

    Attributes:
        pairs: the pairs that can be compared.
    """

    def __init__(
        self, first: Any, second: torch.jit.ScriptModule, method: str, pairs: Sequence[Pair],
        also: Iterable[int] = (), rounded: bool = False,
        called: tuple[str, str] = ("the float model", "the quantized model"),
        origin: torch.jit.ScriptModule | None = None,
    ) -> None:  # fmt: skip
        kept = dict.fromkeys((*(pair.node for pair in pairs), *also))
        self._first = Recorder(first, method, list(kept), origin=origin, called=called[0])
        reached = [index for pair in pairs for index in (pair.site.node, *pair.site.readers)]
        self._second = Recorder(copy_of(second, method), method, reached, called=called[1])
        lost = self._second.lost
        self.pairs = [
            pair
            for pair in pairs
            if pair.node not in self._first.lost and not lost & {pair.site.node, *pair.site.readers}
        ]
        told = [index for pair in self.pairs for index in pair.site.readers]
        told += [pair.site.node for pair in self.pairs if pair.site.codes_read]
        nodes = [pair.site.node for pair in self.pairs]
        self._own = Recorder(copy_of(second, method), method, nodes, told)
        self._rounded = rounded

    def run(self, arguments: tuple[Any, ...]) -> tuple[Iterator[tuple[Pair, Seen]], Outputs, Kept]:
        """Run a batch; return the pairs, the outputs by name, and the values of the nodes `also`.

        Codes become values one pair at a time, as these are asked for.

        Raises:
            JitPassesError: the models went different ways through branches and loops.
        """
        result, values = self._first.run(arguments)
        their_result, theirs = self._second.run(arguments, fits=True)
        told: dict[int, Values] = {}
        ours: list[Values | None] = []
        for pair in self.pairs:
            ours.append(self._aligned(pair, values[pair.node], theirs[pair.site.node]))
            told |= self._told(pair, ours[-1], theirs[pair.site.node])
        own_result, own = self._own.run(arguments, told)

        def seen() -> Iterator[tuple[Pair, Seen]]:
            for pair, wanted in zip(self.pairs, ours, strict=True):
                if wanted is None:
                    yield pair, NOTHING
                    continue
                plain, alone = (
                    [value_of(codes, pair.site) for codes in found[pair.site.node]]
                    for found in (theirs, own)
                )
                yield pair, Seen(wanted, plain, alone)

        return seen(), list(_outputs(result, their_result, own_result)), values

    def _aligned(self, pair: Pair, ours: Values, theirs: Values) -> Values | None:
        """Return the first model's value each time that the second one has it; None if unknown.

        A float model computes a value once, and branches and loops may quantize it several times.
        An operator of another package may lay out its codes in a way that only it knows, and sums
        of products are no codes.
        """
        if len(ours) != len(theirs):
            if not self._rounded:
                raise JitPassesError(
                    f"'{pair.name}' is computed {len(ours)} times by the first model and "
                    f"{len(theirs)} times by the other one: branches or loops went another way"
                )
            if len(ours) != 1:
                return None
            ours = ours * len(theirs)
        found = [_in_batch(a, b) for a, b in zip(ours, theirs, strict=True)]
        for a, b in zip(found, theirs, strict=True):
            if not has_codes(b, pair.site) or (pair.site.foreign and a.shape != b.shape):
                return None
            check_shapes(a, b, pair.name)
        return found

    def _told(self, pair: Pair, ours: Values | None, theirs: Values) -> dict[int, Values]:
        if ours is None:
            return {index: [value_of(code, pair.site) for code in theirs]
                    for index in pair.site.readers} | {pair.site.node: theirs}  # fmt: skip
        codes = [codes_of(a, b, pair.site) for a, b in zip(ours, theirs, strict=True)]
        read = [value_of(code, pair.site) for code in codes] if self._rounded else ours
        return {**dict.fromkeys(pair.site.readers, read), pair.site.node: codes}


def _in_batch(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the first model's value with a batch axis, where a kernel takes batches alone."""
    return ours.unsqueeze(0) if (1, *ours.shape) == tuple(theirs.shape) else ours


Outputs = list[tuple[str, Seen]]
Kept = Mapping[int, Values]


def _outputs(ours: Any, theirs: Any, own: Any) -> Iterator[tuple[str, Seen]]:
    for (name, a), (_, b), (_, c) in zip(
        tensors_of(ours), tensors_of(theirs), tensors_of(own), strict=True
    ):
        yield name, Seen([a], [b], [c])


def check_shapes(ours: torch.Tensor, theirs: torch.Tensor, name: str) -> None:
    """Raise an error for values of different shapes."""
    if ours.shape != theirs.shape:
        raise JitPassesError(
            f"'{name}' has shape {list(ours.shape)} in one model and {list(theirs.shape)} in the "
            "other: was the converted model made from this one?"
        )
