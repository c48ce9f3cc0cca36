"""Rewrite rules: a pattern, and its replacement.

Pattern and replacement are typed Python functions or text; both become graphs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError, first_line
from ..graph.modules import cover_of
from ..graph.verify import Inputs
from .compiled import own_work
from .pipeline import RESOLVE, own
from .rewrite import Explanation, Place, RewriteResult, rewrite
from .subject import GraphSubject

Source = str | Callable[..., Any]


@dataclass(frozen=True)
class Match:
    """A match as a rule's functions see it.

    Attributes:
        kind: the operator whose place the replacement takes, `aten::conv2d`: the first of the
            pattern that is not of quantization.
        module: path of the module that it was written in, `layer1.0.conv1`.
        module_type: class name of that module, with the prefix of scripting.
        source: `file:line` of the user's code.
        types: by input of the pattern, the type of its value, `Tensor` or `Optional[int]`.
        constants: by input, its value if it is known ahead of time; parameters and buffers are
            their tensors.
        shapes: by input, its shape if that is known: of parameters and buffers, and in traced
            modules of the example's values.
        operators: by operator of the pattern, the one that was matched there.
        written: inputs and results of the pattern that the graph may write to, by name.
    """

    kind: str
    module: str
    module_type: str
    source: str
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    operators: Mapping[str, str]
    written: frozenset[str] = frozenset()

    @classmethod
    def _of(cls, record: tuple[Any, ...]) -> Match:
        kind, module, module_type, source, inputs, operators, written = record
        return cls(
            kind,
            module,
            module_type,
            source,
            {name: row[0] for name, row in inputs.items()},
            {name: row[2] for name, row in inputs.items() if row[1]},
            {name: row[3] for name, row in inputs.items() if row[3] is not None},
            operators,
            frozenset(written),
        )


Check = Callable[[Match], bool | str | None]
Compute = Callable[[Match], Mapping[str, Any]]


@dataclass(frozen=True)
class RewriteRule:
    """A pattern and its replacement.

        def pattern(x: Tensor, scale: float):
            return torch.relu(x * scale)

        def replacement(x: Tensor, scale: float):
            return torch.ops.mine.scaled_relu(x, scale)

        rule = RewriteRule("fuse_scaled_relu", pattern, replacement)
        result = rule.apply(scripted)

    or as text, with constants as they are, and `%rest` for all further operands:

        RewriteRule(
            "fuse_scaled_relu",
            "aten::relu(aten::mul(%x, %scale : float))",
            "mine::scaled_relu(%x, %scale)",
        )
        RewriteRule(
            "any_activation",
            "match::activation(aten::conv2d(%x, %w, None, [1, 1], %rest))",
            ...
        )

    A value that is read twice has a name, and two results stand in brackets:

        %s = aten::sigmoid(%x)
        (aten::mul(%x, %s), %s)

    Text may also be IR, `graph(%x): ... return (%y)`, which can hold branches and loops.

    Inputs match any value of their type; in text, one without a type matches everything. An input
    that stands twice must be one value, or equal constants. Numbers, strings, None and lists of
    these match by value. An attribute that may be None, such as a bias, matches as its value.
    All matched operators stand in one block, which may be a branch's or a loop's; values between
    them that the pattern does not return have no other use. A pattern may return several values.

    Attributes:
        name: for messages and results.
        pattern: a function or text.
        replacement: likewise; its inputs are inputs of the pattern, by name, and the values that
            `compute` gives.
        check: sees the match and says whether it may be rewritten: True, or False or a reason why
            not. Nothing but True says yes: a check that returns nothing refuses all matches.
        compute: returns values by name for inputs of the replacement that the pattern does not
            have. An `nn.Parameter` becomes a parameter of the module that the match belongs to, a
            tensor a buffer, of that name; everything else a constant.
        alternatives: operators that a name in the pattern may stand for, `{"aten::relu":
            ["aten::relu", "aten::relu_", "aten::relu6"]}`. In the replacement the name stands for
            the matched operator.
        modules: globs over the path of the module that the match stands in, or of a module
            around it; one must match.
        module_types: class names of that module; one must match; () for all.
        repeat: whether the rule may match its own replacements. False for a replacement that
            contains the pattern, such as an operator put behind another one: each run adds it once.
        commutative: whether the operands of operators that commute match in either order: additions
            without alpha, multiplications, maxima, comparisons for equality and logic. False takes
            them as the pattern has them.

    Raises:
        JitPassesError: at first use or `compile()`: pattern or replacement are not valid, with the
            line.
    """

    name: str
    pattern: Source
    replacement: Source
    check: Check | None = None
    compute: Compute | None = None
    alternatives: Mapping[str, Sequence[str]] = field(default_factory=dict)
    modules: str | Sequence[str] = "*"
    module_types: str | Sequence[str] = ()
    repeat: bool = True
    commutative: bool = True

    def compile(self) -> Any:
        """Return the rule that the rewriter takes; it is made once."""
        return self._compiled

    @cached_property
    def _compiled(self) -> Any:
        try:
            pattern = _graph(self.pattern, "pattern")
            replacement = _graph(self.replacement, "replacement")
            own = dataclasses.replace(self)  # the compiled rule keeps it, and this one keeps that
            checks = self.check is not None or self.modules != "*" or self.module_types
            check = own._check if checks else None
            compute = own._compute if self.compute is not None else None
            rule = _C.rule(
                self.name, pattern, replacement, self.alternatives, check, compute, self.repeat,
                self.commutative,
            )  # fmt: skip
        except (RuntimeError, ValueError, TypeError) as error:
            raise JitPassesError(f"rule '{self.name}': {first_line(error)}") from error
        if rule.computed and self.compute is None:
            raise JitPassesError(
                f"rule '{self.name}': the replacement takes {', '.join(rule.computed)}, which the "
                "pattern does not use and no compute gives"
            )
        return rule

    def _check(self, record: tuple[Any, ...]) -> str | None:
        match = Match._of(record)
        globs = (self.modules,) if isinstance(self.modules, str) else tuple(self.modules)
        if not cover_of(globs)(match.module):
            return f"module '{match.module}' is not among {', '.join(globs)}"
        types = [self.module_types] if isinstance(self.module_types, str) else self.module_types
        if types and match.module_type.split(".")[-1] not in types:
            return f"a module of type {match.module_type} is not among {', '.join(types)}"
        verdict = True if self.check is None else self.check(match)
        if verdict is True:
            return None
        if verdict is False:
            return "the rule's check said no"
        if not isinstance(verdict, str | None):
            raise JitPassesError(
                f"rule '{self.name}': a check returns True, False or a reason, not {verdict!r}"
            )
        return verdict or f"the rule's check returned {verdict!r}: return True to accept a match"

    def _compute(self, record: tuple[Any, ...]) -> dict[str, tuple[Any, bool]]:
        assert self.compute is not None
        values = self.compute(Match._of(record))
        if not isinstance(values, Mapping):
            raise JitPassesError(
                f"rule '{self.name}': compute returns a dict of values by name, not {values!r}"
            )
        return {name: (v, isinstance(v, torch.nn.Parameter)) for name, v in values.items()}

    def apply(
        self,
        module: torch.jit.ScriptModule,
        method: str = "forward",
        *,
        dry_run: bool = False,
        inplace: bool = False,
        verify: Inputs | None = None,
    ) -> RewriteResult:
        """Rewrite every match; see `rewrite`."""
        return rewrite(module, [self], method, dry_run=dry_run, inplace=inplace, verify=verify)

    def explain(self, module: torch.jit.ScriptModule, method: str = "forward") -> Explanation:
        """Say for each place where the pattern could end whether it matches, and if not, why.

        The candidates are the operators of the kind that the pattern's last operator has.
        """
        rule = self.compile()
        subject = own(module, method)
        rows = _C.explain_rule(subject.module, method, rule)
        places = tuple(Place(name, source, n, rule.size, why) for name, source, n, why in rows)
        kinds = self.alternatives.get(rule.anchor, [rule.anchor])
        return Explanation(self.name, " or ".join(kinds), places)

    def register(self, summary: str) -> None:
        """Register the rule as a pass of its name."""
        register_rules(self.name, [self], summary=summary)


def register_rules(name: str, rules: Sequence[RewriteRule], *, summary: str) -> None:
    """Register rules as one pass, for pipelines and schedules.

    Args:
        name: of the pass; unique.
        rules: tried at each node in this order; the first that matches wins.
        summary: one line for the table of passes.

    Raises:
        JitPassesError: the name is taken, the summary is empty, or a rule is not valid.
    """
    try:
        _C.register_rules_pass(name, summary, [rule.compile() for rule in rules])
    except RuntimeError as error:
        raise JitPassesError(first_line(error)) from error


def replace_pattern(
    module: torch.jit.ScriptModule,
    pattern: Source,
    replacement: Source,
    method: str = "forward",
) -> torch.jit.ScriptModule:
    """Return a copy with a pattern replaced everywhere: a `RewriteRule` without a name.

    Args:
        module: not changed.
        pattern: see `RewriteRule`.
        replacement: see `RewriteRule`.
        method: the method whose graph is rewritten.

    Raises:
        JitPassesError: the pattern or the replacement is not valid.
    """
    return RewriteRule("replace_pattern", pattern, replacement).apply(module, method).module


def _graph(source: Source, what: str) -> Any:
    """Return IR text as it is, and the resolved graph of a function."""
    if isinstance(source, str):
        return source
    if isinstance(source, torch.jit.ScriptFunction):
        function = source
    elif not inspect.isfunction(source):
        instead = f": write a function that calls it, def {what}(x: torch.Tensor)"
        raise JitPassesError(
            f"the {what} is a typed function or IR text, not {source!r}{instead * callable(source)}"
        )
    elif source.__name__ == "<lambda>":
        raise JitPassesError(
            f"the {what} is a lambda, which TorchScript does not compile: write a function with "
            f"def, def {what}(x: torch.Tensor)"
        )
    else:
        try:
            with own_work():
                function = torch.jit.script(source)
        except Exception as error:
            raise JitPassesError(f"the {what} does not compile: {first_line(error)}") from error
    graph = function.graph.copy()
    _C.inline_graph(graph)
    RESOLVE.run_on(GraphSubject(graph))
    _unpack_tuple(graph)
    return graph


def _unpack_tuple(graph: Any) -> None:
    """Turn a function's tuple of results into several results."""
    outputs = list(graph.outputs())
    if len(outputs) != 1 or outputs[0].node().kind() != "prim::TupleConstruct":
        return
    made = outputs[0].node()
    parts = list(made.inputs())
    graph.eraseOutput(0)
    for part in parts:
        graph.registerOutput(part)
    made.destroy()
