"""Thresholds that are trained, and powers of two as scales: TQT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..errors import JitPassesError
from ..specification.parameters import QParams
from ..specification.specification import QuantizationSpec
from .fake_quantizer import FakeQuantizer
from .lsq import check_rule, scale_qparams
from .moving_average import by_range
from .place import Operator, State, TrainingPlace, by_channel, trained_grid, unset

ACTIVATIONS = ("klj", "max", "three_sigma", "mean_squared_error")
WEIGHTS = ("three_sigma", "max")


@dataclass(frozen=True)
class TQT(FakeQuantizer):
    """Trained quantization thresholds.

    scale = 2^ceil(log2_threshold) / 2^(bits - 1) with signs, / 2^bits without
    x^    = clip(round(x / scale), quant_min, quant_max) * scale

    d x^ / d log2_threshold = scale ln 2 {round(x / scale) - x / scale within,
                                          quant_min or quant_max beyond}

    where the rounded code decides which values are within; the ceiling is passed straight through.
    Thresholds are parameters `<slot>_log2_threshold`, float32 of shape [1] or [channels].
    Thresholds of weights start at once, thresholds of activations with the first batch in training:

    "three_sigma":         |mean(x + 1e-6)| + 3 std
    "max":                 max|x|
    "klj":                 as the observer `KLJ`, activations only
    "mean_squared_error":  the least squared error, activations only

    For integer arithmetic that rescales by shifting, specifications are power_of_two, as
    `PowerOfTwoQuantizer` gives them. Other ones are trained too, and get powers of two as well.

    Attributes:
        weights: how the thresholds of weights start.
        activations: how the thresholds of activations start.

    Source: Jain et al., "Trained quantization thresholds for accurate and efficient fixed-point
    inference of deep neural networks", arXiv:1903.08066, equations 4, 7 and 8, and table 2.
    """

    name: ClassVar[str] = "tqt"
    weights: str = "three_sigma"
    activations: str = "klj"

    def __post_init__(self) -> None:
        check_rule("weights", self.weights, WEIGHTS)
        check_rule("activations", self.activations, ACTIVATIONS)

    def operator(self, place: TrainingPlace) -> Operator:
        """Return train_tqt."""
        if (ranged := by_range(place)) is not None:
            return ranged
        low, high = trained_grid(place)
        if low > 0 or high <= 0:
            raise JitPassesError(
                f"the codes [{low}, {high}] of '{place.name}' do not hold 0 and a number above it"
            )
        initial = unset(place)
        if place.weight is not None:
            initial = threshold_of(place, self.weights).log2()
        return Operator(
            "train_tqt",
            {
                "log2_threshold": State("log2_threshold", initial, trained=True),
                "rule": self.weights if place.is_parameter else self.activations,
                "quant_min": low,
                "quant_max": high,
            },
            scale=("log2_threshold", low, high),
        )

    def qparams(
        self, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return the power of two that the threshold stands for, and the code that means 0."""
        threshold = operands["log2_threshold"].detach().cpu()
        low, high = operands["quant_min"], operands["quant_max"]
        bits = math.ceil(math.log2(max(-low, high + 1)))
        return scale_qparams(torch.exp2(threshold.double().ceil() - bits), low, spec)


def threshold_of(place: TrainingPlace, rule: str) -> torch.Tensor:
    """Return the thresholds that a weight begins with, one or one for each channel."""
    assert place.weight is not None
    rows = by_channel(place.weight, place)
    if rule == "max":
        threshold = rows.abs().amax(1)
    else:
        threshold = (rows + 1e-6).mean(1).abs() + 3 * rows.std(1, correction=0)
    return threshold.clamp_min(torch.finfo(torch.float32).eps).float()
