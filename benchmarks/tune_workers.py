"""`tune` with one worker and with two, on two cores: the time, and whether the results are equal.

Three pools: one process with one thread, one process with two threads, two processes with one each.

Usage, from the repository root::

    python -m benchmarks.tune_workers --rounds 2

The budget is so many dB above the model with all
layers quantized, so that the search goes through its steps. The load is that of the whole machine
while a run goes: on one that is busy with other work, times say little.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import jit_passes
from benchmarks import report
from benchmarks.models.encoder import WIDTH, Encoder
from benchmarks.models.resnet import resnet18
from jit_passes.workers import Workers

_ABOVE = 6.0
_HOW: dict[str, Any] = {"target": "reference", "mode": "static", "progress": False}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune_workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--float-only", action="store_true", help="no other bits and modes")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    print(report.machine_facts())
    torch.manual_seed(0)
    alternatives: dict[str, Any] = {"alternatives": ()} if options.float_only else {}
    rows = []
    for name, net, draw in (
        ("ResNet-18", resnet18(), lambda: torch.randn(2, 3, 64, 64)),
        ("encoder", Encoder(), lambda: torch.randn(1, 32, WIDTH)),
    ):
        for number in range(options.rounds):
            rows.append(_row(name, net, draw, options.batches, number, alternatives))
            print(*rows[-1], flush=True)
    header = [
        "model", "round", "models", "one, s", "one of two threads, s", "two, s", "to one",
        "to one of two threads", "load", "equal",
    ]  # fmt: skip
    print(report.table(header, rows))


def _row(
    name: str,
    net: nn.Module,
    draw: Callable[[], Tensor],
    count: int,
    number: int,
    how: dict[str, Any],
) -> list[str]:
    model = torch.jit.script(net.eval())
    torch.manual_seed(number)
    batches = [draw() for _ in range(count)]
    int8 = jit_passes.quantize_script(model, batches, **_HOW)
    budget = jit_passes.compare(model, int8, batches).sqnr + _ABOVE
    found, seconds, loads = [], [], []
    for workers, threads in ((1, 1), (1, 2), (2, 1)):
        with Workers(workers) as pool:
            # Processes are there, and have their number of threads.
            list(pool.map(torch.set_num_threads, [threads] * workers))
            begin = time.perf_counter()
            tuned = jit_passes.tune(model, batches, budget=budget, executor=pool, **_HOW, **how)
            seconds.append(time.perf_counter() - begin)
        found.append(str(tuned))
        loads.append(os.getloadavg()[0])
    one, threaded, two = seconds
    return [
        name, str(number), str(tuned.evaluations), *(f"{t:.1f}" for t in seconds),
        f"{two / one:.2f}", f"{two / threaded:.2f}", f"{max(loads):.1f}",
        str(found[0] == found[1] == found[2]),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
