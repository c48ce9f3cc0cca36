"""Checks of modules that come in, and the record that each stage leaves in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch

from .. import _C
from .._version import __version__
from ..errors import JitPassesError, first_line
from ..graph.traits import NOTHING, TRAITS
from ..graph.view import GraphView
from ..passes.subject import check_script
from ..targets.target import Target
from .values import QuantizedValue

REPORT = "jit_passes_report"
PART = "quantized_"  # and a method: the module that has it, in one with several methods


class ModelStage(str, Enum):
    """How far a model is; files have the text."""

    PREPARED = "prepared"
    QAT = "qat"
    REFERENCE = "reference"
    LOWERED = "lowered"

    def __str__(self) -> str:
        return self.value


CONVERTED = (ModelStage.REFERENCE, ModelStage.LOWERED)
ALREADY = "quantized already"


@dataclass(frozen=True)
class OperatorRecord:
    """An operator of the float model with weights, or a product of matrices.

    Attributes:
        name: stable name, `layer1.0.conv1:conv2d`.
        kind: `conv2d`, `linear`, `lstm`, ...
        dtype: "int8" where it is quantized, with any number of bits, or "float".
        reason: why it is float; "" for int8.
        source: `file:line` of the model's code.
        bits: of its weight and its activations, as it was prepared: `w4a8`; `a8` for a product;
            `w8 only` where activations stay in float. "" in float, and in files of versions that
            did not note it.
        mode: how its input is quantized: `static`; `dynamic`, as the model runs; `weight_only`, not
            at all. "" in float, and in files of versions that did not note it.
        why: why it has this mode, where the mode "auto" chose it; else "".
        remark: advice about its numbers, for a user who looks for lost accuracy; "" for none.
            `remarked` adds a sentence.
    """

    name: str
    kind: str
    dtype: str
    reason: str
    source: str
    bits: str = ""
    mode: str = ""
    why: str = ""
    remark: str = ""

    @property
    def precision(self) -> str:
        """Bits where it is quantized and they are known, else the dtype."""
        return self.bits if self.dtype != "float" and self.bits else self.dtype

    @property
    def already(self) -> bool:
        """Whether it was quantized before, and stays as it is."""
        return self.why == ALREADY

    @property
    def explanation(self) -> str:
        """The last column of reports: why it is float, or not static by choice; the remark."""
        chosen = self.why if self.mode != "static" or self.already else ""
        return "; ".join(filter(None, (self.reason or chosen, self.remark)))

    def remarked(self, sentence: str) -> OperatorRecord:
        """Return the record with a further sentence in its remark."""
        return replace(self, remark="; ".join(filter(None, (self.remark, sentence))))

    def in_float(self, reason: str) -> OperatorRecord:
        """Return the record of the operator in float after all; remarks on its codes are void."""
        return replace(self, dtype="float", reason=reason, why="", remark="")


def remarked(
    rows: Iterable[OperatorRecord], remarks: Mapping[str, str]
) -> tuple[OperatorRecord, ...]:
    """Return records with further remarks, which are given by the names of operators."""
    return tuple(row.remarked(remarks.get(row.name, "")) for row in rows)


@dataclass(frozen=True)
class Report:
    """The record of the stages that a module has been through, kept in the module and its file.

    Attributes:
        stage: how far it is.
        method: the quantized method.
        target: the backend's record, see `Target.from_record`.
        operators: all operators with weights and all matrix products.
        calibrated: whether `calibrate` has run batches through it.
        places: for each kind of operator that quantizes, the ids of the places that its nodes in
            the graph stand for, in program order, None for nodes without one. These ids identify a
            converted model's values, also from a file.
        codes: for each range of codes that `convert` has chosen, the smallest one, the largest one
            and the ids of the places that have it. Constants show only the codes that occur.
        plan: stands for the places that `convert` found: see `digest_of`.
        values: the computed values that it quantizes, in program order of the reference model.
        made: the model's provenance: see `provenance`.
        names: for each kind listed above, the names of its nodes in the graph, likewise.
        nothing_fits: whether nothing is quantized, as the target has no operator that was asked
            for. A warning has said so when the model was prepared. False in files of versions that
            did not note it.
    """

    stage: ModelStage
    method: str
    target: dict[str, Any]
    operators: tuple[OperatorRecord, ...] = field(default=())
    calibrated: bool = False
    places: Mapping[str, list[int | None]] = field(default_factory=dict)
    names: Mapping[str, list[str]] = field(default_factory=dict)
    codes: Sequence[tuple[int, int, list[int]]] = ()
    plan: str = ""
    values: Sequence[QuantizedValue] = ()
    made: Mapping[str, Any] = field(default_factory=dict)
    nothing_fits: bool = False

    @property
    def is_reference(self) -> bool:
        """Whether the module is a reference model: not lowered, or for a target that leaves it one.

        Raises:
            JitPassesError: it was lowered for a target that this process does not have.
        """
        if self.stage is ModelStage.LOWERED:
            return Target.from_record(self.target).is_reference
        return self.stage is ModelStage.REFERENCE

    def located(self, module: Any) -> Report:
        """Return the record with where the places and the operators are in the module's graph.

        Regions that were outlined are looked into.
        """
        kinds = {row.kind for row in self.operators}
        names = {
            kind: found
            for kind, found in _C.names_by_kind(module, self.method).items()
            if kind.rpartition("::")[2] in kinds and TRAITS.get(kind, NOTHING).counts
        }
        return replace(self, places=_C.place_ids(module, self.method), names=names)

    def write(self, module: Any) -> None:
        """Write the record, and the sources of names, of a model that a stage will go on with."""
        if self.stage is not ModelStage.LOWERED:
            _C.keep_modules(module, self.method)
        fields = {**vars(self), "operators": [vars(row) for row in self.operators]}
        fields["values"] = [vars(value) for value in self.values]
        versions = {"jit_passes": __version__, "torch": torch.__version__}
        fields["made"] = {k: v for k, v in self.made.items() if k not in versions} | versions
        _C.set_string_attribute(module, REPORT, json.dumps(fields))

    @classmethod
    def read(cls, module: Any) -> Report | None:
        """Return the record of a module; None for one that no stage has seen, or no module.

        Raises:
            JitPassesError: there is a record, and it cannot be read.
        """
        try:
            text = getattr(module, REPORT, None)
        except UnicodeDecodeError as error:
            raise _unreadable(error) from error
        return cls.from_text(text) if isinstance(text, str) else None

    @classmethod
    def from_text(cls, text: str) -> Report:
        """Return the record that a module holds as text.

        Raises:
            JitPassesError: it cannot be read.
        """
        try:
            fields = json.loads(text)
            fields["operators"] = tuple(OperatorRecord(**row) for row in fields["operators"])
            fields["values"] = [QuantizedValue(**value) for value in fields.get("values", ())]
            return cls(**{**fields, "stage": ModelStage(fields["stage"])})
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(error) from error


def _unreadable(error: Exception) -> JitPassesError:
    return JitPassesError(
        f"the record in the model, '{REPORT}', cannot be read: its file is damaged, or of "
        f"another version of jit_passes ({first_line(error)})"
    )


def by_position(graph: GraphView, known: Mapping[str, list[Any]]) -> dict[int, Any]:
    """Return a report's entries on the graph's nodes, by index: its `places` or its `names`."""
    found: dict[int, Any] = {}
    for kind, labels in known.items():
        nodes = [node.index for node in graph.nodes if node.kind == kind]
        if len(nodes) != len(labels):
            raise JitPassesError(
                f"the model has {len(nodes)} {kind}, and its report knows of {len(labels)}: it was "
                "changed after it was converted"
            )
        found.update(zip(nodes, labels, strict=True))
    return found


def part_of(model: Any, method: str) -> Any:
    """Return the module that a quantized method of a model with several is in; else the model."""
    part = getattr(model, f"{PART}{method}", None)
    return model if Report.read(part) is None else part


def quantized_methods(model: Any) -> list[str]:
    """Return the quantized methods of a model with several; none of another model."""
    if not isinstance(model, torch.jit.ScriptModule):
        return []
    children = [name for name, _ in model.named_children() if name.startswith(PART)]
    quantized = sorted(
        name.removeprefix(PART) for name in children if Report.read(getattr(model, name))
    )
    return [name for name in quantized if model._c._has_method(name)]


def quantized_part(model: Any, method: str) -> Any:
    """Return the result of `part_of`, where a method that is quantized is to be looked at.

    Raises:
        JitPassesError: only other methods of the model are quantized.
    """
    part = part_of(model, method)
    if part is model and (others := quantized_methods(model)) and Report.read(model) is None:
        why = f"method '{method}' of the model is not quantized"
        said, options = (
            " or ".join(f"{option}{name}{end}" for name in others)
            for option, end in (("method='", "'"), ("--method ", ""))
        )
        raise JitPassesError(f"{why}: say {said}", command=f"{why}: say {options}")
    return part


def check_module(model: Any, method: str) -> None:
    """Check that the model is a ScriptModule in eval mode that has the method."""
    check_script(model, method)
    if getattr(model, "training", False):
        raise JitPassesError(
            "the module is in training mode, where batch norm and dropout do something else than "
            "in use: call model.eval() first"
        )


def stage_of(
    model: Any,
    wanted: ModelStage | tuple[ModelStage, ...],
    instead: str,
    what: str = "",
    *,
    command: str = "",
) -> Report:
    """Return the record of a module that must have reached a stage, or one of several.

    Args:
        model: the module.
        wanted: the stages.
        instead: the end of the message: the way out.
        what: which of several modules it is, for the message.
        command: the way out on the command line; "" where no command needs it.

    Raises:
        JitPassesError: it has not reached one of them.
    """
    report = Report.read(model)
    stages = (wanted,) if isinstance(wanted, ModelStage) else wanted
    if report is None or report.stage not in stages:
        found = "a module that was not prepared" if report is None else f"a {report.stage} one"
        needed = f"a {' or '.join(map(str, stages))} module"
        said = f"{what} is not {needed}, but" if what else f"{needed} is needed, got"
        why = f"{said} {found}"
        raise JitPassesError(f"{why}: {instead}", command=f"{why}: {command or instead}")
    return report


def converted_report(model: Any, what: str = "") -> Report:
    """Return the record of a reference model, or of a lowered one: see `stage_of`."""
    return stage_of(
        model,
        CONVERTED,
        "call jit_passes.quantize_script, or convert",
        what,
        command="quantize it first, with `jit-passes quantize`",
    )


def attribute_of(model: torch.jit.ScriptModule, path: str) -> torch.Tensor:
    """Return a tensor of the model by its path."""
    owner: Any = model
    for part in path.split("."):
        owner = getattr(owner, part)
    tensor: torch.Tensor = owner
    return tensor
