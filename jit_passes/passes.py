"""Registered passes, and pipelines of them.

A pass is a C++ function over the graph of one method, registered with a name, a summary and the
invariants it requires and ensures. A `Pipeline` is data: a tuple of names. The runner works on a
module of its own, lints after every pass that changed something, checks invariants, and hands the
result out only when all has gone well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _C
from .errors import JitPassesError, PassError


@dataclass(frozen=True)
class PassInfo:
    """What the registry knows of a pass."""

    name: str
    summary: str
    requires: tuple[str, ...]
    ensures: tuple[str, ...]


class PassRegistry(Mapping[str, PassInfo]):
    """All registered passes by name; printing it gives a table.

    A pass of another package appears as soon as that package has been imported.
    """

    def __getitem__(self, name: str) -> PassInfo:
        summary, requires, ensures = _C.passes()[name]
        return PassInfo(name, summary, tuple(requires), tuple(ensures))

    def __iter__(self) -> Iterator[str]:
        return iter(_C.passes())

    def __len__(self) -> int:
        return len(_C.passes())

    def __str__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:<{width}}  {info.summary}" for name, info in self.items())


passes = PassRegistry()


@dataclass(frozen=True)
class PassRecord:
    """One run of a pass.

    Attributes:
        name: the pass.
        changed: whether it reports a change.
        seconds: wall time, without lint and dump.
        nodes: number of nodes of the graph afterwards, nested blocks not counted.
    """

    name: str
    changed: bool
    seconds: float
    nodes: int


@dataclass(frozen=True)
class Pipeline:
    """Passes in order.

    Attributes:
        name: for messages and dumps.
        passes: names from the registry; a name may appear several times.
    """

    name: str
    passes: tuple[str, ...]

    def run(
        self,
        module: Any,
        method: str = "forward",
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        dump: str | os.PathLike[str] | None = None,
    ) -> PipelineResult:
        """Run the passes on a C++ module that no one else holds.

        Args:
            module: `torch._C.ScriptModule`; its graph is edited, so pass a clone of what must stay.
            method: the method whose graph the passes work on.
            options: for each pass that has some, its options.
            dump: a folder for the IR before the first and after every pass; also settable with
                the environment variable `JIT_PASSES_DUMP`.

        Raises:
            PassError: a pass raised, broke an invariant or left an invalid graph.
        """
        unknown = [name for name in self.passes if name not in passes]
        if unknown:
            raise JitPassesError(
                f"pipeline '{self.name}' names the pass '{unknown[0]}', which is not registered; "
                f"registered are: {', '.join(passes)}"
            )
        run = _Run(self, module, method, _Dump(self.name, dump))
        for name in self.passes:
            run.step(name, dict((options or {}).get(name, {})))
        return PipelineResult(run.module, tuple(run.records))


@dataclass(frozen=True)
class PipelineResult:
    """The module that came out, and what each pass did."""

    module: Any
    records: tuple[PassRecord, ...]

    def __str__(self) -> str:
        return "\n".join(
            f"{r.name:<28} {r.seconds * 1e3:9.2f} ms {r.nodes:7d} nodes"
            f"{'' if r.changed else '  (no change)'}"
            for r in self.records
        )


@dataclass
class _Dump:
    """Writes numbered IR files, or nothing when no folder was asked for."""

    pipeline: str
    folder: str | os.PathLike[str] | None
    count: int = 0

    def write(self, label: str, graph: Callable[[], Any]) -> None:
        folder = self.folder or os.environ.get("JIT_PASSES_DUMP")
        if folder:
            path = Path(folder)
            path.mkdir(parents=True, exist_ok=True)
            (path / f"{self.pipeline}.{self.count:02d}.{label}.ir").write_text(str(graph()))
            self.count += 1


@dataclass
class _Run:
    """One run of a pipeline: the module as it is by now."""

    pipeline: Pipeline
    module: Any
    method: str
    dump: _Dump
    records: list[PassRecord] = field(default_factory=list)

    def step(self, name: str, options: dict[str, Any]) -> None:
        info = passes[name]
        if not self.records:
            self.dump.write("before", self.graph)
        try:
            self.check(info.requires, "requires")
            start = time.perf_counter()
            self.module, changed = _C.run_pass(name, self.module, self.method, options)
            seconds = time.perf_counter() - start
            if changed:
                _C.lint(self.module, self.method)
            self.check(info.ensures, "ensures")
        except Exception as error:
            done = tuple(record.name for record in self.records)
            raise PassError(
                f"pass '{name}' of pipeline '{self.pipeline.name}' failed "
                f"(before it: {', '.join(done) or 'none'}): {first_line(error)}",
                name,
                done,
            ) from error
        nodes = _C.count_nodes(self.module, self.method)
        self.records.append(PassRecord(name, changed, seconds, nodes))
        self.dump.write(name, self.graph)

    def graph(self) -> Any:
        return self.module._get_method(self.method).graph

    def check(self, invariants: tuple[str, ...], verb: str) -> None:
        for invariant in invariants:
            problem = _C.check_invariant(invariant, self.module, self.method)
            if problem:
                raise JitPassesError(f"it {verb} '{invariant}', which does not hold: {problem}")


def first_line(error: BaseException) -> str:
    """Return the message without the C++ backtrace that PyTorch appends."""
    text = str(error).strip()
    for marker in ("\nException raised from", "\nC++ CapturedTraceback"):
        text = text.split(marker)[0]
    return text or type(error).__name__
