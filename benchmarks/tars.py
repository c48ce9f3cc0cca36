"""A profile of many samples in tars, beside reading them and running the float model on them.

Usage, from the repository root::

    python -m benchmarks.tars --tars 100 --samples 10000

A sample is 1 KB, 256 numbers of float32, and the model an MLP of 256, 1024, 1024 and 10 channels.
All is measured in seconds of the processor, of this process, in ten parts in turns. The growth is
that of the most memory that the process has taken, from the first part to one pass over all.
"""

from __future__ import annotations

import argparse
import io
import resource
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import jit_passes
from benchmarks import report
from jit_passes.command_line.data import data_of

_CHANNELS = 256
_BATCH = 32
_PARTS = 10


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tars, measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tars", description=__doc__)
    parser.add_argument("--tars", type=int, default=100)
    parser.add_argument("--samples", type=int, default=10_000, help="in each tar")
    parser.add_argument("--member", type=int, default=1, help="samples in each member of a tar")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(1)
    print(report.machine_facts())
    torch.manual_seed(0)
    layers = [nn.Linear(_CHANNELS, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    model = torch.jit.script(nn.Sequential(*layers, nn.Linear(1024, 10)).eval())
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.tars):
            _write(Path(folder) / f"{number:04}.tar", number, options.samples, options.member)
        parts = [
            data_of(Path(folder), _BATCH, None, None, model.forward, (k + 1, _PARTS))
            for k in range(_PARTS)
        ]
        read = ran = profiled = 0.0
        for part in parts:  # in turns, as other work on the machine comes and goes
            read += _seconds(lambda data=part: _through(data, len))
            ran += _seconds(lambda data=part: _through(data, lambda batch: model(*batch)))
            profiled += _seconds(lambda data=part: jit_passes.profile(model, data, progress=False))
            if part is parts[0]:
                before = _megabytes()
        jit_passes.profile(model, chain(*parts), progress=False)
        grown = _megabytes() - before
    count = options.tars * options.samples
    header = ["samples", "in a member", "reading, s", "and float, s", "profile, s", "ratio", "MB"]
    row = [f"{count:,}", str(options.member), *(f"{t:.1f}" for t in (read, ran, profiled))]
    print(report.table(header, [[*row, f"{profiled / ran:.3f}", f"{grown:.1f}"]]))


def _write(path: Path, seed: int, samples: int, member: int) -> None:
    numbers = np.random.default_rng(seed)
    with tarfile.open(path, "w") as tar:
        for begin in range(0, samples, member):
            shape = (min(member, samples - begin), _CHANNELS)
            content = io.BytesIO()
            np.savez(content, numbers.standard_normal(shape, np.float32))
            info = tarfile.TarInfo(f"{begin:06}.npz")
            info.size = content.tell()
            content.seek(0)
            tar.addfile(info, content)


def _through(batches: Iterable[tuple[Tensor]], run: Callable[[tuple[Tensor]], object]) -> None:
    with torch.no_grad():
        for batch in batches:
            run(batch)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
