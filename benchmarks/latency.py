"""Latency, accuracy, size and time to quantize of every runtime on every model.

Usage, from the repository root::

    python -m benchmarks.latency --models resnet18 mobilenet_v2 --batch 1 8
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import report
from benchmarks.measure import alternate, ratios, spread, sqnr_db
from benchmarks.models import MODELS, ModelSpec
from benchmarks.models.whole import EVERY
from benchmarks.runtimes import RUNTIMES, Built, Runtime, Workload, first_line
from benchmarks.runtimes.base import THREADS, Predict, missing_requirement

_SECTION = "latency"
_STATIC = [name for name in RUNTIMES if "dynamic" not in name]
_MODULE = "benchmarks.latency"
_CALIBRATION_SEED, _CALIBRATION_BATCHES, _CALIBRATION_BATCH_SIZE = 2_000, 4, 8
_HELD_OUT_SEED, _HELD_OUT = 3_000, 8
TIMED_SEED = 4_000


@dataclass
class Outcome:
    """The result of one runtime for one model: a built model with its accuracy, or an error."""

    built: Built | None = None
    sqnr: float = 0.0
    error: str = ""
    samples: dict[int, list[float]] = field(default_factory=dict)
    """Seconds per call in every round, by batch size."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for and write the results file."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(words)
    torch.set_num_threads(THREADS)
    runtimes = available_runtimes(options.runtimes)
    sections = []
    for name in options.models:
        outcomes = _measure_model(EVERY[name], runtimes, options)
        for batch in options.batch:
            sections.append(_section(EVERY[name], batch, outcomes, options.baseline))
            print(sections[-1], end="\n\n", flush=True)
        # Written after every model: an interrupted run keeps what it has measured.
        report.write_section(options.output, _SECTION, _body(sections, words, options))


def available_runtimes(names: Sequence[str]) -> dict[str, Runtime]:
    """The runtimes of ``names`` that can run here; says which cannot, and why."""
    available = {}
    for name in names:
        reason = missing_requirement(RUNTIMES[name])
        if reason:
            report.progress(f"skipping {name}: {reason}")
        else:
            available[name] = RUNTIMES[name]
    return available


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=EVERY, default=list(MODELS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8], metavar="N")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=_STATIC)
    parser.add_argument("--baseline", choices=RUNTIMES, default="quantize_jit_x86")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=report.DEFAULT_OUTPUT)
    return parser.parse_args(words)


def _measure_model(
    spec: ModelSpec, runtimes: dict[str, Runtime], options: argparse.Namespace
) -> dict[str, Outcome]:
    """Build every runtime of one model, then time them against each other."""
    workload, held_out, expected = workload_of(spec)
    outcomes = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, runtime in runtimes.items():
            report.progress(f"{spec.title}: building {name}")
            outcomes[name] = _build(runtime, workload, Path(directory), held_out, expected)
        for batch in options.batch:
            report.progress(f"{spec.title}: timing batch {batch}")
            _time(outcomes, spec.inputs(batch, TIMED_SEED), options.rounds)
    return outcomes


def workload_of(spec: ModelSpec, count: int = _HELD_OUT) -> tuple[Workload, Tensor, Tensor]:
    """The model and the data for all quantizers; inputs that they have not seen, and outputs."""
    model = spec.build()
    with torch.no_grad():
        calibration = [
            spec.inputs(_CALIBRATION_BATCH_SIZE, _CALIBRATION_SEED + index)
            for index in range(_CALIBRATION_BATCHES)
        ]
        held_out = spec.inputs(count, _HELD_OUT_SEED)
        expected = model(held_out)
        return Workload(model, spec.form(model, held_out), calibration), held_out, expected


def _build(
    runtime: Runtime, workload: Workload, directory: Path, held_out: Tensor, expected: Tensor
) -> Outcome:
    """Quantize and check one runtime; a failure becomes a line of the table."""
    try:
        built = runtime.build(workload, directory)
        actual = built.specialize(held_out)(held_out).clone()
    except Exception as error:  # whatever a peer raises, the others are still measured
        return Outcome(error=first_line(error))
    return Outcome(built=built, sqnr=sqnr_db(expected, actual))


def _time(outcomes: dict[str, Outcome], example: Tensor, rounds: int) -> None:
    """Add samples of the batch size of ``example`` to every outcome that runs."""
    calls: dict[str, Callable[[], Tensor]] = {}
    for name, outcome in outcomes.items():
        if outcome.built is None:
            continue
        try:
            predict: Predict = outcome.built.specialize(example)
            predict(example)
        except Exception as error:
            outcome.error = first_line(error)
            continue
        calls[name] = partial(predict, example)
    for name, samples in alternate(calls, rounds).items():
        outcomes[name].samples[example.shape[0]] = samples


def _section(spec: ModelSpec, batch: int, outcomes: dict[str, Outcome], baseline: str) -> str:
    """The heading and the table of one model and batch size."""
    header = [
        "runtime",
        "median ms",
        "quartiles ms",
        f"speed relative to {baseline} (10-90 %)",
        "SQNR dB",
        "quantize s",
        "file MB",
    ]
    reference = outcomes[baseline].samples.get(batch) if baseline in outcomes else None
    rows = [_row(name, outcome, batch, reference) for name, outcome in outcomes.items()]
    return f"### {spec.title}, batch {batch}\n\n{report.table(header, rows)}"


def _row(name: str, outcome: Outcome, batch: int, reference: list[float] | None) -> list[str]:
    """One runtime's line of a table."""
    samples = outcome.samples.get(batch)
    if outcome.built is None or samples is None:
        return [name, outcome.error] + [report.MISSING] * 5
    latency = spread([1e3 * seconds for seconds in samples], 0.25)
    speed = report.MISSING
    if reference is not None:
        ratio = spread(ratios(reference, samples), 0.1)
        speed = f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
    is_float = name == "torch_float"
    return [
        name,
        f"{latency.median:.2f}",
        f"{latency.low:.2f}-{latency.high:.2f}",
        speed,
        report.MISSING if is_float else f"{outcome.sqnr:.1f}",
        report.MISSING if is_float else f"{outcome.built.seconds:.1f}",
        f"{outcome.built.file_bytes / 1e6:.1f}",
    ]


def _body(sections: list[str], words: Sequence[str], options: argparse.Namespace) -> str:
    """The whole latency section of the results file."""
    samples = _CALIBRATION_BATCHES * _CALIBRATION_BATCH_SIZE
    return "\n\n".join(
        [
            "## Latency and accuracy",
            f"{report.machine_facts()}\n- {options.rounds} alternating rounds; calibration on "
            f"{_CALIBRATION_BATCHES} batches of {_CALIBRATION_BATCH_SIZE} ({samples} samples); "
            f"SQNR against the float output on {_HELD_OUT} held-out samples",
            report.command(_MODULE, words),
            *sections,
        ]
    )


if __name__ == "__main__":
    main()
