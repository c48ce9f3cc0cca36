"""Whether the program in C, integers in TorchScript and the reference model are one, by model.

The target is `fixed_point` with powers of two, calibrated, or with `--slots` trained for four
batches by `quantize_slots` in five slots. C is compiled by gcc for this processor:
`-O2 -fsanitize=undefined,address`, any finding is an error, for its results, and `-Os` for its
size. Weights are random, with BatchNorm statistics from data. Usage, from
the repository root::

    python -m benchmarks.integers
    python -m benchmarks.integers --models keywords --requantization multiplier
    python -m benchmarks.integers --models resnet18 --slots --rounding truncate

Columns: codes of all values at which TorchScript's integers are another than the reference model's;
codes of results at which C's are another than TorchScript's, for five test vectors; seconds of a
processor to write C, and to compile it with `-O2`; code and constants over weights and biases; what
is more than these, for each kind of operator; the arena over the most that is needed at one time;
milliseconds of a processor for a sample: C with `-O2`, TorchScript's integers, and target `x86`.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

import jit_passes
from benchmarks import report
from benchmarks.inputs import realistic
from benchmarks.models.encoder import Encoder
from benchmarks.models.keywords import COEFFICIENTS, FRAMES, KeywordNet
from benchmarks.models.mobilenet_v2 import MobileNetV2
from benchmarks.models.recurrent import Tagger
from benchmarks.models.resnet import resnet18
from benchmarks.models.unet import UNet
from jit_passes.export.c.arena import plan_arena
from jit_passes.export.c.program import Program
from jit_passes.export.c.reading import read_program
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS

_HEADER = (
    "model", "input", "TorchScript differs", "C differs", "write, s", "compile, s",
    "flash / weights", "KB of a kind", "RAM / bound", "C, ms", "TorchScript, ms", "x86, ms",
)  # fmt: skip
VECTORS = 5  # of a program: two samples and three of the edges
CALLS = 5  # that are timed
_STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Werror")
_CHECKED = ("-O2", "-fsanitize=undefined,address", "-fno-sanitize-recover=all")


def _digits(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        sys.path.insert(0, str(Path(__file__).parent.parent / "tutorials"))
        import digits

        made: nn.Module = getattr(digits, name)()
        return made

    return make


@dataclass(frozen=True)
class Case:
    """A network, the size of a sample, and how many steps recurrent layers have."""

    title: str
    make: Callable[[], nn.Module]
    size: tuple[int, ...]
    steps: int | None = None

    def batch(self, count: int, seed: int) -> Tensor:
        """Return inputs of which neighbours are alike, as those of images are."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, *self.size, generator=generator)
        return x + nn.functional.avg_pool2d(x, 5, 1, 2) * 3


CASES = {
    "digits_resnet": Case("digits ResNet", _digits("DigitsResNet"), (1, 16, 16)),
    "digits_mobilenet": Case("digits MobileNet", _digits("DigitsMobileNet"), (1, 16, 16)),
    "keywords": Case("DS-CNN, keywords", KeywordNet, (1, FRAMES, COEFFICIENTS)),
    "unet": Case("U-Net, 8 base channels", lambda: UNet(2, 8, transposed=False), (3, 64, 64)),
    "encoder": Case("transformer, 2 layers of 128", lambda: Encoder(2, 128, 4), (32, 128)),
    "causal": Case("the same, causal", lambda: Encoder(2, 128, 4, causal=True), (32, 128)),
    "tagger": Case("LSTM tagger, 2 layers of 2 x 64", lambda: Tagger(32, 64, 12), (20, 32), 20),
    "mobilenet_v2": Case("MobileNetV2", MobileNetV2, (3, 224, 224)),
    "resnet18": Case("ResNet-18", resnet18, (3, 96, 96)),
}


def calibrated(model: torch.jit.ScriptModule, case: Case, target: FixedPoint) -> Any:
    """Return the reference model that four batches calibrate."""
    prepared = jit_passes.prepare(model, target=target)
    jit_passes.calibrate(prepared, [case.batch(8, i) for i in range(4)])
    return jit_passes.convert(prepared)


def in_slots(model: torch.jit.ScriptModule, case: Case, target: FixedPoint) -> Any:
    """Return the reference model of five slots that has trained for four batches."""
    qat = jit_passes.quantize_slots(model, recipe="graffitist", target=target).train()
    optimizer = torch.optim.SGD(qat.parameters(), 1e-4)
    for number in range(4):
        optimizer.zero_grad()
        qat(case.batch(8, number)).square().mean().backward()
        optimizer.step()
    return jit_passes.convert(qat.eval())


