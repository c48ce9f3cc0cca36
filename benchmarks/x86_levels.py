"""The target x86 beside stock, as on processors with fewer instructions, on one thread.

Usage, from the repository root::

    python -m benchmarks.x86_levels --models resnet18 mobilenet_v2 --levels avx2 avx_vnni

Each level has a process of its own, in which environment variables keep this package's kernels,
PyTorch's operators, oneDNN and FBGEMM from instructions beyond it. `stock` has the engines fbgemm,
which PyTorch takes where there is no AVX-512 VNNI, and onednn; inputs have 7 bits where products
are added up in int16. Runtimes take turns, and each time is the minimum of all calls, of the
thread's own time on the processor: other processes may run. Loops of this package that a compiler
vectorizes are not limited: take the first of the clones out of `cpp/ops/vectorize.h` for that.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.latency import TIMED_SEED, workload_of
from benchmarks.measure import sqnr_db
from benchmarks.models import MODELS
from benchmarks.runtimes.jit_passes import quantize_with_jit_passes
from benchmarks.runtimes.torch_script import quantized_engine
from jit_passes import _C
from jit_passes.targets import X86, Stock

# Of PyTorch, oneDNN and FBGEMM.
_LIMITS = {
    "avx2": ("avx2", "AVX2", "AVX2"),
    "avx_vnni": ("avx2", "AVX2_VNNI", "AVX2"),
    "avx512_vnni": ("avx512", "AVX512_CORE_VNNI", "AVX512_VNNI"),
    "amx_int8": ("avx512", "AVX512_CORE_AMX", "AVX512_VNNI"),
}
_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "FBGEMM_ENABLE_INSTRUCTIONS")
_LEVEL = "JIT_PASSES_X86_LEVEL"


def stock(engine: str, level: str) -> Stock:
    saturates = level == "avx2" or (engine == "fbgemm" and level == "avx_vnni")
    return Stock(engine=engine, reduce_range=saturates)


def measure(name: str, level: str, mode: str, seconds: float) -> dict[str, tuple[float, float]]:
    """Milliseconds and decibels of each runtime."""
    workload, held_out, expected = workload_of(MODELS[name])
    x = MODELS[name].inputs(1, TIMED_SEED)
    runs: dict[str, tuple[Callable[[Tensor], Any], str | None, float]] = {}
    targets = {"x86": (None, X86())} | {
        f"stock, {engine}": (engine, stock(engine, level)) for engine in ("fbgemm", "onednn")
    }
    for title, (engine, target) in targets.items():
        with quantized_engine(engine):
            model = quantize_with_jit_passes(
                workload.scripted,
                workload.calibration if mode == "static" else None,
                engine,
                target,
                mode,
            )
            runs[title] = (model, engine, sqnr_db(expected, model(held_out)))
            for _ in range(3):
                model(x)
    best = dict.fromkeys(runs, math.inf)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for title, (model, engine, _) in runs.items():
            with quantized_engine(engine):
                for _ in range(3):
                    start = time.thread_time()
                    model(x)
                    best[title] = min(best[title], time.thread_time() - start)
    return {title: (best[title] * 1e3, runs[title][2]) for title in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--levels", nargs="+", choices=_LIMITS, default=list(_LIMITS))
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row")
    parser.add_argument("--mode", choices=("static", "dynamic"), default="static")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        torch.set_num_threads(1)
        with torch.no_grad():
            print(json.dumps(measure(*options.row, options.mode, options.seconds)))
        return
    print(
        "| level | model | x86, ms | stock fbgemm, ms | stock onednn, ms | the best of stock / x86",
        end="",
    )
    print(" | SQNR, dB |\n| --- | --- |" + " ---: |" * 5)
    for level in options.levels:
        if level not in _C.x86_levels():
            continue
        for name in options.models:
            limits = dict(zip(_VARIABLES, _LIMITS[level], strict=True)) | {_LEVEL: level}
            command = [sys.executable, "-m", "benchmarks.x86_levels", "--row", name, level]
            command += ["--mode", options.mode, "--seconds", str(options.seconds)]
            run = subprocess.run(
                command, env=os.environ | limits, capture_output=True, text=True, check=False
            )
            if run.returncode:
                print(f"{MODELS[name].title} at {level}: {run.stderr}", file=sys.stderr)
                continue
            found = json.loads(run.stdout.splitlines()[-1])
            times = [milliseconds for milliseconds, _ in found.values()]
            cells = [f"{t:.2f}" for t in times] + [f"{min(times[1:]) / times[0]:.2f}"]
            decibels = ", ".join(f"{sqnr:.1f}" for _, sqnr in found.values())
            print(
                f"| {level} | {MODELS[name].title} | {' | '.join(cells)} | {decibels} |", flush=True
            )


if __name__ == "__main__":
    main()
