"""Time to quantize, calibration overhead, and how both grow with the graph.

Usage, from the repository root::

    python -m benchmarks.quantize_time [--skip-slow]
"""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import report
from benchmarks.inputs import chain_input, images
from benchmarks.measure import alternate, alternate_once, ratios, spread
from benchmarks.models import MODELS, conv_relu_chain
from benchmarks.runtimes import RUNTIMES
from benchmarks.runtimes.base import THREADS, missing_requirement
from benchmarks.runtimes.jit_passes import import_jit_passes, quantize_with_jit_passes
from benchmarks.runtimes.quantize_jit import (
    prepare_with_quantize_jit,
    quantize_with_quantize_jit,
)

_SECTION = "quantize-time"
_MODULE = "benchmarks.quantize_time"
_ENGINE = "x86"
_OURS, _PEER = "jit_passes", "quantize_jit"
_NODE_TARGETS = (2_500, 5_000, 10_000, 20_000)


@dataclass(frozen=True)
class Case:
    """One model whose time to quantize is compared."""

    title: str
    build: Callable[[], nn.Module]
    batch: Tensor
    slow: bool = False
    """The peer takes about a minute: it runs once, and not at all with --skip-slow."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the three measurements and write the results file."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(words)
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    reason = missing_requirement(RUNTIMES[_OURS])
    if reason:
        report.progress(f"skipping {_OURS}: {reason}")
    ours = reason is None
    measurements = [
        partial(_comparison, ours, options),
        partial(_calibration_overhead, ours, options.rounds),
    ]
    if ours:
        measurements.append(partial(_linearity, options))
    parts = ["## Time to quantize", report.machine_facts(), report.command(_MODULE, words)]
    for measure in measurements:
        parts.append(measure())
        print(parts[-1], end="\n\n", flush=True)
        # Written after every part: an interrupted run keeps what it has measured.
        report.write_section(options.output, _SECTION, "\n\n".join(parts))


def count_nodes(scripted: torch.jit.ScriptModule) -> int:
    """The number of nodes of the inlined graph of ``forward``, nested blocks included."""
    return _nodes_of(scripted.inlined_graph)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of each time to quantize")
    parser.add_argument("--rounds", type=int, default=20, help="of the calibration overhead")
    parser.add_argument("--skip-slow", action="store_true", help="leave out the longest cases")
    parser.add_argument("--output", type=Path, default=report.DEFAULT_OUTPUT)
    return parser.parse_args(words)


def _cases() -> list[Case]:
    return [
        Case("conv+relu chain, 100", partial(conv_relu_chain, 100), chain_input(1, 0)),
        Case("conv+relu chain, 400", partial(conv_relu_chain, 400), chain_input(1, 0), slow=True),
        Case("DenseNet-121", MODELS["densenet121"].build, images(1, 0)),
        Case("ResNet-50", MODELS["resnet50"].build, images(1, 0)),
    ]


def _comparison(ours: bool, options: argparse.Namespace) -> str:
    """Prepare, calibrate on one batch of one, convert and lower: against quantize_jit."""
    header = ["model", "graph nodes", f"{_OURS} s", f"{_PEER} s", "speed-up (10-90 %)", "repeats"]
    rows = []
    for case in _cases():
        if case.slow and options.skip_slow:
            continue
        report.progress(f"time to quantize: {case.title}")
        # The peer runs first, so that where it runs once ours is paired with that same round.
        scripted = torch.jit.script(case.build().eval())
        peer_repeats = 1 if case.slow else options.repeats
        calls, repeats = {_PEER: partial(_peer, scripted, case.batch)}, {_PEER: peer_repeats}
        if ours:
            calls[_OURS] = partial(_ours, scripted, case.batch)
            repeats[_OURS] = options.repeats
        samples = alternate_once(calls, repeats)
        rows.append(_comparison_row(case.title, count_nodes(scripted), samples))
    note = f"Engine {_ENGINE}, one calibration batch of 1; scripting is not part of it."
    return f"### Against {_PEER}\n\n{note}\n\n{report.table(header, rows)}"


def _comparison_row(title: str, nodes: int, samples: dict[str, list[float]]) -> list[str]:
    """One line of the comparison; the ratio is over rounds in which both ran."""
    peer, ours = samples[_PEER], samples.get(_OURS)
    row = [title, f"{nodes:,}", _median(ours), _median(peer)]
    if ours is None:
        return [*row, report.MISSING, str(len(peer))]
    pairs = min(len(peer), len(ours))
    ratio = spread(ratios(peer[:pairs], ours[:pairs]), 0.1)
    speed = f"{ratio.median:.1f}x ({ratio.low:.1f}-{ratio.high:.1f})"
    return [*row, speed, f"{len(ours)} / {len(peer)}"]


def _calibration_overhead(ours: bool, rounds: int) -> str:
    """A calibration batch of eight on ResNet-50, relative to a float forward of it."""
    report.progress("calibration overhead")
    batch = images(8, 0)
    scripted = torch.jit.script(MODELS["resnet50"].build())
    prepared = prepare_with_quantize_jit(scripted, _ENGINE)
    forward = "float forward (scripted)"
    calls: dict[str, Callable[[], object]] = {
        forward: partial(_forward, scripted, batch),
        "float forward (frozen, BatchNorm folded)": partial(
            _forward, torch.jit.freeze(scripted), batch
        ),
        f"{_PEER} observed forward": partial(_forward, prepared, batch),
    }
    if ours:
        calls[f"{_OURS}.calibrate"] = _calibrate(scripted, batch)
    samples = alternate(calls, rounds)
    header = ["one batch of 8, ResNet-50", "median ms", "relative to the scripted float forward"]
    rows = []
    for name, values in samples.items():
        ratio = spread(ratios(values, samples[forward]), 0.1)
        milliseconds = 1e3 * spread(values, 0.1).median
        cell = f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
        rows.append([name, f"{milliseconds:.1f}", cell])
    note = f"{rounds} alternating rounds after warming up; ratio with its 10-90 % spread."
    return f"### Calibration overhead\n\n{note}\n\n{report.table(header, rows)}"


def _linearity(options: argparse.Namespace) -> str:
    """Our time to quantize chains of growing length; constant time per node is linear."""
    header = ["chain length", "graph nodes", f"{_OURS} s", "microseconds per node"]
    base, per_pair = _nodes_per_pair()
    targets = _NODE_TARGETS[:-1] if options.skip_slow else _NODE_TARGETS
    rows = []
    for target in targets:
        length = round((target - base) / per_pair)
        report.progress(f"linearity: chain of {length}")
        scripted = torch.jit.script(conv_relu_chain(length).eval())
        call = partial(_ours, scripted, chain_input(1, 0))
        seconds = alternate_once({_OURS: call}, {_OURS: options.repeats})[_OURS]
        median, nodes = spread(seconds, 0.1).median, count_nodes(scripted)
        rows.append([f"{length:,}", f"{nodes:,}", f"{median:.2f}", f"{1e6 * median / nodes:.0f}"])
    note = f"Medians of {options.repeats}; conv+relu chains on one 4x4 input, prepare to lower."
    return f"### Growth with the graph\n\n{note}\n\n{report.table(header, rows)}"


def _nodes_per_pair() -> tuple[int, int]:
    """Nodes of an empty chain, and nodes that each further pair adds."""
    shorter, longer = (count_nodes(torch.jit.script(conv_relu_chain(n).eval())) for n in (1, 2))
    return 2 * shorter - longer, longer - shorter


def _nodes_of(block: Any) -> int:
    """The nodes of a graph or block and of all blocks nested in them."""
    return sum(1 + sum(_nodes_of(inner) for inner in node.blocks()) for node in block.nodes())


def _ours(scripted: torch.jit.ScriptModule, batch: Tensor) -> object:
    return quantize_with_jit_passes(scripted, [batch], _ENGINE)


def _peer(scripted: torch.jit.ScriptModule, batch: Tensor) -> object:
    return quantize_with_quantize_jit(scripted, [batch], _ENGINE)


def _forward(module: torch.jit.ScriptModule, batch: Tensor) -> Tensor:
    with torch.no_grad():
        return module(batch)


def _calibrate(scripted: torch.jit.ScriptModule, batch: Tensor) -> Callable[[], object]:
    """A call that calibrates one prepared module on ``batch`` once more."""
    jit_passes = import_jit_passes()
    prepared = jit_passes.prepare(scripted, target=jit_passes.targets.Stock(engine=_ENGINE))
    data: Iterable[Tensor] = [batch]
    return partial(jit_passes.calibrate, prepared, data, progress=False)


def _median(values: list[float] | None) -> str:
    return report.MISSING if values is None else f"{spread(values, 0.1).median:.2f}"


if __name__ == "__main__":
    main()
