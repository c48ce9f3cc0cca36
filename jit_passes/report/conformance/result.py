"""The result of `conformance`: a table, and where engines part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...errors import UnknownNameError, aligned, count_of, nearest
from ...tables import html_table


@dataclass(frozen=True)
class EngineValue:
    """The codes of a value in an engine beside the codes of the reference model.

    Attributes:
        name: of the value; `output` or `output.1` for a result.
        operator: that computes it, `aten::conv2d`; "" for inputs and results.
        source: `file:line` of the model's code.
        engine: which.
        elements: how many codes were compared, over all batches.
        different: how many of them differ.
        largest: the largest difference, in steps.
    """

    name: str
    operator: str
    source: str
    engine: str
    elements: int
    different: int
    largest: int


@dataclass(frozen=True)
class Divergence:
    """The first code, in the order of the graph, at which an engine parts from the reference.

    Attributes:
        name, operator, source, engine: as of `EngineValue`.
        batch: its number, from 0.
        index: of the element in the value.
        reference: the code of the reference model.
        found: the code of the engine.
        steps: the operator's result before rounding, in steps of the value's grid with the zero
            point added, computed in double from the reference model's codes; None where the
            operator has no form in double.
        tie: whether `steps` lies half way between two codes, to within 1e-9; None without `steps`.
    """

    name: str
    operator: str
    source: str
    engine: str
    batch: int
    index: tuple[int, ...]
    reference: int
    found: int
    steps: float | None
    tie: bool | None

    def __str__(self) -> str:
        where = " of ".join(filter(None, (self.operator, self.source)))
        text = (
            f"{self.engine}: first at {self.name}{f' ({where})' if where else ''}, batch "
            f"{self.batch}, element {list(self.index)}: {self.found}, the reference "
            f"{self.reference}"
        )
        if self.steps is None:
            return text
        return f"{text}; before rounding {self.steps:.12g}{', a tie' if self.tie else ''}"


@dataclass(frozen=True)
class Conformance:
    """Codes of one model in several engines; printing it gives a table.

    Attributes:
        rows: for each value in the order of the graph, and each engine that shows it.
        divergences: the first one of each engine that differs.
        missing: engines that did not run, with the reason.
        unseen: for each engine, the names of values that it does not show.
    """

    rows: tuple[EngineValue, ...]
    divergences: tuple[Divergence, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    unseen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether no code differs in the engines that ran."""
        return not any(row.different for row in self.rows)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that ran."""
        return tuple(dict.fromkeys(row.engine for row in self.rows))

    def __getitem__(self, engine: str) -> Divergence | None:
        """Return where an engine parts from the reference; None where it does not.

        Raises:
            JitPassesError: the engine did not run; this is a KeyError too.
        """
        if engine not in self.engines:
            why = self.missing.get(engine) or nearest(str(engine), self.engines)
            raise UnknownNameError(f"engine {engine!r} did not run: {why}")
        return next((d for d in self.divergences if d.engine == engine), None)

    @property
    def summary(self) -> str:
        """The result of each engine, a line each."""
        lines = [*map(str, self.divergences)]
        apart = {divergence.engine for divergence in self.divergences}
        for engine in self.engines:
            if engine not in apart:
                codes = sum(row.elements for row in self.rows if row.engine == engine)
                values = sum(row.engine == engine for row in self.rows)
                lines.append(
                    f"{engine}: {count_of(codes, 'code')} of {count_of(values, 'value')} equal"
                )
        lines += [f"{engine}: did not run: {why}" for engine, why in self.missing.items()]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return all of it as JSON."""
        return json.dumps(self.as_data(), indent=2)

    def as_data(self) -> dict[str, Any]:
        """Return all of it as dicts, lists, strings and numbers."""
        return {"equal": self.equal, "engines": list(self.engines)} | asdict(self)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        names = dict.fromkeys(row.name for row in self.rows)
        cells = {(row.name, row.engine): _cell(row) for row in self.rows}
        engines = self.engines
        rows = [(name, *(cells.get((name, e), "") for e in engines)) for name in names]
        return ("codes that differ", *engines), rows

    def __str__(self) -> str:
        head, rows = self._table()
        return "\n".join((aligned([head, *rows]), self.summary))

    def _repr_html_(self) -> str:
        return html_table(*self._table(), self.summary)


def _cell(row: EngineValue) -> str:
    if not row.different:
        return f"0 of {row.elements}"
    return f"{row.different} of {row.elements}, by {row.largest}"
