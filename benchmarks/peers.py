"""The target x86, and files for other engines, beside their peers, each in a process of its own.

Threads that wait for work spin for a while, and slow other runtimes of the same process down. Here
each runtime loads its file in a process that does nothing while another one is timed. The first
call, which prepares for the sizes of its input, and the memory that it takes are measured there.

Usage, from the repository root::

    python -m benchmarks.peers --models resnet50 mobilenet_v2 --batch 1 8

Files that jit_passes writes for ONNX Runtime and OpenVINO, beside those of the engine's own
quantizer, have a section of their own::

    python -m benchmarks.peers --engines --models resnet18 encoder_32 --batch 1

Memory of a process lies well or badly for all its rounds: `--processes 3` starts each runtime three
times, with `--rounds` rounds each. `--rounds 0` times nothing. The gain is the mean of the
difference of two files' SQNRs on an input, over 64 of them, with its standard error. On MobileNetV2
that of 8 inputs was 0.55 dB.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks import report
from benchmarks.latency import TIMED_SEED, available_runtimes, workload_of
from benchmarks.measure import ratios, sample, spread, sqnr_db, warm_up
from benchmarks.models import MODELS
from benchmarks.models.whole import EVERY
from benchmarks.runtimes import OWN_QUANTIZER, RUNTIMES, Built, first_line
from benchmarks.runtimes.base import THREADS, Predict

_SECTION = "peers"
_MODULE = "benchmarks.peers"
_OURS = "jit_passes_target_x86"
_FLOAT = "torch_float"
_PEERS = [_OURS, "jit_passes", "onnxruntime", "openvino", "quantize_jit_x86"]
_ENGINES = [name for pair in OWN_QUANTIZER.items() for name in pair]
_BATCH = 8  # held-out inputs, by which the SQNR is measured
_INPUTS = 64  # of files for engines, whose gains are of a few tenths of a dB
_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Row:
    """Measurements of one runtime on one model and batch size."""

    error: str = ""
    sqnr: float = math.nan
    each: Sequence[float] = ()
    """The SQNR of each held-out input."""
    file_bytes: int = 0
    first_seconds: float = math.nan
    """To load, prepare and make the first call."""
    resident: float = math.nan
    """Megabytes after that, beyond those of a process that has imported PyTorch."""
    samples: list[float] = field(default_factory=list)


class Server:
    """A process that holds one runtime's model, and waits for orders."""

    def __init__(self, built: Built) -> None:
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, built), daemon=True)
        self._process.start()
        theirs.close()

    def prepare(self, example: Tensor) -> tuple[float, float]:
        """Load for inputs like the example and call once: seconds, and megabytes."""
        return tuple(self._ask("prepare", example.numpy()))

    def sample(self) -> float:
        """Seconds per call."""
        return float(self._ask("sample", None))

    def close(self) -> None:
        self._process.terminate()
        self._process.join()

    def _ask(self, order: str, argument: Any) -> Any:
        self._connection.send((order, argument))
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(connection: Connection, built: Built) -> None:
    torch.set_num_threads(THREADS)
    before = _resident_megabytes()
    predict: Predict | None = None
    example, estimate = torch.empty(0), 0.0
    while True:
        order, argument = connection.recv()
        try:
            if order == "prepare":
                example = torch.from_numpy(argument)
                start = perf_counter()
                predict = built.specialize(example)
                predict(example)
                connection.send((perf_counter() - start, _resident_megabytes() - before))
                estimate = 0.0
            else:
                assert predict is not None
                call = _Call(predict, example)
                estimate = estimate or warm_up(call)
                connection.send(sample(call, estimate))
        except Exception as error:  # whatever a peer raises, the others are still measured
            connection.send(RuntimeError(first_line(error)))


@dataclass
class _Call:
    predict: Predict
    example: Tensor

    def __call__(self) -> Tensor:
        return self.predict(self.example)


def _resident_megabytes() -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(kilobytes) / 1e3


