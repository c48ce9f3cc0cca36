"""Pipelines: steps in order, as data, and their runner.

The runner checks names, options and their types before anything runs. The runner works on a module
of its own, lints after every step that changed something, and checks invariants. The result comes
out only when all has gone well.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError, PassError, first_line, nearest
from ..files import writing
from ..graph.diff import diff_text
from ..graph.verify import Inputs, assert_equivalent
from ..logs import LOGGER
from .registry import invariants
from .steps import BoundStep, PassCall, Step, bind, describe, name_of
from .subject import ModuleSubject, Remark, Subject, check_script, wrap

Options = Mapping[str, Mapping[str, Any]]
Through = Callable[[Sequence[BoundStep]], Iterable[BoundStep]]  # gives all of them, in order


@dataclass(frozen=True)
class PassRecord:
    """A run of a step.

    Attributes:
        name: of the pass, rule set or function.
        changed: whether it reports a change.
        seconds: wall time, without lint and dump.
        nodes: number of nodes of the graph afterwards, nested blocks included.
        remarks: which nodes it left alone, and why.
    """

    name: str
    changed: bool
    seconds: float
    nodes: int
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """Steps in order; printing it gives a table.

    Attributes:
        name: for messages and dumps.
        steps: each the name of a pass, a `PassCall`, a `RuleSet` or `RewriteRule`, or a function
            that takes a `GraphEditor`. A step may appear several times; a pass without options that
            found nothing to do is left out until something has changed.
        ensures: invariants that hold once all steps are done; the runner checks them.
    """

    name: str
    steps: tuple[Step, ...]
    ensures: tuple[str, ...] = ()

    def run(
        self,
        module: Any,
        method: str = "forward",
        *,
        options: Options | None = None,
        dump: str | os.PathLike[str] | None = None,
        inplace: bool = False,
        verify: Inputs | None = None,
        through: Through = iter,
    ) -> PipelineResult:
        """Run the steps.

        Args:
            module: a ScriptModule, in training or eval mode: it stays as it is, and the result is a
                new one. Or a C++ module, `torch._C.ScriptModule`, that no one else holds: its graph
                is edited.
            method: the method whose graph the steps work on.
            options: by step, its options by name; they win over the options of a `PassCall`.
            dump: a folder for the IR before the first and after every step; also settable with
                the environment variable `JIT_PASSES_DUMP`.
            inplace: for a ScriptModule, make this very object the result, once all has gone well.
            verify: example inputs, a tuple or dict of arguments: compares outputs and gradients of
                the result and of the module, and raises an error where they differ.
            through: a walk through the steps, such as a progress bar's.

        Raises:
            JitPassesError: a pass, option or method is unknown, or an option has another type.
            PassError: a step raised, broke an invariant or left an invalid graph, or the result
                computes something else than the module. The module is as it was.
        """
        steps = self.bind(options)
        if not isinstance(module, torch._C.ScriptModule):
            check_script(module)
        if not isinstance(module, torch.jit.ScriptModule):
            subject = ModuleSubject(module, method)
            records = self._run(steps, subject, dump, through)
            return PipelineResult(subject.module, tuple(records))
        subject = own(module, method)
        before = subject.text()
        records = self._run(steps, subject, dump, through)
        done = tuple(record.name for record in records)
        result = hand_out(subject, module, f"pipeline '{self.name}'", done, verify, inplace)
        return PipelineResult(result, tuple(records), before, subject.text())

    def run_on(
        self,
        subject: Subject,
        *,
        options: Options | None = None,
    ) -> list[PassRecord]:
        """Run the steps on a module or graph that no one else holds."""
        return self._run(self.bind(options), subject)

    def bind(self, options: Options | None = None) -> list[BoundStep]:
        """Look all steps up and check their options.

        Raises:
            JitPassesError: a step, option or invariant is unknown, or a value has another type.
        """
        where, given = f"pipeline '{self.name}'", options or {}
        names = [name_of(step) for step in self.steps]
        for name in given:
            if name not in names:
                raise JitPassesError(
                    f"there are options for '{name}', which {where} does not hold: "
                    f"{nearest(name, names)}"
                )
        for name in self.ensures:
            if name not in invariants:
                raise JitPassesError(
                    f"{where} ensures '{name}', which no one has registered: "
                    f"{nearest(name, invariants)}"
                )
        return [
            bind(step, given.get(name, {}), where)
            for step, name in zip(self.steps, names, strict=True)
        ]

    def _run(
        self,
        steps: list[BoundStep],
        subject: Subject,
        dump: str | os.PathLike[str] | None = None,
        through: Through = iter,
    ) -> list[PassRecord]:
        run = _Run(self, subject, dump or os.environ.get("JIT_PASSES_DUMP"))
        for step in through(steps):
            run.step(step)
        run.finish()
        return run.records

    def __str__(self) -> str:
        steps = [describe(step) for step in self.steps]
        width = max((len(call) for call, _ in steps), default=0)
        lines = [f"pipeline '{self.name}'"]
        lines += [f"  {call:<{width}}  {summary}" for call, summary in steps]
        lines += [f"  ensures {', '.join(self.ensures)}"] if self.ensures else []
        return "\n".join(lines)


# Decides all that is fixed when a module is compiled: branches on constants, lists of numbers.
# Nothing that depends on training mode or on weights.
RESOLVE = Pipeline("resolve", ("propagate_constants", "remove_dead_code", "pool_constants"))
# Folds the lists of numbers that files spell out.
FOLD_NUMBERS = PassCall("propagate_constants", tensors=False)
# The last steps of pipelines that make a model for use.
CLEAN_UP = ("remove_dead_code", "pool_constants", "remove_unused_attributes")


def own(module: torch.jit.ScriptModule, method: str) -> ModuleSubject:
    """Return a copy of the module for passes to work on.

    All methods are inlined, and branches and lists that depend on constants of the method alone are
    resolved. Parameters and buffers are the original's tensors, under the same names.
    """
    check_script(module, method)
    subject = ModuleSubject(_C.clone(module._c), method)
    RESOLVE.run_on(subject)
    return subject


def hand_out(
    subject: ModuleSubject,
    given: torch.jit.ScriptModule,
    who: str,
    done: tuple[str, ...],
    verify: Inputs | None,
    inplace: bool,
) -> torch.jit.ScriptModule:
    """Return the module that came out; `inplace`, as the very object that was given."""
    result = wrap(subject.module)
    if verify is not None:
        try:
            assert_equivalent(given, result, verify, method=subject.method)
        except AssertionError as error:
            message = f"{who} changed the results of the module: {error}"
            raise PassError(message, done[-1] if done else who, done) from error
    if not inplace:
        return result
    given._reconstruct(subject.module)
    return given


def run_pass(
    name: str,
    module: torch.jit.ScriptModule,
    method: str = "forward",
    *,
    options: Mapping[str, Any] | None = None,
    inplace: bool = False,
    verify: Inputs | None = None,
) -> torch.jit.ScriptModule:
    """Run one pass ahead of autograd: its changes are in forward and backward.

    Args:
        name: from the registry, `jit_passes.passes`.
        module: scripted, traced or loaded. The model does not change unless `inplace`.
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
        JitPassesError: the pass or method is unknown, or the name is no text.
    """
    if not isinstance(name, str):
        got = type(name).__name__
        own = "; a Pipeline has `run` for that" if isinstance(name, Pipeline) else ""
        raise JitPassesError(f"run_pass takes the name of a pass, then a module, not a {got}{own}")
    pipeline = Pipeline(name, (PassCall(name, **(options or {})),))
    result = pipeline.run(module, method, inplace=inplace, verify=verify)
    changed: torch.jit.ScriptModule = result.module
    return changed


@dataclass(frozen=True)
class PipelineResult:
    """The resulting module, and the work of each step.

    Attributes:
        module: a ScriptModule if one went in, else a C++ module.
        records: one for each run of a step.
        before: the graph that went in, and
        after: the resulting graph, as text; "" for C++ modules.
    """

    module: Any
    records: tuple[PassRecord, ...]
    before: str = ""
    after: str = ""

    def diff(self, color: bool | None = None) -> str:
        """Return the lines of the graph that changed; `color=None`: in color on a terminal."""
        return diff_text(self.before, self.after, color)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The remarks of all steps, in order."""
        return tuple(remark for record in self.records for remark in record.remarks)

    def __str__(self) -> str:
        return "\n".join(
            f"{r.name:<28} {r.seconds * 1e3:9.2f} ms {r.nodes:7d} nodes"
            f"{'' if r.changed else '  (no change)'}"
            f"{f'  ({len(r.remarks)} remarks)' if r.remarks else ''}"
            for r in self.records
        )


