"""Where the time of a model of the target x86 goes, by operator.

Usage, from the repository root::

    python -m benchmarks.x86_profile --models resnet50 mobilenet_v2 --batch 1 8
    python -m benchmarks.x86_profile --models resnet50 --image 225 193
    python -m benchmarks.x86_profile --models encoder_128 --mode dynamic

The time of each step is its minimum over many calls, with the wait for other threads behind it.
A share of the peak is that of multiply-adds, measured first with registers only, for the level
of instructions: that of the processor, or JIT_PASSES_X86_LEVEL. The rest is the median of whole
calls less the sum of all steps.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks.models import MODELS
from benchmarks.models.whole import EVERY
from benchmarks.runtimes.base import THREADS
from benchmarks.runtimes.jit_passes import quantize_with_jit_passes
from benchmarks.x86_kernels import peak as peak_of
from jit_passes import _C
from jit_passes.targets import X86
from tests.x86.kernels.calls import Form

_CALIBRATION_SEED, _CALIBRATION_BATCHES, _CALIBRATION_BATCH_SIZE = 2_000, 4, 8
_TIMED_SEED, _CALLS = 4_000, 100


def plans(model: torch.jit.ScriptModule) -> Iterator[Any]:
    for module in model.modules():
        if hasattr(module, "compiled"):
            yield module.compiled


def steps(plan: Any, x: Tensor, calls: int) -> tuple[list[tuple[str, int, int]], float]:
    """Kernel, multiply-adds and nanoseconds of each step, and seconds of a whole call."""
    best: list[int] = []
    seconds = []
    for _ in range(calls):
        profile = plan.profile([x])
        found = [nanoseconds for *_, nanoseconds in profile]
        best = [min(pair) for pair in zip(best or found, found, strict=True)]
        start = time.perf_counter()
        plan.run([x])
        seconds.append(time.perf_counter() - start)
    rows = [
        (kernel, products, ns)
        for (_, kernel, _, products, _), ns in zip(profile, best, strict=True)
    ]
    return rows, sorted(seconds)[calls // 2]


def table(rows: list[tuple[str, int, int]], whole: float, peak: float) -> str:
    groups: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for kernel, products, nanoseconds in rows:
        for i, number in enumerate((1, products, nanoseconds)):
            groups[kernel][i] += number
    lines = [
        "| kernel | steps | us | share of the time | share of the peak |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for kernel, (count, products, ns) in sorted(groups.items(), key=lambda item: -item[1][2]):
        share = f"{products / ns * 1e9 / peak:.0%}" if products else ""
        lines.append(f"| {kernel} | {count} | {ns / 1e3:.0f} | {ns / 1e9 / whole:.1%} | {share} |")
    left = whole - sum(ns for *_, ns in rows) / 1e9
    lines.append(f"| what is left | | {left * 1e6:.0f} | {left / whole:.1%} | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=EVERY, default=list(MODELS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8], metavar="N")
    parser.add_argument("--image", nargs=2, type=int, metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--integer-layer-norm", action="store_true")
    parser.add_argument("--mode", choices=("static", "dynamic"), default="static")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--calls", type=int, default=_CALLS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    level = _C.x86_level()
    peak = options.threads * peak_of(Form[level.upper()])
    print(f"peak of {options.threads} threads, {level}: {peak / 1e9:.0f} GMAC/s\n")
    for name in options.models:
        spec = EVERY[name]
        with torch.no_grad():
            batches = [
                spec.inputs(_CALIBRATION_BATCH_SIZE, _CALIBRATION_SEED + index)
                for index in range(_CALIBRATION_BATCHES)
            ]
            scripted = spec.form(spec.build(), batches[0])
        target = X86(integer_layer_norm=options.integer_layer_norm)
        given = batches if options.mode == "static" else None
        model = quantize_with_jit_passes(scripted, given, None, target, options.mode)
        found = list(plans(model))
        if len(found) != 1:
            print(f"{spec.title}: {len(found)} plans, and one is shown where there is no other\n")
            continue
        for batch in options.batch:
            x = spec.inputs(batch, _TIMED_SEED)
            if options.image:
                x = interpolate(x, options.image, mode="bilinear")
            rows, whole = steps(found[0], x, options.calls)
            rate = sum(products for _, products, _ in rows) / whole
            print(f"{spec.title}, {' x '.join(map(str, x.shape))}: {whole * 1e3:.2f} ms, ", end="")
            print(f"{rate / 1e9:.0f} GMAC/s, {rate / peak:.0%} of the peak\n")
            print(table(rows, whole, peak), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