def _build(
    connection: Connection, model: str, names: Sequence[str], folder: Path, inputs: int
) -> None:
    """Quantize by each runtime in turn, and send what it made, or an error, and results' SQNRs."""
    torch.set_num_threads(THREADS)
    workload, held_out, expected = workload_of(EVERY[model], inputs)
    batches = held_out.split(_BATCH)
    for name, runtime in available_runtimes(names).items():
        report.progress(f"{EVERY[model].title}: building {name}")
        try:
            built = runtime.build(workload, folder)
            predict = built.specialize(batches[0])
            found = torch.cat([predict(batch).clone() for batch in batches])
            each = [sqnr_db(*pair) for pair in zip(expected, found, strict=True)]
            connection.send((name, built, Row(sqnr=sqnr_db(expected, found), each=each)))
        except Exception as error:  # as above
            connection.send((name, None, Row(error=first_line(error))))
    connection.send(None)


Made = dict[str, tuple[Built | None, Row]]


def build_all(model: str, names: Sequence[str], folder: Path, inputs: int = _BATCH) -> Made:
    """For each runtime, what `Runtime.build` gave, None for an error, and a row without times."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_build, args=(theirs, model, names, folder, inputs))
    process.start()
    theirs.close()
    made: Made = {}
    with contextlib.suppress(EOFError):  # a peer that ends its process ends the list
        while (found := ours.recv()) is not None:
            made[found[0]] = found[1:]
    process.join()
    return made


def measure(
    model: str,
    batches: Sequence[int],
    names: Sequence[str],
    rounds: int,
    processes: int,
    inputs: int,
) -> Iterator[tuple[int, dict[str, Row]]]:  # fmt: skip
    """Each batch size, and the rows of one model."""
    with tempfile.TemporaryDirectory() as folder:
        made = build_all(model, names, Path(folder), inputs)
        for batch in batches:
            report.progress(f"{EVERY[model].title}: timing batch {batch}")
            yield batch, _time(made, EVERY[model].inputs(batch, TIMED_SEED), rounds, processes)


def _time(made: Made, example: Tensor, rounds: int, processes: int) -> dict[str, Row]:
    rows = {}
    for name, (built, measured) in made.items():
        rows[name] = row = replace(measured, samples=[])
        row.file_bytes = built.file_bytes if built else 0
    for _ in range(processes if rounds else 0):
        _time_once(made, rows, example, rounds)
    return rows


def _time_once(made: Made, rows: dict[str, Row], example: Tensor, rounds: int) -> None:
    """Add samples of new processes."""
    servers = {}
    for name, (built, _) in made.items():
        row = rows[name]
        if built is None or row.error:
            continue
        servers[name] = Server(built)
        try:
            row.first_seconds, row.resident = servers[name].prepare(example)
            servers[name].sample()
        except (RuntimeError, EOFError) as error:
            row.error = first_line(error)
            servers.pop(name).close()
    order = list(servers)
    for index in range(rounds):
        shift = index % max(len(order), 1)
        for name in order[shift:] + order[:shift]:
            rows[name].samples.append(servers[name].sample())
    for server in servers.values():
        server.close()


def _table(title: str, rows: dict[str, Row]) -> str:
    header = ["runtime", "median ms", "quartiles ms", "SQNR dB", "first call ms", "MB", "file MB"]
    lines = []
    for name, row in rows.items():
        if row.error:
            lines.append([name, row.error] + [report.MISSING] * 5)
            continue
        time = spread([1e3 * seconds for seconds in row.samples], 0.25)
        lines.append(
            [
                name,
                f"{time.median:.2f}",
                f"{time.low:.2f}-{time.high:.2f}",
                f"{row.sqnr:.1f}",
                f"{1e3 * row.first_seconds:.0f}",
                f"{row.resident:.0f}",
                f"{row.file_bytes / 1e6:.1f}",
            ]
        )
    return f"### {title}\n\n{report.table(header, lines)}\n\n{_verdict(rows)}"


_BESIDE = ["model", "batch", "engine", "SQNR dB", "its own dB", "gain", "ms", "to its own", ""]


def _beside(title: str, batch: int, rows: dict[str, Row]) -> list[list[str]]:
    """For each engine the file of jit_passes beside that of the engine's own quantizer."""
    lines = []
    for name, peer in OWN_QUANTIZER.items():
        if name not in rows or peer not in rows:
            continue
        ours, theirs = rows[name], rows[peer]
        line = [title, str(batch), peer]
        if ours.error or theirs.error:
            failed = f"{name}: {ours.error}" if ours.error else f"{peer}: {theirs.error}"
            lines.append([*line, failed] + [report.MISSING] * 5)
            continue
        line += [f"{ours.sqnr:.1f}", f"{theirs.sqnr:.1f}", _gain(ours.each, theirs.each)]
        if ours.samples:
            time = spread(ours.samples, 0.25)
            quotient = spread(ratios(ours.samples, theirs.samples), 0.1)
            line += [f"{1e3 * time.median:.2f}", f"{quotient.median:.2f}"]
            line.append(f"{quotient.low:.2f} to {quotient.high:.2f}")
        else:
            line += [report.MISSING] * 3
        lines.append(line)
    return lines


