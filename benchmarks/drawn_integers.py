"""Whether the reference model, integers in TorchScript and C agree on networks drawn at random.

Each network is a few operators of the target `fixed_point` in a row, on earlier values; target and
formats are drawn too. C has a test vector and three of the edges, and is compiled by gcc with all
warnings and sanitizers as errors. Usage, from the repository root::

    python -m benchmarks.drawn_integers --count 2000
    python -m benchmarks.drawn_integers --start 17 --count 1
    python -m benchmarks.drawn_integers --rounding truncate --without-c

Columns: how sums are rescaled and rounded; networks; ones with an operator in float, which C
refuses; codes of all values at which integers in TorchScript differ from the reference model,
which is exact with powers of two, without softmax and layer norm; codes of
results at which C differs from TorchScript. The program fails if one does.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from benchmarks import report
from jit_passes import JitPassesError
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import DOUBLE_ROUND, ROUNDINGS

LARGEST = 3000  # numbers of a value
GCC = (
    *("gcc", "-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Werror"),
    *("-fsanitize=undefined,address", "-fno-sanitize-recover=all"),
)
Step = Callable[..., Tensor]


class DoesNotFit(Exception):
    """An operator does not fit the values that there are."""


@dataclass
class Pen:
    """The numbers, values and layers that a network is drawn with.

    Attributes:
        rng: numbers.
        values: that operators may read.
        layers: with weights, so far.
    """

    rng: random.Random
    values: list[Tensor]
    layers: nn.ModuleList

    def pick(self, *ranks: int) -> int:
        """Return the place of a value, a late one more often."""
        known = [i for i, value in enumerate(self.values) if not ranks or value.dim() in ranks]
        if not known:
            raise DoesNotFit
        return self.rng.choice(known[-3:])

    def pair(self) -> tuple[int, int]:
        """Return the places of two values of one shape, or of shapes that broadcast."""
        first = self.pick()
        shape = self.values[first].shape
        alike = [i for i, value in enumerate(self.values) if value.shape == shape]
        return first, self.rng.choice(alike)

    def layer(self, made: nn.Module) -> nn.Module:
        """Keep a layer, whose weights are spread as after training."""
        for parameter in made.parameters():
            nn.init.normal_(parameter, 0.1, 0.4)
        self.layers.append(made.eval())
        return made


Drawn = tuple[Step, tuple[int, ...]]


def convolution(pen: Pen) -> Drawn:
    rng, place = pen.rng, pen.pick(3, 4)
    x = pen.values[place]
    ins, kind = x.shape[1], (nn.Conv1d if x.dim() == 3 else nn.Conv2d)
    groups = rng.choice([g for g in (1, 1, 1, 2, 3, ins) if ins % g == 0])
    outs = groups * rng.randint(1, 4)
    made = kind(
        ins, outs, rng.randint(1, 3), rng.choice((1, 1, 2)), rng.randint(0, 2),
        rng.choice((1, 1, 2)), groups, rng.random() < 0.7,
    )  # fmt: skip
    layers = [pen.layer(made)]
    if rng.random() < 0.3:
        norm = nn.BatchNorm1d(outs) if x.dim() == 3 else nn.BatchNorm2d(outs)
        layers.append(pen.layer(norm))
    layers += [rng.choice((nn.ReLU(), nn.ReLU6(), nn.Identity()))]
    return nn.Sequential(*layers), (place,)


def linear(pen: Pen) -> Drawn:
    place = pen.pick()
    outs, bias = pen.rng.randint(1, 8), pen.rng.random() < 0.7
    return pen.layer(nn.Linear(pen.values[place].shape[-1], outs, bias)), (place,)


def total(pen: Pen) -> Drawn:
    places, alpha = pen.pair(), pen.rng.choice((1, 1, 2, 0.5, -1))
    if pen.rng.random() < 0.4:
        return (lambda a, b: torch.sub(a, b, alpha=alpha)), places
    clip = pen.rng.random() < 0.3
    return (lambda a, b: F.relu(torch.add(a, b, alpha=alpha)) if clip else a + b), places


def spread(pen: Pen) -> Drawn:
    """Let a mean, or a part, of one operand be broadcast."""
    first, axis = pen.pick(2, 3, 4), pen.rng.randrange(-2, 0)
    if pen.rng.random() < 0.5:
        return (lambda a: a * torch.sigmoid(a.mean(axis, True))), (first,)
    return (lambda a: a - a.narrow(axis, 0, 1)), (first,)


def product(pen: Pen) -> Drawn:
    return torch.mul, pen.pair()


def matrices(pen: Pen) -> Drawn:
    places = pen.pick(3, 4), pen.pick(3, 4)
    return (lambda a, b: a @ b.transpose(-1, -2)), places


def joined(pen: Pen) -> Drawn:
    places, axis = (*pen.pair(), pen.pick()), pen.rng.randrange(-2, 0)
    if pen.values[places[0]].shape != pen.values[places[2]].shape:
        places = places[:2]
    return (lambda *parts: torch.cat(parts, axis)), places


def pool(pen: Pen) -> Drawn:
    window, stride = pen.rng.randint(2, 3), pen.rng.randint(1, 2)
    padding = pen.rng.randint(0, 1)
    forms: Sequence[Step] = (
        lambda x: F.max_pool2d(x, window, stride, padding),
        lambda x: F.avg_pool2d(x, window, stride, padding),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: x.mean([2, 3]),
        lambda x: F.interpolate(x, scale_factor=2.0),
    )
    return pen.rng.choice(forms), (pen.pick(4),)


def row_pool(pen: Pen) -> Drawn:
    window, stride = pen.rng.randint(2, 3), pen.rng.randint(1, 2)
    forms: Sequence[Step] = (
        lambda x: F.max_pool1d(x, window, stride),
        lambda x: F.avg_pool1d(x, window, stride, 1),
        lambda x: x.mean(1),
        lambda x: x.mean(-1, keepdim=True),
    )
    return pen.rng.choice(forms), (pen.pick(3),)


def function(pen: Pen) -> Drawn:
    number = pen.rng.uniform(-2, 2)
    forms: Sequence[Step] = (
        *(torch.sigmoid, torch.tanh, F.gelu, F.hardswish, F.silu, F.leaky_relu, F.relu, F.softplus),
        lambda x: x * number,
        lambda x: torch.clamp(x, -1.0, 2.0),
        lambda x: torch.exp(-x.abs()),
    )
    return pen.rng.choice(forms), (pen.pick(),)


def move(pen: Pen) -> Drawn:
    forms: Sequence[Step] = (
        lambda x: x.flatten(1),
        lambda x: x.transpose(1, 2).contiguous(),
        lambda x: x.flip(1),
        lambda x: x[:, 1:],
        lambda x: F.pad(x, (1, 2)),
        lambda x: x.unsqueeze(1),
        lambda x: x.reshape(x.shape[0], -1, 2),
        lambda x: x.chunk(2, 1)[1],
        lambda x: x.repeat(1, 2, *[1] * (x.dim() - 2)),
    )
    return pen.rng.choice(forms), (pen.pick(2, 3, 4),)


def softmax(pen: Pen) -> Drawn:
    axis = pen.rng.randrange(-2, 0)
    return (lambda x: torch.softmax(x, axis)), (pen.pick(2, 3, 4),)


def norm(pen: Pen) -> Drawn:
    place = pen.pick(2, 3)
    return pen.layer(nn.LayerNorm(pen.values[place].shape[-1])), (place,)


KINDS: Sequence[tuple[int, Callable[[Pen], Drawn]]] = (
    *((5, convolution), (3, linear), (3, total), (1, spread), (2, product), (1, matrices)),
    *((2, joined), (2, pool), (2, row_pool), (3, function), (3, move), (1, softmax), (1, norm)),
)
ROWS = (softmax, norm)


class Network(nn.Module):
    """Operators in a row, drawn by a seed."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        torch.manual_seed(rng.randrange(2**31))
        sizes = [rng.randint(4, 8) for _ in range(2)]
        shape = rng.choice(((2, rng.randint(1, 6), *sizes), (2, rng.randint(1, 6), sizes[0])))
        self.example = torch.randn(shape)
        pen = Pen(rng, [self.example], nn.ModuleList())
        self.layers = pen.layers
        self.steps: list[Drawn] = []
        self.exact = True  # whether float32 is, with powers of two
        wanted = rng.randint(2, 7)
        kinds, weights = [kind for _, kind in KINDS], [weight for weight, _ in KINDS]
        while len(self.steps) < wanted:
            kind = (
                rng.choices(kinds, weights)[0] if self.steps else rng.choice((convolution, linear))
            )
            kept = len(pen.layers)
            try:
                form, places = kind(pen)
                with torch.no_grad():
                    found = form(*(pen.values[i] for i in places))
            except (DoesNotFit, RuntimeError, IndexError, ValueError):
                del pen.layers[kept:]
                continue
            if not 0 < found.numel() <= LARGEST or not found.isfinite().all():
                del pen.layers[kept:]
                continue
            self.exact = self.exact and kind not in ROWS
            self.steps.append((form, places))
            pen.values.append(found)
        if not any(isinstance(form, nn.Module) for form, _ in self.read_in_the_end()):
            pen.values = pen.values[-1:]
            form, _ = linear(pen)
            self.steps.append((form, (len(self.steps),)))

    def read_in_the_end(self) -> Iterator[Drawn]:
        """Yield the steps that the result depends on."""
        needed = {len(self.steps)}
        for place in range(len(self.steps), 0, -1):
            if place in needed:
                yield self.steps[place - 1]
                needed |= set(self.steps[place - 1][1])

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for form, places in self.steps:
            values.append(form(*(values[i] for i in places)))
        return values[-1]


