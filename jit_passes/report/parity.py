"""Whether a converted model has the values of the model that trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import JitPassesError, UnknownNameError, aligned, count_of, nearest
from ..logs import timed
from ..passes.subject import wrap
from ..stages.batches import batches
from ..stages.convert import digest_of
from ..stages.module import CONVERTED, ModelStage, Report, stage_of
from ..stages.recording import copy_of
from ..stages.seen import read_places
from ..tables import html_table
from .lockstep import Kept, Lockstep, Pair, Seen, check_shapes
from .places import Pairs, TrainedPlace, match, sites_of, trained_places
from .steps import rounded, step_of, value_of

# In steps: rounding in float32 moves a value on a grid by less.
SLACK = 0.05
# As a part of the largest magnitude: it moves results off any grid by less.
FLOAT_TOLERANCE = 1e-5
HEAD = ("value", "kind", "steps", "different", "own steps", "own", "")
_NOTHING = torch.zeros(())


@dataclass(frozen=True)
class ValueParity:
    """The difference between a value of the converted model and of the model that trained.

    Attributes:
        name: of the value where it trained: `bn1:batch_norm`; of a weight, also who reads it.
        kind: "activation", "parameter" or "output".
        operator: the operator that computes it, `aten::conv2d`; "" for parameters and outputs.
        source: `file:line` of the model's code.
        elements: how many were compared, over all batches.
        different: how many of them differ.
        steps: the largest difference in steps of the value's grid; None for outputs, which may have
            none.
        difference: the largest difference.
        own_different, own_steps, own_difference: `different`, `steps` and `difference` of a run in
            which all quantized values before it come from the model that trained. Only the errors
            of the operators since then are left.
    """

    name: str
    kind: str
    operator: str
    source: str
    elements: int
    different: int
    steps: float | None
    difference: float
    own_different: int
    own_steps: float | None
    own_difference: float

    @property
    def inherited(self) -> bool:
        """Whether it differs only because of values before it."""
        return self.different > 0 and self.own_different == 0


@dataclass(frozen=True)
class Parity:
    """How a converted model differs from the model that trained; printing it gives a table.

    Attributes:
        rows: the values in program order of the converted model, then its outputs.
        unmatched: names of values for which the converted model has nothing to compare with.
        atol_steps: how many steps of difference are fine.
    """

    rows: tuple[ValueParity, ...]
    unmatched: tuple[str, ...] = ()
    atol_steps: float = 0

    @property
    def equal(self) -> bool:
        """Whether no value differs."""
        return not any(row.different or row.own_different for row in self.rows)

    @property
    def first(self) -> ValueParity | None:
        """The first value that differs by more than `atol_steps` by itself; None without one."""
        return self._first(self.atol_steps)

    @property
    def largest_steps(self) -> float:
        """The largest difference in steps, inherited ones included."""
        return max((row.steps for row in self.rows if row.steps is not None), default=0.0)

    @property
    def largest_own_steps(self) -> float:
        """The largest difference in steps of a value by itself."""
        return max((row.own_steps for row in self.rows if row.own_steps is not None), default=0.0)

    def __getitem__(self, name: str) -> ValueParity:
        """Return the first row of that name.

        Raises:
            JitPassesError: there is none; this is a KeyError too.
        """
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        raise UnknownNameError(f"no value {name!r} was compared: {nearest(str(name), names)}")

    def _first(self, steps: float) -> ValueParity | None:
        for row in self.rows:
            beyond = row.own_steps is not None and row.own_steps > steps + SLACK
            if beyond or (row.own_steps is None and row.own_different):
                return row
        return None

    def __str__(self) -> str:
        lines = [aligned([HEAD, *map(_cells, self.rows)])]
        if self.unmatched:
            some = ", ".join(self.unmatched[:5]) + (", ..." if len(self.unmatched) > 5 else "")
            lines.append(f"not compared: {count_of(len(self.unmatched), 'value')}: {some}")
        return "\n".join([*lines, self.summary])

    def _repr_html_(self) -> str:
        return html_table(HEAD, map(_cells, self.rows), self.summary)

    @property
    def summary(self) -> str:
        """The result, in a line."""
        if self.equal:
            return "equal"
        worst = self._first(max(self.atol_steps, 1))
        if worst is None:
            own = sum(row.own_different > 0 for row in self.rows)
            return (
                f"within {'one step' if self.atol_steps <= 1 else f'{self.atol_steps:g} steps'}: "
                f"differences of their own: {own} of {count_of(len(self.rows), 'value')}, at most "
                f"{self.largest_own_steps:.3g} steps; with inherited ones, at most "
                f"{self.largest_steps:.3g}"
            )
        what = " of ".join(filter(None, (worst.operator, worst.source)))
        size = f"{worst.own_difference:.3g}"
        if worst.own_steps is not None:
            size = f"{worst.own_steps:.3g} steps"
        return (
            f"first difference: {worst.name}{f' ({what})' if what else ''} by up to {size} in "
            f"{worst.own_different} of {worst.elements} elements"
        )


@timed
def parity(
    qat: torch.jit.ScriptModule,
    converted: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    input_fn: Callable[[Any], Any] | None = None,
    atol_steps: float = 0,
) -> Parity:
    """Compare a converted model with the model that trained, value by value.

    Both models run on each batch. The model that trained runs in eval mode with fake quantization
    on, independent of its switches. The converted model runs a second time. In this run the value
    of the model that trained replaces each quantized value as soon as it is computed and compared.
    A difference in that run is a value's own, and the rest is inherited.

    A reference model is equal: in eval mode, parameters that train are folded and rounded as in
    conversion. Two kinds of values can differ by one step at a tie. Values with LSQ+ are rounded as
    counted from the offset, so halves to even differ where the zero point is odd, and halves away
    from zero where it is not 0. And a model lowered for `stock` adds in integers and rounds by
    itself.

    Args:
        qat: from `prepare_qat`, in any mode; it is not touched.
        converted: the result of `convert` for it, or of `lower`; it is not touched.
        data: batches, as for `calibrate`.
        input_fn: makes a batch of inputs out of an item of `data`.
        atol_steps: how large an own difference may be without being `first`.

    Raises:
        JitPassesError: the first model does not train, or has not trained; the second one was not
            converted; their methods differ, or they have no value in common; there is no batch.
    """
    report = stage_of(qat, ModelStage.QAT, "call jit_passes.prepare_qat first, and train")
    instead = "call jit_passes.convert(qat) first"
    other = stage_of(converted, CONVERTED, instead)
    if other.method != report.method:
        raise JitPassesError(
            f"the model trains its method '{report.method}', and '{other.method}' was converted"
        )
    comparison = _Comparison.of(qat, converted, report, other)
    for arguments in batches(data, input_fn):
        comparison.add(arguments)
    return comparison.result(atol_steps)


@dataclass
class _Tally:
    elements: int = 0
    different: int = 0
    steps: float = 0.0
    difference: float = 0.0

    def add(self, ours: torch.Tensor, theirs: torch.Tensor, step: torch.Tensor) -> None:
        self.elements += ours.numel()
        apart = (ours.double() - theirs.double()).abs()
        apart = torch.where(torch.isnan(ours) & torch.isnan(theirs), 0.0, apart)
        apart = apart.nan_to_num(nan=float("inf"))
        if apart.numel():
            self.different += int((apart > SLACK * step).sum())
            self.steps = max(self.steps, float((apart / step).max()))
            self.difference = max(self.difference, float(apart.max()))


@dataclass
class _Row:
    place: TrainedPlace | None
    name: str
    kind: str
    seen: _Tally = field(default_factory=_Tally)
    own: _Tally = field(default_factory=_Tally)

    def add(self, seen: Seen, step: torch.Tensor) -> None:
        for ours, theirs, own in zip(seen.ours, seen.theirs, seen.own, strict=True):
            check_shapes(ours, theirs, self.name)
            self.seen.add(ours, theirs, step)
            self.own.add(ours, own, step)

    def result(self) -> ValueParity:
        place, gridless = self.place, self.kind == "output"
        return ValueParity(
            self.name,
            self.kind,
            place.operator if place else "",
            place.source if place else "",
            self.seen.elements,
            self.seen.different,
            None if gridless else self.seen.steps,
            self.seen.difference,
            self.own.different,
            None if gridless else self.own.steps,
            self.own.difference,
        )


class _Comparison:
    def __init__(
        self, qat: torch.jit.ScriptModule, converted: torch.jit.ScriptModule, method: str,
        activations: Pairs, parameters: Pairs,
    ) -> None:  # fmt: skip
        self.parameters = [
            (_Row(place, place.name, "parameter"), place, site)
            for place, site in parameters
            if site is not None
        ]
        rows = {
            Pair(place.name, place.node, site): (_Row(place, place.name, "activation"), place)
            for place, site in activations
            if site is not None and not place.derived
        }
        also = [place.node for _, place, _ in self.parameters if not place.derived]
        called = ("the model that trained", "the converted model")
        trained = in_use(qat, method)
        self.models = Lockstep(trained, converted, method, list(rows), also, called=called)
        self.activations = [(*rows[pair], pair.site) for pair in self.models.pairs]
        compared = {place.order for _, place, _ in (*self.activations, *self.parameters)}
        pairs = (*activations, *parameters)
        self.unmatched = tuple(place.name for place, _ in pairs if place.order not in compared)
        self.outputs: dict[str, _Row] = {}
        self.compared_parameters = False

    @classmethod
    def of(
        cls,
        qat: torch.jit.ScriptModule,
        converted: torch.jit.ScriptModule,
        report: Report,
        other: Report,
    ) -> _Comparison:
        _, known = read_places(qat, report)
        if digest_of(known) != other.plan:
            raise JitPassesError(
                "the two models have no value in common: was the converted model made from this "
                "trained model?"
            )
        labels = {value.place: value.label for value in other.values}
        places = trained_places(qat, report, known, labels)
        sites = sites_of(copy_of(converted, other.method), other)
        activations = match(
            [place for place in places if place.constant is None],
            [site for site in sites if site.codes is None],
        )
        weights = match(
            [place for place in places if place.constant is not None],
            [site for site in sites if site.codes is not None],
        )
        return cls(qat, converted, report.method, activations, weights)

    def add(self, arguments: tuple[Any, ...]) -> None:
        pairs, outputs, values = self.models.run(arguments)
        for (row, place, _), (_, seen) in zip(self.activations, pairs, strict=True):
            row.add(seen, step_of(place.parameters, seen.ours))
        if not self.compared_parameters:
            self.compared_parameters = True
            self.add_parameters(values)
        for name, seen in outputs:
            (ours,) = seen.ours
            size = ours.double().abs().nan_to_num(0.0, 0.0).max() if ours.numel() else _NOTHING
            step = (FLOAT_TOLERANCE / SLACK * size).clamp_min(1e-30)
            self.outputs.setdefault(name, _Row(None, name, "output")).add(seen, step)

    def add_parameters(self, values: Kept) -> None:
        for row, place, site in self.parameters:
            assert place.constant is not None and site.codes is not None
            if place.derived:
                ours = rounded(place.constant, place.parameters)
            elif not values.get(place.node):
                continue
            else:
                ours = values[place.node][0]
            theirs = [value_of(site.codes, site)]
            row.add(Seen([ours], theirs, theirs), step_of(place.parameters, [ours]))

    def result(self, atol_steps: float) -> Parity:
        found = sorted((*self.parameters, *self.activations), key=lambda entry: entry[1].order)
        seen = [row for row, _, _ in found if row.seen.elements]
        never = [row.name for row, _, _ in found if not row.seen.elements]
        rows = tuple(row.result() for row in (*seen, *self.outputs.values()))
        return Parity(rows, (*self.unmatched, *never), atol_steps)


def in_use(qat: torch.jit.ScriptModule, method: str) -> Any:
    """Return a C++ copy in eval mode with fake quantization on."""
    module = copy_of(qat, method)
    wrapped = wrap(module)
    wrapped.eval()
    switch = getattr(wrapped, "fake_quantize_enabled", None)
    if isinstance(switch, torch.Tensor):
        switch.fill_(True)
    return module


def _cells(row: ValueParity) -> tuple[str, ...]:
    def steps(count: float | None, difference: float) -> str:
        return f"{difference:.3g}" if count is None else f"{count:.3g}"

    def share(count: int) -> str:
        return f"{count} of {row.elements}"

    return (
        row.name,
        row.kind,
        steps(row.steps, row.difference),
        share(row.different),
        steps(row.own_steps, row.own_difference),
        share(row.own_different),
        "inherited" if row.inherited else "",
    )
