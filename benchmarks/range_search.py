"""The search for the range with the least squared error, beside PyTorch's, on the same histogram.

Usage, from the repository root::

    python -m benchmarks.range_search --rounds 10

The values are rounded to the middles of bins that both observers share, so that both search the
same counts. The error is that of quantizing these values with the parameters that each chose.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.ao.quantization import HistogramObserver

from benchmarks import report
from benchmarks.measure import alternate, ratios, spread
from jit_passes.observers import Histogram, ObserverState
from jit_passes.quantizer import QuantizationSpec
from jit_passes.specification.qparams import affine_qparams

_BINS = 2048
_TAIL = 0.1
_SPEC = QuantizationSpec()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.range_search", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    print(report.machine_facts())
    rows = [_row(name, x, options.rounds) for name, x in _datasets().items()]
    header = ["values", "error / PyTorch's", "ms", "PyTorch ms", "times as fast", ""]
    print(report.table(header, rows))


def _datasets() -> dict[str, Tensor]:
    """Values at the middles of 2048 bins, the outermost of which are not empty."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(100_000, generator=generator)
    uniform = torch.rand(100_000, generator=generator)
    return {
        "normal": _to_bins(normal),
        "relu": _to_bins(normal.relu()),
        "laplace": _to_bins(-(1 - uniform).log() * normal.sign()),
        "outlier": _to_bins(torch.cat([normal, torch.tensor([40.0])])),
    }


def _to_bins(x: Tensor) -> Tensor:
    """Return x at the middles of bins of width 2**-6, 2048 of which hold all."""
    low = float(x.min())
    first = round(low / (float(x.max()) - low) * (_BINS - 1))
    codes = ((x - low) / (x.max() - low) * (_BINS - 1)).round()
    return (codes + first + 0.5) / 64


def _row(name: str, x: Tensor, rounds: int) -> list[str]:
    state = _state_of(x)
    theirs = HistogramObserver(bins=_BINS)
    theirs.min_val, theirs.max_val = x.min() - 0.5 / 64, x.max() + 0.5 / 64
    theirs.histogram = torch.histc(x, _BINS, float(theirs.min_val), float(theirs.max_val))
    own = Histogram(_BINS)
    calls: dict[str, Callable[[], object]] = {
        "own": lambda: own.find_range(state, 0, 255, False),
        "theirs": theirs._non_linear_param_search,
    }
    limits = [*own.find_range(state, 0, 255, False)]
    their_limits = [float(end) for end in theirs._non_linear_param_search()]
    quotient = _error(x, limits) / _error(x, their_limits)
    samples = alternate(calls, rounds)
    ratio = spread(ratios(samples["theirs"], samples["own"]), _TAIL)
    times = [f"{1e3 * spread(samples[which], _TAIL).median:.2f}" for which in ("own", "theirs")]
    faster = [f"{ratio.median:.0f}", f"{ratio.low:.0f} to {ratio.high:.0f}"]
    return [name, f"{quotient:.4f}", *times, *faster]


def _state_of(x: Tensor) -> ObserverState:
    inf = float("inf")
    buffer = torch.tensor([inf, -inf, inf, -inf, 0.0, 0.0], dtype=torch.float64)
    counts = torch.zeros(_BINS, dtype=torch.int64)
    torch.ops.jit_passes.observe_histogram(x, buffer, counts, "x", "")
    return ObserverState(buffer, counts)


def _error(x: Tensor, limits: Sequence[float]) -> float:
    scale, zero_point = affine_qparams(limits[0], limits[1], _SPEC)
    codes = (x.double() / scale).round() + zero_point
    quantized = (codes.clamp(_SPEC.quant_min, _SPEC.quant_max) - zero_point) * scale
    return float((quantized - x).square().sum())


if __name__ == "__main__":
    main()