def _gain(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The mean difference of the SQNRs of an input, and its standard error."""
    gains = torch.tensor(ours, dtype=torch.float64) - torch.tensor(theirs, dtype=torch.float64)
    return f"{gains.mean():+.1f} ± {gains.std() / math.sqrt(len(gains)):.1f}"


def _verdict(rows: dict[str, Row]) -> str:
    """How often the best peer's time is that of x86, in whatever mode it is measured."""
    name = next((n for n, r in rows.items() if n.startswith(_OURS) and not r.error), None)
    own = ("jit_passes", _FLOAT)
    peers = {n: r for n, r in rows.items() if not n.startswith(own) and not r.error}
    if name is None or not peers:
        return "Nothing to compare."
    ours = rows[name]
    best = min(peers, key=lambda name: spread(peers[name].samples, 0.25).median)
    quotient = spread(ratios(peers[best].samples, ours.samples), 0.1)
    # A virtual machine's cores are one core of the host at times, and then all take longer.
    quiet = {name: spread(row.samples, 0.25).low for name, row in peers.items()}
    fastest = min(quiet, key=quiet.__getitem__)
    undisturbed = quiet[fastest] / spread(ours.samples, 0.25).low
    return (
        f"The time of the best peer, {best}, over that of {name}: {quotient.median:.2f} "
        f"({quotient.low:.2f} to {quotient.high:.2f} in 80 % of the rounds). By the lower "
        f"quartiles, with {fastest} as the best peer: {undisturbed:.2f}."
    )


@contextlib.contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Keep one core busy with something else."""
    process = _SPAWN.Process(target=_spin, daemon=True)
    if wanted:
        process.start()
    try:
        yield
    finally:
        if wanted:
            process.terminate()


def _spin() -> None:
    while True:
        pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for and write the results file."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=EVERY, default=list(MODELS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8], metavar="N")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES)
    parser.add_argument("--engines", action="store_true", help="files for engines of others")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--processes", type=int, default=1, help="of each runtime, in turn")
    parser.add_argument("--busy", action="store_true", help="keep one core busy meanwhile")
    parser.add_argument("--output", type=Path, default=report.DEFAULT_OUTPUT)
    options = parser.parse_args(words)
    if options.rounds < 1 and not options.engines:
        parser.error("tables of times need --rounds of 1 or more")
    torch.set_num_threads(THREADS)
    section, title = (
        ("engines", "Files for engines beside those of their own quantizers")
        if options.engines
        else (_SECTION, "The target x86 beside its peers")
    )
    body = [
        f"## {title}{', one core busy' if options.busy else ''}",
        f"{report.machine_facts()}\n- {options.rounds} rounds, each runtime in a process of its "
        f"own, the others idle; {options.processes} times",
        report.command(_MODULE, words),
    ]
    names = options.runtimes or (_ENGINES if options.engines else _PEERS)
    tables: list[str] = []
    lines: list[list[str]] = []
    with busy(options.busy):
        for model in options.models:
            inputs = _INPUTS if options.engines else _BATCH
            how = (options.rounds, options.processes, inputs)
            for batch, rows in measure(model, options.batch, names, *how):
                if options.engines:
                    lines += _beside(EVERY[model].title, batch, rows)
                    tables = [report.table(_BESIDE, lines)]
                else:
                    tables.append(_table(f"{EVERY[model].title}, batch {batch}", rows))
                print(tables[-1], end="\n\n", flush=True)
            # Written after every model: an interrupted run keeps what it has measured.
            place = f"{section}_busy" if options.busy else section
            report.write_section(options.output, place, "\n\n".join([*body, *tables]))


if __name__ == "__main__":
    main()
