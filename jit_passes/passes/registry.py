"""The registries of passes and of invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import _C
from ..errors import JitPassesError, UnknownNameError, aligned, first_line
from ..graph.editor import GraphEditor
from ..graph.view import GraphView
from .options import PassOption, options_of

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class PassInfo:
    """The declaration of a pass.

    Attributes:
        name: unique.
        summary: one line.
        requires: invariants that must hold before it runs.
        ensures: invariants that hold once it has run.
        options: the options that it takes.
    """

    name: str
    summary: str
    requires: tuple[str, ...]
    ensures: tuple[str, ...]
    options: tuple[PassOption, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.name}({', '.join(map(str, self.options))})", f"  {self.summary}"]
        lines += [f"  requires {', '.join(self.requires)}"] if self.requires else []
        lines += [f"  ensures {', '.join(self.ensures)}"] if self.ensures else []
        return "\n".join(lines)


class _Registry(Mapping[str, Entry]):
    """The entries that C++ has registered, by name: rows that begin with the summary."""

    def __init__(self, rows: Callable[[], Any], remove: Callable[[str], bool]) -> None:
        self._rows, self._remove = rows, remove

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())

    def __str__(self) -> str:
        return aligned([(name, row[0]) for name, row in self._rows().items()])

    def remove(self, name: str) -> None:
        """Take one out of the registry.

        Raises:
            JitPassesError: no pass has this name; this is a KeyError too.
        """
        if not self._remove(name):
            raise UnknownNameError(f"nothing of the name {name!r} is registered")


class PassRegistry(_Registry[PassInfo]):
    """All registered passes by name; printing it gives a table, printing one its options.

    A pass of another package appears as soon as its package has been imported.
    """

    def __getitem__(self, name: str) -> PassInfo:
        found = _C.find_pass(name)
        if found is None:
            raise UnknownNameError(f"no pass of the name {name!r} is registered")
        summary, requires, ensures, options = found
        declared = tuple(PassOption(o, t, not optional, v) for o, t, optional, v in options)
        return PassInfo(name, summary, tuple(requires), tuple(ensures), declared)


class InvariantRegistry(_Registry[str]):
    """The summaries of all registered invariants by name; printing it gives a table."""

    def __getitem__(self, name: str) -> str:
        found = _C.invariants()
        if name not in found:
            raise UnknownNameError(f"no invariant of the name {name!r} is registered")
        return found[name][0]


passes = PassRegistry(_C.passes, _C.remove_pass)
invariants = InvariantRegistry(_C.invariants, _C.remove_invariant)
PassFunction = TypeVar("PassFunction", bound=Callable[..., bool | None])
InvariantFunction = TypeVar("InvariantFunction", bound=Callable[[GraphView], str | None])


def register_pass(
    name: str,
    *,
    summary: str,
    requires: Sequence[str] = ("inlined",),
    ensures: Sequence[str] = (),
    replace: bool = False,
) -> Callable[[PassFunction], PassFunction]:
    """Register a Python function as a pass, equal in rank to the passes in C++.

    The function gets a `GraphEditor`. Its further parameters are the pass's options, with types and
    defaults as annotated. The function returns whether it changed something; None stands for what
    the editor knows. `graph.remark(node, reason)` tells the user why a node was left alone.

        @register_pass("relu_to_gelu", summary="Turn relu into gelu.")
        def relu_to_gelu(graph: GraphEditor, approximate: str = "none") -> None:
            for node in graph.nodes:
                if node.kind == "aten::relu":
                    gelu = graph.insert("aten::gelu", [node.main_operand, approximate], before=node)
                    graph.replace(node.output, gelu.output)
                    graph.remove(node)

    Args:
        name: unique; `verb_object` is the convention.
        summary: one line for the table.
        requires: invariants that must hold before it runs.
        ensures: invariants that the runner checks afterwards.
        replace: take the place of a pass of that name, in a notebook say.

    Raises:
        JitPassesError: the name is taken, name or summary are empty, or an option has a type that
            options cannot have, see `PassOption`.
    """

    def register(function: PassFunction) -> PassFunction:
        options = options_of(function, f"pass '{name}'")
        if replace and summary:
            _C.remove_pass(name)
        packed = [(o.name, o.type, not o.required, o.default) for o in options]
        run = runnable(function)
        _register(
            lambda: _C.register_pass(name, summary, run, list(requires), list(ensures), packed)
        )
        return function

    return register


def register_invariant(
    name: str, *, summary: str, replace: bool = False
) -> Callable[[InvariantFunction], InvariantFunction]:
    """Register a Python function as an invariant that passes and pipelines may require or ensure.

    The function gets a `GraphView`, and returns the fault and its place as text, or None.

    Args:
        name: unique; an adjective or a state, `inlined`.
        summary: one line for the table.
        replace: take the place of an invariant of that name.

    Raises:
        JitPassesError: the name is taken, or name or summary are empty.
    """

    def register(function: InvariantFunction) -> InvariantFunction:
        def check(editor: Any) -> str | None:
            graph = GraphEditor(editor)
            problem = function(GraphView(graph.nodes, graph.inputs, graph.outputs))
            if not isinstance(problem, str | None):
                raise JitPassesError(
                    f"invariant '{name}': a check returns the fault or None, got {problem!r}"
                )
            return problem

        if replace and summary:
            _C.remove_invariant(name)
        _register(lambda: _C.register_invariant(name, summary, check))
        return function

    return register


def runnable(function: Callable[..., bool | None]) -> Callable[..., tuple[bool, list[Any]]]:
    """Return the function that C++ calls for a pass in Python, with an editor and the options."""

    def run(editor: Any, options: dict[str, Any]) -> tuple[bool, list[Any]]:
        graph = GraphEditor(editor)
        changed = function(graph, **options)
        if not isinstance(changed, bool | None):
            raise JitPassesError(
                f"a pass returns whether it changed something, True, False or None, not {changed!r}"
            )
        return graph.changed if changed is None else changed, graph.remarks

    return run


def _register(register: Callable[[], None]) -> None:
    try:
        register()
    except (RuntimeError, TypeError) as error:
        hint = "; replace=True takes its place" if "already" in str(error) else ""
        raise JitPassesError(first_line(error) + hint) from error
