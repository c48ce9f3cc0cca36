"""Registered passes, and pipelines of them.

A pass is a function over the graph of one method, in C++ or in Python, registered with a name, a
summary and the invariants it requires and ensures. A `Pipeline` is data: a tuple of names. The
runner works on a module of its own, lints after every pass that changed something, checks
invariants, and hands the result out only when all has gone well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from .. import _C
from ..errors import JitPassesError, PassError, first_line
from ..graph.diff import diff_text
from ..graph.verify import Inputs, assert_equivalent
from ..graph.view import GraphEditor

# Whether this package itself is at work: a pass, or the compilation of a rule's pattern.
_OWN_WORK: ContextVar[bool] = ContextVar("jit_passes_own_work", default=False)


def is_own_work() -> bool:
    """Return whether what is compiled now belongs to a pass or a rule, not to the user."""
    return _OWN_WORK.get()


@contextmanager
def own_work() -> Iterator[None]:
    """Keep scheduled passes away from what is compiled inside."""
    token = _OWN_WORK.set(True)
    try:
        yield
    finally:
        _OWN_WORK.reset(token)


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
        rows = _C.passes()
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {info[0]}" for name, info in rows.items())

    def remove(self, name: str) -> None:
        """Take a pass out of the registry.

        Raises:
            KeyError: there is none of that name.
        """
        if not _C.remove_pass(name):
            raise KeyError(name)


passes = PassRegistry()
PassFunction = TypeVar("PassFunction", bound=Callable[..., bool | None])


def register_pass(
    name: str,
    *,
    summary: str,
    requires: Sequence[str] = ("inlined",),
    ensures: Sequence[str] = (),
    replace: bool = False,
) -> Callable[[PassFunction], PassFunction]:
    """Register a Python function as a pass; it then is one like those in C++.

    The function gets a `GraphEditor`, and the pass's options as keyword arguments. It returns
    whether it changed something; None stands for what the editor knows.

        @register_pass("relu_to_gelu", summary="Turn relu into gelu.")
        def relu_to_gelu(graph: GraphEditor) -> None:
            for node in graph.nodes:
                if node.kind == "aten::relu":
                    gelu = graph.insert("aten::gelu", [node.inputs[0], "none"], before=node)
                    graph.replace(node.output, gelu.output)
                    graph.remove(node)

    Args:
        name: unique; `verb_object` is the convention.
        summary: one line for the table.
        requires: invariants that must hold before it runs.
        ensures: invariants that the runner checks afterwards.
        replace: take the place of a pass of that name, in a notebook say.

    Raises:
        JitPassesError: the name is taken, or name or summary are empty.
    """

    def register(function: PassFunction) -> PassFunction:
        def run(editor: Any, options: dict[str, Any]) -> bool:
            graph = GraphEditor(editor)
            changed = function(graph, **options)
            if not isinstance(changed, bool | None):
                raise JitPassesError(
                    "a pass returns whether it changed something, True, False or None, "
                    f"not {changed!r}"
                )
            return graph.changed if changed is None else changed

        if replace and summary:
            _C.remove_pass(name)
        try:
            _C.register_pass(name, summary, run, list(requires), list(ensures))
        except RuntimeError as error:
            hint = "; replace=True takes its place" if "already" in str(error) else ""
            raise JitPassesError(first_line(error) + hint) from error
        return function

    return register


class Subject(Protocol):
    """What a pipeline works on."""

    def run(self, name: str, options: dict[str, Any]) -> bool: ...
    def check(self, invariant: str) -> str | None: ...
    def lint(self) -> None: ...
    def count(self) -> int: ...
    def graph(self) -> Any: ...
    def text(self) -> str: ...


@dataclass
class ModuleSubject:
    """A method of a C++ module that no one else holds."""

    module: Any
    method: str

    def run(self, name: str, options: dict[str, Any]) -> bool:
        self.module, changed = _C.run_pass(name, self.module, self.method, options)
        return changed

    def check(self, invariant: str) -> str | None:
        return _C.check_invariant(invariant, self.module, self.method)

    def lint(self) -> None:
        _C.lint(self.module, self.method)

    def count(self) -> int:
        return _C.count_nodes(self.module, self.method)

    def graph(self) -> Any:
        return self.module._get_method(self.method).graph

    def text(self) -> str:
        return _C.format_graph(self.module, self.method)


@dataclass
class GraphSubject:
    """A graph without a module: a scripted function's, or one that the executor works on."""

    bare: Any

    def run(self, name: str, options: dict[str, Any]) -> bool:
        return _C.run_pass_on_graph(name, self.bare, options)

    def check(self, invariant: str) -> str | None:
        return _C.check_invariant_on_graph(invariant, self.bare)

    def lint(self) -> None:
        _C.lint_graph(self.bare)

    def count(self) -> int:
        return _C.count_nodes_of_graph(self.bare)

    def graph(self) -> Any:
        return self.bare

    def text(self) -> str:
        return _C.format_bare_graph(self.bare)


