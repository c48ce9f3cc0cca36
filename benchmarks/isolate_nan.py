"""Dynamic linears of the target stock that keep a NaN in its row, beside those that do not.

Usage, from the repository root::

    python -m benchmarks.isolate_nan --rounds 20

Both compute the same bits for finite numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

import jit_passes
from benchmarks import report
from benchmarks.measure import alternate
from jit_passes.targets import Stock

_WIDTH = 768
_BASELINE = "isolate_nan=False"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one table for each number of rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isolate_nan", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(options.threads)
    print(report.machine_facts())
    models = _models()
    for rows in (1, 4, 16, 32, 128, 512):
        x = torch.randn(rows, _WIDTH)
        calls: dict[str, Callable[[], object]] = {
            name: partial(model, x) for name, model in models.items()
        }
        with torch.no_grad():
            samples = alternate(calls, options.rounds)
        print(report.comparison(f"linear of {_WIDTH}, {rows} rows", samples, _BASELINE))


def _models() -> dict[str, torch.jit.ScriptModule]:
    """The measured models by name, of one linear layer."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(_WIDTH, _WIDTH)).eval())
    return {
        f"isolate_nan={isolates}": jit_passes.quantize_script(
            model, mode="dynamic", target=Stock(isolate_nan=isolates)
        )
        for isolates in (False, True)
    }


if __name__ == "__main__":
    main()
