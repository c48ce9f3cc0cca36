"""When passes run: on all that is compiled or prepared from now on, at one of three moments.

    schedule("relu_to_gelu")                          # for the whole process
    with scheduled(rule, stage=Stage.AFTER_FUSION):   # for this thread, inside the block
        ...

Before autograd a pass sees the graph that `torch.jit.script` or `torch.jit.trace` has compiled.
After autograd and after fusion it is the executor's, and no module belongs to it.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

from .. import _C
from ..errors import JitPassesError, PassError, aligned, first_line
from ..graph.view import GraphView
from .compiled import intercept, is_own_work, own_work
from .pipeline import Pipeline
from .steps import Step, name_of
from .subject import GraphSubject, ModuleSubject, Subject

Where = Callable[[GraphView], bool]


class Stage(Enum):
    """When a pass runs, and which graph it sees.

    BEFORE_AUTOGRAD: once, when something is compiled. The graph is the inlined one of a method,
        with the module that it belongs to, or of a function. Calls that a function forks are not in
        it. Autograd differentiates the changed graph.
    AFTER_AUTOGRAD: when the executor prepares a graph, after differentiation and before the fusers.
        A graph that needs no gradient comes whole. A graph that needs one comes in parts, each by
        itself: the parts that PyTorch differentiates ahead of time (the subgraphs of
        prim::DifferentiableGraph), and the backward graphs of these parts. Operators between the
        parts are not seen, and neither is a part of a single operator, which PyTorch leaves to
        plain autograd. A change of a forward part does not reach its backward graph.
    AFTER_FUSION: the same graphs, after the fusers. Fused operators are inside of a fusion
        group, where passes do not look.
    """

    BEFORE_AUTOGRAD = "before autograd"
    AFTER_AUTOGRAD = "after autograd"
    AFTER_FUSION = "after fusion"


class ScheduledPass:
    """A pass that was scheduled: the handle to switch it off and on, and to take it back.

    Attributes:
        name: of the pass, pipeline, rule or function.
        stage: when it runs.
        runs: how often it ran, on graphs where `where` was true.
        changed: how many of these runs changed the graph.
        error: of its last run that failed, or None. PyTorch's interpreter passes the text of errors
            on, but not their type.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        pipeline: Pipeline,
        options: dict[str, Any],
        stage: Stage,
        where: Where | None,
        order: int,
        everywhere: bool,
    ) -> None:
        self.name = pipeline.name
        self.stage = stage
        self.runs = 0
        self.changed = 0
        self.error: PassError | None = None
        self._order = order
        self._everywhere = everywhere
        self._where = where
        self._pipeline = pipeline
        self._options = options
        self._enabled = True
        self._removed = False
        self._number = next(self._numbers)

    @property
    def enabled(self) -> bool:
        """Whether it runs; False once it has been removed."""
        return self._enabled and not self._removed

    def enable(self) -> None:
        """Let it run again."""
        self._switch(True)

    def disable(self) -> None:
        """Let it rest; it keeps its place."""
        self._switch(False)

    @property
    def order(self) -> int:
        """Its place among the passes of the stage: lower first; of equals, earlier first."""
        return self._order

    @order.setter
    def order(self, order: int) -> None:
        with _lock:
            self._check()
            self._order = order

    def remove(self) -> None:
        """Take it out of the schedule for good; earlier changes stay."""
        with _lock:
            self._check()
            self._removed = True
            _handles.remove(self)
            _update()

    def __repr__(self) -> str:
        state = "removed" if self._removed else "on" if self._enabled else "off"
        return (
            f"<ScheduledPass '{self.name}' {self.stage.value}, order {self._order}, {state}, "
            f"runs {self.runs}, changed {self.changed}>"
        )

    def _switch(self, enabled: bool) -> None:
        with _lock:
            self._check()
            self._enabled = enabled
            _update()

    def _check(self) -> None:
        if self._removed:
            raise JitPassesError(
                f"the scheduled pass '{self.name}' was removed, or its `with` block has ended: "
                "schedule it again"
            )

    def apply(self, subject: Subject) -> bool:
        """Run on a module or graph that no one else holds; return whether it changed."""
        try:
            if self._where is not None and not self._where(_view(subject)):
                return False
            records = self._pipeline.run_on(subject, options=self._options)
        except Exception as error:
            done = error.done if isinstance(error, PassError) else ()
            what = first_line(error)
            if not isinstance(error, PassError):
                what = f"`where` of '{self.name}' failed: {what}"
            self.error = PassError(f"scheduled {self.stage.value}: {what}", self.name, done)
            raise self.error from error
        changed = any(record.changed for record in records)
        with _lock:
            self.runs += 1
            self.changed += changed
        return changed


