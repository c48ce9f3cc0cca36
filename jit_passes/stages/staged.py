"""The stages around calibration that a configuration or a caller asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..configuration.stages import (
    AUTO,
    BIAS_CORRECTIONS,
    NONE,
    SEARCHED,
    WEIGHT_ROUNDINGS,
    StageOptions,
)
from ..errors import JitPassesError
from ..quantizers.backend import BackendQuantizer
from ..quantizers.base import Quantizer
from .annotate import mode_of
from .batches import InputFn, Sample, batches
from .biased_layers import ZeroBiases
from .correct_bias import BATCHES, correct_bias, correct_by_default
from .equalize import Equalizer
from .prepare import Change, Changes
from .round_weights import DefaultRounding, round_weights
from .smooth import Smoother


@dataclass
class Staged:
    """Changes of the float model, and of the calibrated one; one for all variants of a model.

    Attributes:
        options: which stages.
        model: the float model, for messages about data, and its batch norms.
        data: batches, gone through several times; None for none.
        has_ranges: whether ranges come from elsewhere where there are no data: from a profile.
        quantizer: of the model.
        alone: whether the method is the only one; methods may share weights, and codes of their own
            would end this.
        input_fn, progress: as in `quantize_script`.
        sample: of the data, for calibration to fill; None where nothing needs one.

    Raises:
        JitPassesError: a stage needs data, or does not go with a profile.
    """

    options: StageOptions
    model: torch.jit.ScriptModule
    data: Iterable[Any] | None
    has_ranges: bool
    quantizer: Quantizer
    input_fn: InputFn | None = None
    progress: bool | None = None
    alone: bool = True

    def __post_init__(self) -> None:
        self._check()
        corrects = self.options.bias_correction in BIAS_CORRECTIONS
        again = corrects or self.options.weight_rounding in WEIGHT_ROUNDINGS
        if (again or self.options.equalize is not None) and isinstance(self.data, Iterator):
            self.data = list(self.data)  # gone through more than once
        changes: list[Change] = []
        if (equalize := self.options.equalize) is not None:
            by = None if equalize == AUTO else equalize
            changes.append(
                Equalizer(
                    by, self.data, input_fn=self.input_fn, progress=self.progress, origin=self.model
                )
            )
        self._smoother = self._chosen_smoother()
        changes += [] if self._smoother is None else [self._smoother]
        changes += [ZeroBiases()] if corrects else []
        self.change = Changes(changes)
        by_default = isinstance(self.quantizer, BackendQuantizer) and self.data is not None
        self._corrects = by_default and self.options.bias_correction in (None, AUTO)
        rounds = by_default and self.alone and self.options.weight_rounding in (None, AUTO)
        self._rounding = DefaultRounding() if rounds else None
        self.sample = Sample(BATCHES) if rounds or self._corrects else None

    @property
    def calibrating(self) -> Iterable[Any] | None:
        """The data that are left for calibration, where a stage has gone through an iterator."""
        return self.data if self._smoother is None else self._smoother.data

    def finished(self, prepared: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
        """Return a calibrated model with the codes and biases that are asked for."""
        input_fn, progress = self.input_fn, self.progress
        if self.sample is not None and not self.sample.seen:  # ranges come from a profile
            for batch in batches(self.data or (), input_fn):
                self.sample.look(batch)
        kept = () if self.sample is None else self.sample.kept
        is_enough = len(kept) >= BATCHES
        if (rounding := self.options.weight_rounding) in WEIGHT_ROUNDINGS:
            assert self.data is not None
            prepared = round_weights(
                prepared, self.data, how=rounding, input_fn=input_fn, progress=progress
            )
        elif self._rounding is not None and is_enough:
            prepared = self._rounding(prepared, kept, progress)
        if self._corrects and is_enough:
            return correct_by_default(prepared, kept, progress)
        if (correction := self.options.bias_correction) in BIAS_CORRECTIONS:
            given = None if correction == "statistics" else self.data
            prepared = correct_bias(
                prepared, given, how=correction, model=self.model, input_fn=input_fn,
                progress=progress,
            )  # fmt: skip
        return prepared

    def _chosen_smoother(self) -> Smoother | None:
        smooth = self.options.smooth
        smooth = AUTO if smooth is None else smooth
        from_profile = self.has_ranges and self.data is None
        if smooth == NONE or from_profile:
            return None
        if smooth == AUTO and not (
            isinstance(self.quantizer, BackendQuantizer)
            and mode_of(self.quantizer.configuration) != "weight_only"
        ):
            return None
        strength = None if smooth == AUTO else smooth
        backend = self.quantizer if isinstance(self.quantizer, BackendQuantizer) else None
        if backend is None and strength == SEARCHED:
            raise JitPassesError(
                f"smooth={SEARCHED!r} needs a quantizer of a target, which says how weights are "
                "quantized; or call jit_passes.smooth, whose argument `weight` says it"
            )
        smoother = Smoother(strength, self.data, self.input_fn, self.progress, origin=self.model)
        if backend is not None:
            smoother.rounded, smoother.weights = backend.find_rounded, backend.find_weights
        return smoother

    def _check(self) -> None:
        said = self.options.given()
        smooth = said.get("smooth")
        is_strength = smooth not in (None, AUTO, NONE)
        if self.has_ranges and self.data is None:
            why = "a profile has the ranges of the model as it is; leave one of the two out"
            for name in ["smooth"] * is_strength + ["equalize"] * ("equalize" in said):
                raise JitPassesError(
                    f"{name}={said[name]!r} and a profile: {why}, or profile what "
                    f"jit_passes.{name} returns",
                    command=f"--{name} {said[name]} and --profile: {why}",
                )
        if self.data is not None:
            return
        if is_strength:
            raise JitPassesError(
                f"smooth={smooth} needs calibration data: pass some, or leave it out",
                command="--smooth needs --data or --random",
            )
        if said.get("equalize") == "activations":
            raise JitPassesError(
                "equalize='activations' needs calibration data: pass some, or say 'weights'",
                command="--equalize activations needs --data or --random",
            )
        if said.get("weight_rounding") in WEIGHT_ROUNDINGS:
            rounding = said["weight_rounding"]
            raise JitPassesError(
                f"weight_rounding={rounding!r} needs calibration data: pass some, or leave it out",
                command=f"--weight-rounding {rounding} needs --data or --random",
            )
        if said.get("bias_correction") in ("sequential", "fast"):
            correction = said["bias_correction"]
            raise JitPassesError(
                f"bias_correction='{correction}' needs calibration data: pass some, or say "
                "'statistics'",
                command=f"--correct-bias {correction} needs --data or --random",
            )
