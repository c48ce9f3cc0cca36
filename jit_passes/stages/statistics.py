"""The buffers of a prepared model's observers: emptied, merged exactly, and compared.

Counts of histograms, ends of ranges and flags merge exactly, in any order. Averages that go by the
order of batches, sums of float numbers, and buffers of other packages do not: with these, ranks
work one after another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..graph.traits import schema_of
from .prepare import CONSTANT, NOTHING, REACH, fresh_range, qualified

Contents = list[Tensor]  # of all buffers, in the order of `Statistics.buffers`

_HISTOGRAM, _MIN_MAX = "observe_histogram", "observe_min_max"
_PER_CHANNEL = ("observe_per_channel_min_max", "observe_pair_sums")
# The operators that may write to one buffer. Where no number came by, `reach` leaves the range
# [0, 0], which a range of `min_max` then holds: scales go by ranges with 0 in any case.
_EXACT = tuple(
    frozenset(map(qualified, ops))
    for ops in (
        (_HISTOGRAM,), (_HISTOGRAM, REACH), (_MIN_MAX,), (_MIN_MAX, REACH), (REACH,), (CONSTANT,),
        *((op,) for op in _PER_CHANNEL),
    )
)  # fmt: skip


@dataclass
class Statistics:
    """The ranges and counts that the observers of a prepared model have seen.

    Attributes:
        buffers: that they write to, each once.
        writers: the operators that write to each.
        histograms: of a buffer with a range, the position of its histogram.
        identity: a text that is equal for equal observers, in equal models, of equal data.
    """

    buffers: list[Tensor] = field(default_factory=list)
    writers: list[set[str]] = field(default_factory=list)
    histograms: dict[int, int] = field(default_factory=dict)
    identity: str = ""

    @classmethod
    def of(cls, prepared: torch.jit.ScriptModule, method: str) -> Statistics:
        """Return the statistics of a prepared model; they are its buffers, no copies."""
        found, digest = cls(), hashlib.sha256()
        positions: dict[int, int] = {}
        for _, op, operands in _C.places(prepared._c, method):
            written = [name for name in _written(op) if isinstance(operands.get(name), Tensor)]
            at = {}
            for name in written if op != qualified(NOTHING) else ():
                buffer = operands[name]
                at[name] = positions.setdefault(buffer.data_ptr(), len(found.buffers))
                if at[name] == len(found.buffers):
                    found.buffers.append(buffer)
                    found.writers.append(set())
                found.writers[at[name]].add(op)
            if "range" in at and "histogram" in at:
                found.histograms[at["range"]] = at["histogram"]
            known = sorted((n, _told(v)) for n, v in operands.items() if n not in written)
            digest.update(repr((op, known)).encode())
        digest.update(repr([_told(content) for content in found.buffers]).encode())
        found.identity = digest.hexdigest()[:16]
        return found

    @property
    def merge_exactly(self) -> bool:
        """Whether merged statistics of parts equal the statistics of all data, in any order."""
        return all(frozenset(ops) in _EXACT for ops in self.writers)

    def read(self) -> Contents:
        """Return copies of all buffers, on the CPU."""
        return [buffer.detach().cpu().clone() for buffer in self.buffers]

    def write(self, contents: Contents) -> None:
        """Fill the buffers."""
        for buffer, content in zip(self.buffers, contents, strict=True):
            buffer.copy_(content)

    def clear(self) -> None:
        """Leave the buffers as `prepare` makes them."""
        for buffer in self.buffers:
            buffer.copy_(unseen(buffer))

    def merge(self, parts: Sequence[Contents]) -> None:
        """Add the statistics of observers of equal models."""
        for position, buffer in enumerate(self.buffers):
            if position in self.histograms.values():
                continue  # with its range
            found = [part[position] for part in parts]
            if position in self.histograms:
                at = self.histograms[position]
                _add_histograms(buffer, self.buffers[at], found, [part[at] for part in parts])
            elif buffer.dtype == torch.bool:
                buffer.logical_or_(torch.stack(found).any(0))
            elif buffer.dim() == 2:  # ends for each channel
                _widen(buffer[0], buffer[1], torch.stack(found).unbind(1))
            else:
                lows, highs, lowest, highest = torch.stack(found)[:, :4].unbind(1)
                _widen(buffer[0:1], buffer[1:2], (lows[:, None], highs[:, None]))
                _widen(buffer[2:3], buffer[3:4], (lowest[:, None], highest[:, None]))


def unseen(buffer: Tensor) -> Tensor:
    """Return the content of an observer's buffer before any data.

    Only ranges are of float64, but for sums, which begin at 0 and are not asked for.
    """
    if buffer.dtype == torch.float64:
        return fresh_range(tuple(buffer.shape[1:]))
    return torch.zeros_like(buffer)


def _widen(low: Tensor, high: Tensor, ends: Sequence[Tensor]) -> None:
    lows, highs = ends
    low.copy_(torch.minimum(low, lows.amin(0).to(low.device)))
    high.copy_(torch.maximum(high, highs.amax(0).to(high.device)))


def _add_histograms(
    range_: Tensor, histogram: Tensor, ranges: Sequence[Tensor], histograms: Sequence[Tensor]
) -> None:
    """Add counts; `reach` leaves zeros where nothing was counted."""
    seen = torch.stack(list(ranges))
    for other, counts in zip(ranges, histograms, strict=True):
        if counts.any():
            torch.ops.jit_passes.merge_histogram(other, counts, range_, histogram)
    if bool((seen[:, 0] <= seen[:, 1]).any()) and not bool(range_[0] <= range_[1]):
        range_[:2] = 0
    _widen(range_[2:3], range_[3:4], (seen[:, 2:3], seen[:, 3:4]))


@lru_cache
def _written(op: str) -> tuple[str, ...]:
    """Return the arguments that an operator writes to."""
    return tuple(
        argument.name
        for argument in schema_of(op).arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _told(value: Any) -> Any:
    """Return a text of an operand: of a weight its numbers."""
    if not isinstance(value, Tensor):
        return repr(value)
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.sha256(content.numpy().tobytes()).hexdigest()[:16]
    return f"{value.dtype}{list(value.shape)} {digest}"