# All handles that were not removed, also from other threads.
_handles: list[ScheduledPass] = []
_lock = threading.RLock()
# Handles of `scheduled` blocks around the code that runs now.
_here: ContextVar[tuple[ScheduledPass, ...]] = ContextVar("jit_passes_scheduled", default=())


def schedule(
    pass_: Step | Pipeline,
    *,
    stage: Stage = Stage.BEFORE_AUTOGRAD,
    where: Where | None = None,
    order: int = 0,
    options: Mapping[str, Any] | None = None,
) -> ScheduledPass:
    """Let a pass run on all that is compiled or prepared from now on, until the handle is removed.

    Before autograd, it runs on all that `torch.jit.script`, `torch.jit.trace` and
    `torch.jit.trace_module` compile: on every method of a module, and on functions. These calls
    return the same kind of object as always. The parameters are the user's; calls of submodules
    have become part of the methods, and the submodules hold attributes only. PyTorch keeps
    compiled functions and returns them again: they stay as they are, and the result is a new
    function with the same name, arguments and defaults. A module that no pass changes comes
    back just as PyTorch made it. A module with hooks of its own or with interfaces cannot be one
    graph: it stays unchanged too, with a warning. Modules that were compiled already, or that
    `torch.jit.load` reads, are left alone.

    After autograd and after fusion, it runs when PyTorch's executor prepares a graph. By default
    this is at the second call, since the first one profiles. Parts that are differentiated are
    prepared one call later. The executor then keeps the prepared graph, also for all users of the
    compiled code: a function that is scripted again, or further modules of one type. A pass that is
    scheduled later does not reach a graph that is ready, nor does removing a pass change it back;
    `compiled._debug_flush_compilation_cache()` makes PyTorch begin anew.

    A pass that fails raises its error out of the call, and the executor's graph is as it was. In
    a part that is differentiated the interpreter turns the `PassError` into a RuntimeError with
    the same text. A pass must not call the function that is being prepared: PyTorch holds its
    lock. With `torch._C._jit_set_profiling_mode(False)` PyTorch calls no passes at all.

    Args:
        pass_: a `Pipeline`, or a step of one: the name of a registered pass, a `PassCall`,
            a `RuleSet`, a `RewriteRule`, or a function as for `register_pass`.
        stage: when it runs, see `Stage`.
        where: sees the graph, and says whether the pass runs; None: on every graph.
        order: passes of a stage run in this order, lower first.
        options: of the pass; of a pipeline, by the name of the pass.

    Returns:
        A handle.

    Raises:
        JitPassesError: a pass or option is unknown, or a rule is not valid.
    """
    return _schedule(pass_, stage, where, order, options, everywhere=True)