def drawn_target(rng: random.Random) -> FixedPoint:
    """Return a target; powers of two half of the time, and most of these exact."""
    bits = rng.choice((32, 32, 32, 24, 48))
    if rng.random() < 0.5:
        rounding = rng.choice((*["half_even"] * 6, *ROUNDINGS))
        return FixedPoint("shift", rounding, bits)
    rounding = rng.choice((*ROUNDINGS, DOUBLE_ROUND, DOUBLE_ROUND))
    if rounding == DOUBLE_ROUND:
        return FixedPoint(rounding=rounding, accumulator_bits=min(bits, 32))
    return FixedPoint(
        rounding=rounding, accumulator_bits=bits,
        multiplier_bits=rng.choice((None, None, 16)),
    )  # fmt: skip


def drawn_config(rng: random.Random, target: FixedPoint) -> dict[str, Any]:
    """Return formats of activations and weights."""
    parts: dict[str, Any] = {}
    if rng.random() < 0.3:
        bits = rng.choice((4, 6, 16 if target.accumulator_bits == 48 else 5))
        parts = {name: {"bits": bits, "signed": True} for name in ("input", "output")}
    if rng.random() < 0.3:
        parts["weight"] = {"bits": rng.choice((4, 8)), "channelwise": rng.random() < 0.5}
    return {"version": 1, "global": parts}


