"""The reference model that engines are compared with."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ... import _C
from ...errors import JitPassesError
from ...graph.view import GraphView
from ...stages.lower import lowered
from ...stages.module import CONVERTED, Report, part_of, stage_of
from ...stages.recording import copy_of
from ...targets import FixedPoint, Target
from ...targets.fixed_point.rescale import ROUNDINGS, rounding_of_codes
from ...targets.reference_nodes import parameters_of, unrounded
from ...targets.units import QUANTIZE
from ..places import sites_of
from .values import Grid, Watched, grids_of


@dataclass(frozen=True)
class Subject:
    """A reference model, its report, and the grids of its values and results.

    Attributes:
        model: the reference model.
        report: of it.
        grids: by name.
    """

    model: torch.jit.ScriptModule
    report: Report
    grids: Mapping[str, Grid]

    @classmethod
    def of(cls, model: torch.jit.ScriptModule, method: str, target: str = "reference") -> Subject:
        """Return the subject.

        Args:
            model: the reference model.
            method: of a model with several quantized methods, which.
            target: that the command's advice names, if the model is another one.

        Raises:
            JitPassesError: the model is no reference model.
        """
        part = part_of(model, method)
        report = stage_of(
            part,
            CONVERTED,
            "call jit_passes.convert(prepared) first",
            command=f"make a reference model with `jit-passes quantize --target {target}` first",
        )
        if not report.is_reference:
            name = report.target.get("name")
            why = f"the model is lowered for {name!r}, and engines are compared with the reference"
            raise JitPassesError(
                f"{why}: pass the model that jit_passes.convert returns",
                command=f"{why}: quantize with --target {target}{_rounding_of(report.target)}",
            )
        return cls(part, report, grids_of(part, report))

    @cached_property
    def graph(self) -> GraphView:
        """The graph of the method."""
        return GraphView.of(self.model, self.report.method)

    @cached_property
    def files(self) -> dict[Any, Path]:
        """Files of ONNX by the sizes of inputs, which engines share."""
        return {}

    @cached_property
    def folder(self) -> tempfile.TemporaryDirectory[str]:
        """The folder of these files, which goes with the subject."""
        return tempfile.TemporaryDirectory()

    @property
    def powers_of_two(self) -> bool:
        """Whether all scales are powers of two, with zero point 0 where they are computed."""
        sites = sites_of(copy_of(self.model, self.report.method), self.report)
        computed = all(not any(value.zero_point) for value in self.report.values)
        return computed and all(
            is_power(scale)
            for site in sites
            for scale in torch.as_tensor(site.scale, dtype=torch.float64).flatten().tolist()
        )

    @property
    def fixed_point(self) -> FixedPoint:
        """The target `fixed_point` that fits: the model's own, or by its scales and roundings.

        Raises:
            JitPassesError: a value is rounded as no `fixed_point` rounds.
        """
        made_for = Target.from_record(self.report.target)
        if isinstance(made_for, FixedPoint):
            return made_for
        made = [node for node in self.graph.nodes if node.kind == QUANTIZE]
        found = {parameters_of(quantize).rounding for quantize in made}
        if unknown := found.difference(ROUNDINGS.values()):
            value = next(x for x in made if parameters_of(x).rounding in unknown)
            raise JitPassesError(
                f"'{unrounded(value).name}' is rounded {parameters_of(value).rounding}, and "
                f"fixed_point has {', '.join(ROUNDINGS.values())}"
            )
        rounding = next((name for name, word in ROUNDINGS.items() if found == {word}), "half_even")
        return FixedPoint("shift" if self.powers_of_two else "multiplier", rounding)

    def lowered(self, target: Target) -> torch.jit.ScriptModule:
        """Return the model lowered for a target, whichever it was made for."""
        module = _C.clone(self.model._c, self.report.method)
        return lowered(module, replace(self.report, target=target.record()), target, False)

    def named(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Return the arguments of a batch by name."""
        args, kwargs = arguments
        schema = getattr(self.model, self.report.method).schema
        names = [argument.name for argument in schema.arguments[1:]]
        return dict(zip(names, args, strict=False)) | dict(kwargs)

    def watched(self, model: torch.jit.ScriptModule | None = None) -> Watched:
        """Return a module that gives the codes of values, of the model or of a lowered one."""
        other = self.model if model is None else model
        report = Report.read(other)
        assert report is not None
        return Watched(other, report, self.grids)


def _rounding_of(record: Mapping[str, Any]) -> str:
    """Return how a configuration asks for a target's rounding; "" for halves to even."""
    made_for_integers = record["name"] == FixedPoint.name
    word = rounding_of_codes(record["options"]["rounding"]) if made_for_integers else "half_even"
    if word == "half_even":
        return ""
    tensor = f"{{rounding: {word}}}"
    return f", and for its rounding `global: {{input: {tensor}, output: {tensor}}}` in --config"


def is_power(scale: float) -> bool:
    """Say whether a scale is a power of two."""
    return scale > 0 and math.frexp(scale)[0] == 0.5
