"""Places of buffers in one array, and the loops that these places allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .program import Buffer, Program
from .repeats import Repeat, find_repeats

_Lives = Mapping[Buffer, tuple[int, int]]


@dataclass(frozen=True)
class Ring:
    """Buffers that take each other's place from round to round, in slots side by side.

    Buffer number `k` is in slot `k % slots`. A single slot serves buffers that a round makes and
    uses up. A state that the next round reads takes two. If all buffers are read in the end, each
    has a slot.

    Attributes:
        buffers: in the order of rounds, forwards or backwards.
        slots: how many there are.
    """

    buffers: Sequence[Buffer]
    slots: int

    @property
    def step(self) -> int:
        """Bytes from a slot to the next."""
        return aligned(self.buffers[0].size)

    @property
    def places(self) -> list[tuple[int, Buffer]]:
        """The buffers, with their places behind the first slot."""
        return [(k % self.slots * self.step, buffer) for k, buffer in enumerate(self.buffers)]


@dataclass(frozen=True)
class Arena:
    """The memory of a program; its buffers have their offsets.

    Attributes:
        size: of the arena, in bytes.
        repeats: runs of calls that are written as loops, in order.
        rings: of the buffers that are others in each round.
    """

    size: int
    repeats: Sequence[Repeat]
    rings: Mapping[Buffer, Ring]


def place_buffers(program: Program) -> Arena:
    """Place the buffers between inputs and outputs in one arena.

    Buffers that are needed at the same time do not overlap. The largest is placed first, a ring as
    one, each at the lowest place that is free for all of its time.
    """
    lives = _lives(program)
    repeats, chains = find_repeats(program.calls)
    rings = [Ring(_in_time(chain, lives), _slots(chain, lives)) for chain in chains]
    in_rings = {buffer: ring for ring in rings for buffer in ring.buffers}
    rings += [Ring([buffer], 1) for buffer in lives if buffer not in in_rings]
    placed: list[Buffer] = []
    for ring in sorted(rings, key=lambda ring: -ring.slots * ring.buffers[0].size):
        begin = _free(ring, placed, lives)
        for place, buffer in ring.places:
            buffer.offset = begin + place
            placed.append(buffer)
    size = max((aligned(buffer.offset + buffer.size) for buffer in placed), default=0)
    return Arena(size, repeats, in_rings)


def _in_time(chain: Sequence[Buffer], lives: _Lives) -> Sequence[Buffer]:
    """Return a chain from the end that is needed first."""
    return chain if lives[chain[0]] <= lives[chain[-1]] else chain[::-1]


def _slots(chain: Sequence[Buffer], lives: _Lives) -> int:
    """Return the fewest slots for which buffers of one slot are needed one after the other."""
    times = [lives[buffer] for buffer in chain]
    apart = [
        k - i
        for k, (first, last) in enumerate(times)
        for i, (begin, end) in enumerate(times[:k])
        if begin <= last and first <= end
    ]
    return next(n for n in range(1, len(chain) + 1) if all(gap % n for gap in apart))


def _free(ring: Ring, placed: Sequence[Buffer], lives: _Lives) -> int:
    """Return the lowest place where a ring meets no buffer that is needed at the same time."""
    taken = []  # the ring cannot begin between
    for place, buffer in ring.places:
        first, last = lives[buffer]
        for other in placed:
            begin, end = lives[other]
            if begin <= last and first <= end:
                low, high = other.offset - buffer.size, other.offset + other.size
                taken.append((low - place, high - place))
    found = 0
    for low, high in sorted(taken):
        if found <= low:
            break
        found = max(found, aligned(high))
    return found


def _lives(program: Program) -> _Lives:
    """Return the numbers of the first and the last call that need each buffer of the arena."""
    found: dict[Buffer, tuple[int, int]] = {}
    for number, call in enumerate(program.calls):
        for buffer in (call.writes, *call.reads):
            if buffer.role == "arena":
                found[buffer] = (found.get(buffer, (number, 0))[0], number)
    return found


def aligned(size: int) -> int:
    """Return the next even size: codes of 16 bits stand at even places."""
    return (size + 1) // 2 * 2