@dataclass
class Count:
    """Networks, and codes that differ."""

    networks: int = 0
    refused: int = 0
    apart: int = 0
    codes: int = 0
    wrong: int = 0
    results: int = 0

    def cells(self) -> list[str]:
        return [
            f"{self.networks:,}",
            f"{self.refused:,}",
            f"{self.apart:,} of {self.codes:,}",
            f"{self.wrong:,} of {self.results:,}",
        ]


def compare(
    index: int, seed: int, counts: dict[tuple[str, str], Count], rounding: str | None, in_c: bool
) -> str:
    """Draw a network and compare it; return a difference, or "" for none.

    Args:
        index: number of the network.
        seed: of all networks.
        counts: are added to.
        rounding: of powers of two, in place of a target that is drawn.
        in_c: whether C is compared too.
    """
    rng = random.Random(f"{seed}/{index}")
    network, target = Network(rng).eval(), drawn_target(rng)
    if rounding is not None:
        target = FixedPoint("shift", rounding, target.accumulator_bits)
    config, x = drawn_config(rng, target), network.example
    count = counts[target.requantization, target.rounding]
    count.networks += 1
    model = torch.jit.trace(network, x, check_trace=False)
    batches = [x, *(torch.randn_like(x) for _ in range(3))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jit_passes.JitPassesWarning)  # what stays in float
        prepared = jit_passes.prepare(model, target=target, config=config)
        jit_passes.calibrate(prepared, batches)
        reference = jit_passes.convert(prepared)
        lowered = jit_passes.lower(reference)
    said = []
    if network.exact and target.only_shift:
        try:
            found = jit_passes.conformance(reference, [x, batches[1]], ["fixed_point"])
        except JitPassesError:  # nothing is quantized
            found = None
        if found is not None:
            apart = sum(row.different for row in found.rows)
            count.apart += apart
            count.codes += sum(row.elements for row in found.rows)
            said += [str(found.divergences[0])] if apart else []
    if not in_c:
        return "; ".join(said)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            jit_passes.export_c(lowered, folder, x)
        except JitPassesError as error:
            count.refused += 1
            return "; ".join([*said, *_unexpected(str(error))])
        done = subprocess.run(
            [*GCC, "main.c", "model.c", "-o", "program"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return "; ".join([*said, done.stderr[:500]])
        done = subprocess.run(
            ["./program"], cwd=folder, capture_output=True, text=True, check=False
        )
    told = done.stdout.strip().splitlines()
    if not told or not told[-1].endswith("codes differ"):
        return "; ".join([*said, done.stderr[:500]])
    wrong, _, results, *_ = told[-1].split()
    count.wrong += int(wrong)
    count.results += int(results)
    return "; ".join([*said, *(told[:1] if int(wrong) else [])])


def _unexpected(error: str) -> list[str]:
    """Return an error of C that is no refusal of floats or of sums that overflow."""
    known = ("computed in float", "no codes", "which takes", "in float")
    return [] if any(text in error for text in known) else [error]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=200, help="networks")
    parser.add_argument("--start", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounding", choices=tuple(ROUNDINGS), help="with powers of two")
    parser.add_argument("--without-c", action="store_true", help="the reference model alone")
    given = parser.parse_args()
    counts: dict[tuple[str, str], Count] = defaultdict(Count)
    failed = 0
    for index in range(given.start, given.start + given.count):
        try:
            said = compare(index, given.seed, counts, given.rounding, not given.without_c)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        if said:
            failed += 1
            print(f"network {index}: {said}", file=sys.stderr, flush=True)
    rows = [[*key, *count.cells()] for key, count in sorted(counts.items())]
    header = ("requantization", "rounding", "networks", "refused", "reference", "C")
    print(report.table(header, rows))
    print(report.machine_facts())
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
