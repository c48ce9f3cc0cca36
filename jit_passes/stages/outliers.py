"""Single numbers in the data that leave others hardly any codes: a bad sample, most of the time.

Observers note no more for it. After each batch their ranges are looked at. A range that has become
many times as wide is suspicious. A first range is too, if its histogram is empty but for its middle
and its ends. Only then does the batch run once more, to see the numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _C
from ..errors import warn
from ..passes.subject import wrap
from ..specification.specification import QuantizationSpec
from .batches import cloned
from .module import Report
from .seen import read_places

PART = 16  # of the grid: all other numbers within one part have lost half of their 8 bits
SUSPICIOUS = PART // 2  # times as large: a symmetric grid has both signs
SHARE = 100  # one of so many numbers may be an outlier: a convolution spreads a single one
LARGE = 1000.0  # suspicious in a first batch without histogram
MOST_LOOKS, MOST_PLACES = 3, 3  # batches that run once more, and values that are kept then
_RANGE = re.compile(r"observer_(\d+)_range")


@dataclass(frozen=True)
class Outlier:
    """A number that is far off all others.

    Attributes:
        place: of the value, its position among all places.
        batch: its number, from 0.
        largest: the magnitude.
        next: the largest magnitude among others.
    """

    place: int
    batch: int
    largest: float
    next: float


class OutlierWatch:
    """Looks at the observers of a prepared model after each batch.

    Args:
        prepared: which runs the batches.
        method: whose graph.
    """

    def __init__(self, prepared: torch.jit.ScriptModule, method: str) -> None:
        self._prepared, self._method = prepared, method
        buffers = dict(torch._C.BufferDict(prepared._c).items())  # type: ignore[attr-defined]
        self._names: list[str] = []
        self._ranges: list[torch.Tensor] = []
        self._histograms: list[torch.Tensor | None] = []
        for name, buffer in buffers.items():
            if (found := _RANGE.fullmatch(name)) and buffer.shape == (6,):
                self._names.append(name)
                self._ranges.append(buffer)
                self._histograms.append(buffers.get(f"observer_{found[1]}_histogram"))
        self._before = self._magnitudes()
        self._looks = MOST_LOOKS if self._ranges else 0
        self._found: list[Outlier] = []

    def look(self, batch: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Look for outliers in the batch that has just run."""
        if not self._looks:
            return
        before, now = self._before, self._magnitudes()
        self._before = now
        later = (before > 0) & (now > SUSPICIOUS * before)
        suspects = later.nonzero().flatten().tolist()
        first = ((before == 0) & (now > 0)).nonzero().flatten().tolist()
        suspects += [index for index in first if self._stands_alone(index, float(now[index]))]
        if suspects:
            self._looks -= 1
            found = self._numbers(suspects[:MOST_PLACES], args, kwargs)
            self._found += [
                Outlier(place, batch, largest, max(others, float(before[index])))
                for index, (place, largest, others) in found.items()
            ]

    def tell_all(self, names: Sequence[str]) -> None:
        """Warn of the first value with an outlier, by the names of places: of a profile, say."""
        for outlier in sorted(self._found, key=lambda found: found.place):
            if outlier.next < outlier.largest / PART:
                self._warn("profiled batch", outlier, names[outlier.place])
                return

    def tell(self, report: Report) -> None:
        """Warn of the first place whose grid an outlier has made useless for all other numbers.

        Outliers of later places mostly come from the first one.
        """
        if not self._found:
            return
        places = read_places(self._prepared, report)[1]
        for outlier in sorted(self._found, key=lambda found: found.place):
            known = places[outlier.place]
            if not isinstance(known.place.spec, QuantizationSpec):
                continue
            chosen = known.found()
            span = float(chosen.scale) * (chosen.quant_max - chosen.quant_min)
            if outlier.next < span / PART:
                self._warn("calibration batch", outlier, known.place.name)
                return

    @staticmethod
    def _warn(what: str, outlier: Outlier, name: str) -> None:
        warn(
            f"{what} {outlier.batch}: the largest magnitude of '{name}' is {outlier.largest:.3g}, "
            f"and the next one {outlier.next:.3g}, which leaves all other values few codes or "
            "none: leave that sample out, or give the value a range in the configuration"
        )

    def _magnitudes(self) -> torch.Tensor:
        """Return the largest magnitude that each observer has seen; 0 for nothing."""
        if not self._ranges:
            return torch.zeros(0)
        low, high = torch.stack(self._ranges)[:, :2].cpu().unbind(1)
        return torch.where(low <= high, torch.maximum(-low, high), 0.0)

    def _stands_alone(self, index: int, largest: float) -> bool:
        """Say whether hardly any number that an observer has counted is as large as a part of it.

        Numbers of one bin cannot be told apart: all others may be 0.
        """
        counts = self._histograms[index]
        if counts is None:
            return largest > LARGE
        exponent, offset = self._ranges[index][4:].tolist()
        near, far = largest / PART / 2.0**exponent, largest / SUSPICIOUS / 2.0**exponent
        above_near, above_far = (max(0, math.ceil(end - offset)) for end in (near, far))
        below_near, below_far = (max(0, math.floor(-end - offset)) for end in (near, far))
        # An even distribution has many numbers between the two.
        if counts[above_near:above_far].any() or counts[below_far:below_near].any():
            return False
        outside = int(counts[above_far:].sum()) + int(counts[:below_far].sum())
        return outside <= max(1, int(counts.sum()) // SHARE)

    def _numbers(
        self, suspects: list[int], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[int, tuple[int, float, float]]:
        """Return, by observer, its place and the two largest magnitudes."""
        copied = _C.deepcopy(self._prepared._c)  # the model may have a state
        buffers = dict(torch._C.BufferDict(copied).items())  # type: ignore[attr-defined]
        listener = _Listener([buffers[self._names[index]] for index in suspects])
        args, kwargs = cloned((args, dict(kwargs)))
        with listener:
            getattr(wrap(copied), self._method)(*args, **kwargs)
        places: dict[int, int] = {}
        for place, (_, _, operands) in enumerate(_C.places(self._prepared._c, self._method)):
            places.setdefault(operands["range"].data_ptr(), place)  # the first one of a group
        found = {}
        for index, tensors in zip(suspects, listener.heard, strict=True):
            two = _largest_two([tensor for tensor in tensors if tensor.numel()])
            if two is not None:
                found[index] = places[self._ranges[index].data_ptr()], *two
        return found


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the tensors that some observers get. No observer notes any.

    Args:
        ranges: the buffers of these observers.

    Attributes:
        heard: for each of the ranges, the tensors, in order.
    """

    def __init__(self, ranges: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard: list[list[torch.Tensor]] = [[] for _ in ranges]
        self._kept = {r.data_ptr(): kept for r, kept in zip(ranges, self.heard, strict=True)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.name().startswith("jit_passes::observe_"):
            return func(*args, **(kwargs or {}))
        tensor, buffer = args[:2]
        if (kept := self._kept.get(buffer.data_ptr())) is not None:
            kept.append(tensor.clone())  # the model may write to it
        return None


def _largest_two(tensors: list[torch.Tensor]) -> tuple[float, float] | None:
    """Return the largest magnitude, and the largest one that is not nearly as large.

    None where too many are, or where all others are 0.
    """
    if not tensors:  # of a model with a state, the second run may take another branch
        return None
    whole = torch.cat([tensor.detach().abs().flatten() for tensor in tensors])
    largest = float(whole.max())
    others = whole[whole < largest / SUSPICIOUS]
    if (len(whole) - len(others)) * SHARE > len(whole) + SHARE or not others.any():
        return None
    return largest, float(others.max())
