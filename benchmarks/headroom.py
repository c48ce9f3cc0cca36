"""The effect of headroom on numbers that calibration has not seen.

    python -m benchmarks.headroom

For each distribution and number of values seen: the share of held-out numbers beyond the range,
how far beyond they are on average, in standard deviations, and the SQNR of the held-out numbers,
each without and with headroom; and the SQNR of a range that rests on 100,000 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from jit_passes.observers import Histogram, ObserverState
from jit_passes.specification.qparams import choose_qparams
from jit_passes.specification.specification import QuantizationSpec
from jit_passes.stages.prepare import fresh_range

COUNTS = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
TRIALS, HELD_OUT, MANY = 150, 400, 100_000
DRAW: dict[str, Callable[[int], Tensor]] = {
    "normal": torch.randn,
    "uniform": lambda count: torch.rand(count) * 2 - 1,
    "exponential": lambda count: torch.empty(count).exponential_(),
}


def observed(x: Tensor) -> ObserverState:
    """Return what a histogram of these numbers has seen."""
    state = ObserverState(fresh_range(), torch.zeros(2048, dtype=torch.int64))
    torch.ops.jit_passes.observe_histogram(x, state.range, state.histogram, "x", "")
    return state


class Held:
    """Sums over held-out numbers."""

    def __init__(self) -> None:
        self.beyond = self.excess = self.noise = self.signal = 0.0
        self.count = 0

    def add(self, x: Tensor, state: ObserverState, spec: QuantizationSpec) -> None:
        parameters = choose_qparams(spec, state, sampled=True)
        scale, zero = float(parameters.scale), int(parameters.zero_point)
        q = torch.ops.jit_passes
        grid = (spec.quant_min, spec.quant_max)
        found = q.dequantize(q.quantize(x, scale, zero, *grid, torch.uint8), scale, zero)
        ends = [(code - zero) * scale for code in grid]
        excess = (x - x.clamp(ends[0] - scale / 2, ends[1] + scale / 2)).abs().double()
        self.beyond += int((excess > 0).sum())
        self.excess += float(excess.sum())
        self.noise += float((x - found).double().square().sum())
        self.signal += float(x.double().square().sum())
        self.count += x.numel()

    @property
    def share(self) -> float:
        return 100 * self.beyond / self.count

    def mean_excess(self, deviation: float) -> float:
        return self.excess / max(self.beyond, 1) / deviation

    @property
    def sqnr(self) -> float:
        return float(10 * torch.log10(torch.tensor(self.signal / self.noise)))


def measure(draw: Callable[[int], Tensor], count: int, spec: QuantizationSpec) -> Held:
    torch.manual_seed(0)
    held = Held()
    for _ in range(TRIALS if count <= 1024 else 1):
        held.add(draw(HELD_OUT if count <= 1024 else MANY), observed(draw(count)), spec)
    return held


def main() -> None:
    on = QuantizationSpec(observer=Histogram())
    off = replace(on, observer=Histogram(headroom=0))
    print("| values | seen | clipped, % | by, standard deviations | SQNR, dB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, draw in DRAW.items():
        torch.manual_seed(0)
        deviation = float(draw(MANY).std())
        for count in COUNTS:
            a, b = measure(draw, count, off), measure(draw, count, on)
            print(
                f"| {name} | {count} | {a.share:.2f} → {b.share:.2f} | "
                f"{a.mean_excess(deviation):.2f} → {b.mean_excess(deviation):.2f} | "
                f"{a.sqnr:.1f} → {b.sqnr:.1f} |"
            )
        print(f"| {name} | {MANY:,} | | | {measure(draw, MANY, off).sqnr:.1f} |")


if __name__ == "__main__":
    main()
