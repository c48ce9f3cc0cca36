"""The record of a quantized value, which every stage holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import JitPassesError
from ..observers import Observer
from .annotation import ANY_RANK
from .specification import (
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    QuantizationSpec,
    ResolvedSpec,
)

FORMAT = 4  # of the text; another number for each change that older versions cannot read
_BEFORE_SPEC = f', "format": {FORMAT}, "spec": '
_KINDS: dict[str, type[ResolvedSpec]] = {
    "observed": QuantizationSpec,
    "fixed": FixedQParamsQuantizationSpec,
    "derived": GroupDerivation,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A place at which a value is quantized, from annotation to parity and export.

    Operators that observe the value, or that a model trains with there, carry its text as their
    last operand, `spec`.

    Attributes:
        id: its number, in the order in which places are planned.
        name: its name in messages and files.
        slot: its role at its operator: "weight", "input", "output", "bias", ...; the names of its
            parameters and buffers start with it.
        spec: how it is quantized; one for all of a group.
        group: number of the values that have the same parameters.
        observed: whether this value's numbers count when the group's parameters are chosen.
        owner: name of the operator that is quantized as a whole or not at all: for results, and
            for constant operands; else "".
        users: names of the operators that see it quantized; none for a result, which all see.
        ranks: see `QuantizationAnnotation`.
        scales: shape of its scales, [channels] or [channels, groups]; empty per tensor, or if that
            is not known ahead of time.
        method: the record of the training method that stands there, if one does.
    """

    id: int
    name: str
    slot: str
    spec: ResolvedSpec
    group: int
    observed: bool = True
    owner: str = ""
    users: tuple[str, ...] = ()
    ranks: tuple[int, int] = ANY_RANK
    scales: tuple[int, ...] = ()
    method: Mapping[str, Any] | None = None

    @property
    def is_dynamic(self) -> bool:
        """Whether its parameters come from the value, each time the model runs."""
        return isinstance(self.spec, QuantizationSpec) and self.spec.is_dynamic

    @property
    def is_parameter(self) -> bool:
        """Whether it is a weight or bias, the model's own or computed from the model's own."""
        return self.slot in ("weight", "bias")

    def to_text(self) -> str:
        """Return JSON that begins with the id, which C++ reads without a parser."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "spec"}
        return f"{json.dumps(own)[:-1]}{_BEFORE_SPEC}{_spec_to_json(self.spec)}}}"

    @classmethod
    def from_text(cls, text: str) -> Place:
        """Read the text of `to_text`.

        Raises:
            JitPassesError: another version of this package wrote it.
        """
        before, separator, spec = text.partition(_BEFORE_SPEC)
        try:
            own = json.loads(f"{before}}}") if separator else None
        except ValueError:
            own = None
        if own is None:
            written = re.search('"format": ([0-9]+)', text)
            was = f"in format {written[1]}" if written else "before it had a number"
            raise JitPassesError(
                f"the model was prepared by another version of jit_passes, which wrote its places "
                f"{was}, and this one reads format {FORMAT}: prepare the float model again, or "
                "convert with the version that prepared it"
            )
        own |= {name: tuple(own[name]) for name in ("users", "ranks", "scales")}
        return cls(**own, spec=_spec_from_json(spec[:-1]))


def spec_to_text(spec: ResolvedSpec, **extra: Any) -> str:
    """Return a specification, with further entries to keep, as JSON."""
    return json.dumps({"spec": _spec_to_dict(spec), **extra}, sort_keys=True)


def spec_from_text(text: str) -> tuple[ResolvedSpec, dict[str, Any]]:
    """Read the text of `spec_to_text`: the specification, and the further entries."""
    extra = json.loads(text)
    return _spec_from_dict(extra.pop("spec")), extra


@lru_cache(4096)  # one specification stands at hundreds of places
def _spec_to_json(spec: ResolvedSpec) -> str:
    return json.dumps(_spec_to_dict(spec))


@lru_cache(4096)
def _spec_from_json(text: str) -> ResolvedSpec:
    return _spec_from_dict(json.loads(text))


def _spec_to_dict(spec: ResolvedSpec) -> dict[str, Any]:
    content = dict(vars(spec))
    if isinstance(spec, QuantizationSpec):
        content["observer"] = spec.observer.record()
    return {
        "kind": next(kind for kind, known in _KINDS.items() if isinstance(spec, known)),
        **content,
    }


def _spec_from_dict(content: dict[str, Any]) -> ResolvedSpec:
    content = dict(content)
    kind = _KINDS[content.pop("kind")]
    if "observer" in content:
        content["observer"] = Observer.from_record(content["observer"])
    if "groups" in content:
        content["groups"] = tuple(content["groups"])
    return kind(**content)
