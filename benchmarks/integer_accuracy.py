"""Top-1 of integers alone: with multipliers, with powers of two, and with thresholds that train.

The networks are those of `tutorials/digits.py`, half as wide, trained in float. Activations and
weights have the bits of a row, 8 in the first and the last layer. All but the last column are
calibrated on 512 images; there, thresholds train for two epochs by TQT (arXiv:1903.08066). Usage,
from the repository root::

    python -m benchmarks.integer_accuracy

Columns: top-1 of 597 images, in percent, of the float model, of the reference model and the
integers with the requantization `multiplier`, and of the integers with `shift`; the codes of the
result that differ between reference model and integers, with `multiplier` and with `shift`.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import jit_passes
from benchmarks import report
from jit_passes.targets import FixedPoint

_HEADER = (
    *("network", "bits", "float", "multiplier, reference", "multiplier", "shift, calibrated"),
    *("shift, TQT", "differ, multiplier", "differ, shift"),
)
_EDGES = {"resnet": ("conv1", "fc"), "mobilenet": ("features.0", "classifier")}
_IMAGES = 512


def configuration(network: str, bits: int) -> dict[str, Any]:
    """Return `bits` for all layers but the first and the last one, which have 8."""
    few, many = ({"input": {"bits": n}, "weight": {"bits": n}} for n in (bits, 8))
    return {"version": 1, "global": few, "rules": [{"module": [*_EDGES[network]], **many}]}


class Bench:
    """A network that is trained in float, and its images."""

    def __init__(self, digits: Any, network: str) -> None:
        self.digits, self.network, self.data = digits, network, digits.load_digits_tensors()
        torch.manual_seed(0)
        made = digits.DigitsResNet(8) if network == "resnet" else digits.DigitsMobileNet(8)
        self.model = digits.train(made, self.data, epochs=7, progress=False)

    def top1(self, model: nn.Module) -> str:
        return f"{self.digits.top1(model, self.data.test_x, self.data.test_y):.2f}"

    def scripted(self) -> torch.jit.ScriptModule:
        return torch.jit.script(copy.deepcopy(self.model))

    def calibrated(self, requantization: str, bits: int) -> torch.jit.ScriptModule:
        """Return the reference model of a target."""
        target, config = FixedPoint(requantization), configuration(self.network, bits)
        prepared = jit_passes.prepare(self.scripted(), target=target, config=config)
        batches = self.data.train_x[:_IMAGES].split(64)
        jit_passes.calibrate(prepared, batches, progress=False)
        return jit_passes.convert(prepared)

    def trained(self, bits: int) -> torch.jit.ScriptModule:
        """Return the reference model whose thresholds are trained."""
        qat = jit_passes.prepare_qat(
            self.scripted(), target=FixedPoint("shift"), fake_quantizer="tqt", bits=bits,
            first_last_bits=8,
        )  # fmt: skip
        self.digits.train(qat, self.data, epochs=2, peak_rate=1e-3, progress=False)
        return jit_passes.convert(qat.eval())

    def differ(self, reference: nn.Module, integers: nn.Module) -> str:
        """Return how many of the results differ."""
        with torch.no_grad():
            expected, found = (model(self.data.test_x) for model in (reference, integers))
        return f"{int((expected != found).sum())} of {found.numel():,}"

    def row(self, bits: int) -> list[str]:
        """Return a line of the table."""
        reference = self.calibrated("multiplier", bits)
        integers = jit_passes.lower(reference)
        shifted = jit_passes.lower(self.calibrated("shift", bits))
        trained = self.trained(bits)
        lowered = jit_passes.lower(trained)
        models = (self.model, reference, integers, shifted, lowered)
        apart = self.differ(reference, integers), self.differ(trained, lowered)
        return [self.network, str(bits), *map(self.top1, models), *apart]


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tutorials"))
    import digits

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--networks", nargs="+", choices=tuple(_EDGES), default=list(_EDGES))
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 6, 4])
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = []
    for network in given.networks:
        bench = Bench(digits, network)
        for bits in given.bits:
            table.append(bench.row(bits))
            print(report.table(_HEADER, table[-1:]), file=sys.stderr, flush=True)
    print(report.table(_HEADER, table))
    print(report.machine_facts())


if __name__ == "__main__":
    main()
