"""Codes in several engines beside the codes of the reference model: of a batch, and of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import ArgumentError, JitPassesError, first_line
from ...graph.view import NodeView
from ...stages.batches import Batch, cloned
from ...targets.reference_nodes import unrounded
from ..places import Site
from .engines import ENGINES, Engine
from .result import Conformance, Divergence, EngineValue
from .rounding import NEAR, before_rounding
from .subject import Subject
from .values import Codes, Watched

OwnEngine = Callable[..., Mapping[str, torch.Tensor]]


@dataclass
class Part:
    """The differences that batches have shown.

    Attributes:
        counts: by value and engine: codes compared, codes that differ, the largest difference.
        first: by engine, the first code in the order of the graph at which it parts.
        missing: engines that did not run, with the reason.
    """

    counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    first: dict[str, Divergence] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


class Engines:
    """Engines that are made for a model, and the comparison of their codes.

    Args:
        subject: the reference model.
        named: names that `ENGINES` has, and functions of the caller's, by name.
    """

    def __init__(self, subject: Subject, named: Mapping[str, str | OwnEngine]) -> None:
        self.subject, self.names = subject, names_of(subject)
        self.watched = subject.watched()
        self.sites: dict[str, list[Site]] = self.watched.sites
        self.made: dict[str, Engine] = {}
        self.missing: dict[str, str] = {}
        for name, engine in named.items():
            if not isinstance(engine, str):
                self.made[name] = _own(engine)
                continue
            try:
                self.made[name] = ENGINES[engine](subject)
            except JitPassesError as error:
                self.missing[name] = first_line(error)

    def compare(self, number: int, arguments: Batch) -> Part:
        """Compare the codes of a batch."""
        part = Part(missing=self.missing)
        expected = self.watched(arguments)
        for name, engine in list(self.made.items()):
            try:
                found = engine(arguments)
            except JitPassesError as error:
                self.missing[name] = first_line(error)
                del self.made[name]
                continue
            self._add(part, name, number, arguments, expected, found)
        part.missing = dict(self.missing)
        return part

    def _add(
        self, part: Part, engine: str, batch: int, arguments: Batch,
        expected: Codes, found: Mapping[str, torch.Tensor],
    ) -> None:  # fmt: skip
        if not isinstance(found, Mapping):
            raise ArgumentError(
                f"the engine {engine!r} gave {type(found).__name__}: it returns a mapping from "
                "names of values, or 'output', to tensors of codes"
            )
        if unknown := [name for name in found if name not in self.names]:
            raise JitPassesError(
                f"the engine {engine!r} gives {unknown[0]!r}, which is no quantized value of the "
                f"model: it has {', '.join(self.names)}"
            )
        for name, ours in expected.items():
            if name not in found:
                continue
            theirs = _checked(engine, name, found[name], ours)
            apart = (ours - theirs).abs()
            count = part.counts.setdefault((name, engine), [0, 0, 0])
            count[0] += ours.numel()
            count[1] += int((apart != 0).sum())
            count[2] = max(count[2], int(apart.max()) if apart.numel() else 0)
            known = part.first.get(engine)
            if bool(apart.any()) and (known is None or self.names[name] < self.names[known.name]):
                part.first[engine] = self._divergence(engine, name, batch, arguments, ours, theirs)

    def _divergence(
        self, engine: str, name: str, batch: int, arguments: Batch,
        ours: torch.Tensor, theirs: torch.Tensor,
    ) -> Divergence:  # fmt: skip
        index = tuple((ours != theirs).nonzero()[0].tolist())
        operator, source, steps, tie = *maker_of(self.subject, self.sites, name), None, None
        found = self._steps(name, arguments)
        if found is not None and found.shape == ours.shape:
            steps = float(found[index])
            tie = abs(abs(steps - int(steps)) - 0.5) <= NEAR
        return Divergence(
            name, operator, source, engine, batch, index, int(ours[index]), int(theirs[index]),
            steps, tie,
        )  # fmt: skip

    def _steps(self, name: str, arguments: Batch) -> torch.Tensor | None:
        """Return a value before rounding, in double, from the reference model's own codes."""
        if name not in self.sites:
            return None
        watched = Watched(self.subject.model, self.subject.report, self.subject.grids)
        codes = watched(arguments)
        by_node = {
            sites[0].node: codes[label] for label, sites in self.sites.items() if label in codes
        }
        node = self.subject.graph.nodes[self.sites[name][0].node]
        return before_rounding(self.subject.graph, node, by_node, self.subject.grids[name])


