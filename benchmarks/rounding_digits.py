"""Codes of weights on a small MobileNet that is trained on scikit-learn's digits.

First and last layer have 8 bits, and so have activations; ranges of weights are by `output_error`.
Usage, from the repository root::

    python -m benchmarks.rounding_digits
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import torch

import jit_passes
from benchmarks import report
from benchmarks.measure import sqnr_db
from jit_passes.configuration.stages import WEIGHT_ROUNDINGS

_MODULE = "benchmarks.rounding_digits"
_HEADER = ("weights", "SQNR, dB", "right, %", "CPU time, s")


def configuration(bits: int) -> dict[str, Any]:
    """Return a configuration with few bits for all weights but the first and the last layer's."""
    ends = {"module": ["features.0", "classifier"], "weight": {"bits": 8}}
    weight = {"bits": bits, "calibration": "output_error"}
    return {"version": 1, "global": {"weight": weight}, "rules": [ends]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--bits", nargs="+", type=int, default=[4, 3])
    options = parser.parse_args(command)
    sys.path.insert(0, str(Path(__file__).parent.parent / "tutorials"))
    from digits import DigitsMobileNet, load_digits_tensors, top1, train

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = load_digits_tensors()
    network = train(DigitsMobileNet(width=8), data, epochs=6, progress=False)
    model = torch.jit.script(network.eval())
    batches = data.train_x[:512].split(64)
    rows = [["float", "", f"{top1(model, data.test_x, data.test_y):.2f}", ""]]
    for bits in options.bits:
        prepared = jit_passes.prepare(
            model, target="reference", mode="static", config=configuration(bits)
        )
        prepared = jit_passes.calibrate(prepared, batches, progress=False)
        for how in (None, *WEIGHT_ROUNDINGS):
            begin = process_time()
            made = prepared
            if how is not None:
                made = jit_passes.round_weights(prepared, batches, how=how)
            seconds = process_time() - begin
            reference = jit_passes.convert(made)
            with torch.no_grad():
                sqnr = sqnr_db(model(data.test_x), reference(data.test_x))
            right = top1(reference, data.test_x, data.test_y)
            name = f"{bits} bits, {how or 'nearest'}"
            rows.append([name, f"{sqnr:.1f}", f"{right:.2f}", f"{seconds:.0f}"])
    print(f"{report.command(_MODULE, command)}\n\n{report.table(_HEADER, rows)}")


if __name__ == "__main__":
    main()
