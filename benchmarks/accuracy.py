"""Whole architectures in int8 beside ONNX Runtime's: how much is on integers, and how exact it is.

Weights are random, so SQNR compares quantizers of one net, and does not tell how accurate a trained
one is. Usage, from the repository root, with transformers and torchvision installed::

    python -m benchmarks.accuracy --models bert whisper
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import jit_passes
from benchmarks import report
from benchmarks.latency import workload_of
from benchmarks.measure import sqnr_db
from benchmarks.models import ModelSpec
from benchmarks.models.whole import EVERY, WHOLE
from benchmarks.runtimes import RUNTIMES, Workload, first_line
from benchmarks.runtimes.base import THREADS, missing_requirement
from jit_passes.report.macs import integer_share

_SECTION = "accuracy"
_MODULE = "benchmarks.accuracy"
_MODES = ("auto", "static", "dynamic")
_PEERS = ("onnxruntime", "onnxruntime_dynamic")
_HEADER = (
    "model", "on integers, plans", *_MODES, "ONNX Runtime static", "ONNX Runtime dynamic",
)  # fmt: skip
_DEFAULT = [*WHOLE, "lstm", "gru", "unet", "efficientnet_b0", "convnext"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize what the command line asks for and write the results file."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=EVERY, default=_DEFAULT)
    parser.add_argument("--output", type=Path, help="a file with a section for the table")
    options = parser.parse_args(command)
    torch.set_num_threads(THREADS)
    print(report.table(_HEADER, []), flush=True)
    rows, failed = [], 0
    for name in options.models:
        cells = _row(EVERY[name])
        failed += any(cell.startswith("FAILED") for cell in cells)
        rows.append(cells)
        print(report.table(_HEADER, [cells]).splitlines()[-1], flush=True)
        if options.output:
            body = [report.command(_MODULE, command), report.table(_HEADER, rows)]
            report.write_section(options.output, _SECTION, "\n\n".join(body))
    raise SystemExit(f"{failed} failed" if failed else 0)


def _row(spec: ModelSpec) -> list[str]:
    """A model's line of the table."""
    workload, held_out, expected = workload_of(spec)
    found = [_ours(workload, mode, held_out, expected) for mode in _MODES]
    peers = [_peer(workload, name, held_out, expected) for name in _PEERS]
    return [spec.title, found[0][0], *(cell for _, cell in found), *peers]


def _ours(workload: Workload, mode: str, held_out: Tensor, expected: Tensor) -> tuple[str, str]:
    """The part on integers with the number of plans, and the SQNR, or an error."""
    try:
        quantized = jit_passes.quantize_script(
            workload.scripted, workload.calibration, target="x86", mode=mode, progress=False
        )
        with torch.no_grad():
            sqnr = sqnr_db(expected, quantized(held_out))
        share = integer_share(workload.scripted, quantized, held_out[:1])
    except jit_passes.JitPassesError as error:
        return "", f"FAILED: {first_line(error)}"
    plans = sum(hasattr(module, "compiled") for module in quantized.modules())
    return f"{100 * math.floor(1000 * share) / 1000:.1f} %, {plans}", f"{sqnr:.1f}"


def _peer(workload: Workload, name: str, held_out: Tensor, expected: Tensor) -> str:
    """The SQNR of a peer, or why it has none."""
    runtime = RUNTIMES[name]
    missing = missing_requirement(runtime)
    if missing:
        return missing
    with tempfile.TemporaryDirectory() as folder:
        try:
            built = runtime.build(workload, Path(folder))
            return f"{sqnr_db(expected, built.specialize(held_out)(held_out)):.1f}"
        except Exception as error:  # whatever a peer raises, the others are still compared
            report.progress(f"{name}: {first_line(error)}")
            return f"fails: {type(error).__name__}"


if __name__ == "__main__":
    main()
