"""Ranges that follow the data, and a straight-through gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from ..observers import MinMax, MovingAverageMinMax, ObserverState, PairSums
from ..quantizer import QParams, QuantizationSpec, choose_qparams
from .fake_quantizer import FakeQuantizer
from .place import Operator, Place, State, constants, fold_operands, group_operand


@dataclass(frozen=True)
class MovingAverage(FakeQuantizer):
    """The moving average of each batch's range; weights have the range of their numbers.

    x^ = (clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale

    with the gradient 1 where nothing was clamped and 0 elsewhere: the straight-through estimator
    (Bengio et al., arXiv:1308.3432). Scale and zero point are not trained: they follow from the
    range as in `QuantizationSpec`. Ranges are buffers `<slot>_range`: low and high, float32 of
    shape [2] or [2, channels]. With `disable_observers` they stand still.

    Attributes:
        averaging_constant: weight of the newest batch, in (0, 1].
    """

    kinds: ClassVar[tuple[str, ...]] = ("fake_quantize_moving_average",)
    averaging_constant: float = 0.01

    def __post_init__(self) -> None:
        MovingAverageMinMax(self.averaging_constant)

    def operator(self, place: Place) -> Operator:
        """Return fake_quantize_moving_average."""
        spec = place.spec
        assert isinstance(spec, QuantizationSpec)
        spec = spec.for_range(-1.0 if place.signed else 0.0)
        is_parameter = place.is_parameter
        infinity = float("inf")
        channels = (place.channels,) if spec.ch_axis is not None else (1,)
        unseen = torch.tensor([infinity, -infinity]).reshape(2, 1).expand(2, *channels).clone()
        constant = self.averaging_constant
        if isinstance(spec.observer, MovingAverageMinMax):
            constant = spec.observer.averaging_constant
        return Operator(
            "fake_quantize_moving_average",
            (
                ("state", 0),
                *fold_operands(place),
                ("observe", is_parameter),
                ("enabled", None),
                *constants(1.0 if is_parameter else constant, isinstance(spec.observer, PairSums)),
                *constants(spec.quant_min, spec.quant_max, spec.qscheme, spec.ch_axis),
                *constants(spec.rounding),
                group_operand(place),
                *constants(place.name, place.text),
            ),
            (State(f"{place.slot}_range", unseen.reshape(2, -1).squeeze(1), trained=False),)
            if spec.ch_axis is None
            else (State(f"{place.slot}_range", unseen, trained=False),),
        )

    @classmethod
    def qparams(
        cls, kind: str, operands: Mapping[str, Any], spec: QuantizationSpec
    ) -> QParams | None:
        """Return what follows from the range: of weights, that of their numbers as they are now."""
        range_ = operands["range"].double()
        if operands["observe"] is True and isinstance(operands["x"], torch.Tensor):
            range_ = _range_of(operands["x"], spec)
        if not bool((range_[0] <= range_[1]).all()):
            return None
        scheme = replace(spec, qscheme=operands["qscheme"], observer=MinMax())
        return choose_qparams(scheme, ObserverState(range_, None))


def _range_of(values: torch.Tensor, spec: QuantizationSpec) -> torch.Tensor:
    if spec.ch_axis is None:
        return torch.stack(values.aminmax()).double()
    infinity = float("inf")
    channels = values.shape[spec.ch_axis]
    range_ = torch.tensor([infinity, -infinity], dtype=torch.float64)
    range_ = range_.reshape(2, 1).expand(2, channels).clone()
    op = getattr(torch.ops.jit_passes, spec.observer.per_channel_op)
    op(values, range_, spec.ch_axis, False, "", "")
    return range_
