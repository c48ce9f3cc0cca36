"""Whether training with the rounding of the hardware helps: a digits ResNet in five slots.

The network of width 8 trains in float, and then in the slots of the recipe "graffitist" with
thresholds, once with halves to even and once with the rounding of the target. Both are lowered for
that target. Usage, from the repository root::

    python -m benchmarks.integer_roundings
    python -m benchmarks.integer_roundings --bits 4 --epochs 1

Columns: bits of the slots input and sum; the rounding; top-1 of 597 images, of integers that were
trained with halves to even, and with the rounding itself; results of the model that trained with
it that differ from those of the integers.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import torch

import jit_passes
from benchmarks import report
from jit_passes.configuration.options import TensorOptions
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS

_HEADER = ("bits", "rounding", "trained with half_even, %", "trained with it, %", "parity")
_EVEN = "half_even"


def slots(net: torch.nn.Module, rounding: str, bits: int) -> torch.jit.ScriptModule:
    """Return the network in slots, on its own parameters."""
    few = TensorOptions(bits=bits)
    return jit_passes.quantize_slots(
        torch.jit.script(copy.deepcopy(net)), recipe="graffitist", input=few, sum=few,
        fake_quantizer="tqt", target=FixedPoint("shift", rounding),
    )  # fmt: skip


def rows(digits: Any, bits: int, epochs: int) -> list[list[str]]:
    """Return the lines of the table for a number of bits."""
    data = digits.load_digits_tensors()
    torch.manual_seed(0)
    net = digits.train(digits.DigitsResNet(8), data, epochs=7, progress=False)
    trained = {}
    for rounding in ROUNDINGS:
        made = slots(net, rounding, bits)
        trained[rounding] = digits.train(made, data, epochs=epochs, peak_rate=1e-3, progress=False)
    found = []
    for rounding, qat in trained.items():
        other = slots(net, rounding, bits)
        other.load_state_dict(trained[_EVEN].state_dict())
        integers = [jit_passes.lower(jit_passes.convert(m.eval())) for m in (other, qat)]
        right = [digits.top1(model, data.test_x, data.test_y) for model in integers]
        with torch.no_grad():
            expected, results = qat(data.test_x), integers[1](data.test_x)
        apart = int((expected != results).sum())
        told = f"{apart} of {results.numel():,}"
        found.append([str(bits), rounding, *(f"{share:.2f}" for share in right), told])
    return found


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tutorials"))
    import digits

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 4])
    parser.add_argument("--epochs", type=int, default=2, help="of training in slots")
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = []
    for bits in given.bits:
        table += rows(digits, bits, given.epochs)
        print(report.table(_HEADER, table[-len(ROUNDINGS) :]), file=sys.stderr, flush=True)
    print(report.table(_HEADER, table))
    print(report.machine_facts())


if __name__ == "__main__":
    main()
