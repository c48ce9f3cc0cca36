"""`conformance`: one quantized model in several engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ...errors import ArgumentError, JitPassesError, first_line, not_among
from ...graph.view import NodeView
from ...logs import timed
from ...stages.batches import batches, progress_bar
from ..places import Site
from .engines import ENGINES
from .result import Conformance, Divergence, EngineValue
from .rounding import NEAR, before_rounding
from .subject import Subject
from .values import Codes, Watched

DEFAULT = ("fixed_point", "c", "onnxruntime", "onnxruntime_optimized")
REFERENCE = "reference"
OwnEngine = Callable[..., Mapping[str, torch.Tensor]]


@timed
def conformance(
    model: torch.jit.ScriptModule,
    data: Iterable[Any],
    engines: Sequence[str | OwnEngine] = DEFAULT,
    *,
    input_fn: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    method: str = "forward",
) -> Conformance:
    """Compare the codes of a reference model with those that engines compute, value by value.

    An engine runs the model by itself, from floats to codes. It shows the values that it has:
    `fixed_point`, `stock` and `onnxruntime` all of them, `onnxruntime_optimized` all where looking
    does not change its graph, `x86` those between regions, and `c`, `openvino` and `inductor` the
    results. All values before the first one that differs are equal where the engine shows them.

    Args:
        model: the result of `convert`, or of `quantize_script` with target="reference"; it is not
            touched.
        data: batches, as for `calibrate`.
        engines: names, and engines of your own: functions of a batch's arguments that return codes
            by name of a value, as the report has it, or of a result, `output`, `output.1`.
            `reference` is always there.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.
        method: of a model with several quantized methods, which.

    Raises:
        JitPassesError: the model is no reference model; an engine is unknown, two have one name, or
            one of your own gives another shape or no integers; no engine runs; there is no batch.
    """
    subject = Subject.of(model, method)
    made, missing = _made(engines, subject)
    watched, comparison = subject.watched(), _Comparison(subject)
    for number, arguments in enumerate(
        batches(data, input_fn, progress_bar("conformance", progress))
    ):
        expected = watched(arguments)
        for name, engine in list(made.items()):
            try:
                found = engine(arguments)
            except JitPassesError as error:
                missing[name] = first_line(error)
                del made[name]
                comparison.forget(name)
                continue
            comparison.add(name, number, arguments, expected, found)
    for name in [name for name in made if not comparison.has_seen(name)]:
        del made[name]
        missing.setdefault(name, "it shows no value whose grid the reference model knows")
    if not made:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise JitPassesError(f"no engine runs: {reasons or 'none was named'}")
    return comparison.result(made, missing)


def _made(
    engines: Sequence[str | OwnEngine], subject: Subject
) -> tuple[dict[str, Callable[..., Mapping[str, torch.Tensor]]], dict[str, str]]:
    """Return engines by name, and why others do not run."""
    if isinstance(engines, str):
        raise ArgumentError(f"engines is a list of names and functions, not {engines!r}")
    made: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for engine in engines:
        if isinstance(engine, str):
            if engine not in ENGINES:
                raise ArgumentError(not_among("an engine", engine, list(ENGINES)))
            name = engine
        elif callable(engine):
            name = getattr(engine, "__name__", type(engine).__name__)
        else:
            raise ArgumentError(f"an engine is a name or a function, not {engine!r}")
        if name in made or name in missing:
            raise ArgumentError(f"engines has {name!r} twice")
        if isinstance(engine, str):
            try:
                made[name] = ENGINES[name](subject)
            except JitPassesError as error:
                missing[name] = first_line(error)
        else:
            made[name] = _own(engine)
    return made, missing


def _own(engine: OwnEngine) -> Callable[[tuple[Any, ...]], Mapping[str, torch.Tensor]]:
    def run(arguments: tuple[Any, ...]) -> Mapping[str, torch.Tensor]:
        args, kwargs = arguments
        try:
            return engine(*args, **kwargs)
        except Exception as error:  # of the caller's code: the other engines go on
            raise JitPassesError(first_line(error)) from error

    return run


class _Comparison:
    """Counts over batches."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        watched = subject.watched()
        self.sites: dict[str, list[Site]] = watched.sites
        self.names = dict.fromkeys((*self.sites, *subject.grids))
        self.order = {name: place for place, name in enumerate(self.names)}
        self.counts: dict[tuple[str, str], list[int]] = {}
        self.first: dict[str, Divergence] = {}

    def forget(self, engine: str) -> None:
        """Drop what an engine has given that stopped."""
        self.counts = {key: count for key, count in self.counts.items() if key[1] != engine}
        self.first.pop(engine, None)

    def has_seen(self, engine: str) -> bool:
        """Say whether codes of an engine were compared."""
        return any(name == engine for _, name in self.counts)

    def add(
        self, engine: str, batch: int, arguments: tuple[Any, ...],
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
            count = self.counts.setdefault((name, engine), [0, 0, 0])
            count[0] += ours.numel()
            count[1] += int((apart != 0).sum())
            count[2] = max(count[2], int(apart.max()) if apart.numel() else 0)
            known = self.first.get(engine)
            if bool(apart.any()) and (known is None or self.order[name] < self.order[known.name]):
                self.first[engine] = self._divergence(engine, name, batch, arguments, ours, theirs)

    def _divergence(
        self, engine: str, name: str, batch: int, arguments: tuple[Any, ...],
        ours: torch.Tensor, theirs: torch.Tensor,
    ) -> Divergence:  # fmt: skip
        index = tuple((ours != theirs).nonzero()[0].tolist())
        operator, source, steps, tie = *self._maker(name), None, None
        found = self._steps(name, arguments)
        if found is not None and found.shape == ours.shape:
            steps = float(found[index])
            tie = abs(abs(steps - int(steps)) - 0.5) <= NEAR
        return Divergence(
            name, operator, source, engine, batch, index, int(ours[index]), int(theirs[index]),
            steps, tie,
        )  # fmt: skip

    def _maker(self, name: str) -> tuple[str, str]:
        """Return the operator that computes a value, and its line."""
        if name not in self.sites:
            return "", ""
        node: NodeView | None = self.subject.graph.nodes[self.sites[name][0].node]
        assert node is not None
        maker = node.main_operand.producer
        while maker is not None and maker.clip is not None and maker.main_operand.producer:
            maker = maker.main_operand.producer
        return (maker.kind, maker.source) if maker is not None else ("", node.source)

    def _steps(self, name: str, arguments: tuple[Any, ...]) -> torch.Tensor | None:
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

    def result(self, made: Iterable[str], missing: Mapping[str, str]) -> Conformance:
        rows, unseen = [], {}
        for name in self.names:
            for engine in made:
                if (count := self.counts.get((name, engine))) is not None:
                    rows.append(EngineValue(name, *self._maker(name), engine, *count))
        for engine in made:
            lost = tuple(name for name in self.names if (name, engine) not in self.counts)
            if lost:
                unseen[engine] = lost
        first = tuple(self.first[engine] for engine in made if engine in self.first)
        return Conformance(tuple(rows), first, dict(missing), unseen)


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
