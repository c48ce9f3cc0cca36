"""The range of a value by the error of a function of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from .bins import filled_bins
from .histogram import Histogram
from .observer import ObserverState

# The first grid has the ends _FACTOR^i times those seen, i < _COARSE. Each further grid has _FINE
# steps in a step of the previous one; the last step is 0.4 %.
_FACTOR, _COARSE, _FINE, _ROUNDS = 0.5**0.5, 12, 3, 4

Pair = tuple[float, float]


@dataclass(frozen=True)
class FunctionError(Histogram):
    """Quantize the range that gives the function behind a value the least squared error.

    Where functions of single numbers alone read a value x, silu say, the model goes on with the
    result f(x), and the error that counts is

        error(range) = sum over bins of  count * (f(x) - g(f(dequantize(quantize(x)))))^2

    at the bins' centres, in which g rounds to the grid of the result if that is quantized. Ends of
    the range are searched together, from coarse to fine, in steps that become 0.4 % of themselves.
    The range is `Histogram`'s where other operators read the value too, where the function is not
    finite, and with more codes than bins.
    """

    name: ClassVar[str] = "function_error"
    asks_function: ClassVar[bool] = True

    def find_range(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> tuple[float, float]:
        if state.function is not None and quant_max - quant_min < self.bins:
            found = _Search(state, quant_min, quant_max, symmetric).run()
            if found is not None:
                return found
        return super().find_range(state, quant_min, quant_max, symmetric)


class _Search:
    """The search, with sums of all bins below each bin, so that a range costs one look at codes.

    With S0 and S1 the sums of count and count f(x) over the bins that are rounded to the code k,
    and f_k the function of its number, rounded as the result is:

        error = sum over bins of  count f(x)^2  +  sum over k of  f_k (f_k S0 - 2 S1)
    """

    def __init__(
        self, state: ObserverState, quant_min: int, quant_max: int, symmetric: bool
    ) -> None:
        assert state.function is not None
        self._function, self._rounded = state.function, state.rounded
        counts, self._first, self._width = filled_bins(state)
        low, high = state.range[:2].tolist()
        self._low, self._high = min(low, 0.0), max(high, 0.0)
        if symmetric:
            self._high = max(-self._low, self._high)
            self._low = -self._high
        self._together = symmetric or self._low == 0 or self._high == 0
        middle = (quant_min + quant_max + 1) // 2
        shorter = min(quant_max - middle, middle - quant_min)  # codes on one side of 0
        # Where [-8, 7] have one more code below 0 than above, a range that is wider by half a step
        # has a code for the largest number.
        wider = symmetric and shorter > 0
        self._widest = (quant_max - quant_min) / (2 * shorter) if wider else 1.0
        self._middle = middle
        bins = torch.arange(self._first, self._first + len(counts), dtype=torch.float64)
        results = self._function(((bins + 0.5) * self._width).clamp(low, high))
        finite = results.isfinite()
        results, weights = results.where(finite, 0.0), counts.double().where(finite, 0.0)
        self._sums = pad(torch.stack([weights, weights * results]).cumsum(1), (1, 0))
        self._squares = float((weights * results.square()).sum())
        self._quant_min, self._quant_max, self._symmetric = quant_min, quant_max, symmetric
        self._codes = torch.arange(quant_min, quant_max + 1, dtype=torch.float64)

    def run(self) -> tuple[float, float] | None:
        """Return the best range; None of zeros, or where no result or no error is finite."""
        if self._low == self._high or not self._sums[0, -1]:
            return None
        widest = math.log(self._widest, _FACTOR)
        offsets = [widest] if widest < 0 else []
        offsets += range(_COARSE)
        at, step, least = (0.0, 0.0), 1.0, math.inf
        for _ in range(_ROUNDS + 1):
            powers = [pair for pair in self._around(at, offsets) if min(pair) >= widest]
            errors = self._errors(*self._ends(powers))
            best = int(errors.argmin())
            if errors[best] < least:
                at, least = powers[best], float(errors[best])
            step /= _FINE
            offsets = [i * step for i in range(1 - _FINE, _FINE)]
        low, high = self._ends([at])
        return (float(low), float(high)) if least < math.inf else None

    def _around(self, at: Pair, offsets: list[float]) -> list[Pair]:
        """Return pairs of powers of _FACTOR to try for both ends, the widest range first."""
        if self._together:
            return [(at[0] + offset, at[1] + offset) for offset in offsets]
        return [(at[0] + a, at[1] + b) for a, b in product(offsets, offsets)]

    def _ends(self, powers: list[Pair]) -> tuple[Tensor, Tensor]:
        low, high = _FACTOR ** torch.tensor(powers, dtype=torch.float64).t()
        return self._low * low, self._high * high

    def _errors(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the error of each range, infinity for one that is empty or not finite."""
        scale = ((high - low) / (self._quant_max - self._quant_min))[:, None]
        if self._symmetric:
            steps = (self._codes - self._middle).expand(len(scale), -1)
        else:
            zero_point = (self._quant_min - low[:, None] / scale).round()
            steps = self._codes - zero_point
        # The last bin that is rounded to each code; the last code has none.
        bins = self._sums.shape[1] - 1
        borders = ((steps[:, :-1] + 0.5) * scale / self._width - self._first - 0.5).ceil_()
        borders = pad(pad(borders.clamp_(0, bins), (0, 1), value=bins), (1, 0)).long()
        below = self._sums.index_select(1, borders.reshape(-1)).reshape(2, *borders.shape)
        count, sums = below.diff()
        results = self._function(steps * scale)
        if self._rounded is not None:
            results = self._rounded(results)
        results = results.where(count > 0, 0.0)
        errors: Tensor = self._squares + (results * (results * count - 2 * sums)).sum(1)
        return errors.where(errors.isfinite(), float("inf"))