@dataclass(frozen=True)
class PassRecord:
    """One run of a pass.

    Attributes:
        name: the pass.
        changed: whether it reports a change.
        seconds: wall time, without lint and dump.
        nodes: number of nodes of the graph afterwards, nested blocks included.
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
        inplace: bool = False,
        verify: Inputs | None = None,
    ) -> PipelineResult:
        """Run the passes.

        Args:
            module: a ScriptModule, in training or eval mode: it stays as it is, and the result is a
                new one. Or a C++ module, `torch._C.ScriptModule`, that no one else holds: its graph
                is edited.
            method: the method whose graph the passes work on.
            options: for each pass that has some, its options.
            dump: a folder for the IR before the first and after every pass; also settable with
                the environment variable `JIT_PASSES_DUMP`.
            inplace: for a ScriptModule, make this very object the result, once all has gone well.
            verify: example inputs, a tuple or dict of arguments: compares outputs and gradients of
                the result with those of the module, and raises an error where they differ.

        Raises:
            PassError: a pass raised, broke an invariant or left an invalid graph, or the result
                computes something else than the module. The module is as it was.
        """
        self.check_names()
        if isinstance(module, torch.nn.Module):
            check_scripted(module)
        if not isinstance(module, torch.jit.ScriptModule):
            subject = ModuleSubject(module, method)
            records = self.run_on(subject, options=options, dump=dump)
            return PipelineResult(subject.module, tuple(records))
        subject = own(module, method)
        before = subject.text()
        records = self.run_on(subject, options=options, dump=dump)
        result = wrap(subject.module)
        done = tuple(record.name for record in records)
        if verify is not None:
            try:
                assert_equivalent(module, result, verify, method=method)
            except AssertionError as error:
                raise PassError(
                    f"pipeline '{self.name}' changed what the module computes: {error}",
                    done[-1] if done else "",
                    done,
                ) from error
        if inplace:
            module._reconstruct(subject.module)
            result = module
        return PipelineResult(result, tuple(records), before, subject.text())

    def run_on(
        self,
        subject: Subject,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        dump: str | os.PathLike[str] | None = None,
    ) -> list[PassRecord]:
        """Run the passes on a module or graph that no one else holds."""
        self.check_names()
        run = _Run(self, subject, _Dump(self.name, dump))
        for name in self.passes:
            run.step(name, dict((options or {}).get(name, {})))
        return run.records

    def check_names(self) -> None:
        """Raise a JitPassesError if a pass is not registered."""
        unknown = [name for name in self.passes if name not in passes]
        if unknown:
            raise JitPassesError(
                f"pipeline '{self.name}' names the pass '{unknown[0]}', which is not registered; "
                f"registered are: {', '.join(passes)}"
            )


# What is decided when a module is compiled: branches on constants, lists of numbers. Nothing that
# depends on training mode or on weights.
RESOLVE = Pipeline(
    "resolve", ("propagate_constants", "fold_constant_lists", "remove_dead_code", "pool_constants")
)


def check_scripted(module: Any) -> None:
    """Raise a JitPassesError if it is not a ScriptModule."""
    if not isinstance(module, torch.jit.ScriptModule):
        raise JitPassesError(
            f"a ScriptModule is needed, got {type(module).__name__}: script a torch.nn.Module with "
            "torch.jit.script, trace it with torch.jit.trace, or load a file with torch.jit.load"
        )


def own(module: torch.jit.ScriptModule, method: str) -> ModuleSubject:
    """Return a copy of the module for passes to work on.

    All methods are inlined, and what the compiler left undecided about the method's constants is
    resolved. Parameters and buffers are the original's tensors, under the same names.

    Raises:
        JitPassesError: it is no ScriptModule, it has no such method, or hooks of its own, which
            would be lost.
    """
    check_scripted(module)
    if not module._c._has_method(method):
        names = ", ".join(sorted(module._c._method_names()))
        raise JitPassesError(
            f"the module has no method '{method}', only: {names or 'none'}; export others with "
            "@torch.jit.export before scripting"
        )
    if module._c._get_forward_hooks() or module._c._get_forward_pre_hooks():
        raise JitPassesError(
            "the module has forward hooks of its own, which run around forward and would be lost: "
            "script a module whose forward calls this one; hooks of submodules are kept"
        )
    subject = ModuleSubject(_C.clone(module._c), method)
    RESOLVE.run_on(subject)
    return subject


def run_pass(
    name: str,
    module: torch.jit.ScriptModule,
    method: str = "forward",
    *,
    options: Mapping[str, Any] | None = None,
    inplace: bool = False,
    verify: Inputs | None = None,
) -> torch.jit.ScriptModule:
    """Run one pass ahead of autograd: what it does changes forward and backward.

    Args:
        name: from the registry, `jit_passes.passes`.
        module: scripted, traced or loaded. It is not touched unless `inplace`.
        method: the method whose graph the pass works on.
        options: the pass's options.
        inplace: make this very object the result.
        verify: example inputs, a tuple or dict of arguments, with which outputs and gradients
            before and after are compared.

    Returns:
        A module whose parameters and buffers are the original's, with the same names and order.
        Calls of submodules are part of its methods: the submodules hold attributes only.

    Raises:
        PassError: the pass raised, or left a graph that is not valid, or computes something else.
        JitPassesError: there is no such pass or method.
    """
    given = {name: dict(options or {})}
    result = Pipeline(name, (name,)).run(
        module, method, options=given, inplace=inplace, verify=verify
    )
    changed: torch.jit.ScriptModule = result.module
    return changed


def wrap(module: Any) -> torch.jit.ScriptModule:
    """Return the Python module of a C++ module."""
    wrapped: torch.jit.ScriptModule = torch.jit._recursive.wrap_cpp_module(module)  # type: ignore[no-untyped-call]
    return wrapped


@dataclass(frozen=True)
class PipelineResult:
    """The module that came out, and what each pass did.

    Attributes:
        module: a ScriptModule if one went in, else a C++ module.
        records: one for each run of a pass.
        before: the graph that went in, and
        after: the one that came out, as text; "" for C++ modules.
    """

    module: Any
    records: tuple[PassRecord, ...]
    before: str = ""
    after: str = ""

    def diff(self, color: bool | None = None) -> str:
        """Return the lines of the graph that changed; `color=None`: in color on a terminal."""
        return diff_text(self.before, self.after, color)

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
    subject: Subject
    dump: _Dump
    records: list[PassRecord] = field(default_factory=list)

    def step(self, name: str, options: dict[str, Any]) -> None:
        info = passes[name]
        if not self.records:
            self.dump.write("before", self.subject.graph)
        try:
            self.check(info.requires, "requires")
            start = time.perf_counter()
            changed = self.subject.run(name, options)
            seconds = time.perf_counter() - start
            if changed:
                self.subject.lint()
            self.check(info.ensures, "ensures")
        except Exception as error:
            done = tuple(record.name for record in self.records)
            raise PassError(
                f"pass '{name}' of pipeline '{self.pipeline.name}' failed "
                f"(before it: {', '.join(done) or 'none'}): {first_line(error)}",
                name,
                done,
            ) from error
        self.records.append(PassRecord(name, changed, seconds, self.subject.count()))
        self.dump.write(name, self.subject.graph)

    def check(self, invariants: tuple[str, ...], verb: str) -> None:
        for invariant in invariants:
            problem = self.subject.check(invariant)
            if problem:
                raise JitPassesError(f"it {verb} '{invariant}', which does not hold: {problem}")