@dataclass
class _Run:
    """A run of a pipeline: the current module."""

    pipeline: Pipeline
    subject: Subject
    folder: str | os.PathLike[str] | None
    records: list[PassRecord] = field(default_factory=list)
    idle: set[str] = field(default_factory=set)
    """The repeatable passes that have found nothing to do since the last change."""

    def step(self, step: BoundStep) -> None:
        if not self.records:
            self.dump(0, "before")
        try:
            self.check(step.requires, "it requires")
            start = time.perf_counter()
            again = step.repeatable and step.name in self.idle
            changed, remarks = (False, ()) if again else step.run(self.subject)
            seconds = time.perf_counter() - start
            if changed:
                self.idle.clear()
                self.subject.lint()
            elif step.repeatable:
                self.idle.add(step.name)
            self.check(step.ensures, "it ensures", remarks)
        except Exception as error:
            raise self.failure(f"pass '{step.name}' of", step.name, error) from error
        known = self.records and not changed
        nodes = self.records[-1].nodes if known else self.subject.count()
        self.records.append(PassRecord(step.name, changed, seconds, nodes, remarks))
        self.dump(len(self.records), step.name)
        if LOGGER.isEnabledFor(logging.DEBUG):
            did = "" if changed else ", no change"
            name = self.pipeline.name
            LOGGER.debug("pass %s of %s: %.2f ms%s", step.name, name, seconds * 1e3, did)

    def dump(self, number: int, label: str) -> None:
        """Write the graph into the folder, if one was asked for."""
        if self.folder:
            path = Path(self.folder, f"{self.pipeline.name}.{number:02d}.{label}.ir")
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(self.subject.graph()))

    def finish(self) -> None:
        try:
            self.check(self.pipeline.ensures, "it ensures")
        except Exception as error:
            last = self.records[-1].name if self.records else ""
            raise self.failure("the end of", last, error) from error

    def failure(self, what: str, name: str, error: Exception) -> PassError:
        done = tuple(record.name for record in self.records)
        return PassError(
            f"{what} pipeline '{self.pipeline.name}' failed "
            f"(before it: {', '.join(done) or 'none'}): {first_line(error)}",
            name,
            done,
        )

    def check(
        self, invariants: tuple[str, ...], verb: str, remarks: tuple[Remark, ...] = ()
    ) -> None:
        for invariant in invariants:
            said = (*(remark for record in self.records for remark in record.remarks), *remarks)
            problem = self.subject.check(invariant, said)
            if problem:
                raise JitPassesError(f"{verb} '{invariant}', which does not hold: {problem}")
