"""Runs of calls that repeat, as the steps of a recurrent layer do: C has a loop for each.

Rounds have equal kernels, types, sizes, rescalings and constants. An operand or a result is one
buffer in all rounds, or another one in each. Buffers that take each other's place so form a chain,
whose members `arena` places in equal distances; first places of copies grow by equal steps.

    h1 = f(h0, x + 0);  h2 = f(h1, x + 64);  h3 = f(h2, x + 128)      chain: h0 h1 h2 h3
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

import torch

from .program import Argument, Buffer, Call, Struct

LEAST = 3  # rounds; two calls in a row are as easy to read
_PLACES = ("begin_x", "begin_y")  # numbers that may grow from round to round


@dataclass(frozen=True, order=True)
class Repeat:
    """A run of calls that repeats.

    Attributes:
        first: number of its first call.
        period: calls of a round.
        count: how many rounds it has.
    """

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The number of the call behind it."""
        return self.first + self.period * self.count

    def columns(self, calls: Sequence[Call]) -> Iterator[list[Call]]:
        """Yield for each call of a round this call in all rounds."""
        for number in range(self.first, self.first + self.period):
            yield list(calls[number : self.end : self.period])


class Chains:
    """Buffers that take each other's place from round to round, in the order of the rounds."""

    def __init__(self) -> None:
        self._beside: dict[Buffer, list[Buffer]] = {}

    def add(self, pairs: Sequence[tuple[Buffer, Buffer]]) -> bool:
        """Let pairs be neighbours; say whether chains allow that, and else change nothing."""
        made: list[tuple[Buffer, Buffer]] = []
        for a, b in pairs:
            if b in self._beside.get(a, ()):
                continue
            ends = all(len(self._beside.get(buffer, ())) < 2 for buffer in (a, b))
            if not ends or b in self._from(a):
                for one, other in made:
                    self._beside[one].remove(other)
                    self._beside[other].remove(one)
                return False
            self._beside.setdefault(a, []).append(b)
            self._beside.setdefault(b, []).append(a)
            made.append((a, b))
        return True

    def _from(self, end: Buffer) -> list[Buffer]:
        """Return a chain from one of its ends on; `end` alone where it is in none."""
        found = [end]
        ahead = self._beside.get(end, [])
        while ahead:
            found.append(ahead[0])
            ahead = [b for b in self._beside[found[-1]] if b is not found[-2]]
        return found

    def __iter__(self) -> Iterator[list[Buffer]]:
        """Yield the chains."""
        seen: set[Buffer] = set()
        for buffer, beside in self._beside.items():
            if len(beside) == 1 and buffer not in seen:
                chain = self._from(buffer)
                seen.update(chain)
                yield chain


def find_repeats(calls: Sequence[Call]) -> tuple[list[Repeat], Chains]:
    """Return repetitions that do not overlap, in order, and the chains of their buffers.

    The loop that makes the program shortest is taken first; among equal ones, the loop with the
    shortest round, and then the first one. A loop begins as late as its rounds allow, and so ends
    where the last step does.
    """
    found: list[Repeat] = []
    chains = Chains()
    queue = [(-r.period * (r.count - 1), r.period, r.first, r.count) for r in _candidates(calls)]
    heapify(queue)
    while queue:
        _, period, first, count = heappop(queue)
        own = Repeat(first, period, count)
        if any(other.first <= first < other.end for other in found):
            continue
        ahead = min((r.first for r in found if r.first > first), default=len(calls))
        if own.end > ahead:
            fits = (ahead - first) // period
            if fits >= LEAST:
                heappush(queue, (-period * (fits - 1), period, first, fits))
        elif chains.add([pair for column in own.columns(calls) for pair in _neighbours(column)]):
            found.append(own)
    return sorted(found), chains


def _candidates(calls: Sequence[Call]) -> Iterator[Repeat]:
    """Yield for each period and each count of rounds the last repetition of a run."""
    known: dict[Hashable, int] = {}
    kinds = torch.tensor([known.setdefault(_fixed(call), len(known)) for call in calls])
    moving = [_moving(call) for call in calls]
    for period in range(1, len(calls) // LEAST + 1):
        alike = (kinds[:-period] == kinds[period:]).tolist()
        run = steady = 0  # calls from here on that equal those a period later; that move on evenly
        before = 0  # rounds of a repetition that begins one call later
        for first in reversed(range(len(alike))):
            run = run + 1 if alike[first] else 0
            if run <= period:
                steady = before = 0
                continue
            places = (moving[first + n * period] for n in range(3))
            steady = steady + 1 if all(map(_even, *places)) else 0
            count = min(run // period + 1, steady // period + 2)
            if count >= LEAST and count > before:
                yield Repeat(first, period, count)
            before = count


def _fixed(call: Call) -> Hashable:
    """Return the parts that a call shares with the call of another round."""
    own = [_part(name, argument) for name, argument in call.arguments.items()]
    return (call.kernel, *call.types.items(), *own)


def _part(name: str, argument: Argument) -> Hashable:
    if isinstance(argument, Struct):
        return (argument.type.name, *argument.values.values())
    if isinstance(argument, Buffer) and argument.role == "arena":
        return (argument.dtype, argument.size)
    return None if name in _PLACES else argument


def _moving(call: Call) -> list[Buffer | int]:
    """Return the arguments that may be others in each round."""
    own = call.arguments.items()
    return [
        value for name, value in own
        if isinstance(value, Buffer) or (isinstance(value, int) and name in _PLACES)
    ]  # fmt: skip


def _even(a: Buffer | int, b: Buffer | int, c: Buffer | int) -> bool:
    """Say whether an argument of three rounds moves on evenly."""
    if isinstance(a, int) and isinstance(b, int) and isinstance(c, int):
        return b - a == c - b
    return (a is b) == (b is c) and (a is b or a is not c)


def _neighbours(column: Sequence[Call]) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield buffers of a call and of the same call a round later, where they are others."""
    for earlier, later in pairwise(column):
        for a, b in zip(_moving(earlier), _moving(later), strict=True):
            if isinstance(a, Buffer) and isinstance(b, Buffer) and a is not b:
                yield a, b
