"""Scale and zero point of each place: found in data, trained, fixed or derived."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..errors import JitPassesError, count_of, shortened, warn
from ..observers import Fixed
from ..specification.bias import ACCUMULATOR, fits, fitting_scales, largest_code, with_scale
from ..specification.parameters import ChosenQParams, QParams
from ..specification.qparams import count_beyond, derive_qparams, fixed_qparams
from ..specification.specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
)
from .seen import QuantizedPlace


@dataclass(frozen=True)
class Chosen:
    """The parameters of a model.

    Attributes:
        at: by the id of the place; places whose values stay float are left out.
        remarks: by the name of an operator, the scales that its bias has raised, and the function
            that its range goes by.
    """

    at: Mapping[int, QParams | ChosenQParams]
    remarks: Mapping[str, str]


def choose_parameters(
    places: list[QuantizedPlace],
    refused: dict[str, str],
    through: Callable[..., Iterable[QuantizedPlace]] = iter,
) -> Chosen:
    """Return the parameters of all places that are quantized.

    Args:
        places: all places of the model.
        refused: names of operators that stay in float, and why.
        through: wraps the iteration over the places: a progress bar.

    Warns:
        JitPassesWarning: a bias does not fit its integers, since its scales are fixed.
    """
    groups = _Groups(places, refused)
    for known in through(places):
        groups.choose(known)
    groups.fit_biases()
    found = {known.place.id: groups.parameters_at(known) for known in places}
    chosen = {id: parameters for id, parameters in found.items() if parameters is not None}
    return Chosen(chosen, groups.remarks)


class _Groups:
    """The parameters of each group of values that share them."""

    def __init__(self, places: list[QuantizedPlace], refused: dict[str, str]) -> None:
        self._refused = refused
        self._leaders: dict[int, list[QuantizedPlace]] = {}  # places whose values are measured
        for known in places:
            if known.place.observed and self._stays(known):
                self._leaders.setdefault(known.place.group, []).append(known)
        self._found: dict[int, QParams | None] = {}
        self.remarks: dict[str, str] = {}

    def choose(self, known: QuantizedPlace) -> None:
        """Choose the parameters of the group that a place is in."""
        if not known.place.is_dynamic and self._stays(known):
            self._of_group(known.place.group)

    def parameters_at(self, known: QuantizedPlace) -> QParams | ChosenQParams | None:
        """Return the parameters at one place; None where the value stays float."""
        if known.place.is_dynamic and self._stays(known):
            return _chosen(known.place.spec)
        return self._of_group(known.place.group) if self._stays(known) else None

    def fit_biases(self) -> None:
        """Raise scales of inputs and weights until biases in steps of both fit their integers.

        Warns:
            JitPassesWarning: a constant does not fit the parameters that are derived for it.
        """
        raised, unsure = False, []
        for group, known, function in self._derived():
            chosen = self._found.get(group)
            if chosen is None or (function == ACCUMULATOR and fits(known.operands["x"], chosen)):
                continue
            unsure.append((group, known))
            if function == ACCUMULATOR:
                raised |= self._fit(group, known, chosen)
        if raised:
            for group in [group for group in self._found if self._sources(group)]:
                del self._found[group]  # to be derived anew
        for group, known in unsure:
            if (parameters := self._of_group(group)) is not None:
                _check_fit(known, parameters)

    def _derived(self) -> Iterator[tuple[int, QuantizedPlace, str]]:
        """Yield the constants with derived parameters: group, place, and the function's name."""
        for group, leaders in self._leaders.items():
            for known in leaders:
                spec = known.place.spec
                if isinstance(spec, GroupDerivation) and known.constant:
                    yield group, known, spec.function

    def _fit(self, group: int, known: QuantizedPlace, chosen: QParams) -> bool:
        """Raise scales for a bias that does not fit, and say whether they are free to be raised."""
        bias, sources = known.operands["x"], self._sources(group)
        inputs, weight = (self._found[source] for source in sources)
        assert inputs is not None and weight is not None
        free = self._is_found(sources[0]), self._is_found(sources[1])
        scales = fitting_scales(bias, largest_code(chosen), inputs, weight, free)
        for i, (source, before) in enumerate(zip(sources, (inputs, weight), strict=True)):
            if free[i]:
                spec = self._leaders[source][0].place.spec
                self._found[source] = with_scale(before, scales[i], spec)
        self._remark(known, _raised((inputs, weight), scales))
        return any(free)

    def _remark(self, known: QuantizedPlace, sentence: str) -> None:
        owner = known.place.owner
        self.remarks[owner] = "; ".join(filter(None, (self.remarks.get(owner, ""), sentence)))

    def _is_found(self, group: int) -> bool:
        """Say whether data or training have found the parameters of a group."""
        spec = self._leaders[group][0].place.spec
        return isinstance(spec, QuantizationSpec) and not isinstance(spec.observer, Fixed)

    def _stays(self, known: QuantizedPlace) -> bool:
        place = known.place
        users_refused = bool(place.users) and all(u in self._refused for u in place.users)
        return place.owner not in self._refused and not users_refused and known.reached

    def _of_group(self, group: int) -> QParams | None:
        pending = [group]  # not recursive: derivations may be many, one after another
        while pending:
            last = pending[-1]
            missing = [source for source in self._sources(last) if source not in self._found]
            if missing and last not in self._found:
                pending += missing
            else:
                if last not in self._found:
                    self._found[last] = self._choose(last)
                pending.pop()
        return self._found[group]

    def _sources(self, group: int) -> tuple[int, ...]:
        leaders = self._leaders.get(group)
        spec = leaders[0].place.spec if leaders else None
        return spec.groups if isinstance(spec, GroupDerivation) else ()

    def _choose(self, group: int) -> QParams | None:
        leaders = self._leaders.get(group)
        if not leaders:
            return None
        spec = leaders[0].place.spec
        if isinstance(spec, FixedQParamsQuantizationSpec):
            return fixed_qparams(spec)
        if isinstance(spec, QuantizationSpec):
            if (function := leaders[0].function()) is not None:
                name = next((n.name for n in reversed(function.nodes) if n.name), "its function")
                self._remark(leaders[0], f"the range of its result gives {name} the least error")
            return leaders[0].found()
        sources = [self._found[source] for source in spec.groups]
        known = [source for source in sources if source is not None]
        if len(known) < len(sources):
            return None
        parameters = derive_qparams(spec, known, leaders[0].place.name)
        _check_channels(parameters, leaders)
        return parameters


