"""Steps of pipelines: a pass, a pass with options, a set of rewrite rules, a Python function."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from .. import _C
from ..errors import JitPassesError, nearest
from .options import check_options, options_of
from .registry import passes, runnable
from .subject import Outcome, Remark, Subject

# Parameters of hundreds of values are options too.
_BRIEF = reprlib.Repr()
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = 3


@runtime_checkable
class Rule(Protocol):
    """A rewrite rule, such as `RewriteRule`."""

    @property
    def name(self) -> str: ...
    def compile(self) -> Any: ...


@runtime_checkable
class ModuleStep(Protocol):
    """A step that needs more than an editor of one graph, such as `CompileRegions`.

    `run_on` gets a C++ module that no one else holds, and the method. The function returns the
    module that goes on, whether something changed, and remarks.
    """

    @property
    def name(self) -> str: ...
    def run_on(self, module: Any, method: str) -> tuple[Any, bool, Sequence[Remark]]: ...


@dataclass(frozen=True)
class PassCall:
    """A registered pass with options: `PassCall("fold_prepack", engine="x86")`.

    Attributes:
        name: of the pass.
        options: by name.
    """

    name: str
    options: Mapping[str, Any]

    def __init__(self, name: str, /, **options: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "options", options)

    def __repr__(self) -> str:
        given = "".join(f", {name}={_BRIEF.repr(v)}" for name, v in self.options.items())
        return f"PassCall({self.name!r}{given})"


@dataclass(frozen=True)
class RuleSet:
    """Rewrite rules as one step; a match that is refused makes a remark with the reason.

    Attributes:
        name: for messages and dumps.
        rules: each a `RewriteRule`, or the result of its `compile()`. Earlier rules win.
    """

    name: str
    rules: Sequence[Any] = field(repr=False)

    def compile(self) -> list[Any]:
        """Return the rules that the rewriter takes.

        Raises:
            JitPassesError: one is no rule, or not valid.
        """
        compiled = []
        for rule in self.rules:
            if not isinstance(rule, _C.Rule | Rule):
                raise JitPassesError(f"the rule set '{self.name}' holds {rule!r}: no RewriteRule")
            compiled.append(rule if isinstance(rule, _C.Rule) else rule.compile())
        return compiled


Step = str | PassCall | RuleSet | Rule | ModuleStep | Callable[..., bool | None]


@dataclass(frozen=True)
class BoundStep:
    """A step whose names have been looked up and whose options have been checked.

    A `repeatable` step always does one thing to one graph: where it has found nothing to do, the
    runner skips it until something has changed.
    """

    name: str
    run: Callable[[Subject], Outcome]
    requires: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()
    repeatable: bool = False


def name_of(step: Step) -> str:
    """Return the name that records, messages, dumps and options go by."""
    if isinstance(step, str):
        return step
    if isinstance(step, PassCall | RuleSet | Rule | ModuleStep):
        return step.name
    if isinstance(step, functools.partial):
        return name_of(step.func)
    return str(getattr(step, "__name__", type(step).__name__)).strip("<>")


def describe(step: Step) -> tuple[str, str]:
    """Return name and options, as `fold_prepack(engine='x86')`, and a summary of one line."""
    name = name_of(step)
    if isinstance(step, str | PassCall):
        given = step.options if isinstance(step, PassCall) else {}
        options = ", ".join(f"{key}={_BRIEF.repr(value)}" for key, value in given.items())
        info = passes.get(name)
        return f"{name}({options})" if options else name, info.summary if info else "Unknown."
    if isinstance(step, RuleSet | Rule):
        count = len(step.rules) if isinstance(step, RuleSet) else 1
        return name, f"{count} rewrite rule{'s' if count != 1 else ''}."
    return name, (getattr(step, "__doc__", None) or "A function.").strip().splitlines()[0]


def bind(step: Step, given: Mapping[str, Any], where: str) -> BoundStep:
    """Look a step up and check its options."""
    name = name_of(step)
    if isinstance(step, str | PassCall):
        info = passes.get(name)
        if info is None:
            raise JitPassesError(
                f"{where} names the pass '{name}', which is not registered: {nearest(name, passes)}"
            )
        options = {**(step.options if isinstance(step, PassCall) else {}), **given}
        check_options(f"pass '{name}' of {where}", info.options, options)
        return BoundStep(
            name,
            lambda subject: subject.run_pass(name, options),
            info.requires,
            info.ensures,
            repeatable=not options,
        )
    if isinstance(step, RuleSet | Rule):
        check_options(f"rule set '{name}' of {where}", (), given)
        rules = (step if isinstance(step, RuleSet) else RuleSet(name, (step,))).compile()
        return BoundStep(name, lambda subject: subject.run_rules(rules))
    if isinstance(step, ModuleStep):
        check_options(f"step '{name}' of {where}", (), given)
        module_step = step
        return BoundStep(name, lambda subject: subject.run_module(module_step.run_on))
    if not callable(step):
        raise JitPassesError(
            "a step is the name of a pass, a PassCall, a RuleSet, a RewriteRule, or a function "
            f"that takes a GraphEditor, not {step!r}"
        )
    declared = options_of(step, f"function '{name}'")
    check_options(f"function '{name}' of {where}", declared, given)
    function = runnable(functools.partial(step, **given))
    return BoundStep(name, lambda subject: subject.run_function(function))
