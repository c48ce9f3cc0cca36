"""ResNet-18 with a channel that is 100 times as large as it need be, and the tools that repair it.

Weights are random, statistics of batch norms come from data, images have 96 x 96 pixels. The first
table has the time and the worth of codes of weights with 4 bits. Usage, from the repository root::

    python -m benchmarks.planted_channel
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import torch
from torch import Tensor

import jit_passes
from benchmarks import report
from benchmarks.inputs import images, realistic
from benchmarks.measure import sqnr_db
from benchmarks.models.resnet import resnet18

_MODULE = "benchmarks.planted_channel"
_FACTOR = 100.0
_SIZE = 96
_HOW: dict[str, Any] = {"target": "reference", "mode": "static", "progress": False}
_FOUR = {"version": 1, "global": {"weight": {"bits": 4, "calibration": "output_error"}}}
_ROUNDINGS = ("gptq", "adaround")
_HEADER = ("weights", "SQNR, dB", "CPU time, s")


def network(planted: bool) -> torch.jit.ScriptModule:
    """Return the network; planted, a channel of its fifth convolution is too large."""
    torch.manual_seed(0)
    net = realistic(resnet18(), [images(16, seed, _SIZE) for seed in range(4)])
    if planted:
        block = net.layer2[0]
        with torch.no_grad():
            block.bn1.weight[7] *= _FACTOR
            block.bn1.bias[7] *= _FACTOR
            block.conv2.weight[:, 7] /= _FACTOR
    return torch.jit.script(net)


def row(
    name: str, model: torch.jit.ScriptModule, make: Callable[[], torch.jit.ScriptModule]
) -> list[str]:
    """Return a line of a table: the SQNR on images that took no part, and the time."""
    begin = process_time()
    made = make()
    seconds = process_time() - begin
    test = [images(16, 100 + seed, _SIZE) for seed in range(4)]
    with torch.no_grad():
        wanted, found = (torch.cat([m(x) for x in test]) for m in (model, made))
    cells = [name, f"{sqnr_db(wanted, found):.1f}", f"{seconds:.0f}"]
    print(report.table(_HEADER, [cells]).splitlines()[-1], flush=True)
    return cells


def channel(data: list[Tensor]) -> list[list[str]]:
    """Return what is lost by the channel, and what is given back."""
    plain, planted = network(planted=False), network(planted=True)

    def quantize(model: torch.jit.ScriptModule, **how: Any) -> torch.jit.ScriptModule:
        how = {"weight_rounding": None, "bias_correction": None, **how}
        return jit_passes.quantize_script(model, data, **_HOW, **how)

    return [
        row("without the channel", plain, lambda: quantize(plain)),
        row("with it", planted, lambda: quantize(planted)),
        row("equalize: weights", planted, lambda: quantize(planted, equalize="weights")),
        row("equalize: activations", planted, lambda: quantize(planted, equalize="activations")),
        row("improve", planted, lambda: jit_passes.improve(planted, data, **_HOW).model),
    ]


def four_bits(data: list[Tensor]) -> list[list[str]]:
    """Return what codes of weights are worth with 4 bits."""
    model = network(planted=False)
    prepared = jit_passes.prepare(model, target="reference", mode="static", config=_FOUR)
    prepared = jit_passes.calibrate(prepared, data, progress=False)

    def rounded(how: str) -> torch.jit.ScriptModule:
        return jit_passes.convert(jit_passes.round_weights(prepared, data, how=how))

    found = [row("4 bits, nearest", model, lambda: jit_passes.convert(prepared))]
    return found + [
        row(f"4 bits, {how}", model, lambda how=how: rounded(how)) for how in _ROUNDINGS
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(command)
    torch.set_num_threads(options.threads)
    data = [images(16, 10 + seed, _SIZE) for seed in range(8)]
    tables = [report.table(_HEADER, rows(data)) for rows in (four_bits, channel)]
    print("\n\n".join(("", report.command(_MODULE, command), *tables)))


if __name__ == "__main__":
    main()