def _chosen(spec: ResolvedSpec) -> ChosenQParams:
    assert isinstance(spec, QuantizationSpec)
    grid = (spec.quant_min, spec.quant_max, spec.dtype)
    return ChosenQParams(*grid, spec.qscheme, spec.range_form)


def _check_channels(parameters: QParams, places: list[QuantizedPlace]) -> None:
    scale = parameters.scale
    found = tuple(scale.shape) if isinstance(scale, torch.Tensor) else ()
    for place in (known.place for known in places):
        if place.scales and place.scales != found:
            assert isinstance(place.spec, GroupDerivation)
            raise JitPassesError(
                f"'{place.name}' has {place.scales[0]} channels, and "
                f"{place.spec.function} derived parameters for {sum(found)}"
            )


def _raised(before: Sequence[QParams], scales: Sequence[float | torch.Tensor]) -> str:
    """Say which scales of input and weight a bias has raised."""
    raised = [
        torch.as_tensor(scale > known.scale).reshape(-1)
        for known, scale in zip(before, scales, strict=True)
    ]
    parts = ["the scale of its input"] if raised[0].any() else []
    if channels := raised[1].nonzero().reshape(-1).tolist():
        names = shortened([str(channel) for channel in channels], 3)
        one = f"{len(channels)} of {count_of(len(raised[1]), 'channel')} of its weight ({names})"
        parts.append(f"the scale of {one}" if len(raised[1]) > 1 else "the scale of its weight")
    return f"its bias has raised {' and '.join(parts)}" if parts else ""


def _check_fit(known: QuantizedPlace, chosen: QParams) -> None:
    """Warn of numbers of a constant that are beyond its integers."""
    constant = known.operands["x"]
    if beyond := count_beyond(constant, chosen):
        what = "bias: {dtype: float}" if known.place.slot == "bias" else "dtype: float"
        warn(
            f"{count_of(beyond, 'number')} of '{known.place.name}' are cut off: its scale, from "
            f"{float(torch.as_tensor(chosen.scale).min()):.3g} on, follows from others that are "
            f"fixed, and is too small for {float(constant.abs().max()):.3g}. Give these a larger "
            f"range, or say {what} for it"
        )