@contextmanager
def scheduled(
    pass_: Step | Pipeline,
    *,
    stage: Stage = Stage.BEFORE_AUTOGRAD,
    where: Where | None = None,
    order: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Iterator[ScheduledPass]:
    """Schedule a pass for the code inside the block, in this thread or task alone.

    After autograd and after fusion, that is for graphs that this thread prepares in a call inside
    the block. Graphs that PyTorch prepares in threads of its own are not reached: the backward of
    CUDA tensors, and differentiated parts inside of `torch.jit.fork`.

    Arguments and errors are as in `schedule`.

    Yields:
        The handle. When the block ends it counts as removed.
    """
    handle = _schedule(pass_, stage, where, order, options, everywhere=False)
    _here.set((*_here.get(), handle))
    try:
        yield handle
    finally:
        # Not by a token: a block that was entered later may still be open.
        _here.set(tuple(other for other in _here.get() if other is not handle))
        with _lock:
            if not handle._removed:
                handle.remove()


class Schedule(tuple[ScheduledPass, ...]):
    """Handles in the order in which the passes run; printing gives a table."""

    __slots__ = ()

    def __str__(self) -> str:
        rows = [("stage", "order", "pass", "state", "runs", "changed")]
        for handle in self:
            state = "on" if handle.enabled else "off"
            counts = (str(handle.runs), str(handle.changed))
            rows.append((handle.stage.value, str(handle.order), handle.name, state, *counts))
        return aligned(rows)


def scheduled_passes() -> Schedule:
    """Return the handles for the code that runs now, by stage and order.

    Passes that were switched off are there too; passes of other threads are not.
    """
    stages = list(Stage)
    with _lock:
        handles = [h for h in _handles if h._everywhere or h in _here.get()]
    return Schedule(sorted(handles, key=lambda h: (stages.index(h.stage), h.order, h._number)))


def _schedule(
    pass_: Step | Pipeline,
    stage: Stage,
    where: Where | None,
    order: int,
    options: Mapping[str, Any] | None,
    everywhere: bool,
) -> ScheduledPass:
    if not isinstance(stage, Stage):
        names = ", ".join(str(member) for member in Stage)
        raise JitPassesError(f"the stage is one of {names}, not {stage!r}")
    pipeline, given = _pipeline_of(pass_, dict(options or {}))
    pipeline.bind(given)  # errors now, not at the first compilation
    handle = ScheduledPass(pipeline, given, stage, where, order, everywhere)
    with _lock:
        _handles.append(handle)
        _update()
    return handle


def _pipeline_of(
    pass_: Step | Pipeline, options: dict[str, Any]
) -> tuple[Pipeline, dict[str, Any]]:
    """Return the pass as a pipeline, and its options by the names of steps."""
    if isinstance(pass_, Pipeline):
        return pass_, options
    name = name_of(pass_)
    return Pipeline(name, (pass_,)), {name: options}


def _view(subject: Subject) -> GraphView:
    if isinstance(subject, ModuleSubject):
        return GraphView.of(subject.module, subject.method)
    return GraphView.of_graph(subject.held)


def _active(stage: Stage) -> list[ScheduledPass]:
    """The passes that run now, in order."""
    return [h for h in scheduled_passes() if h.stage is stage and h.enabled]


def _update() -> None:
    """Make PyTorch call us for the stages that have a pass, and for no other; under the lock."""
    stages = {handle.stage for handle in _handles if handle._enabled}
    before = Stage.BEFORE_AUTOGRAD
    intercept(before in stages, functools.partial(_active, before))
    _C.activate_hooks(Stage.AFTER_AUTOGRAD in stages, Stage.AFTER_FUSION in stages)


# After autograd and after fusion: the executor calls, with a graph that it is about to use.


def _on_graph(stage: Stage, graph: Any) -> Any:
    """Return the graph to go on with, or None for the same one."""
    if is_own_work():
        return None
    handles = _active(stage)
    if not handles:
        return None
    with own_work():
        subject = GraphSubject(graph.copy())
        profile = _C.take_profile(subject.held)
        changes = [handle.apply(subject) for handle in handles]
        if not any(changes):
            return None
        _C.put_profile(subject.held, profile)
    return subject.held


# Now, not at the first use: the executor runs its passes in the order of registration, and fusers
# that are switched on later, oneDNN's say, must come after ours.
_C.hook_after_autograd(functools.partial(_on_graph, Stage.AFTER_AUTOGRAD))
_C.hook_after_fusion(functools.partial(_on_graph, Stage.AFTER_FUSION))