def row(case: Case, target: FixedPoint, slots: bool) -> list[str]:
    """Return a line of the table."""
    torch.manual_seed(0)
    net = realistic(case.make(), [case.batch(8, 100 + i) for i in range(4)])
    sample = case.batch(1, 7)
    model = torch.jit.trace(net, sample)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jit_passes.JitPassesWarning)  # nothing stays in float
        make = in_slots if slots else calibrated
        reference = make(model, case, replace(target, steps=case.steps))
        lowered = jit_passes.lower(reference)
    found = jit_passes.conformance(reference, [sample], ["fixed_point"])
    apart = sum(value.different for value in found.rows)
    codes = sum(value.elements for value in found.rows)
    program, _, _ = read_program(lowered, (sample,), "forward")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = process_time()
        jit_passes.export_c(lowered, folder, sample, [case.batch(1, 8)])
        written = process_time() - start
        start = _of_children()
        _gcc(folder, "-O2", "-c", "model.c", "-o", "model.o")
        compiled = _of_children() - start
        _gcc(folder, "-Os", "-c", "model.c", "-o", "small.o")
        _gcc(folder, *_CHECKED, "main.c", "model.c", "-o", "program")
        done = subprocess.run(
            ["./program"], cwd=folder, capture_output=True, text=True, check=False
        )
        told = done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr[:200]
        flash = _flash(folder / "small.o")
        _gcc(folder, "-O2", "main.c", "model.o", "-o", "plain")
        start = _of_children()
        subprocess.run(["./plain"], cwd=folder, capture_output=True, check=True)
        in_c = (_of_children() - start) / VECTORS
    plain = jit_passes.quantize_script(model, [case.batch(8, i) for i in range(4)], target="x86")
    weights, kinds = _weights(program), {call.kernel for call in program.calls}
    return [
        case.title,
        "x".join(map(str, case.size)),
        f"{apart} of {codes:,}",
        told.removesuffix(" codes differ"),
        f"{written:.1f}",
        f"{compiled:.1f}",
        f"{flash / weights:.3f}",
        f"{(flash - weights) / 1024 / len(kinds):.1f}",
        f"{plan_arena(program).size / _bound(program):.3f}",
        *(
            f"{1e3 * seconds:.1f}"
            for seconds in (in_c, _time(lowered, sample), _time(plain, sample))
        ),
    ]


def _of_children() -> float:
    """Return the seconds of a processor that programs started here have taken."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def _time(model: torch.jit.ScriptModule, sample: Tensor) -> float:
    """Return the seconds of a processor for a sample."""
    with torch.no_grad():
        for _ in range(3):
            model(sample)
        start = process_time()
        for _ in range(CALLS):
            model(sample)
    return (process_time() - start) / CALLS


def _gcc(folder: Path, *arguments: str) -> None:
    subprocess.run(["gcc", *_STRICT, *arguments], cwd=folder, check=True)


def _flash(path: Path) -> int:
    """Return the bytes of code and constants of an object file."""
    sizes = subprocess.run(["size", path], capture_output=True, text=True, check=True).stdout
    text, data, *_ = sizes.splitlines()[1].split()
    return int(text) + int(data)


def _weights(program: Program) -> int:
    """Return the bytes of weights and biases."""
    wide = {"int8_t": 1, "uint8_t": 1, "int16_t": 2, "int32_t": 4, "int64_t": 8}
    kept = [c for c in program.constants if "_weight" in c.name or "_bias" in c.name]
    return sum(constant.numbers.numel() * wide[constant.ctype] for constant in kept)


def _bound(program: Program) -> int:
    """Return the most bytes between operators that are needed at one time."""
    ends: dict[object, tuple[int, int, int]] = {}
    for number, call in enumerate(program.calls):
        for buffer in (call.writes, *call.reads):
            if buffer.role == "arena":
                first = ends.get(buffer, (number, 0, 0))[0]
                ends[buffer] = (first, number, buffer.size)
    numbers = range(len(program.calls))
    live = ((size for a, b, size in ends.values() if a <= n <= b) for n in numbers)
    return max(map(sum, live))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--requantization", choices=("shift", "multiplier"), default="shift")
    parser.add_argument("--rounding", choices=tuple(ROUNDINGS), default="half_even")
    parser.add_argument("--slots", action="store_true", help="five slots, with powers of two")
    given = parser.parse_args()
    if given.slots and given.requantization != "shift":
        parser.error("--slots trains powers of two: leave --requantization out")
    target = FixedPoint(given.requantization, given.rounding)
    rows = []
    for name in given.models:
        rows.append(row(CASES[name], target, given.slots))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(report.table(_HEADER, rows))
    print(report.machine_facts())


if __name__ == "__main__":
    main()
