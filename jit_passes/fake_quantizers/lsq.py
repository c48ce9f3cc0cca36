"""Scales that are trained: LSQ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..errors import ArgumentError, JitPassesError, not_among
from ..specification.parameters import QParams
from ..specification.specification import QuantizationSpec
from .fake_quantizer import FakeQuantizer
from .moving_average import by_range
from .place import Operator, State, TrainingPlace, by_channel, trained_grid, unset

ACTIVATIONS = ("auto", "lsq", "max", "klj", "mean_squared_error", "three_sigma")
WEIGHTS = ("auto", "lsq", "max", "three_sigma")
PAPER_BITS = 4  # with more, calibration's start is better than the paper's


@dataclass(frozen=True)
class LSQ(FakeQuantizer):
    """Learned step size quantization.

    x^ = round(clip(x / scale, -Q_N, Q_P)) * scale

    d x^ / d scale = round(x / scale) - x / scale within, -Q_N or Q_P beyond
    d x^ / d x     = 1 within, 0 beyond

    The gradient of the scale is multiplied by g = 1 / sqrt(N Q_P), N the number of weights, or of
    features of one sample, that share it. Scales are parameters `<slot>_scale`, float32 of shape
    [1] or [channels]. Scales of weights start at once, scales of activations with the first batch
    in training mode:

    "lsq":                 2 mean|x| / sqrt(Q_P)
    "max":                 max|x| / max(Q_N, Q_P)
    "three_sigma":         max(|mean - 3 std|, |mean + 3 std|) / max(Q_N, Q_P)
    "klj":                 as the observer `KLJ`, activations only
    "mean_squared_error":  the least squared error, activations only
    "auto":                "lsq" with 4 bits and fewer; with more, as in calibration: "max" for
                           weights, and for activations "mean_squared_error", or "max" where
                           channels have scales of their own

    "lsq" has codes up to 2 sqrt(Q_P) mean|x|. With 4 bits numbers end about there, and with 8 they
    end at a quarter of it, so two bits are never used.

    "max" clips a positive maximum by a step rather than leave a code unused: max|x| / Q_P has 2.6
    times the squared error on normally distributed numbers with 2 bits, 1.8 with 3 and 1.3 with 4.
    Values that cannot be below 0 have Q_N = 0. A scale that a step takes to 0 or below is put back,
    told and counted: see `scale_corrections`.

    Attributes:
        weights: how the scales of weights start.
        activations: how the scales of activations start.
        per_sample: whether N counts the features of one sample, as the paper says, or of the whole
            batch, as some programs do.

    Source: Esser et al., "Learned step size quantization", arXiv:1902.08153, equations 1 to 5,
    sections 2.1 and 2.2.
    """

    name: ClassVar[str] = "lsq"
    weights: str = "auto"
    activations: str = "auto"
    per_sample: bool = True

    def __post_init__(self) -> None:
        check_rule("weights", self.weights, WEIGHTS)
        check_rule("activations", self.activations, ACTIVATIONS)

    def operator(self, place: TrainingPlace) -> Operator:
        """Return train_lsq."""
        spec = place.spec
        assert isinstance(spec, QuantizationSpec)
        if (ranged := by_range(place)) is not None:
            return ranged
        if spec.power_of_two:
            raise JitPassesError(
                f"'{place.name}' is to have a power of two as scale, which LSQ does not train: use "
                "the method 'tqt' or 'moving_average'"
            )
        low, high = trained_grid(place)
        rule, initial = self._rule_at(place), unset(place)
        if place.weight is not None:
            initial = scale_of(place, rule, low, high)
        return Operator(
            "train_lsq",
            {
                "scale": State("scale", initial, trained=True),
                "rule": rule,
                "per_sample": self.per_sample and not place.is_parameter,
                "zero_point": spec.quant_min - low,
                "quant_min": low,
                "quant_max": high,
            },
            scale=("scale", low, high),
        )

    def _rule_at(self, place: TrainingPlace) -> str:
        """Return the rule for the first scale of a place."""
        rule, spec = self.weights if place.is_parameter else self.activations, place.spec
        assert isinstance(spec, QuantizationSpec)
        if rule != "auto":
            return rule
        if spec.quant_max - spec.quant_min < 1 << PAPER_BITS:
            return "lsq"
        one_scale = spec.ch_axis is None and not place.is_parameter
        return "mean_squared_error" if one_scale else "max"

    def qparams(
        self, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return the trained scale, and the code that means 0."""
        return scale_qparams(operands["scale"], operands["quant_min"], spec)


def check_rule(what: str, rule: str, known: tuple[str, ...]) -> None:
    """Raise an error for an unknown rule."""
    if rule not in known:
        raise ArgumentError(not_among(f"the start of {what}", rule, known))


def scale_of(place: TrainingPlace, rule: str, low: int, high: int) -> torch.Tensor:
    """Return the scales that a weight begins with, one or one for each channel."""
    assert place.weight is not None
    rows = by_channel(place.weight, place)
    if rule == "lsq":
        scale = 2 * rows.abs().mean(1) / math.sqrt(high)
    elif rule == "max":
        scale = rows.abs().amax(1) / max(-low, high)
    else:
        mean, deviation = rows.mean(1), rows.std(1, correction=0)
        largest = torch.maximum((mean - 3 * deviation).abs(), (mean + 3 * deviation).abs())
        scale = largest / max(-low, high)
    return scale.clamp_min(torch.finfo(torch.float32).eps).float()


def scale_qparams(scale: torch.Tensor, quant_min: int, spec: QuantizationSpec) -> QParams | None:
    """Return the parameters of a trained scale; None for one that no batch has set.

    Args:
        scale: float32 [1] or [channels].
        quant_min: the smallest code in training, counted from the code of 0.
        spec: the specification of the value.
    """
    if bool(scale.isinf().all()):
        return None
    grid = (spec.quant_min, spec.quant_max, spec.dtype, spec.rounding)
    zero = spec.quant_min - quant_min
    scales = positive(scale).double()
    if spec.ch_axis is None:
        return QParams(float(scales), zero, None, *grid)
    return QParams(scales, torch.full(scales.shape, zero), spec.ch_axis, *grid)


def positive(scale: torch.Tensor) -> torch.Tensor:
    """Return the scale as the operator reads it, if the last step took it to 0 or below."""
    scale = scale.detach().cpu()
    return torch.where(scale > 0, scale, scale.abs().clamp_min(torch.finfo(torch.float32).eps))
