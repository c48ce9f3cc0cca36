"""Choosing operators and values of a graph by name, module and kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from ..errors import ArgumentError, nearest
from ..graph.modules import Patterns, cover_of, fit_of, several
from ..graph.view import NodeView, ValueView


@dataclass(frozen=True)
class Selector:
    """Which operators or values a rule is about: all given conditions hold for them.

    Patterns are globs in which case counts: `*` stands for any characters, dots included, `?` for
    one, `[ab]` for one of these. Several in a tuple: one of them fits.

    Attributes:
        module: glob of the path of the operator's module, or of one around it: `layer1` is all that
            is in it, `layer*.conv1` all that is in these; "" is the top alone.
        module_regex: regular expression that fits the whole path.
        module_type: glob of the module's class name, `Conv2d`.
        op: glob of the operator, `conv2d` or `aten::conv2d`.
        value: glob of a value's stable name, `layer1.0.conv1:conv2d`, or of the name of an input of
            the graph. Constants are none.

    Raises:
        JitPassesError: nothing is given, or not text, or the regular expression is none.
    """

    module: Patterns | None = None
    module_regex: str | None = None
    module_type: Patterns | None = None
    op: Patterns | None = None
    value: Patterns | None = None

    def __post_init__(self) -> None:
        for name in SELECTORS:
            given = getattr(self, name)
            if given is None:
                continue
            several = tuple(given) if isinstance(given, list | tuple) else (given,)
            if not several or not all(isinstance(pattern, str) for pattern in several):
                raise ArgumentError(f"{name} is text, or several texts, not {given!r}")
            if name == "module_regex":
                if len(several) > 1:
                    raise ArgumentError("module_regex is one expression: join several with |")
                _check_regex(several[0])
            elif name != "module" and "" in several:
                raise ArgumentError(f"{name} is a pattern, not empty text")
            object.__setattr__(self, name, several if len(several) > 1 else several[0])
        if not any(True for _ in self.patterns()):
            raise ArgumentError(f"a selector needs one of {', '.join(SELECTORS)}")

    def patterns(self) -> Iterator[tuple[str, str]]:
        """Yield (attribute, pattern) of all that is given."""
        for name in SELECTORS:
            given = getattr(self, name)
            if given is not None:
                yield from ((name, pattern) for pattern in several(given))

    def matches(self, node: NodeView) -> bool:
        """Say whether an operator is meant; with `value`, the one that computes it.

        An operator with several results also has its own name.
        """
        if self.value is not None:
            names = {output.name for output in node.outputs if is_value(output)}
            names |= {node.name} if len(node.outputs) > 1 else set()
            if not any(map(fit_of(self.value), names)):
                return False
        return is_operator(node) and self._fits_place(node)

    def matches_value(self, value: ValueView) -> bool:
        """Say whether a value is meant. Without `value`, none is."""
        if self.value is None or not is_value(value) or not fit_of(self.value)(value.name):
            return False
        if self.module is self.module_regex is self.module_type is self.op is None:
            return True
        return value.producer is not None and self._fits_place(value.producer)

    def _fits_place(self, node: NodeView) -> bool:
        return (
            (self.module is None or cover_of(self.module)(node.module))
            and (
                self.module_regex is None
                or re.fullmatch(self.module_regex, node.module) is not None
            )
            and (self.module_type is None or fit_of(self.module_type)(node.module_type))
            and (self.op is None or any(op_fits(op, node.kind) for op in several(self.op)))
        )

    def __str__(self) -> str:
        """Return it as messages call it: `module 'layer4.*' and op 'sigmoid'`."""
        parts = []
        for name in SELECTORS:
            given = getattr(self, name)
            if given is not None:
                parts.append(f"{name} {' or '.join(map(repr, several(given)))}")
        return " and ".join(parts)


SELECTORS = tuple(attribute.name for attribute in fields(Selector))


def is_operator(node: NodeView) -> bool:
    """Say whether a node computes something: control flow, lists and constants do not."""
    return node.traits.counts or not node.kind.startswith("prim::")


def is_value(value: ValueView) -> bool:
    """Say whether a value can be quantized."""
    return value.is_tensor and not value.is_constant


def op_fits(pattern: str, kind: str) -> bool:
    """Say whether an operator fits a glob, with its namespace if the glob has one.

    In-place operators go by the name of the other: `relu` is `aten::relu_` too.
    """
    name = kind if "::" in pattern else kind.rpartition("::")[2]
    return fnmatchcase(name, pattern) or fnmatchcase(name.rstrip("_"), pattern)


def known_names(nodes: Iterable[NodeView], values: Iterable[ValueView]) -> dict[str, set[str]]:
    """Return the texts of operators and values that patterns can fit, by attribute."""
    operators = list(nodes)
    modules = {node.module for node in operators}
    return {
        "module": modules,
        "module_regex": modules,
        "module_type": {node.module_type for node in operators},
        "op": {node.kind for node in operators},
        "value": {value.name for value in values}
        | {node.name for node in operators if len(node.outputs) > 1},
    }


def explain_nothing(selector: Selector, names: Mapping[str, set[str]]) -> str | None:
    """Say which pattern of a selector fits no name, with similar names; None if all fit.

    Each pattern in a list of modules, types or values must fit: these are names, and one may be
    misspelled. In a list of operators one is enough: models spell an operation in different ways.
    """
    if not names["op"]:
        return "the method has no operators"
    ops = several(selector.op or ())
    fitting_ops = any(op_fits(op, kind) for op in ops for kind in names["op"])
    for name, pattern in selector.patterns():
        if name == "op":
            fits, known = fitting_ops, {kind.rpartition("::")[2] for kind in names["op"]}
            known = names["op"] if "::" in pattern else known
        elif name == "module_regex":
            known = names[name]
            fits = any(re.fullmatch(pattern, path) for path in known)
        else:
            known = names[name]
            fits = any(map((cover_of if name == "module" else fit_of)(pattern), known))
        if not fits:
            return f"{name} {pattern!r} matches nothing: {_like(name, pattern, known)}"
    return None


def _like(name: str, pattern: str, known: set[str]) -> str:
    if name == "op" and pattern.startswith("prim::"):
        return "operators of prim:: are not quantized"
    if name in ("module", "module_regex", "module_type") and known <= {""}:
        return "no operator is known to belong to a module, as in a file of a frozen model: use op"
    return nearest(pattern, known - {""})


def _check_regex(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ArgumentError(
            f"module_regex {pattern!r} is no regular expression: {error}"
        ) from error
