"""Scales and offsets that are trained: LSQ+."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..specification.parameters import QParams
from ..specification.specification import QuantizationSpec
from .fake_quantizer import FakeQuantizer
from .lsq import LSQ, positive, scale_qparams
from .moving_average import by_range
from .place import Operator, State, TrainingPlace, unset


@dataclass(frozen=True)
class LSQPlus(FakeQuantizer):
    """LSQ with an offset for activations.

    x^ = round(clip((x - offset) / scale, quant_min, quant_max)) * scale + offset

    d x^ / d offset = 0 within, 1 beyond; the rest is as for `LSQ`. Activations whose scheme is
    affine have parameters `<slot>_scale` and `<slot>_offset`, [1] each, and begin with the range of
    the first batch that has the least squared error. The offset is rounded to whole steps, with a
    straight-through gradient, so that it is a zero point: both gradients are the equations above at
    the rounded offset. An offset beyond the range of a zero point is put back to the end of the
    range. Weights, and activations with a symmetric scheme, have no offset; scales of weights begin
    with max(|mean - 3 std|, |mean + 3 std|) over the largest code.

    Attributes:
        per_sample: see `LSQ`.

    Source: Bhalgat et al., "LSQ+: improving low-bit quantization through learnable offsets and
    better initialization", arXiv:2004.09576, sections 3 and 4.
    """

    name: ClassVar[str] = "lsq_plus"
    aliases: ClassVar[tuple[str, ...]] = ("lsq+",)
    per_sample: bool = True

    def operator(self, place: TrainingPlace) -> Operator:
        """Return train_lsq_plus, or train_lsq where there is no offset."""
        spec = place.spec
        assert isinstance(spec, QuantizationSpec)
        if (ranged := by_range(place)) is not None:
            return ranged
        if place.is_parameter or not spec.qscheme.endswith("affine") or spec.ch_axis is not None:
            without = LSQ("three_sigma", "mean_squared_error", self.per_sample)
            return without.at(place)
        return Operator(
            "train_lsq_plus",
            {
                "scale": State("scale", unset(place), trained=True),
                "offset": State("offset", unset(place) * 0, trained=True),
                "per_sample": self.per_sample,
            },
            scale=("scale", spec.quant_min, spec.quant_max),
        )

    def qparams(
        self, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return the trained scale, and the offset in steps of it."""
        scale, offset = positive(operands["scale"]), operands["offset"].detach().cpu()
        found = scale_qparams(scale, 0, spec)
        if found is None:
            return None
        steps = round(float(-offset * (1 / scale)))  # in float32, as the operator does
        zero = min(max(steps, spec.quant_min), spec.quant_max)
        return replace(found, zero_point=zero)
