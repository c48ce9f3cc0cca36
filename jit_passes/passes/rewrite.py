"""Applying rewrite rules to a module, and results to look at.

Matcher and rewriter are C++. Rules run ahead of autograd, so that their changes are in forward and
backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import _C
from ..errors import PassError, first_line, shortened
from ..graph.diff import diff_text
from ..graph.verify import Inputs
from ..tables import html_table
from .pipeline import hand_out, own
from .steps import Rule
from .subject import ModuleSubject


@dataclass(frozen=True)
class Rewrite:
    """A match.

    Attributes:
        rule: name of the rule.
        name: stable name of the operator, `layer1.0.conv1:conv2d`.
        source: its `file:line`.
        refused: why it was not rewritten; "" when it was.
    """

    rule: str
    name: str
    source: str
    refused: str


@dataclass(frozen=True)
class RewriteResult:
    """The result of applying rules.

    Attributes:
        module: the new module; in a dry run, the given one.
        matches: all matches, rewritten ones first.
        before: the graph that went in, and
        after: the resulting graph, as text, in a dry run too.
    """

    module: torch.jit.ScriptModule
    matches: tuple[Rewrite, ...]
    before: str
    after: str

    @property
    def rewritten(self) -> tuple[Rewrite, ...]:
        """The matches that were replaced, in order."""
        return tuple(match for match in self.matches if not match.refused)

    @property
    def refused(self) -> tuple[Rewrite, ...]:
        """The matches that were left, with reasons."""
        return tuple(match for match in self.matches if match.refused)

    def diff(self, color: bool | None = None) -> str:
        """Return the lines of the graph that changed; `color=None`: in color on a terminal."""
        return diff_text(self.before, self.after, color)

    def __str__(self) -> str:
        counts = Counter(match.rule for match in self.rewritten)
        lines = [f"{rule}: {count} rewritten" for rule, count in counts.items()] or ["no rewrite"]
        lines += [f"  {match.name}  {match.source}" for match in self.rewritten]
        lines += [f"refused: {m.name}  {m.source}: {m.refused}" for m in self.refused]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        found = (*self.rewritten, *self.refused)
        rows = [
            (m.rule, m.name, m.source, f"refused: {m.refused}" * bool(m.refused)) for m in found
        ]
        return html_table(("rule", "operator", "source", ""), rows, str(self).partition("\n  ")[0])


@dataclass(frozen=True)
class Place:
    """Where a pattern could have ended.

    Attributes:
        name: stable name of the operator; a match has the name of its `Rewrite`.
        source: its `file:line`.
        matched: operators of the pattern that fit before it failed.
        size: operators of the pattern.
        reason: the failed condition and its operator; "" for a match.
    """

    name: str
    source: str
    matched: int
    size: int
    reason: str


@dataclass(frozen=True)
class Explanation:
    """Why a rule matches where it does, and nowhere else.

    Attributes:
        rule: its name.
        kind: the operator that the pattern ends in.
        places: the operators of this kind, the nearest to a match first.
    """

    rule: str
    kind: str
    places: tuple[Place, ...]

    def __str__(self) -> str:
        if not self.places:
            return f"{self.rule}: the graph has no {self.kind}, which the pattern ends in"
        return "\n".join(
            f"{p.name} ({p.source}): {p.matched} of {p.size}, {p.reason or 'matches'}"
            for p in self.places
        )


def rewrite(
    module: torch.jit.ScriptModule,
    rules: Sequence[Rule],
    method: str = "forward",
    *,
    dry_run: bool = False,
    inplace: bool = False,
    verify: Inputs | None = None,
) -> RewriteResult:
    """Apply rules until none matches, in program order, earlier rules first.

    A match is refused where the rule's check says so, and where memory that is written to would
    make the result differ. The result of a rewrite can be matched again.

    Args:
        module: scripted, traced or loaded, in training or eval mode. The model does not change
            unless `inplace`. Its calls are inlined, and branches on constants resolved, before
            rules look.
        rules: see `RewriteRule`.
        method: the method whose graph is rewritten.
        dry_run: return the module that went in, with the matches and the difference.
        inplace: make this very object the result.
        verify: example inputs with which outputs and gradients before and after are compared.

    Raises:
        JitPassesError: a rule is not valid.
        PassError: a rule's function raised; rules rewrite each other's results without end; a
            replacement does not fit its place; or the result computes something else. The module
            is as it was.
    """
    for rule in rules:
        rule.compile()
    subject = own(module, method)
    before = subject.text()
    matches = _apply(subject, rules)
    after = subject.text()
    result = hand_out(subject, module, _names(rules), (), verify, inplace and not dry_run)
    return RewriteResult(module if dry_run else result, matches, before, after)


def _apply(subject: ModuleSubject, rules: Sequence[Rule]) -> tuple[Rewrite, ...]:
    """Rewrite a module that no one else holds; return the matches, rewritten ones first."""
    compiled = [rule.compile() for rule in rules]
    try:
        records = _C.apply_rules(subject.module, subject.method, compiled)
        matches = tuple(sorted((Rewrite(*r) for r in records), key=lambda m: bool(m.refused)))
        if any(not match.refused for match in matches):
            subject.lint()
    except Exception as error:
        names = _names(rules)
        raise PassError(f"{names}: {first_line(error)}", names, ()) from error
    return matches


def _names(rules: Sequence[Rule]) -> str:
    return "rule " + shortened([f"'{rule.name}'" for rule in rules])
