"""What the profiles of many workers cost: bytes for each value, and the time of a merge.

Usage, from the repository root::

    python -m benchmarks.merge_profiles --workers 64

Each worker profiles a batch; four batches are run, and their profiles stand for those of all.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import jit_passes
from benchmarks import report
from benchmarks.models.encoder import WIDTH, Encoder
from benchmarks.models.resnet import resnet18
from jit_passes import Profile

_REAL = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.merge_profiles", description=__doc__
    )
    parser.add_argument("--workers", type=int, default=64)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    print(report.machine_facts())
    torch.manual_seed(0)
    rows = [
        _row("ResNet-18", resnet18(), lambda: torch.randn(1, 3, 64, 64), options.workers),
        _row("encoder", Encoder(), lambda: torch.randn(1, 64, WIDTH), options.workers),
    ]
    header = [
        "model", "values", "bytes sent", "for each value", "bytes of the file", "merge of two, ms",
        f"of {options.workers}, ms", "profile of a batch, ms",
    ]  # fmt: skip
    print(report.table(header, rows))


def _row(name: str, net: nn.Module, draw: Callable[[], Tensor], workers: int) -> list[str]:
    model = torch.jit.script(net.eval())
    begin = time.process_time()
    real = [jit_passes.profile(model, [draw()], progress=False) for _ in range(_REAL)]
    profiled = (time.process_time() - begin) / _REAL
    parts = [replace(real[k % _REAL], shards=(f"{k + 1}/{workers}",)) for k in range(workers)]
    merged = Profile.merge(parts)
    sent, values = len(pickle.dumps(merged)), len(merged.values)
    with tempfile.TemporaryDirectory() as folder:
        merged.save(Path(folder) / "all.yaml")
        stored = (Path(folder) / "all.yaml").stat().st_size
    two = _seconds(lambda: Profile.merge(parts[:2]))
    times = two, _seconds(lambda: Profile.merge(parts)), profiled
    counts = (values, sent, sent // values, stored)
    return [name, *(f"{c:,}" for c in counts), *(f"{1000 * t:,.0f}" for t in times)]


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