class Comparison:
    """The sum of the differences of batches, in their order."""

    def __init__(self, subject: Subject) -> None:
        self._subject, self._names = subject, names_of(subject)
        self._all = Part()

    def add(self, part: Part) -> None:
        """Add a further batch. An engine that stops in any batch counts in none."""
        for engine, why in part.missing.items():
            self._all.missing.setdefault(engine, why)
        for key, (elements, different, largest) in part.counts.items():
            count = self._all.counts.setdefault(key, [0, 0, 0])
            count[0] += elements
            count[1] += different
            count[2] = max(count[2], largest)
        for engine, found in part.first.items():
            known = self._all.first.get(engine)
            if known is None or self._names[found.name] < self._names[known.name]:
                self._all.first[engine] = found

    def result(self, named: Mapping[str, Any]) -> Conformance:
        """Return the table of engines.

        Raises:
            JitPassesError: none of them has run.
        """
        missing, sites = self._all.missing, self._subject.watched().sites
        counts = {key: n for key, n in self._all.counts.items() if key[1] not in missing}
        seen = {engine for _, engine in counts}
        for engine in named:
            if engine not in seen:
                why = "it shows no value whose grid the reference model knows"
                missing.setdefault(engine, why)
        made = [engine for engine in named if engine not in missing]
        if not made and not self._subject.grids:
            raise JitPassesError(
                "no value of the model has a static grid, so there are no codes to compare: "
                "for the modes dynamic and weight_only compare the results, by `check_onnx` or "
                "`compare`"
            )
        if not made:
            reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise JitPassesError(f"no engine runs: {reasons or 'none was named'}")
        rows, unseen = [], {}
        for name in self._names:
            for engine in made:
                if (count := counts.get((name, engine))) is not None:
                    made_by = maker_of(self._subject, sites, name)
                    rows.append(EngineValue(name, *made_by, engine, *count))
        for engine in made:
            lost = tuple(name for name in self._names if (name, engine) not in counts)
            if lost:
                unseen[engine] = lost
        first = tuple(self._all.first[engine] for engine in made if engine in self._all.first)
        return Conformance(tuple(rows), first, dict(missing), unseen)


def names_of(subject: Subject) -> dict[str, int]:
    """Return the values and results with their order."""
    names = dict.fromkeys((*subject.watched().sites, *subject.grids))
    return {name: place for place, name in enumerate(names)}


def maker_of(subject: Subject, sites: Mapping[str, list[Site]], name: str) -> tuple[str, str]:
    """Return the operator that computes a value, and its line."""
    if name not in sites:
        return "", ""
    node: NodeView | None = subject.graph.nodes[sites[name][0].node]
    assert node is not None
    maker = unrounded(node).producer
    while maker is not None and maker.clip is not None and maker.main_operand.producer:
        maker = maker.main_operand.producer
    return (maker.kind, maker.source) if maker is not None else ("", node.source)


def _own(engine: OwnEngine) -> Callable[[Batch], Mapping[str, torch.Tensor]]:
    def run(arguments: Batch) -> Mapping[str, torch.Tensor]:
        args, kwargs = cloned(arguments)
        try:
            return engine(*args, **kwargs)
        except Exception as error:  # of the caller's code: the other engines go on
            raise JitPassesError(first_line(error)) from error

    return run


def _checked(engine: str, name: str, found: Any, ours: torch.Tensor) -> torch.Tensor:
    """Return an engine's codes as int64."""
    tensor = torch.as_tensor(found)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized:
        raise JitPassesError(
            f"the engine {engine!r} gives {name!r} as {tensor.dtype}: give codes, which are "
            "integers"
        )
    if tensor.shape != ours.shape:
        raise JitPassesError(
            f"the engine {engine!r} gives {name!r} with shape {list(tensor.shape)}, and the "
            f"reference model with {list(ours.shape)}"
        )
    return tensor.to(torch.int64)
